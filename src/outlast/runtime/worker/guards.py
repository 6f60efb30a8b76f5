"""Guards around the script's own collectives and its reads of rank: count them, refuse them, park at them.

They sit on ProcessGroup's methods, under all of torch.distributed's functions, so `from torch.distributed import
all_reduce` is seen as well, and so are groups of the script's own. What DDP does in C++ does not pass here.
Functional collectives (DTensor) do not either: for those `local_only` compares the group's own count.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import LBFGS, Optimizer

from outlast.errors import TransactionError
from outlast.runtime.worker.groups import collectives
from outlast.runtime.worker.hooks import OURS, user_frame, user_line

_COLLECTIVES = {  # method of ProcessGroup -> the function that people call
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce_coalesced", "broadcast": "broadcast", "barrier": "barrier",
    "monitored_barrier": "monitored_barrier", "allgather": "all_gather", "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor", "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor", "all_gather_single_coalesced": "all_gather_into_tensor",
    "reduce": "reduce", "reduce_scatter": "reduce_scatter", "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor", "gather": "gather", "scatter": "scatter",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all_single", "all_to_all_single": "all_to_all_single",
    "send": "send", "recv": "recv", "recv_anysource": "recv",
}  # fmt: skip
_READS = ("rank", "size")
_DDP = os.path.join("nn", "parallel", "distributed.py")


class Guards:
    """One per worker. `counted` is the number of collectives that the script itself called, on any group.

    on_rank_read  called once, when the script first reads rank or world size, in front of the answer (a spare parks
                  there); it may change the default group: the answer is the new group's.
    """

    def __init__(self) -> None:
        self.counted = 0
        self.first_line = ""
        self.refused: TransactionError | None = None  # in this tail, whoever swallows it
        self.on_rank_read: Callable[[], object] | None = None
        self._local_since = ""
        self._mark = -1
        self._own = threading.local()
        self._originals: dict[str, Any] = {}

    def install(self, on_rank_read: Callable[[], object] | None = None) -> None:
        """Idempotent; `on_rank_read` is armed (again) at each call."""
        self.on_rank_read = on_rank_read
        if self._originals:
            return
        for name in (*_COLLECTIVES, *_READS):
            original = getattr(dist.ProcessGroup, name, None)
            if original is not None:
                self._originals[name] = dist.ProcessGroup.__dict__.get(name)  # as it lies in the class: read through it, it would no longer bind
                setattr(dist.ProcessGroup, name, self._read(original) if name in _READS else self._called(original, _COLLECTIVES[name]))

    def uninstall(self) -> None:
        for name, original in self._originals.items():
            if original is None:
                delattr(dist.ProcessGroup, name)
            else:
                setattr(dist.ProcessGroup, name, original)
        self._originals.clear()

    @contextlib.contextmanager
    def ours(self) -> Iterator[None]:
        """What is called inside, on this thread, is outlast's: not counted, not refused, and no reason to park."""
        before, outermost = collectives(), not getattr(self._own, "depth", 0)
        self._own.depth = getattr(self._own, "depth", 0) + 1
        try:
            yield
        finally:
            self._own.depth -= 1
            if outermost and self._mark >= 0 and before >= 0:
                self._mark += max(0, collectives() - before)

    def local_only(self, on: bool, *, since: str = "") -> int:
        """The tail of a block: while on, a collective is refused. `since`: the line of the optimizer call, for the message.

        Switched off, it gives how many collectives of the default group passed unseen (DTensor's); 0 where the group cannot tell.
        """
        mark, self._mark = self._mark, collectives() if on else -1
        self._local_since = (since or "the optimizer's step") if on else ""
        self.refused = None if on else self.refused
        return max(0, collectives() - mark) if mark >= 0 else 0

    def _mine(self) -> bool:
        return bool(getattr(self._own, "depth", 0))

    def _called(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def guarded(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            if not self._mine() and not sys._getframe(1).f_code.co_filename.startswith(OURS):
                if self._local_since:
                    self.refused = _refused(f"torch.distributed.{name}", f"at {user_line()}, after {self._local_since}")
                    raise self.refused
                self.counted += 1
                self.first_line = self.first_line or user_line()
            return original(group, *args, **kwargs)

        return guarded

    def _read(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def guarded(group: dist.ProcessGroup) -> Any:
            if self.on_rank_read is not None and not self._mine() and not _innocent():
                was_default, asked, self.on_rank_read = group is dist.group.WORLD, self.on_rank_read, None
                asked()
                group = dist.group.WORLD if was_default and dist.group.WORLD is not None else group
            return original(group)

        return guarded


def _innocent() -> bool:
    """Reads that say nothing to the script: outlast's own, DDP's, and those of code that no script called (other threads)."""
    frame: FrameType | None = sys._getframe(2)
    user = user_frame()
    while frame is not user and frame is not None:
        if frame.f_code.co_filename.startswith(OURS) or frame.f_code.co_filename.endswith(_DDP):
            return True
        frame = frame.f_back
    return user is None


def _refused(what: str, where: str) -> TransactionError:
    return TransactionError(
        f"{what} was called {where}: another rank may have committed this step and will not come to it",
        hint='reduce before the optimizer, or say step.log(name=value, reduce="mean"), which reduces when the step is committed',
    )


def check_optimizer(optimizer: Optimizer) -> None:
    """TransactionError for an optimizer whose step cannot be a transaction."""
    name, line = type(optimizer).__name__, user_line()
    where = f"{line}: " if line else ""
    if isinstance(optimizer, LBFGS):
        raise TransactionError(
            f"{where}{name} evaluates the model inside its step, after the vote", hint="use an optimizer whose step() takes no closure, such as AdamW"
        )
    if any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__):
        raise TransactionError(f"{where}{name} communicates inside its step, after the vote", hint="use fully_shard (FSDP2) to shard optimizer state")
    for group in optimizer.param_groups:
        if any(isinstance(parameter, torch.Tensor) and getattr(parameter, "_in_backward_optimizers", None) for parameter in group["params"]):
            raise TransactionError(
                f"{where}parameters of this {name} are also stepped during backward (_apply_optimizer_in_backward), before the vote",
                hint="call the optimizer after loss.backward()",
            )
