"""This rank's images in the vault: what is sealed at each step, when, and in which slot.

Under replicated state an image holds private state only. It is sealed before the vote of the step,
and again before the next step or phase if the script has changed private state by then. Under
sharded state an image also holds the shards, and is sealed as the next step begins. So a successor
begins a step with the same state as its predecessor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch

from outlast.engine.commit.image_place import (
    BEGUN,
    PREPARED,
    ScriptPosition,
    choose_image,
    choose_slot,
    is_between_calls,
    place_of,
)
from outlast.errors import CorruptError
from outlast.model.manifest import Seal
from outlast.model.messages import CopyRefused, Regroup
from outlast.model.terms import Cause, Phase
from outlast.runtime.tiers.image import Image, TensorPiece, TensorSpec
from outlast.runtime.tiers.split_state import SharePart, metadata_of, split
from outlast.runtime.worker.member.membership import Membership
from outlast.runtime.worker.member.session import WorkerSession
from outlast.runtime.worker.process import devices
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.tensors.tensors import Pieces, spec_of, to_tensor, view_of

# The names of tensors in an image begin with these.
PRIVATE, SHARED, _MOVERS, _EDITED, _TEXT = "private/", "shared/", "movers/", "edited/", "text"
_STAND_IN = "stand-in/"
_PARTS = "parts"  # of the shared tensors, for a checkpoint
_SLACK = 1.25  # loader positions and tree texts may grow
_SLACK_BYTES = 256 << 10


class RankImages:
    """Seal this rank's images in the vault, and forget those that do not count any more.

    sealed   the newest step whose image is sealed; -1: there is none
    due      the newest step whose image has to be sealed before any rank goes on; -1: there is none
    """

    def __init__(self, membership: Membership, state: State) -> None:
        self.sealed = -1
        self.due = -1
        self._member = membership
        self._state = state
        self._views = {prefix: Pieces() for prefix in (PRIVATE, SHARED, _MOVERS, _EDITED, _PARTS)}
        # the slot that holds the newest private image; the next image is sealed in the other one
        self._slot = -1
        # the seal of the newest private image, as long as it still has to be confirmed
        self._seal: Seal | None = None
        # step and place of the newest private image that this process has sealed
        self._place: tuple[int, ScriptPosition] | None = None
        # the step and place that were settled last, whether or not anything had to be sealed there
        self._settled: tuple[int, ScriptPosition] | None = None
        options = membership.session.spec.options if membership.session is not None else {}
        # the number of steps from one image of sharded state to the next
        self._every = int(options.get("snapshot_every", 1))

    @property
    def _session(self) -> WorkerSession:
        assert self._member.session is not None, "only a run with a launcher seals anything"
        return self._member.session

    def reserve(self) -> tuple[int, int]:
        """Allocate room in the vault. Return the bytes of (private, shared) state.

        Raises CapacityError.
        """
        with self._member.guards.trying("a step of its class on meta tensors"):
            private, shared = self._state.bytes_needed()
        own = private + (shared + len(self._state.layout.data) if self._state.sharded else 0)
        vault, rank = self._session.vault, self._member.rank()
        local_world_size = self._member.local_world_size
        vault.reserve(rank, int(own * _SLACK) + _SLACK_BYTES, local_world_size)
        if torch.cuda.is_initialized():
            for slot in vault.memory(rank):
                devices.pin(slot)
        if not self._state.sharded and self._member.local_rank() == 0:
            vault.reserve_transfer(int((shared + private) * 1.02) + _SLACK_BYTES)
        return private, shared

    # --- at the vote, and after it ----------------------------------------------------------------

    def prepare(self, step: int, place: ScriptPosition) -> None:
        """Seal the private state of `step`, before its vote.

        Sharded state is sealed whole, when the next step begins.
        """
        if not self._state.sharded:
            # At a late vote, find out what has moved since `note_private`, before the seal resets
            # what that is compared with.
            if place.kind != PREPARED:
                self._state.private.moved()
            self._seal_private(step, place)

    def put_off(self, step: int) -> None:
        """Forget what `prepare` may have sealed of `step`: it votes late, and is sealed then."""
        if self.sealed == step:
            self._forget_newest()
            self.sealed = self.due = step - 1

    def note_private(self) -> None:
        """Note the private state as it is now, to see later what has moved since."""
        if not self._state.sharded:
            self._state.private.tensors()

    def settle(self, step: int, place: ScriptPosition, *, due: bool) -> None:
        """Seal what has changed since the newest image. The script is after `step`, at `place`.

        due   sharded state is sealed now, although the run may seal less often
        """
        if not self._state.sharded:
            before, self._settled = self._settled, (step, place)
            moved = self._state.private.moved(
                after_phase=place.phases > 0,
                between_calls=is_between_calls(before, (step, place)),
            )
            # Seal if something moved here. Seal also if parts are known to move here at times: the
            # image then says that they had their chance to.
            if moved or (self._state.private.movers and self._place != (step, place)):
                self._seal_private(step, place)
            elif self._seal is not None and self._seal.step == step:
                # Nothing changes on this rank. On a peer, parts may change, so note in the seal
                # that this image is still right at this place.
                self._session.exit_if_lease_is_over()
                self._session.vault.confirm(self._member.rank(), self._slot, self._seal)
                self._seal = None
        elif (
            place.kind == BEGUN
            and self.sealed != step
            and not self._member.broken
            and (due or step % self._every == 0)
        ):
            self._session.enter(Phase.SNAPSHOT, cause=Cause.STALL)
            self._seal_whole(step)
            self._session.enter(Phase.BETWEEN, cause=Cause.OTHER)

    def prepare_phase(self, step: int, phases: int) -> None:
        """Seal what a phase has changed, before the vote on it.

        It is sealed beside the image that was sealed when the phase began.
        """
        if not self._state.sharded:
            self._seal_private(step, ScriptPosition(PREPARED, phases))

    def forget_phase(self) -> None:
        """Forget what `prepare_phase` sealed: the phase did not pass, and was taken back."""
        if not self._state.sharded:
            self._forget_newest()

    def _forget_newest(self) -> None:
        self._session.vault.unseal(self._member.rank(), self._slot)
        self._slot, self._place, self._seal = 1 - self._slot, None, None
        self.note_private()

    # --- when a rank attaches ---------------------------------------------------------------------

    def begin(self, step: int) -> None:
        """Make sure that an image of `step` is sealed: the state is restored to it.

        Images of later steps are forgotten, because those steps were rolled back.
        """
        vault, rank = self._session.vault, self._member.rank()
        vault.forget_after(rank, step)
        if step in vault.steps(rank):
            # It is not sealed again: a rank that died while it wrote would leave no image.
            self._note_sealed(step)
        elif self._state.sharded:
            self._seal_whole(step)
        else:
            self._seal_private(step, ScriptPosition(BEGUN, 0))
        self.note_private()

    def read_from(self, slot: int) -> None:
        """Note that the newest private image is in `slot`."""
        self._slot = slot

    def refuse(self, plan: Regroup, reason: str) -> None:
        """Forget this rank's image of the plan's step, because it is damaged, and report that."""
        session, rank = self._session, self._member.rank()
        session.vault.forget_step(rank, plan.step)
        session.machine.sealed = session.vault.steps(rank)
        worker, generation = session.spec.worker, plan.generation
        session.say(CopyRefused(worker, generation, rank, plan.step, reason, own=True))

    def forget_all(self) -> None:
        """Forget all images of this rank in this vault, because they do not count any more.

        There are two reasons to call this. Each rank's parameters have become its own, and older
        images lack them. Or the rank was on another node since they were sealed.
        """
        for step in self._session.vault.steps(self._member.rank()):
            self._session.vault.forget_step(self._member.rank(), step)

    # --- what goes into an image ------------------------------------------------------------------

    def pieces(self, with_shared: bool) -> list[TensorPiece]:
        """Return the pieces of an image: private state, and shared state if `with_shared`.

        The tensors are live, so copy them before the next step.
        """
        private = self._named(PRIVATE, *self._state.private.tensors())
        if not with_shared:
            return private
        shared = self._named(SHARED, *self._state.shared_tensors())
        return [*private, *shared, self._state.layout]

    def checkpoint_bytes(self, private: int, shared: int) -> int:
        """Return about how many bytes `of_checkpoint` will have, given what `reserve` returned."""
        share = shared if self._state.sharded else shared // self._member.world_size
        return int(private * _SLACK + share * 1.02) + len(self._state.layout.data) + _SLACK_BYTES

    def of_checkpoint(self) -> tuple[list[TensorPiece], dict[str, str]]:
        """Return the pieces of this rank's file of a checkpoint, and what its header says of them.

        Sharded state goes into it as it is in an image. Of replicated state each rank has a share
        in its file (split_state.py). The tensors are live, so copy them before the next step.
        """
        if self._state.sharded:
            return self.pieces(True), {}
        rank, (text, shared) = self._member.rank(), self._state.shared_tensors()
        tensors = {SHARED + name: tensor for name, tensor in shared.items()}
        contents = tuple(spec_of(name, tensor) for name, tensor in tensors.items())
        parts = split(contents, self._member.world_size)[rank]
        pieces = self.pieces(False) + self._views[_PARTS].of(
            (part.spec.name, _rows_of(tensors[part.spec.name], part)) for part in parts
        )
        if rank == 0:
            pieces += [_text_piece(SHARED, text), self._state.layout]
        specs = [piece.spec for piece in pieces]
        return pieces, metadata_of(specs, parts, contents=None if rank else contents)

    def write_transfer(
        self,
        generation: int,
        step: int,
        *,
        agreed: Collection[str],
        metadata: Mapping[str, str],
        begun: bool = True,
        phases: int = 0,
    ) -> None:
        """Seal the transfer image: shared state, movers, and which parameters the script edits.

        `agreed` are the movers that are the same on all ranks. `begun` and `phases` say where the
        survivors stand, as for `choose_image`.
        """
        movers = self._named(_MOVERS, *self._state.private.movers_tensors(agreed))
        shared = self._named(SHARED, *self._state.shared_tensors())
        edited = self._named(_EDITED, self._state.edits.text(), {})
        pieces = [*shared, *movers, *edited]
        if self._member.local_world_size < self._member.world_size:
            # A rank that is lost with its node leaves no image of its own.
            own, place = self._stand_in(step, begun=begun, phases=phases)
            pieces, metadata = [*pieces, *own], {**metadata, **place}
        self._session.vault.write_transfer(generation, step, pieces, metadata)
        self._session.do(lambda machine: machine.donated(step=step))

    def _stand_in(
        self, step: int, *, begun: bool, phases: int
    ) -> tuple[list[TensorPiece], dict[str, str]]:
        """Return this rank's private state of `step`, for a rank that has lost its own.

        The second value is the place of that image, as metadata. Both are empty if there is none.
        """
        try:
            images = self._session.vault.images(self._member.rank(), step)
        except CorruptError:
            return [], {}
        _, image, place = choose_image(images, begun=begun, phases=phases)
        pieces = [
            TensorPiece(spec._replace(name=_STAND_IN + name[len(PRIVATE) :]), data)
            for name, (spec, data) in image.tensors.items()
            if name.startswith(PRIVATE)
        ]
        return pieces, {_STAND_IN + key: value for key, value in place.metadata().items()}

    def _named(self, prefix: str, text: str, tensors: dict[str, torch.Tensor]) -> list[TensorPiece]:
        """Return the pieces of a text and tensors, named with `prefix`.

        Views of tensors are cached from step to step.
        """
        views = self._views[prefix].of((prefix + name, one) for name, one in tensors.items())
        return [_text_piece(prefix, text), *views]

    # --- sealing ----------------------------------------------------------------------------------

    def _seal_private(self, step: int, place: ScriptPosition) -> None:
        """Seal private state of `step`, in the slot that `choose_slot` names."""
        self._session.mark("sealing", step)
        self._session.exit_if_lease_is_over()
        slot = choose_slot(
            newest=self._slot,
            newest_step=self.sealed,
            step=step,
            committed=self._session.machine.committed,
        )
        rank, generation = self._member.rank(), self._member.generation
        seal = self._session.vault.write(
            rank,
            generation=generation,
            step=step,
            pieces=self.pieces(False),
            metadata=place.metadata(),
            slot=slot,
        )
        self._slot, self._place, self._seal = slot, (step, place), seal
        self.sealed = self.due = step

    def _seal_whole(self, step: int) -> None:
        """Seal private and sharded state of `step`."""
        self._session.mark("sealing", step)
        self._session.exit_if_lease_is_over()
        self.due = step
        rank, vault, generation = self._member.rank(), self._session.vault, self._member.generation
        slot = None if self._every == 1 else vault.slot_beside_newest(rank, step)
        vault.write(
            rank,
            generation=generation,
            step=step,
            pieces=self.pieces(True),
            metadata={"step": str(step)},
            slot=slot,
        )
        self._note_sealed(step)
        self._session.mark("sealed", step)

    def _note_sealed(self, step: int) -> None:
        self.sealed = self.due = step
        if self._state.sharded:
            steps = self._session.vault.steps(self._member.rank())
            self._session.do(lambda machine: machine.note_sealed(steps=steps))


def _text_piece(prefix: str, text: str) -> TensorPiece:
    data = text.encode()
    return TensorPiece(TensorSpec(prefix + _TEXT, "U8", (len(data),)), memoryview(data))


def _rows_of(tensor: torch.Tensor, part: SharePart) -> torch.Tensor:
    """Return a part of a tensor: a view of it."""
    if part.is_whole:
        return tensor
    return tensor.detach().narrow(part.dim, part.begin, part.end - part.begin)


def holds_shared(image: Image) -> bool:
    """Return whether `image` has parameters and optimizer state as well."""
    return SHARED + _TEXT in image.tensors


def shared_part(image: Image) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the text and the tensors of the shared state: views of the image."""
    return _part(image, SHARED, view_of)


