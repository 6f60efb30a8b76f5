"""Copies of images at peers: where they lie, which count, and what a run goes on from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.coordinator.checkpoints import on_copy_refused
from outlast.engine.coordinator.copies import count_copies
from outlast.engine.coordinator.decisions import SlotFacts, decide_own_state
from outlast.engine.coordinator.members import Roster
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.peer_copies import PeerCopies
from outlast.engine.coordinator.plans import Plans
from outlast.engine.coordinator.restore_sources import Checkpoint, Restart
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.shared_plans import RankFields
from outlast.engine.placement import keepers
from outlast.engine.protocol.outputs import Record, Tell
from outlast.engine.restore import Holding, decide_sharded
from outlast.model.messages import CopyKept, CopyRefused, Regroup, WorkerExited

PLAN = Regroup(3, 0, 2, "", 0, "none", "start", 8, -1, False, "none", "none", "", 0, None, None)
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
    for rank, (node,) in kept_by.items():
        assert node in on
        assert node != homes[rank]
    for home in set(on):
        assert len({kept_by[rank] for rank in homes if homes[rank] == home}) == 1


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12), st.integers(1, 7))
def test_as_many_losses_are_survived_as_there_are_copies(on: list[str], count: int) -> None:
    """Method: any `count` nodes are lost. Each node keeps copies for as many nodes as any other."""
    homes = dict(enumerate(on))
    nodes, kept_by = sorted(set(on)), keepers(homes, copies=count)
    some = min(count, len(nodes) - 1)
    copies = PeerCopies()
    copies.place(kept_by)
    for rank, by in kept_by.items():
        assert len({*by} - {homes[rank]}) == some
        for node in by:
            copies.kept(kept(rank, 7), node)
    loads = Counter(node for home in nodes for node in kept_by.get(on.index(home), ()))
    assert len({*loads.values()}) <= 1
    assert copies.survives_losses(homes, ()) == some
    for lost in combinations(nodes, some):
        left = {rank: {*by} - {*lost} for rank, by in kept_by.items() if homes[rank] in lost}
        assert all(left.values())


def test_two_losses_are_survived_unless_one_keeps_the_copies_of_the_other() -> None:
    homes = dict(enumerate("abcd"))
    kept_by = keepers(homes)
    survived = {
        lost
        for lost in combinations("abcd", 2)
        if not any(home in lost and kept_by[rank][0] in lost for rank, home in homes.items())
    }
    assert survived == {("a", "c"), ("b", "d")}


def test_the_order_of_nodes_is_that_of_their_lowest_ranks() -> None:
    assert keepers(HOMES) == {0: ("b",), 1: ("b",), 2: ("c",), 3: ("a",)}
    assert keepers(HOMES, copies=2)[2] == ("c", "a")
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


def test_a_rank_goes_on_from_whichever_copy_is_left() -> None:
    """A copy on its own node is taken first: nothing has to be sent then. If one copy cannot be
    read, the others still count.
    """
    copies = PeerCopies()
    for node in "bcd":
        copies.kept(kept(0, 8, 7), node)
    assert (copies.node_of(0, 8), copies.node_of(0, 8, near="d")) == ("b", "d")
    assert copies.node_of(0, 8, near="a") == "b"
    copies.lose_node("b")
    assert copies.node_of(0, 8) == "c"
    copies.refuse(0, 8, "c")
    assert (copies.node_of(0, 8), copies.node_of(0, 7)) == ("d", "c")
    copies.refuse(0, 8)
    assert copies.steps(0) == (7,)


def test_a_step_counts_as_committed_once_its_copies_lie_at_peers() -> None:
    """If a node has no room for copies, its ranks do not wait for them."""
    copies = PeerCopies()
    assert copies.committed(3) == 3, "there are no copies at all"
    copies.place({0: ("b", "c"), 1: ("a", "c")})
    assert copies.committed(3) == 3, "there are no copies yet"
    copies.kept(kept(0, 8, 7), "b")
    copies.kept(kept(0, 8, 7), "c")
    copies.kept(kept(1, 8, 7), "a")
    copies.kept(kept(1, 7), "c")
    assert [copies.committed(step) for step in (7, 8)] == [7, 7]
    copies.kept(kept(1, 8, 7), "c")
    assert copies.committed(8) == 8
    copies.kept(kept(1), "a")
    assert copies.committed(9) == 9, "there is no room for those of rank 1"
    copies.note_rollback(generation=2, step=8)
    assert (copies.committed(8), copies.committed(9)) == (8, 8), "the node is asked again"


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


def test_only_the_copy_that_was_read_is_refused() -> None:
    """The plan of the rank says which node it read from."""
    run = RunParts.begin(
        CoordinatorOptions(world_size=2, start=Restart(), generation=3, peer_copies=1, peers=2)
    )
    for node in "abc":
        run.nodes.join(node, 1, serves=f"{node}:1")
    member = run.roster.add(rank=1, kind="rank", home="c", now_s=0.0)
    member.path.plan = replace(PLAN, rank=1, private="copy", twin_source="b:1")
    copies = run.roster.remains.copies
    for node in "ab":
        copies.kept(kept(1, 8, 7), node)
    said = on_copy_refused(run, 1.0, CopyRefused(5, 3, 1, 8, "CorruptError: checksum"))
    assert (copies.node_of(1, 8), copies.node_of(1, 7, near="b")) == ("a", "b")
    assert any("which node b keeps" in one.text for one in said if isinstance(one, Tell))


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
    for rank, (node,) in keepers(HOMES).items():
        assert to_lose() == 0
        copies.kept(kept(rank, 7), node)
    assert to_lose() == 1
    for rank, (_, node) in keepers(HOMES, copies=2).items():
        assert to_lose() == 1
        copies.kept(kept(rank, 7), node)
    assert to_lose() == 2
    copies.lose_node("c")
    assert to_lose() == 1, "others have lost one of their two copies"
    copies.lose_node("b")
    assert to_lose() == 0
    copies.kept(kept(0, 7), "a")
    copies.kept(kept(1, 7), "c")
    assert to_lose() == 0, "rank 0 lives on a"


def test_a_node_that_gives_back_what_it_kept_does_not_lack_room() -> None:
    """Another node keeps the copies now, so this one has only tidied up."""
    copies = PeerCopies()
    copies.place({0: ("c",)})
    copies.kept(kept(0, 7), "b")
    copies.kept(kept(0, 8), "c")
    copies.kept(kept(0), "b")
    assert (copies.node_of(0, 7), copies.committed(9)) == ("", 8)
    copies.kept(kept(0), "c")
    assert copies.committed(9) == 9


def test_a_rank_whose_image_is_lost_needs_one_copy_more() -> None:
    """Its copies are all that is left of it, also one on the node that it lives on by now."""
    copies = PeerCopies()
    for node in "abc":
        copies.kept(kept(0, 7), node)
    assert copies.survives_losses({0: "a"}, lost=()) == 2
    assert copies.survives_losses({0: "a"}, lost=(0,)) == 2
    copies.lose_node("b")
    assert copies.survives_losses({0: "d"}, lost=()) == 2
    assert copies.survives_losses({0: "d"}, lost=(0,)) == 1


# --- a rank's own image is damaged ---------------------------------------------------------------

OWN = CopyRefused(5, 3, 1, 8, "CorruptError: checksum", own=True)


def damaged(*nodes: str) -> RunParts:
    """Return a run of two ranks in which rank 1 has refused its own image of step 8.

    `nodes` are those that keep copies of it.
    """
    options = CoordinatorOptions(world_size=2, start=Restart(), generation=3, peer_copies=1)
    run = RunParts.begin(options)
    run.roster.script.learn(outlast=True, sharded=True)
    for node in "abc":
        run.nodes.join(node, 1, serves=f"{node}:1")
    for rank, home in ((0, "a"), (1, "b")):
        run.roster.add(rank=rank, kind="rank", home=home, now_s=0.0)
        run.roster.remains.find_images(rank, (8, 7))
    for node in nodes:
        run.roster.remains.copies.kept(kept(1, 8, 7), node)
    (told,) = [one.text for one in on_copy_refused(run, 1.0, OWN) if isinstance(one, Tell)]
    assert told == "warning: rank 1's own image of step 8 was refused: CorruptError: checksum"
    return run


def test_a_damaged_image_is_replaced_by_a_copy_and_named_in_the_verdict() -> None:
    """The rank keeps its older image, which is whole. Nothing is taken from a copy there."""
    run = damaged("a")
    plans = Plans(run)
    found = plans.restore()
    assert found.step == 8
    named = "rank 1's own image of step 8 was refused (CorruptError: checksum)"
    assert found.reason.endswith(f"{named}, and another node keeps a copy"), found.reason
    assert "whose node is lost" not in found.reason
    copied = RankFields("copy", "", 0, twin_source="a:1", refused=True)
    assert plans.of_rank(1, "slot", 8) == copied
    assert plans.of_rank(1, "slot", 7).private == "slot"
    assert plans.of_rank(0, "slot", 8).private == "slot"


def test_a_damaged_image_without_a_copy_costs_a_step_and_is_named() -> None:
    """That is so as well if the copy is refused too, or its node is lost."""
    refused, lost = damaged("a"), damaged("a")
    on_copy_refused(refused, 2.0, CopyRefused(6, 3, 1, 8, "CorruptError: bits"))
    lost.roster.remains.copies.lose_node("a")
    for run in (damaged(), refused, lost):
        found = Plans(run).restore()
        assert found.step == 7
        assert found.reason.endswith("image of step 8 was refused (CorruptError: checksum)")
        again = Plans(run).of_rank(1, "slot", 8)
        assert again.private == "slot", "it is read once more, and refused"


def test_a_refusal_counts_until_the_rank_has_its_state_again() -> None:
    """If the rank's node is lost meanwhile, all its images are, and not only the damaged one."""
    run = damaged("a")
    remains = run.roster.remains
    remains.lose_rank(1)
    assert (remains.refused, remains.copies_of_lost()) == ({}, {1: (8, 7)})
    on_copy_refused(run, 2.0, OWN)
    assert remains.refused == {}, "none of its images counts"
    run = damaged("a")
    run.roster.remains.note_attached(1)
    assert (run.roster.remains.refused, run.roster.remains.copies_of_lost()) == ({}, {})


