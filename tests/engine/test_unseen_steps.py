"""Scripts without outlast calls: what an interruption costs.

The next optimizer call shows the cost. Without such a call, it is unknown.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.engine.coordinator.interruptions import InterruptionLog
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import Output, Record, Tell, ToAgent
from outlast.model.goodput import account, recovery
from outlast.model.messages import (
    Committed,
    FromAgent,
    FromWorker,
    Hello,
    StoreUp,
    TermWorker,
    WorkerExited,
    WorkerHung,
    WorkerStarted,
)
from outlast.model.own_bugs import is_own_bug
from outlast.model.records import (
    RESUMED,
    UNKNOWN_COUNT,
    UNSEEN_COUNT,
    WENT_ON,
    Event,
    Interruption,
    Life,
    Meta,
    Records,
    Session,
    SessionRecords,
    StepsBucket,
)
from outlast.model.terms import Cause, FailureClass, Mechanism, Rung
from outlast.model.texts import cost_words, recovery_words
from tests.engine import test_program
from tests.engine.test_interruptions import log_of, newest


def decided(executed: int) -> InterruptionLog:
    """Return the log of a run whose script had executed this many steps when rank 1 was lost, and
    whose ranks are all started again.
    """
    log = log_of()
    log.book_decision(now_s=1.2, rung=Rung.RESTART, reason="", repeated=executed, lost=executed)
    return log


def test_a_script_that_loads_its_checkpoint_loses_the_steps_after_it() -> None:
    log = decided(60)
    log.went_on_from(40)
    assert log.resumed(at_s=3.0, generation=2) == 1
    one = newest(log)
    assert (one.steps_repeated, one.steps_lost, one.mttr_s) == (20, 20, 2.0)
    assert one.public(began_s=0.0)["steps_lost"] == 20


def test_a_script_that_goes_on_where_it_was_loses_nothing() -> None:
    log = decided(60)
    log.went_on_from(60)
    log.resumed(at_s=3.0, generation=2)
    one = newest(log)
    assert (one.steps_repeated, one.steps_lost) == (0, 0)


def test_an_unknown_loss_is_not_reported_as_none() -> None:
    """Method: the optimizer keeps no step count of its own. The report of the second rank changes
    nothing.
    """
    log = decided(60)
    log.went_on_from(None)
    log.went_on_from(None)
    log.resumed(at_s=3.0, generation=2)
    one = newest(log)
    about = one.public(began_s=0.0)
    assert (one.steps_lost, about["steps_lost"], about["mttr_s"]) == (UNKNOWN_COUNT, None, 2.0)
    assert "not known" in cost_words(about)


def test_where_no_step_is_seen_there_is_no_time_to_recover() -> None:
    log = decided(0)
    log.book_unseen_steps()
    log.resumed(at_s=3.0, generation=2)
    one = newest(log)
    about = one.public(began_s=0.0)
    assert (one.steps_lost, about["mttr_s"], about["steps_lost"]) == (UNSEEN_COUNT, None, None)
    assert (recovery_words(about), cost_words(about)) == ("-", "steps not seen")
    found = recovery([one])
    assert (found.count, found.open_count, found.median_range_s) == (1, 0, None)


def test_a_hang_of_a_script_that_had_ended_costs_no_step() -> None:
    """Method: rank 1 is stopped during the interpreter's clean-up, and killed. Nothing is run
    again.
    """
    run = test_program.Run(greets=False)
    first, second = (run.workers()[rank] for rank in range(2))
    run.end(first)
    hung = WorkerHung(second, "exit", 0.0, 0.5, run.now_s, "it is stopped")
    run.coordinator.on_message(hung, now_s=run.now_s)
    ended = WorkerExited(second, 100 + second, None, 9, False, 0, (), (), "exit", 9.0, 9.0, "")
    run.obey(run.coordinator.on_message(ended, now_s=9.0))
    assert run.coordinator.stage is Stage.ENDED
    (one,) = run.interruptions.values()
    assert (one.mechanism, one.rung, one.resumed_s) == (Mechanism.HANG, None, 9.0)
    assert (one.steps_repeated, one.steps_lost) == (0, 0)


def records(*events: Event) -> Records:
    """Return the records of a run of one rank for 10 s whose process ran from the first
    second on.
    """
    life = Life(
        1, 101, "here", 0, "rank", 0.5, opened_s=1.0, ended_s=10.0, seconds={Cause.STARTUP: 9.0}
    )
    one = Interruption(1, Mechanism.SIGNAL, 5.0, steps_repeated=-2, steps_lost=-2, resumed_s=6.0)
    session = Session(1, 100, 0.0, 0.0, 10.0, ended_s=10.0, state="ended")
    part = SessionRecords(session, 0.0, lives=(life,), interruptions=(one,), events=events)
    return Records(Meta("r", "r", 1, "0", 0.0, 0.0), (part,))


def test_the_time_of_an_unseen_script_is_not_booked_as_start_up() -> None:
    run = records()
    assert (run.calls_outlast, run.steps_seen, run.is_measured) == (False, False, False)
    seconds = account(run, now_s=None).rank_seconds
    assert (seconds[Cause.OTHER], seconds[Cause.STARTUP]) == (9.0, 1.0)


def test_a_script_that_calls_outlast_later_could_lose_no_step_before() -> None:
    run = records(Event(7.0, 0.0, "script", {"sharded": False}))
    assert (run.calls_outlast, run.steps_seen, run.is_measured) == (True, True, True)
    ((one, _),) = run.unique_interruptions()
    assert (one.steps_repeated, one.steps_lost) == (0, 0)
    assert account(run, now_s=None).rank_seconds[Cause.STARTUP] == 10.0


def test_an_exception_in_outlast_is_not_booked_as_the_scripts() -> None:
    """The innermost frame decides. Errors that outlast raises on purpose are not bugs of
    outlast.
    """
    ours = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n    with step:\n'
        '  File "lib/outlast/runtime/worker/run_state/state.py", line 9, in keep\n    x._scale\n'
    )
    assert is_own_bug(ours + "AttributeError: no attribute '_scale'")
    assert not is_own_bug(ours + "outlast.errors.StateError: run.state(x=...) is a dict")
    in_torch = '  File "site/dist-packages/torch/distributed/x.py", line 3, in f\n    g()\n'
    below = ours + '  File "net.py", line 3, in forward\n    x.y\nAttributeError: y'
    assert not is_own_bug(
        ours + "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed."
    )
    assert not is_own_bug(below)
    assert not is_own_bug("")
    for traceback, expected in (
        (ours + "AttributeError: a", FailureClass.SOFTWARE_BUG),
        (below, FailureClass.USER_CODE),
        (ours + "RuntimeError: gloo: Connection closed by peer", FailureClass.UNKNOWN),
        (ours + in_torch + "RuntimeError: gloo: Connection closed by peer", FailureClass.UNKNOWN),
    ):
        log = InterruptionLog()
        log.fault(
            rank=1,
            pid=1,
            node="here",
            mechanism=Mechanism.EXCEPTION,
            generation=1,
            step=1,
            fault_s=1.0,
            fault_not_before_s=None,
            detected_s=1.0,
            same_event=False,
            error="e",
            traceback=traceback,
            reason="",
        )
        assert newest(log).failure_class is expected


class Plain:
    """A run of one rank whose script makes no outlast call."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.records: dict[int, Interruption] = {}
        self.events: list[Event] = []
        options = CoordinatorOptions(world_size=1, start=Restart())
        self.coordinator = Coordinator(options=options)
        self.keep(self.coordinator.start(now_s=0.0))
        self.begins()

    @property
    def worker(self) -> int:
        return self.coordinator.roster.holder(0).worker

    def begins(self) -> None:
        worker = self.worker
        self.say(StoreUp("127.0.0.1", 1, self.coordinator.generation))
        self.say(WorkerStarted(worker, 100 + worker, "here", self.now_s))
        self.say(Hello(worker, 100 + worker))

    def steps(self, number: int) -> None:
        self.say(Committed(self.worker, self.coordinator.generation, number, self.now_s))

    def ends(self, *, signal: int | None, step: int) -> None:
        worker, code = self.worker, None if signal else 0
        self.say(
            WorkerExited(
                worker,
                100 + worker,
                code,
                signal,
                False,
                step,
                (),
                (),
                "boot",
                self.now_s,
                self.now_s,
                "",
            )
        )

    def say(self, *messages: FromWorker | FromAgent) -> None:
        for message in messages:
            self.now_s += 0.01
            self.keep(self.coordinator.on_message(message, now_s=self.now_s))

    def keep(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Record) and isinstance(output.record, Interruption):
                self.records[output.record.id] = output.record
            if isinstance(output, Record) and isinstance(output.record, Event):
                self.events.append(output.record)

    def is_killed(self, *, step: int) -> Interruption:
        """Kill the rank after `step`, and let its process start again."""
        self.ends(signal=9, step=step)
        self.keep(self.coordinator.on_timer(now_s=self.now_s, name="gather"))
        self.begins()
        return self.records[1]