def load_parts(state: State, image: Image) -> None:
    """Load an image of a checkpoint or a copy: private state, and shared state if it has any."""
    if holds_shared(image):
        load_shared(state, image)
    load_private(state, image)


def load_shared(state: State, image: Image) -> None:
    """Load the shared state. Tensors are copied."""
    state.load_shared(*shared_part(image))


def load_edited(state: State, image: Image) -> None:
    """Learn from the donor's `image` which parameters the script changes itself."""
    state.edits.take_over(_part(image, _EDITED, to_tensor)[0])


def load_private(state: State, image: Image) -> None:
    """Load the private state. Tensors are copied first, because objects may keep them."""
    state.private.load(*_part(image, PRIVATE, to_tensor))


def load_stand_in(state: State, image: Image) -> tuple[list[str], ScriptPosition | None]:
    """Load the donor's private state, in place of this rank's own that was lost.

    Return the parts that may differ from what was lost, and the place at which the donor had sealed
    them. The place is None if `image` has no private state of the donor.
    """
    if _STAND_IN + _TEXT not in image.tensors:
        return [], None
    unlike = state.private.load_stand_in(*_part(image, _STAND_IN, to_tensor))
    metadata = {
        key[len(_STAND_IN) :]: value
        for key, value in image.metadata.items()
        if key.startswith(_STAND_IN)
    }
    return unlike, place_of(metadata)


