"""Find workers whose script is over but whose process does not end.

A non-daemon thread, a function that was given to atexit, or a destructor can keep a process alive
for ever. The run waits for its end, because it may still do useful work, such as writing a file. So
no process is killed here. A report says which worker the run waits for, and where that process
stands. The first report comes LINGER_S after the script's end, and each later one when twice as
much time has passed.

The answer to a ping names the place. A process whose interpreter is shutting down no longer
answers. It is then reported without a place, and the driver may find the place from outside.

Units: seconds, on the agent's monotonic clock. This module is pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from outlast.engine.agent.worker_watch import WorkerWatch
from outlast.engine.protocol.outputs import Deliver, Output, ToCoordinator
from outlast.model import limits
from outlast.model.messages import Ping, Pong, WorkerLingers
from outlast.model.terms import Phase


@dataclass(slots=True)
class _Lingering:
    """A worker whose script is over.

    due_s   when it is asked next where it stands, or when its answer is due
    nonce   the number of the open question, or 0 if there is none
    """

    over_s: float
    due_s: float
    nonce: int = 0


class ExitWatch:
    """Ask workers that have reached their end where they stand, and report those that stay."""

    def __init__(self, watch: WorkerWatch) -> None:
        self._watch = watch
        self._over: dict[int, _Lingering] = {}
        self._nonce = 0  # counts down, so that no answer is taken for one about a hang

    def look(self, *, now_s: float) -> list[Output]:
        """Ask those that are due, and report those that did not answer in time."""
        self._note()
        out: list[Output] = []
        for worker, one in self._over.items():
            if now_s < one.due_s:
                continue
            if one.nonce:
                out.append(self._report(worker, one, "", now_s))
            else:
                self._nonce -= 1
                one.nonce, one.due_s = self._nonce, now_s + limits.LINGER_ANSWER_S
                out.append(Deliver(worker, Ping(one.nonce)))
        return out

    def on_pong(self, pong: Pong, *, now_s: float) -> list[Output]:
        """Report a worker that has said where it stands."""
        one = self._over.get(pong.worker)
        if one is None or not one.nonce or one.nonce != pong.nonce:
            return []
        return [self._report(pong.worker, one, pong.where, now_s)]

    def quiet_until_s(self) -> float:
        """Return the time before which no tick can find anything, while no beacon moves."""
        return min((one.due_s for one in self._over.values()), default=math.inf)

    def _note(self) -> None:
        """Note which workers have reached their end, and forget those that are gone."""
        workers = self._watch.workers
        for worker, watched in workers.items():
            if watched.still.phase is Phase.EXIT and worker not in self._over:
                over_s = watched.still.moved_s
                self._over[worker] = _Lingering(over_s, over_s + limits.LINGER_S)
        for worker in [one for one in self._over if one not in workers]:
            del self._over[worker]

    def _report(self, worker: int, one: _Lingering, where: str, now_s: float) -> Output:
        since_s = now_s - one.over_s
        one.nonce, one.due_s = 0, one.over_s + 2 * since_s
        return ToCoordinator(WorkerLingers(worker, one.over_s, now_s, where))
