"""The sources from which all ranks can restart: images, a transfer image, copies, a checkpoint.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from outlast.engine.durable import Saves


@dataclass(frozen=True, slots=True)
class Restart:
    """The state that all ranks begin from when they restart. Its fields are those of Regroup.

    step         the step that they go on from; 0: the beginning
    replicated   the source of replicated state
    private      the source of private state
    checkpoint   the folder of the checkpoint; "": none is read
    """

    step: int = 0
    replicated: str = "none"
    private: str = "none"
    checkpoint: str = ""

    @property
    def words(self) -> str:
        """Return a sentence for people: what all ranks begin from."""
        if not self.step:
            return "all ranks begin from the beginning: no state was saved"
        if self.replicated == "kept":
            return f"all ranks begin from the copy of step {self.step} in shared memory"
        if self.checkpoint:
            return f"all ranks begin from the checkpoint of step {self.step}"
        return f"all ranks begin from the images of step {self.step}"


@dataclass(frozen=True, slots=True)
class Transfer:
    """The sealed transfer image on node `home`.

    phases     how many phases after `step` are done in it; -1: that is not known
    """

    generation: int
    step: int
    home: str
    phases: int = -1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on the disk. No folder: there is none, and the step is that of the beginning."""

    step: int = 0
    folder: str = ""

    def restart(self) -> Restart:
        """Return what all ranks start from if they begin from this checkpoint."""
        if not self.folder:
            return Restart()
        return Restart(self.step, "checkpoint", "checkpoint", self.folder)


class RestoreSources:
    """The sources of one run, as far as the coordinator knows them.

    begin_from   what all ranks begin from at a restart, or began from last
    transfer     the sealed transfer image; None: there is none
    donating     a donor of the newest plans has not handed over its state yet
    checkpoint   the newest checkpoint that was written, or that was read and found good
    kept_step    the newest step of which all ranks have a copy in the vault; 0: none
    verified     the folder that was read as a whole last, and found good
    failed       step and error of the newest save that failed; None: none did
    """

    def __init__(
        self, *, start: Restart, checkpoint: tuple[str, int], generation: int, world_size: int
    ) -> None:
        self.begin_from = start
        handed_over = start.replicated == "transfer"
        self.transfer = Transfer(generation, start.step, "") if handed_over else None
        self.donating = False
        self.checkpoint = Checkpoint(checkpoint[1], checkpoint[0])
        self.verified = start.checkpoint or checkpoint[0]
        self.kept_step = start.step if start.replicated == "kept" else 0
        self.saves = Saves(world_size)
        self.copies = Saves(world_size)  # in the vault
        self.failed: tuple[int, str] | None = None
        self._looks_from: int | None = None  # the newest checkpoint when the driver was asked

    # --- what all begin from -----------------------------------------------------------------

    def choose(self, start: Restart) -> int:
        """Let all ranks begin from `start`. Return how many steps further back that is than the
        choice before.
        """
        further, self.begin_from = self.begin_from.step - start.step, start
        return further

    # --- the transfer image ------------------------------------------------------------------

    def begin_generation(self, *, generation: int, step: int) -> None:
        """Note that the generation goes on from `step`: saves of later steps were rolled back."""
        self.donating = False
        self.saves.note_rollback(generation=generation, step=step)
        self.copies.note_rollback(generation=generation, step=step)

    def await_image(self, step: int) -> None:
        """Note that a donor is about to write a transfer image of `step`.

        It overwrites the present image. One of the same step is still good until then, and may be
        all that ranks can begin from.
        """
        self.donating = True
        if self.transfer is not None and self.transfer.step != step:
            self.transfer = None

    def note_transfer(self, transfer: Transfer) -> None:
        """Note that the donor of the newest plans has handed over."""
        self.donating, self.transfer = False, transfer

    def find_transfer(self, found: Transfer) -> None:
        """Note the transfer image of a node that enrols. The newest one counts."""
        if self.transfer is None or found.generation > self.transfer.generation:
            self.transfer = found

    def lose_node(self, node: str) -> None:
        """Forget everything that lay in the memory of `node`."""
        if self.transfer is not None and self.transfer.home == node:
            # The transfer image was in the memory of that node.
            self.transfer = None

    def transfer_home(self) -> str:
        """Return the node that holds the transfer image; "": there is none."""
        return self.transfer.home if self.transfer is not None else ""

    # --- copies in the vault, and checkpoints ----------------------------------------------------

    def note_kept(self, step: int) -> None:
        """Note that all ranks have sealed a copy of `step` in the vault."""
        self.kept_step = max(self.kept_step, step)

    def written(self, step: int, folder: str) -> None:
        """Note that a checkpoint was written. It is the newest unless a newer one is known."""
        known = self.checkpoint
        step, folder = max((known.step, known.folder), (step, folder))
        self.checkpoint = Checkpoint(step, folder)

    def note_found(self, step: int, folder: str, *, kept_step: int) -> bool:
        """Note which sources were read and found good.

        Return False if a newer checkpoint was written meanwhile: it was not read.

        kept_step      the step of the newest good copies in the vault; 0: there are none
        step, folder   the newest good checkpoint, which was read if the copies are not newer; no
                       folder: there is none
        """
        known, self._looks_from = self._looks_from, None
        self.kept_step = kept_step
        if known is not None and self.checkpoint.step > known:
            return False
        if kept_step <= self.checkpoint.step:
            self.checkpoint, self.verified = Checkpoint(step, folder), folder
        return True

    def begin_to_look(self) -> bool:
        """Return True if the driver has to be asked to read copies and checkpoints.

        False if the driver was asked already and has not answered yet (`note_found`).
        """
        if self._looks_from is not None:
            return False
        self._looks_from = self.checkpoint.step
        return True

    # --- what is known of them, for decisions --------------------------------------------------

    def facts(self, *, sharded: bool, imageless: Collection[int]) -> SourceFacts:
        """Return the facts for decisions. `imageless`: the ranks whose images are lost."""
        lost = len(imageless) > 0
        return SourceFacts(
            self.begin_from, self.transfer, self.checkpoint, sharded, lost, self.kept_step
        )


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The facts for a decision about sources.

    images_lost   the images of some rank were lost with their node
    kept_step     the newest step of which all ranks have a copy in the vault; 0: none
    """

    begin_from: Restart
    transfer: Transfer | None
    checkpoint: Checkpoint
    sharded: bool
    images_lost: bool
    kept_step: int = 0

    @property
    def saved(self) -> Restart:
        """Return what all ranks begin from if no process and no image can be used."""
        if self.kept_step > self.checkpoint.step:
            return Restart(self.kept_step, "kept", "kept")
        return self.checkpoint.restart()
