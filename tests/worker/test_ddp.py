"""DDP over rebuilt groups: the gradients have the same hash in all steps, nothing of the user's is
lost, and nothing of a failed step is left.
"""

from __future__ import annotations

import functools
import hashlib
import os
import signal
from contextlib import nullcontext
from typing import Any

import pytest

from tests.worker._ranks import Rank, run_ranks

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from outlast.runtime.worker.communication import ddp, groups  # noqa: E402
from outlast.runtime.worker.communication.wake import SocketWatch  # noqa: E402

SEVERAL_BUCKETS = {"bucket_cap_mb": 0.02}


class World:
    """One rank's groups, one generation after another."""

    def __init__(self, rank: Rank) -> None:
        ddp.install()
        self.rank = rank
        self.watch = SocketWatch()
        self.watch.install()
        self.store = groups.connect("127.0.0.1", rank.port, 20.0, self.watch)
        self.generation = -1
        self.group: groups.BuiltGroup | None = None
        self.next()

    def next(self, world_size: int = 0) -> None:
        if self.group is not None:
            groups.destroy(self.group)
        self.generation += 1
        self.group = groups.build(
            store=self.store,
            generation=self.generation,
            rank=self.rank.rank,
            world_size=world_size or self.rank.world_size,
            backend="gloo",
            timeout_s=20.0,
            watch=self.watch,
        )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *[nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6)], nn.Linear(64, 7)
    )


def batch(rank: Rank) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(rank.rank + 1)
    return torch.randn(16, 64, generator=generator), torch.randn(16, 7, generator=generator)


def gradients(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(b"-" if parameter.grad is None else parameter.grad.numpy().tobytes())
    return digest.hexdigest()[:8]


def backward(model: nn.Module, rank: Rank, *, clear: bool = True) -> str:
    if clear:
        model.zero_grad(set_to_none=True)
    inputs, targets = batch(rank)
    nn.functional.mse_loss(model(inputs), targets).backward()
    return gradients(model)


def _hashes(rank: Rank, options: dict[str, Any], frozen: bool) -> list[str]:
    world = World(rank)
    model = ddp.wrap(network(), **SEVERAL_BUCKETS, **options)
    out = []
    for _ in range(3):
        if frozen:
            assert ddp.freeze_buckets(model) == ""
        out += [backward(model, rank) for _ in range(3)]
        world.next()
        assert ddp.rebuild(model) == ""
    return out


@functools.cache
def frozen_hash() -> str:
    """Return the hash that 4 ranks compute with frozen buckets in every step."""
    return str(run_ranks(4, _hashes, {}, True)[0][0])


OPTIONS = [
    {},
    pytest.param({"gradient_as_bucket_view": True}, marks=pytest.mark.drill),
    pytest.param({"find_unused_parameters": True}, marks=pytest.mark.drill),
]


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "bucket_view", "find_unused"])
def test_frozen_buckets_give_one_gradient_hash_over_rebuilds(
    options: dict[str, Any],
) -> None:
    """Method: 4 ranks with fixed input and 5 buckets, in 3 generations of 3 backwards each. Every
    gradient of every rank is hashed.
    """
    answers = run_ranks(4, _hashes, options, True)
    assert {digest for answer in answers for digest in answer} == {answers[0][0]}


def test_without_frozen_buckets_the_first_backward_differs() -> None:
    """The frozen layout is also the one that DDP chooses by itself after its first backward."""
    free = run_ranks(4, _hashes, {}, False)[0]
    assert free[0] != free[1]
    assert frozen_hash() == free[1]


def _from_solo(rank: Rank) -> list[str]:
    """Rank 3 is a spare: it made DDP alone, ran a throw-away step, and joins in generation 1.

    Rank 0 ran a backward of its own before run.steps.
    """
    if rank.rank < 3:
        world = World(Rank(rank.rank, 3, rank.port))
        model = ddp.wrap(network(), **SEVERAL_BUCKETS)
        backward(model, rank)
        backward(model, rank)
    else:
        ddp.install()
        alone = groups.solo()
        model = ddp.wrap(network(), **SEVERAL_BUCKETS)
        backward(model, rank)
        groups.destroy(alone)
        world = World.__new__(World)
        world.rank, world.watch, world.generation, world.group = rank, SocketWatch(), 0, None
        world.store = groups.connect("127.0.0.1", rank.port, 20.0, world.watch)
    world.rank = rank
    world.next()
    assert ddp.rebuild(model) == ""
    assert ddp.freeze_buckets(model) == ""
    return [backward(model, rank) for _ in range(3)]


