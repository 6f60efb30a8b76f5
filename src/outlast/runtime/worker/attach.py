"""Between a rank's state and the vault: what is sealed when, and where state comes from when a rank attaches or is healed.

Under replicated state a rank's image holds its private state only, sealed before the vote of the step, and again where the script
has moved any of it by the time the next step or a phase begins. Under sharded state it holds the shards as well, and is sealed when
the next step begins. So what a rank's state is when a step begins is what its successor begins that step with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
from torch.nn.parallel import DistributedDataParallel

from outlast.errors import CorruptError, DivergedError, Reenter
from outlast.model.limits import SLOTS_COUNT
from outlast.model.messages import Regroup
from outlast.model.terms import Cause, Phase
from outlast.runtime import clock
from outlast.runtime.tiers.image import Image, Piece, TensorSpec
from outlast.runtime.worker import ddp, sameness
from outlast.runtime.worker.checkpoints import Checkpoints, load_checkpoint
from outlast.runtime.worker.membership import Membership
from outlast.runtime.worker.place import BEGUN, PREPARED, Place, best
from outlast.runtime.worker.private import described
from outlast.runtime.worker.state import State
from outlast.runtime.worker.tensors import Pieces, to_tensor, view_of
from outlast.runtime.worker.undo import Undo

_PRIVATE, _SHARED, _MOVERS, _TEXT = "private/", "shared/", "movers/", "text"
_SLACK = 1.25  # loader positions and tree texts may grow
_SLACK_BYTES = 256 << 10


class Attachment:
    """Made with run.steps; `attach` is its first act. `high_water` is the newest step that this rank has committed before: doing it again books as repeated."""

    def __init__(self, membership: Membership, state: State, *, accumulate: int) -> None:
        self.member = membership
        self.state = state
        self.replicas = [given for given in state.given.values() if isinstance(given, DistributedDataParallel)]
        self.undo = Undo(membership.session, state)
        self.accumulate = accumulate
        self._strangers: list[str] = []
        self._private, self._shared, self._movers = Pieces(), Pieces(), Pieces()
        self._watch = sameness.Watch(state)
        self._place: tuple[int, Place] | None = None  # step and place of the newest private image that this process has sealed
        self._slot = -1  # the one that holds the newest private image; the next is sealed in the other
        self._agreed: frozenset[str] = frozenset()  # movers that were the same on all ranks in the newest vote
        self.sealed = -1  # newest step whose image this rank has sealed
        self.due = -1  # newest step whose image it has to seal before anybody goes on
        self.snapshot_every = int(membership.session.spec.options.get("snapshot_every", 1)) if membership.session is not None else 1
        self.high_water = 0
        self.first_step = True
        self._leg_from = -1  # the step behind which the leg in hand began, as long as that is the newest
        self._again: tuple[Regroup, Image] | None = None  # what this process began with, if the others are in the next leg already
        self.checkpoints = Checkpoints(membership.session, self._pieces)

    # --- attaching ---------------------------------------------------------------------------------------

    def attach(self) -> int:
        """Get this rank's state to the run's step, be in its group, and say so. Returns the step."""
        member, session = self.member, self.member.session
        self.state.bind(member.rank(), member.world_size)
        if session is None:
            return 0
        session.enter(Phase.REGROUP, cause=Cause.RESTORE)
        self._reserve()
        while True:
            plan = self._plan()
            session.do(lambda machine: machine.underway(place=3 if member.has_group else 1))
            try:
                if not member.has_group:
                    self._build(plan)
                self._freeze()
                began_s = clock.now_s()
                self._restore(plan)
                self._compare_at_start(plan)
                return self._ready(plan, restore_s=clock.now_s() - began_s)
            except Exception as error:  # boundary: a peer was lost meanwhile; anything else ends this process
                if not member.is_victim(error):
                    raise
                member.broke(error)
                member.destroy()
                member.stand_still(in_hook=False)
                self._leave_if_reentering()

    def _plan(self) -> Regroup:
        """The newest plan, taken: from here on a Leave of its generation reaches the main thread."""
        session = self.member.session
        assert session is not None
        while True:
            plan = session.wait_plan(newer_than=-1)
            if session.take_plan(plan):
                return plan

    def _leave_if_reentering(self) -> None:
        """A process in which main's function runs, and which had its group from the start, begins the function anew."""
        session = self.member.session
        assert session is not None
        plan = session.wait_plan()
        if session.machine.begins_anew(plan, reenters=self.member.reenters):
            raise Reenter

    def _build(self, plan: Regroup) -> float:
        """The group of `plan`, and the replicas on it; seconds that the group took."""
        self.mark("grouping")
        group_s = self.member.build(plan)
        for wrapped in self.replicas:
            with self.member.guards.ours():
                ddp.rebuild(wrapped)
        return group_s

    def _freeze(self) -> None:
        for wrapped in self.replicas:
            with self.member.guards.ours():
                reason = ddp.freeze_buckets(wrapped)
            if reason and self.member.session is not None:
                self.member.session.warn(f"not bit-exact: {reason}")

    def _ready(self, plan: Regroup, *, restore_s: float) -> int:
        session = self.member.session
        assert session is not None
        step = plan.step
        self.high_water = plan.high_water
        session.vault.forget_after(self.member.rank(), step)
        if step in session.vault.steps(self.member.rank()):  # read from there: writing it again would leave nothing if we died meanwhile
            self._note_sealed(step)
        elif self.state.sharded:
            self.seal(step)
        else:
            self._seal_private(step, Place(BEGUN, 0))
        if not self.state.sharded:
            self.state.private.tensors()  # what moves is told from here on
        self.register()
        session.do(lambda machine: machine.joined(plan, group_s=0.0, restore_s=restore_s))
        self.mark("joined")
        session.enter(Phase.BETWEEN, cause=Cause.OTHER)
        return step

    def register(self) -> None:
        """How survivors can go on from here (trap 14)."""
        member = self.member
        notes = [reason for wrapped in self.replicas if (reason := ddp.not_rebuildable(wrapped))]
        if not self.state.sharded and member.guards.counted == 0 and not notes:
            way, note = "in_place", ""
        elif member.reenters:
            way, note = "reenter", ""
        else:
            way = "respawn"
            note = notes[0] if notes else "" if self.state.sharded else "the script makes collectives of its own before run.steps"
            note = "the ranks hold different parameters" if self.state.own else note
            note += "; put the training into a function and give it to outlast.main, so that survivors need not start anew"
        member.register(way=way, sharded=self.state.sharded, exact=True, note=note.lstrip("; ") if way == "respawn" else "")

    def mark(self, name: str) -> None:
        session = self.member.session
        assert session is not None
        session.mark(name, max(session.machine.committed, session.beacon.step))

    # --- restoring ---------------------------------------------------------------------------------------

    def _restore(self, plan: Regroup) -> None:
        session = self.member.session
        assert session is not None
        session.enter(Phase.REGROUP, cause=Cause.RESTORE)
        self.mark("restoring")
        image = None
        if plan.replicated in ("donor", "transfer"):
            generation = plan.generation if plan.replicated == "donor" else None
            image = session.vault.read_transfer(generation, plan.step)
            self.undo.take_over(image.metadata)
            self._load(image, shared=True, private=False)
            if image.metadata.get("leg_from") == str(plan.step):
                self._again = (plan, Image(image.metadata, {name: (spec, memoryview(bytes(data))) for name, (spec, data) in image.tensors.items()}))
        if plan.checkpoint:
            load_checkpoint(plan.checkpoint, self.member.rank(), self.member.world_size, self._load_parts)
        elif plan.private == "slot":
            self._load_slot(plan, image)
        for wrapped in self.replicas:
            ddp.restore_views(wrapped)

    def begin_leg(self, step: int) -> None:
        """Run.steps is called again, behind `step`.

        What the script did between the two legs it may have done to state in which it was done already: that of peers which were
        in this leg when this process came. Then what they handed over is loaded once more.
        """
        if self._again is not None and self._again[0].step == step:
            plan, image = self._again
            self._load(image, shared=True, private=False)
            self._load_slot(plan, image)
            for wrapped in self.replicas:
                ddp.restore_views(wrapped)
        self._again, self._leg_from = None, step

    def _load_slot(self, plan: Regroup, donated: Image | None) -> None:
        """Load this rank's own image. A corrupt one is struck out, and the next plan is for an older step."""
        session = self.member.session
        assert session is not None
        rank, begun = self.member.rank(), not plan.replay
        try:
            slot, image, place = best(session.vault.images(rank, plan.step), begun=begun, phases=plan.phases)
        except CorruptError as error:
            session.warn(f"rank {rank}: {error}")
            if self.state.sharded:
                session.vault.forget_step(rank, plan.step)
                session.machine.sealed = session.vault.steps(rank)
                raise
            self._load_older(plan.step)
            return
        self._slot = slot
        shared = _SHARED + _TEXT in image.tensors
        self.state.own = self.state.own or (shared and not self.state.distributed)
        self._load(image, shared=shared, private=True)
        if donated is not None and not place.is_where(begun=begun, phases=plan.phases):
            self._take_movers(donated, plan.step)

    def _take_movers(self, donated: Image, step: int) -> None:
        """This rank was lost between the vote of `step` and what comes after: what moved there is taken from the peer that hands over."""
        session = self.member.session
        assert session is not None
        unknown = self.state.private.load_movers(*_part(donated, _MOVERS, to_tensor))
        if unknown:
            what = f"rank {self.member.rank()} was lost after the vote of step {step} and before what follows it"
            session.warn(f"{what}: {described(unknown)} may have changed there and come from a peer that may differ: not bit-exact from here on")

    def _load_older(self, step: int) -> None:
        """Replicated state is whole; only this rank's random state and loader position come from an older step."""
        session = self.member.session
        assert session is not None
        for older in session.vault.steps(self.member.rank()):
            if older < step:
                self._load(session.vault.read(self.member.rank(), older), shared=False, private=True)
                for _ in range((step - older) * self.accumulate):
                    if self.state.source is not None:
                        self.state.source.next_batch()
                break
        session.warn(f"rank {self.member.rank()} goes on with the random state of an older step: not bit-exact from here on")

    def _load_parts(self, image: Image) -> None:
        """Of a checkpoint: rank 0's image comes first and holds the replicated state, then the own one."""
        self._load(image, shared=_SHARED + _TEXT in image.tensors, private=True)

    def _load(self, image: Image, *, shared: bool, private: bool) -> None:
        # Both copy what they are given; of what is private some is kept as it comes.
        if shared:
            self.state.load_shared(*_part(image, _SHARED, view_of))
        if private:
            self.state.private.load(*_part(image, _PRIVATE, to_tensor))

    # --- is replicated state the same on all ranks? ------------------------------------------------------

    def _compare_at_start(self, plan: Regroup) -> None:
        """All ranks attach together, to what the script made or a checkpoint holds: look what differs, and look again after the first step."""
        together = plan.replicated not in ("donor", "transfer") and self.member.world_size > 1
        if together and not self.state.sharded:
            self.undo.unproven = True
            self._compare(plan.step)

    def compare_after_first(self, step: int) -> None:
        """The first step is applied and not committed: what has become different by it is this rank's own, too."""
        if self.undo.unproven and not self.state.sharded:
            self._compare(step)
            if self.state.own:
                self.register()

    def _compare(self, step: int) -> None:
        with self.member.guards.ours():
            found = sameness.compare(self.state)
        if found is None:
            return
        session = self.member.session
        assert session is not None
        self.state.own = True
        for older in session.vault.steps(self.member.rank()):  # images without these tensors
            session.vault.forget_step(self.member.rank(), older)
        with self.member.refusing():
            self._reserve()
        if self.member.rank() == 0:
            mib = sum(self.state.bytes_needed()) / 2**20
            when = "from the start" if not step else f"after step {step}"
            session.warn(
                f"{found} differ between ranks {when}: each rank's parameters and optimizer state are its own, "
                f"and are sealed at each step ({mib:.1f} MiB per rank and image)"
            )

    def find_divergence(self, step: int) -> None:
        """A vote has found that ranks differ in what they watched. Raises DivergedError unless that was a false alarm."""
        with self.member.guards.ours():
            found = sameness.compare(self.state)
        if found is not None:
            alone = len(found.ranks) < self.member.world_size
            who = f"{_those(found.ranks)} differs from the others in {found}" if alone else f"all ranks hold different values of {found}"
            raise DivergedError(
                f"at step {step}, {who}, though it was the same on all ranks before",
                hint="restart from a checkpoint of an earlier step; what is meant to differ between ranks has to differ by the end of the first step",
            )

    # --- sealing -----------------------------------------------------------------------------------------

    def _reserve(self) -> None:
        session = self.member.session
        assert session is not None
        private, shared = self.state.bytes_needed()
        own = private + (shared if self.state.sharded else 0)
        session.vault.reserve(self.member.rank(), int(own * _SLACK) + _SLACK_BYTES, self.member.local_world_size)
        if not self.state.sharded and self.member.rank() % self.member.local_world_size == 0:
            session.vault.reserve_transfer(int((shared + private) * 1.02) + _SLACK_BYTES)

    def prepare(self, step: int, place: Place) -> None:
        """Before the vote: private state of `step`, sealed. Sharded state is sealed whole, when the next step begins."""
        session = self.member.session
        assert session is not None
        if not self.state.sharded:
            if place.kind != PREPARED:  # a late vote: what has moved since `note_private` is noted before that is forgotten
                self.state.private.moved()
            self._seal_private(step, place)
        session.do(lambda machine: machine.now_prepared(step=step))

    def note_private(self) -> None:
        """Note what is private now, without sealing it, to see what moves from here on."""
        if not self.state.sharded:
            self.state.private.tensors()

    def keys(self, step: int) -> tuple[float, float]:
        """Return what the vote of `step` compares: movers, and a piece of replicated state."""
        if self.state.sharded:
            return 0.0, 0.0
        watched = self._watch.key(step)
        return self.state.private.movers_key(), -watched if self.undo.on else watched

    def movers_voted(self, *, same: bool) -> None:
        """A vote has passed: the movers are the same on all ranks, or from the next step on all vote late."""
        movers = self.state.private.movers
        self._agreed = frozenset(movers) if same else frozenset()
        if movers and not same and not self.state.sharded:
            self.undo.want_for_movers()

    def settle(self, step: int, place: Place, *, last: bool) -> None:
        """The script is behind `step` and at `place`: seal what has changed since the newest image."""
        session = self.member.session
        assert session is not None
        if not self.state.sharded:
            # Where parts are known to move here at times, the image has to say that this was waited for.
            if self.state.private.moved() or (self.state.private.movers and self._place != (step, place)):
                self._seal_private(step, place)
        elif place.kind == BEGUN and self.sealed != step and not self.member.broken and self._seals_at(step, last=last):
            session.enter(Phase.SNAPSHOT, cause=Cause.STALL)
            self.seal(step)
            session.enter(Phase.BETWEEN, cause=Cause.OTHER)

    def prepare_phase(self, step: int, phases: int) -> None:
        """A phase is done here, and about to be voted on: seal what it has changed, beside what was sealed when it began."""
        if not self.state.sharded:
            self._seal_private(step, Place(PREPARED, phases))

    def forget_phase(self) -> None:
        """The phase did not pass, and was taken back: what `prepare_phase` sealed is of no time."""
        session = self.member.session
        assert session is not None
        if not self.state.sharded:
            session.vault.unseal(self.member.rank(), self._slot)
            self._slot, self._place = 1 - self._slot, None
            self.note_private()

    def _seal_private(self, step: int, place: Place) -> None:
        """Into the slot beside the newest image, so that one is whole at any time."""
        session = self.member.session
        assert session is not None
        session.mark("sealing", step)
        slot = 1 - self._slot if self._slot >= 0 else step % SLOTS_COUNT
        pieces = self._private_pieces()
        session.vault.write(self.member.rank(), generation=self.member.generation, step=step, pieces=pieces, metadata=place.metadata(), slot=slot)
        self._slot, self._place = slot, (step, place)
        self.sealed = self.due = step

    def _seals_at(self, step: int, *, last: bool) -> bool:
        """Sharded: whether `step` gets an image. `last`: no step follows it for now."""
        return last or step % self.snapshot_every == 0

    def seal(self, step: int) -> None:
        """Sharded: the whole image of `step`."""
        session = self.member.session
        assert session is not None
        session.mark("sealing", step)
        self.due = step
        rank, slot = self.member.rank(), None if self.snapshot_every == 1 else session.vault.slot_beside_newest(self.member.rank(), step)
        session.vault.write(rank, generation=self.member.generation, step=step, pieces=self._pieces(True), metadata={"step": str(step)}, slot=slot)
        self._note_sealed(step)
        session.mark("sealed", step)

    def _note_sealed(self, step: int) -> None:
        session = self.member.session
        assert session is not None
        self.sealed = self.due = step
        if self.state.sharded:
            steps = session.vault.steps(self.member.rank())
            session.do(lambda machine: machine.now_sealed(steps=steps))

    def _pieces(self, with_shared: bool) -> list[Piece]:
        return [*self._private_pieces(), *(self._shared_pieces() if with_shared else [])]

    def _private_pieces(self) -> list[Piece]:
        return _named(_PRIVATE, self._private, *self.state.private.tensors())

    def _shared_pieces(self) -> list[Piece]:
        return _named(_SHARED, self._shared, *self.state.shared_tensors())

    # --- regrouping in place -----------------------------------------------------------------------------

    def follow(self, plan: Regroup) -> None:
        """A survivor, its step settled, into the next generation. Raises Reenter where its function is to begin anew."""
        session = self.member.session
        assert session is not None
        if plan.donate:
            session.enter(Phase.REGROUP, cause=Cause.RESTORE)
            self.donate(plan)
        if plan.then == "exit":
            self.member.wait_to_be_killed()
        if plan.then == "reenter":
            raise Reenter
        session.enter(Phase.REGROUP, cause=Cause.REGROUP)
        group_s = self._build(plan)
        self.mark("grouped")
        self._freeze()
        self.high_water = max(self.high_water, plan.high_water)
        session.do(lambda machine: machine.joined(plan, group_s=group_s, restore_s=0.0))
        self.mark("joined")
        session.enter(Phase.BETWEEN, cause=Cause.OTHER)

    def donate(self, plan: Regroup) -> None:
        """Write the replicated state where those who need it find it."""
        session = self.member.session
        assert session is not None
        self.mark("donating")
        self._write_transfer(plan.generation, plan.step)

    def hand_over_at_end(self, step: int) -> None:
        """After the last step one rank leaves the final state in the vault: a rank lost from here on starts from it."""
        session = self.member.session
        assert session is not None
        if self.member.rank() == 0 and not self.state.sharded:
            self._write_transfer(self.member.generation, step)

    def _write_transfer(self, generation: int, step: int) -> None:
        session = self.member.session
        assert session is not None
        pieces = [*self._shared_pieces(), *_named(_MOVERS, self._movers, *self.state.private.movers_tensors(self._agreed))]
        session.vault.write_transfer(generation, step, pieces, {**self.undo.metadata(), "leg_from": str(self._leg_from)})
        session.do(lambda machine: machine.donated(step=step))

    # --- the first step ----------------------------------------------------------------------------------

    def watch(self, until_left: contextlib.ExitStack) -> None:
        """Look which modules run in the first step."""
        self._strangers = until_left.enter_context(self.state.watch_modules())

    def after_first_step(self) -> None:
        """What can only be seen once a step has run: modules that nobody registered."""
        self.first_step = False
        if self._strangers and self.member.session is not None:
            self.member.session.warn(f"ran in the first step, but is not in run.state(...), so its parameters would not survive: {', '.join(self._strangers)}")

    def after_rehearsal(self) -> None:
        for parameter in self.state.parameters.values():
            parameter.grad = None


def _part(image: Image, prefix: str, tensor_of: Callable[[TensorSpec, memoryview], torch.Tensor]) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the text and the tensors under `prefix`."""
    tensors = {name[len(prefix) :]: tensor_of(spec, data) for name, (spec, data) in image.tensors.items() if name.startswith(prefix) and name != prefix + _TEXT}
    return bytes(image.tensors[prefix + _TEXT][1]).decode(), tensors


def _those(ranks: tuple[int, ...]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def _named(prefix: str, views: Pieces, text: str, tensors: dict[str, torch.Tensor]) -> list[Piece]:
    """Text and tensors under `prefix`. `views` keeps what need not be made again at each step."""
    data = text.encode()
    out = [Piece(TensorSpec(prefix + _TEXT, "U8", (len(data),)), memoryview(data))]
    out += views.of((prefix + name, tensor) for name, tensor in tensors.items())
    return out
