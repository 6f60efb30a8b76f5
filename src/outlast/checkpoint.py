"""Checkpoints for scripts that use torch's distributed checkpoint (DCP), with torchrun or without.

    import torch.distributed.checkpoint as dcp
    import outlast.checkpoint

    step = outlast.checkpoint.load(state, "checkpoints") or 0
    ...
    dcp.async_save(state, storage_writer=outlast.checkpoint.Writer("checkpoints", step=step))

Nothing else of outlast is needed. Every byte is verified when it is loaded. A save that is cut
short is never loaded. `outlast ckpt` lists and verifies what is in the folder. The files are
safetensors, which torch's HuggingFaceStorageReader reads without outlast. See
docs/how-to/checkpoints.md.
"""

from __future__ import annotations

from outlast.runtime.worker.dcp.loading import load
from outlast.runtime.worker.dcp.storage_reader import Reader
from outlast.runtime.worker.dcp.storage_writer import Writer

__all__ = ["Reader", "Writer", "load"]
