"""Guards around what the script does with process groups.

These are its collectives, its groups and meshes, and its reads of rank. The guards are on the
methods of ProcessGroup, below all functions of torch.distributed. So `from torch.distributed import
all_reduce` is seen as well, and so are the script's own groups. What DDP does in C++ is not seen
here. Functional collectives (DTensor) are not seen either: for those `local_only` compares the
group's own count.

For the same reason new groups are seen in the function below `new_group`, and meshes where they are
constructed. A mesh in one dimension over all ranks creates no group, but it holds the names of one
generation anyway.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import LBFGS, Optimizer

from outlast.errors import TransactionError
from outlast.runtime.worker.communication.groups import collectives
from outlast.runtime.worker.script.hooks import OURS, user_frame, user_line

_COLLECTIVES = {  # method of ProcessGroup -> the function that users call
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "monitored_barrier": "monitored_barrier",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor",
    "all_gather_single_coalesced": "all_gather_into_tensor",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "all_to_all_single": "all_to_all_single",
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv",
}
_READS = ("rank", "size")
# every function that creates groups calls it, or the method below
_NEW_GROUP = "_new_group_with_tag"
_SPLIT_GROUP = "split_group"  # of ProcessGroup, if this version of torch has it
_DDP = os.path.join("nn", "parallel", "distributed.py")


@dataclass(slots=True)
class Calls:
    """The functions to call when the script needs its process group. None: nothing is called.

    on_need       called before each collective, new group or mesh, with True if it is a group
                  or a mesh. It may change the default group (a spare parks there), or raise
    on_held       called when the script has reached its first group or mesh, before that is made
    on_between    called with a function's name before each collective of the main thread, which may
                  be between two steps
    on_rank_read  called once, when the script first reads rank or world size, before the answer. It
                  may change the default group (a spare parks there): the answer is then that of the
                  new group
    stands_for    rank and world size that the script reads where the default group is only a
                  stand-in; None: those of the group
    """

    on_need: Callable[[bool], object] | None = None
    on_held: Callable[[], object] | None = None
    on_between: Callable[[str], object] | None = None
    on_rank_read: Callable[[], object] | None = None
    stands_for: Callable[[], tuple[int, int] | None] | None = None


class Guards:
    """Guard the process groups of one worker.

    `counted` is the number of collectives that the script itself called, on any group.

    first_need    the line of the first thing for which the script needed its process group: a
                  collective, a new group or a mesh; "" if there was none
    held          the line that made the first group or mesh of the script's own. It belongs to one
                  generation
    calls         the functions to call before each such thing
    """

    def __init__(self) -> None:
        self.counted = 0
        self.first_need = ""
        self.held = ""
        self.refused: TransactionError | None = None  # in this tail, even if the script catches it
        self.calls = Calls()
        self._local_since = ""
        # only this thread's collectives are refused; 0: those of all threads
        self._local_thread = 0
        self._mark = -1
        self._own = threading.local()
        self._originals: list[tuple[Any, str, Any]] = []

    def install(self, on_rank_read: Callable[[], object] | None = None) -> None:
        """Install the guards. It is idempotent; each call arms `on_rank_read` again."""
        self.calls.on_rank_read = on_rank_read
        if self._originals:
            return
        for name in _COLLECTIVES:
            self._guard(dist.ProcessGroup, name, self._called)
        for name in _READS:
            self._guard(dist.ProcessGroup, name, self._read)
        self._guard(dist.ProcessGroup, _SPLIT_GROUP, self._made)
        self._guard(distributed_c10d, _NEW_GROUP, self._made)
        self._guard(DeviceMesh, "__init__", self._made)

    def _guard(
        self, owner: Any, name: str, around: Callable[[Callable[..., Any], str], Any]
    ) -> None:
        original = getattr(owner, name, None)
        if original is not None:
            # It is read from the class's own dict, because as an attribute it would no longer bind.
            self._originals.append((owner, name, owner.__dict__.get(name)))
            setattr(owner, name, around(original, name))

    def uninstall(self) -> None:
        for owner, name, original in self._originals:
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        self._originals.clear()

    def need(self, *, group: bool) -> None:
        """Note that the script will communicate, or create a group or a mesh.

        See `first_need` and `held`.
        """
        if self.calls.on_need is not None:
            self.calls.on_need(group)
        if not self.first_need:
            self.first_need = _line()
        if group and not self.held:
            self.held = _line()
            if self.calls.on_held is not None:
                self.calls.on_held()

    @contextlib.contextmanager
    def ours(self) -> Iterator[None]:
        """Mark calls inside, on this thread, as outlast's own.

        They are not counted, not refused, and no reason to park.
        """
        before, outermost = collectives(), not getattr(self._own, "depth", 0)
        self._own.depth = getattr(self._own, "depth", 0) + 1
        try:
            yield
        finally:
            self._own.depth -= 1
            if outermost and self._mark >= 0 and before >= 0:
                self._mark += max(0, collectives() - before)

    def local_only(self, on: bool, *, since: str = "") -> int:
        """Refuse collectives while this is on: the tail of a block is local.

        `since` is the line of the optimizer call, for the message. Switched off, it returns how
        many collectives of the default group passed unseen (DTensor's), or 0 if the group cannot
        tell.

        Another thread may communicate in a group of its own: torch saves checkpoints in the
        background like that (`dcp.async_save`), whatever step the script is in.
        """
        mark, self._mark = self._mark, collectives() if on else -1
        self._local_since = (since or "the optimizer's step") if on else ""
        self._local_thread = threading.get_ident()
        self.refused = None if on else self.refused
        return max(0, collectives() - mark) if mark >= 0 else 0

    @contextlib.contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """Refuse collectives inside, because the script's code is tried on this rank alone.

        Raises the refusal at the end if one was called, even if that code has caught the error.
        """
        self.local_only(True, since=what)
        self._local_thread = 0  # no peer would answer another thread either
        try:
            yield
        finally:
            self.local_only(False)
        refused, self.refused = self.refused, None
        if refused is not None:
            raise refused

    def _is_ours(self) -> bool:
        return bool(getattr(self._own, "depth", 0))

    def _is_aside(self, group: dist.ProcessGroup) -> bool:
        """Return whether a thread of the script works beside the step, in a group of its own."""
        mine = self._local_thread in (0, threading.get_ident())
        if mine or group is dist.group.WORLD:
            return False
        # autograd's threads, which Python has not started, do the work of the step itself
        return not isinstance(threading.current_thread(), threading._DummyThread)

    def _called(self, original: Callable[..., Any], method: str) -> Callable[..., Any]:
        name = _COLLECTIVES[method]

        @functools.wraps(original)
        def guarded(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            if not self._is_ours() and not sys._getframe(1).f_code.co_filename.startswith(OURS):
                if self._local_since and not self._is_aside(group):
                    self.refused = _refused(
                        f"torch.distributed.{name}", f"at {user_line()}, after {self._local_since}"
                    )
                    raise self.refused
                was_default = group is dist.group.WORLD
                self.need(group=False)
                self.counted += 1
                if self.calls.on_between is not None and _in_main_thread():
                    self.calls.on_between(f"torch.distributed.{name}")
                group = _now(group, was_default=was_default)
            return original(group, *args, **kwargs)

        return guarded

    def _made(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            # A mesh that is cut out of another one, or used only for arithmetic, has no backend of
            # its own.
            if not self._is_ours() and kwargs.get("_init_backend", True):
                parent = args[0] if name == _SPLIT_GROUP else None
                was_default = parent is not None and parent is dist.group.WORLD
                self.need(group=True)
                if was_default:
                    args = (_now(parent, was_default=True), *args[1:])
            return original(*args, **kwargs)

        return guarded

    def _read(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def guarded(group: dist.ProcessGroup) -> Any:
            asks = self.calls.on_rank_read is not None or self.calls.stands_for is not None
            if asks and not self._is_ours() and not _is_internal_read():
                was_default, asked, self.calls.on_rank_read = (
                    group is dist.group.WORLD,
                    self.calls.on_rank_read,
                    None,
                )
                if asked is not None:
                    asked()
                group = _now(group, was_default=was_default)
                given = (
                    None
                    if self.calls.stands_for is None or not was_default
                    else self.calls.stands_for()
                )
                if given is not None:
                    return given[_READS.index(name)]
            return original(group)

        return guarded


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _line() -> str:
    return user_line() or "an unknown line"


def _now(group: Any, *, was_default: bool) -> Any:
    """Return the group to go on with.

    That is the present default group, if `group` was the default one before.
    """
    return dist.group.WORLD if was_default and dist.group.WORLD is not None else group


def _is_internal_read() -> bool:
    """Return whether a read gives the script no information.

    This is so for reads by outlast and DDP, and by code that no script called (other threads).
    """
    frame: FrameType | None = sys._getframe(2)
    user = user_frame()
    while frame is not user and frame is not None:
        name = frame.f_code.co_filename
        guard = name == __file__  # it is around a call of the script's own
        if (name.startswith(OURS) and not guard) or name.endswith(_DDP):
            return True
        frame = frame.f_back
    return user is None


def _refused(what: str, where: str) -> TransactionError:
    if (optimizer := _stepping()) is not None:
        return TransactionError(
            f"{type(optimizer).__name__}.step communicates: {what} was called {where}; if a rank is"
            " lost there, the others are left with half an update",
            hint=(
                "use an optimizer whose step() is local, such as torch.optim.Muon or AdamW, and"
                " reduce gradients in front of it; without outlast calls this script runs as it is,"
                " and restarts from its own checkpoint"
            ),
        )
    return TransactionError(
        f"{what} was called {where}: another rank may have committed this step and will not come"
        " to it",
        hint=(
            'reduce before the optimizer, or say step.log(name=value, reduce="mean"), which reduces'
            " when the step is committed"
        ),
    )


def _stepping() -> Optimizer | None:
    """Return the optimizer in whose `step` this code runs, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "step" and not frame.f_code.co_filename.startswith(OURS):
            owner = frame.f_locals.get("self")
            if isinstance(owner, Optimizer):
                return owner
        frame = frame.f_back
    return None


def check_optimizer(optimizer: Optimizer) -> None:
    """Raise TransactionError for an optimizer whose step cannot be a transaction."""
    name, line = type(optimizer).__name__, user_line()
    where = f"{line}: " if line else ""
    if isinstance(optimizer, LBFGS):
        raise TransactionError(
            f"{where}{name} evaluates the model inside its step, after the vote",
            hint="use an optimizer whose step() takes no closure, such as AdamW",
        )
    # It is found by its name, because importing the class takes long, and few scripts use it.
    names = {kind.__name__ for kind in type(optimizer).__mro__}
    if "ZeroRedundancyOptimizer" in names:
        raise TransactionError(
            f"{where}{name} communicates inside its step, after the vote",
            hint="use fully_shard (FSDP2) to shard optimizer state",
        )
    for group in optimizer.param_groups:
        if any(
            isinstance(parameter, torch.Tensor)
            and getattr(parameter, "_in_backward_optimizers", None)
            for parameter in group["params"]
        ):
            raise TransactionError(
                f"{where}parameters of this {name} are also stepped during backward"
                " (_apply_optimizer_in_backward), before the vote",
                hint="call the optimizer after loss.backward()",
            )
