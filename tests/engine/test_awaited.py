"""What a run reports that it is waiting for, and until when."""

from __future__ import annotations

from outlast.engine.coordinator.awaited import Awaited, describe_wait
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import Output, SetTimer, ToAgent
from outlast.model import limits
from outlast.model.messages import (
    Committed,
    Hello,
    Inventory,
    Joined,
    KillWorker,
    Registered,
    StoreUp,
    Underway,
    WorkerExited,
    WorkerStarted,
)


class WatchedRun:
    """A run of two ranks, and the timers that its coordinator has set."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(options=CoordinatorOptions(2, Restart()))
        self.deadlines: dict[str, float] = {}
        self.take(self.coordinator.start(now_s=0.0))

    def take(self, outputs: list[Output]) -> None:
        for one in outputs:
            if isinstance(one, SetTimer):
                self.deadlines.pop(one.name, None)
                if one.at_s is not None:
                    self.deadlines[one.name] = one.at_s

    def hears(self, *messages: object, now_s: float) -> None:
        for message in messages:
            self.take(self.coordinator.on_message(message, now_s=now_s))  # type: ignore[arg-type]

    @property
    def waits(self) -> Awaited | None:
        return describe_wait(self.coordinator.run, self.deadlines)

    @property
    def waits_while_imports_go_on(self) -> Awaited | None:
        return describe_wait(self.coordinator.run, self.deadlines, imports=True)

    @property
    def what(self) -> str:
        assert self.waits is not None
        return self.waits.what


def trains() -> WatchedRun:
    """Bring a run to training, and check after each message what the run waits for."""
    one = WatchedRun()
    assert one.what == (
        "the store of the process groups; ranks 0, 1: their processes are being started"
    )
    assert one.waits == Awaited(one.what, limits.BOOT_DEADLINE_S)
    assert one.waits_while_imports_go_on == Awaited(
        "the store of the process groups; ranks 0, 1: they are forked once torch and the script's"
        " modules are imported",
        limits.BOOT_DEADLINE_S,
    )
    one.hears(StoreUp("127.0.0.1", 4000, 1), now_s=0.1)
    one.hears(WorkerStarted(1, 101, "n", 0.2), WorkerStarted(2, 102, "n", 0.2), now_s=0.2)
    assert one.what == "ranks 0, 1: their interpreters start"
    one.hears(Hello(1, 101), now_s=0.3)
    assert one.what == (
        "rank 0: its script runs, with its imports, and has not called outlast.join;"
        " rank 1: its interpreter starts"
    )
    one.hears(Hello(2, 102), now_s=0.3)
    imports = "their scripts run, with their imports: no outlast call and no optimizer step so far"
    assert one.waits == Awaited(f"ranks 0, 1: {imports}", None), "it may be a plain script"
    one.hears(Registered(1, 1, 0, "in_place", False, True, ""), now_s=0.4)
    assert one.what == (
        "rank 0: its script is on the way from outlast.join to run.steps;"
        " rank 1: its script runs, with its imports, and has not called outlast.join"
    )
    one.hears(Registered(2, 1, 0, "in_place", False, True, ""), now_s=0.4)
    one.hears(Underway(1, 1, 2), now_s=0.4)
    assert one.what.startswith("rank 0: it connects to its peers; rank 1:")
    one.hears(Joined(1, 1, 0, 0.1, 0.1), Joined(2, 1, 0, 0.1, 0.1), now_s=0.5)
    one.hears(Committed(1, 1, 1, 0.6), now_s=0.6)
    assert one.coordinator.stage is Stage.TRAINING
    return one


def test_every_stage_before_training_names_the_awaited_ranks() -> None:
    assert trains().waits is None, "who trains waits for nobody"


def test_a_regroup_names_ranks_that_have_not_left_and_their_deadline() -> None:
    one = trains()
    one.hears(WorkerExited(2, 102, None, 9, False, 1, (1,), (), "body", 1.0, 1.0, ""), now_s=1.0)
    assert one.what == "other signs of the same fault"
    one.take(one.coordinator.on_timer(now_s=1.01, name="gather"))
    assert one.what == "rank 0 to leave the step"
    assert one.waits is not None
    assert one.waits.until_s == one.deadlines["leave"]
    one.hears(Inventory(1, 1, 1, 1, 1, False, ()), now_s=1.02)
    assert one.coordinator.stage is Stage.MOVING
    assert one.what == (
        "rank 0: it settles the step that was interrupted; rank 1: its process is being started"
    )
    assert one.waits.until_s == one.deadlines["move"]


def test_a_run_that_has_ordered_no_process_says_so() -> None:
    """The launcher may show a status before the coordinator has begun."""
    coordinator = Coordinator(options=CoordinatorOptions(2, Restart()))
    wait = describe_wait(coordinator.run, {})
    assert wait is not None
    assert wait.what.endswith("the first processes to be ordered")


def test_a_plain_script_is_waited_for_until_its_first_step() -> None:
    """It may import its modules for long, and nothing else tells what it does."""
    one = WatchedRun()
    one.hears(StoreUp("127.0.0.1", 4000, 1), now_s=0.1)
    for worker in (1, 2):
        one.hears(WorkerStarted(worker, 100 + worker, "n", 0.2), now_s=0.2)
        one.hears(Hello(worker, 100 + worker), now_s=0.3)
    assert one.what.startswith("ranks 0, 1: their scripts run, with their imports: no outlast call")
    one.hears(Committed(1, 1, 1, 5.0), now_s=5.0)
    assert one.waits is None


def test_a_program_that_is_no_script_is_not_waited_for() -> None:
    """Outlast sees no steps of it, so a first step would be awaited for ever."""
    coordinator = Coordinator(options=CoordinatorOptions(1, Restart(), greets=False))
    coordinator.start(now_s=0.0)
    coordinator.on_message(StoreUp("127.0.0.1", 4000, 1), now_s=0.1)
    coordinator.on_message(WorkerStarted(1, 101, "n", 0.2), now_s=0.2)
    assert describe_wait(coordinator.run, {}) is None


def test_the_last_holder_of_the_state_gets_more_time_to_leave_its_step() -> None:
    """No other rank holds the state, so giving this one up at once would lose every step."""
    one = trains()
    one.hears(WorkerExited(2, 102, None, 9, False, 1, (1,), (), "body", 1.0, 1.0, ""), now_s=1.0)
    one.take(one.coordinator.on_timer(now_s=1.01, name="gather"))
    ordered: list[Output] = []
    while one.deadlines["leave"] < 1.0 + limits.LEAVE_LAST_S:
        due_s = one.deadlines["leave"]
        ordered = one.coordinator.on_timer(now_s=due_s, name="leave")
        assert [type(output) for output in ordered] == [SetTimer], ordered
        one.take(ordered)
    ordered = one.coordinator.on_timer(now_s=one.deadlines["leave"], name="leave")
    killed = [output.message for output in ordered if isinstance(output, ToAgent)]
    assert [type(message) for message in killed] == [KillWorker], ordered
