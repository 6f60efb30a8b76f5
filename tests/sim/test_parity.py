"""Parity of images in simulated lives: lost nodes cost no step whose parity was complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from outlast.engine import placement
from outlast.engine.coordinator import image_keepers
from outlast.engine.coordinator.remains import Remains
from outlast.engine.placement import Stripe
from outlast.errors import UsageError
from outlast.model.fault_plan import PlannedFault
from outlast.sim.options import Options, check
from outlast.sim.simulated_run import simulate, simulate_seed

SHARDED = Options(
    recovery_mode="sharded",
    ranks=6,
    nodes=8,
    spare_nodes=2,
    steps=60,
    latency_s=0.003,
    peer_copies=True,
    parity="4+2",
)


def lost(name: str, node: int, mark: str, nth: int) -> PlannedFault:
    return PlannedFault(name, "lose_node", node, mark, nth, for_s=1_000.0)


@pytest.mark.parametrize(
    "faults",
    [
        [lost("one", 2, "body", 20)],
        [lost("one", 2, "body", 20), lost("two", 3, "body", 20)],
        [lost("one", 2, "body", 20), lost("two", 4, "restoring", 2)],
        [lost("one", 2, "body", 20), lost("two", 4, "joined", 2)],
        [lost("one", 2, "body", 20), lost("two", 4, "sealing", 22)],
    ],
    ids=["one", "two at once", "one while restoring", "one when joined", "one while sealing"],
)
def test_two_lost_nodes_cost_no_step(faults: list[PlannedFault]) -> None:
    """Under 4+2 on six nodes and two spare ones, also if the second is lost while the images of the
    first are rebuilt, or while its parity is.
    """
    life = simulate(seed=1, options=SHARDED, faults=tuple(faults))
    assert (life.result, life.end, life.violations) == ("ok", "ended", ()), life
    assert "restart" not in life.rungs, life.rungs


@pytest.mark.parametrize("told", [False, True])
def test_a_lost_rack_costs_no_step_if_the_nodes_name_theirs(told: bool) -> None:
    """Under 2+2, three of six nodes are in the lost rack. Any stripe has four nodes, and at most
    two of them are in that rack.
    """
    faults = tuple(lost(f"power-{rank}", rank, "body", 20) for rank in range(3))
    options = replace(SHARDED, nodes=9, spare_nodes=3, parity="2+2", domains=3 if told else 0)
    life = simulate(seed=1, options=options, faults=faults)
    assert (life.result, life.end, life.violations) == ("ok", "ended", ()), life
    assert ("restart" in life.rungs) is not told, life.rungs


@pytest.mark.parametrize("head_s", [None, 0.3])
@pytest.mark.parametrize("parity", ["4+2", "2+1", "1+1"])
def test_a_lost_node_costs_no_step_whatever_the_code(head_s: float | None, parity: str) -> None:
    """`head_s`: the coordinator dies as well, and another one comes after so long."""
    faults = [lost("power", 2, "body", 20)]
    if head_s is not None:
        faults.append(PlannedFault("head", "lose_coordinator", None, "gathering", for_s=head_s))
    life = simulate(seed=1, options=replace(SHARDED, parity=parity), faults=tuple(faults))
    assert (life.result, life.end, life.violations) == ("ok", "ended", ()), life
    assert "restart" not in life.rungs, life.rungs


def test_one_loss_more_than_rows_begins_from_the_beginning() -> None:
    """What cannot be rebuilt is not taken for rebuilt."""
    faults = (lost("one", 2, "body", 20), lost("two", 3, "body", 20))
    life = simulate(seed=1, options=replace(SHARDED, parity="2+1"), faults=faults)
    assert (life.result, life.end, life.violations) == ("ok", "ended", ()), life
    assert "restart" in life.rungs, life.rungs


@pytest.mark.parametrize("parity", ["2", "2+3", "0+1", "a+b"])
def test_other_codes_are_refused(parity: str) -> None:
    with pytest.raises(UsageError, match="--parity"):
        check(replace(SHARDED, parity=parity))
    with pytest.raises(UsageError, match="--parity"):
        check(replace(SHARDED, peer_copies=False))


def broken_rules(seed: int) -> set[str]:
    """The rules that the life of a seed breaks, of a script whose images have parity."""
    given = {
        "peer_copies": True,
        "parity": "2+1",
        "domains": 4,
        "recovery_mode": "sharded",
        "nodes": 8,
        "spare_nodes": 2,
        "ranks": 6,
        "steps": 12,
    }
    return {one.rule for one in simulate_seed(seed=seed, given=given).violations}


def without_domains(
    homes: Mapping[int, str], *, data: int, rows: int, domains: object
) -> tuple[Stripe, ...]:
    """The domains of nodes do not count."""
    return placement.stripes(homes, data=data, rows=rows)


def beside_a_member(
    homes: Mapping[int, str], *, data: int, rows: int, domains: Mapping[str, str]
) -> tuple[Stripe, ...]:
    """The first row lies on the node of a rank that gives a part to it, and is lost with it."""
    return tuple(
        replace(one, holders=(homes[one.ranks[0]], *one.holders[1:]))
        for one in placement.stripes(homes, data=data, rows=rows, domains=domains)
    )


@pytest.mark.parametrize(
    ("owner", "name", "planted", "rule"),
    [
        (image_keepers, "stripes", beside_a_member, "CopiedElsewhere"),
        (image_keepers, "stripes", without_domains, "CopiedElsewhere"),
        (Remains, "rebuilt_of_lost", lambda self: {}, "NothingCopiedLost"),
    ],
    ids=["placement", "domains", "restore"],
)
def test_faults_in_placement_and_restore_are_found(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    planted: Callable[..., object],
    rule: str,
) -> None:
    """Planted faults: parity lies at home, or it is there and nobody goes on from it."""
    assert not any(broken_rules(seed) for seed in range(4))
    monkeypatch.setattr(owner, name, planted)
    assert any(rule in broken_rules(seed) for seed in range(80))