def test_an_exit_that_names_no_image_does_not_bring_a_refused_one_back() -> None:
    """Method: a process that has not attached ends, and has refused the only image of its rank."""
    run = damaged("a")
    remains = run.roster.remains
    remains.find_images(1, (8,))
    on_copy_refused(run, 2.0, OWN)
    remains.record_exit(
        1, WorkerExited(5, 5, 1, None, False, -1, (), (), "", 0.0, 0.0, ""), had_state=False
    )
    assert remains.of(1).sealed == ()
    assert Plans(run).restore().step == 8, "a copy stands in for it"


# --- an image that was fetched, and refused ------------------------------------------------------

STEPS = st.lists(st.integers(6, 8), unique=True).map(tuple)


@given(on_a=STEPS, on_d=STEPS, fetched=STEPS, refused=st.booleans())
def test_a_step_is_chosen_only_if_each_rank_has_a_source_for_it(
    on_a: tuple[int, ...], on_d: tuple[int, ...], fetched: tuple[int, ...], refused: bool
) -> None:
    """Method: rank 1's node is lost, and the rank moves to node c. Its process fetches an image
    there, may refuse it, and ends. The agent of c reports what lies in the slots: that image was
    never loaded, so it does not count.
    """
    options = CoordinatorOptions(world_size=2, start=Restart(), generation=3, peer_copies=2)
    run = RunParts.begin(options)
    run.roster.script.learn(outlast=True, sharded=True)
    remains = run.roster.remains
    for node in "abcd":
        run.nodes.join(node, 1, serves=f"{node}:1")
    for rank, home in ((0, "a"), (1, "b")):
        run.roster.add(rank=rank, kind="rank", home=home, now_s=0.0)
        remains.find_images(rank, (8, 7, 6))
    for node, steps in (("a", on_a), ("d", on_d)):
        remains.copies.kept(kept(1, *steps), node)
    remains.lose_images("b")
    member = run.roster.add(rank=1, kind="rank", home="c", now_s=1.0)
    if refused and fetched:
        member.path.plan = replace(PLAN, rank=1, private="copy", twin_source="d:1")
        on_copy_refused(run, 2.0, CopyRefused(5, 3, 1, fetched[0], "CorruptError: bits"))
        on_d = tuple(step for step in on_d if step != fetched[0])
    held = (-1, fetched, fetched, "", 0.0, 0.0, "")
    remains.record_exit(1, WorkerExited(5, 5, 1, None, False, *held), had_state=False)
    plans = Plans(run)
    step = plans.restore().step
    assert step == max((*on_a, *on_d), default=None)
    if step is not None:
        assert plans.of_rank(1, "slot", step).private == "copy"
