"""Which losses of nodes are survived, beside the parts of the engine that restore images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.coordinator.parity_rows import ParityRows
from outlast.engine.coordinator.peer_copies import PeerCopies
from outlast.engine.placement import keepers, stripes
from outlast.errors import UsageError
from outlast.model.keep import KeepOption, read_keep
from outlast.model.messages import CopyKept, KeptRow, ParityKept
from outlast.planner.node_losses import NODES_MOST, NodeLosses, node_losses
from outlast.planner.scenario import Job

STEP = 7


def losses(
    keep: str,
    *,
    nodes: int,
    per_node: int = 2,
    short: int = 0,
    rack: int = 3,
    sizes: Sequence[int] = (),
    told: bool = False,
) -> NodeLosses:
    """What is lost of `nodes` nodes, of which the last has `short` ranks fewer."""
    job = Job(nodes * per_node - short, 3600.0, gpus_per_node=per_node, nodes_per_rack=rack)
    return node_losses(job, read_keep(keep), sizes=sizes, told=told)


def can_be_restored(
    homes: dict[int, str], keep: KeepOption, lost_nodes: set[str], racks: dict[str, str]
) -> bool:
    """Let the engine's own parts keep copies or parity of one step, and lose the nodes."""
    lost = [rank for rank, home in homes.items() if home in lost_nodes]
    if keep.code is None:
        copies = PeerCopies()
        for rank, nodes in keepers(homes, copies=keep.copies, domains=racks).items():
            for node in nodes if len(set(homes.values())) > keep.copies else ():
                copies.kept(CopyKept(rank, 1, (STEP,)), node)
        for node in lost_nodes:
            copies.lose_node(node)
        return all(copies.node_of(rank, STEP) for rank in lost)
    rows = ParityRows()
    placed = stripes(homes, data=keep.code.data, rows=keep.code.parity, domains=racks)
    for stripe in placed:
        for row, node in enumerate(stripe.holders):
            rows.kept(ParityKept(stripe.number, (KeptRow(row, stripe.ranks, 1, STEP),)), node)
    for node in lost_nodes:
        rows.lose_node(node)
    return rows.steps_of(lost) == dict.fromkeys(lost, (STEP,))


@given(
    keep=st.sampled_from(
        ["peers=1", "peers=2", "peers=3", "parity=1+1", "parity=2+1", "parity=3+1", "parity=2+2"]
    ),
    nodes=st.integers(1, 8),
    per_node=st.integers(1, 3),
    short=st.integers(0, 2),
    rack=st.integers(1, 4),
    told=st.booleans(),
)
def test_what_is_survived_is_what_the_engine_can_restore(
    keep: str, nodes: int, per_node: int, short: int, rack: int, told: bool
) -> None:
    """Method: each loss of one node, two nodes and one rack, for all of up to eight nodes."""
    found = losses(
        keep, nodes=nodes, per_node=per_node, short=min(short, per_node - 1), rack=rack, told=told
    )
    ranks = nodes * per_node - min(short, per_node - 1)
    homes = {rank: str(rank // per_node) for rank in range(ranks)}
    in_racks = {str(node): f"rack {node // rack}" for node in range(nodes)} if told else {}

    def fatal(*lost: int) -> bool:
        return not can_be_restored(homes, read_keep(keep), set(map(str, lost)), in_racks)

    assert found.single == tuple(one for one in range(nodes) if fatal(one))
    assert found.double == tuple(two for two in combinations(range(nodes), 2) if fatal(*two))
    racks = [range(at, min(at + rack, nodes)) for at in range(0, nodes, rack)]
    assert found.domain == tuple(number for number, one in enumerate(racks) if fatal(*one))


def test_copies_survive_two_losses_unless_the_nodes_are_neighbours() -> None:
    found = losses("peers=1:step, disk:10min", nodes=4, rack=2)
    assert found.single == ()
    assert found.double == ((0, 1), (0, 3), (1, 2), (2, 3))
    assert found.domain == (0, 1), "both nodes of a rack keep copies of each other's"
    assert losses("peers=1", nodes=4, rack=1).domain == ()
    assert losses("peers=1", nodes=4, rack=2, told=True).domain == ()


def test_as_many_losses_are_survived_as_there_are_copies() -> None:
    """Of three nodes at once, those that are next to each other are not."""
    found = losses("peers=2", nodes=6, rack=2)
    assert (found.single, found.double, found.domain) == ((), (), ())
    assert losses("peers=2", nodes=6, rack=3).domain == (0, 1)
    assert losses("peers=2", nodes=6, rack=3, told=True).domain == ()
    assert losses("peers=2", nodes=2).single == (0, 1), "a run refuses to start"


def test_parity_of_two_rows_survives_any_two_losses() -> None:
    found = losses("parity=4+2", nodes=8, rack=2)
    assert (found.single, found.double, found.domain) == ((), (), ())
    assert found.facts()["two_nodes"] == {"of": 28, "not_survived": []}


def test_too_few_nodes_survive_nothing() -> None:
    found = losses("parity=4+2", nodes=5, rack=4)
    assert found.nodes_least == 6
    assert found.single == tuple(range(5))
    assert found.double == tuple(combinations(range(5), 2))
    assert found.domain == (0, 1)


def test_domains_of_other_sizes_are_taken_in_place_of_racks() -> None:
    """The largest one has more than half of the nodes, so some of its copies have to stay in it."""
    found = losses("peers=1", nodes=6, sizes=(4, 1, 1), told=True)
    assert (found.sizes, found.domain) == ((4, 1, 1), (0,))
    assert losses("parity=2+1", nodes=6, sizes=(2, 2, 2), told=True).domain == ()
    assert losses("parity=2+1", nodes=6, sizes=(2, 2, 2)).domain == (0, 1, 2)
    with pytest.raises(UsageError, match="have 5 nodes together, and the run has 6"):
        losses("peers=1", nodes=6, sizes=(4, 1))


@pytest.mark.parametrize(
    ("keep", "nodes", "said"),
    [
        ("vault:auto, disk:10min", 4, "names nothing there"),
        ("peers=1:never", 4, "names nothing there"),
        ("peers=1", NODES_MOST + 1, "there are 16,385 nodes"),
    ],
)
def test_what_cannot_be_asked_is_refused(keep: str, nodes: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        losses(keep, nodes=nodes)


def test_a_large_run_has_as_many_bad_pairs_as_nodes_in_its_ring() -> None:
    found = losses("peers=1", nodes=2048, per_node=8, rack=4, told=True)
    assert (len(found.double), found.domain) == (2048, ())
