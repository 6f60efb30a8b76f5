"""Watch the coordinator's plans, and compare each with the real state of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import Output, SendOverLink
from outlast.model import limits
from outlast.model.messages import Donated, Regroup, StartStore
from outlast.model.records import Interruption
from outlast.model.terms import Mechanism
from outlast.sim.rules.final_observations import DrainPlanned
from outlast.sim.rules.observations import CheckpointOffered, Planned, RunBegun
from outlast.sim.world.copy_places import misplaced_copies
from outlast.sim.world.disk import Disks, step_of
from outlast.sim.world.frame import Frame
from outlast.sim.world.paths import Paths
from outlast.sim.world.population import Population
from outlast.sim.world.processes import TransferImage
from outlast.sim.world.requested_stops import RequestedStops
from outlast.sim.world.state_holders import StateHolders
from outlast.sim.world.steps_done import StepsDone
from outlast.sim.world.strikes import FaultStrikes

NONE = -1, -1


class Planning(Protocol):
    """The state that a plan is compared with."""

    transfer: TransferImage | None

    @property
    def frame(self) -> Frame: ...

    @property
    def steps(self) -> StepsDone: ...

    @property
    def population(self) -> Population: ...

    @property
    def state_holders(self) -> StateHolders: ...

    @property
    def requested_stops(self) -> RequestedStops: ...

    @property
    def strikes(self) -> FaultStrikes: ...

    @property
    def disks(self) -> Disks: ...

    @property
    def paths(self) -> Paths: ...


@dataclass(frozen=True, slots=True)
class CutLink:
    """The reports of a cut link that the coordinator has received.

    said_s     when it was first reported that the last generation could not be formed across a
               link; None if it was not reported
    to_store   True: a rank could not reach the store
    home       the node of the store
    """

    said_s: float | None
    to_store: bool
    home: str


@dataclass(frozen=True, slots=True)
class _Drain:
    """A drain that has begun.

    struck     the number of strikes before it
    given_up   the workers that end because of it
    """

    node: str
    struck: int
    given_up: tuple[int, ...]


class PlanWatch:
    """Let the rules see each plan together with the real state of the run.

    homes   the node of each rank in each generation
    moved   for each interruption, the number of committed steps that the run went back
    begun   the same for steps that any rank had begun
    read    the step of the checkpoint that all ranks last began from, and the epoch of the
            coordinator that ordered it
    """

    def __init__(self, world: Planning) -> None:
        self.homes: dict[int, dict[int, str]] = {}
        self.moved: dict[int, int] = {}
        self.begun: dict[int, int] = {}
        self.read = NONE
        self._world = world
        self._struck = 0  # the number of strikes when the newest plan was made
        # the newest plan: the epoch of its coordinator, and the step that it goes on from
        self._last = 0, -1
        # generation and step of the newest transfer image that this coordinator knows of
        self._image = NONE
        # generation -> number of phases after the step that it goes on from
        self._phases: dict[int, int] = {}
        self._drained: _Drain | None = None  # a drain for which no plan was made yet

    def hear_donated(self, said: Donated, coordinator: Coordinator) -> None:
        """Note that the coordinator learns of a transfer image.

        The state after the last step is written without a plan. A rank may write it while the
        coordinator still waits for another rank to join.
        """
        asked_for = said.step == self._last[1] and said.generation == coordinator.generation
        if asked_for and coordinator.stage in (Stage.MOVING, Stage.HANDOVER):
            self._image = said.generation, said.step

    def forget_image(self) -> None:
        """Note that the coordinator does not know of the transfer image any more."""
        self._image = NONE

    def lose_node(self, node: str) -> None:
        """Note that a node is lost. If it comes back, the age of its image is unknown."""
        transfer = self._world.transfer
        if transfer is not None and transfer[2].name == node:
            self._image = NONE

    def drains(self, node: str, coordinator: Coordinator) -> None:
        """Note that a node is being drained, and that the next plans are for that.

        If a fault has already struck a rank and the coordinator does not know it, they are not.
        """
        living = {p.worker for p in self._world.population.alive() if not (p.hung or p.stopped)}
        unheard = any(member.worker not in living for member in coordinator.roster.live())
        everybody = self._world.frame.options.recovery_mode == "respawn"  # all restart
        given_up = tuple(
            member.worker
            for member in coordinator.roster.live()
            if everybody or member.home == node
        )
        struck = len(self._world.strikes.struck)
        self._drained = None if unheard else _Drain(node, struck, given_up)

    def planned(
        self,
        outputs: list[Output],
        coordinator: Coordinator,
        committed: int,
        *,
        epoch: int,
        returning: tuple[str, ...],
        cut: CutLink,
    ) -> None:
        """Look at the plans of a new generation.

        committed   the newest step that was committed before
        cut         the reports about links in the generation before
        """
        world, frame, generation = self._world, self._world.frame, coordinator.generation
        if frame.options.policy != "none":
            self.homes[generation] = dict(coordinator.roster.homes)
        plans = [
            m.path.plan
            for m in coordinator.roster.members()
            if m.path.plan is not None and m.path.plan.generation == generation
        ]
        steps = tuple(plan.step for plan in plans)
        cut_s, store_cut = self._of_links(coordinator, outputs, cut)
        holders = world.state_holders
        follow = holders.followers(committed) if self._last == (epoch, committed) else ()
        self._last = epoch, min(steps, default=-1)
        image, rewritten = self._image_before(plans, coordinator)
        frame.see(
            Planned(
                generation,
                steps,
                committed,
                holders.holders(committed),
                max(world.disks.newest_good(), world.population.kept_step(frame.options.ranks)),
                cut_s,
                store_cut,
                follow,
                image,
                rewritten,
                returning,
                holders.copied(),
                *misplaced_copies(coordinator, frame.options),
            )
        )
        holders.go_back(generation, min(steps, default=0))
        self._see_drained(coordinator, steps, committed)
        for folder in dict.fromkeys(plan.checkpoint for plan in plans if plan.checkpoint):
            self._see_offered(generation, step_of(folder))
        if plans and all(plan.replicated == "checkpoint" for plan in plans):
            self.read = step_of(plans[0].checkpoint), epoch
        holders.planned_s = frame.now_s
        frame.say(f"generation {generation} from step {min(steps, default=0)}")
        self._book(coordinator.interruptions.open, steps, committed)

    def _book(self, opened: list[Interruption], steps: tuple[int, ...], committed: int) -> None:
        """Book the lost steps to the newest interruption."""
        done = self._world.steps
        if not steps:
            return
        step = min(steps)
        if opened:
            number = opened[-1].id
            self.moved[number] = self.moved.get(number, 0) + max(0, committed - step)
            if self._world.frame.options.recovery_mode != "plain":
                begun = max(0, done.newest_begun - step)
                self.begun[number] = self.begun.get(number, 0) + begun
        done.newest_begun = step
        if done.go_back(step):
            self._image = NONE  # the old transfer image belongs to steps that were rolled back

    def _see_drained(
        self, coordinator: Coordinator, steps: tuple[int, ...], committed: int
    ) -> None:
        if self._drained is None or coordinator.stage is Stage.LEAVING:
            return  # the ranks that have to be given up finish their step first
        world, opened = self._world, coordinator.interruptions.open
        drain, homes, self._drained = self._drained, coordinator.roster.homes, None
        # no process is named beside
        quiet = not (
            world.population.done or world.requested_stops.asked or (opened and opened[-1].pids)
        )
        alone = quiet and coordinator.stage is Stage.MOVING
        follows = quiet and coordinator.stage in (Stage.MOVING, Stage.HANDOVER)
        ranks = range(world.frame.options.ranks)
        left = tuple(rank for rank in ranks if alone and homes.get(rank) == drain.node)
        unstruck = drain.struck == len(world.strikes.struck)
        cut_short = tuple(
            p.rank
            for node in world.population.nodes
            for p in node.processes.values()
            if follows
            # sharded state is committed where it is sealed, and its on-commit work is done later
            and world.frame.options.recovery_mode != "sharded"
            and p.worker in drain.given_up
            and p.machine.committed < min(steps, default=0)
        )
        world.frame.see(
            DrainPlanned(coordinator.generation, steps, committed, unstruck, left, cut_short)
        )

    def _image_before(self, plans: list[Regroup], coordinator: Coordinator) -> tuple[int, bool]:
        """Return the fields of `Planned` about the transfer image."""
        world, there = self._world, self._world.transfer
        known = there is not None and there[:2] == self._image
        lies = known and there is not None and there[2].lives and there[2].name in coordinator.nodes
        step = there[1] if lies and there is not None else -1
        phases = self._phases.get(self._image[0], -1)
        donates = [plan for plan in plans if plan.donate]
        alike = bool(donates) and (donates[0].step, donates[0].phases) == (step, phases)
        again = (
            alike
            and coordinator.stage is Stage.MOVING
            and world.frame.options.recovery_mode == "reenter"
            and coordinator.budgets.at_step < limits.REPEATS_PER_STEP_COUNT
        )
        if donates and donates[0].step != step:
            self._image = NONE  # it will be overwritten
        self._phases = {
            generation: done
            for generation, done in self._phases.items()
            if generation == self._image[0]
        }
        self._phases |= {plan.generation: plan.phases for plan in plans}
        return step, again

    def _of_links(
        self, coordinator: Coordinator, outputs: list[Output], cut: CutLink
    ) -> tuple[float | None, str]:
        """Return the fields of `Planned` about links. `outputs` contain the plans."""
        world, opened = self._world, coordinator.interruptions.open
        again = (
            bool(coordinator.links and opened)
            and opened[-1].mechanism is Mechanism.LOST_CONTACT
            and coordinator.stage is Stage.MOVING
            and self._struck == len(world.strikes.struck)
        )
        self._struck = len(world.strikes.struck)
        if not again:
            return None, ""
        orders = [getattr(getattr(output, "message", None), "message", None) for output in outputs]
        home = next(
            (
                output.node
                for output, order in zip(outputs, orders, strict=True)
                if isinstance(order, StartStore) and isinstance(output, SendOverLink)
            ),
            None,
        )
        others = [
            node
            for node in world.population.nodes
            if node.name in coordinator.nodes and not world.paths.were_parted(node)
        ]
        stays = (
            cut.to_store
            and home in (None, cut.home)
            and any(node.name not in coordinator.nodes.barred for node in others)
        )
        said_s = None if cut.said_s is None else world.frame.now_s - cut.said_s
        return said_s, cut.home if stays else ""

    def _see_offered(self, generation: int, step: int) -> None:
        """Let the rules see a checkpoint that is offered.

        Bits that flip after it was read are noticed only when it is read again.
        """
        disks = self._world.disks
        why_not = disks.why_not(disks.folders.get(step))
        known = why_not if disks.read_s < 0 or disks.wrong_since_s(step) < disks.read_s else ""
        self._world.frame.see(CheckpointOffered(generation, step, known))


def see_begun(frame: Frame, coordinator: Coordinator) -> None:
    """Let the rules see the number of nodes with which the first generation begins."""
    frame.see(RunBegun(frame.options.nodes, len(coordinator.nodes)))
