"""Copies of images on other nodes in simulated runs: a lost node costs no step that was copied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from outlast.engine import placement
from outlast.engine.coordinator import image_keepers
from outlast.engine.coordinator.remains import Remains
from outlast.errors import UsageError
from outlast.model.fault_plan import PlannedFault
from outlast.sim.draws import Stream
from outlast.sim.faults.scripted_faults import SCRIPTED, SELDOM
from outlast.sim.options import Options, check
from outlast.sim.simulated_run import simulate, simulate_seed

SHARDED = Options(
    recovery_mode="sharded", ranks=4, nodes=3, spare_nodes=1, steps=60, latency_s=0.003
)


@pytest.mark.parametrize("head_s", [None, 0.3])
@pytest.mark.parametrize("copied", [True, False])
def test_a_lost_node_costs_no_step_that_was_copied(head_s: float | None, copied: bool) -> None:
    """If `head_s` is not None, the coordinator dies as well, and another one comes `head_s` later.
    Without copies, all ranks begin from the beginning.
    """
    faults = [PlannedFault("power", "lose_node", 2, "body", 20, for_s=1_000.0)]
    if head_s is not None:
        faults.append(PlannedFault("head", "lose_coordinator", None, "gathering", for_s=head_s))
    options = replace(SHARDED, peer_copies=copied)
    simulated = simulate(seed=1, options=options, faults=tuple(faults))
    assert (simulated.result, simulated.end, simulated.violations) == ("ok", "ended", ()), simulated
    assert ("restart" in simulated.rungs) is not copied, simulated.rungs


@pytest.mark.parametrize("peers", [1, 2, 3])
@pytest.mark.parametrize("lost", [2, 3])
@pytest.mark.parametrize("head", [False, True])
def test_as_many_nodes_can_be_lost_at_once_as_there_are_copies(
    peers: int, lost: int, head: bool
) -> None:
    """The nodes that are lost are next to each other, so each but the last one kept copies of the
    one before. With `head`, the coordinator dies as well, and another one comes.
    """
    faults = [
        PlannedFault(f"power-{rank}", "lose_node", rank, "body", 20, for_s=1_000.0)
        for rank in range(1, 1 + lost)
    ]
    if head:
        faults.append(PlannedFault("head", "lose_coordinator", None, "gathering", for_s=0.3))
    options = replace(SHARDED, ranks=6, nodes=9, spare_nodes=3, peer_copies=True, peers=peers)
    simulated = simulate(seed=1, options=options, faults=tuple(faults))
    assert (simulated.result, simulated.end, simulated.violations) == ("ok", "ended", ()), simulated
    assert ("restart" in simulated.rungs) is (lost > peers), simulated.rungs


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("told", [False, True])
def test_a_lost_rack_costs_no_step_if_the_nodes_name_theirs(told: bool, head: bool) -> None:
    """Nodes 0 to 2 are one rack, 3 to 5 another, and the spare ones a third. The first is lost."""
    faults = [
        PlannedFault(f"power-{rank}", "lose_node", rank, "body", 20, for_s=1_000.0)
        for rank in range(3)
    ]
    if head:
        faults.append(PlannedFault("head", "lose_coordinator", None, "gathering", for_s=0.3))
    options = replace(SHARDED, ranks=6, nodes=9, spare_nodes=3, peer_copies=True)
    options = replace(options, domains=3 if told else 0)
    simulated = simulate(seed=1, options=options, faults=tuple(faults))
    assert (simulated.result, simulated.end, simulated.violations) == ("ok", "ended", ()), simulated
    assert ("restart" in simulated.rungs) is not told, simulated.rungs


def test_copies_on_other_nodes_need_other_nodes() -> None:
    with pytest.raises(UsageError, match="copies on other nodes need several nodes"):
        check(Options(recovery_mode="sharded", peer_copies=True))
    with pytest.raises(UsageError, match="peers is 0"):
        check(replace(SHARDED, peer_copies=True, peers=0))


def broken_rules(seed: int) -> set[str]:
    """Return the rules that the run of a seed breaks. The images of its script are copied."""
    given = {
        "peer_copies": True,
        "peers": 2,
        "domains": 4,
        "recovery_mode": "sharded",
        "nodes": 8,
        "spare_nodes": 2,
        "ranks": 6,
        "steps": 12,
    }
    return {one.rule for one in simulate_seed(seed=seed, given=given).violations}


def kept_at_home(
    homes: Mapping[int, str], *, copies: int, domains: object
) -> dict[int, tuple[str, ...]]:
    """Plant a bug: copies are on the rank's own node, and are lost with it."""
    return {rank: (home,) for rank, home in homes.items()}


def kept_once(
    homes: Mapping[int, str], *, copies: int, domains: Mapping[str, str]
) -> dict[int, tuple[str, ...]]:
    """Plant a bug: one node keeps a copy, however many are asked for."""
    return placement.keepers(homes, copies=1, domains=domains)


def kept_near(
    homes: Mapping[int, str], *, copies: int, domains: object
) -> dict[int, tuple[str, ...]]:
    """Plant a bug: the domains of nodes do not count."""
    return placement.keepers(homes, copies=copies)


@pytest.mark.parametrize(
    ("owner", "name", "planted", "rule"),
    [
        (image_keepers, "keepers", kept_at_home, "CopiedElsewhere"),
        (image_keepers, "keepers", kept_once, "CopiedElsewhere"),
        (image_keepers, "keepers", kept_near, "CopiedElsewhere"),
        (Remains, "copies_of_lost", lambda self: {}, "NothingCopiedLost"),
    ],
    ids=["placement", "number", "domains", "restore"],
)
def test_faults_in_placement_and_restore_are_found(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    planted: Callable[..., object],
    rule: str,
) -> None:
    """Two bugs are planted. With the first, copies are on the rank's own node. With the second, no
    rank goes on from the copies.
    """
    assert not any(broken_rules(seed) for seed in range(4))
    monkeypatch.setattr(owner, name, planted)
    assert any(rule in broken_rules(seed) for seed in range(80))


def test_only_sharded_state_is_copied_in_scripted_runs() -> None:
    """A scripted run may need another recovery mode than the one that copies were drawn for."""
    copied = replace(SHARDED, peer_copies=True, domains=2)
    for play in (*SCRIPTED, *SELDOM):
        needed, _ = play(Stream(1, "rehearsed"), copied)
        assert needed.serves_images or not needed.peer_copies, (play, needed)