def test_a_spares_model_joins_the_survivors_with_the_frozen_bits() -> None:
    answers = run_ranks(4, _from_solo)
    assert {digest for answer in answers for digest in answer} == {frozen_hash()}


def _warmed_up(rank: Rank) -> list[str]:
    World(rank)
    model = ddp.wrap(network(), **SEVERAL_BUCKETS)
    backward(model, rank)
    backward(model, rank)
    assert ddp.freeze_buckets(model) == ""
    return [backward(model, rank) for _ in range(2)]


def test_buckets_that_a_backward_of_the_script_laid_out_are_rebuilt() -> None:
    assert {digest for answer in run_ranks(4, _warmed_up) for digest in answer} == {frozen_hash()}


def _keeps(rank: Rank) -> dict[str, Any]:
    world = World(rank)
    # this one is made by the user
    model = DistributedDataParallel(network(), find_unused_parameters=False, **SEVERAL_BUCKETS)
    ddp.freeze_buckets(model)
    calls: list[str] = []
    model.register_forward_hook(lambda *_: calls.append("forward"))
    model.register_full_backward_hook(lambda *_: calls.append("backward"))
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    backward(model, rank)
    model.eval()
    model.require_backward_grad_sync = False
    before, reference = gradients(model), [parameter.data_ptr() for parameter in model.parameters()]
    world.next()
    assert ddp.rebuild(model) == ""
    assert ddp.freeze_buckets(model) == ""
    out = {
        "arguments": ddp.arguments(model),
        "mode": model.training,
        "sync": model.require_backward_grad_sync,
        "gradients": gradients(model) == before,
        "parameters": [parameter.data_ptr() for parameter in model.parameters()] == reference,
    }
    model.train()
    model.require_backward_grad_sync = True
    calls.clear()
    out["same bits"] = backward(model, rank) == before
    out["calls"] = sorted(calls)
    return out


def test_hooks_mode_and_arguments_of_ddp_survive_a_rebuild() -> None:
    expected = {
        "arguments": {"find_unused_parameters": False, **SEVERAL_BUCKETS},
        "mode": False,
        "sync": False,
        "gradients": True,
        "parameters": True,
        "same bits": True,
        "calls": ["backward", "forward"],
    }
    assert run_ranks(2, _keeps) == [expected] * 2


def _interrupted(rank: Rank, options: dict[str, Any]) -> tuple[list[str], str]:
    """Rank 3 dies inside a backward. The others are interrupted in it, and repeat it as three
    ranks.
    """
    world = World(rank)
    model = ddp.wrap(network(), **SEVERAL_BUCKETS, **options)
    ddp.freeze_buckets(model)
    backward(model, rank)
    if rank.rank == 3:
        for parameter in model.module[3].parameters():
            parameter.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(RuntimeError):
        [backward(model, rank) for _ in range(100)]
    ddp.reset_after_failure(model)
    model.zero_grad(set_to_none=True)
    world.next(world_size=3)
    assert ddp.rebuild(model) == ""
    assert ddp.freeze_buckets(model) == ""
    return [backward(model, rank) for _ in range(3)], ddp.not_exact(model)


@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "bucket_view", "find_unused"])
def test_an_interrupted_backward_leaves_nothing_behind_in_the_repeat(
    options: dict[str, Any],
) -> None:
    """Method: SIGKILL in the middle of a backward. The repeats of the three remaining ranks equal
    those of three ranks that never failed.
    """
    answers = run_ranks(4, _interrupted, options, may_die=(3,))
    undisturbed = run_ranks(3, _hashes, options, True)
    assert {digest for answer in answers[:3] for digest in answer[0]} == {undisturbed[0][0]}


def _raises_in_forward(rank: Rank) -> list[str]:
    """All ranks live. User code raises between forward and backward, and within no_sync.

    No new group is built.
    """
    World(rank)
    model = ddp.wrap(network(), **SEVERAL_BUCKETS)
    ddp.freeze_buckets(model)
    out = [backward(model, rank)]
    with pytest.raises(ZeroDivisionError), model.no_sync():
        model(batch(rank)[0]).sum().item() / 0
    model(batch(rank)[0])  # a forward without a backward
    ddp.reset_after_failure(model)
    ddp.freeze_buckets(model)
    return [*out, *(backward(model, rank) for _ in range(2))]