def test_a_script_whose_steps_were_seen_recovers_with_its_next_step() -> None:
    run = Plain()
    run.steps(1)
    # its process runs, and has executed no step yet
    assert run.is_killed(step=60).resumed_s is None
    run.steps(41)
    one = run.records[1]
    assert (one.steps_lost, one.steps_repeated) == (20, 20)
    assert one.resumed_s == pytest.approx(run.now_s, abs=0.02)


def test_a_script_whose_steps_were_not_seen_recovers_with_its_processes() -> None:
    one = Plain().is_killed(step=0)
    assert (one.steps_seen, one.resumed_s is None, one.mttr_s) == (False, False, None)


def test_a_script_that_ends_without_another_step_has_no_time_to_recover() -> None:
    run = Plain()
    run.steps(1)
    run.is_killed(step=60)
    run.ends(signal=None, step=0)
    one = run.records[1]
    assert (one.steps_seen, one.mttr_s) == (False, None)


def test_the_first_step_of_a_session_tells_where_the_script_goes_on() -> None:
    """The event is recorded once for each session. What a restart within the session costs is
    recorded with its interruption.
    """
    run = Plain()
    run.steps(34)
    run.is_killed(step=60)
    run.steps(41)
    assert [one.data["step"] for one in run.events if one.kind == WENT_ON] == [33]


