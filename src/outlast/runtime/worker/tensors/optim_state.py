"""An optimizer's state: tensors under stable names, and everything else as plain data.

It is restored in place, bit for bit.

A tensor of the state is named `<optimizer>.<group>.<index>.<key>`. Dtypes are those of the saved
tensors, whatever the parameter's dtype (load_state_dict would cast). A tensor that was on the CPU
beside a parameter that is not (AdamW's `step`) goes back to the CPU.

Limits     Refused: a key of the state that is on the CPU for some parameters and not for others;
           distributed state that is laid out in another way than its parameter. Tensors inside
           tuples, lists and dicts come back on their parameter's device (scalars: on the CPU).
"""

from __future__ import annotations

import collections
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from outlast.errors import StateError
from outlast.runtime.worker.tensors.sharding import is_distributed, like, local, same_layout

# entries of a group: the parameters themselves, and names that the script sets again
_SKIPPED = ("params", "param_names")
_UNLIKE = "the model or the optimizer is not the one that was saved"


@dataclass(frozen=True, slots=True)
class OptimizerEstimate:
    """This says how much state an optimizer has after the first step.

    bytes   of all tensors together
    count   the number of tensors
    how     where these two numbers come from
    """

    bytes: int
    count: int
    how: str


def unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer inside wrappers that show its groups and state as their own.

    accelerate's is one: a hook, or a group that is added, belongs to the real optimizer.
    """
    while "param_groups" not in vars(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, torch.optim.Optimizer):
            break
        optimizer = inner
    return optimizer


def parameters(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all parameters as (`<group>.<index>`, parameter)."""
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            yield f"{number}.{index}", parameter


