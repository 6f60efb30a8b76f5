"""Load the newest checkpoint that is good, with torch's distributed checkpoint."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from outlast.errors import CorruptError
from outlast.runtime.tiers.tier import CheckpointTier
from outlast.runtime.worker.dcp.chunks import read_record
from outlast.runtime.worker.dcp.storage_reader import Reader


def load(
    state: dict[str, Any],
    root: str | os.PathLike[str],
    *,
    process_group: dist.ProcessGroup | None = None,
    planner: LoadPlanner | None = None,
    weights_only: bool = True,
) -> int | None:
    """Load the newest good checkpoint below `root` into `state`. Return its step.

        step = outlast.checkpoint.load(state, "checkpoints")

    It returns None, and changes nothing, if there is no checkpoint. Call it on all ranks of the
    process group; the number of ranks may differ from that of the save. If a byte that a rank needs
    is not as it was written, a warning says so, and all ranks load the checkpoint before it.

    It raises CorruptError if there are checkpoints and none is good. Errors that have nothing to do
    with damage, such as a missing key, are DCP's CheckpointException. `planner` and `process_group`
    are those of `dcp.load`, and `weights_only` is that of `Reader`.
    """
    refused: dict[int, str] = {}
    while True:
        step, found = _choose(root, refused, process_group)
        refused |= found
        if step is None:
            if refused:
                raise CorruptError(
                    f"no checkpoint in {os.fspath(root)} can be loaded: {_said(refused)}",
                    hint="`outlast ckpt verify` reads all of them",
                )
            return None
        reader = Reader(root, step=step, weights_only=weights_only)
        try:
            dcp_load(state, storage_reader=reader, process_group=process_group, planner=planner)
        except CheckpointException as error:
            damage = [one for one, _ in error.failures.values() if isinstance(one, CorruptError)]
            if not damage:
                raise
            refused[step] = damage[0].message
            continue
        if refused:
            warnings.warn(f"newer checkpoints were passed over: {_said(refused)}", stacklevel=2)
        return step


def _choose(
    root: str | os.PathLike[str],
    refused: dict[int, str],
    process_group: dist.ProcessGroup | None,
) -> tuple[int | None, dict[int, str]]:
    """Let one rank choose the newest checkpoint that was not refused, and tell the others."""
    if not dist.is_available() or not dist.is_initialized():
        return _newest_readable(Reader(root).tier, refused)
    is_first = dist.get_rank(process_group) == 0
    told: list[Any] = [_newest_readable(Reader(root).tier, refused) if is_first else None]
    dist.broadcast_object_list(told, group=process_group, group_src=0)
    step, found = told[0]
    return step, found


def _newest_readable(
    tier: CheckpointTier, refused: dict[int, str]
) -> tuple[int | None, dict[int, str]]:
    found: dict[int, str] = {}
    for one in tier.step_folders():
        if not one.has_manifest or one.step in refused:
            continue
        try:
            read_record(tier, one.step)
        except CorruptError as error:
            found[one.step] = error.message
            continue
        return one.step, found
    return None, found


def _said(refused: dict[int, str]) -> str:
    return "; ".join(f"step {step}: {reason}" for step, reason in refused.items())
