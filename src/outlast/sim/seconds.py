"""Where the seconds of a simulated run went, by the product's own books: each process keeps a `Book`, publishes its settled part in its beacon,
and what was published last is its life in the ledger, as runtime/coordinator/bookkeeping.py reads it.
"""

from __future__ import annotations

from outlast.model.goodput import Accounting, account_session
from outlast.model.records import Interruption, Life
from outlast.model.terms import Phase
from outlast.sim.processes import Process


def publish(process: Process, phase: Phase, *, now_s: float) -> None:
    """The main thread is in `phase` from now on, and says what its book has settled."""
    beacon, machine = process.beacon, process.machine
    beacon.phase, beacon.beats, beacon.at_ns = phase, beacon.beats + 1, int(process.node.now_s * 1e9)
    beacon.generation, beacon.step, beacon.prepared = machine.generation, max(machine.committed, 0), max(machine.prepared, 0)
    seconds, since_s, beacon.cause = process.book.settled()
    beacon.opened_ns, beacon.since_ns, beacon.seconds = int(process.book.opened_s * 1e9), int(since_s * 1e9), dict(seconds)


class Lives:
    """Of all processes, as the ledger has them."""

    def __init__(self) -> None:
        self._ended: list[Life] = []

    def ended(self, process: Process, *, now_s: float) -> None:
        beacon = process.beacon
        opened_s = beacon.opened_ns / 1e9 if beacon.opened_ns and beacon.rank >= 0 else None
        promoted = process.kind != "rank" and opened_s is not None
        assigned_s = opened_s if promoted and opened_s is not None else process.spawned_s
        seconds = dict(beacon.seconds) if opened_s is not None else {}
        self._ended.append(Life(process.worker, 1, "node", beacon.rank, "rank", assigned_s, opened_s, now_s, seconds, beacon.cause))

    def account(self, *, world_size: int, began_s: float, over_s: float, interruptions: list[Interruption]) -> Accounting:
        return account_session(
            world_size=world_size, started_s=began_s, over_s=over_s, now_s=over_s, alive=False, lives=self._ended, interruptions=interruptions,
        )  # fmt: skip
