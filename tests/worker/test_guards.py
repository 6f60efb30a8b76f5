"""Guards: collectives of the script are counted and, after the optimizer, refused; its groups and
meshes are recorded.

A spare parks before any of these, and at its first read of its rank.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outlast.errors import TransactionError

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed import all_reduce as imported_before  # noqa: E402
from torch.distributed import get_rank as rank_imported_before  # noqa: E402
from torch.distributed import new_group as group_imported_before  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh as mesh_imported_before  # noqa: E402
from torch.distributed.optim import _apply_optimizer_in_backward  # type: ignore[attr-defined]  # noqa: E402

from outlast.runtime.worker.communication import ddp, groups  # noqa: E402
from outlast.runtime.worker.communication.guards import Guards, check_optimizer  # noqa: E402
from outlast.runtime.worker.communication.wake import SocketWatch  # noqa: E402


@pytest.fixture
def guards() -> Iterator[Guards]:
    group = groups.solo()
    made = Guards()
    made.install()
    yield made
    made.uninstall()
    groups.destroy(group)


def ones() -> Any:
    return torch.ones(1)


COLLECTIVES = {
    "all_reduce": lambda: dist.all_reduce(ones()),
    "all_reduce imported before": lambda: imported_before(ones()),
    "broadcast": lambda: dist.broadcast(ones(), 0),
    "barrier": lambda: dist.barrier(),
    "all_gather": lambda: dist.all_gather([ones()], ones()),
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(ones(), ones()),
    "all_gather_object": lambda: dist.all_gather_object([None], "x"),
    "broadcast_object_list": lambda: dist.broadcast_object_list(["x"], 0),
    "reduce": lambda: dist.reduce(ones(), 0),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(ones(), ones()),
    "gather": lambda: dist.gather(ones(), [ones()], 0),
    "scatter": lambda: dist.scatter(ones(), [ones()], 0),
    "all_to_all_single": lambda: dist.all_to_all_single(ones(), ones()),
    "scatter_object_list": lambda: dist.scatter_object_list([None], ["x"], 0),
    "monitored_barrier": lambda: dist.monitored_barrier(),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_of_the_script_is_counted_and_refused_in_the_tail(
    guards: Guards, name: str
) -> None:
    call = COLLECTIVES[name]
    call()
    assert guards.counted >= 1
    assert __file__ in guards.first_need
    counted = guards.counted
    guards.local_only(True, since="train.py:7 in step")
    with pytest.raises(TransactionError) as caught:
        call()
    line = call.__code__.co_firstlineno
    assert f"{__file__}:{line}" in str(caught.value)
    assert "train.py:7" in str(caught.value)
    assert 'step.log(name=value, reduce="mean")' in caught.value.hint
    assert guards.local_only(False) == 0
    call()
    assert guards.counted > counted


def test_a_thread_may_communicate_beside_a_step_in_a_group_of_its_own(guards: Guards) -> None:
    """Torch does this when it saves a checkpoint in the background. The script's own thread may not
    do so; no thread may in the group of the step, or while the script is tried on one rank alone.
    """
    sub = dist.new_group([0])

    def beside(group: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(dist.all_reduce, ones(), group=group).result()

    guards.local_only(True, since="train.py:7 in step")
    beside(sub)
    for refused in (lambda: dist.all_reduce(ones(), group=sub), lambda: beside(None)):
        with pytest.raises(TransactionError):
            refused()
    guards.local_only(False)
    with pytest.raises(TransactionError), guards.trying("the rehearsal"):
        beside(sub)


def test_collectives_of_outlast_and_ddp_are_neither_counted_nor_refused(guards: Guards) -> None:
    with guards.ours():
        dist.all_reduce(ones())
    model = ddp.wrap(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
    ddp.freeze_buckets(model)
    model(torch.ones(2, 4)).sum().backward()
    guards.local_only(True)
    with guards.ours():
        dist.all_reduce(ones())
        dist.barrier()
    assert guards.local_only(False) == 0
    assert guards.counted == 0


def test_connecting_a_group_of_the_scripts_own_is_not_counted(guards: Guards) -> None:
    watch = SocketWatch()
    watch.install()
    try:
        sub = dist.new_group([0])
    finally:
        watch.uninstall()
    assert guards.counted == 0
    assert guards.held
    dist.all_reduce(ones(), group=sub)
    assert guards.counted == 1


MAKERS = {
    "new_group": lambda: dist.new_group([0]),
    "new_group imported before": lambda: group_imported_before([0]),
    "new_subgroups": lambda: dist.new_subgroups(1),
    "init_device_mesh over the world": lambda: mesh_imported_before("cpu", (1,)),
    "init_device_mesh in two dimensions": lambda: mesh_imported_before("cpu", (1, 1)),
    "DeviceMesh": lambda: DeviceMesh("cpu", [0]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_group_or_mesh_of_the_scripts_is_noted_with_its_line(guards: Guards, name: str) -> None:
    """Method: the hooks record in which order they were called, and what was known at that time."""
    told: list[tuple[str, str]] = []
    guards.calls.on_need = lambda group: told.append((f"need {group}", guards.held))
    guards.calls.on_held = lambda: told.append(("held", guards.held))
    make = MAKERS[name]
    make()
    line = f"{__file__}:{make.__code__.co_firstlineno}"
    assert line in guards.held
    assert line in guards.first_need
    assert guards.counted == 0
    assert told[:2] == [("need True", ""), ("held", guards.held)]
    held, told[:] = guards.held, []
    make()
    assert {what for what, _ in told} == {"need True"}, "the first one is told once"
    assert guards.held == held


def test_a_collective_needs_a_group_and_creates_none(guards: Guards) -> None:
    needs: list[bool] = []
    guards.calls.on_need = needs.append
    dist.all_reduce(ones())
    assert needs == [False]
    assert guards.held == ""
    line = guards.first_need
    assert __file__ in line
    dist.new_group([0])
    assert guards.first_need == line


def test_groups_and_meshes_that_outlast_makes_are_not_the_scripts(guards: Guards) -> None:
    guards.calls.on_need = lambda group: pytest.fail("outlast itself needs nothing")
    with guards.ours():
        dist.new_group([0])
        mesh = mesh_imported_before("cpu", (1, 1), mesh_dim_names=("rows", "columns"))
    assert mesh["rows"].size() == 1, "a part of a mesh is no new one"
    assert (guards.held, guards.first_need) == ("", "")


def test_a_refused_need_creates_nothing(guards: Guards) -> None:
    def refuse(group: bool) -> None:
        raise TransactionError("not here")

    guards.calls.on_need = refuse
    before = len(dist.distributed_c10d._world.pg_map)
    for call in (*MAKERS.values(), *COLLECTIVES.values()):
        with pytest.raises(TransactionError, match="not here"):
            call()
    assert len(dist.distributed_c10d._world.pg_map) == before
    assert (guards.held, guards.first_need, guards.counted) == ("", "", 0)


def test_a_stand_in_group_reports_the_rank_of_the_process(guards: Guards) -> None:
    """Method: the solo group stands for rank 2 of 3. Code of outlast, and other groups, see the
    real values.
    """
    sub = dist.new_group([0])
    guards.calls.stands_for = lambda: (2, 3)
    assert (dist.get_rank(), rank_imported_before(), dist.get_world_size()) == (2, 2, 3)
    assert (sub.rank(), sub.size()) == (0, 1)
    with guards.ours():
        assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
    guards.calls.stands_for = lambda: None
    assert (dist.get_rank(), dist.get_world_size()) == (0, 1)


def test_a_functional_collective_in_the_tail_is_seen_at_its_end(guards: Guards) -> None:
    from torch.distributed import _functional_collectives as functional

    guards.local_only(True)
    functional.wait_tensor(functional.all_reduce(ones(), "sum", dist.group.WORLD))
    assert guards.local_only(False) == 1
    assert guards.local_only(False) == 0


def test_a_group_that_cannot_count_accuses_no_rank(guards: Guards) -> None:
    groups_before = dist.group.WORLD
    guards.local_only(True)
    dist.group.WORLD = None
    try:
        assert guards.local_only(False) == 0
    finally:
        dist.group.WORLD = groups_before


@pytest.mark.parametrize(
    "read",
    [
        lambda: dist.get_rank(),
        lambda: rank_imported_before(),
        lambda: dist.get_world_size(),
        lambda: dist.group.WORLD.rank(),
    ],
)
def test_the_first_read_of_rank_or_size_parks_once(guards: Guards, read: Any) -> None:
    parked: list[str] = []
    guards.install(on_rank_read=lambda: parked.append("parked"))
    with guards.ours():
        read()
    assert parked == []
    read()
    read()
    assert parked == ["parked"]


def test_a_sampler_or_a_mesh_parks_too_but_ddp_does_not(guards: Guards) -> None:
    parked: list[str] = []

    def armed() -> None:
        guards.install(on_rank_read=lambda: parked.append("parked"))

    armed()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    assert parked == []
    torch.utils.data.DistributedSampler(range(4))  # type: ignore[arg-type]
    assert parked == ["parked"]
    armed()
    dist.device_mesh.init_device_mesh("cpu", (1,))
    assert parked == ["parked", "parked"]


def test_the_answer_after_parking_is_that_of_the_group_joined_meanwhile(
    guards: Guards,
) -> None:
    """Method: the hook replaces the default group with a group object whose rank is 2 of 3. Nothing
    is connected.
    """

    class Joined(dist.ProcessGroup):
        def __init__(self) -> None:
            super().__init__(2, 3)

    before = dist.group.WORLD

    def park() -> None:
        dist.group.WORLD = Joined()

    guards.install(on_rank_read=park)
    try:
        assert dist.get_rank() == 2
        assert dist.get_world_size() == 3
    finally:
        dist.group.WORLD = before


def test_install_and_uninstall_are_idempotent() -> None:
    def guarded() -> tuple[Any, ...]:
        new_group = dist.distributed_c10d._new_group_with_tag
        return dist.ProcessGroup.allreduce, dist.ProcessGroup.rank, new_group, DeviceMesh.__init__

    before = guarded()
    made = Guards()
    made.install()
    once = guarded()
    made.install()
    assert guarded() == once
    assert all(one is not other for one, other in zip(before, once, strict=True))
    made.uninstall()
    made.uninstall()
    assert guarded() == before


def test_optimizers_whose_step_is_no_transaction_are_refused_with_the_line() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2))]
    with pytest.raises(TransactionError, match=rf"{__file__}:\d+ in test_.*LBFGS"):
        check_optimizer(torch.optim.LBFGS(parameters))

    class ZeroRedundancyOptimizer(torch.optim.SGD):
        """A stand-in for torch's class, which needs a group to be made. It is recognised by its
        name, as torch's is.
        """

    with pytest.raises(TransactionError, match="fully_shard"):
        check_optimizer(ZeroRedundancyOptimizer(parameters, lr=0.1))
    check_optimizer(torch.optim.SGD(parameters, lr=0.1))
    _apply_optimizer_in_backward(torch.optim.SGD, parameters, {"lr": 0.1})
    with pytest.raises(TransactionError, match="during backward"):
        check_optimizer(torch.optim.SGD(parameters, lr=0.1))


class Gathers(torch.optim.SGD):  # type: ignore[name-defined,misc]
    """An optimizer whose step communicates, as that of a sharded optimizer does."""

    def step(self, closure: Any = None) -> None:
        dist.broadcast(ones(), 0)


def test_an_optimizer_whose_step_communicates_is_refused_by_its_name(guards: Guards) -> None:
    optimizer = Gathers([torch.nn.Parameter(ones())], lr=0.1)
    guards.local_only(True, since="train.py:9")
    with pytest.raises(
        TransactionError, match=r"Gathers\.step communicates: .*broadcast"
    ) as caught:
        optimizer.step()
    assert "torch.optim.Muon" in (caught.value.hint or "")


def test_code_that_is_tried_on_one_rank_alone_may_not_communicate(guards: Guards) -> None:
    """A replaced rank would wait there for ranks that do not come.

    Method: the code that is tried swallows the error, as an estimate of sizes does.
    """
    optimizer = Gathers([torch.nn.Parameter(ones())], lr=0.1)
    with pytest.raises(TransactionError, match=r"Gathers\.step communicates"):
        with guards.trying("an estimate"), contextlib.suppress(Exception):
            optimizer.step()
    assert guards.refused is None
    assert guards.first_need == ""
    with guards.trying("an estimate"):
        pass
    dist.all_reduce(ones())
    assert guards.counted == 1
