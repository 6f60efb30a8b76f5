"""Programs (--no-python) never send Hello. A program counts as running once it was started."""

from __future__ import annotations

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import End, Output, Record, ToAgent
from outlast.model.messages import (
    KillWorker,
    Registered,
    StartWorker,
    StoreUp,
    TermWorker,
    ToWorkers,
    WorkerExited,
    WorkerFailedToStart,
    WorkerStarted,
)
from outlast.model.records import Interruption

WORLD = 2


class Run:
    """A coordinator whose orders to start and to kill are obeyed at once."""

    def __init__(self, *, greets: bool) -> None:
        self.now_s = 0.0
        self.coordinator = Coordinator(
            options=CoordinatorOptions(world_size=WORLD, start=Restart(), greets=greets)
        )
        self.delivered: list[ToWorkers] = []
        self.interruptions: dict[int, Interruption] = {}
        self.obey(self.coordinator.start(now_s=0.0))
        self.say(StoreUp("127.0.0.1", 1, 1))

    def say(self, message: StoreUp | WorkerStarted | WorkerExited) -> None:
        self.now_s += 1.0
        self.obey(self.coordinator.on_message(message, now_s=self.now_s))

    def obey(self, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Record) and isinstance(output.record, Interruption):
                self.interruptions[output.record.id] = output.record
            elif isinstance(output, ToAgent) and isinstance(output.message, StartWorker):
                self.say(
                    WorkerStarted(
                        output.message.worker, 100 + output.message.worker, "node", self.now_s
                    )
                )
            elif isinstance(output, ToAgent) and isinstance(output.message, KillWorker):
                self.end(output.message.worker, exit_code=None, signal=9)
            elif isinstance(output, ToAgent) and isinstance(output.message, ToWorkers):
                self.delivered.append(output.message)

    def end(self, worker: int, *, exit_code: int | None = 0, signal: int | None = None) -> None:
        self.say(
            WorkerExited(
                worker,
                100 + worker,
                exit_code,
                signal,
                False,
                0,
                (),
                (),
                "boot",
                self.now_s,
                self.now_s,
                "",
            )
        )

    def workers(self) -> dict[int, int]:
        return {member.rank: member.worker for member in self.coordinator.roster.members()}

    def gathered(self) -> None:
        self.now_s += 1.0
        self.obey(self.coordinator.on_timer(now_s=self.now_s, name="gather"))


def test_an_interruption_of_programs_is_over_once_all_were_started_again() -> None:
    run = Run(greets=False)
    assert all(member.process.running for member in run.coordinator.roster.members())
    first = run.workers()
    run.end(first[1], exit_code=9)
    run.gathered()
    assert set(run.workers().values()).isdisjoint(first.values())
    (one,) = run.interruptions.values()
    assert one.resumed_s is not None
    assert one.resumed_s <= run.now_s
    assert run.delivered == [], "a program listens to nobody"
    for worker in run.workers().values():
        run.end(worker)
    assert run.coordinator.stage is Stage.ENDED


def test_a_script_is_not_at_work_before_it_says_hello() -> None:
    run = Run(greets=True)
    assert not any(member.process.running for member in run.coordinator.roster.members())


def test_a_stop_before_a_process_is_there_keeps_it_from_beginning() -> None:
    """Method: one of two workers was started. It is sent SIGTERM, and the other one is given up."""
    coordinator = Coordinator(options=CoordinatorOptions(world_size=WORLD, start=Restart()))
    coordinator.start(now_s=0.0)
    first, second = (member.worker for member in coordinator.roster.members())
    coordinator.on_message(WorkerStarted(first, 101, "node", 1.0), now_s=1.0)
    told = [
        one.message
        for one in coordinator.ask_stop(now_s=2.0, reason="a test", exit_code=143)
        if isinstance(one, ToAgent)
    ]
    assert told == [TermWorker(first, "a test"), KillWorker(second, "a test")]
    coordinator.on_message(WorkerFailedToStart(second, "given up before it was started"), now_s=3.0)
    # it can receive a Stop now, and SIGTERM was already sent
    coordinator.on_message(Registered(first, 1, -1, "respawn", False, True, ""), now_s=3.5)
    ended = WorkerExited(first, 101, None, 15, False, 0, (), (), "boot", 4.0, 4.0, "")
    assert End(143, "stopped", "a test", "") in coordinator.on_message(ended, now_s=4.0)
