"""Write manifests and last checkpoints, and find the state from which a run can be resumed."""

from __future__ import annotations

import contextlib
from pathlib import Path

from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.durable import begins_from_images, newest_common
from outlast.engine.protocol.outputs import SaveLast
from outlast.engine.protocol.outputs import WriteManifest as ManifestOrder
from outlast.errors import CorruptError, OutlastError, whole_message_of
from outlast.model.manifest import OF_RUNS, SPLIT, FileEntry, Manifest
from outlast.runtime.tiers import local
from outlast.runtime.tiers.image import TensorPiece
from outlast.runtime.tiers.kept_copies import KeptCopies
from outlast.runtime.tiers.split_state import is_split
from outlast.runtime.tiers.vault import Vault


def why_failed(error: OutlastError | OSError | MemoryError) -> str:
    """Return why the launcher could not write or remove a checkpoint, without a hint."""
    return whole_message_of(error) or "the launcher gets no more memory"


def write_checkpoint(
    root: Path, order: ManifestOrder, run_id: str, generation: int
) -> tuple[str, str]:
    """Write a manifest; return its folder once it is durable, or "" and why it is not."""
    folder = local.checkpoint_folder(root, order.step)
    files = tuple(
        FileEntry(name, length, int(checksum, 16)) for name, length, checksum in order.shards
    )
    kind = "sharded" if order.sharded else SPLIT
    manifest = Manifest(
        run=run_id,
        generation=generation,
        step=order.step,
        world_size=len(files),
        kind=kind,
        files=files,
    )
    try:
        local.write_manifest(folder, manifest)
    except (OutlastError, OSError, MemoryError) as error:
        return "", why_failed(error)
    return str(folder), ""


def save_images(
    vault: Vault, root: Path, order: SaveLast, run_id: str, generation: int, world_size: int
) -> tuple[str, str]:
    """Write the ranks' images, or their copies, as a checkpoint.

    Return its folder, or "" and why it could not be written. Under replicated state, each rank's
    copy has its share of the replicated part. Images do not have it. So rank 0's shard gets all of
    it from the transfer image.
    """
    folder = local.checkpoint_folder(root, order.step)
    kind = "sharded" if order.sharded else "replicated"
    copies = KeptCopies(vault)
    try:
        files = []
        for rank in range(world_size):
            image = copies.read(rank, order.step) if order.kept else vault.read(rank, order.step)
            tensors = dict(image.tensors)
            if rank == 0 and not order.sharded and not order.kept:
                handed_over = vault.read_transfer(None, order.step).tensors
                tensors |= {
                    name: one for name, one in handed_over.items() if name.startswith("shared/")
                }
            pieces = [TensorPiece(spec, data) for spec, data in tensors.values()]
            metadata = {"step": str(order.step)}
            if order.kept:
                metadata = dict(image.metadata)
                kind = SPLIT if rank == 0 and is_split(metadata) else kind
            files.append(local.write_shard(folder, rank, pieces=pieces, metadata=metadata))
        manifest = Manifest(
            run=run_id,
            generation=generation,
            step=order.step,
            world_size=world_size,
            kind=kind,
            files=tuple(files),
        )
        local.write_manifest(folder, manifest)
    except (OutlastError, OSError, MemoryError) as error:
        return "", why_failed(error)
    return str(folder), ""


def newest_start(
    root: Path, vault: Vault | None, world_size: int, run: str | None = None
) -> tuple[Restart, tuple[str, int], list[str]]:
    """Return what --resume goes on from: (start, newest good checkpoint, what was refused).

    What was refused is a list of sentences, each with a reason. The newest of these is taken:
    images of all ranks in the vault of a killed launcher, copies there, or a checkpoint. `run` is
    as for `find_checkpoint`.
    """
    step, folder, refused = find_checkpoint(root, run)
    start = Restart(step, "checkpoint", "checkpoint", folder) if folder else Restart()
    images = _newest_whole(vault, world_size) if vault is not None else None
    if images is not None and begins_from_images(images, checkpoint=start.step):
        start = Restart(images, "none", "slot", "")
    kept, damaged = (0, []) if vault is None else find_kept(vault, world_size)
    if kept > start.step:
        start = Restart(kept, "kept", "kept", "")
    return start, (folder, step), [*refused, *damaged]


def find_kept(vault: Vault, world_size: int) -> tuple[int, list[str]]:
    """Return what `KeptCopies.newest_good` does, and leave no file open."""
    with contextlib.closing(KeptCopies(vault)) as copies:
        return copies.newest_good(world_size)


def find_checkpoint(root: Path, run: str | None = None) -> tuple[int, str, list[str]]:
    """Return step and folder of the newest good checkpoint, or (0, ""), and what was refused.

    What was refused is a list of sentences, each with a reason. A damaged checkpoint is set aside,
    so that its step can be saved again. A checkpoint of another run, or of outlast.checkpoint, is
    left where it is.

    run   the run that the manifest has to name; None: any run
    """

    search = local.newest_good(root, foreign=lambda manifest: why_foreign(manifest, run))
    refused = [
        f"a checkpoint was refused: {one.folder}: {one.reason}"
        + ("" if one.is_others else f"; {_put_aside(one.folder)}")
        for one in search.refused
    ]
    found = search.checkpoint
    return (
        (found.manifest.step, str(found.folder), refused) if found is not None else (0, "", refused)
    )


def why_foreign(manifest: Manifest, run: str | None) -> str:
    """Return why a run cannot go on from this checkpoint, or "". `run` None: any run."""
    if manifest.kind not in OF_RUNS:
        return "it was written by outlast.checkpoint.Writer, and not by `outlast run`"
    if run is not None and manifest.run != run:
        return f"it is of another run, {manifest.run}"
    return ""


def _put_aside(folder: Path) -> str:
    try:
        return f"it is kept as {local.set_aside(folder).name}"
    except OSError as error:
        return f"it cannot be set aside ({error.strerror}): its step cannot be saved again"


def _newest_whole(vault: Vault, world_size: int) -> int | None:
    """Return the newest step at which the images of all ranks contain their whole (sharded) state.

    The images are verified.
    """

    def is_whole(step: int) -> bool:
        try:
            return all(
                "shared/text" in vault.read(rank, step).tensors for rank in range(world_size)
            )
        except CorruptError:
            return False

    return newest_common([vault.steps(rank) for rank in range(world_size)], is_whole=is_whole)