@pytest.mark.parametrize(("behind", "lost"), [(33, 16), (60, 0), (None, None), ("none", None)])
def test_what_a_resumed_script_lost_is_told_by_its_first_step(
    behind: int | str | None, lost: int | None
) -> None:
    """Method: 49 steps were executed, and the run had kept no state of its own. `behind` is the
    step before the first one of the resumed script; with "none", no step was executed yet.
    """
    told = [] if behind == "none" else [Event(2.0, 0.0, WENT_ON, {"step": behind})]
    begun = {"step": 0, "from": "nothing", "steps_lost": 49}
    of_its_own = Event(1.0, 0.0, RESUMED, {**begun, "own": True})
    part = replace(records(of_its_own, *told).sessions[0], interruptions=())
    assert part.lost_before == lost
    assert replace(part, events=(Event(1.0, 0.0, RESUMED, begun),)).lost_before == 49
    bucket = StepsBucket(2.0, 3.0, 0, 60, 0.1, 0.1, 0.1)
    run = Records(Meta("r", "r", 1, "0", 0.0, 0.0), (replace(part, steps=(bucket,)),))
    assert run.is_measured == (lost is not None)


@pytest.mark.parametrize(
    ("stepped", "exit_code", "interrupt"),
    [(True, 130, True), (True, 143, False), (False, 130, False)],
)
def test_ctrl_c_reaches_a_script_that_trains_as_ctrl_c(
    stepped: bool, exit_code: int, interrupt: bool
) -> None:
    """Many scripts save when they catch KeyboardInterrupt. During imports, the exception may be
    swallowed.
    """
    run = Plain()
    if stepped:
        run.steps(1)
    out = run.coordinator.ask_stop(now_s=run.now_s, reason="a test", exit_code=exit_code)
    told = [one.message for one in out if isinstance(one, ToAgent)]
    assert told == [TermWorker(run.worker, "a test", interrupt)]
    (said,) = [one.text for one in out if isinstance(one, Tell)]
    assert said.endswith(f"workers are sent {'SIGINT' if interrupt else 'SIGTERM'}")