def test_a_step_that_failed_before_backward_repeats_with_the_same_bits() -> None:
    answers = run_ranks(2, _raises_in_forward)
    assert {digest for answer in answers for digest in answer} == {answers[0][0]}


def _accumulates(rank: Rank, options: dict[str, Any], cut_at: int) -> str:
    """Run three micro-batches, with the group rebuilt before number `cut_at` (0: before the first
    one, 3: not at all).
    """
    world = World(rank)
    model = ddp.wrap(network(), **SEVERAL_BUCKETS, **options)
    ddp.freeze_buckets(model)
    backward(model, rank)
    model.zero_grad(set_to_none=True)
    for index in range(3):
        if index == cut_at:
            world.next()
            assert ddp.rebuild(model) == ""
            assert ddp.freeze_buckets(model) == ""
        with model.no_sync() if index < 2 else nullcontext():
            backward(model, rank, clear=False)
    return gradients(model)


@pytest.mark.parametrize(
    "options", [{}, {"gradient_as_bucket_view": True}], ids=["plain", "bucket_view"]
)
def test_gradients_accumulated_under_no_sync_survive_a_rebuild_bit_for_bit(
    options: dict[str, Any],
) -> None:
    answers = [run_ranks(2, _accumulates, options, cut_at) for cut_at in (3, 0, 1, 2)]
    assert {digest for answer in answers for digest in answer} == {answers[0][0]}


def zeroed(model: nn.Module, rank: Rank) -> str:
    """Run a backward onto gradients that were zeroed in place."""
    model.zero_grad(set_to_none=False)
    return backward(model, rank, clear=False)


