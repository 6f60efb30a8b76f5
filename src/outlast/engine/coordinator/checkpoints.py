"""Checkpoints as they are written: shards come in, and a manifest makes them one.

Copies in the vault are reported in the same way. They have no manifest: each is there once all
ranks have sealed theirs. Copies at peers are reported by the node that keeps them.

This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.orders import event
from outlast.engine.coordinator.run_parts import Run
from outlast.engine.protocol.outputs import Manifest, Output, Tell
from outlast.model.messages import Checkpointed, CopyRefused


def on_shard(run: Run, now_s: float, message: Checkpointed) -> list[Output]:
    """Take in that a rank has written its shard of a checkpoint, or has failed to."""
    if message.in_vault:
        return _on_copy(run, message)
    saves = run.sources.saves
    if not saves.takes(message):
        # The shard belongs to steps that were rolled back.
        return []
    if message.error:
        saves.fail(message.step)
        error = f"rank {message.rank}: {message.error}"
        return on_manifest(run, now_s, step=message.step, folder="", error=error)
    shards = saves.put(message)
    if not shards:
        return []
    files = tuple((shard.file, shard.length, shard.checksum) for shard in shards)
    return [Manifest(message.step, run.roster.sharded, files)]


def _on_copy(run: Run, message: Checkpointed) -> list[Output]:
    """Take in that a rank has sealed a copy of its state in the vault, or had no room for it."""
    copies = run.sources.copies
    if message.error:
        copies.fail(message.step)
        lack = f"rank {message.rank} keeps no copies of its state in shared memory any more"
        return [Tell(f"warning: {lack}: {message.error}")]
    if copies.takes(message) and copies.put(message):
        run.sources.kept(message.step)
    return []


def on_copy_refused(run: Run, now_s: float, message: CopyRefused) -> list[Output]:
    """Take in that a rank cannot begin from a copy: the next restart does not use it."""
    if message.generation != run.course.generation:
        # The refusal is of a generation that is over.
        return []
    run.roster.remains.copies.refuse(message.rank, message.step)
    what = f"the copy of the image of rank {message.rank} of step {message.step}"
    why = f"{what}, which another node keeps, was refused: {message.reason}"
    return [event(now_s, "copy_refused", {"why": why}), Tell(f"warning: {why}")]


def on_manifest(run: Run, now_s: float, *, step: int, folder: str, error: str) -> list[Output]:
    """Take in that a checkpoint is complete, or has failed.

    A save that failed is reported and ends nothing: the checkpoints before it stay valid.
    """
    if error:
        run.sources.failed = (step, error)
        data = {"step": step, "error": error}
        failed = Tell(f"the checkpoint of step {step} failed: {error}")
        return [event(now_s, "checkpoint_failed", data), failed]
    run.sources.written(step, folder)
    return [run.noted(now_s, "checkpoint", {"step": step, "folder": folder})]
