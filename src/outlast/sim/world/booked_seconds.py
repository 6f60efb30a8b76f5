"""Book the seconds of a simulated run with outlast's own books.

Each process keeps a `Book`, and publishes its settled part in its beacon. The last published part
is its life in the ledger, as in runtime/coordinator/bookkeeping.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from outlast.model.goodput import Accounting, account_session
from outlast.model.records import Interruption, Life
from outlast.model.terms import Phase
from outlast.model.waits import Spans
from outlast.sim.world.processes import SimulatedProcess


def publish(process: SimulatedProcess, phase: Phase, *, now_s: float) -> None:
    """Publish that the main thread is in `phase` from now on, with the settled part of its book."""
    beacon, machine = process.beacon, process.machine
    beacon.phase, beacon.beats, beacon.at_ns = (
        phase,
        beacon.beats + 1,
        int(process.node.now_s * 1e9),
    )
    beacon.generation, beacon.step, beacon.prepared = (
        machine.generation,
        max(machine.committed, 0),
        max(machine.prepared, 0),
    )
    seconds, since_s, beacon.cause = process.book.settled()
    opened_ns, since_ns = int(process.book.opened_s * 1e9), int(since_s * 1e9)
    # otherwise nothing was settled since the last time
    if since_ns != beacon.since_ns or opened_ns != beacon.opened_ns:
        beacon.opened_ns, beacon.since_ns, beacon.seconds = opened_ns, since_ns, seconds.copy()


class Lives:
    """The lives of all processes, as the ledger has them."""

    def __init__(self) -> None:
        self._ended: list[Life] = []
        # the lives of workers that live on although another process has their rank
        self._over: dict[int, Life] = {}

    def outlived(self, process: SimulatedProcess, *, now_s: float) -> None:
        """Note that the rank of a living process is given to another one.

        Seconds that it still books once its node goes on do not count.
        """
        self._over.setdefault(process.worker, _life(process, now_s=now_s))

    def ended(self, process: SimulatedProcess, *, now_s: float) -> None:
        if process.rank < 0 <= process.beacon.rank:
            # Its node stood still. When it learned that it held a rank, another process already
            # held that rank. So the seconds that it booked do not count.
            return
        life = self._over.pop(process.worker, None) or _life(process, now_s=now_s)
        self._ended.append(life)
        if process.node.twins is not None:
            self._ended += [
                replace(life, worker=life.worker + rank - life.rank, rank=rank)
                for rank in process.node.twins.like(life.rank)
            ]

    def account(
        self,
        *,
        world_size: int,
        began_s: float,
        over_s: float,
        interruptions: list[Interruption],
        waits: Spans,
        drained: Collection[int],
    ) -> Accounting:
        return account_session(
            world_size=world_size,
            started_s=began_s,
            over_s=over_s,
            now_s=over_s,
            alive=False,
            lives=self._ended,
            interruptions=interruptions,
            waits=waits,
            drained=drained,
        )


def _life(process: SimulatedProcess, *, now_s: float) -> Life:
    """Return the life of a process that ends now."""
    beacon = process.beacon
    opened_s = beacon.opened_ns / 1e9 if beacon.opened_ns and beacon.rank >= 0 else None
    promoted = process.kind != "rank" and opened_s is not None
    assigned_s = opened_s if promoted and opened_s is not None else process.spawned_s
    seconds = dict(beacon.seconds) if opened_s is not None else {}
    return Life(
        process.worker,
        1,
        "node",
        beacon.rank,
        "rank",
        assigned_s,
        opened_s,
        now_s,
        seconds,
        beacon.cause,
    )


class Worked:
    """This says how long each rank worked on steps that it committed first, by the world's clock.

    A step whose state a rank got from others took no time.
    """

    def __init__(self, ranks: int) -> None:
        # the seconds since the last stretch, and their sum before that
        self._seconds: list[list[float]] = [[] for _ in range(ranks)]
        self._upto = [0] * ranks  # the newest step that is accounted for
        self._newest = [0] * ranks  # the newest of these steps that took any time
        self._unsure = [0] * ranks  # number of steps that may be booked as something else
        self._longest_s = 0.0
        self._watched: Sequence[int] = range(ranks)

    def given(self, rank: int, step: int) -> None:
        """Note that a rank is in a group with the state of `step`."""
        self._upto[rank] = max(self._upto[rank], step)

    def takes_over(self, rank: int, high_water: int, step: int) -> None:
        """Note that a rank goes on from `step`.

        If the rank has really reached one step more or less, that step is booked wrongly. So is a
        step whose state it once got from others, and that it does itself now.
        """
        self._unsure[rank] += abs(self._newest[rank] - high_water)
        if step < self._upto[rank]:
            self._unsure[rank] += max(0, self._upto[rank] - max(high_water, self._newest[rank]))

    def did(self, rank: int, step: int, took_s: float) -> None:
        self._longest_s = max(self._longest_s, took_s)
        if step > self._upto[rank]:
            self._upto[rank] = step
            self._seconds[rank].append(took_s)
            if took_s:
                self._newest[rank] = step

    def all_did(self, count: int, last: int, step_s: float) -> None:
        """Note that all ranks did `count` steps of `step_s` each, up to `last`."""
        self._longest_s = max(self._longest_s, step_s)
        for rank in self._watched:
            seconds = self._seconds[rank]
            # holders that were lost may have done some of these steps
            new = last - max(self._upto[rank], last - count)
            if new > 0:
                seconds[:] = [math.fsum((*seconds, new * step_s))]
                self._upto[rank] = self._newest[rank] = last

    def only(self, ranks: Iterable[int]) -> None:
        """Watch only these ranks. `same` adds the others at the end."""
        self._watched = tuple(ranks)

    def same(self, rank: int, others: Iterable[int]) -> None:
        """Note that these ranks did the same as `rank`."""
        for other in others:
            self._seconds[other], self._unsure[other] = self._seconds[rank], self._unsure[rank]

    def seconds(self) -> tuple[float, ...]:
        return tuple(math.fsum(seconds) for seconds in self._seconds)

    def unsure_s(self) -> tuple[float, ...]:
        return tuple(unsure * self._longest_s for unsure in self._unsure)
