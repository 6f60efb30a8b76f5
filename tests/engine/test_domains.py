"""Domains of nodes that can be lost together: where copies and parity lie, and what is said."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.coordinator.image_keepers import SentTo
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.takeover import RecoveredState
from outlast.engine.placement import (
    exposed,
    groups_of_copies,
    groups_of_parity,
    keepers,
    ring_of,
    stripes,
)
from outlast.model.messages import Enrol, Images
from outlast.model.records import Event
from outlast.model.redundancy import Code

on_racks = st.lists(st.sampled_from("ABCDE"), min_size=1, max_size=24)


def nodes_of(racks: str | list[str]) -> tuple[dict[int, str], dict[str, str]]:
    """Return one rank for each node, and the rack of each node."""
    return (
        {rank: f"n{rank}" for rank in range(len(racks))},
        {f"n{number}": rack for number, rack in enumerate(racks)},
    )


def largest(racks: str | list[str]) -> int:
    return max(Counter(racks).values())


@given(on_racks, st.integers(1, 8))
def test_neighbours_in_the_ring_are_as_far_apart_as_their_rack_allows(
    racks: list[str], size: int
) -> None:
    """The ring has each node once. Nodes of one rack are `size` places apart if that is possible,
    and otherwise as many as the largest rack allows.
    """
    homes, domains = nodes_of(racks)
    ring = ring_of(homes, domains, size=size)
    count = len(ring)
    assert sorted(ring) == sorted(domains)
    apart = min(size, count // largest(racks))
    for at in range(count):
        row = [domains[ring[(at + by) % count]] for by in range(apart)]
        assert len({*row}) == apart, ring


@given(on_racks)
def test_without_domains_the_ring_is_that_of_the_lowest_ranks(racks: list[str]) -> None:
    """So is one in which each node names a domain of its own, and one that has but one domain."""
    homes, domains = nodes_of(racks)
    plain = list(domains)
    assert ring_of(homes, {}, size=3) == plain
    assert ring_of(homes, {node: node.upper() for node in plain}, size=3) == plain
    assert ring_of(homes, dict.fromkeys(plain, "rack"), size=3) == plain


def test_a_node_without_a_domain_is_one_of_its_own_whatever_its_name() -> None:
    homes = dict(enumerate("abcd"))
    assert ring_of(homes, {"b": "a", "c": "a", "a": ""}, size=2) == ["b", "a", "c", "d"]
    assert ring_of(homes, {"b": "rack"}, size=2) == ["a", "b", "c", "d"]


@given(on_racks, st.integers(1, 4))
def test_copies_lie_in_other_racks_where_that_is_possible(racks: list[str], copies: int) -> None:
    """Each node keeps copies for as many nodes as any other, whatever the racks."""
    homes, domains = nodes_of(racks)
    placed, count = keepers(homes, copies=copies, domains=domains), len(racks)
    some = min(copies, count - 1)
    loads = Counter(node for nodes in placed.values() for node in nodes)
    assert len({*loads.values()}) <= 1
    for rank, nodes in placed.items():
        assert len({*nodes} - {homes[rank]}) == some
        in_racks = {domains[node] for node in (homes[rank], *nodes)}
        if largest(racks) * (some + 1) <= count:
            assert len(in_racks) == some + 1, "each copy is in a rack of its own"
        elif largest(racks) * 2 <= count:
            assert len(in_racks) > 1
    if largest(racks) * 2 <= count:
        assert not exposed(groups_of_copies(homes, placed), domains)


@pytest.mark.parametrize("racks", ["AAAB", "AAABB", "AABBC", "AAABC", "AAAABB", "AABBCC"])
def test_no_other_ring_leaves_fewer_nodes_exposed(racks: str) -> None:
    """Method: all ways in which each node keeps the copies of one other node."""
    homes, domains = nodes_of(racks)
    names = list(domains)

    def close(of: dict[str, str]) -> int:
        return sum(domains[home] == domains[node] for home, node in of.items())

    ways = (dict(zip(names, one, strict=True)) for one in permutations(names))
    least = min(close(way) for way in ways if all(home != node for home, node in way.items()))
    placed = keepers(homes, domains=domains)
    assert close({homes[rank]: node for rank, (node,) in placed.items()}) == least


@given(on_racks, st.integers(1, 4), st.integers(1, 2))
def test_parity_survives_the_loss_of_a_rack_where_that_is_possible(
    racks: list[str], data: int, rows: int
) -> None:
    homes, domains = nodes_of(racks)
    placed, size = stripes(homes, data=data, rows=rows, domains=domains), data + rows
    if (len(racks) // largest(racks)) * rows >= size:
        assert placed or len(racks) < size
        assert not exposed(groups_of_parity(homes, placed), domains)


def test_six_nodes_in_three_racks_survive_the_loss_of_one_under_4_2() -> None:
    """Four and two nodes do not: the larger rack has three nodes of each stripe and more."""
    for racks, lost in (("AABBCC", {}), ("AAAABB", {"A": ("n0", "n1", "n2", "n3")})):
        homes, domains = nodes_of(racks)
        placed = stripes(homes, data=4, rows=2, domains=domains)
        assert exposed(groups_of_parity(homes, placed), domains) == lost


# --- the coordinator ------------------------------------------------------------------------------


def warned(racks: list[str], *, peers: int = 1, code: Code | None = None) -> tuple[str, ...]:
    """Return what is said of nodes in these racks."""
    run = RunParts.begin(
        CoordinatorOptions(
            len(racks), Restart(), nodes=len(racks), peer_copies=1, peers=peers, parity=code
        )
    )
    homes, domains = nodes_of(racks)
    for node, domain in domains.items():
        run.nodes.join(node, 1, domain=domain)
    return SentTo(run, homes).warnings()


def test_people_are_told_which_domain_must_not_be_lost() -> None:
    assert warned([*"AABB"]) == ()
    assert warned(["", "", ""]) == (), "no node knows its rack"
    (alone,) = warned([*"AAA"])
    assert alone.startswith("all nodes with ranks are in domain A, so no copies and no parity")
    (few,) = warned([*"AAAB"])
    assert "the loss of domain A would take the images of nodes " in few
    (parity,) = warned([*"AAAABB"], code=Code(4, 2))
    assert "the loss of domain A would take the images of nodes n0, n1, n2 and 1 more" in parity
    (mixed,) = warned(["A", "", "B", ""])
    assert mixed.startswith("no failure domain is known of nodes n1, n3 (--node-domain)")


def test_domains_of_lost_nodes_are_known_to_the_next_coordinator() -> None:
    """It has to find out which copies count, as the last one has placed them. Method: the copies of
    b's rank are on d, in another rack. Node d enrols first, when the others have not come yet.
    """
    state = RecoveredState(generation=3)
    for rank, (node, domain) in enumerate((("a", "A"), ("b", "A"), ("c", "B"), ("d", "B"))):
        data = {"node": node, "ranks": [rank], "domain": domain}
        state.take(Event(1.0, 0.0, "placed", data))
    options = CoordinatorOptions(4, Restart(), nodes=4, generation=3, peer_copies=1)
    coordinator = Coordinator(options=options)
    coordinator.remember(state)
    coordinator.rebuild(now_s=1.0, nodes=("a", "b", "c", "d"), patience_s=5.0)
    copies = coordinator.roster.remains.copies
    for node in "cd":
        enrol = Enrol(node, 1, 1, 1, 0, 8, None, (), (), (), "sharded", 1.0)
        enrol = replace(enrol, copies=(Images(1, (8, 7)),), domain="B")
        coordinator.node_joined(now_s=1.0, enrol=enrol, by_s=0.0)
        assert copies.steps(1) == ((8, 7) if node == "d" else ()), "c keeps none of them"
