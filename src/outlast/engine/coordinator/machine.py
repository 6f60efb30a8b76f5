"""The coordinator: it passes each message and each timer to the part that handles it.

    STARTING ──all joined──> TRAINING ──fault──> GATHERING ──a few ms──> LEAVING ──all quiesced──┐
        ^                        ^                                                               │
        │                        └────all joined──── MOVING <──in place, re-enter, spare, fork───┤
        └─── CLEARING <── HANDOVER (a donor writes the transfer image) <──restart────────────────┘
    any ──stop asked, verdict, all done──> STOPPING ──> ENDED

A fault in MOVING or STARTING leads to GATHERING again, with the next generation. In CLEARING all
members are killed, and their deaths are awaited. No call here blocks. Each deadline is a timer, and
what the timer does needs no other process: it kills the process that is late, and goes on without.

Sans-IO: every method takes `now_s` (the coordinator's monotonic clock) and returns outputs.
"""

from __future__ import annotations

from outlast.engine.budget import Budgets
from outlast.engine.coordinator import checkpoints
from outlast.engine.coordinator.cut_links import CutLinks
from outlast.engine.coordinator.fault_reports import FaultReports
from outlast.engine.coordinator.hang_inquiry import HangInquiry
from outlast.engine.coordinator.interruptions import InterruptionLog
from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.members import Roster
from outlast.engine.coordinator.node_changes import NodeChanges
from outlast.engine.coordinator.node_membership import NodeMembership
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.orders import event
from outlast.engine.coordinator.plans import Plans
from outlast.engine.coordinator.policy_actions import PolicyActions
from outlast.engine.coordinator.process_exit import ProcessExits
from outlast.engine.coordinator.regroup import RegroupMachine
from outlast.engine.coordinator.requests import Requests, RunRequest
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.script_reports import ScriptReports
from outlast.engine.coordinator.spares import SparePool
from outlast.engine.coordinator.stages import Stage, Timer
from outlast.engine.coordinator.stalled_links import StalledLinks
from outlast.engine.coordinator.stop import StopRequest
from outlast.engine.coordinator.takeover import RecoveredState, Takeover
from outlast.engine.exhaustive import assert_never
from outlast.engine.protocol.outputs import End, Output, Record
from outlast.model.lives import life_of
from outlast.model.messages import (
    Broke,
    Checkpointed,
    Committed,
    CopyKept,
    CopyRefused,
    Donated,
    Enrol,
    Finished,
    FromAgent,
    FromWorker,
    FromWorkers,
    Hello,
    Inventory,
    Joined,
    Lived,
    Logged,
    ParityKept,
    Parked,
    Pong,
    Preempted,
    Progress,
    ProgressReport,
    Refused,
    Registered,
    Sealed,
    StoreLost,
    StoreUp,
    Underway,
    Warned,
    WorkerExited,
    WorkerFailedToStart,
    WorkerHung,
    WorkerLingers,
    WorkerStarted,
    ZygoteLost,
)
from outlast.model.verdict import Verdict

# messages that name the worker, or the workers, that they are about
OfWorker = FromWorker | WorkerStarted | WorkerHung | WorkerLingers | WorkerFailedToStart