def _replaced(rank: Rank, options: dict[str, Any], replaced: bool) -> list[str]:
    """Three ranks zero their gradients in place. In generation 1 the last rank may be a new
    process.

    Its gradients are zeros as its predecessor's were, which the image records.
    """
    world = World(rank)
    model = ddp.wrap(network(), **SEVERAL_BUCKETS, **options)
    assert ddp.freeze_buckets(model) == ""
    out = [zeroed(model, rank) for _ in range(3)]
    is_new = replaced and rank.rank == 2
    if is_new:
        groups.destroy(world.group)
        world.group = groups.solo()
        model = ddp.wrap(network(), **SEVERAL_BUCKETS, **options)
    else:
        ddp.leave_buckets(model)
    world.next()
    assert ddp.rebuild(model) == ""
    assert ddp.freeze_buckets(model) == ""
    if is_new:
        assert all(parameter.grad is None for parameter in model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        ddp.restore_views(model)
    return out + [zeroed(model, rank) for _ in range(3)]


FIND_UNUSED = pytest.mark.parametrize("find_unused", [False, True], ids=["frozen", "find_unused"])


@FIND_UNUSED
def test_zeroed_views_of_buckets_have_the_same_bits_after_a_replacement(find_unused: bool) -> None:
    """DDP divides a view of a bucket by 3, and multiplies a gradient that is not a view by a third.

    Only the very first backward of a run finds no views.
    """
    options = {"gradient_as_bucket_view": True, "find_unused_parameters": find_unused}
    calm = run_ranks(3, _replaced, options, False)
    first, *later = calm[0]
    assert first != later[0], "the two ways to divide cannot be told apart here"
    assert later == [later[0]] * 5
    assert run_ranks(3, _replaced, options, True) == calm


def _thawed(rank: Rank, replaced: bool) -> list[str]:
    """Layers are frozen after the wrap, and unfrozen in generation 1. The last rank may be a new
    process.
    """
    world = World(rank)
    options = {"gradient_as_bucket_view": True, "find_unused_parameters": True}
    model = ddp.wrap(network(), **SEVERAL_BUCKETS, **options)
    assert ddp.freeze_buckets(model) == ""
    model.module[:3].requires_grad_(False)
    out = [backward(model, rank) for _ in range(2)]
    is_new = replaced and rank.rank == 1
    if is_new:
        groups.destroy(world.group)
        world.group = groups.solo()
        model = ddp.wrap(network(), **SEVERAL_BUCKETS, **options)
    else:
        ddp.leave_buckets(model)
    world.next()
    assert ddp.rebuild(model) == ""
    assert ddp.freeze_buckets(model) == ""
    model.module[:3].requires_grad_(False)
    out += [backward(model, rank) for _ in range(2)]
    model.module[:3].requires_grad_(True)
    return out + [backward(model, rank) for _ in range(2)]


def test_layers_frozen_in_a_regroup_are_reduced_once_they_are_thawed() -> None:
    """All ranks must have the buckets that a replaced rank makes when it runs its script from the
    top.
    """
    calm = run_ranks(2, _thawed, False)
    assert calm[0] == calm[1]
    assert len(set(calm[0])) == 2
    assert run_ranks(2, _thawed, True) == calm


def _written_late(rank: Rank, find_unused: bool) -> bool:
    """Write to the memory of the old buckets after their gradients were cleared, as gloo may do.
    Return whether no gradient changed.
    """
    world = World(rank)
    options = {"gradient_as_bucket_view": True, "find_unused_parameters": find_unused}
    model = ddp.wrap(network(), **SEVERAL_BUCKETS, **options)
    ddp.freeze_buckets(model)
    backward(model, rank)
    old = [parameter.grad for parameter in model.parameters()]
    ddp.leave_buckets(model)
    world.next()
    ddp.rebuild(model)
    for step in (lambda: ddp.freeze_buckets(model), lambda: backward(model, rank, clear=False)):
        for gradient in old:
            gradient.fill_(float("nan"))
        step()
    return all(bool(torch.isfinite(parameter.grad).all()) for parameter in model.parameters())


@FIND_UNUSED
def test_a_late_write_into_an_old_bucket_reaches_no_gradient(find_unused: bool) -> None:
    assert run_ranks(2, _written_late, find_unused) == [True] * 2


def _hooked(rank: Rank) -> list[str]:
    """Return the gradients without the hook, with it, and with it after a rebuild that made a new
    reducer.
    """
    world = World(rank)
    model = ddp.wrap(network(), gradient_as_bucket_view=True, find_unused_parameters=True)
    ddp.freeze_buckets(model)
    out = [backward(model, rank)]
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    out.append(backward(model, rank))
    world.next()
    assert ddp.rebuild(model) == ""
    assert ddp.freeze_buckets(model) == ""
    return [*out, backward(model, rank)]


def test_a_communication_hook_moves_on_to_a_new_reducer() -> None:
    without, hooked, moved = run_ranks(2, _hooked)[0]
    assert without != hooked
    assert moved == hooked


def _refusals(rank: Rank) -> dict[str, str]:
    World(rank)
    out = {"plain": ddp.not_rebuildable(ddp.wrap(network()))}
    out["world"] = ddp.not_rebuildable(
        DistributedDataParallel(network(), process_group=dist.group.WORLD)
    )
    out["subgroup"] = ddp.rebuild(
        DistributedDataParallel(network(), process_group=dist.new_group([0, 1]))
    )
    out["static"] = ddp.rebuild(DistributedDataParallel(network(), static_graph=True))
    hooked = ddp.wrap(network())
    hooked.register_comm_hook(dist.group.WORLD, default_hooks.allreduce_hook)
    out["hook"] = ddp.rebuild(hooked)
    out["hook exact"] = ddp.freeze_buckets(hooked)
    built_in = ddp.wrap(network())
    built_in._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    out["builtin"] = ddp.rebuild(built_in)
    return out


def test_what_cannot_move_to_another_group_is_refused_with_the_reason() -> None:
    said = run_ranks(2, _refusals)[0]
    assert said["plain"] == said["world"] == ""
    assert "process_group of the script's own" in said["subgroup"]
    assert "static_graph" in said["static"]
    assert "register it with None" in said["hook"]
    assert "state of its own" in said["hook exact"]
    assert "holds the old group" in said["builtin"]


def test_uninstalled_ddp_is_as_torch_made_it() -> None:
    before = (DistributedDataParallel.__init__, DistributedDataParallel._build_params_for_reducer)
    ddp.install()
    ddp.install()
    assert DistributedDataParallel.__init__ is not before[0]
    ddp.uninstall()
    ddp.uninstall()
    assert (
        DistributedDataParallel.__init__,
        DistributedDataParallel._build_params_for_reducer,
    ) == before
    assert ddp.missing() == ""
