"""Watch the zygote and the hosts of the stores: read their state, and send them questions.

`engine/helpers.py` decides what is done about a helper. This module asks the kernel for the state
of each process, and sends the questions. The owner of a helper that is given up kills it. The end
of that helper is then handled like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outlast.engine.helpers import HelperReading, HelperWatch
from outlast.model.limits import HELPER_LOOK_S
from outlast.runtime.agent.starving import Starving
from outlast.runtime.clock import now_s
from outlast.runtime.linux import is_stopped
from outlast.runtime.loop import Loop


@dataclass(slots=True)
class _Helper:
    """One process that is watched.

    is_idle   returns True while it has no work that could delay an answer
    ask       sends it a question
    give_up   kills it; it gets the reason
    """

    pid: int
    watch: HelperWatch
    is_idle: Callable[[], bool]
    ask: Callable[[], object]
    give_up: Callable[[str], object]
    starving: Starving | None = None  # set while the helper owes an answer


class HelperKeeper:
    """Look at each helper several times a second, from `watch` until `forget`."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._helpers: dict[int, _Helper] = {}
        self._looking = False

    def watch(
        self,
        name: str,
        pid: int,
        *,
        is_idle: Callable[[], bool],
        ask: Callable[[], object],
        give_up: Callable[[str], object],
    ) -> None:
        """Watch the process `pid` from now on.

        `name` is the name of the helper in messages for people.
        """
        watch = HelperWatch(f"{name} (pid {pid})", now_s=now_s())
        self._helpers[pid] = _Helper(pid, watch, is_idle, ask, give_up)
        if not self._looking:
            self._looking = True
            self._loop.call_at(now_s() + HELPER_LOOK_S, self._look)

    def forget(self, pid: int) -> None:
        """Forget a process that has ended, or is about to. Unknown ones are ignored."""
        self._helpers.pop(pid, None)

    def answered(self, pid: int) -> None:
        """Note that the process has answered its question."""
        if (helper := self._helpers.get(pid)) is not None:
            helper.starving = None
            helper.watch.answered(now_s=now_s())

    def _look(self) -> None:
        self._looking = bool(self._helpers)
        if not self._looking:
            return
        at_s = now_s()
        self._loop.call_at(at_s + HELPER_LOOK_S, self._look)
        for helper in list(self._helpers.values()):
            self._judge(helper, at_s)

    def _judge(self, helper: _Helper, at_s: float) -> None:
        starving = helper.starving
        starved_s = starving.look_with_children(now_s=at_s) if starving is not None else 0.0
        reading = HelperReading(is_stopped(helper.pid), starved_s)
        verdict = helper.watch.on_look(reading, now_s=at_s, may_ask=helper.is_idle())
        if verdict.replace:
            self.forget(helper.pid)
            helper.give_up(verdict.reason)
        elif verdict.ask:
            helper.ask()
            helper.starving = Starving(helper.pid)
            helper.starving.look_with_children(now_s=at_s)
