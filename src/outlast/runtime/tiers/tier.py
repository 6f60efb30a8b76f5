"""A tier: a place that keeps checkpoints, and what every such place has to promise.

    entry = tier.put(12, "rank-0.safetensors", chunks)      durable when it returns, or not there
    tier.commit(Manifest(..., step=12, files=(entry,)))     now the checkpoint exists
    tier.why_not(12)                                        "" once every byte was read and is right
    tier.read(12, "rank-0.safetensors", 64, target)

A checkpoint exists once its manifest does. If a save ends before that for any reason, it leaves
files that no tier offers for restore. A tier decides nothing: engine/durable.py decides for all
tiers which checkpoint is restored and which are removed. `tests/conformance/test_tiers.py` tests
every tier by these sentences.

Errors     CapacityError if there is no room, RunFolderError for a step that is there already,
           CorruptError for bytes that are not as the manifest says. UsageError if object storage
           cannot be reached, or refuses: nothing is known about the bytes then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from outlast.engine import durable
from outlast.model.manifest import FileEntry, Manifest

Seen = Callable[[int], None]  # gets the number of further bytes that were read


def unseen(count: int) -> None:
    """Ignore how much was read. This is for callers that show no progress."""


@dataclass(frozen=True, slots=True)
class TierStepFolder:
    """The folder of a step: a checkpoint, or the files that an unfinished save has left."""

    step: int
    has_manifest: bool


class CheckpointTier(Protocol):
    """A place for checkpoints. Each file of a checkpoint is named by its step and its own name."""

    @property
    def place(self) -> str:
        """Return the name of the place for messages: a path or a URL."""

    def try_writing(self) -> None:
        """Write a small file and remove it. Raises an error that says why this is not possible."""

    def step_folders(self) -> Sequence[TierStepFolder]:
        """Return the folders of steps, the newest first."""

    def manifest(self, step: int) -> Manifest:
        """Return the manifest of a step. Raises CorruptError if it is missing or damaged."""

    def written_s(self, step: int) -> float:
        """Return the wall time at which the manifest was written, or the folder if it has none."""

    def put(
        self, step: int, name: str, chunks: Iterable[memoryview], *, length: int = 0
    ) -> FileEntry:
        """Write a file. Return its entry for the manifest once it is durable.

        length   how many bytes will come, if that is known: object storage divides a file by it
        """

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest, after checking that its files are there."""

    def read(self, step: int, entry: FileEntry, begin: int, target: memoryview) -> None:
        """Fill `target` from a file, beginning at byte `begin` of it.

        Raises CorruptError unless the file has the length that its entry says. It is not checked
        whether the bytes are right.
        """

    def chunks(self, step: int, entry: FileEntry) -> Iterator[memoryview]:
        """Yield all bytes of a file. Each chunk is valid until the next one is asked for.

        Raises CorruptError as `read` does. It is not checked whether the bytes are right.
        """

    def why_not(self, step: int, *, seen: Seen = unseen) -> str:
        """Read every byte of a checkpoint. Return what is wrong with it, or ""."""

    def remove(self, step: int) -> None:
        """Remove the folder of a step, its manifest first."""

    def set_aside(self, step: int) -> str:
        """Rename a checkpoint that is not to be used, and keep it for people.

        Return its new name. Its step can be saved again.
        """


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search for the newest good checkpoint.

    step      None if there is none
    refused   newer ones that are not good, newest first, and why
    """

    step: int | None
    refused: tuple[tuple[int, str], ...]


def newest_good(tier: CheckpointTier, *, seen: Seen = unseen) -> Search:
    """Return the newest checkpoint of which every byte is as written, and what was refused."""
    good, refused = durable.newest_good(
        tier.step_folders(), why_not=lambda one: tier.why_not(one.step, seen=seen)
    )
    return Search(
        None if good is None else good.step, tuple((one.step, why) for one, why in refused)
    )


def superfluous(
    tier: CheckpointTier, *, keep: int, every: int = 0, seen: Seen = unseen
) -> tuple[int, ...]:
    """Return the steps that a tier need not keep, newest first. See engine/durable.py.

    Nothing is read if nothing could be removed. Otherwise all bytes of the newest checkpoint are
    read, because the last checkpoint that can be restored is never removed.
    """
    folders = tier.step_folders()
    newest = next((one.step for one in folders if one.has_manifest), None)
    if not durable.superfluous(folders, good=newest, keep=keep, every=every):
        return ()
    good = newest_good(tier, seen=seen).step
    return durable.superfluous(folders, good=good, keep=keep, every=every)
