"""How many steps a failure under sharded state costs where not each step is sealed: the count
follows from what each rank has committed when all stand still.
"""

from __future__ import annotations

import pytest

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.protocol.outputs import Output, Record, SetTimer
from outlast.model.messages import (
    Broke,
    Committed,
    FromAgent,
    FromWorker,
    Hello,
    Inventory,
    Joined,
    Progress,
    Registered,
    StoreUp,
    WorkerExited,
    WorkerStarted,
)
from outlast.model.records import Interruption
from outlast.model.terms import Rung

SEALED = (5, 10)


class Run:
    """A run of two ranks in training. Its state is sharded unless `replicated` is set.

    `interruption` is the interruption as the ledger has it. `timers` holds when each timer is due.
    """

    def __init__(
        self, mode: str = "reenter", *, replicated: bool = False, checkpoint_on_stop: bool = False
    ) -> None:
        self.now_s = 0.0
        self.interruption: Interruption | None = None
        self.timers: dict[str, float] = {}
        options = CoordinatorOptions(2, Restart(), checkpoint_on_stop=checkpoint_on_stop)
        self.coordinator = Coordinator(options=options)
        self._keep(self.coordinator.start(now_s=0.0))
        first, second = self.workers = [
            member.worker for member in self.coordinator.roster.members()
        ]
        self.say(StoreUp("127.0.0.1", 1, 1))
        for worker in (first, second):
            self.say(
                WorkerStarted(worker, 100 + worker, "node", self.now_s), Hello(worker, 100 + worker)
            )
            self.say(Registered(worker, 1, 0, mode, not replicated, True, ""))
        for worker in (first, second):
            self.say(Joined(worker, 1, 0, 0.1, 0.1))
        for worker in (first, second):
            self.say(Committed(worker, 1, 1, self.now_s))

    def say(self, *messages: FromWorker | FromAgent) -> None:
        for message in messages:
            self.now_s += 0.01
            self._keep(self.coordinator.on_message(message, now_s=self.now_s))

    def dies(self, committed: int, *, rank: int = 1) -> None:
        worker = self.coordinator.roster.holder(rank).worker
        self.say(
            WorkerExited(
                worker,
                100 + worker,
                None,
                9,
                False,
                committed,
                SEALED,
                SEALED,
                "body",
                self.now_s,
                self.now_s,
                "",
            )
        )

    def gathers(self) -> None:
        """Let the wait for companions of the fault end."""
        self._keep(self.coordinator.on_timer(now_s=self.now_s, name="gather"))

    def stands_still(self, committed: int, *, generation: int = 1) -> None:
        """Let rank 0 send its inventory after it was told to leave."""
        self.gathers()
        self.say(
            Inventory(self.workers[0], generation, committed, committed, committed, False, SEALED)
        )

    def _keep(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Record) and isinstance(output.record, Interruption):
                self.interruption = output.record
            if isinstance(output, SetTimer):
                self.timers.pop(output.name, None)
                self.timers |= {} if output.at_s is None else {output.name: output.at_s}


@pytest.mark.parametrize(
    ("dead", "alive", "lost"), [(11, 11, 1), (13, 14, 3), (14, 13, 3), (10, 11, 0), (10, 10, 0)]
)
@pytest.mark.parametrize("seen", [0, 9, 10])
def test_committed_steps_count_as_lost_though_no_beacon_was_read(
    dead: int, alive: int, lost: int, seen: int
) -> None:
    """A step that only one rank had committed does not count as committed.

    `seen` is what the last look at the beacons, up to a tick earlier, showed of both ranks.
    """
    run = Run()
    run.say(Progress(seen, seen, 0.01, run.now_s))
    run.dies(dead)
    run.stands_still(alive)
    assert run.interruption is not None
    assert "step 10 is the newest snapshot" in run.interruption.reason
    assert run.interruption.steps_lost == lost
    assert run.interruption.steps_repeated == max(dead, alive) - 10


def test_a_rank_that_has_no_state_yet_does_not_say_what_was_committed() -> None:
    """The rank stands still before it has built any state, so the run knows only what the beacons
    had shown.
    """
    run = Run()
    run.say(Progress(12, 12, 0.01, run.now_s))
    run.dies(12)
    run.stands_still(-1)
    assert run.interruption is not None
    assert run.interruption.steps_lost == 2


def test_the_cost_of_a_failure_is_not_booked_again_with_the_next() -> None:
    """Method: the run reaches step 13 and goes back to 10. Then rank 1 dies again before the run
    has reached 13: step 11 was committed again, and one step is lost.
    """
    run = Run()
    run.say(Progress(13, 13, 0.01, run.now_s))
    run.dies(13)
    run.stands_still(13)
    assert run.interruption is not None
    assert (run.interruption.steps_lost, run.interruption.steps_repeated) == (3, 3)
    successor = run.coordinator.roster.holder(1).worker
    run.say(
        StoreUp("127.0.0.1", 2, 1),
        WorkerStarted(successor, 200, "node", run.now_s),
        Hello(successor, 200),
    )
    run.say(Registered(successor, 2, 10, "reenter", True, True, ""))
    for worker in (run.workers[0], successor):
        run.say(Joined(worker, 2, 10, 0.1, 0.1))
    for worker in (run.workers[0], successor):
        run.say(Committed(worker, 2, 11, run.now_s))
    run.workers[1] = successor
    run.dies(11)
    run.stands_still(11, generation=2)
    assert (run.interruption.id, run.interruption.steps_lost, run.interruption.steps_repeated) == (
        2,
        1,
        1,
    )


@pytest.mark.parametrize(
    ("first", "second", "repeated"),
    [
        (Inventory(1, 1, 11, 11, 11, False, ()), Inventory(2, 1, 11, 11, 11, False, ()), 0),
        (
            Inventory(1, 1, 11, 11, 11, False, (), begun=True),
            Inventory(2, 1, 11, 11, 11, False, ()),
            1,
        ),
        (
            Inventory(1, 1, 11, 11, 11, False, (), begun=True, over=True),
            Inventory(2, 1, 11, 11, 11, False, ()),
            0,
        ),
        (
            Inventory(1, 1, 11, 11, 11, False, (), begun=True),
            Inventory(2, 1, 10, 11, 10, True, ()),
            0,
        ),
    ],
    ids=[
        "nobody had asked for a step",
        "one had asked for it",
        "there was none to ask for",
        "one was at the end of the step before",
    ],
)
def test_a_replicated_step_cut_short_counts_as_repeated(
    first: Inventory, second: Inventory, repeated: int
) -> None:
    """Method: a connection is lost, and both ranks stand still."""
    run = Run("in_place", replicated=True)
    run.say(Broke(run.workers[0], 1, 11, "collective", "reset by peer", "", run.now_s))
    run.gathers()
    run.say(first, second)
    assert run.interruption is not None
    assert (
        run.interruption.rung,
        run.interruption.steps_lost,
        run.interruption.steps_repeated,
    ) == (Rung.REPEAT, 0, repeated)