class Coordinator:
    """Lead one run: decide who its members are, how it recovers, and when a generation begins.

    Make one for each run, and call `start` once. Then pass each event to it, and carry out the
    outputs of each call in their order before the next call:

        coordinator = Coordinator(options=CoordinatorOptions(world_size=4, start=Restart()))
        carry_out(coordinator.start(now_s=clock.now_s()))
        carry_out(coordinator.on_message(Hello(worker=1, pid=77), now_s=clock.now_s()))
        carry_out(coordinator.on_timer(now_s=clock.now_s(), name="move"))  # of a SetTimer, when due

    The other calls are `on_verdict` (an interruption was diagnosed), `ask_stop`, and the answers to
    outputs: `on_manifest` to a Manifest, `on_checkpoint_found` to a FindCheckpoint. The output
    `End` is the last. Where there are several nodes, `CoordinatorSessions` (engine/cluster/) stands
    between the driver and the coordinator, and calls `node_joined` and `node_lost` as well. A
    coordinator that follows another one, which died, begins with `remember` and `rebuild`.

    Its parts. `run` holds the state of the run (run_parts.py): each part there owns its fields, and
    only its own methods change them. The other parts carry out pieces of the story with that state:

        regroup           a recovery, from a fault to training. It uses the plans (plans.py) and
                          the stop (stop.py)
        _exits            a process has ended
        _reports          a worker or an agent reports a fault
        _inquiry          which rank hangs, judged over all nodes
        _spares           spares are started and replaced
        _script_reports   workers report on their scripts
        requests          requests of people. It has the policy, which acts on verdicts
        _changes          nodes come and go
        _takeover         this coordinator follows one that has died

    What it does not promise. It trusts its driver to carry out all outputs in order. If the driver
    does not, the run hangs. It trusts the reports of agents about dead processes. If the
    coordinator dies, the next one recovers what it needs from the ledger and from the agents.
    """

    def __init__(self, *, options: CoordinatorOptions) -> None:
        run = self.run = RunParts.begin(options)
        stop = StopRequest(run)
        plans = Plans(run)
        self.regroup = RegroupMachine(run, stop, plans)
        self._script_reports = ScriptReports(run, plans)
        self._spares = SparePool(run)
        self._exits = ProcessExits(run, stop, self.regroup, self._spares)
        self._reports = FaultReports(run, stop, self.regroup)
        links = StalledLinks(run, self._reports, self.regroup.cuts)
        self._inquiry = HangInquiry(run, self._reports, links)
        self.requests = Requests(run, stop, PolicyActions(run, stop, self.regroup))
        self._changes = NodeChanges(run, stop, self.regroup, self._exits, self._reports)
        self._takeover = Takeover(
            run, stop, self.regroup, self._exits, self._reports, self._changes, self.policy
        )

    # --- what drivers look at ------------------------------------------------------------------

    @property
    def stage(self) -> Stage:
        """Return what the run is doing now."""
        return self.run.lifecycle.stage

    @property
    def generation(self) -> int:
        """Return the number of the present membership."""
        return self.run.lifecycle.generation

    @property
    def step(self) -> int:
        """Return the newest step that is known to be committed."""
        return self.run.progress.step

    @property
    def roster(self) -> Roster:
        """Return the roster, which knows the worker of each rank, and the spares."""
        return self.run.roster

    @property
    def policy(self) -> PolicyActions:
        """Return the part that asks the policy about verdicts, and carries out its decisions."""
        return self.requests.policy

    @property
    def nodes(self) -> NodeMembership:
        """Return the nodes that are in the run."""
        return self.run.nodes

    @property
    def links(self) -> CutLinks:
        """Return the nodes that cannot reach each other."""
        return self.run.links

    @property
    def interruptions(self) -> InterruptionLog:
        """Return the records of interruptions, open and closed."""
        return self.run.interruptions

    @property
    def budgets(self) -> Budgets:
        """Return the budgets of recoveries. The run ends when one that it needs is spent."""
        return self.run.faults.budgets

    @property
    def runs_plain(self) -> bool:
        """Return True while all processes run, and the script has made no outlast call.

        Nothing more is known of such a run, so it stays in STARTING.
        """
        members = self.roster.members()
        plain = self.stage is Stage.STARTING and not self.roster.outlast
        return plain and bool(members) and all(m.process.running for m in members)

    @property
    def departs_soon(self) -> bool:
        """Return True if the policy will take a node out after the next step, or sooner."""
        return self.policy.departs_soon

    # --- the driver's calls --------------------------------------------------------------------

    def start(self, *, now_s: float) -> list[Output]:
        """Begin the run."""
        return self._changes.start(now_s)

    def ask_stop(self, *, now_s: float, reason: str, exit_code: int) -> list[Output]:
        """Stop the run, because a signal or a person asks for it; see `StopRequest.ask`."""
        return self.regroup.stop.ask(now_s=now_s, reason=reason, exit_code=exit_code)

    def on_request(self, *, now_s: float, request: RunRequest) -> list[Output]:
        """Handle a person's request; see `Requests`. The driver shows each `AnswerRequest`."""
        return self.requests.take(now_s, request)

    def on_verdict(self, *, now_s: float, interruption: int, verdict: Verdict) -> list[Output]:
        """Handle the verdict of a diagnosis: the policy decides what is done about it."""
        return self.policy.on_verdict(now_s=now_s, interruption=interruption, verdict=verdict)

    def on_manifest(self, *, now_s: float, step: int, folder: str, error: str) -> list[Output]:
        """Handle the answer to a Manifest: it was written, or (`error`) could not be."""
        out = checkpoints.on_manifest(self.run, now_s, step=step, folder=folder, error=error)
        return [*out, *self.requests.on_saved(now_s, step=step, error=error)]

    def on_checkpoint_found(
        self, *, now_s: float, step: int, folder: str, refused: tuple[str, ...], kept_step: int = 0
    ) -> list[Output]:
        """Handle the answer to a FindCheckpoint; see `Plans.on_checkpoint_found`."""
        return self.regroup.plans.on_checkpoint_found(
            now_s=now_s, step=step, folder=folder, refused=refused, kept_step=kept_step
        )

    def on_timer(self, *, now_s: float, name: str) -> list[Output]:
        """Handle the timer `name`, which was set before and is due."""
        timer = Timer(name)
        match timer:
            case Timer.GATHER:
                return self.regroup.on_gather_timer(now_s)
            case Timer.LEAVE:
                return self.regroup.on_leave_timer(now_s)
            case Timer.MOVE:
                return self.regroup.on_move_timer(now_s)
            case Timer.HANDOVER:
                return self.regroup.on_handover_timer(now_s)
            case Timer.LINKS:
                return self.regroup.on_links_timer(now_s)
            case Timer.KILL:
                return self.regroup.stop.on_unkillable(now_s)
            case Timer.STOP:
                return self.regroup.stop.when_due(now_s)
            case Timer.INQUIRY:
                return self._inquiry.judge(now_s)
            case Timer.NODES:
                return self._changes.on_timer(now_s)
            case Timer.SPARES:
                return self._spares.refill(now_s)
            case Timer.POLICY:
                return self.policy.on_timer(now_s)
            case Timer.LEFT:
                return self._exits.left.on_timer(now_s)
            case Timer.REBUILD:
                return [*self._takeover.on_timer(now_s), *self._catch_up(now_s)]
            case _:
                return assert_never(timer)

    # --- messages ------------------------------------------------------------------------------

    def on_message(
        self, message: FromWorker | FromAgent | FromWorkers, *, now_s: float, node: str = ""
    ) -> list[Output]:
        """Handle a message from the agent of `node`, or from a worker on it."""
        if self.stage is Stage.ENDED:
            return []
        if self.stage is Stage.REBUILDING:
            self._takeover.keep_for_later(message, node)
            return []
        match message:
            case FromWorkers():
                return self._from_workers(now_s, message.workers, message.message)
            case WorkerExited():
                return self._exits.on_exit(now_s, message)
            case WorkerFailedToStart():
                return self._from_workers(now_s, (message.worker,), message)
            case Progress():
                return self._on_progress(now_s, message, node)
            case StoreUp() | StoreLost():
                return self._on_store(now_s, message)
            case Lived():
                return [Record(life_of(message))]
            case Logged():
                return []  # the driver shows it to people
            case ProgressReport():
                return self._inquiry.on_report(now_s, node, message)
            case CopyKept():
                return self._on_copy_kept(now_s, message, node)
            case ParityKept():
                self.roster.remains.parity.kept(message, node)
                return []
            case Preempted():
                return self.requests.preempted(now_s, node, message.reason)
            case ZygoteLost():
                return [event(now_s, "zygote_lost", {"reason": message.reason})]
            case Checkpointed() if not self.roster.those((message.worker,)):
                # The worker died after it had captured its shard. The node's writer has reported.
                counts = not message.in_vault and self.run.sources.saves.takes(message)
                return self._on_shard(now_s, message) if counts else []
            case _:
                return self._from_workers(now_s, (message.worker,), message)

    def _on_shard(self, now_s: float, message: Checkpointed) -> list[Output]:
        shard = checkpoints.on_shard(self.run, now_s, message)
        return [*shard, *self.requests.on_shard(now_s, message)]

    def _on_progress(self, now_s: float, message: Progress, node: str) -> list[Output]:
        """Note how far an agent's ranks have come. After a new step a drain may begin."""
        run, roster = self.run, self.roster
        training = self.stage is Stage.TRAINING
        homes = (
            {member.home for member in roster.members()} if training and roster.sharded else None
        )
        run.progress.note_report(message, node, sharded=roster.sharded, training_on=homes)
        roster.script.learn_step(message.step_s)
        return [
            *self._script_reports.on_steps(now_s, message.newest),
            *self.policy.look_at_departures(now_s, changed=False),
            *self.requests.advance(now_s),
        ]

    def _on_copy_kept(self, now_s: float, message: CopyKept, node: str) -> list[Output]:
        """Note which copies of a rank's images `node` keeps. A drain may have waited for one."""
        self.roster.remains.copies.kept(message, node)
        awaited = self.regroup.drains.note_kept(message, node) and self.stage is Stage.LEAVING
        return self.regroup.check_quiesced(now_s) if awaited else []

    def _on_sealed(self, now_s: float, members: list[Member], message: Sealed) -> list[Output]:
        """Note that members seal an image after each step. Once all do, a drain may begin."""
        if message.generation != self.generation:
            return []  # this message is of a generation that is over
        for member in members:
            member.script.seals_in = message.generation
        return [*self.policy.look_at_departures(now_s), *self.requests.advance(now_s)]

    def _on_store(self, now_s: float, message: StoreUp | StoreLost) -> list[Output]:
        if message.number != self.run.store.orders:
            # Another store was ordered since, so messages about this one are ignored.
            return []
        if isinstance(message, StoreUp):
            return self.regroup.plans.on_store_up(message)
        return self._reports.on_store_lost(now_s, message)

    def _from_workers(
        self, now_s: float, workers: tuple[int, ...], message: OfWorker
    ) -> list[Output]:
        """Handle a message that one or several workers of a node have sent."""
        members = self.roster.those(workers)
        if not members:  # all of these workers were given up
            return []
        match message:
            case Hello():
                return self._script_reports.on_hello(now_s, members)
            case Registered():
                return self._script_reports.on_registered(now_s, members, message)
            case Underway():
                return self.regroup.on_underway(now_s, members, message)
            case Inventory():
                return self.regroup.on_inventory(now_s, members, message)
            case Joined():
                return self.regroup.on_joined(now_s, members, message)
            case Committed():
                first = self.regroup.on_committed(now_s, members, message)
                return [*first, *self.requests.advance(now_s)]
            case Finished():
                return self.regroup.on_finished(now_s, members, message)
            case Sealed():
                return self._on_sealed(now_s, members, message)
            case Donated():
                return self.regroup.on_donated(now_s, message, members[0])
            case Parked():
                return self._spares.on_parked(members[0])
            case Broke():
                return self._reports.on_broke(now_s, members[0], message)
            case WorkerHung():
                return self._reports.on_hung(now_s, members[0], message)
            case WorkerLingers():
                return self._script_reports.on_lingers(now_s, members[0], message)
            case WorkerStarted():
                return self._script_reports.on_started(now_s, members[0], message)
            case WorkerFailedToStart():
                return self._exits.on_failed_to_start(now_s, message)
            case Checkpointed():
                return self._on_shard(now_s, message)
            case CopyRefused():
                return checkpoints.on_copy_refused(self.run, now_s, message)
            case Refused():
                return self.regroup.stop.kill_all(
                    now_s, End(message.exit_code, "failed", message.error, "")
                )
            case Warned():
                return self._script_reports.warn(now_s, message.text)
            case Pong():
                return []  # the answer to a ping is for the agent
            case _:
                return assert_never(message)

    # --- several nodes -------------------------------------------------------------------------

    def node_joined(self, *, now_s: float, enrol: Enrol, by_s: float) -> list[Output]:
        """Take in a node that has enrolled.

        by_s   seconds to add to a time of the node's clock, to get one of the coordinator's
        """
        if self.stage is Stage.REBUILDING:
            out = self._takeover.node_joined(now_s, enrol, by_s)
            waits = self.run.lifecycle.is_in(Stage.REBUILDING)
            return out if waits else [*out, *self._catch_up(now_s)]
        out = self._changes.joined(now_s, enrol)
        out += self.policy.look_at_departures(now_s)
        return [*out, *self.requests.advance(now_s)]

    def node_lost(
        self, *, now_s: float, node: str, reason: str, returns: bool = False
    ) -> list[Output]:
        """Count a node out. `returns`: its agent has restarted, and is about to enrol again."""
        if self.stage is Stage.REBUILDING:
            self._takeover.node_lost(now_s, node, reason)
        return self._changes.lost(now_s, node, reason, returns=returns)

    def node_does_not_come(self, *, now_s: float, node: str, reason: str) -> list[Output]:
        """Wait no more for a node that had enrolled with the last coordinator."""
        if self.stage is not Stage.REBUILDING:
            return []  # it was counted out already
        out = self._takeover.node_does_not_come(now_s, node, reason)
        waits = self.run.lifecycle.is_in(Stage.REBUILDING)
        return out if waits else [*out, *self._catch_up(now_s)]

    def images_of(self, node: str) -> tuple[int, ...]:
        """Return the ranks whose images on `node` are valid, because they lived there last."""
        return self._changes.images_of(node)

    # --- after another coordinator -------------------------------------------------------------

    def remember(self, state: RecoveredState) -> None:
        """Recover the state that the ledger holds. Call it before `rebuild`."""
        self._takeover.recover(state)

    def rebuild(self, *, now_s: float, nodes: tuple[str, ...], patience_s: float) -> list[Output]:
        """Begin as the next coordinator; see `Takeover.begin`."""
        return self._takeover.begin(now_s, nodes=nodes, patience_s=patience_s)

    def adopts(self, node: str) -> bool:
        """Return True while what `node` houses belongs to the run."""
        return self._takeover.adopts(node)

    def _catch_up(self, now_s: float) -> list[Output]:
        """Handle the messages that came during the takeover."""
        kept = self._takeover.take_kept()
        return [
            output
            for message, node in kept
            for output in self.on_message(message, now_s=now_s, node=node)
        ]
