"""The main thread of a simulated process. Its script and the driver of its commit machine share it.

A main thread is a generator. It yields what it waits for:

    ("sleep", s)          the end of a computation of s seconds
    ("collective", None)  the end of a collective
    ("plan", g)           a plan of a generation above g
    ("build", p)          the group of plan p
    ("barrier", None)     all other ranks, between two steps: see shortcuts/skip_ahead.py

A single number stands for all tensors: the step of the state in memory
(`SimulatedProcess.content`).
"""

from __future__ import annotations

from outlast.engine.commit.image_place import AT_VOTE, ScriptPosition, choose_slot
from outlast.engine.protocol.outputs import Output
from outlast.errors import StepInterrupted
from outlast.model import limits
from outlast.model.messages import Refused, Regroup
from outlast.model.terms import Cause, Phase, Waypoint
from outlast.sim.durations import SEAL_MOST_S, SEAL_S
from outlast.sim.rules.observations import GroupJoined
from outlast.sim.world.copy_sending import CopySending
from outlast.sim.world.processes import (
    Died,
    PeerFailure,
    SealedStep,
    SimulatedProcess,
    Thread,
    UserError,
)
from outlast.sim.world.world import World

USER_PLACES = ("setup", "body", "reduced", "applied")  # marks at which the script's own code runs


class MainThread:
    """The work of a process's main thread, without the script's own code.

    It replaces the membership, the session and the images of a worker's runtime.
    """

    def __init__(self, world: World, process: SimulatedProcess) -> None:
        self.world = world
        self.p = process
        self.node = process.node
        self.machine = process.machine
        self.sharded = world.options.recovery_mode == "sharded"
        self.copies = CopySending(world, process)

    # --- places, the lease, and the protocol ------------------------------------------------------

    def mark(self, name: str, *, user: bool = False) -> Thread:
        """Mark a place where a fault may strike. Raises Died, or UserError in the script."""
        self.world.passes(self.p, name)
        if not self.p.alive:
            raise Died
        if self.p.stopped or self.p.hung:
            yield "sleep", 0.0
        if user or name in USER_PLACES:
            self._user_code()

    def _user_code(self) -> None:
        error, self.p.error = self.p.error, ""
        if error == "refused":
            self.node.tell(self.p, Refused(self.p.worker, error, 1))
        if error:
            raise UserError(error)

    def exit_if_lease_is_over(self) -> None:
        """End the process before a vote, seal, restore or commit if its node's lease is over."""
        if not self.node.lends(self.p):
            for one in self.p.each():
                self.world.strikes.fenced(one)
            self.node.end(self.p, limits.ORPHAN_EXIT_CODE, None)
            raise Died

    def do(self, outputs: list[Output] | None) -> None:
        """Carry out the outputs of the protocol machine."""
        for output in outputs or ():
            self.node.carry_out_in(self.p, output)

    def enter(self, phase: Phase, *, cause: Cause | None = None) -> None:
        """Note that the main thread is in `phase` from now on."""
        self.world.enter(self.p, phase, cause=cause)

    # --- being cut short --------------------------------------------------------------------------

    def is_collateral(self, error: BaseException) -> bool:
        """Return True if `error` may be the effect of a lost peer."""
        return self.machine.broken or isinstance(error, (PeerFailure, StepInterrupted))

    def broke(self, error: BaseException) -> None:
        """Report that this rank cannot go on in this generation."""
        mechanism = "collective" if self.is_collateral(error) else "exception"
        self.do(
            self.machine.broke(
                mechanism=mechanism,
                error=str(error),
                traceback="traceback",
                now_s=self.node.now_s,
                unreached=getattr(error, "unreached", ()),
            )
        )

    def stand_still(self, *, in_hook: bool) -> Thread:
        """Report what this rank holds, and wait for the plan of the next generation."""
        seen = self.machine.generation
        yield from self.mark("still")
        self.enter(Phase.WAIT)
        self.p.in_hook = in_hook
        self.do(self.machine.stand_still(in_hook=in_hook))
        plan = yield "plan", seen
        self.enter(Phase.REGROUP)
        return plan

    def cut_short(self, error: BaseException) -> Thread:
        """Report that this rank cannot go on, and wait for the plan of the next generation."""
        self.broke(error)
        return (yield from self.stand_still(in_hook=False))

    # --- groups -----------------------------------------------------------------------------------

    def build(self, plan: Regroup) -> Thread:
        """Leave the old group, and enter the group of `plan`."""
        self.do(self.machine.underway(Waypoint.CONNECTS))
        self.world.collectives.leave(self.p)
        try:
            yield "build", plan
        except PeerFailure:
            self.world.collectives.leave(self.p)  # leave the incomplete group
            raise

    def joined(self, plan: Regroup) -> None:
        """Report that this rank is in the group of `plan`, with the state of its step."""
        self.p.high_water = max(self.p.high_water, plan.high_water)
        self.arrives(plan)
        self.do(self.machine.joined(plan, group_s=0.0, restore_s=0.0))
        self.world.passes(self.p, "joined")
        if not self.p.alive:
            raise Died
        self.enter(Phase.BETWEEN, cause=Cause.OTHER)

    def arrives(self, plan: Regroup) -> None:
        """Let the rules see the real state of this rank at the step of `plan`."""
        for one in self.p.each():
            self.world.see(
                GroupJoined(one.worker, one.rank, plan.generation, plan.step, self.p.content)
            )

    # --- images -----------------------------------------------------------------------------------

    def sealed(self) -> tuple[int, ...]:
        """Return the steps whose images are sealed in this rank's slots, the newest first."""
        return tuple(sorted(self.node.slots.get(self.p.rank, {}).values(), reverse=True))

    def seal(self, step: int, place: ScriptPosition) -> Thread:
        """Seal an image of `step`. Until that is done, its slot holds no image."""
        slots = self.node.slots.setdefault(self.p.rank, {})
        slot = step % limits.SLOTS_COUNT
        if not self.sharded:
            newest, newest_step, _ = self.p.newest
            slot = choose_slot(
                newest=newest,
                newest_step=newest_step,
                step=step,
                committed=self.machine.committed,
            )
        slots.pop(slot, None)
        yield from self.mark("sealing")
        yield "sleep", self.world.lasting(self.p, SEAL_S, SEAL_MOST_S)
        self.exit_if_lease_is_over()
        slots[slot] = SealedStep(step, place, 0 if place == AT_VOTE else self.p.own)
        self.p.newest = slot, step, place

    def unseal(self) -> None:
        """Remove the newest image, because it belongs to a phase that did not pass."""
        slot = self.p.newest[0]
        left = self.node.slots.get(self.p.rank, {})
        left.pop(slot, None)
        self.p.newest = 1 - slot, int(left.get(1 - slot, -1)), None

    def begins_image(self, step: int) -> None:
        """Begin to write a transfer image. It overwrites the old one, unless that is of `step`."""
        there = self.world.transfer
        self.world.transfer, self.world.transfer_died = (
            there if there is not None and there[1] == step else None,
            False,
        )