def load_twin(state: State, image: Image) -> list[str]:
    """Load the whole state of a rank that holds the same shards. This rank's own is lost.

    Return the private parts that may differ from what was lost.
    """
    load_shared(state, image)
    return load_stand_in_of(state, image)


def load_stand_in_of(state: State, image: Image) -> list[str]:
    """Load the private state of the rank that sealed `image`. Return the parts that may differ."""
    return state.private.load_stand_in(*_part(image, PRIVATE, to_tensor))


def learn_movers(state: State, image: Image) -> frozenset[str]:
    """Learn from the donor's `image` which private parts are movers.

    Return those that are known to be the same on all ranks.
    """
    return state.private.learn_movers(*_part(image, _MOVERS, view_of))


def load_movers(state: State, image: Image, place: ScriptPosition) -> list[str]:
    """Load the donor's movers. `place` is the place of this rank's own image.

    Return the movers that may differ from what was lost.
    """
    return state.private.load_movers(
        *_part(image, _MOVERS, to_tensor), after_phase=place.phases > 0
    )


def _part(
    image: Image, prefix: str, tensor_of: Callable[[TensorSpec, memoryview], torch.Tensor]
) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the text and the tensors under `prefix`.

    `tensor_of` makes a tensor of the bytes: `view_of` makes a view of them, `to_tensor` a copy.
    """
    names = [name for name in image.tensors if name.startswith(prefix) and name != prefix + _TEXT]
    return bytes(image.tensors[prefix + _TEXT][1]).decode(), {
        name[len(prefix) :]: tensor_of(*image.tensors[name]) for name in names
    }
