"""Main threads for a simulated world: the worker's runtime around a script, as generators that
yield where they wait.

    ("sleep", s)          compute          ("plan", g)    wait for a plan of a generation above g
    ("collective", None)  in a collective  ("build", p)   building the group of plan p
    ("barrier", None)       with all others, at the end of a step: see shortcuts/skip_ahead.py

Follows runtime/worker/{membership,attach,transaction,block,survivor,rehearsal,run}.py; what they do
with tensors is here one number: the step that the state in memory is of (`Process.content`).
"""

from __future__ import annotations

from outlast.engine.protocol.outputs import Output
from outlast.model import limits
from outlast.model.booking import Book
from outlast.model.messages import IMAGE, Checkpointed, Hello, Parked, Refused, Regroup, Warned
from outlast.model.terms import Cause, Phase
from outlast.sim.durations import APPLY_MOST_S, APPLY_S, BODY_SPREAD_S, SEAL_MOST_S, SEAL_S
from outlast.sim.rules.observations import Arrived, MadeAnew, Restored
from outlast.sim.world.disk import step_of
from outlast.sim.world.node import Script
from outlast.sim.world.processes import TORN, Died, PeerFailure, Process, Reenter, Thread, UserError
from outlast.sim.world.world import World

NOTES = {
    "respawn": (
        "collectives before run.steps, outside outlast.main: all ranks come anew after each fault"
    )
}
INEXACT = "not bit-exact: the order in which gradients are summed may differ"
LOOK_S = 0.05  # one that waits for its own thread looks this often whether it is to leave


def script_of(way: str) -> Script:
    """The main thread of a script that goes on in that way (see options.WAYS)."""
    if way == "plain":
        return lambda world, process: Main(world, process, way="plain", has_main=False).run_plain()
    has_main = way in ("reenter", "sharded")
    return lambda world, process: Main(
        world, process, way="reenter" if has_main else way, has_main=has_main
    ).run()


