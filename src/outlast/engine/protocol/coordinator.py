"""The coordinator: who is in, what to do about a fault, which generation comes next.

    STARTING ──all joined──> TRAINING ──fault──> GATHERING ──a few ms──> LEAVING ──all still, all dead confirmed──┐
        ^                        ^                                                                                │
        │                        └──────────────all joined────────────── MOVING <──in place, re-enter, spare, fork┤
        └──────── CLEARING (all killed, confirmed) <── HANDOVER (a donor writes the transfer image) <──restart────┘
    any ──stop asked, verdict, all done──> STOPPING ──> ENDED

A fault in MOVING or STARTING leads to GATHERING again, with the next generation. Nothing here waits: a
deadline is a timer, and each has an answer that needs nobody's help (kill, and count as dead).

Sans-IO: every method takes `now_s` (the coordinator's monotonic clock) and returns outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from outlast.engine.budget import Budgets, default_budgets
from outlast.engine.protocol.interruptions import InterruptionLog
from outlast.engine.protocol.members import Member, Roster
from outlast.engine.protocol.outputs import End, Manifest, Output, Record, SetTimer, Tell, ToAgent
from outlast.engine.recovery import RecoveryVerdict, Situation, decide_rung
from outlast.engine.restore import RestoreVerdict, decide_replicated, decide_sharded
from outlast.model import limits
from outlast.model.messages import (
    Broke,
    Checkpointed,
    Committed,
    Donated,
    Finished,
    FromAgent,
    FromWorker,
    Hello,
    Inventory,
    Joined,
    KillWorker,
    Leave,
    Parked,
    Pong,
    Progress,
    Refused,
    Registered,
    Regroup,
    StartStore,
    StartWorker,
    Stop,
    StoreLost,
    StoreUp,
    TermWorker,
    ToWorker,
    Warned,
    WorkerExited,
    WorkerFailedToStart,
    WorkerHung,
    WorkerStarted,
    ZygoteLost,
)
from outlast.model.records import Event, Generation
from outlast.model.terms import FailureClass, Mechanism, Rung


class Stage(Enum):
    STARTING = "starting"
    TRAINING = "training"
    GATHERING = "gathering"
    LEAVING = "leaving"
    MOVING = "moving"
    HANDOVER = "handover"
    CLEARING = "clearing"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Restart:
    """What all ranks start from when they come anew: step, and the sources of `Regroup`."""

    step: int = 0
    replicated: str = "none"
    private: str = "none"
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """`start`: what the ranks begin from. `checkpoint`: folder and step of the newest good checkpoint, or ("", 0)."""

    world_size: int
    start: Restart
    spares: int = 0
    spare_kind: str = "hot"
    max_restarts: int | None = None
    checkpoint: tuple[str, int] = ("", 0)
    checkpoint_on_stop: bool = False
    generation: int = 0
    first_interruption: int = 1
    first_worker: int = 1


class Coordinator:
    """One per run. Drive it with `start`, `on_message`, `on_timer`, `ask_stop`, `on_manifest`."""

    def __init__(self, *, options: CoordinatorOptions) -> None:
        self.options = options
        self.stage = Stage.STARTING
        self.generation = options.generation
        self.roster = Roster(world_size=options.world_size, next_worker=options.first_worker)
        self.interruptions = InterruptionLog(first_id=options.first_interruption)
        self.budgets: Budgets = default_budgets(options.max_restarts)
        self.step = options.start.step  # newest step known to be committed
        self.executed = options.start.step  # newest step ever executed: again books as repeated
        self._store: tuple[str, int] | None = None
        self._pending: list[Output] = []  # waits for a store
        self._restart = options.start
        self._verdict: RecoveryVerdict | None = None
        self._fault_s: float | None = None
        self._detected_s: float | None = None
        self._raised: set[int] = set()
        self._moved_s: float | None = None  # when a step was last seen committed
        self._restore_s = 0.0
        self._trained = False
        self._user_error = ("", "")
        self._end: End | None = None
        self._newest_checkpoint = (options.checkpoint[1], options.checkpoint[0])
        self._shards: dict[int, dict[int, Checkpointed]] = {}
        self._donated: tuple[int, int] | None = None  # generation, step of the sealed transfer image
        self._spare_failures = 0
        self._warned: set[str] = set()

    # --- the driver's calls -------------------------------------------------------------------------------

    def start(self, *, now_s: float) -> list[Output]:
        return [*self._ask_store("the run starts"), *self._launch_all(now_s)]

    def ask_stop(self, *, now_s: float, reason: str, exit_code: int) -> list[Output]:
        """A signal, or a person. Asked twice: at once."""
        if self.stage is Stage.ENDED:
            return []
        if self._end is not None or self.stage is not Stage.TRAINING:
            return self._stop_now(now_s, End(exit_code, "stopped", reason, ""))
        self._end = End(exit_code, "stopped", reason, "")
        stop = Stop(reason, self.options.checkpoint_on_stop)
        out: list[Output] = [Tell(f"stopping: {reason}; the step in flight is committed first")]
        out += [ToAgent(ToWorker(member.worker, stop) if member.registered else TermWorker(member.worker, reason)) for member in self.roster.live()]
        return [*out, SetTimer("stop", now_s + limits.TERM_GRACE_S)]

    def on_manifest(self, *, now_s: float, step: int, folder: str, error: str) -> list[Output]:
        if error:
            return [self._event(now_s, "checkpoint_failed", {"step": step, "error": error}), Tell(f"the checkpoint of step {step} failed: {error}")]
        if step >= self._newest_checkpoint[0]:
            self._newest_checkpoint = (step, folder)
        return [self._event(now_s, "checkpoint", {"step": step, "folder": folder})]

    def on_timer(self, *, now_s: float, name: str) -> list[Output]:
        if name == "gather" and self.stage is Stage.GATHERING:
            return self._after_gathering(now_s)
        if name == "leave" and self.stage is Stage.LEAVING:
            return self._kill_those(now_s, [m for m in self.roster.live() if m.answers_leave and m.still is None], "did not leave its collective in time")
        if name == "move" and self.stage in (Stage.MOVING, Stage.STARTING):
            late = [m for m in self.roster.live() if not m.joined and m.registered]
            return self._kill_those(now_s, late, "did not join the new generation in time")
        if name == "handover" and self.stage is Stage.HANDOVER:
            return self._clear(now_s, "the donor did not hand over in time", keep_restart=False)
        if name == "clear" and self.stage is Stage.CLEARING:
            return self._when_cleared(now_s, force=True)
        if name == "spares" and self.stage is not Stage.STOPPING:
            return self._refill_spares(now_s)
        if name == "stop":
            return self._stop_now(now_s, self._end or End(1, "stopped", "stop timed out", ""))
        return []

    def on_message(self, message: FromWorker | FromAgent, *, now_s: float) -> list[Output]:
        if self.stage is Stage.ENDED:
            return []
        if isinstance(message, WorkerExited):
            return self._on_exit(now_s, message)
        if isinstance(message, StoreUp):
            self._store = (message.host, message.port)
            pending, self._pending = self._pending, []
            return [replace_store(output, self._store) for output in pending]
        if isinstance(message, StoreLost):
            self._store = None
            return [self._event(now_s, "store_lost", {"reason": message.reason}), *self._ask_store(message.reason)]
        if isinstance(message, Progress):
            self._note_step(message.oldest if self.roster.sharded else message.newest, message.newest)
            self.roster.step_s, self._moved_s = message.step_s, message.at_s
            return []
        if isinstance(message, ZygoteLost):
            return [self._event(now_s, "zygote_lost", {"reason": message.reason})]
        member = self.roster.of(message.worker)
        if member is None:
            return []  # of a process that has been given up
        return self._from_member(now_s, member, message)

    def _from_member(self, now_s: float, member: Member, message: FromWorker | FromAgent) -> list[Output]:
        if isinstance(message, Broke):
            return self._on_broke(now_s, member, message)
        if isinstance(message, Inventory):
            return self._on_inventory(now_s, member, message)
        if isinstance(message, Joined):
            return self._on_joined(now_s, member, message)
        if isinstance(message, Committed):
            return self._on_committed(now_s, member, message)
        if isinstance(message, WorkerHung):
            return self._on_hung(now_s, member, message)
        if isinstance(message, Hello):
            return self._on_hello(now_s, member)
        if isinstance(message, Parked):
            member.parked = True
            self._spare_failures = 0
            return []
        if isinstance(message, Registered):
            return self._on_registered(now_s, member, message)
        if isinstance(message, Donated):
            return self._on_donated(now_s, message)
        if isinstance(message, Finished):
            return self._on_finished(now_s, member, message)
        if isinstance(message, Checkpointed):
            return self._on_checkpointed(now_s, message)
        return self._on_news(now_s, member, message)

    def _on_news(self, now_s: float, member: Member, message: FromWorker | FromAgent) -> list[Output]:
        if isinstance(message, WorkerStarted):
            member.pid, member.node = message.pid, message.node
            return []
        if isinstance(message, WorkerFailedToStart):
            return self._on_exit(now_s, _never_started(message, now_s))
        if isinstance(message, Refused):
            return self._stop_now(now_s, End(message.exit_code, "failed", message.error, ""))
        if isinstance(message, Warned):
            if message.text in self._warned:
                return []
            self._warned.add(message.text)
            return [self._event(now_s, "warning", {"text": message.text}), Tell(f"warning: {message.text}")]
        assert isinstance(message, Pong), message  # answered to the agent, nothing for us
        return []

    # --- membership ---------------------------------------------------------------------------------------

    def _launch_all(self, now_s: float) -> list[Output]:
        """All ranks anew, from `self._restart`."""
        self.generation += 1
        self.stage = Stage.STARTING
        out: list[Output] = []
        for rank in range(self.options.world_size):
            member = self.roster.add(rank=rank, kind="rank", now_s=now_s)
            member.plan = self._start_plan(rank, self._restart)
            out.append(ToAgent(StartWorker(member.worker, rank, "rank", self.generation)))
        out.append(SetTimer("move", now_s + limits.BOOT_DEADLINE_S))
        return [*out, self._record_generation(now_s), SetTimer("spares", now_s + limits.SPARE_PLAIN_WAIT_S)]

    def _on_hello(self, now_s: float, member: Member) -> list[Output]:
        member.greeted = True
        if member.rank < 0:
            return []
        out = self._send_plan(member)
        if self.roster.way == "plain" and all(m.greeted for m in self.roster.members()):
            out += self._resumed(now_s, now_s)  # a script without steps goes on when all its processes run again
        return out

    def _start_plan(self, rank: int, start: Restart) -> Regroup:
        return Regroup(
            generation=self.generation, rank=rank, world_size=self.options.world_size, store_host="", store_port=0, settle="none", then="start",
            step=start.step, donor=-1, donate=False, heal=(), replicated=start.replicated, private=start.private, checkpoint=start.checkpoint,
            high_water=self.executed, fault_s=self._fault_s, detected_s=self._detected_s,
        )  # fmt: skip

    def _send_plan(self, member: Member) -> list[Output]:
        """To a member that listens, as soon as there is a store."""
        if member.plan is None or not member.greeted:
            return []
        output = ToAgent(ToWorker(member.worker, member.plan))
        if self._store is None:
            self._pending.append(output)
            return []
        return [replace_store(output, self._store)]

    def _ask_store(self, reason: str) -> list[Output]:
        return [ToAgent(StartStore(reason))]

    def _on_registered(self, now_s: float, member: Member, message: Registered) -> list[Output]:
        member.way, member.sharded, member.registered = message.way, message.sharded, True
        member.attached = message.step >= 0
        out: list[Output] = []
        if not self.roster.outlast:
            self.roster.outlast = True
            out.append(SetTimer("spares", now_s))
        if message.note and message.note not in self._warned:
            self._warned.add(message.note)
            out += [self._event(now_s, "warning", {"text": message.note}), Tell(f"warning: {message.note}")]
        return out

    def _on_joined(self, now_s: float, member: Member, message: Joined) -> list[Output]:
        if message.generation != self.generation:
            return []
        member.joined, member.attached, member.still = True, True, None
        self._restore_s = max(self._restore_s, message.restore_s)
        if self.stage not in (Stage.MOVING, Stage.STARTING) or not all(m.joined for m in self.roster.members()):
            return []
        self.stage = Stage.TRAINING
        self.interruptions.joined(now_s=now_s, restore_s=self._restore_s)
        self._restore_s = 0.0
        return [*self._records(), SetTimer("move", None)]

    def _note_step(self, committed: int, executed: int) -> None:
        self.step, self.executed = max(self.step, committed), max(self.executed, executed)

    def _on_committed(self, now_s: float, member: Member, message: Committed) -> list[Output]:
        """Replicated state: one rank's commit is everybody's. Sharded: the step is committed once the last owner has sealed it."""
        if message.generation != self.generation:
            return []
        member.committed_s = message.at_s
        last_s = [m.committed_s for m in self.roster.members()] if self.roster.sharded else [message.at_s]
        self._note_step(0 if self.roster.sharded else message.step, message.step)
        if None in last_s:
            return []
        self._trained = True
        return self._resumed(now_s, max(at_s for at_s in last_s if at_s is not None))

    def _resumed(self, now_s: float, at_s: float) -> list[Output]:
        if not self.interruptions.resumed(at_s=at_s):
            return []
        self._fault_s = self._detected_s = None
        self._raised.clear()
        return [*self._records(), SetTimer("spares", now_s + limits.SPARE_REFILL_DELAY_S)]

    def _refill_spares(self, now_s: float) -> list[Output]:
        if self.stage in (Stage.STOPPING, Stage.ENDED) or self._spare_failures >= limits.SPARE_FAILURES_COUNT:
            return []
        kind = self.options.spare_kind if self.roster.outlast and not self._spare_failures else "warm"
        out: list[Output] = []
        for _ in range(self.options.spares - len(self.roster.spares())):
            spare = self.roster.add(rank=-1, kind=kind, now_s=now_s)
            out.append(ToAgent(StartWorker(spare.worker, -1, kind, self.generation)))
        return out

    # --- faults -------------------------------------------------------------------------------------------

    def _on_exit(self, now_s: float, message: WorkerExited) -> list[Output]:
        member = self.roster.of(message.worker)
        if member is None:
            return []
        member.dead = True
        if member.rank < 0:
            return self._on_spare_exit(now_s, member, message)
        self.executed = max(self.executed, message.committed, *message.prepared, 0)
        self.roster.bury(member, message)
        if self.stage is Stage.STOPPING:
            return self._when_stopped(now_s)
        if self.stage is Stage.CLEARING:
            return self._when_cleared(now_s)
        if self._ended_well(member, message):
            return self._on_done(now_s, member)
        out = self._fault_of_exit(now_s, member, message)
        return [*out, *self._check_left(now_s)] if self.stage is Stage.LEAVING else out

    def _ended_well(self, member: Member, message: WorkerExited) -> bool:
        return message.exit_code == 0 and (member.finished or not member.attached or self._end is not None)

    def _on_done(self, now_s: float, member: Member) -> list[Output]:
        member.done = True
        if all(m.done for m in self.roster.members()):
            return self._finish(now_s, self._end or End(0, "ended", "all ranks ended well", ""))
        return self._check_left(now_s) if self.stage is Stage.LEAVING else []

    def _on_spare_exit(self, now_s: float, spare: Member, message: WorkerExited) -> list[Output]:
        self.roster.drop(spare)
        if self.stage is Stage.STOPPING:
            return self._when_stopped(now_s)
        out: list[Output] = [self._event(now_s, "spare_lost", {"pid": spare.pid, "kind": spare.kind, "error": message.error})]
        if not spare.parked:
            self._spare_failures += 1
            out.append(Tell(f"a {spare.kind} spare ended before it could park: {message.error or _how(message)}"))
        return [*out, SetTimer("spares", now_s + limits.SPARE_REFILL_DELAY_S)]

    def _fault_of_exit(self, now_s: float, member: Member, message: WorkerExited) -> list[Output]:
        if member.condemned:
            return []  # its fault was booked when it was condemned
        mechanism = Mechanism.SIGNAL if message.signal is not None else Mechanism.LOST_CONTACT if member.victim else Mechanism.EXIT
        if member.raised:
            mechanism = Mechanism.EXCEPTION
        error, traceback = member.raised or (message.error or _how(message), "")
        out = self._fault(now_s, member, mechanism, message.fault_s, error, traceback, f"rank {member.rank} (pid {member.pid}) ended: {_how(message)}")
        if message.oom:
            self.interruptions.classify(failure_class=FailureClass.HOST_MEMORY, reason=f"rank {member.rank} was killed for memory by the kernel")
        return out

    def _on_hung(self, now_s: float, member: Member, message: WorkerHung) -> list[Output]:
        if member.condemned or member.dead:
            return []
        member.condemned = True
        if member.rank < 0:
            return [ToAgent(KillWorker(member.worker, message.reason))]
        out = self._fault(now_s, member, Mechanism.HANG, message.last_s, "", "", message.reason)
        return [*out, ToAgent(KillWorker(member.worker, message.reason))]

    def _on_broke(self, now_s: float, member: Member, message: Broke) -> list[Output]:
        if message.generation != self.generation or member.rank < 0:
            return []
        member.victim = message.mechanism == "collective"
        if message.mechanism == "exception":
            self._raised.add(member.rank)
            member.raised = (message.error, message.traceback)
            self._user_error = (message.error, message.traceback)
            return self._fault(now_s, member, Mechanism.EXCEPTION, message.at_s, message.error, message.traceback, f"rank {member.rank} raised")
        if self.stage is not Stage.TRAINING:
            return []  # a victim of what is being dealt with
        return self._fault(now_s, member, Mechanism.LOST_CONTACT, None, message.error, "", f"rank {member.rank}'s collective failed")

    def _fault(self, now_s: float, member: Member, mechanism: Mechanism, fault_s: float | None, error: str, traceback: str, reason: str) -> list[Output]:
        same_event = self.stage in (Stage.GATHERING, Stage.LEAVING) and bool(self.interruptions.open)
        first = not self.interruptions.open
        not_before = None if fault_s is not None else self._moved_s
        self.interruptions.fault(
            rank=member.rank, pid=member.pid, node=member.node, mechanism=mechanism, generation=self.generation, step=self.step, fault_s=fault_s,
            fault_not_before_s=not_before, detected_s=now_s, same_event=same_event, error=error, traceback=traceback, reason=reason,
        )  # fmt: skip
        if first:
            self._fault_s, self._detected_s = fault_s if fault_s is not None else now_s, now_s
        elif fault_s is not None and self._fault_s is not None:
            self._fault_s = min(self._fault_s, fault_s)
        out = self._records()
        if self.stage in (Stage.TRAINING, Stage.MOVING, Stage.STARTING):
            self.stage = Stage.GATHERING
            wait = limits.VICTIM_WAIT_S if mechanism is Mechanism.LOST_CONTACT else limits.COMPANION_WAIT_S
            out.append(SetTimer("gather", now_s + wait))
        elif self.stage is Stage.GATHERING and mechanism is not Mechanism.LOST_CONTACT:
            out.append(SetTimer("gather", now_s + limits.COMPANION_WAIT_S))
        elif self.stage is Stage.HANDOVER:
            out += self._clear(now_s, "the donor was lost", keep_restart=False)
        return out

    def _kill_those(self, now_s: float, members: list[Member], why: str) -> list[Output]:
        out: list[Output] = []
        for member in members:
            if not member.condemned and not member.dead:
                member.condemned = True
                out += self._fault(now_s, member, Mechanism.HANG, None, "", "", f"rank {member.rank} (pid {member.pid}) {why}")
                out.append(ToAgent(KillWorker(member.worker, why)))
        return out

    # --- leaving ------------------------------------------------------------------------------------------

    def _after_gathering(self, now_s: float) -> list[Output]:
        self.stage = Stage.LEAVING
        reason = self.interruptions.open[-1].reason if self.interruptions.open else "regroup"
        out: list[Output] = []
        for member in self.roster.live():
            member.joined = False
            if member.answers_leave and member.still is None:
                out.append(ToAgent(ToWorker(member.worker, Leave(self.generation, reason))))
        deadline = limits.LEAVE_DEADLINE_S + limits.LEAVE_STEPS * self.roster.step_s
        if any(not m.attached for m in self.roster.live()):
            deadline = limits.REGROUP_DEADLINE_S
        return [*out, SetTimer("leave", now_s + deadline), *self._check_left(now_s)]

    def _on_inventory(self, now_s: float, member: Member, message: Inventory) -> list[Output]:
        if message.generation != self.generation:
            return []
        member.still = message
        self._note_step(0 if self.roster.sharded else message.committed, max(message.passed, message.committed))
        return self._check_left(now_s) if self.stage is Stage.LEAVING else []

    def _check_left(self, now_s: float) -> list[Output]:
        """Go on once every live member stands still and every lost one is confirmed dead: its rank may be given away."""
        if any(m.condemned and not m.dead for m in self.roster.members()):
            return []
        if any(m.answers_leave and m.still is None for m in self.roster.live()):
            return []
        return [SetTimer("leave", None), *self._decide(now_s)]

    def _decide(self, now_s: float) -> list[Output]:
        sharded = self.roster.sharded
        holdings = self.roster.holdings()
        restore = decide_sharded(holdings=holdings) if sharded else decide_replicated(holdings=holdings)
        finished = any(m.finished or m.done for m in self.roster.members())
        torn = [] if sharded or restore.step is None or finished else self.roster.torn(restore)
        if torn:  # alive, but what it holds is neither step: it comes anew
            return self._kill_those(now_s, torn, "failed after the step was applied; its state is torn")
        lost = tuple(m.rank for m in self.roster.members() if m.dead)
        way = "respawn" if finished and self.roster.way != "plain" else self.roster.way
        situation = Situation(
            lost=lost, raised=tuple(sorted(self._raised - set(lost))), way=way, state=restore.step is not None or (finished and self._donated is not None),
            committed=self.step, error=self._user_error[0], trained=self._trained,
        )  # fmt: skip
        verdict = self._verdict or decide_rung(situation=situation, spares=self.roster.parked(), budgets=self.budgets, world_size=self.options.world_size)
        if not sharded and verdict.survivors == "reenter" and restore.step is None:
            raise AssertionError(f"re-entry without state: {situation}")
        given_up = [m for m in self.roster.live() if m.rank in verdict.replace]
        if given_up:  # a process that cannot get over the step: killed, and confirmed dead, before its rank is given away
            self._verdict = verdict
            for member in given_up:
                member.condemned = True
            return [ToAgent(KillWorker(member.worker, verdict.reason)) for member in given_up]
        self._verdict = None
        step = restore.step if restore.step is not None else self._restart_step()
        in_flight = 0 if any(way == "forward" for way in restore.settle.values()) else 1
        self.interruptions.left(
            now_s=now_s, rung=verdict.rung, reason=f"{verdict.reason}; {restore.reason}",
            repeated=max(0, self.executed - step) if sharded or restore.step is None else in_flight, lost=max(0, self.step - step),
        )  # fmt: skip
        out = self._records()
        if verdict.rung is Rung.STOP:
            return [*out, *self._stop_now(now_s, End(1, "failed", verdict.reason, self._user_error[1]))]
        if verdict.survivors != "exit":
            return [*out, *self._move(now_s, verdict, restore)]
        return [*out, *self._restart_all(now_s, verdict, restore, finished)]

    # --- moving -------------------------------------------------------------------------------------------

    def _move(self, now_s: float, verdict: RecoveryVerdict, restore: RestoreVerdict) -> list[Output]:
        """Survivors go on in their processes; lost ranks are given to spares or forks."""
        assert restore.step is not None
        self.generation += 1
        self.stage = Stage.MOVING
        out: list[Output] = []
        for rank, worker in verdict.replace.items():
            out += self._replace(now_s, rank, worker)
        sharded = self.roster.sharded
        reenter = verdict.survivors == "reenter"
        heal = () if sharded else tuple(range(self.options.world_size)) if reenter else restore.heal
        for member in self.roster.members():
            fresh = member.rank not in restore.settle and not (sharded and member.still is not None and member.rank not in verdict.replace)
            healed = "none" if sharded else "transfer" if reenter else "donor" if member.rank in heal else "none"
            member.plan = replace(
                self._start_plan(member.rank, Restart(restore.step, healed, "slot" if fresh or reenter or sharded else "keep")),
                settle=restore.settle.get(member.rank, "none"), then="start" if fresh else verdict.survivors, donor=restore.donor,
                donate=member.rank == restore.donor and bool(heal), heal=heal,
            )  # fmt: skip
            member.still, member.joined, member.finished, member.committed_s = None, False, False, None
            out += self._send_plan(member)
        deadline = limits.REGROUP_DEADLINE_S if verdict.rung in (Rung.REPEAT, Rung.SPARE) and not reenter else limits.BOOT_DEADLINE_S
        return [*out, SetTimer("move", now_s + deadline), self._record_generation(now_s)]

    def _replace(self, now_s: float, rank: int, worker: int) -> list[Output]:
        if worker >= 0:
            self.roster.promote(worker, rank, now_s=now_s)
            return []
        member = self.roster.add(rank=rank, kind="rank", now_s=now_s)
        return [ToAgent(StartWorker(member.worker, rank, "rank", self.generation))]

    # --- restarting everybody -----------------------------------------------------------------------------

    def _restart_all(self, now_s: float, verdict: RecoveryVerdict, restore: RestoreVerdict, finished: bool) -> list[Output]:
        if finished and self._donated is not None:
            self._restart = Restart(self._donated[1], "transfer", "slot")
            return self._clear(now_s, verdict.reason, keep_restart=True)
        if restore.step is None or self.roster.way == "plain":
            self._restart = self._from_checkpoint()
            return self._clear(now_s, verdict.reason, keep_restart=True)
        if self.roster.sharded:
            self._restart = Restart(restore.step, "none", "slot")
            return self._clear(now_s, verdict.reason, keep_restart=True)
        return self._hand_over(now_s, restore)

    def _hand_over(self, now_s: float, restore: RestoreVerdict) -> list[Output]:
        """One survivor writes the replicated state where its successors find it; then all come anew."""
        assert restore.step is not None
        self.stage = Stage.HANDOVER
        self.generation += 1
        self._restart = Restart(restore.step, "transfer", "slot")
        donor = self.roster.holder(restore.donor)
        donor.plan = replace(
            self._start_plan(donor.rank, self._restart), settle=restore.settle[donor.rank], then="exit", donor=donor.rank, donate=True,
        )  # fmt: skip
        return [*self._send_plan(donor), SetTimer("handover", now_s + limits.REGROUP_DEADLINE_S)]

    def _on_donated(self, now_s: float, message: Donated) -> list[Output]:
        if message.generation == self.generation:
            self._donated = (message.generation, message.step)
            if self.stage is Stage.HANDOVER:
                return self._clear(now_s, "state is handed over", keep_restart=True)
        return []

    def _from_checkpoint(self) -> Restart:
        step, folder = self._newest_checkpoint
        return Restart(step, "checkpoint", "checkpoint", folder) if folder else Restart()

    def _restart_step(self) -> int:
        return self._newest_checkpoint[0] if self._newest_checkpoint[1] else 0

    def _clear(self, now_s: float, reason: str, *, keep_restart: bool) -> list[Output]:
        if not keep_restart:
            self._restart = self._from_checkpoint()
        self.stage = Stage.CLEARING
        out: list[Output] = [SetTimer("handover", None), SetTimer("clear", now_s + limits.KILL_DEADLINE_S)]
        for member in self.roster.live():
            member.condemned = True
            out.append(ToAgent(KillWorker(member.worker, reason)))
        return [*out, *self._when_cleared(now_s)]

    def _when_cleared(self, now_s: float, *, force: bool = False) -> list[Output]:
        if self.roster.live() and not force:
            return []
        if self.roster.live():
            return self._stop_now(now_s, End(1, "failed", f"processes {[m.pid for m in self.roster.live()]} cannot be killed", ""))
        plain = self.roster.way == "plain"
        self.roster.clear()
        out: list[Output] = [SetTimer("clear", None)]
        if plain:  # torch keys what a script's own init_process_group says by nothing that changes: a new store forgets the dead
            self._store = None
            out += self._ask_store("a new store for a new start")
        if not self._restart.checkpoint and self._restart.step == 0:
            self.step = 0
        return [*out, *self._launch_all(now_s)]

    # --- the end ------------------------------------------------------------------------------------------

    def _on_finished(self, now_s: float, member: Member, message: Finished) -> list[Output]:
        member.finished = True
        self._note_step(message.step, message.step)
        return self._resumed(now_s, now_s) if message.generation == self.generation and self.stage is Stage.TRAINING else []

    def _on_checkpointed(self, now_s: float, message: Checkpointed) -> list[Output]:
        if message.error:
            self._shards.pop(message.step, None)
            return self.on_manifest(now_s=now_s, step=message.step, folder="", error=f"rank {message.rank}: {message.error}")
        shards = self._shards.setdefault(message.step, {})
        shards[message.rank] = message
        if len(shards) < self.options.world_size:
            return []
        del self._shards[message.step]
        return [Manifest(message.step, self.roster.sharded, tuple((shard.file, shard.length, shard.checksum) for _, shard in sorted(shards.items())))]

    def _stop_now(self, now_s: float, end: End) -> list[Output]:
        """Kill what lives, then end. A reason given earlier (a stop asked for) stays."""
        if self._end is None or end.state == "failed":
            self._end = end
        self.stage = Stage.STOPPING
        out: list[Output] = [SetTimer(name, None) for name in ("gather", "leave", "move", "handover", "clear", "spares")]
        for member in (*self.roster.live(), *self.roster.spares()):
            member.condemned = True
            out.append(ToAgent(KillWorker(member.worker, end.reason)))
        return [*out, *self._when_stopped(now_s)]

    def _when_stopped(self, now_s: float) -> list[Output]:
        if self.roster.live() or self.roster.spares():
            return []
        assert self._end is not None
        return self._finish(now_s, self._end)

    def _finish(self, now_s: float, end: End) -> list[Output]:
        self._end = end
        if self.roster.spares() or self.roster.live():
            return self._stop_now(now_s, end)
        self.stage = Stage.ENDED
        return [*self._records(), SetTimer("stop", None), end]

    # --- records ------------------------------------------------------------------------------------------

    def _records(self) -> list[Output]:
        return [Record(record) for record in self.interruptions.changed()]

    def _record_generation(self, now_s: float) -> Record:
        members = tuple(m.worker for m in sorted(self.roster.members(), key=lambda m: m.rank))
        return Record(Generation(self.generation, self.options.world_size, now_s, members))

    def _event(self, now_s: float, kind: str, data: dict[str, object]) -> Record:
        return Record(Event(now_s, 0.0, kind, data))


def replace_store(output: Output, store: tuple[str, int]) -> Output:
    """Fill the store's address into a Regroup on its way."""
    assert isinstance(output, ToAgent) and isinstance(output.message, ToWorker) and isinstance(output.message.message, Regroup)
    plan = replace(output.message.message, store_host=store[0], store_port=store[1])
    return ToAgent(ToWorker(output.message.worker, plan))


def _how(message: WorkerExited) -> str:
    return f"signal {message.signal}" if message.signal is not None else f"exit code {message.exit_code}"


def _never_started(message: WorkerFailedToStart, now_s: float) -> WorkerExited:
    return WorkerExited(message.worker, 0, 1, None, False, -1, (), (), "boot", now_s, now_s, message.error)