def tensors(name: str, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Return the live tensors of the state, distributed ones as such.

    There are none before the first step.
    """
    out: dict[str, torch.Tensor] = {}
    for place, parameter in parameters(optimizer):
        for key, value in optimizer.state.get(parameter, {}).items():
            if _is_plain(key, value):
                out[f"{name}.{place}.{key}"] = value
    return out


def describe(
    optimizer: torch.optim.Optimizer, added: Sequence[Sequence[str]] = ()
) -> dict[str, Any]:
    """Return what `tensors` leaves out, as data for `tree.encode`.

    These are hyper-parameters, counters, tuples, and which tensors are on another device than their
    parameter. `added` has the names of parameters, for each group that the script has added in its
    loop.

    Raises StateError if a tensor of the optimizer is distributed in another way than its parameter.
    """
    rest: dict[str, dict[Any, Any]] = {}
    whole: list[str] = []
    for place, parameter in parameters(optimizer):
        for key, value in optimizer.state.get(parameter, {}).items():
            if not _is_plain(key, value):
                rest.setdefault(place, {})[key] = value
            elif is_distributed(parameter) and not is_distributed(value):
                whole.append(f"{place}.{key}")
            elif is_distributed(value) and not (
                is_distributed(parameter) and same_layout(value, parameter)
            ):
                raise StateError(
                    f"{place}.{key} of an optimizer is distributed in another way than its"
                    " parameter",
                    hint="this optimizer cannot be kept",
                )
    others = {
        key: value for key, value in _state(optimizer).items() if not isinstance(key, torch.Tensor)
    }
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return {
        **({"added": added} if added else {}),
        "sizes": sizes,
        "groups": hyper(optimizer),
        "rest": rest,
        "others": others,
        "whole": whole,
        "on_cpu": _keys_on_cpu(optimizer),
    }


def hyper(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the hyper-parameters of each group. These are live values, not copies."""
    return [
        {key: value for key, value in group.items() if key not in _SKIPPED}
        for group in optimizer.param_groups
    ]


def keep_hyper(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return `hyper` with its tensors copied, for `put_hyper`."""
    return [
        {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in group.items()
        }
        for group in hyper(optimizer)
    ]


def put_hyper(optimizer: torch.optim.Optimizer, saved: list[dict[str, Any]]) -> None:
    """Restore hyper-parameters. A learning rate that is a tensor keeps its identity.

    A group that was added since is removed, because the script adds it again when it repeats the
    step.
    """
    del optimizer.param_groups[len(saved) :]
    for group, values in zip(optimizer.param_groups, saved, strict=True):
        for key in [key for key in group if key not in values and key not in _SKIPPED]:
            del group[key]
        for key, value in values.items():
            mine = group.get(key)
            if (
                isinstance(value, torch.Tensor)
                and isinstance(mine, torch.Tensor)
                and _fits(mine, value)
            ):
                mine.detach().copy_(value)
            else:
                group[key] = value.clone() if isinstance(value, torch.Tensor) else value


def load(
    name: str,
    optimizer: torch.optim.Optimizer,
    described: Mapping[str, Any],
    given: Mapping[str, torch.Tensor],
    known: Mapping[str, torch.Tensor],
    *,
    groups: int,
) -> None:
    """Set the state to what `describe` and `tensors` returned.

    `given` has local tensors, which are copied and never kept. Raises StateError if groups differ.
    The optimizer had so many `groups` before the loop. Groups of parameters in `known`, by name,
    are added and removed as in what was saved.
    """
    _fit_groups(optimizer, described, known, groups)
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    if sizes != described["sizes"]:
        raise StateError(
            f"{name} has parameter groups of {sizes} here, but of {described['sizes']} in what was"
            " saved",
            hint=_UNLIKE,
        )
    put_hyper(optimizer, described["groups"])
    incoming = _by_place(name, given)
    on_cpu, whole = set(described["on_cpu"]), set(described["whole"])
    for place, parameter in parameters(optimizer):
        fresh = {
            key: _onto(local(parameter).device, value)
            for key, value in described["rest"].get(place, {}).items()
        }
        mine = optimizer.state.get(parameter, {})
        for key, value in incoming.pop(place, {}).items():
            where = f"{name}.{place}.{key}"
            fresh[key] = _put(
                where,
                mine.get(key),
                value,
                parameter,
                cpu=key in on_cpu,
                whole=f"{place}.{key}" in whole,
            )
        _replace(optimizer, parameter, fresh)
    if incoming:
        raise StateError(f"{name} has no parameter {min(incoming)} here", hint=_UNLIKE)
    state = _state(optimizer)
    for key in [key for key in state if not isinstance(key, torch.Tensor)]:
        del state[key]
    state.update(described["others"])


def added_groups(
    name: str, optimizer: torch.optim.Optimizer, known: Mapping[str, torch.Tensor], groups: int
) -> list[list[str]]:
    """Return the names of the parameters in each group after the first `groups` ones.

    Raises StateError for a parameter that is not `known`, because nothing else keeps it.
    """
    if len(optimizer.param_groups) <= groups:
        return []
    names = {id(parameter): one for one, parameter in known.items()}
    added = [group["params"] for group in optimizer.param_groups[groups:]]
    if any(id(parameter) not in names for group in added for parameter in group):
        raise StateError(
            f"a group of {name} that was added in the loop has parameters that no module in"
            " run.state(...) has, so a rank that is replaced would not have them",
            hint="give run.state(...) the module they belong to",
        )
    return [[names[id(parameter)] for parameter in group] for group in added]


def _fit_groups(
    optimizer: torch.optim.Optimizer,
    described: Mapping[str, Any],
    known: Mapping[str, torch.Tensor],
    groups: int,
) -> None:
    """Add the groups that the script had added where this was saved, and remove newer ones."""
    wanted, added = len(described["sizes"]), described.get("added", ())
    if groups <= wanted:
        del optimizer.param_groups[wanted:]
    for names in added[len(optimizer.param_groups) - wanted + len(added) :]:
        if all(name in known for name in names):
            optimizer.add_param_group({"params": [known[name] for name in names]})


def estimate_bytes(optimizer: torch.optim.Optimizer) -> OptimizerEstimate:
    """Return how much state there is, or will be after the first step.

    A step of a clone on meta tensors finds that out, and computes nothing.
    """
    have = [tensor for value in optimizer.state.values() for tensor in tensors_in(value)]
    if have:
        return OptimizerEstimate(
            sum(local(tensor).nbytes for tensor in have), len(have), "the state that is there"
        )
    clone = _meta_clone(optimizer)
    failed = False
    try:
        with torch.no_grad():
            inspect.unwrap(type(clone).step)(clone)
    # It may refuse meta tensors in any way, but may have created its state before it did.
    except Exception:  # boundary: the user's optimizer
        failed = True
    if failed and not all(clone.state.get(parameter) for _, parameter in parameters(clone)):
        sizes = [local(parameter).nbytes for _, parameter in parameters(optimizer)]
        return OptimizerEstimate(
            2 * sum(sizes),
            2 * len(sizes),
            "twice its parameters, because its class cannot step on meta tensors",
        )
    made = [tensor for value in clone.state.values() for tensor in tensors_in(value)]
    return OptimizerEstimate(
        sum(tensor.nbytes for tensor in made), len(made), "a step of its class on meta tensors"
    )


def _state(optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
    # it is typed as keyed by tensors, but some optimizers keep strings there
    return optimizer.state


def _onto(device: torch.device, value: Any) -> Any:
    """Copy the tensors inside `value` to `device`. Scalars stay on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.dim() == 0 else value.detach().to(device, copy=True)
    if isinstance(value, dict):
        return {key: _onto(device, item) for key, item in value.items()}
    return (
        type(value)(_onto(device, item) for item in value)
        if type(value) in (list, tuple)
        else value
    )


def _is_plain(key: object, value: object) -> bool:
    """Return True for a tensor whose key can be a part of its name in an image."""
    return isinstance(value, torch.Tensor) and type(key) is str and "/" not in key


def _fits(mine: torch.Tensor, value: torch.Tensor) -> bool:
    return mine.shape == value.shape and mine.dtype == value.dtype


def _keys_on_cpu(optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the keys whose tensors are on the CPU although a parameter is not."""
    seen: dict[str, set[bool]] = {}
    for _, parameter in parameters(optimizer):
        if parameter.device.type == "cpu":
            continue
        for key, value in optimizer.state.get(parameter, {}).items():
            if _is_plain(key, value):
                seen.setdefault(key, set()).add(value.device.type == "cpu")
    mixed = [key for key, kinds in seen.items() if len(kinds) > 1]
    if mixed:
        raise StateError(
            f"the optimizer's {mixed[0]!r} lives on the CPU for some parameters and not for others",
            hint="use one optimizer for each kind",
        )
    return [key for key, kinds in seen.items() if kinds == {True}]


def _by_place(name: str, given: Mapping[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Return the tensors of the optimizer `name` by parameter (`<group>.<index>`) and key."""
    out: dict[str, dict[str, torch.Tensor]] = {}
    for full, value in given.items():
        parts = full.split(".", 3)
        if len(parts) == 4 and parts[0] == name:
            out.setdefault(f"{parts[1]}.{parts[2]}", {})[parts[3]] = value
    return out


def _put(
    where: str, mine: Any, value: torch.Tensor, parameter: torch.Tensor, *, cpu: bool, whole: bool
) -> torch.Tensor:
    """Put `value` into the existing tensor if it fits, otherwise into a new one."""
    distributed = is_distributed(parameter) and not whole
    if (
        isinstance(mine, torch.Tensor)
        and is_distributed(mine) == distributed
        and _fits(local(mine), value)
    ):
        local(mine).copy_(value)
        return mine
    if distributed and local(parameter).shape != value.shape:
        raise StateError(
            f"{where} is {list(value.shape)} in what was saved, but its parameter's shard is"
            f" {list(local(parameter).shape)}",
            hint=_UNLIKE,
        )
    device = torch.device("cpu") if cpu else local(parameter).device
    like_parameter = local(parameter).shape == value.shape and local(parameter).dim() > 0
    fresh = (
        torch.empty_like(local(parameter), dtype=value.dtype, device=device)
        if like_parameter
        else torch.empty_like(value, device=device)
    )
    fresh.copy_(value)
    return like(parameter, fresh) if distributed else fresh


def _replace(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor, fresh: dict[Any, Any]
) -> None:
    if not fresh:
        optimizer.state.pop(parameter, None)
        return
    mine = optimizer.state[parameter]
    mine.clear()
    mine.update(fresh)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors inside a value of the state, at any depth."""
    if isinstance(value, torch.Tensor):
        return [value]
    items = (
        value.values()
        if isinstance(value, Mapping)
        else value
        if isinstance(value, (list, tuple))
        else ()
    )
    return [tensor for item in items for tensor in tensors_in(item)]


def _meta_clone(optimizer: torch.optim.Optimizer) -> Any:
    """Return a clone with meta parameters and gradients, and without hooks.

    It has the same class, but not the `step` that a scheduler puts on the instance.
    """
    clone = object.__new__(type(optimizer))
    clone.__dict__.update(
        {
            # a step of an optimizer that wraps another one must not step the real one
            key: _meta_clone(value) if isinstance(value, torch.optim.Optimizer) else value
            for key, value in optimizer.__dict__.items()
            if key != "step"
        }
    )
    clone.__dict__.update(state=collections.defaultdict(dict), param_groups=[])
    clone.__dict__.update(
        _optimizer_step_pre_hooks=collections.OrderedDict(),
        _optimizer_step_post_hooks=collections.OrderedDict(),
    )
    plain = {"foreach": False, "fused": False, "capturable": False}
    for group in optimizer.param_groups:
        metas = [torch.empty_like(local(parameter), device="meta") for parameter in group["params"]]
        for meta in metas:
            meta.grad = torch.empty_like(meta)
        clone.param_groups.append(
            {
                **group,
                **{key: value for key, value in plain.items() if key in group},
                "params": metas,
            }
        )
    return clone
