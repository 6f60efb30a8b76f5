"""Faults that a drill injects into whole hosts, or into the launchers there (`HostFaults`).

A run promises to survive the loss of any one host. So a fault of a host is injected only once all
hosts have been in the run for SETTLED_S, with a process for each rank, and with voters. Until then
it waits. Only hosts that this process has created are struck, and only launchers that it has
started.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.runtime.drill.drill_host_launchers import HostLaunchers, HostLayout, HostNode
from outlast.runtime.drill.drill_strikes import Due, HitHost
from outlast.runtime.drill.striking import RunProcess

SETTLED_S = 3.0  # new voters are named two seconds after one was lost
LOOK_EACH_S = 0.5  # looking at all processes takes milliseconds
FLAP_S = 0.3  # a flapping link is down for this long, and then up for this long
_RANK = "outlast-rank"


@dataclass(slots=True)
class _Lasting:
    """A fault that lasts until a time, and how it ends. `turn`: what a flapping link does next."""

    until_s: float
    end: Callable[[], object]
    turn: Callable[[], object] | None = None
    turn_s: float = 0.0


class HostStrikes:
    """The faults of the hosts of one run."""

    def __init__(self, run: HostLaunchers) -> None:
        self._run = run
        self._lasting: dict[int, _Lasting] = {}  # by the host's number
        self._looked_s = 0.0
        self._whole_since_s: float | None = None  # since when all hosts are in the run

    def look(self, now_s: float) -> None:
        """End what has lasted long enough, and find out whether the run is complete."""
        for number, one in list(self._lasting.items()):
            if now_s >= one.until_s:
                del self._lasting[number]
                one.end()
            elif one.turn is not None and now_s >= one.turn_s:
                one.turn_s = now_s + FLAP_S
                one.turn()
        if now_s - self._looked_s >= LOOK_EACH_S:
            self._looked_s = now_s
            if not self._is_whole():
                self._whole_since_s = None
            elif self._whole_since_s is None:
                self._whole_since_s = now_s

    def close(self) -> None:
        """Restore all links, and let stopped launchers go on."""
        while self._lasting:
            _, one = self._lasting.popitem()
            one.end()

    def _is_whole(self) -> bool:
        """Return whether all hosts are in the run, and each rank has a process."""
        if self._lasting or any(_is_away(node) for node in self._run.nodes):
            return False
        ranks = {rank for some in self._run.homes().values() for rank in _ranks(some)}
        return len(ranks) == self._run.layout.world_size and self._run.are_all_in()

    def may_strike(self, now_s: float) -> bool:
        """Return whether the run has been complete for long enough."""
        since_s = self._whole_since_s
        return since_s is not None and now_s >= since_s + SETTLED_S

    def away(self) -> Collection[int]:
        """Return the numbers of the hosts that a fault keeps out of the run now."""
        return {*self._lasting, *(node.number for node in self._run.nodes if _is_away(node))}

    def strike(self, one: Due, now_s: float) -> HitHost | None:
        """Strike a host. Return None while the run is not complete, or no host leads it."""
        if not self.may_strike(now_s):
            return None
        homes = self._run.homes()
        node = self._node(one, {number: _ranks(some) for number, some in homes.items()})
        if node is None or not node.launcher or self._run.leading() is None:
            return None
        struck = HitHost(node.number, node.launcher, tuple(sorted(_ranks(homes[node.number]))))
        if not self._strike(one, node, now_s):
            return None
        self._whole_since_s = None
        return struck

    def _node(self, one: Due, ranks: dict[int, set[int]]) -> HostNode | None:
        """Return the host that the fault means."""
        if one.kind.struck == "leader":
            return self._run.leading()
        if one.node is not None:
            return self._run.nodes[one.node]
        number = next((number for number, some in ranks.items() if one.rank in some), None)
        return None if number is None else self._run.nodes[number]

    def _strike(self, one: Due, node: HostNode, now_s: float) -> bool:
        """Do what the kind says, and note how it ends. Return False if the launcher is gone."""
        number, machines = node.number, self._run.machines
        until_s = now_s + one.for_s
        match one.kind.name:
            case "lose_node":
                self._run.target.drop(node.launcher)
                machines.lose(number)
                node.gone(until_s)
                self._lasting[number] = _Lasting(until_s, lambda: machines.mend(number))
            case "cut":
                machines.cut(number)
                self._lasting[number] = _Lasting(until_s, lambda: machines.mend(number))
            case "slow_link":
                machines.slow(number)
                self._lasting[number] = _Lasting(until_s, lambda: machines.mend(number))
            case "flap":
                machines.cut(number)
                self._lasting[number] = self._flapping(number, now_s, until_s)
            case "stop_agent":
                launcher = node.launcher
                if not self._run.target.send_launcher(launcher, signal.SIGSTOP):
                    return False
                self._lasting[number] = _Lasting(
                    until_s, lambda: self._run.target.send_launcher(launcher, signal.SIGCONT)
                )
            case "lose_agent" | "lose_coordinator":
                if not self._run.target.send_launcher(node.launcher, signal.SIGKILL):
                    return False
                self._run.target.drop(node.launcher)
                node.gone(until_s)
            case "maintenance":
                if not self._run.target.send_launcher(node.launcher, signal.SIGTERM):
                    return False
                node.leaving_s = one.for_s
            case name:
                raise AssertionError(f"no host can be struck by {name!r}")
        return True

    def _flapping(self, number: int, now_s: float, until_s: float) -> _Lasting:
        machines, is_down = self._run.machines, True

        def turn() -> None:
            nonlocal is_down
            (machines.mend if is_down else machines.cut)(number)
            is_down = not is_down

        return _Lasting(until_s, lambda: machines.mend(number), turn, now_s + FLAP_S)


def launch(
    run: Path,
    words: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    layout: HostLayout,
) -> HostLaunchers:
    """Start a run on several hosts into which a drill can inject faults."""
    out = HostLaunchers(run, words, environment=environment, log=log, layout=layout)
    out.hosts = HostStrikes(out)
    return out


def _is_away(node: HostNode) -> bool:
    return node.process is None or node.leaving_s is not None or node.ended_s is not None


def _ranks(some: list[RunProcess]) -> set[int]:
    titles = [one.title for one in some if one.title.startswith(_RANK)]
    return {int(title[len(_RANK) :]) for title in titles if title[len(_RANK) :].isdigit()}
