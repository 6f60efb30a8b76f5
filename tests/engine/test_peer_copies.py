"""Copies of images at peers: where they lie, which count, and what a run goes on from."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.coordinator.checkpoints import on_copy_refused
from outlast.engine.coordinator.copies import count_copies
from outlast.engine.coordinator.decisions import SlotFacts, decide_own_state
from outlast.engine.coordinator.members import Roster
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.peer_copies import PeerCopies
from outlast.engine.coordinator.restore_sources import Checkpoint, Restart
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.placement import keepers
from outlast.engine.protocol.outputs import Record, Tell
from outlast.engine.restore import Holding, decide_sharded
from outlast.model.messages import CopyKept, CopyRefused

HOMES = {0: "a", 1: "a", 2: "b", 3: "c"}


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=12))
def test_every_single_loss_of_a_node_leaves_each_image_somewhere(on: list[str]) -> None:
    """The nodes that keep copies are nodes with ranks, and a rank's copies are never on its own
    node.
    """
    homes = dict(enumerate(on))
    kept_by = keepers(homes)
    if len(set(on)) == 1:
        assert kept_by == {}, "nobody else is there"
        return
    assert sorted(kept_by) == sorted(homes)
    for rank, node in kept_by.items():
        assert node in on
        assert node != homes[rank]
    for home in set(on):
        assert len({kept_by[rank] for rank in homes if homes[rank] == home}) == 1


def test_two_losses_are_survived_unless_one_keeps_the_copies_of_the_other() -> None:
    homes = dict(enumerate("abcd"))
    kept_by = keepers(homes)
    survived = {
        lost
        for lost in combinations("abcd", 2)
        if not any(home in lost and kept_by[rank] in lost for rank, home in homes.items())
    }
    assert survived == {("a", "c"), ("b", "d")}


def test_the_order_of_nodes_is_that_of_their_lowest_ranks() -> None:
    assert keepers(HOMES) == {0: "b", 1: "b", 2: "c", 3: "a"}
    assert keepers({3: "c", 2: "b", 1: "a", 0: "a"}) == keepers(HOMES)


def kept(rank: int, *steps: int, generation: int = 1) -> CopyKept:
    return CopyKept(rank, generation, steps)


def test_copies_of_steps_that_were_rolled_back_do_not_count() -> None:
    """Copies do not count either if the report of them comes late, from a process of the previous
    generation.
    """
    copies = PeerCopies()
    copies.kept(kept(0, 8, 7), "b")
    copies.note_rollback(generation=2, step=7)
    assert copies.steps(0) == (7,)
    copies.kept(kept(0, 8, 7), "b")
    assert copies.steps(0) == (7,), "it was sent before"
    copies.kept(kept(0, 8, 7, generation=2), "b")
    assert (copies.steps(0), copies.node_of(0, 8)) == ((8, 7), "b")


def test_what_a_node_kept_is_lost_with_it() -> None:
    """A copy still counts on a node where the rank's copies were kept before."""
    copies = PeerCopies()
    copies.kept(kept(0, 6, 5), "b")
    copies.kept(kept(0, 7, 6), "c")
    copies.lose_node("c")
    assert (copies.steps(0), copies.node_of(0, 6), copies.node_of(0, 7)) == ((6, 5), "b", "")
    copies.refuse(0, 6)
    assert copies.steps_of({0, 1}) == {0: (5,)}


def test_a_step_counts_as_committed_once_its_copies_lie_at_peers() -> None:
    """If a node has no room for copies, its ranks do not wait for them."""
    copies = PeerCopies()
    assert copies.committed(3, world_size=2) == 3, "there are no copies at all"
    copies.kept(kept(0, 8, 7), "b")
    copies.kept(kept(1, 7), "a")
    assert [copies.committed(step, world_size=2) for step in (7, 8)] == [7, 7]
    copies.kept(kept(1, 8, 7), "a")
    assert copies.committed(8, world_size=2) == 8
    copies.kept(kept(1), "a")
    assert copies.committed(9, world_size=2) == 9, "there is no room for those of rank 1"


def test_a_copy_stands_for_the_image_that_was_lost_with_its_node() -> None:
    there = [Holding((rank,), True, 8, (8,), 8, False, (8, 7)) for rank in (0, 1)]
    lost = [Holding((2,), False, -1, (), -1, False, ())]
    found = decide_sharded(holdings=there + lost, copies={2: (8, 7)})
    assert found.step == 8
    assert "ranks 2, whose node is lost, another node keeps a copy" in found.reason
    assert decide_sharded(holdings=there + lost, copies={2: (7, 6)}).step == 7
    assert decide_sharded(holdings=there + lost, copies={2: (6, 5)}).step is None
    assert decide_sharded(holdings=there + lost).step is None


def test_a_copy_that_was_refused_is_named_and_not_taken_again() -> None:
    """A refusal from a generation that is over says nothing about the copies that exist now."""
    run = RunParts.begin(
        CoordinatorOptions(world_size=2, start=Restart(), generation=3, peer_copies=1)
    )
    copies = run.roster.remains.copies
    copies.kept(kept(1, 8, 7), "a")
    late = on_copy_refused(run, 1.0, CopyRefused(5, 2, 1, 8, "checksum"))
    assert (late, copies.steps(1)) == ([], (8, 7))
    said = on_copy_refused(run, 1.0, CopyRefused(5, 3, 1, 8, "CorruptError: checksum"))
    assert copies.steps(1) == (7,)
    (told,) = [one.text for one in said if isinstance(one, Tell)]
    assert "the copy of the image of rank 1 of step 8" in told
    assert told.endswith("was refused: CorruptError: checksum")
    assert any(isinstance(one, Record) for one in said)


def test_a_rank_takes_its_own_image_first_then_a_copy_then_a_twin() -> None:
    def source(*, has_images: bool, copied_on: str, twin: int) -> str:
        slots = SlotFacts(False, has_images, False, twin, copied_on)
        return decide_own_state(
            slots=slots, step=5, sharded=True, folder="", checkpoint=Checkpoint(), verified=""
        ).private

    assert source(has_images=True, copied_on="b", twin=1) == "slot"
    assert source(has_images=False, copied_on="b", twin=1) == "copy"
    assert source(has_images=False, copied_on="", twin=1) == "twin"
    assert source(has_images=False, copied_on="", twin=-1) == "none"


def test_status_says_whether_the_loss_of_any_node_is_survived() -> None:
    """A copy on the rank's own node does not count. The rank has moved to that node since the copy
    was made.
    """
    roster = Roster(world_size=4)
    roster.script.learn(outlast=True, sharded=True)
    for rank, home in HOMES.items():
        roster.add(rank=rank, kind="rank", home=home, now_s=0.0)
    copies = roster.remains.copies

    def to_lose(at_peers: bool = True) -> object:
        return count_copies(roster, kept_step=0, at_peers=at_peers)["nodes_to_lose"]

    assert (to_lose(), to_lose(False)) == (0, None)
    for rank, node in keepers(HOMES).items():
        assert to_lose() == 0
        copies.kept(kept(rank, 7), node)
    assert to_lose() == 1
    copies.lose_node("b")
    assert to_lose() == 0
    copies.kept(kept(0, 7), "a")
    copies.kept(kept(1, 7), "c")
    assert to_lose() == 0, "rank 0 lives on a"
