"""The faults of a drill, injected into a run while it goes on.

`DrillStrikes.look` is called many times a second, with the step that the run has committed. It
injects what is due, ends what has lasted long enough, and writes each fault that has fired to a
file, one JSON object per line. The run's own ledger is compared with that file.

A fault that is due while its rank has no process waits for the next process that takes the rank.

With each fault goes what the run had to fall back on when it struck (`drill_looks.py`).
"""

from __future__ import annotations

import json
import signal
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from outlast.model.drills.drill_faults import FaultKind, Leaves
from outlast.model.drills.drill_redundancy import InForce
from outlast.runtime import clock
from outlast.runtime.drill.drill_disk import RunDisk
from outlast.runtime.drill.drill_images import DamagedImages
from outlast.runtime.drill.drill_looks import RANK_TITLE, SPARE_TITLES, InForceLooks
from outlast.runtime.drill.drill_memory import MemoryGroups
from outlast.runtime.drill.striking import RunProcess, Target

SLOW_TURN_S = 0.4  # a slow process is stopped for a part of each such time
AGAIN_S = 0.1  # a process that is not there is looked for again after this: a look costs time
_TITLES = {"spare": SPARE_TITLES, "store": ("outlast-store",)}


class Due(Protocol):
    """A fault of a calendar (`sim/drill_calendar.py`)."""

    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> FaultKind: ...
    @property
    def rank(self) -> int: ...
    @property
    def at_s(self) -> float | None: ...
    @property
    def at_step(self) -> int | None: ...
    @property
    def for_s(self) -> float: ...
    @property
    def node(self) -> int | None: ...
    @property
    def share(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Fired:
    """A fault that has fired.

    at_s      the time on the monotonic clock
    ranks     for a fault of a whole host, the ranks that it had
    in_force  what the run had to fall back on then; None: that could not be read
    """

    id: str
    at_s: float
    pid: int
    step: int
    ranks: tuple[int, ...] = ()
    in_force: InForce | None = None


@dataclass(frozen=True, slots=True)
class HitHost:
    """A host that was struck: its number, the pid of its launcher, and the ranks that it had."""

    number: int
    pid: int
    ranks: tuple[int, ...]


class HostFaults(Protocol):
    """The interface for faults of whole hosts (`runtime/drill/drill_host_strikes.py`)."""

    def may_strike(self, now_s: float) -> bool:
        """Return whether the run is complete, so that it can lose a host."""

    def strike(self, one: Due, now_s: float) -> HitHost | None:
        """Strike a host. Return None if it cannot be struck now. Then try again later."""

    def look(self, now_s: float) -> None:
        """End what has lasted long enough."""

    def away(self) -> Collection[int]:
        """Return the numbers of the hosts that a fault keeps out of the run now."""

    def close(self) -> None:
        """End all faults that still last."""


@dataclass(frozen=True, slots=True)
class Means:
    """This is what injects faults that are more than a signal to a process; None: there are none.

    hosts    strikes at whole hosts
    memory   takes memory away from processes
    images   damages images in shared memory
    disk     lets the run's disk be full or slow
    """

    hosts: HostFaults | None = None
    memory: MemoryGroups | None = None
    images: DamagedImages | None = None
    disk: RunDisk | None = None

    def look(self, now_s: float) -> None:
        """End what has lasted long enough."""
        if self.hosts is not None:
            self.hosts.look(now_s)
        if self.memory is not None:
            self.memory.look()
        if self.disk is not None:
            self.disk.look(now_s)


@dataclass(slots=True)
class _Held:
    """A process that is stopped, or slow, until a time.

    turns   how long it is stopped, and how long it goes on, in turn; None: it is only stopped
    turn_s  when its turn changes next
    """

    process: RunProcess
    until_s: float
    turns: tuple[float, float] | None
    turn_s: float
    stopped: bool = True


class _Orders:
    """The orders to ranks that cause a fault in themselves: a file for each (`drill_code.py`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given: dict[str, Due] = {}

    def __len__(self) -> int:
        return len(self._given)

    def is_free(self, rank: int) -> bool:
        """Return whether a rank has carried out its last order."""
        return not (self._folder / f"rank-{rank}").exists()

    def give(self, one: Due) -> None:
        part = self._folder / f".rank-{one.rank}"
        part.write_text(json.dumps({"id": one.id, "do": one.kind.name}))
        part.replace(self._folder / f"rank-{one.rank}")
        self._given[one.id] = one

    def carried_out(self) -> list[tuple[Due, dict[str, Any]]]:
        """Return the orders that were carried out since the last call, and what the ranks said."""
        found = []
        for name, one in list(self._given.items()):
            try:
                told = json.loads((self._folder / f"fired-{name}").read_text())
            except FileNotFoundError:
                continue
            del self._given[name]
            found.append((one, told))
        return found


class DrillStrikes:
    """The faults of one drill.

    orders   the folder of those that a process causes in itself
    means    what injects the faults that are not signals
    looks    tells what the run has to fall back on; None: nobody asks
    """

    def __init__(
        self,
        target: Target,
        faults: Sequence[Due],
        *,
        orders: Path,
        truth: Path,
        means: Means | None = None,
        looks: InForceLooks | None = None,
    ) -> None:
        self.fired: list[Fired] = []
        self._target = target
        self._means = means or Means()
        self._looks = looks
        self._waiting = list(faults)
        self._orders = _Orders(orders)
        self._truth = truth
        self._held: list[_Held] = []
        self._again_s = 0.0
        self._taken: set[int] = set()  # the pids of processes that do not go on after their fault

    @property
    def left_count(self) -> int:
        """Return how many faults have not fired yet."""
        return len(self._waiting) + len(self._orders)

    def look(self, now_s: float, *, since_s: float, step: int) -> None:
        """Inject what is due. `since_s`: when seconds began to count; `step`: the newest one."""
        self._let_go(now_s)
        self._means.look(now_s)
        self._collect()
        if len(self._orders) and self._looks is not None:
            self._looks.refresh(now_s, self._taken)  # one of them may be carried out at any time
        if now_s < self._again_s:
            return
        for one in [due for due in self._waiting if _is_due(due, now_s - since_s, step)]:
            if one.kind.of_host:
                done = self._strike_host(one, now_s, step)
            elif one.kind.struck == "disk":
                done = self._strike_disk(one, now_s, step)
            else:
                done = self._order(one) if one.kind.inside else self._strike(one, now_s, step)
            if done:
                self._waiting.remove(one)
            else:
                self._again_s = now_s + AGAIN_S

    # --- from outside -----------------------------------------------------------------------------

    def _strike(self, one: Due, now_s: float, step: int) -> bool:
        process = self._find(one)
        if process is None or any(held.process == process for held in self._held):
            return False
        in_force, now_s = self._in_force(now_s)
        if not self._send(one, process):
            return False
        if one.kind.passes:
            stops_s = (1.0 - one.share) * SLOW_TURN_S
            slow = one.kind.name == "slow"
            turns = (stops_s, SLOW_TURN_S - stops_s) if slow else None
            self._held.append(_Held(process, now_s + one.for_s, turns, now_s + stops_s))
        self._note(one, Fired(one.id, now_s, process.pid, step, in_force=in_force))
        return True

    def _send(self, one: Due, process: RunProcess) -> bool:
        """Send a process the signal of its fault, once its image is damaged if that is asked."""
        if not one.kind.damages:
            return self._target.send(process, signal.Signals[one.kind.signal])
        images = self._means.images
        torn = one.kind.name == "torn_image"
        return images is not None and images.strike(self._target, process, torn=torn)

    def _strike_disk(self, one: Due, now_s: float, step: int) -> bool:
        disk = self._means.disk
        if disk is None or not disk.strike(one.kind.name, now_s + one.for_s):
            return False
        in_force, _ = self._in_force(now_s)
        self._note(one, Fired(one.id, now_s, 0, step, in_force=in_force))
        return True

    def _strike_host(self, one: Due, now_s: float, step: int) -> bool:
        hosts = self._means.hosts
        if hosts is None or not hosts.may_strike(now_s):
            return False
        in_force, now_s = self._in_force(now_s)
        struck = hosts.strike(one, now_s)
        if struck is None:
            return False
        fired = Fired(one.id, now_s, struck.pid, step, struck.ranks, in_force)
        self._note(one, fired, host=struck.number)
        return True

    def _in_force(self, now_s: float) -> tuple[InForce | None, float]:
        """Return what the run has to fall back on, and the time after this look: it takes some."""
        if self._looks is None:
            return None, now_s
        began_s = clock.now_s()
        seen = self._looks.now(now_s, self._taken)
        return seen, now_s + clock.now_s() - began_s

    def _find(self, one: Due) -> RunProcess | None:
        if one.kind.struck == "rank":
            return self._target.find(f"{RANK_TITLE}{one.rank}")
        titles = _TITLES.get(one.kind.struck, (f"outlast-{one.kind.struck}",))
        found = [process for title in titles if (process := self._target.find(title)) is not None]
        return found[0] if found else None

    def _let_go(self, now_s: float) -> None:
        """Continue processes that were stopped for long enough.

        A process that is to be slow is stopped and continued in turn.
        """
        for held in list(self._held):
            if now_s >= held.until_s:
                self._held.remove(held)
                self._target.send(held.process, signal.SIGCONT)
            elif held.turns is not None and now_s >= held.turn_s:
                held.stopped = not held.stopped
                held.turn_s = now_s + held.turns[0 if held.stopped else 1]
                what = signal.SIGSTOP if held.stopped else signal.SIGCONT
                if not self._target.send(held.process, what):
                    self._held.remove(held)

    # --- from inside ------------------------------------------------------------------------------

    def _order(self, one: Due) -> bool:
        """Give an order to a rank.

        Return False if the rank has not carried out its last order yet. Then try again later.
        """
        if not self._orders.is_free(one.rank):
            return False
        if one.kind.name == "oom" and not self._starve(one):
            return False
        self._orders.give(one)
        return True

    def _starve(self, one: Due) -> bool:
        """Limit the memory of a rank's process, before it is told to want more."""
        process, memory = self._find(one), self._means.memory
        return process is not None and memory is not None and memory.starve(process.pid)

    def _collect(self) -> None:
        """Record the orders that the ranks have carried out."""
        for one, told in self._orders.carried_out():
            in_force = None if self._looks is None else self._looks.at(told["at_s"])
            fired = Fired(one.id, told["at_s"], told["pid"], told["step"], in_force=in_force)
            self._note(one, fired)

    def close(self) -> None:
        """Record the faults that ranks carried out last. Call it once the run is over."""
        self._collect()

    def _note(self, one: Due, fired: Fired, *, host: int | None = None) -> None:
        self.fired.append(fired)
        if one.kind.interrupts and one.kind.leaves is not Leaves.TRACEBACK:
            self._taken.add(fired.pid)
        line: dict[str, object] = {
            "id": one.id,
            "kind": one.kind.name,
            "rank": one.rank,
            "pid": fired.pid,
            "at_s": fired.at_s,
            "step": fired.step,
            "for_s": one.for_s,
        }
        if one.kind.name == "slow":
            line["share"] = round(one.share, 3)
        if host is not None:
            line |= {"host": host, "ranks": fired.ranks}
        line["in_force"] = None if fired.in_force is None else asdict(fired.in_force)
        with self._truth.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _is_due(one: Due, since_s: float, step: int) -> bool:
    if one.at_step is not None:
        return step >= one.at_step - 1
    return one.at_s is not None and since_s >= one.at_s
