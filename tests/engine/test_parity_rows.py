"""Parity of images: which nodes keep it, what it rebuilds, and what a run goes on from."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.coordinator.checkpoints import on_copy_refused
from outlast.engine.coordinator.copies import count_copies
from outlast.engine.coordinator.decisions import SlotFacts, decide_own_state
from outlast.engine.coordinator.members import Roster
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.parity_rows import ParityRows, shares_of
from outlast.engine.coordinator.plans import Plans
from outlast.engine.coordinator.restore_sources import Checkpoint, Restart
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.placement import Stripe, stripes
from outlast.engine.protocol.outputs import Tell
from outlast.engine.restore import Holding, decide_sharded
from outlast.model.messages import CopyRefused, KeptRow, ParityKept
from outlast.model.redundancy import Code

SIX = dict(enumerate("abcdef"))


def filled(homes: dict[int, str], *, data: int, rows: int, step: int = 7) -> ParityRows:
    """Return the rows of parity of all ranks of one step, as their nodes report them."""
    out, placed = ParityRows(), stripes(homes, data=data, rows=rows)
    out.place(placed)
    for stripe in placed:
        for row, node in enumerate(stripe.holders):
            out.kept(kept(stripe, row, step), node)
    return out


def kept(stripe: Stripe, row: int, *steps: int, generation: int = 1) -> ParityKept:
    rows = tuple(KeptRow(row, stripe.ranks, generation, step) for step in steps)
    return ParityKept(stripe.number, rows)


# --- placement -----------------------------------------------------------------------------------


@given(
    data=st.integers(1, 4),
    rows=st.integers(1, 2),
    ranks_on=st.lists(st.integers(1, 3), min_size=1, max_size=8),
)
def test_any_losses_of_as_many_nodes_as_rows_are_survived(
    data: int, rows: int, ranks_on: list[int]
) -> None:
    """Method: place ranks on nodes with unequal numbers of ranks. All nodes of a stripe differ,
    each part of each image is in one stripe, and for each choice of lost nodes every rank on them
    can be rebuilt from what the other nodes have.
    """
    names = [node for node, count in enumerate(ranks_on) for _ in range(count)]
    homes = {rank: f"n{node}" for rank, node in enumerate(names)}
    placed = stripes(homes, data=data, rows=rows)
    if len(ranks_on) < data + rows:
        assert placed == ()
        return
    assert len({stripe.number for stripe in placed}) == len(placed)
    for stripe in placed:
        nodes = [homes[rank] for rank in stripe.ranks if rank >= 0] + list(stripe.holders)
        assert len(set(nodes)) == len(nodes)
    for rank in homes:
        places = [one.ranks.index(rank) for one in placed if rank in one.ranks]
        assert sorted(places) == list(range(data))
    for lost_nodes in combinations(sorted(set(homes.values())), rows):
        there = filled(homes, data=data, rows=rows)
        for node in lost_nodes:
            there.lose_node(node)
        lost = {rank for rank, home in homes.items() if home in lost_nodes}
        assert there.steps_of(lost) == dict.fromkeys(lost, (7,))


def test_each_node_keeps_the_same_share_of_parity() -> None:
    """Method: six nodes with 4+2. Each node keeps half as much parity as images."""
    placed = stripes(SIX, data=4, rows=2)
    held = [node for stripe in placed for node in stripe.holders]
    assert {held.count(node) for node in SIX.values()} == {2}
    shares = shares_of(placed, lambda node: f"{node}:1")
    assert {len(of_rank) for of_rank in shares.values()} == {8}
    assert {share.at for share in shares[0]} == {"b:1", "c:1", "d:1", "e:1", "f:1"}


def test_a_spare_node_takes_the_place_of_a_lost_one_in_its_ring() -> None:
    before, after = (stripes(one, data=2, rows=1) for one in (SIX, {**SIX, 2: "spare"}))
    assert [one.ranks for one in before] == [one.ranks for one in after]
    for old, new in zip(before, after, strict=True):
        assert new.holders == tuple("spare" if node == "c" else node for node in old.holders)


# --- what can be rebuilt --------------------------------------------------------------------------


def test_one_loss_more_than_rows_is_not_survived() -> None:
    there = filled(SIX, data=4, rows=2)
    assert there.steps_of({0, 1}) == {0: (7,), 1: (7,)}
    assert there.steps_of({0, 1, 2}) == {}
    there.lose_node("f")
    assert there.steps_of({5}) == {5: (7,)}
    assert there.steps_of({5, 0, 1}) == {}


def test_each_part_is_rebuilt_from_ranks_with_images_and_from_rows() -> None:
    """Method: of two lost ranks, each part of one names as many sources as there are parts."""
    there = filled(SIX, data=4, rows=2)
    there.lose_node("a")
    there.lose_node("b")
    found = there.sources(0, 7, {0, 1}, home=SIX.__getitem__, serves=lambda node: f"{node}:1")
    assert {one.part for one in found} == {0, 1, 2, 3}
    for part in range(4):
        of_part = [one for one in found if one.part == part]
        assert len(of_part) >= 4
        assert len({one.stripe for one in of_part}) == 1
        assert not {"a:1", "b:1"}.intersection(one.at for one in of_part)
        assert all((one.rank >= 0) == (one.row < 0) for one in of_part)
        assert not {0, 1}.intersection(one.rank for one in of_part)
    assert there.sources(0, 6, {0}, home=SIX.__getitem__, serves=str) == ()


def test_rows_of_steps_that_were_rolled_back_do_not_count() -> None:
    """Rows do not count either if the report of them comes late, from the previous generation. The
    rows of the step that all ranks go back to stay until the new generation has made its own.
    """
    homes = dict(enumerate("abc"))
    placed = stripes(homes, data=2, rows=1)
    there = ParityRows()
    for stripe in placed:
        there.kept(kept(stripe, 0, 8, 7), stripe.holders[0])
    assert there.steps_of({0}) == {0: (8, 7)}
    there.note_rollback(generation=2, step=7)
    assert there.steps_of({0}) == {0: (7,)}
    there.kept(kept(placed[0], 0, 8, 7), placed[0].holders[0])
    assert there.steps_of({0}) == {0: (7,)}
    for stripe in placed:
        there.kept(kept(stripe, 0, 8, 7, generation=2), stripe.holders[0])
    assert there.steps_of({0}) == {0: (8, 7)}
    there.refuse(0, 8)
    assert there.steps_of({0}) == {0: (7,)}


def test_a_step_counts_as_committed_once_its_parity_is_complete() -> None:
    """On a node without room for parity, the ranks do not wait for it. The test shows that the
    count is never better than what there is.
    """
    homes = dict(enumerate("abc"))
    placed = stripes(homes, data=2, rows=1)
    there = ParityRows()
    assert there.committed(3) == 3, "there is no parity at all"
    there.place(placed)
    for stripe in placed:
        there.kept(kept(stripe, 0, 7), stripe.holders[0])
    assert [there.committed(step) for step in (7, 8)] == [7, 7]
    for stripe in placed:
        there.kept(kept(stripe, 0, 8, 7), stripe.holders[0])
    assert there.committed(8) == 8
    there.kept(ParityKept(placed[0].number, ()), placed[0].holders[0])
    assert there.committed(9) == 9


def test_parity_stands_for_the_images_that_were_lost_with_their_nodes() -> None:
    there = [Holding((rank,), True, 8, (8,), 8, False, (8, 7)) for rank in (0, 1)]
    lost = [Holding((2,), False, -1, (), -1, False, ())]
    found = decide_sharded(holdings=there + lost, rebuilt={2: (8, 7)})
    assert found.step == 8
    assert "the images of ranks 2, whose node is lost, are rebuilt from parity" in found.reason
    assert decide_sharded(holdings=there + lost, rebuilt={2: (7, 6)}).step == 7
    assert decide_sharded(holdings=there + lost, rebuilt={2: (6,)}).step is None


def test_a_rank_takes_its_own_image_first_then_parity_then_a_twin() -> None:
    def source(*, has_images: bool, has_parity: bool, twin: int) -> str:
        slots = SlotFacts(False, has_images, False, twin, "", has_parity)
        return decide_own_state(
            slots=slots, step=5, sharded=True, folder="", checkpoint=Checkpoint(), verified=""
        ).private

    assert source(has_images=True, has_parity=True, twin=1) == "slot"
    assert source(has_images=False, has_parity=True, twin=1) == "parity"
    assert source(has_images=False, has_parity=False, twin=1) == "twin"


def test_an_image_that_was_not_rebuilt_is_named_and_not_tried_again() -> None:
    run = RunParts.begin(
        CoordinatorOptions(
            world_size=3, start=Restart(), generation=3, peer_copies=1, parity=Code(2, 1)
        )
    )
    rows = run.roster.remains.parity
    for stripe in stripes(dict(enumerate("abc")), data=2, rows=1):
        rows.kept(kept(stripe, 0, 8, 7), stripe.holders[0])
    said = on_copy_refused(run, 1.0, CopyRefused(5, 3, 1, 8, "CorruptError: checksum"))
    assert rows.steps_of({1}) == {1: (7,)}
    (told,) = [one.text for one in said if isinstance(one, Tell)]
    assert told.endswith("of rank 1 of step 8 was not rebuilt from parity: CorruptError: checksum")


@pytest.mark.parametrize(("rows", "left"), [(1, 7), (2, 8)])
def test_a_damaged_image_is_rebuilt_from_parity_and_counts_as_missing(rows: int, left: int) -> None:
    """Method: rank 1 refuses its image of step 8, and rank 2 is lost with its node. The image of
    rank 2 is rebuilt from those of others, and that of rank 1 is not among them.
    """
    homes = dict(enumerate("abcd"))
    run = RunParts.begin(
        CoordinatorOptions(
            world_size=4, start=Restart(), generation=3, peer_copies=1, parity=Code(2, rows)
        )
    )
    run.roster.script.learn(outlast=True, sharded=True)
    for rank, node in homes.items():
        run.nodes.join(node, 1, serves=f"{node}:1")
        run.roster.add(rank=rank, kind="rank", home=node, now_s=0.0)
        run.roster.remains.find_images(rank, (8, 7))
    remains = run.roster.remains
    for stripe in stripes(homes, data=2, rows=rows):
        for row, node in enumerate(stripe.holders):
            remains.parity.kept(kept(stripe, row, 8, 7), node)
    on_copy_refused(run, 1.0, CopyRefused(5, 3, 1, 8, "CorruptError: checksum", own=True))
    plans = Plans(run)
    found = plans.restore()
    named = "rank 1's own image of step 8 was refused (CorruptError: checksum)"
    assert found.step == 8
    assert found.reason.endswith(f"{named}, and it is rebuilt from parity"), found.reason
    rebuilt = plans.of_rank(1, "slot", 8)
    assert (rebuilt.private, rebuilt.refused) == ("parity", True)
    assert rebuilt.sources
    remains.lose_images("c")
    assert plans.restore().step == left
    for rank in (1, 2):
        used = {source.rank for source in plans.of_rank(rank, "slot", 8).sources}
        assert used.isdisjoint({1, 2})
        assert used or rows == 1


@pytest.mark.parametrize(("data", "rows"), [(2, 1), (4, 2)])
def test_status_says_how_many_nodes_can_be_lost_now(data: int, rows: int) -> None:
    roster = Roster(world_size=6)
    roster.script.learn(outlast=True, sharded=True)
    for rank, home in SIX.items():
        roster.add(rank=rank, kind="rank", home=home, now_s=0.0)

    def to_lose() -> object:
        return count_copies(roster, kept_step=0, at_peers=True, parity=True)["nodes_to_lose"]

    roster.remains.imageless.clear()
    assert to_lose() == 0
    roster.remains.parity = filled(SIX, data=data, rows=rows)
    assert to_lose() == rows
    roster.remains.parity.lose_node("b")
    assert to_lose() == rows - 1
    roster.remains.lose_rank(1)
    assert to_lose() == rows - 1


def test_a_row_that_was_made_again_of_other_ranks_is_not_served_any_more() -> None:
    """Stripe 0 was placed anew, and its node has a row of the same step of both placements. It is
    asked by stripe, row and step, so it sends the newer one.
    """
    rows = ParityRows()
    old, new = KeptRow(0, (0, 1), 1, 7), KeptRow(0, (0, 2), 2, 7)
    for both in ((new, old), (old, new)):
        rows.kept(ParityKept(0, both), "n3")
        rows.kept(ParityKept(1, (KeptRow(0, (1, 0), 1, 7),)), "n2")
        assert rows.steps_of({1}) == {}, "one of its two parts is in the older row"
        rows.kept(ParityKept(1, (KeptRow(0, (2, 0), 2, 7),)), "n2")
        assert rows.steps_of({0}) == {0: (7,)}
