"""DistributedDataParallel over a group that is rebuilt: same object, same arguments, same bits.

All private calls into DDP stand in this file, behind feature checks (`missing`), for torch >= 2.6.

Rebuilding  `DDP._update_process_group` swaps the group and resets what an interrupted backward left, so hooks,
            comm hooks, mode and arguments are never touched. (Calling `__init__` again loses all of them.)
Same bits   DDP sums its gradients bucket by bucket, and the first backward uses other buckets than later ones.
            `freeze_buckets` lays them out before the first backward, and again after each rebuild: two small
            broadcasts from rank 0, collective over all ranks. `install` makes the reducer see its parameters last
            first, so that the frozen layout is the one that DDP would settle on, and communication overlaps backward.
            With find_unused_parameters the layout is fixed at construction and nothing needs to be done.

Not promised: torch.compile over a rebuilt DDP, SyncBatchNorm.
"""

from __future__ import annotations

import inspect
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import Reducer  # type: ignore[attr-defined]  # re-exported from C
from torch.nn.parallel import DistributedDataParallel

_ORDER = "_build_params_for_reducer"
_REDUCER = ("_push_all_rebuilt_params", "_rebuild_buckets", "_reset_state", "_update_process_group")
_NO_HOOK = ("", "None")

_arguments: WeakKeyDictionary[DistributedDataParallel, dict[str, Any]] = WeakKeyDictionary()
_originals: dict[str, Any] = {}


def missing() -> str:
    """What this torch lacks, or ""."""
    absent = [name for name in _REDUCER if not hasattr(Reducer, name)]
    absent += [name for name in ("_update_process_group", _ORDER) if not hasattr(DistributedDataParallel, name)]
    return f"torch {torch.__version__} has no {', '.join(absent)}" if absent else ""


def install() -> None:
    """From here on, learn the arguments of every DDP that the script makes. Idempotent."""
    if _originals or missing():
        return
    init, order = DistributedDataParallel.__init__, getattr(DistributedDataParallel, _ORDER)
    _originals.update({"__init__": init, _ORDER: order})
    signature = inspect.signature(init)

    def learning(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _arguments[self] = {name: value for name, value in signature.bind(self, *args, **kwargs).arguments.items() if name not in ("self", "module")}

    def last_first(self: DistributedDataParallel) -> tuple[list[Any], list[bool]]:
        parameters, sparse = order(self)
        if self.find_unused_parameters:  # there the constructor itself turns the buckets round
            return parameters, sparse
        return parameters[::-1], sparse[::-1]

    learning.__doc__, learning.__wrapped__ = init.__doc__, init  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = learning  # type: ignore[method-assign]
    setattr(DistributedDataParallel, _ORDER, last_first)


def uninstall() -> None:
    for name, original in _originals.items():
        setattr(DistributedDataParallel, name, original)
    _originals.clear()


def wrap(model: torch.nn.Module, **kwargs: Any) -> DistributedDataParallel:
    """DDP over the default group; communicates (DDP's own check and broadcast) unless the group is of one rank."""
    install()
    return DistributedDataParallel(model, **kwargs)


def arguments(ddp: DistributedDataParallel) -> dict[str, Any]:
    """The arguments that `ddp` was made with, as far as given; empty where it was made before `install`."""
    return dict(_arguments.get(ddp, {}))


def not_rebuildable(ddp: DistributedDataParallel) -> str:
    """Why `ddp` cannot move to another group, or ""."""
    if lack := missing():
        return lack
    if getattr(ddp, "device_mesh", None) is not None:
        return "its DistributedDataParallel was given a device_mesh, which belongs to the old group"
    given = arguments(ddp).get("process_group")
    if given is not None and given is not _default_of(ddp):
        return "its DistributedDataParallel was given a process_group of the script's own"
    if _builtin_hook(ddp):
        return f"its communication hook {_hook_name(ddp)} holds the old group"
    if any(isinstance(state, dist.ProcessGroup) for _, state in _hooks(ddp)):
        return f"its communication hook {_hook_name(ddp)} was registered with a process group; register it with None"
    if ddp.static_graph:
        return "static_graph=True records the first backward, which a repeat would record twice"
    if getattr(ddp, "_delay_all_reduce_params", None):
        return "delay_all_reduce_named_params keeps hooks on the old group"
    return ""


def not_exact(ddp: DistributedDataParallel) -> str:
    """Why identical bits cannot be promised for `ddp`, or ""."""
    if lack := missing():
        return lack
    if ddp.static_graph:
        return "static_graph=True"
    if ddp._use_python_reducer:
        return "torch.compile's python reducer orders the sums"
    if ddp.mixed_precision is not None:
        return "DistributedDataParallel's own mixed_precision"
    if any(state is not None for _, state in _hooks(ddp)):
        return f"communication hook {_hook_name(ddp)} keeps state of its own, which a repeat does not roll back"
    return ""


def freeze_buckets(ddp: DistributedDataParallel) -> str:
    """Lay the buckets out for good; "" if identical bits are promised, else why not.

    Collective over all ranks, not inside a step; before the first backward, and again after each `rebuild`.
    """
    reason = not_exact(ddp)
    if _freezable(ddp):
        if ddp._has_rebuilt_buckets:  # by a backward of the script's: lay them out as every other rank will
            reset_after_failure(ddp)
        ddp.reducer._push_all_rebuilt_params()
        ddp._has_rebuilt_buckets = bool(ddp.reducer._rebuild_buckets())
    return reason


def rebuild(ddp: DistributedDataParallel) -> str:
    """Move `ddp` to the present default group; "" if done, else why it cannot be. Local; `freeze_buckets` must follow.

    Parameters, buffers and gradients are not touched, nothing is synchronised: heal first.
    """
    if reason := not_rebuildable(ddp):
        return reason
    world = dist.group.WORLD
    assert world is not None, "build the group first"
    ddp._update_process_group(world)
    given = _arguments.get(ddp, {})
    if given.get("process_group") is not None:
        given["process_group"] = world
    return ""


def reset_after_failure(ddp: DistributedDataParallel) -> None:
    """Forget an interrupted forward or backward. Local; the buckets thaw, so `rebuild` or `freeze_buckets` must follow."""
    if not missing() and not ddp._use_python_reducer:
        ddp.reducer._reset_state()
        ddp._has_rebuilt_buckets = False


def _freezable(ddp: DistributedDataParallel) -> bool:
    return not (missing() or ddp.find_unused_parameters or ddp.static_graph or ddp._use_python_reducer)


def _default_of(ddp: DistributedDataParallel) -> Any:
    """The default group that `ddp` was built on: by name, because that group may be gone already."""
    group = ddp.process_group
    return group if group.group_desc == "default_pg" else None


def _hooks(ddp: DistributedDataParallel) -> list[tuple[Any, Any]]:
    return list(getattr(ddp, "_comm_hooks", ()))


def _hook_name(ddp: DistributedDataParallel) -> str:
    return str(ddp._get_ddp_logging_data().get("comm_hook", ""))


def _builtin_hook(ddp: DistributedDataParallel) -> bool:
    return not _hooks(ddp) and _hook_name(ddp) not in _NO_HOOK
