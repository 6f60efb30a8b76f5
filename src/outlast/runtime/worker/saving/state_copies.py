"""This rank's copies in the vault, from which all ranks go on if all are lost at once.

They exist only under replicated state, and only if all ranks are on one node. Sharded state is
sealed completely every few steps anyway, and on several nodes no vault has all ranks.
"""

from __future__ import annotations

from outlast.errors import CapacityError
from outlast.model.keep import NEVER
from outlast.model.messages import Checkpointed
from outlast.runtime import clock
from outlast.runtime.tiers.image import Image
from outlast.runtime.tiers.kept_copies import KeptCopies
from outlast.runtime.worker.member.membership import Membership
from outlast.runtime.worker.member.session import WorkerSession
from outlast.runtime.worker.process.error_text import one_line
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.saving.copy_sender import CopySender
from outlast.runtime.worker.saving.images import RankImages
from outlast.runtime.worker.saving.keeping import VAULT, Keeping


class StateCopies:
    """Make this rank's copies, and read them.

    keeping   says when a copy is made
    sender    sends images of sharded state to the node that keeps copies of them
    """

    def __init__(self, membership: Membership, state: State, images: RankImages) -> None:
        session = membership.session
        self.keeping = Keeping({} if session is None else session.spec.options)
        self.sender = CopySender(session)
        if session is not None:
            session.calls.send_out = self.sender.send_out
        self._member = membership
        self._state = state
        self._images = images
        self._kept = None if session is None else KeptCopies(session.vault)

    @property
    def _session(self) -> WorkerSession:
        assert self._member.session is not None, "only a run with a launcher keeps copies"
        return self._member.session

    @property
    def _vault(self) -> KeptCopies:
        assert self._kept is not None, "only a run with a launcher keeps copies"
        return self._kept

    def reserve(self, private_bytes: int, shared_bytes: int) -> None:
        """Make room for copies of this much state, if copies will be made. Raises CapacityError.

        If there is no room, and the user has not set how often copies are made, none are made, with
        a warning.
        """
        keeping, sharded = self.keeping, self._state.sharded
        if sharded or self._member.local_world_size < self._member.world_size:
            if sharded and keeping.vault.seconds:
                self._session.warn(
                    "--keep vault: sharded state is sealed at each step, not by the clock"
                )
            keeping.vault = NEVER
        if keeping.vault.is_never:
            return
        own = self._images.checkpoint_bytes(private_bytes, shared_bytes)
        try:
            self._vault.reserve(self._member.rank(), own)
        except CapacityError as error:
            if not keeping.vault.auto:
                raise
            keeping.give_up_vault()
            self._session.warn(f"no copies of the state are kept in shared memory: {error}")

    def make(self, step: int) -> None:
        """Copy the state after `step`, and report it.

        If there is no room for a copy, the run goes on, and no more copies are made.
        """
        session, rank, began_s = self._session, self._member.rank(), clock.now_s()
        generation, error = self._member.generation, ""
        session.mark("keeping", step)
        session.exit_if_lease_is_over()
        try:
            pieces, metadata = self._images.of_checkpoint()
            self._vault.write(
                rank,
                generation=generation,
                step=step,
                pieces=pieces,
                metadata=metadata,
                world_size=self._member.world_size,
            )
        except CapacityError as lack:
            self.keeping.give_up_vault()
            error = one_line(lack)
        worker = session.spec.worker
        session.say(Checkpointed(worker, generation, rank, step, "", 0, "", error, in_vault=True))
        self.keeping.copied(VAULT, cost_s=clock.now_s() - began_s)

    def read(self, step: int) -> Image:
        """Return this rank's state of `step`, and the replicated state. Raises CorruptError."""
        member = self._member
        return self._vault.read_state(step, like=member.rank(), world_size=member.world_size)

    def forget_after(self, step: int) -> None:
        """Forget this rank's copies of later steps, which were rolled back."""
        self._vault.forget_after(self._member.rank(), step)
