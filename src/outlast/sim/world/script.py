"""The simulated script of a user, from the start of its process to its end.

outlast's part in it is the code that runs on a real rank: the worker's protocol machine, and the
commit machine (see step_loop.py). The way in which a process joins the run and gets its state
follows runtime/worker/{membership,attach,run}.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.engine.commit.image_place import BEGUN, ScriptPosition, choose_image
from outlast.errors import Reenter
from outlast.model import limits
from outlast.model.booking import Book
from outlast.model.messages import IMAGE, Hello, KeptRow, Parked, Regroup, Warned
from outlast.model.terms import Cause, Phase, Waypoint
from outlast.sim.rules.observations import Restored, StartedOver
from outlast.sim.world.commit_commands import APART_FROM_STEP
from outlast.sim.world.disk import step_of
from outlast.sim.world.main_thread import MainThread
from outlast.sim.world.node_parts import Script
from outlast.sim.world.processes import (
    Died,
    Home,
    PeerFailure,
    SealedStep,
    SimulatedProcess,
    Thread,
    UserError,
)
from outlast.sim.world.step_loop import StepLoop
from outlast.sim.world.world import World

NOTES = {
    "respawn": (
        "collectives before run.steps, outside outlast.main: all ranks restart after each fault"
    )
}
INEXACT = "not bit-exact: the order in which gradients are summed may differ"


def script_of(mode: str) -> Script:
    """Return the main thread of a script with this recovery mode (see options.MODES)."""
    if mode == "plain":
        return lambda world, process: Main(world, process, mode="plain", has_main=False).run_plain()
    has_main = mode in ("reenter", "sharded")
    return lambda world, process: Main(
        world, process, mode="reenter" if has_main else mode, has_main=has_main
    ).run()


class Main:
    """A script with outlast calls, or one without any (`run_plain`).

    It boots, joins the run, and runs main's function: set-up, run.steps, and the end. With
    `has_main`, the function may be entered again. `loop` is its training loop when it has reached
    run.steps.
    """

    def __init__(
        self, world: World, process: SimulatedProcess, *, mode: str, has_main: bool
    ) -> None:
        self.thread = MainThread(world, process)
        self.world, self.p = world, process
        self.mode, self.has_main = mode, has_main
        self.loop: StepLoop | None = None

    # --- the process ---

    def run(self) -> Thread:
        try:
            yield from self.life()
            yield from self.thread.mark("epilogue", user=True)
            yield "sleep", self.world.lasting(self.p, 0.001, 0.05)
        except Died:
            return 0
        except (UserError, PeerFailure) as error:
            self.p.machine.born_in(self.p.generation)
            self.thread.broke(error)
            yield "sleep", 0.002
            return 1
        return 0

    def life(self) -> Thread:
        yield from self.thread.mark("boot")
        yield "sleep", self.world.lasting(self.p, 0.01, 0.03)
        self.p.node.tell(self.p, Hello(self.p.worker, self.p.pid))
        if self.p.kind == "warm":
            yield from self.park()
        yield from self.join()
        if not self.has_main:
            yield from self.function()
            return
        while True:
            try:
                yield from self.function()
                return
            except Reenter:
                pass
            except (UserError, PeerFailure) as error:
                if self.p.rank < 0:
                    raise
                self.register("reenter")
                plan = yield from self.thread.cut_short(error)
                if self.loop is not None:
                    flow = self.loop.machine.hand_over_and_leave(plan)
                    yield from self.loop.commands.run(flow)
            self.loop = None
            self.p.content = -1
            yield from self.reenter()

    def run_plain(self) -> Thread:
        """Run a script without outlast calls: it builds a group, and each step is one barrier.

        It starts from the beginning each time.
        """
        try:
            yield from self.thread.mark("boot")
            yield "sleep", 0.02
            self.p.node.tell(self.p, Hello(self.p.worker, self.p.pid))
            plan: Regroup = yield "plan", 0
            yield "build", plan
            for _ in range(self.world.options.steps):
                yield from self.thread.mark("body")
                self.p.node.heard_s[self.p.worker] = self.p.node.now_s  # it prints the loss
                yield "sleep", 0.02
                yield "collective", None
            yield from self.thread.mark("epilogue")
        except Died:
            return 0
        except (UserError, PeerFailure):
            return 1
        return 0

    # --- membership ---

    def join(self) -> Thread:
        self.thread.enter(Phase.SETUP)
        yield from self.thread.mark("join")
        if self.p.rank >= 0:
            yield from self.get_in()
        self.register("reenter" if self.has_main else "respawn")

    def park(self) -> Thread:
        self.thread.enter(Phase.PARKED)
        self.p.node.tell(self.p, Parked(self.p.worker, self.p.kind))
        yield from self.thread.mark("parked")
        plan = yield "plan", 0
        self.p.beacon.rank = plan.rank
        self.p.book = Book(now_s=self.world.now_s, cause=Cause.REGROUP)
        self.thread.enter(Phase.PARKED)

    def get_in(self) -> Thread:
        while True:
            plan: Regroup = yield "plan", 0
            self.p.beacon.rank = plan.rank
            if plan.replicated == "donor":
                self.p.machine.detach()
                return
            if self.p.machine.plan is not plan:
                continue
            self.p.machine.follow()
            self.thread.enter(Phase.REGROUP)
            try:
                yield from self.thread.build(plan)
            except PeerFailure as error:
                yield from self.thread.cut_short(error)
                continue
            self.thread.do(self.p.machine.underway(Waypoint.IN_SCRIPT))
            self.thread.enter(Phase.SETUP)
            return

    def register(self, mode: str) -> None:
        reached_steps = self.loop is not None
        self.thread.do(
            self.p.machine.register(
                recovery_mode=mode,
                sharded=self.thread.sharded and reached_steps,
                exact=True,
                note=NOTES.get(self.mode, "") if reached_steps else "",
                at_steps=reached_steps,
                alike=self.world.options.alike_with(self.p.rank) if reached_steps else (),
            )
        )

    def reenter(self) -> Thread:
        self.p.machine.forget_state()
        self.thread.enter(Phase.REGROUP, cause=Cause.REGROUP)
        yield from self.get_in()
        self.thread.enter(Phase.SETUP)

    # --- attaching ---

    def function(self) -> Thread:
        yield from self.thread.mark("setup")
        yield "sleep", self.world.lasting(self.p, 0.005, 0.05)
        if self.p.rank < 0:
            yield from self.park()
            yield from self.get_in()
        self.loop = StepLoop(self.thread)
        yield from self.attach(self.loop)
        yield from self.loop.run()

    def attach(self, loop: StepLoop) -> Thread:
        known = self.p.machine.plan
        cause = Cause.STARTUP if known is None else known.attaching
        self.thread.enter(Phase.REGROUP, cause=cause)
        while True:
            plan = yield from self.newest_plan()
            at = Waypoint.AWAITS_STATE if self.p.group is None else Waypoint.RESTORES
            self.thread.do(self.p.machine.underway(at))
            try:
                if self.p.group is None:
                    yield from self.thread.mark("grouping")
                    yield from self.thread.build(plan)
                    self.thread.do(self.p.machine.underway(Waypoint.RESTORES))
                yield from self.restore(plan, loop)
                yield from self.ready(plan)
                return
            except PeerFailure as error:
                self.thread.broke(error)
                self.world.collectives.leave(self.p)
                yield from self.thread.stand_still(in_hook=False)
                plan = yield "plan", 0
                if self.p.machine.starts_over(plan, reenters=self.has_main):
                    raise Reenter from None

    def newest_plan(self) -> Thread:
        """Take the newest plan, or wait for one, as Session.take_plan does."""
        while True:
            plan = yield "plan", -1
            if self.p.machine.plan is plan:
                self.p.machine.follow()
                return plan

    def restore(self, plan: Regroup, loop: StepLoop) -> Thread:
        self.thread.enter(Phase.REGROUP, cause=plan.restoring)
        yield from self.thread.mark("restoring")
        yield "sleep", self.world.lasting(self.p, 0.002, 0.01)
        self.thread.exit_if_lease_is_over()
        self.check_lives()
        if plan.replicated in ("donor", "transfer"):
            yield from self.reach_image()
            if self.world.transfer is None and self.world.transfer_died:
                raise PeerFailure("the node with the transfer image is gone")
            generation, step = (
                self.world.transfer[:2] if self.world.transfer is not None else (-1, -1)
            )
            there = step >= 0 and (plan.replicated == "transfer" or generation == plan.generation)
            self.reads("transfer image", plan, (step,) if there else ())
        loop.comes_to(plan, in_place=self.mode == "in_place")
        if plan.private == "slot":
            self.reads(
                "slots", plan, tuple(sorted(self.p.node.slots.get(self.p.rank, {}).values()))
            )
            self.reads_private(plan)
        if plan.private == "kept":
            self.reads_copies(plan)
        if plan.private == "twin":
            yield from self.reads_twin(plan)
        if plan.private == "copy":
            yield from self.reads_copy(plan)
        if plan.private == "parity":
            yield from self.reads_parity(plan)
        if plan.private == "none" and plan.then == "start":
            self.starts_over(plan)
        if plan.private == "checkpoint":
            yield from self.read_checkpoint(plan)
        self.takes_over_late(plan, loop)
        sealed = plan.private in ("slot", "twin", "copy", "parity")
        whole = plan.replicated != "none" or (self.thread.sharded and sealed)
        # the state that the script makes is that before the first step
        self.p.holds(plan.step if whole else 0)

    def reads_twin(self, plan: Regroup) -> Thread:
        """Take the image of a rank that holds the same shard, because this rank's image was lost.

        It becomes this rank's image. It may come from another node.
        """
        homes = self.world.host.coordinator.roster.homes
        home = next(node for node in self.world.population.nodes if node.name == homes[plan.twin])
        yield from self.reach(home, "the image of a twin cannot be reached")
        lies = home.slots.get(plan.twin, {})
        twin_lives = any(one.rank == plan.twin for one in home.alive())
        if plan.step not in lies.values() and not twin_lives:
            raise PeerFailure("the node of the twin has lost its images")
        self.reads("slots of a twin", plan, tuple(sorted(lies.values())))
        mine = self.p.node.slots.setdefault(self.p.rank, {})
        mine |= {slot: one for slot, one in lies.items() if one == plan.step}

    def reads_copy(self, plan: Regroup) -> Thread:
        """Take the copy of this rank's lost image that another node keeps."""
        nodes = self.world.population.nodes
        keeper = next(node for node in nodes if node.name == plan.twin_source)
        yield from self.reach(keeper, "the copy of an image cannot be reached")
        found = keeper.copies.steps(self.p.rank)
        if not found:
            raise PeerFailure("the node that kept the copy has lost it")
        self.reads("copies of another node", plan, found)
        slot = plan.step % limits.SLOTS_COUNT
        self.p.node.slots[self.p.rank] = {slot: SealedStep(plan.step, ScriptPosition(BEGUN, 0), 0)}

    def reads_parity(self, plan: Regroup) -> Thread:
        """Rebuild this rank's image from images of other ranks and rows of parity."""
        nodes = {node.name: node for node in self.world.population.nodes}
        for part in sorted({source.part for source in plan.sources}):
            rows: list[KeptRow] = []
            images: set[int] = set()
            for source in (one for one in plan.sources if one.part == part):
                node = nodes[source.at]
                yield from self.reach(node, "what a lost image is rebuilt from cannot be reached")
                if source.rank >= 0 and plan.step in node.slots.get(source.rank, {}).values():
                    images.add(source.rank)
                if source.row >= 0:
                    rows += node.copies.rows.served(source.stripe, source.row, plan.step)
            if not rows:
                raise PeerFailure("the nodes that kept parity have lost what lay there")
            found = sorted({row.step for row in rows if _rebuilds(row, rows, images)})
            self.reads("parity on other nodes", plan, tuple(found))
        slot = plan.step % limits.SLOTS_COUNT
        self.p.node.slots[self.p.rank] = {slot: SealedStep(plan.step, ScriptPosition(BEGUN, 0), 0)}

    def reach(self, home: Home, lack: str) -> Thread:
        """Wait until another node can be reached. Raises PeerFailure after a while."""
        until_s = self.world.now_s + limits.GROUP_CONNECT_S
        while self.world.paths.heals_s(self.p.node, home) > self.world.now_s or not home.lives:
            if self.world.now_s >= until_s:
                raise PeerFailure(lack, (IMAGE,))
            yield "sleep", limits.TICK_S
            self.thread.exit_if_lease_is_over()
            self.check_lives()

    def reads_private(self, plan: Regroup) -> None:
        """Take private state from this rank's image, as Attachment._load_slot does."""
        slots = self.p.node.slots.get(self.p.rank, {})
        images = [
            (slot, one)
            for slot, one in slots.items()
            if isinstance(one, SealedStep) and one == plan.step
        ]
        if not images or self.thread.sharded:
            return
        slot, image, place = choose_image(images, begun=not plan.replay, phases=plan.phases)
        self.p.newest = slot, plan.step, None
        if plan.replicated != "donor" and self.world.options.pieces(plan.step) > 1:
            return  # all ranks start over, and the work of an interrupted phase is left out
        donated, apart = self.world.transfer, self.world.options.moves == "apart"
        if place.is_complete:
            self.p.own = image.own
        elif donated is not None and not apart:
            self.p.own = donated[5]  # the parts that moved are the same on all ranks
        elif not place.phases and not (apart and plan.step <= APART_FROM_STEP):
            self.p.own = image.own
        # Otherwise the worker warns that this rank is not bit-exact: `own` stays as it should be.

    def reads_copies(self, plan: Regroup) -> None:
        """Take the copies that all ranks had made: this rank's, and rank 0's replicated state."""
        kept = self.p.node.kept
        for rank in sorted({0, self.p.rank}):
            self.reads("copies", plan, tuple(sorted(kept.get(rank, {}).values())))
        found = [one for one in kept.get(self.p.rank, {}).values() if one == plan.step]
        if found and isinstance(found[0], SealedStep):
            self.p.own = found[0].own

    def takes_over_late(self, plan: Regroup, loop: StepLoop) -> None:
        """Vote late if the others do, or if it is not known yet whether all ranks are equal."""
        if plan.replicated in ("donor", "transfer"):
            if self.world.transfer is not None:
                loop.late.take_over(self.world.transfer[4])
        elif not self.thread.sharded and self.world.options.ranks > 1:
            loop.late.unproven = True

    def starts_over(self, plan: Regroup) -> None:
        """Begin with private state as the script makes it.

        A rank that has moved to another node does not look for its images on the old node.
        """
        host, slots = self.world.host, self.p.node.slots if self.world.options.nodes == 1 else {}
        read = (plan.step, host.epoch) == host.read
        for one in self.p.each():
            self.world.see(
                StartedOver(
                    one.worker,
                    one.rank,
                    plan.step,
                    tuple(sorted(slots.get(one.rank, {}).values())),
                    read,
                )
            )

    def reads(self, source: str, plan: Regroup, found: tuple[int, ...]) -> None:
        for one in self.p.each():
            self.world.see(Restored(one.worker, one.rank, source, plan.step, found))

    def reach_image(self) -> Thread:
        """Wait until the transfer image can be read. It may be on another node."""
        until_s = self.world.now_s + limits.GROUP_CONNECT_S
        while (
            self.world.transfer is not None
            and self.world.paths.heals_s(self.p.node, self.world.transfer[2]) > self.world.now_s
        ):
            if self.world.now_s >= until_s:
                raise PeerFailure("the transfer image cannot be reached", (IMAGE,))
            yield "sleep", limits.TICK_S
            self.thread.exit_if_lease_is_over()
            self.check_lives()

    def read_checkpoint(self, plan: Regroup) -> Thread:
        """Read the shard of this rank, and that of rank 0.

        Their checksums are verified. A shard that does not match is an error of this process.
        """
        disks, step = self.world.disks, step_of(plan.checkpoint)
        yield "sleep", disks.read_shard_s(self.p)
        self.check_lives()
        if disks.why_not(disks.folders.get(step)):
            self.world.strikes.cannot_read(self.p)
            raise UserError("the checkpoint does not match its checksums")
        self.reads("checkpoint", plan, (step,))

    def ready(self, plan: Regroup) -> Thread:
        self.forget_after(plan.step)
        if plan.step not in self.p.node.slots.get(self.p.rank, {}).values():
            yield from self.thread.seal(plan.step, ScriptPosition(BEGUN, 0))
        if self.thread.sharded:
            self.p.machine.note_sealed(steps=self.thread.sealed())
            self.thread.copies.follow(plan)
            self.thread.copies.send(plan.step)
        self.register(self.mode)
        if self.world.options.warns:
            self.p.node.tell(self.p, Warned(self.p.worker, INEXACT))
        self.thread.joined(plan)

    def forget_after(self, step: int) -> None:
        """Remove images of later steps, because those steps were rolled back."""
        node = self.p.node
        for slots in (node.slots.get(self.p.rank, {}), node.kept.get(self.p.rank, {})):
            for slot in [slot for slot, later in slots.items() if later > step]:
                del slots[slot]

    def check_lives(self) -> None:
        if self.p.group is None:
            raise PeerFailure("woken while it restored")


def _rebuilds(row: KeptRow, rows: Sequence[KeptRow], images: set[int]) -> bool:
    """Return whether the `rows` like `row` and these ranks' images restore all parts of it."""
    like = {one.row for one in rows if (one.ranks, one.step) == (row.ranks, row.step)}
    return len(like) >= sum(1 for rank in row.ranks if rank >= 0 and rank not in images)
