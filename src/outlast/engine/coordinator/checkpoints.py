"""Checkpoints while they are written: ranks report their shards, and then a manifest is written.

Ranks report copies in the vault in the same way. These need no manifest: a copy is complete once
all ranks have sealed their part.

This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.orders import event
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.protocol.outputs import Output, Tell, WriteManifest
from outlast.model.messages import Checkpointed, CopyRefused


def on_shard(run: RunParts, now_s: float, message: Checkpointed) -> list[Output]:
    """Handle the report of a rank that it has written its shard of a checkpoint, or has failed."""
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
    return [WriteManifest(message.step, run.roster.sharded, files)]


def _on_copy(run: RunParts, message: Checkpointed) -> list[Output]:
    """Handle the report of a rank that it has sealed a copy in the vault, or had no room for it."""
    copies = run.sources.copies
    if message.error:
        copies.fail(message.step)
        lack = f"rank {message.rank} keeps no copies of its state in shared memory any more"
        return [Tell(f"warning: {lack}: {message.error}")]
    if copies.takes(message) and copies.put(message):
        run.sources.note_kept(message.step)
    return []


def on_copy_refused(run: RunParts, now_s: float, message: CopyRefused) -> list[Output]:
    """Handle the report of a rank that it could not read a copy, or rebuild it from parity.

    No plan names that copy, or that parity, again. If the rank could not read its own image, a copy
    or parity stands in for it from now on.
    """
    if message.generation != run.lifecycle.generation:
        # The refusal is of a generation that is over.
        return []
    if message.own:
        run.roster.remains.refuse_own(message.rank, message.step, message.reason)
        why = f"rank {message.rank}'s own image of step {message.step} was refused"
        return _say_refused(now_s, f"{why}: {message.reason}")
    holders = (one for one in run.roster.members() if one.rank == message.rank)
    plan = next((one.path.plan for one in holders), None)
    node = run.nodes.serving_at("" if plan is None else plan.twin_source)
    run.roster.remains.copies.refuse(message.rank, message.step, node)
    run.roster.remains.parity.refuse(message.rank, message.step)
    image = f"the image of rank {message.rank} of step {message.step}"
    if run.options.parity is None:
        by = f"node {node}" if node else "another node"
        why = f"the copy of {image}, which {by} keeps, was refused: {message.reason}"
    else:
        why = f"{image} was not rebuilt from parity: {message.reason}"
    return _say_refused(now_s, why)


def _say_refused(now_s: float, why: str) -> list[Output]:
    return [event(now_s, "copy_refused", {"why": why}), Tell(f"warning: {why}")]


def on_manifest(run: RunParts, now_s: float, *, step: int, folder: str, error: str) -> list[Output]:
    """Note that a checkpoint is complete, or has failed.

    A failed save is only reported: training goes on, and earlier checkpoints stay valid.
    """
    if error:
        run.sources.failed = (step, error)
        data = {"step": step, "error": error}
        failed = Tell(f"the checkpoint of step {step} failed: {error}")
        return [event(now_s, "checkpoint_failed", data), failed]
    run.sources.written(step, folder)
    return [run.noted(now_s, "checkpoint", {"step": step, "folder": folder})]
