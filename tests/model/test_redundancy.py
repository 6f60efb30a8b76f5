"""model/redundancy.py: every formula against visiting all that can fail."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.redundancy import (
    Chances,
    Code,
    Placement,
    Site,
    any_of,
    chance_within,
    copies,
    loss_bound_gemini,
    loss_by_enumeration,
    loss_correlated,
    loss_independent,
    loss_of_any,
    loss_of_group,
    place,
)


def lost(code: Code, groups: list[list[int]], down: set[int]) -> bool:
    return any(len(down.intersection(group)) > code.parity for group in groups)


def by_hand(code: Code, site: Site, chances: Chances, groups: list[list[int]]) -> float:
    """Every state of every feed, rack and node, one by one."""
    nodes = site.racks * site.nodes_per_rack
    parts = [chances.feed] * site.feeds + [chances.rack] * site.racks + [chances.node] * nodes
    total = []
    for state in itertools.product((False, True), repeat=len(parts)):
        feeds, racks, single = (
            state[: site.feeds],
            state[site.feeds : site.feeds + site.racks],
            state[site.feeds + site.racks :],
        )
        down = {
            n
            for n in range(nodes)
            if single[n]
            or racks[n // site.nodes_per_rack]
            or feeds[n // site.nodes_per_rack * site.feeds // site.racks]
        }
        if lost(code, groups, down):
            total.append(
                math.prod(
                    chance if failed else 1 - chance
                    for chance, failed in zip(parts, state, strict=True)
                )
            )
    return math.fsum(total)


# --- independent ----------------------------------------------------------------------------------


@given(data=st.integers(1, 5), parity=st.integers(0, 3), chance=st.floats(0, 1))
def test_the_loss_of_a_group_is_the_sum_over_all_its_subsets(
    data: int, parity: int, chance: float
) -> None:
    size = data + parity
    truth = math.fsum(
        chance ** sum(state) * (1 - chance) ** (size - sum(state))
        for state in itertools.product((0, 1), repeat=size)
        if sum(state) > parity
    )
    assert loss_of_group(Code(data, parity), chance) == pytest.approx(truth, abs=1e-14)


@given(
    code=st.sampled_from([copies(1), copies(2), copies(3), Code(2, 1), Code(3, 2)]),
    groups=st.integers(1, 4),
    failed=st.integers(0, 12),
)
def test_the_chance_that_some_nodes_take_a_group_is_a_count_of_subsets(
    code: Code, groups: int, failed: int
) -> None:
    nodes = groups * code.size
    assume(failed <= nodes <= 12)
    layout = [list(range(at, at + code.size)) for at in range(0, nodes, code.size)]
    subsets = [set(subset) for subset in itertools.combinations(range(nodes), failed)]
    assert loss_of_any(code, groups=groups, failed=failed) == pytest.approx(
        sum(lost(code, layout, down) for down in subsets) / len(subsets), abs=1e-15
    )


@given(
    code=st.sampled_from([copies(2), Code(3, 1), Code(2, 2)]),
    groups=st.integers(1, 6),
    chance=st.floats(0, 1),
)
def test_failures_by_chance_are_the_mixture_of_failures_by_number(
    code: Code, groups: int, chance: float
) -> None:
    """Two exact ways to the same number: group by group, and by how many nodes fail in all."""
    nodes = groups * code.size
    mixture = math.fsum(
        math.comb(nodes, failed)
        * chance**failed
        * (1 - chance) ** (nodes - failed)
        * loss_of_any(code, groups=groups, failed=failed)
        for failed in range(nodes + 1)
    )
    assert loss_independent(code, groups=groups, node_chance=chance) == pytest.approx(
        mixture, abs=1e-12
    )


@given(copy=st.integers(1, 4), groups=st.integers(1, 20), failed=st.integers(0, 20))
def test_geminis_bound_is_never_below_the_truth_and_exact_for_few_failures(
    copy: int, groups: int, failed: int
) -> None:
    assume(failed <= copy * groups)
    truth = loss_of_any(copies(copy), groups=groups, failed=failed)
    bound = loss_bound_gemini(nodes=copy * groups, copies=copy, failed=failed)
    assert truth <= bound + 1e-15
    if failed < 2 * copy:
        assert bound == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize(
    ("nodes", "failed", "recovered", "digits"),
    [(16, 2, 0.933, 3), (16, 3, 0.800, 3), (2048, 2, 0.9995, 4), (2048, 5, 0.995, 3)],
)
def test_geminis_figures_for_two_copies(
    nodes: int, failed: int, recovered: float, digits: int
) -> None:
    assert round(1 - loss_bound_gemini(nodes=nodes, copies=2, failed=failed), digits) == recovered
    assert round(1 - loss_of_any(copies(2), groups=nodes // 2, failed=failed), digits) == recovered


def test_a_small_chance_keeps_its_digits() -> None:
    assert loss_of_group(copies(2), 1e-12) == pytest.approx(1e-24, rel=1e-12)
    assert loss_independent(copies(2), groups=1000, node_chance=1e-12) == pytest.approx(
        1e-21, rel=1e-12
    )
    assert chance_within(60.0, 1e15) == pytest.approx(6e-14, rel=1e-12)
    assert chance_within(60.0, math.inf) == 0.0
    assert any_of(0, 1.0) == 0.0


# --- correlated -----------------------------------------------------------------------------------

SMALL = [
    (copies(2), Site(racks=2, nodes_per_rack=2, feeds=1), Placement.PACKED),
    (copies(2), Site(racks=2, nodes_per_rack=2, feeds=1), Placement.SPREAD),
    (copies(2), Site(racks=4, nodes_per_rack=2, feeds=2), Placement.BY_FEED),
    (copies(2), Site(racks=4, nodes_per_rack=2, feeds=2), Placement.SPREAD),
    (Code(2, 1), Site(racks=3, nodes_per_rack=2, feeds=1), Placement.BY_FEED),
    (Code(2, 2), Site(racks=4, nodes_per_rack=1, feeds=2), Placement.BY_FEED),
    (Code(2, 1), Site(racks=2, nodes_per_rack=3, feeds=2), Placement.PACKED),
]


@pytest.mark.parametrize(("code", "site", "placement"), SMALL)
def test_racks_and_feeds_agree_with_visiting_every_state_of_every_node(
    code: Code, site: Site, placement: Placement
) -> None:
    """Formula, enumeration of domains, and enumeration of nodes: three ways, one number."""
    chances = Chances(node=0.07, rack=0.03, feed=0.02)
    groups = place(code, site, placement)
    truth = by_hand(code, site, chances, groups)
    assert loss_by_enumeration(code, site, chances, groups) == pytest.approx(truth, rel=1e-12)
    assert loss_correlated(code, site, chances, placement) == pytest.approx(truth, rel=1e-12)


MEDIUM = [
    *((copies(2), Site(8, 4, 2), placement) for placement in Placement),
    (Code(3, 1), Site(8, 8, 2), Placement.SPREAD),
    (Code(4, 2), Site(6, 6, 3), Placement.BY_FEED),
    (Code(4, 2), Site(6, 6, 3), Placement.PACKED),
]


@pytest.mark.parametrize(("code", "site", "placement"), MEDIUM)
@pytest.mark.parametrize(
    "chances",
    [
        Chances(0.01),
        Chances(0.01, 0.002),
        Chances(0.01, 0.002, 0.001),
        Chances(0.0, 0.1, 0.0),
        Chances(0.2, 0.3, 1.0),
    ],
)
def test_the_formula_agrees_with_enumeration_of_the_domains(
    code: Code, site: Site, placement: Placement, chances: Chances
) -> None:
    assert loss_correlated(code, site, chances, placement) == pytest.approx(
        loss_by_enumeration(code, site, chances, place(code, site, placement)),
        rel=1e-10,
        abs=1e-300,
    )


def test_where_only_nodes_fail_the_placement_does_not_matter() -> None:
    site, code = Site(racks=512, nodes_per_rack=4, feeds=2), copies(2)
    found = {
        placement: loss_correlated(code, site, Chances(1e-4), placement) for placement in Placement
    }
    for value in found.values():
        assert value == pytest.approx(
            loss_independent(code, groups=1024, node_chance=1e-4), rel=1e-12
        )


def test_where_racks_and_feeds_fail_placement_by_domain_is_what_saves_the_state() -> None:
    site, code, chances = (
        Site(racks=512, nodes_per_rack=4, feeds=2),
        copies(2),
        Chances(1e-6, 1e-5, 1e-4),
    )
    packed, spread, by_feed = (
        loss_correlated(code, site, chances, placement)
        for placement in (Placement.PACKED, Placement.SPREAD, Placement.BY_FEED)
    )
    assert packed == pytest.approx(512e-5 + 2e-4, rel=0.01)  # any rack, or any feed
    assert spread == pytest.approx(2e-4, rel=0.01)  # any feed
    assert by_feed < 1e-6


@pytest.mark.parametrize(
    ("placement", "site"),
    [
        (Placement.PACKED, Site(12, 6, 3)),
        (Placement.SPREAD, Site(12, 6, 2)),
        (Placement.BY_FEED, Site(12, 6, 3)),
    ],
)
def test_a_placement_puts_every_node_in_one_group_and_members_apart(
    placement: Placement, site: Site
) -> None:
    """Six members in one rack; in six racks of one feed; in six racks of three feeds."""
    groups = place(Code(4, 2), site, placement)
    assert sorted(node for group in groups for node in group) == list(range(72))
    racks = [{node // 6 for node in group} for group in groups]
    assert {len(one) for one in racks} == {1 if placement is Placement.PACKED else 6}
    feeds = [sorted(rack // (12 // site.feeds) for rack in one) for one in racks]
    assert all(
        len(set(one)) == 1 if placement is not Placement.BY_FEED else one == [0, 0, 1, 1, 2, 2]
        for one in feeds
    )


def test_parity_holds_less_and_copies_are_parity_of_one() -> None:
    assert (copies(1), copies(2), copies(3)) == (Code(1, 0), Code(1, 1), Code(1, 2))
    assert (copies(2).memory, Code(4, 1).memory, Code(8, 2).memory) == (2.0, 1.25, 1.25)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Code(0, 1),
        lambda: Code(1, -1),
        lambda: Code(1000, 1),
        lambda: copies(0),
        lambda: Chances(math.nan),
        lambda: Chances(1.1),
        lambda: Site(3, 4, 2),
        lambda: Site(0, 4),
        lambda: loss_of_any(copies(2), groups=2, failed=5),
        lambda: loss_bound_gemini(nodes=15, copies=2, failed=2),
        lambda: loss_correlated(copies(3), Site(4, 4, 2), Chances(0.1), Placement.PACKED),
        lambda: loss_correlated(copies(3), Site(4, 3, 2), Chances(0.1), Placement.SPREAD),
        lambda: loss_correlated(copies(3), Site(6, 3, 2), Chances(0.1), Placement.BY_FEED),
        lambda: loss_by_enumeration(copies(2), Site(2, 2), Chances(0.1), [[0, 1], [1, 2]]),
        lambda: loss_by_enumeration(copies(2), Site(40, 2), Chances(0.1, 0.1), [[0, 1]]),
        lambda: chance_within(-1.0, 1.0),
    ],
)
def test_what_cannot_be_laid_out_is_refused(call: object) -> None:
    with pytest.raises(UsageError):
        call()  # type: ignore[operator]
