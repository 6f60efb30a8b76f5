"""The place where the coordinator lives: its timers, its ledger, its death, and the one that comes
after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.cluster.lease import void_after_s
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.coordinator.takeover import RecoveredState
from outlast.engine.hang import STEP_PHASES
from outlast.engine.protocol.outputs import (
    End,
    FindCheckpoint,
    Line,
    Manifest,
    Output,
    Record,
    SetTimer,
    Tell,
    ToAgent,
    TurnAway,
)
from outlast.engine.protocol.worker import State
from outlast.model import limits
from outlast.model.messages import (
    STORE,
    AskProgressReport,
    Beat,
    Broke,
    Checkpointed,
    Donated,
    Enrol,
    Finished,
    FromWorkers,
    Grant,
    Hello,
    KillWorker,
    OnLine,
    Parked,
    Progress,
    ProgressReport,
    Registered,
    Regroup,
    StartStore,
    StartWorker,
    StoreUp,
    ToWorkers,
    Warned,
    WorkerExited,
    WorkerHung,
    WorkerStarted,
)
from outlast.model.records import Event, Interruption
from outlast.model.terms import Mechanism, Phase
from outlast.model.verdict import Verdict
from outlast.sim.options import NODES_MAX
from outlast.sim.rules.final_observations import (
    Answered,
    DrainPlanned,
    Rewritten,
    Told,
    ToWarn,
    Written,
)
from outlast.sim.rules.observations import (
    Asked,
    Begun,
    HungSaid,
    KillOrdered,
    ManifestOrdered,
    Offered,
    OldStore,
    OrderedEarly,
    Planned,
    QuietSaid,
    SaveFailed,
    ShardHeard,
)
from outlast.sim.rules.run_end import APART
from outlast.sim.shortcuts.identical_nodes import Echo
from outlast.sim.shortcuts.identical_ranks import Parted
from outlast.sim.world.disk import step_of
from outlast.sim.world.processes import TORN
from outlast.sim.world.timeline import FIXED, ROUTINE
from outlast.sim.world.verdicts import policy_of

if TYPE_CHECKING:
    from outlast.sim.shortcuts.identical_nodes import Fleet
    from outlast.sim.world.node import Node
    from outlast.sim.world.world import World

LEASES = "leases"  # the hub's timer
_WHO: dict[type, str] = {}  # the field that says whom a message is of, or for
WORKERS_PER_EPOCH = 1_000_000  # a coordinator's numbers for workers are its own


class CoordinatorHost:
    """`interruptions`, by id, are the ledger's.

    Of what was recorded in the last LEDGER_FLUSH_S before a death, nothing is left.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._timers: dict[str, int] = {}  # name -> what the timeline calls it
        self._ledger: list[tuple[float, Any]] = []
        # of each the newest that was written, and by the coordinator of which epoch
        self._newest: dict[int, tuple[int, Interruption]] = {}
        self.homes: dict[int, dict[int, str]] = {}  # generation -> where each rank lives in it
        self.moved: dict[int, int] = {}  # interruption -> committed steps that it went back
        self.begun: dict[int, int] = {}  # the same of steps that anybody had begun
        self._struck = 0  # how often anything had been when the newest plan was made
        self.staged_s = 0.0  # when the coordinator's stage changed last
        # a node that nobody has planned the drain of yet, and how often anything had been struck
        # when it began
        self._drained: tuple[str, int] | None = None
        self.epoch = 1
        self.lives = True
        # the newest plan: by the coordinator of which epoch, and the step that it goes on from
        self._last = 0, -1
        # generation and step of the newest transfer image that this coordinator has heard of
        self._image = -1, -1
        # generation -> phases after the step that it goes on from
        self._phases: dict[int, int] = {}
        # nodes that were in, and have begun anew: when the lease of each is void
        self._returning: dict[str, float] = {}
        self._sessions: dict[str, int] = {}  # as which each has enrolled with this coordinator
        self._newest_store = 0  # the number of the newest that was heard to be up
        self._store_numbers: dict[int, int] = {}  # port -> the number of the order for it
        # step of the checkpoint that all began from last, and by the word of the coordinator of
        # which epoch
        self.read = -1, -1
        self._ended: set[int] = set()  # workers of which the coordinator has heard that they ended
        self._started: set[int] = set()  # likewise that they have started
        self._hearing = 0  # the newest that was asked for
        self._store_home = ""  # the node that was ordered last to host the store
        self._stores = 0  # the number of that order
        self._only_enrolled: set[str] = set()  # nodes that are not in yet
        # generation -> when it was first heard that a link was cut, and whether to the store
        self._unreached: dict[int, tuple[float, bool]] = {}
        self._given_up: set[int] = set()  # workers that it has ordered to be killed
        # spares of which it has heard that they stand ready, and when
        self._parked: dict[int, float] = {}
        self.coordinator = self._coordinator(generation=0, interruption=1)
        self.hub = self._hub()

    @property
    def interruptions(self) -> dict[int, Interruption]:
        return {record.id: record for _, record in self._ledger if isinstance(record, Interruption)}

    @property
    def spent(self) -> int | None:
        budgets = self.coordinator.budgets
        return (
            len(budgets.respawns.spent) + len(budgets.restarts.spent) if self.epoch == 1 else None
        )

    def has_noted(self, kind: str) -> bool:
        """The ledger has an event of this kind."""
        return any(isinstance(record, Event) and record.kind == kind for _, record in self._ledger)

    def _coordinator(self, *, generation: int, interruption: int) -> Coordinator:
        given = self._world.options
        return Coordinator(
            options=CoordinatorOptions(
                given.ranks,
                Restart(),
                spares=given.spares,
                spare_kind=given.spare_kind,
                max_restarts=given.max_restarts,
                durable=bool(given.checkpoint_every),
                nodes=given.nodes if given.nodes > 1 else 0,
                generation=generation,
                first_interruption=interruption,
                first_worker=1 + (self.epoch - 1) * WORKERS_PER_EPOCH,
                policy=policy_of(given.policy),
            )
        )

    def _hub(self) -> CoordinatorSessions | None:
        if self._world.options.nodes < 2:
            return None
        return CoordinatorSessions(
            self.coordinator,
            epoch=self.epoch,
            lease_s=self._world.options.beat_s * limits.LEASE_BEATS,
        )

    @property
    def _lead(self) -> CoordinatorSessions | Coordinator:
        """Whom timers and the start are for."""
        return self.hub if self.hub is not None else self.coordinator

    # --- driving ----------------------------------------------------------------------------------

    def begin(self) -> None:
        lead = self._lead
        self.led(lambda: lead.start(now_s=self._world.now_s))

    def hear(self, news: Any) -> None:
        """Of the one node there is."""
        self._heard(news)
        self.led(lambda: self.coordinator.on_message(news, now_s=self._world.now_s))

    def on_line(self, node: str, message: OnLine) -> None:
        hub = self.hub
        if self.lives and hub is not None:
            self._heard(getattr(message, "message", message), told=node not in self._world.untold)
            if isinstance(message, Enrol) and hub.turns_away(message, now_s=self._world.now_s):
                self.led(lambda: hub.on_line(node, message, now_s=self._world.now_s))
                return
            self._note_return(node, message)
            if (
                isinstance(message, Enrol)
                and self.epoch == 1
                and node not in self.coordinator.nodes
            ):
                self._only_enrolled.add(node)
            else:
                self._only_enrolled.discard(node)
            self.led(lambda: hub.on_line(node, message, now_s=self._world.now_s))

    def _note_return(self, node: str, message: OnLine) -> None:
        """A node that was in enrols as new, with nothing but what had been sealed there; it is in
        again once it says anything else.
        """
        before = self._returning.pop(node, None)
        if isinstance(message, Enrol):
            anew = self._sessions.get(node, message.session) != message.session
            if anew and before is None and node in self.coordinator.nodes and not message.housed:
                self._returning[node] = self._world.now_s + void_after_s(
                    self._world.options.beat_s * limits.LEASE_BEATS
                )
            self._sessions[node] = message.session

    def from_fleet(self, fleet: Fleet, message: OnLine) -> None:
        """What each of these nodes says, one after the other; `message` as the first of them says
        it.
        """
        hub = self.hub
        if self.lives and hub is not None:
            now_s = self._world.now_s
            if self._world.begins:
                for place, (name, said) in zip(
                    fleet.likeness.members, fleet.said(message), strict=True
                ):
                    self._world.timeline.at(
                        now_s, partial(self.on_line, name, said), priority=place - NODES_MAX
                    )
                return
            self._heard(getattr(message, "message", message))
            for name, said in fleet.said(message):
                coordinator, committed = self.coordinator, self._world.committed
                generation, stage = coordinator.generation, coordinator.stage
                outputs = hub.on_line(name, said, now_s=now_s)
                if (
                    outputs
                    or coordinator.stage is not stage
                    or coordinator.generation != generation
                ):
                    self._follow(outputs, coordinator, generation, stage, committed)

    def beaten(self, node: Node, beat: Beat, *, now_s: float) -> list[Output]:
        """The last heartbeat of a stretch: what comes of it, at that moment."""
        hub = self.hub
        assert hub is not None
        self._only_enrolled.discard(node.name)
        granted = hub.on_beats(node.name, beat, now_s=now_s)
        for name, _ in () if node.fleet is None else node.fleet.others():
            also = hub.on_beats(name, beat, now_s=now_s)
            if [getattr(line, "message", line) for line in also] != [
                getattr(line, "message", line) for line in granted
            ]:
                raise Parted(f"node {name} is granted another lease than {node.name}")
        return granted

    def on_disconnected(self, node: str) -> None:
        hub = self.hub
        if self.lives and hub is not None:
            self.led(lambda: hub.on_disconnected(node))

    def ask_stop(self, *, reason: str, exit_code: int) -> None:
        now_s = self._world.now_s
        self.led(
            lambda: self._through_hub(
                self.coordinator.ask_stop(now_s=now_s, reason=reason, exit_code=exit_code)
            )
        )

    def on_verdict(self, interruption: int, verdict: Verdict) -> None:
        now_s = self._world.now_s
        self.led(
            lambda: self._through_hub(
                self.coordinator.on_verdict(now_s=now_s, interruption=interruption, verdict=verdict)
            )
        )

    def drains(self, node: str) -> None:
        """A node is being drained: the next plans are for that, unless something has struck a rank
        already of which the coordinator has not heard.
        """
        living = {
            p.worker
            for node in self._world.nodes
            for p in node.processes.values()
            if p.alive and not (p.hung or p.stopped)
        }
        unheard = any(member.worker not in living for member in self.coordinator.roster.live())
        self._drained = None if unheard else (node, len(self._world.strikes.struck))

    def _through_hub(self, outputs: list[Output]) -> list[Output]:
        return self.hub.led(outputs, now_s=self._world.now_s) if self.hub is not None else outputs

    def _heard(self, news: Any, *, told: bool = True) -> None:
        said = news.message if isinstance(news, FromWorkers) else news
        if isinstance(news, Checkpointed) and news.error:
            self._world.see(SaveFailed(news.step, news.error))
        elif isinstance(news, Checkpointed) and self.hub is None:
            self._world.see(
                ShardHeard(news.step, news.rank, news.generation, self._world.options.ranks)
            )
        if (
            isinstance(said, Donated)
            and said.generation == self.coordinator.generation
            and self.coordinator.stage in (Stage.MOVING, Stage.HANDOVER)
        ):
            self._image = said.generation, said.step
        if isinstance(news, StoreUp) and news.number == self._stores:
            self._newest_store = max(self._newest_store, news.number)
            self._store_numbers[news.port] = news.number
        if isinstance(news, Hello):
            self._world.has_greeted(news.worker)
        elif isinstance(news, WorkerStarted):
            self._started.add(news.worker)
        elif isinstance(news, Parked):
            self._parked.setdefault(news.worker, self._world.now_s)
        elif isinstance(news, WorkerHung):
            silence_s = self._world.options.hangs_after_s
            if silence_s or Phase(news.phase) in STEP_PHASES:
                looks = (
                    self._world.nodes[0].looks_at(news.worker)
                    if self.hub is None and "less far" in news.reason
                    else None
                )
                self._world.see(
                    HungSaid(
                        news.deadline_s,
                        silence_s,
                        self.hub is not None and "SIGSTOP" not in news.reason,
                        looks,
                    )
                )
        elif isinstance(news, ProgressReport):
            self._world.see(QuietSaid(news.silence_s, self._world.options.hangs_after_s))
        elif isinstance(news, WorkerExited):
            self._ended.add(news.worker)
        elif isinstance(news, Enrol):
            if news.script or any(
                isinstance(told_before, Registered)
                for housed in news.housed
                for told_before in housed.said
            ):
                self._world.recovery_times.registered()
        elif isinstance(said, Registered):
            self._world.recovery_times.registered()
            self._to_warn(said.note)
        elif isinstance(news, Warned):
            self._to_warn(news.text)
        elif isinstance(news, Broke) and news.unreached:
            since_s, to_store = self._unreached.get(news.generation, (self._world.now_s, False))
            self._unreached[news.generation] = since_s, to_store or STORE in news.unreached
        elif isinstance(said, Finished) and self.coordinator.stage is Stage.TRAINING:
            # else it has not heard of all ranks that they are in
            self._world.recovery_times.finished(said.generation, now_s=self._world.now_s)
        if told and type(news) not in (Progress, Beat):
            self._world.say(brief(news))

    def _to_warn(self, text: str) -> None:
        if text and self.coordinator.stage not in (Stage.REBUILDING, Stage.STOPPING, Stage.ENDED):
            self._world.see(ToWarn(text, self.epoch))

    def led(self, act: Callable[[], list[Output]]) -> None:
        """Drive the coordinator, look at the plans that it made, and carry out what it asks for."""
        coordinator, committed = self.coordinator, self._world.committed
        generation, stage = coordinator.generation, coordinator.stage
        self._follow(act(), coordinator, generation, stage, committed)

    def _follow(
        self,
        outputs: list[Output],
        coordinator: Coordinator,
        generation: int,
        stage: Stage,
        committed: int,
    ) -> None:
        """`generation`, `stage` and `committed`: as they were before."""
        world = self._world
        if stage is not coordinator.stage:
            self.staged_s = world.now_s
        if stage is not coordinator.stage and world.fleet is None:
            noted = [
                output.record
                for output in outputs
                if isinstance(output, Record) and isinstance(output.record, Interruption)
            ]
            if chosen := [record for record in noted if record.left_s == world.now_s]:
                # of which it is said why
                self._see_answered(max(chosen, key=lambda record: record.id), coordinator)
        if coordinator.generation != generation:
            if not generation and self.hub is not None:
                world.see(Begun(world.options.nodes, len(coordinator.nodes)))
            before, generation = generation, coordinator.generation
            if world.options.policy != "none":
                self.homes[generation] = dict(coordinator.roster.homes)
            plans = [
                m.path.plan
                for m in coordinator.roster.members()
                if m.path.plan is not None and m.path.plan.generation == generation
            ]
            steps = tuple(plan.step for plan in plans)
            opened = coordinator.interruptions.open
            again = (
                bool(coordinator.links and opened)
                and opened[-1].mechanism is Mechanism.LOST_CONTACT
                and coordinator.stage is Stage.MOVING
            )
            again = again and self._struck == len(world.strikes.struck)
            self._struck = len(world.strikes.struck)
            cut_s, store_cut = self._of_links(before, outputs) if again else (None, "")
            follow = world.followers(committed) if self._last == (self.epoch, committed) else ()
            self._last = self.epoch, min(steps, default=-1)
            image, rewritten = self._image_before(plans, coordinator)
            returning = tuple(
                sorted(node for node, until_s in self._returning.items() if world.now_s < until_s)
            )
            holders, durable = world.holders(committed), world.disks.newest_good()
            world.see(
                Planned(
                    generation,
                    steps,
                    committed,
                    holders,
                    durable,
                    cut_s,
                    store_cut,
                    follow,
                    image,
                    rewritten,
                    returning,
                )
            )
            if self._drained is not None:
                (node, struck), homes, self._drained = self._drained, coordinator.roster.homes, None
                # no process is named beside
                alone = coordinator.stage is Stage.MOVING and not (
                    world.done or world.stop_asked or (opened and opened[-1].pids)
                )
                left = tuple(
                    rank for rank in range(world.options.ranks) if alone and homes.get(rank) == node
                )
                world.see(
                    DrainPlanned(
                        generation, steps, committed, struck == len(world.strikes.struck), left
                    )
                )
            for folder in dict.fromkeys(plan.checkpoint for plan in plans if plan.checkpoint):
                self._see_offered(generation, step_of(folder))
            if plans and all(plan.replicated == "checkpoint" for plan in plans):
                self.read = step_of(plans[0].checkpoint), self.epoch
            world.planned()
            world.say(f"generation {generation} from step {min(steps, default=0)}")
            if opened and steps:
                self.moved[opened[-1].id] = self.moved.get(opened[-1].id, 0) + max(
                    0, committed - min(steps)
                )
                if world.options.way != "plain":
                    self.begun[opened[-1].id] = self.begun.get(opened[-1].id, 0) + max(
                        0, world.newest_begun - min(steps)
                    )
            world.newest_begun = min(steps, default=world.newest_begun)
            if steps and min(steps) < committed:
                world.rolled_back.append((committed, min(steps)))
                self._image = -1, -1  # what was handed over before is of a past that is over
                world.committed = min(steps)
            elif steps and any(before >= min(steps) > committed for before, _ in world.rolled_back):
                # a node came back with what had been given up
                world.committed = min(steps)
        for output in outputs:
            self._carry_out(output)
        if coordinator.stage is not stage and coordinator is self.coordinator:
            world.strikes.at_stage(coordinator.stage.value)

    def _image_before(self, plans: list[Regroup], coordinator: Coordinator) -> tuple[int, bool]:
        """What `Planned` says of the transfer image."""
        world, there = self._world, self._world.transfer
        step = (
            there[1]
            if there is not None
            and there[:2] == self._image
            and there[2].lives
            and there[2].name in coordinator.nodes
            else -1
        )
        phases, donates = (
            self._phases.get(self._image[0], -1),
            [plan for plan in plans if plan.donate],
        )
        alike = bool(donates) and (donates[0].step, donates[0].phases) == (step, phases)
        again = (
            alike
            and coordinator.stage is Stage.MOVING
            and world.options.way == "reenter"
            and coordinator.budgets.at_step < limits.REPEATS_PER_STEP_COUNT
        )
        if donates and donates[0].step != step:
            self._image = -1, -1  # it is about to be written over
        self._phases = {
            generation: done
            for generation, done in self._phases.items()
            if generation == self._image[0]
        }
        self._phases |= {plan.generation: plan.phases for plan in plans}
        return step, again

    def _of_links(self, generation: int, outputs: list[Output]) -> tuple[float | None, str]:
        """What `Planned` says of links, of the generation after this one; `outputs`: with its
        plans.
        """
        world, (said_s, to_store) = self._world, self._unreached.get(generation, (None, False))
        orders = [getattr(getattr(output, "message", None), "message", None) for output in outputs]
        home = next(
            (
                output.node
                for output, order in zip(outputs, orders, strict=True)
                if isinstance(order, StartStore) and isinstance(output, Line)
            ),
            None,
        )
        others = [
            node
            for node in world.nodes
            if node.name in self.coordinator.nodes and not world.paths.were_parted(node)
        ]
        stays = (
            to_store
            and home in (None, self._store_home)
            and any(node.name not in self.coordinator.nodes.barred for node in others)
        )
        return None if said_s is None else world.now_s - said_s, self._store_home if stays else ""

    def _see_answered(self, record: Interruption, coordinator: Coordinator) -> None:
        """Who goes on, before anybody is told."""
        world, moves = self._world, coordinator.stage is Stage.MOVING
        ranks: dict[str, list[int]] = {
            "kept": [],
            "reentered": [],
            "begun": [],
            "taken": [],
            "forked": [],
        }
        for member in coordinator.roster.members() if moves else ():
            new = member.started_s == world.now_s
            then = member.path.plan.then if member.path.plan is not None else ""
            how = (
                ("forked" if member.kind == "rank" else "taken")
                if new
                else {"in_place": "kept", "reenter": "reentered"}.get(then, "begun")
            )
            ranks[how].append(member.rank)
        housed = [process for process in world.alive() if process.rank >= 0]
        # who has ended just now is not known to have
        known = {m.worker for m in coordinator.roster.live()}
        # others wait for nothing but their agent, which will kill them
        may_act = [p for p in housed if p.worker in known or not p.node.still.outlives_lease]
        still = [
            p
            for p in may_act
            if p.machine.state is State.STILL
            and p.machine.committed >= 0
            and p.worker not in p.node.doomed
        ]
        there = [p for p in still if p.content != TORN]
        over = bool(world.done) or any(
            p.machine.over or p.machine.committed >= world.options.steps for p in housed
        )
        homes = coordinator.roster.homes
        # who is forked on a node need not be if a spare stands ready there
        beside = {homes[rank] for rank in ranks["forked"]}
        # what is chosen once stays so
        since_s = min(
            (one.detected_s for one in coordinator.interruptions.open), default=world.now_s
        )
        parked = (
            {worker for worker, parked_s in self._parked.items() if parked_s < since_s}
            - known
            - self._given_up
        )
        ready = sum(
            p.rank < 0
            and p.worker in parked
            and p.worker not in p.node.doomed
            and p.node.name in beside
            for p in world.alive()
        )
        world.see(
            Answered(
                rung=record.rung.value if record.rung is not None else "",
                reason=record.reason,
                moves=moves,
                there=tuple(p.rank for p in there),
                ready=ready,
                held=bool(world.holders(world.committed)),
                over=over,
                way=world.options.way,
                ranks=world.options.ranks,
                stop_asked=world.stop_asked,
                apart=bool(set(APART).intersection(world.strikes.all_kinds())),
                **{name: tuple(some) for name, some in ranks.items()},
            )
        )

    def _carry_out(self, output: Output) -> None:
        world = self._world
        if isinstance(output, Line):
            line = world.line_to(output.node)
            if isinstance(line, Echo):  # of whom the trace tells nothing, where no policy acts
                line.down(output.message)
                return
            if type(output.message) is not Grant and output.node not in world.untold:
                world.say(
                    f"to {output.node}: {brief(getattr(output.message, 'message', output.message))}"
                )
            order = getattr(output.message, "message", None)
            if isinstance(order, StartStore):
                self._store_home, self._stores = output.node, order.number
            if isinstance(order, (StartStore, StartWorker)) and output.node in self._only_enrolled:
                world.see(OrderedEarly(output.node))
            if isinstance(order, AskProgressReport) and order.nonce > self._hearing:
                self._hearing = order.nonce
                world.see(Asked(order.nonce))
            elif isinstance(order, KillWorker):
                self._given_up.add(order.worker)
            elif isinstance(order, ToWorkers) and isinstance(order.message, Regroup):
                self._see_store(order.message)
            world.verdicts.ordered(output.node, order)
            line.down(output.message)
        elif isinstance(output, TurnAway):
            world.line_to(output.node).down(output.message)
        elif isinstance(output, ToAgent):
            self._stores = (
                output.message.number if isinstance(output.message, StartStore) else self._stores
            )
            world.say(f"coordinator: {brief(output.message)}")
            self._see_kill(output.message)
            world.command(output.message)
        elif isinstance(output, SetTimer):
            self._set_timer(output)
        elif isinstance(output, Record):
            if isinstance(output.record, Interruption):
                if (
                    before := self._newest.get(output.record.id)
                ) is not None and self.epoch == before[0]:
                    world.see(Rewritten(before[1], output.record))
                self._newest[output.record.id] = self.epoch, output.record
                world.noted(output.record)
                world.verdicts.noted(output.record)
            elif isinstance(output.record, Event):
                if output.record.kind == "checkpoint_refused":
                    self.read = -1, -1
                if (
                    output.record.kind == "node_lost"
                    and world.transfer is not None
                    and world.transfer[2].name == output.record.data["node"]
                ):
                    # if the node comes back with it, nobody knows which phases are done in it
                    self._image = -1, -1
                world.see(Written(output.record.kind, output.record.data, self.epoch))
                world.verdicts.written(output.record)
            self._ledger.append((-math.inf if output.at_once else world.now_s, output.record))
        elif isinstance(output, Tell):
            world.say(f"coordinator tells: {output.text}")
            world.see(
                Told(output.text, world.spare_ended_early_s is not None or world.options.nodes > 1)
            )
        elif isinstance(output, Manifest):
            step = output.step
            world.see(ManifestOrdered(step))
            world.disks.write_manifest(
                output, lambda folder, error: self._manifest_written(step, folder, error)
            )
        elif isinstance(output, FindCheckpoint):
            world.disks.find(self._checkpoint_found)
        else:
            assert isinstance(output, End), output
            world.ended(output)

    def _see_store(self, plan: Regroup) -> None:
        """That which a plan names."""
        number = self._store_numbers.get(plan.store_port, self._newest_store)
        if number < self._newest_store:
            self._world.see(OldStore(plan.generation, number, self._newest_store))

    def _see_kill(self, message: object) -> None:
        if isinstance(message, KillWorker):
            world, member, unstruck, idle = (
                self._world,
                self.coordinator.roster.of(message.worker),
                False,
                False,
            )
            if member is not None and message.worker in self._started:
                unstruck = member.rank >= 0 and not world.strikes.struck
                sound = member.process.pid not in world.strikes.pids() and not set(APART) & set(
                    world.strikes.all_kinds()
                )
                idle = (
                    member.rank < 0
                    and sound
                    and member.kind == world.options.spare_kind
                    and not (world.stop_asked or world.done)
                )
            world.see(
                KillOrdered(
                    message.worker,
                    message.worker in self._ended,
                    self.coordinator.stage is Stage.STOPPING,
                    unstruck,
                    idle,
                )
            )

    # --- checkpoints ------------------------------------------------------------------------------

    def _manifest_written(self, step: int, folder: str, error: str) -> None:
        now_s, coordinator = self._world.now_s, self.coordinator
        self.led(
            lambda: self._through_hub(
                coordinator.on_manifest(now_s=now_s, step=step, folder=folder, error=error)
            )
        )

    def _checkpoint_found(self, step: int, folder: str, refused: tuple[str, ...]) -> None:
        now_s, coordinator = self._world.now_s, self.coordinator
        self.led(
            lambda: self._through_hub(
                coordinator.on_checkpoint_found(
                    now_s=now_s, step=step, folder=folder, refused=refused
                )
            )
        )

    def _see_offered(self, generation: int, step: int) -> None:
        """Bits that flip after all was read are found when it is read again."""
        disks = self._world.disks
        why_not = disks.why_not(disks.folders.get(step))
        known = why_not if disks.read_s < 0 or disks.wrong_since_s(step) < disks.read_s else ""
        self._world.see(Offered(generation, step, known))

    # --- timers -----------------------------------------------------------------------------------

    def _set_timer(self, order: SetTimer) -> None:
        # there is nothing to be done then
        idle = order.name == "spares" and not self._world.options.spares
        timeline, sort = self._world.timeline, ROUTINE if idle or order.name == LEASES else FIXED
        if (before := self._timers.pop(order.name, None)) is not None:
            timeline.cancel(before, sort=sort)
        if order.at_s is not None:
            self._timers[order.name] = timeline.after(
                order.at_s - self._world.now_s, partial(self._due, order.name), sort=sort
            )

    def _due(self, name: str) -> None:
        del self._timers[name]
        if self._world.end is None:
            lead = self._lead
            self.led(lambda: lead.on_timer(now_s=self._world.now_s, name=name))

    # --- death and rebuilding ---------------------------------------------------------------------

    def die(self, *, for_s: float) -> None:
        """With all that it knew. Another one comes `for_s` later."""
        if not self.lives:
            return
        world = self._world
        self.lives = False
        for known in (self._unreached, self._returning, self._sessions):
            known.clear()
        self._image = -1, -1
        for name in list(self._timers):
            self._set_timer(SetTimer(name, None))
        for node in world.nodes:
            node.link.drop()
        self._ledger = [
            (at_s, record)
            for at_s, record in self._ledger
            if at_s < world.now_s - limits.LEDGER_FLUSH_S
        ]
        world.timeline.after(for_s, self._come_anew, sort=FIXED)

    def _come_anew(self) -> None:
        world = self._world
        if world.end is not None:
            return
        self.epoch += 1
        self._hearing = 0
        self.lives = True
        remembered = RecoveredState()
        for _, record in self._ledger:
            remembered.take(record)
        self.coordinator = self._coordinator(
            generation=remembered.generation,
            interruption=max(remembered.interruptions, default=0) + 1,
        )
        self.coordinator.remember(remembered)
        self.hub = hub = self._hub()
        assert hub is not None, "a coordinator dies alone only where there are several nodes"
        world.say(f"a coordinator of epoch {self.epoch} comes")
        self.led(lambda: hub.rebuild(now_s=world.now_s, nodes=remembered.nodes))


def brief(message: object) -> str:
    """A message in a line of the trace."""
    sort = type(message)
    if sort not in _WHO:
        _WHO[sort] = next(
            (field for field in ("worker", "workers", "node") if hasattr(message, field)), ""
        )
    who, inner = _WHO[sort], getattr(message, "message", None)
    return f"{sort.__name__}{f' {getattr(message, who)}' if who else ''}{': ' + type(inner).__name__ if inner is not None else ''}"