class Main:
    def __init__(self, world: World, process: Process, *, way: str, has_main: bool) -> None:
        self.world, self.p, self.way, self.has_main = world, process, way, has_main
        self.node, self.machine = process.node, process.machine
        self.sharded = world.options.way == "sharded"
        self.reached_steps = False
        self.warm = False  # it has done a step: compiled, allocated
        self.stopping = False  # a rank was asked to stop, and all know
        # pieces of its own code behind the newest step that the script is past: see Options.pieces
        self.past = 0

    # --- the process ---

    def run(self) -> Thread:
        try:
            yield from self.life()
            yield from self.mark("epilogue", user=True)
            yield "sleep", self.world.lasting(self.p, 0.001, 0.05)
        except Died:
            return 0
        except (UserError, PeerFailure) as error:
            self.machine.born_in(self.p.generation)
            self.broke(error)
            yield "sleep", 0.002
            return 1
        return 0

    def life(self) -> Thread:
        yield from self.mark("boot")
        yield "sleep", self.world.lasting(self.p, 0.01, 0.03)
        self.node.tell(self.p, Hello(self.p.worker, self.p.pid))
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
                plan = yield from self.cut_short(error)
                if self.reached_steps:
                    yield from self.settle(plan)
                    if plan.donate:
                        yield from self.donate(plan)
            self.reached_steps = False
            self.p.content = -1
            yield from self.reenter()

    def run_plain(self) -> Thread:
        """A group by the store's port, a barrier a step, from the beginning each time."""
        try:
            yield from self.mark("boot")
            yield "sleep", 0.02
            self.node.tell(self.p, Hello(self.p.worker, self.p.pid))
            plan: Regroup = yield "plan", 0
            yield "build", plan
            for _ in range(self.world.options.steps):
                yield from self.mark("body")
                self.node.heard_s[self.p.worker] = self.node.now_s  # it prints the loss
                yield "sleep", 0.02
                yield "collective", None
            yield from self.mark("epilogue")
        except Died:
            return 0
        except (UserError, PeerFailure):
            return 1
        return 0

    def mark(self, name: str, *, user: bool = False) -> Thread:
        self.world.passes(self.p, name)
        if not self.p.alive:
            raise Died
        if self.p.stopped or self.p.hung:
            yield "sleep", 0.0
        if user or name in ("setup", "body", "reduced", "applied"):
            self.user_code()

    def user_code(self) -> None:
        error, self.p.error = self.p.error, ""
        if error == "refused":
            self.node.tell(self.p, Refused(self.p.worker, error, 1))
        if error:
            raise UserError(error)

    def look_at_lease(self) -> None:
        """Before a vote, a seal, a restore, a commit."""
        if not self.node.lends(self.p):
            for one in self.p.each():
                self.world.strikes.fenced(one)
            self.node.end(self.p, limits.ORPHAN_EXIT_CODE, None)
            raise Died

    def do(self, outputs: list[Output] | None) -> None:
        for output in outputs or ():
            self.node.carry_out_in(self.p, output)

    # --- membership ---

    def join(self) -> Thread:
        self.world.enter(self.p, Phase.SETUP)
        yield from self.mark("join")
        if self.p.rank >= 0:
            yield from self.get_in()
        self.register("reenter" if self.has_main else "respawn")

    def park(self) -> Thread:
        self.world.enter(self.p, Phase.PARKED)
        self.node.tell(self.p, Parked(self.p.worker, self.p.kind))
        yield from self.mark("parked")
        plan = yield "plan", 0
        self.p.beacon.rank = plan.rank
        self.p.book = Book(now_s=self.world.now_s, cause=Cause.REGROUP)
        self.world.enter(self.p, Phase.PARKED)

    def get_in(self) -> Thread:
        while True:
            plan: Regroup = yield "plan", 0
            self.p.beacon.rank = plan.rank
            if plan.replicated == "donor":
                self.machine.detach()
                return
            if self.machine.plan is not plan:
                continue
            self.machine.follow()
            self.world.enter(self.p, Phase.REGROUP)
            try:
                yield from self.build(plan)
            except PeerFailure as error:
                yield from self.cut_short(error)
                continue
            self.world.enter(self.p, Phase.SETUP)
            return

    def register(self, way: str) -> None:
        self.do(
            self.machine.register(
                way=way,
                sharded=self.sharded and self.reached_steps,
                exact=True,
                note=NOTES.get(self.way, "") if self.reached_steps else "",
                at_steps=self.reached_steps,
            )
        )

    def build(self, plan: Regroup) -> Thread:
        self.do(self.machine.underway(place=2))
        self.world.collectives.leave(self.p)
        try:
            yield "build", plan
        except PeerFailure:
            self.world.collectives.leave(self.p)  # there is no group that was half built
            raise

    def reenter(self) -> Thread:
        self.machine.forget_state()
        self.world.enter(self.p, Phase.REGROUP, cause=Cause.REGROUP)
        yield from self.get_in()
        self.world.enter(self.p, Phase.SETUP, cause=Cause.RESTORE)

    def broke(self, error: Exception) -> None:
        victim = self.machine.broken or isinstance(error, PeerFailure)
        mechanism, unreached = (
            "collective" if victim else "exception",
            getattr(error, "unreached", ()),
        )
        self.do(
            self.machine.broke(
                mechanism=mechanism,
                error=str(error),
                traceback="traceback",
                now_s=self.node.now_s,
                unreached=unreached,
            )
        )

    def stand_still(self, *, in_hook: bool) -> Thread:
        seen = self.machine.generation
        yield from self.mark("still")
        self.world.enter(self.p, Phase.WAIT)
        self.p.in_hook = in_hook
        self.do(self.machine.stand_still(in_hook=in_hook))
        plan = yield "plan", seen
        self.world.enter(self.p, Phase.REGROUP)
        return plan

    def cut_short(self, error: Exception, *, in_hook: bool = False) -> Thread:
        """As Membership.cut_short: say so, and stand still for the plan of the next generation."""
        self.broke(error)
        return (yield from self.stand_still(in_hook=in_hook))

    # --- attaching ---

    def function(self) -> Thread:
        yield from self.mark("setup")
        yield "sleep", self.world.lasting(self.p, 0.005, 0.05)
        if self.p.rank < 0:
            yield from self.park()
            yield from self.get_in()
        self.reached_steps = True
        self.stopping = False
        yield from self.attach()
        yield from self.steps()

    def attach(self) -> Thread:
        self.world.enter(self.p, Phase.REGROUP, cause=Cause.RESTORE)
        while True:
            plan = yield from self.newest_plan()
            self.do(self.machine.underway(place=1 if self.p.group is None else 3))
            try:
                if self.p.group is None:
                    yield from self.mark("grouping")
                    yield from self.build(plan)
                yield from self.restore(plan)
                yield from self.ready(plan)
                return
            except PeerFailure as error:
                self.broke(error)
                self.world.collectives.leave(self.p)
                yield from self.stand_still(in_hook=False)
                plan = yield "plan", 0
                if self.machine.begins_anew(plan, reenters=self.has_main):
                    raise Reenter from None

    def newest_plan(self) -> Thread:
        """As Session.take_plan: the newest, or wait."""
        while True:
            plan = yield "plan", -1
            if self.machine.plan is plan:
                self.machine.follow()
                return plan

    def restore(self, plan: Regroup) -> Thread:
        self.world.enter(self.p, Phase.REGROUP, cause=Cause.RESTORE)
        yield from self.mark("restoring")
        yield "sleep", self.world.lasting(self.p, 0.002, 0.01)
        self.look_at_lease()
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
        if plan.private == "slot":
            self.reads("slots", plan, tuple(sorted(self.node.slots.get(self.p.rank, {}).values())))
        if plan.private == "none" and plan.then == "start":
            self.begins_anew(plan)
        if plan.private == "checkpoint":
            yield from self.read_checkpoint(plan)
        self.comes_to(plan)
        whole = plan.replicated != "none" or (self.sharded and plan.private == "slot")
        # what the script makes is the state before the first step
        self.p.holds(plan.step if whole else 0)

    def comes_to(self, plan: Regroup) -> None:
        """Where the script stands when the rank is in.

        A replayed step ends at its own end, or in front of the first phase that the others have not
        done.
        """
        pieces, image = self.world.options.pieces(plan.step), self.world.transfer
        if plan.replay:
            self.past = 0 if plan.finish else min(1 + plan.phases, pieces)
        else:
            self.past = pieces if plan.step else 1
        self.p.ran = (
            image[3]
            if self.way == "in_place"
            and plan.step
            and plan.replicated == "donor"
            and image is not None
            else self.past
        )

    def begins_anew(self, plan: Regroup) -> None:
        """With private state as the script makes it.

        A rank that has moved does not look for what it left.
        """
        host, slots = self.world.host, self.node.slots if self.world.options.nodes == 1 else {}
        read = (plan.step, host.epoch) == host.read
        for one in self.p.each():
            self.world.see(
                MadeAnew(
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

    def arrives(self, plan: Regroup) -> None:
        for one in self.p.each():
            self.world.see(
                Arrived(one.worker, one.rank, plan.generation, plan.step, self.p.content)
            )

    def reach_image(self) -> Thread:
        """The transfer image may lie on another node."""
        until_s = self.world.now_s + limits.GROUP_CONNECT_S
        while (
            self.world.transfer is not None
            and self.world.paths.heals_s(self.node, self.world.transfer[2]) > self.world.now_s
        ):
            if self.world.now_s >= until_s:
                raise PeerFailure("the transfer image cannot be reached", (IMAGE,))
            yield "sleep", limits.TICK_S
            self.look_at_lease()
            self.check_lives()

    def read_checkpoint(self, plan: Regroup) -> Thread:
        """Its own shard, and rank 0's.

        Checksums are verified: what does not match them is an error of this process.
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
        if plan.step not in self.node.slots.get(self.p.rank, {}).values():
            yield from self.seal(plan.step)
        if self.sharded:
            self.machine.now_sealed(steps=self.sealed())
        self.register(self.way)
        if self.world.options.warns:
            self.node.tell(self.p, Warned(self.p.worker, INEXACT))
        self.joined(plan)

    def forget_after(self, step: int) -> None:
        """Images of later steps are of a past that was rolled back."""
        slots = self.node.slots.get(self.p.rank, {})
        for slot in [slot for slot, later in slots.items() if later > step]:
            del slots[slot]

    def check_lives(self) -> None:
        if self.p.group is None:
            raise PeerFailure("woken while it restored")

    def joined(self, plan: Regroup) -> None:
        self.p.high_water = max(self.p.high_water, plan.high_water)
        self.arrives(plan)
        self.do(self.machine.joined(plan, group_s=0.0, restore_s=0.0))
        self.world.passes(self.p, "joined")
        if not self.p.alive:
            raise Died
        self.world.enter(self.p, Phase.BETWEEN, cause=Cause.OTHER)

    def sealed(self) -> tuple[int, ...]:
        return tuple(sorted(self.node.slots.get(self.p.rank, {}).values(), reverse=True))

    def seal(self, step: int) -> Thread:
        slots = self.node.slots.setdefault(self.p.rank, {})
        slots.pop(step % 2, None)
        yield from self.mark("sealing")
        yield "sleep", self.world.lasting(self.p, SEAL_S, SEAL_MOST_S)
        self.look_at_lease()
        slots[step % 2] = step

    # --- steps ---

    def steps(self) -> Thread:
        while True:
            self.runs_own(1)
            pieces = self.world.options.pieces(self.machine.committed)
            if self.past < pieces and not self.machine.phases:
                yield from self.phase()
                continue
            self.runs_own(pieces)
            if self.world.skip_ahead.is_barrier(self.machine.committed):
                yield from self.barrier()
            self.machine.now_begun(over=self.is_over())
            if not self.is_over():
                self.world.asks_for_step(self.machine.committed + 1)
            if self.machine.broken:
                plan = yield from self.stand_still(in_hook=False)
                yield from self.follow(plan)
                continue
            if self.is_over():
                if (yield from self.close()) and (yield from self.hand_over()):
                    break
                continue
            yield from self.step(self.machine.committed + 1)
        self.world.enter(self.p, Phase.EPILOGUE, cause=Cause.SHUTDOWN)
        yield from self.mark("finishing")
        self.do(self.machine.finished(stopped=self.stopping))
        while self.world.now_s < self.p.saves_until_s:
            yield "sleep", self.p.saves_until_s - self.world.now_s

    def runs_own(self, pieces: int) -> None:
        """Its code behind the newest step, as far as the end of so many pieces.

        It may change state.
        """
        self.machine.now_past_block()
        self.p.ran += max(0, pieces - self.past)
        self.past = max(self.past, pieces)

    def barrier(self) -> Thread:
        before = self.machine.committed
        yield "barrier", None
        if self.machine.committed > before:
            self.past = self.p.ran = self.world.options.pieces(self.machine.committed)

    def is_over(self) -> bool:
        return self.machine.committed >= self.world.options.steps or self.stopping

    def vote(self) -> Thread:
        """As Poll: who comes through knows whether anybody was asked to stop."""
        group, number = self.p.group, self.p.collectives
        if group is not None and self.machine.stop is not None:
            group.stops.add(number)
        yield "collective", None
        self.stopping = self.stopping or (group is not None and number in group.stops)

    def phase(self) -> Thread:
        """As `run.phase`: over for everybody, or begun again.

        A successor, which joins where its peers wait, comes to it as they do.
        """
        self.world.enter(self.p, Phase.EVALUATION, cause=Cause.EVALUATION)
        yield from self.mark("phase")
        try:
            yield from self.vote()
        except PeerFailure as error:
            yield from self.follow((yield from self.cut_short(error)))
        else:
            self.machine.now_past_phase()
            self.world.enter(self.p, Phase.BETWEEN, cause=Cause.OTHER)

    def step(self, number: int) -> Thread:
        p, world = self.p, self.world
        held: Regroup | None = None
        p.book.begin_step(now_s=world.now_s)
        p.step_began_s = world.now_s
        try:
            world.enter(p, Phase.BODY)
            p.in_body = True
            yield from self.mark("body")
            yield (
                "sleep",
                world.lasting(p, world.options.step_s, world.options.step_s + BODY_SPREAD_S)
                + self.warming_up(),
            )
            yield "collective", None
            yield from self.mark("reduced")
            p.in_body = False
            yield from self.seal_prepared(number)
            world.enter(p, Phase.VOTE)
            yield from self.mark("voting")
            self.look_at_lease()
            try:
                yield from self.vote()
            except PeerFailure as error:
                held = yield from self.cut_short(error, in_hook=True)
                if held.settle != "forward":
                    raise
            else:
                self.machine.now_passed(step=number)
                yield from self.mark("passed")
            world.enter(p, Phase.APPLY)
            before, p.content = p.content, TORN
            yield "sleep", world.lasting(p, APPLY_S, APPLY_MOST_S)
            # the block's tail is the script's: parameters are of this step, schedulers of the last
            yield from self.mark("applied")
            p.holds(before + 1)
        except (UserError, PeerFailure) as error:
            p.in_body = False
            # it failed while it was applied: the plan cannot be followed any more
            if held is None or held.settle == "forward":
                held = yield from self.cut_short(error)
            yield from self.follow(held)
            return
        yield from self.commit(number, held)

    def warming_up(self) -> float:
        """What the first step of a process takes longer: it compiles, and allocates."""
        cold, self.warm = not self.warm, True
        return (
            self.world.lasting(self.p, 0.0, self.world.options.first_step_s)
            if cold and self.world.options.first_step_s
            else 0.0
        )

    def seal_prepared(self, number: int) -> Thread:
        if not self.sharded:
            yield from self.seal(number)
        self.machine.now_prepared(step=number)
        yield from self.mark("prepared")

    def commit(self, number: int, held: Regroup | None) -> Thread:
        if self.sharded:
            self.world.enter(self.p, Phase.SNAPSHOT, cause=Cause.STALL)
            yield from self.seal(number)
            self.machine.now_sealed(steps=self.sealed())
        self.look_at_lease()
        if held is None or held.settle == "forward":
            self.world.has_committed(self.p, number)
        self.past = self.p.ran = 0
        self.do(self.machine.now_committed(step=number, now_s=self.node.now_s))
        self.p.book.commit_step(
            now_s=self.world.now_s, first=number > self.p.high_water, then=Cause.OTHER
        )
        self.world.enter(self.p, Phase.BETWEEN)
        yield from self.mark("committed")
        every = self.world.options.checkpoint_every
        if every and (number % every == 0 or self.stopping):
            yield from self.save(number)
        if held is not None:
            yield from self.follow(held)

    def save(self, step: int) -> Thread:
        """As Checkpoints.save: copied now, written by a thread.

        If the save before is still being written that is waited for, unless there is a regroup.
        """
        self.world.enter(self.p, Phase.CHECKPOINT, cause=Cause.STALL)
        yield from self.mark("saving")
        while self.world.now_s < self.p.saves_until_s and not self.machine.broken:
            yield "sleep", min(LOOK_S, self.p.saves_until_s - self.world.now_s)
        if self.machine.broken:
            error = "given up for a regroup"
            self.node.tell(
                self.p,
                Checkpointed(
                    self.p.worker, self.machine.generation, self.p.rank, step, "", 0, "", error
                ),
            )
        else:
            yield "sleep", self.world.disks.copy_s()
            self.world.disks.write_shard(self.p, step)
            yield from self.mark("saved")
        self.world.enter(self.p, Phase.BETWEEN, cause=Cause.OTHER)

    # --- after a fault ---

    def follow(self, plan: Regroup) -> Thread:
        while True:
            try:
                yield from self.settle(plan)
                yield from self.mark("settled")
                if plan.donate:
                    yield from self.donate(plan)
                if plan.then == "exit":
                    while True:
                        yield "sleep", 3600.0
                if plan.then == "reenter":
                    raise Reenter
                yield from self.mark("grouping")
                yield from self.build(plan)
                self.joined(plan)
                return
            except PeerFailure as error:
                plan = yield from self.cut_short(error)

    def begins_image(self, step: int) -> None:
        """It is written over the one that is there, or beside that if it is of the same step."""
        there = self.world.transfer
        self.world.transfer, self.world.transfer_died = (
            there if there is not None and there[1] == step else None,
            False,
        )

    def settle(self, plan: Regroup) -> Thread:
        yield "sleep", self.world.lasting(self.p, 0.0005, 0.002)
        # some came through a vote that said so, some may not have: all go on together
        self.stopping = False
        fault_s, detected_s = (
            None if at_s is None else self.node.world_s(at_s)
            for at_s in (plan.fault_s, plan.detected_s)
        )
        self.p.book.roll_back(
            now_s=self.world.now_s, fault_s=fault_s, detected_s=detected_s, then=Cause.REGROUP
        )

    def donate(self, plan: Regroup) -> Thread:
        self.look_at_lease()
        self.begins_image(plan.step)
        yield from self.mark("donating")
        yield "sleep", self.world.lasting(self.p, 0.001, 0.01)
        self.look_at_lease()
        self.arrives(plan)
        self.world.transfer = (plan.generation, plan.step, self.node, self.p.ran)
        self.do(self.machine.donated(step=plan.step))

    # --- the end ---

    def close(self) -> Thread:
        self.world.enter(self.p, Phase.VOTE)
        yield from self.mark("closing")
        try:
            yield from self.vote()
        except PeerFailure as error:
            yield from self.follow((yield from self.cut_short(error)))
            return False
        return True

    def hand_over(self) -> Thread:
        """Nobody leaves run.steps before the final state lies in the vault."""
        if self.sharded or self.stopping:
            return True
        if self.p.rank == 0:
            self.world.enter(self.p, Phase.CHECKPOINT)
            self.begins_image(self.machine.committed)
            yield "sleep", self.world.lasting(self.p, 0.001, 0.01)
            self.world.transfer = (
                self.machine.generation,
                self.machine.committed,
                self.node,
                self.p.ran,
            )
            self.do(self.machine.donated(step=self.machine.committed))
        return (yield from self.close())
