"""Main threads for a simulated world: the worker's runtime around a script, as generators that yield where they wait.

    ("sleep", s)          compute          ("plan", g)    wait for a plan of a generation above g
    ("collective", None)  in a collective  ("build", p)   building the group of plan p

Follows runtime/worker/{membership,attach,transaction,block,survivor,rehearsal,run}.py; what they do with tensors is here one number: the step that
the state in memory is of (`Process.content`).
"""

from __future__ import annotations

from outlast.engine.protocol.outputs import Output
from outlast.model.booking import Book
from outlast.model.messages import Hello, Parked, Refused, Regroup
from outlast.model.terms import Cause, Phase
from outlast.sim.node import Script
from outlast.sim.observations import Arrived, Restored
from outlast.sim.processes import TORN, Died, PeerFailure, Process, Reenter, Thread, UserError
from outlast.sim.world import World


def script_of(way: str) -> Script:
    """The main thread of a script that goes on in that way (see options.WAYS)."""
    if way == "plain":
        return lambda world, process: Main(world, process, way="plain", has_main=False).run_plain()
    has_main = way in ("reenter", "sharded")
    return lambda world, process: Main(world, process, way="reenter" if has_main else way, has_main=has_main).run()


class Main:
    def __init__(self, world: World, process: Process, *, way: str, has_main: bool) -> None:
        self.world, self.p, self.way, self.has_main = world, process, way, has_main
        self.node, self.machine = process.node, process.machine
        self.sharded = world.options.way == "sharded"
        self.reached_steps = False
        self.warm = False  # it has done a step: compiled, allocated
        self.high_water = 0  # the newest step ever executed: again books as repeated

    # --- the process ---

    def run(self) -> Thread:
        try:
            yield from self.life()
            yield from self.mark("epilogue", user=True)
            yield "sleep", self.world.lasting(0.001, 0.05)
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
        yield "sleep", self.world.lasting(0.01, 0.03)
        self.node.tell(self.p, Hello(self.p.worker, 1000 + self.p.worker))
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
            self.node.tell(self.p, Hello(self.p.worker, 1000 + self.p.worker))
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
        self.do(self.machine.register(way=way, sharded=self.sharded and self.reached_steps, exact=True, note=""))

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
        self.do(self.machine.broke(mechanism="collective" if victim else "exception", error=str(error), traceback="traceback", now_s=self.node.now_s))

    def stand_still(self, *, in_hook: bool) -> Thread:
        seen = self.machine.generation
        yield from self.mark("still")
        self.world.enter(self.p, Phase.WAIT)
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
        yield "sleep", self.world.lasting(0.005, 0.05)
        if self.p.rank < 0:
            yield from self.park()
            yield from self.get_in()
        self.reached_steps = True
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
        yield "sleep", self.world.lasting(0.002, 0.01)
        self.check_lives()
        if plan.replicated in ("donor", "transfer"):
            if self.world.transfer is None and self.world.transfer_died:
                raise PeerFailure("the node with the transfer image is gone")
            generation, step = self.world.transfer[:2] if self.world.transfer is not None else (-1, -1)
            there = step >= 0 and (plan.replicated == "transfer" or generation == plan.generation)
            self.world.see(Restored(self.p.worker, self.p.rank, "transfer image", plan.step, (step,) if there else ()))
        if plan.private == "slot":
            self.world.see(Restored(self.p.worker, self.p.rank, "slots", plan.step, tuple(sorted(self.node.slots.get(self.p.rank, {}).values()))))
        whole = plan.replicated != "none" or (self.sharded and plan.private == "slot")
        self.p.holds(plan.step if whole else 0)  # what the script makes is the state before the first step

    def ready(self, plan: Regroup) -> Thread:
        slots = self.node.slots.setdefault(self.p.rank, {})
        for slot in [slot for slot, step in slots.items() if step > plan.step]:
            del slots[slot]
        if plan.step not in slots.values():
            yield from self.seal(plan.step)
        if self.sharded:
            self.machine.now_sealed(steps=self.sealed())
        self.register(self.way)
        self.joined(plan)

    def check_lives(self) -> None:
        if self.p.group is None:
            raise PeerFailure("woken while it restored")

    def joined(self, plan: Regroup) -> None:
        self.high_water = max(self.high_water, plan.high_water)
        self.world.see(Arrived(self.p.worker, self.p.rank, plan.generation, plan.step, self.p.content))
        self.do(self.machine.joined(step=plan.step, group_s=0.0, restore_s=0.0))
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
        yield "sleep", self.world.lasting(0.0005, 0.005)
        slots[step % 2] = step

    # --- steps ---

    def steps(self) -> Thread:
        while True:
            if self.machine.committed == self.world.options.phase_after and not self.machine.phases:
                yield from self.phase()
                continue
            self.machine.now_begun(over=self.machine.committed >= self.world.options.steps or self.machine.stop is not None)
            if self.machine.broken:
                plan = yield from self.stand_still(in_hook=False)
                yield from self.follow(plan)
                continue
            if self.machine.committed >= self.world.options.steps or self.machine.stop is not None:
                if (yield from self.close()) and (yield from self.hand_over()):
                    break
                continue
            yield from self.step(self.machine.committed + 1)
        self.world.enter(self.p, Phase.EPILOGUE, cause=Cause.SHUTDOWN)
        yield from self.mark("finishing")
        self.do(self.machine.finished(stopped=self.machine.stop is not None))

    def phase(self) -> Thread:
        """As `run.phase`: over for everybody, or begun again. A successor, which joins where its peers wait, comes to it as they do."""
        self.world.enter(self.p, Phase.EVALUATION, cause=Cause.EVALUATION)
        yield from self.mark("phase")
        try:
            yield "collective", None
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
            yield "sleep", world.lasting(0.01, 0.03) + self.warming_up()
            yield "collective", None
            yield from self.mark("reduced")
            p.in_body = False
            yield from self.seal_prepared(number)
            world.enter(p, Phase.VOTE)
            yield from self.mark("voting")
            try:
                yield "collective", None
            except PeerFailure as error:
                held = yield from self.cut_short(error, in_hook=True)
                if held.settle != "forward":
                    raise
            else:
                self.machine.now_passed(step=number)
                yield from self.mark("passed")
            world.enter(p, Phase.APPLY)
            before, p.content = p.content, TORN
            yield "sleep", world.lasting(0.001, 0.005)
            yield from self.mark("applied")  # the block's tail is the script's: parameters are of this step, schedulers of the last
            p.holds(before + 1)
        except (UserError, PeerFailure) as error:
            p.in_body = False
            if held is None or held.settle == "forward":  # it failed while it was applied: the plan cannot be followed any more
                held = yield from self.cut_short(error)
            yield from self.follow(held)
            return
        yield from self.commit(number, held)

    def warming_up(self) -> float:
        """What the first step of a process takes longer: it compiles, and allocates."""
        cold, self.warm = not self.warm, True
        return self.world.lasting(0.0, self.world.options.first_step_s) if cold and self.world.options.first_step_s else 0.0

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
        if held is None or held.settle == "forward":
            self.world.has_committed(self.p, number)
        self.do(self.machine.now_committed(step=number, now_s=self.node.now_s))
        self.p.book.commit_step(now_s=self.world.now_s, first=number > self.high_water, then=Cause.OTHER)
        self.world.enter(self.p, Phase.BETWEEN)
        yield from self.mark("committed")
        if held is not None:
            yield from self.follow(held)

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

    def settle(self, plan: Regroup) -> Thread:
        yield "sleep", self.world.lasting(0.0005, 0.002)
        fault_s, detected_s = (None if at_s is None else self.node.world_s(at_s) for at_s in (plan.fault_s, plan.detected_s))
        self.p.book.roll_back(now_s=self.world.now_s, fault_s=fault_s, detected_s=detected_s, then=Cause.REGROUP)

    def donate(self, plan: Regroup) -> Thread:
        self.world.transfer, self.world.transfer_died = None, False
        yield from self.mark("donating")
        yield "sleep", self.world.lasting(0.001, 0.01)
        self.world.see(Arrived(self.p.worker, self.p.rank, plan.generation, plan.step, self.p.content))
        self.world.transfer = (plan.generation, plan.step, self.node)
        self.do(self.machine.donated(step=plan.step))

    # --- the end ---

    def close(self) -> Thread:
        self.world.enter(self.p, Phase.VOTE)
        yield from self.mark("closing")
        try:
            yield "collective", None
        except PeerFailure as error:
            yield from self.follow((yield from self.cut_short(error)))
            return False
        return True

    def hand_over(self) -> Thread:
        """Nobody leaves run.steps before the final state lies in the vault."""
        if self.sharded or self.machine.stop is not None:
            return True
        if self.p.rank == 0:
            self.world.enter(self.p, Phase.CHECKPOINT)
            self.world.transfer = None
            yield "sleep", self.world.lasting(0.001, 0.01)
            self.world.transfer = (self.machine.generation, self.machine.committed, self.node)
            self.do(self.machine.donated(step=self.machine.committed))
        return (yield from self.close())
