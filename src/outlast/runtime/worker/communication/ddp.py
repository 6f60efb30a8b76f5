"""DistributedDataParallel over a group that is rebuilt: same object, same arguments, same bits.

All uses of DDP's private functions are in this file, behind feature checks (`missing`), for torch
>= 2.6.

Rebuilding  `DDP._update_process_group` swaps the group and resets what an interrupted backward
            left, so hooks, comm hooks, mode and arguments are never touched. (Calling `__init__`
            again loses all of them.)
Same bits   DDP sums its gradients bucket by bucket, and the first backward uses other buckets than
            later ones. `freeze_buckets` lays them out before the first backward, and again after
            each rebuild: two small broadcasts from rank 0, collective over all ranks. `install`
            makes the reducer see its parameters last first, so that the frozen layout is the one
            that DDP would settle on, and communication overlaps backward. With
            find_unused_parameters the layout is fixed at construction and nothing needs to be done.
Views       With gradient_as_bucket_view a gradient that is zeroed in place stays a view of its
            bucket. DDP then divides it (g / n), where it multiplies one that is elsewhere (g * (1
            / n)): other bits, unless n is a power of 2. So `freeze_buckets` gives every rank the
            views of its new buckets, and `restore_views` puts them back to use where gradients were
            restored. `leave_buckets` drops those of the old buckets, into which a collective that
            was cut short may still write.

Not promised: torch.compile over a rebuilt DDP on a GPU, SyncBatchNorm.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import Reducer  # type: ignore[attr-defined]  # re-exported from C
from torch.nn.parallel import DistributedDataParallel

from outlast.errors import UsageError
from outlast.runtime.worker.communication import groups
from outlast.runtime.worker.script.hooks import user_line

_ORDER = "_build_params_for_reducer"
_MAKE = ("_ddp_init_helper", "_build_debug_param_to_name_mapping")
_REDUCER = (
    "_push_all_rebuilt_params",
    "_rebuild_buckets",
    "_remove_autograd_hooks",
    "_reset_state",
    "_update_process_group",
)
_NO_HOOK = ("", "None")

_arguments: WeakKeyDictionary[DistributedDataParallel, dict[str, Any]] = WeakKeyDictionary()
# which parameters of its model took a gradient when it was created
_taking: WeakKeyDictionary[DistributedDataParallel, list[bool]] = WeakKeyDictionary()
_originals: dict[str, Any] = {}
_making: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
# one for each of `_reduced`
_views: WeakKeyDictionary[DistributedDataParallel, list[torch.Tensor]] = WeakKeyDictionary()


def missing() -> str:
    """Return what this torch lacks, or ""."""
    absent = [name for name in _REDUCER if not hasattr(Reducer, name)]
    absent += [
        name
        for name in ("_update_process_group", _ORDER, *_MAKE)
        if not hasattr(DistributedDataParallel, name)
    ]
    return f"torch {torch.__version__} has no {', '.join(absent)}" if absent else ""


def install(making: Callable[[], AbstractContextManager[object]] | None = None) -> None:
    """Note the arguments of every DDP that the script creates from here on. This is idempotent.

    making  entered around each construction: `DDP(model)` in the script then does what
            run.replicate does
    """
    global _making
    if making is not None:
        _making = making
    if _originals or missing():
        return
    init, order = DistributedDataParallel.__init__, getattr(DistributedDataParallel, _ORDER)
    _originals.update({"__init__": init, _ORDER: order})
    signature = inspect.signature(init)

    def learning(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs).arguments
        _refuse_twice(given["module"])
        with _making():
            init(self, *args, **kwargs)
        _arguments[self] = {
            name: value for name, value in given.items() if name not in ("self", "module")
        }
        _taking[self] = [one.requires_grad for one in self.module.parameters()]

    def last_first(self: DistributedDataParallel) -> tuple[list[Any], list[bool]]:
        parameters, sparse = order(self)
        if self.find_unused_parameters:  # in this case the constructor itself reverses the buckets
            return parameters, sparse
        return parameters[::-1], sparse[::-1]

    learning.__doc__, learning.__wrapped__ = init.__doc__, init  # type: ignore[attr-defined]
    DistributedDataParallel.__init__ = learning  # type: ignore[method-assign]
    setattr(DistributedDataParallel, _ORDER, last_first)


def uninstall() -> None:
    global _making
    _making = contextlib.nullcontext
    for name, original in _originals.items():
        setattr(DistributedDataParallel, name, original)
    _originals.clear()


def wrap(model: torch.nn.Module, **kwargs: Any) -> DistributedDataParallel:
    """Wrap a model in DDP over the default group.

    This communicates (DDP's own check and broadcast) unless the group has one rank.
    """
    install()
    return DistributedDataParallel(model, **kwargs)


def holding(tensors: Iterable[torch.Tensor]) -> list[DistributedDataParallel]:
    """Return each DDP that was made since `install` around any of `tensors`, oldest first."""
    held = {id(tensor) for tensor in tensors}
    return [
        one for one in _arguments if any(id(parameter) in held for parameter in one.parameters())
    ]


def _refuse_twice(module: torch.nn.Module) -> None:
    """Raise UsageError for a model that is under DDP already.

    Its gradients would be summed twice.
    """
    if any(isinstance(part, DistributedDataParallel) for part in module.modules()):
        raise UsageError(
            f"{user_line()}: this model is under DistributedDataParallel already",
            hint=(
                "wrap it once: delete either the script's DistributedDataParallel(...) or"
                " run.replicate(...)"
            ),
        )


def any_made() -> bool:
    """Return whether a DDP that was created since `install` still exists."""
    return len(_arguments) > 0


def arguments(ddp: DistributedDataParallel) -> dict[str, Any]:
    """Return the arguments with which `ddp` was created, as far as they were given.

    They are empty if it was created before `install`.
    """
    return dict(_arguments.get(ddp, {}))


def not_rebuildable(ddp: DistributedDataParallel) -> str:
    """Return why `ddp` cannot move to another group, or ""."""
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
        return (
            f"its communication hook {_hook_name(ddp)} was registered with a process group;"
            " register it with None"
        )
    if ddp.static_graph:
        return "static_graph=True records the first backward, which a repeat would record twice"
    if getattr(ddp, "_delay_all_reduce_params", None):
        return "delay_all_reduce_named_params keeps hooks on the old group"
    return ""


def not_exact(ddp: DistributedDataParallel) -> str:
    """Return why identical bits cannot be promised for `ddp`, or ""."""
    if lack := missing():
        return lack
    if ddp.static_graph:
        return "static_graph=True"
    if ddp._use_python_reducer:
        return "torch.compile's python reducer orders the sums"
    if ddp.mixed_precision is not None:
        return "DistributedDataParallel's own mixed_precision"
    if any(state is not None for _, state in _hooks(ddp)):
        return (
            f"communication hook {_hook_name(ddp)} keeps state of its own, which a repeat does not"
            " roll back"
        )
    return ""


def freeze_buckets(ddp: DistributedDataParallel) -> str:
    """Fix the layout of the buckets. Return "", or why identical bits are not promised.

    It is collective over all ranks. Call it outside of a step, before the first backward, and again
    after each `rebuild`.
    """
    reason = not_exact(ddp)
    with _noting_views(ddp):
        if _freezable(ddp):
            # the script ran a backward: lay out the buckets as every other rank will
            if ddp._has_rebuilt_buckets:
                reset_after_failure(ddp)
            ddp.reducer._push_all_rebuilt_params()
            ddp._has_rebuilt_buckets = bool(ddp.reducer._rebuild_buckets())
        elif _renewable(ddp):
            _renew_reducer(ddp)
    return reason


def rebuild(ddp: DistributedDataParallel) -> str:
    """Move `ddp` to the present default group. Return "", or why it cannot be moved.

    It is local, and `freeze_buckets` must follow. Parameters, buffers and gradients are not touched
    and nothing is synchronised, so restore the state first.
    """
    if reason := not_rebuildable(ddp):
        return reason
    world = dist.group.WORLD
    assert world is not None, "build the group first"
    old = ddp.process_group
    ddp._update_process_group(world)
    # The reducer's reference may have been the last one to the old group (see let_go).
    groups.let_go([old])
    given = _arguments.get(ddp, {})
    if given.get("process_group") is not None:
        given["process_group"] = world
    return ""


def leave_buckets(ddp: DistributedDataParallel) -> None:
    """Replace gradients that are views of the buckets by zeros elsewhere.

    It is local, and `rebuild` and `freeze_buckets` must follow. Zeroing the views would not do: a
    thread of the old group may write into its bucket until its sockets are drained.
    """
    if _has_views(ddp):
        for parameter in _reduced(ddp):
            if parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter)


def buffer_syncs(replicas: Iterable[DistributedDataParallel]) -> list[bool]:
    """Return, for each of `replicas`, whether its next forward sends the buffers of rank 0 to all.

    DDP decides that by the last forward: it does so after one with gradients to be summed, and not
    after one under no_grad or no_sync.
    """
    return [one.require_forward_param_sync for one in replicas]


def put_buffer_syncs(replicas: Iterable[DistributedDataParallel], syncs: list[bool]) -> None:
    """Set whether the next forward of each syncs its buffers, as `buffer_syncs` returned it."""
    for one, sync in zip(replicas, syncs, strict=False):
        one.require_forward_param_sync = sync


def restore_views(ddp: DistributedDataParallel) -> None:
    """Move gradients that were set since `freeze_buckets` into the buckets. This is local.

    On ranks that ran a backward they are there already.
    """
    if ddp not in _views:
        return
    for parameter, view in zip(_reduced(ddp), _views[ddp], strict=True):
        if parameter.grad is not None and parameter.grad.data_ptr() != view.data_ptr():
            view.copy_(parameter.grad)
            parameter.grad = view


def reset_after_failure(ddp: DistributedDataParallel) -> None:
    """Forget an interrupted forward or backward.

    It is local. The buckets are not frozen afterwards, so `rebuild` or `freeze_buckets` must
    follow.
    """
    if not missing() and not ddp._use_python_reducer:
        ddp.reducer._reset_state()
        ddp._has_rebuilt_buckets = False


def _freezable(ddp: DistributedDataParallel) -> bool:
    return not (
        missing() or ddp.find_unused_parameters or ddp.static_graph or ddp._use_python_reducer
    )


def _has_views(ddp: DistributedDataParallel) -> bool:
    return bool(ddp.gradient_as_bucket_view) and not (missing() or ddp._use_python_reducer)


def _renewable(ddp: DistributedDataParallel) -> bool:
    """Return whether the buckets are never laid out again, although views of them are needed.

    Only a new reducer has new buckets then.
    """
    exact = not (ddp.static_graph or ddp.mixed_precision is not None or _builtin_hook(ddp))
    return exact and _has_views(ddp) and bool(ddp.find_unused_parameters)


def _renew_reducer(ddp: DistributedDataParallel) -> None:
    """Create the reducer as DDP does when it is unpickled, and register its communication hooks.

    This is local.
    """
    ddp.reducer._remove_autograd_hooks()
    with _as_made(ddp):
        parameters, sparse = ddp._build_params_for_reducer()  # type: ignore[no-untyped-call]
        names = ddp._build_debug_param_to_name_mapping(parameters)  # type: ignore[no-untyped-call]
        ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)  # type: ignore[no-untyped-call]
    for hook, state in _hooks(ddp):
        assert ddp.logger is not None, "DDP makes its logger with its reducer"
        ddp.logger._set_comm_hook_name(hook.__qualname__)
        dist._register_comm_hook(ddp.reducer, state, hook)  # type: ignore[attr-defined]  # re-exported from C


@contextlib.contextmanager
def _as_made(ddp: DistributedDataParallel) -> Iterator[None]:
    """Let those parameters take a gradient that took one when `ddp` was created.

    The script may have frozen or unfrozen layers since. A new reducer must have the buckets of the
    other ranks anyway, and a replaced rank has made its own at the start.
    """
    parameters = list(ddp.module.parameters())
    now = [one.requires_grad for one in parameters]
    try:
        for parameter, takes in zip(parameters, _taking.get(ddp, now), strict=False):
            parameter.requires_grad_(takes)
        yield
    finally:
        for parameter, takes in zip(parameters, now, strict=True):
            parameter.requires_grad_(takes)


@contextlib.contextmanager
def _noting_views(ddp: DistributedDataParallel) -> Iterator[None]:
    """Note the views of the buckets that are created inside.

    DDP shows them only by letting gradients that exist refer to them.
    """
    if not _has_views(ddp):
        yield
        return
    parameters = _reduced(ddp)
    absent = [parameter for parameter in parameters if parameter.grad is None]
    for parameter in absent:
        parameter.grad = torch.zeros_like(parameter)
    try:
        yield
        _views[ddp] = [parameter.grad for parameter in parameters if parameter.grad is not None]
    finally:
        for parameter in absent:
            parameter.grad = None


def _reduced(ddp: DistributedDataParallel) -> list[torch.Tensor]:
    """Return the parameters whose gradients are in buckets.

    These are all that DDP reduces, except those whose gradients are sparse.
    """
    with _as_made(ddp):
        parameters, sparse = ddp._build_params_for_reducer()  # type: ignore[no-untyped-call]
    return [
        parameter for parameter, is_sparse in zip(parameters, sparse, strict=True) if not is_sparse
    ]


def _default_of(ddp: DistributedDataParallel) -> Any:
    """Return the default group with which `ddp` was built.

    It is found by name, because that group may be gone already.
    """
    group = ddp.process_group
    return group if group.group_desc == "default_pg" else None


def _hooks(ddp: DistributedDataParallel) -> list[tuple[Any, Any]]:
    return list(getattr(ddp, "_comm_hooks", ()))


def _hook_name(ddp: DistributedDataParallel) -> str:
    return str(ddp._get_ddp_logging_data().get("comm_hook", ""))


def _builtin_hook(ddp: DistributedDataParallel) -> bool:
    return not _hooks(ddp) and _hook_name(ddp) not in _NO_HOOK
