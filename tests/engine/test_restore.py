"""Which step all ranks go on from: every case of an interrupted step, with replicated and sharded
state.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.restore import Holding, decide_replicated, decide_sharded


def held(
    rank: int,
    committed: int,
    *,
    alive: bool = True,
    prepared: bool = False,
    passed: bool = False,
    in_hook: bool = False,
    usable: bool = True,
) -> Holding:
    steps = (committed, committed + 1) if prepared else (committed,)
    return Holding((rank,), alive, committed, steps, committed + passed, in_hook, (), usable)


def test_a_step_that_no_rank_prepared_is_repeated() -> None:
    verdict = decide_replicated(holdings=[held(0, 7), held(1, 7), held(2, 7, alive=False)])
    assert (verdict.step, verdict.settle, verdict.donor, verdict.heal) == (
        7,
        {0: "repeat", 1: "repeat"},
        0,
        (2,),
    )


def test_a_step_that_all_prepared_goes_forward_the_dead_included() -> None:
    verdict = decide_replicated(
        holdings=[held(0, 7, prepared=True, in_hook=True), held(1, 7, alive=False, prepared=True)]
    )
    assert (verdict.step, verdict.settle, verdict.heal) == (8, {0: "forward"}, (1,))


def test_a_step_that_the_dead_had_not_prepared_is_repeated() -> None:
    verdict = decide_replicated(
        holdings=[held(0, 7, prepared=True, in_hook=True), held(1, 7, alive=False)]
    )
    assert (verdict.step, verdict.settle) == (7, {0: "repeat"})


def test_a_step_that_one_survivor_committed_is_applied_by_the_others() -> None:
    verdict = decide_replicated(
        holdings=[
            held(0, 8),
            held(1, 7, prepared=True, in_hook=True),
            held(2, 7, alive=False, prepared=True),
        ]
    )
    assert (verdict.step, verdict.settle) == (8, {0: "repeat", 1: "forward"})


def test_a_step_that_was_seen_to_pass_is_kept_by_those_that_can_reach_it() -> None:
    """Method: rank 0 saw the vote pass, failed after it, and cannot apply the step any more. Rank 1
    heals it.
    """
    verdict = decide_replicated(
        holdings=[held(0, 7, prepared=True, passed=True), held(1, 7, prepared=True, in_hook=True)]
    )
    assert (verdict.step, verdict.settle, verdict.heal, verdict.donor) == (
        8,
        {1: "forward"},
        (0,),
        1,
    )


def test_ranks_with_equal_remains_are_decided_as_if_each_was_alone() -> None:
    apart = [
        held(0, 8),
        held(1, 7, prepared=True, in_hook=True),
        held(2, 7, prepared=True, in_hook=True),
        held(3, 7, alive=False),
        held(4, 7, alive=False),
    ]
    together = [apart[0], replace(apart[1], ranks=(1, 2)), replace(apart[3], ranks=(3, 4))]
    assert decide_replicated(holdings=together) == decide_replicated(holdings=apart)
    sealed = [replace(one, sealed=(7,)) for one in together]
    assert "all 5 owners" in decide_sharded(holdings=sealed).reason


def test_without_a_living_holder_nothing_is_decided() -> None:
    assert (
        decide_replicated(holdings=[held(0, 7, alive=False), held(1, 7, usable=False)]).step is None
    )


def test_sharded_state_goes_to_the_newest_step_that_all_owners_sealed() -> None:
    def owner(rank: int, *sealed: int) -> Holding:
        return Holding((rank,), rank > 0, max(sealed, default=-1), (), -1, False, sealed)

    assert decide_sharded(holdings=[owner(0, 5, 4), owner(1, 6, 5)]).step == 5
    missing = decide_sharded(holdings=[owner(0), owner(1, 6, 5)])
    assert missing.step is None
    assert "[0]" in missing.reason


@st.composite
def cut_short(draw: st.DrawFn) -> list[Holding]:
    """Draw what is left of a step k+1 in every reachable way: no rank passes before all have
    prepared, and then each is in the hook or past it.
    """
    step = draw(st.integers(0, 50))
    ranks = draw(st.integers(1, 5))
    all_prepared = draw(st.booleans())
    out = []
    for rank in range(ranks):
        alive = draw(st.booleans())
        prepared = all_prepared or draw(st.booleans())
        came = draw(st.sampled_from(("vote", "committed"))) if all_prepared else "vote"
        if came == "committed":
            out.append(Holding((rank,), alive, step + 1, (step, step + 1), step + 1, False, ()))
        else:
            out.append(
                Holding(
                    (rank,),
                    alive,
                    step,
                    (step, step + 1) if prepared else (step,),
                    step,
                    alive and prepared,
                    (),
                )
            )
    if not all_prepared:  # at least one rank has not prepared
        first = out[0]
        out[0] = Holding((0,), first.alive, step, (step,), step, False, ())
    return out


@given(holdings=cut_short())
def test_no_committed_step_is_lost_while_any_rank_lives(holdings: list[Holding]) -> None:
    """A step also survives if the rank that committed it died: all others had prepared that
    step.
    """
    verdict = decide_replicated(holdings=holdings)
    if not any(one.alive for one in holdings):
        assert verdict.step is None
        return
    assert verdict.step is not None
    assert verdict.step >= max(one.committed for one in holdings)
    assert set(verdict.settle) | set(verdict.heal) == {
        rank for one in holdings for rank in one.ranks
    }
    assert all(one.ranks[0] in verdict.settle for one in holdings if one.alive), (
        "every survivor of a clean cut can get there"
    )
    assert verdict.donor in verdict.settle
    for one in holdings:
        if one.alive:
            assert verdict.settle[one.ranks[0]] == (
                "repeat" if one.committed == verdict.step else "forward"
            )


def test_the_decision_of_the_last_plan_stays() -> None:
    """Method: one rank was told to go forward to step 8, did so, and dropped its state to enter
    main again. The others have not heard of that plan.
    """
    holdings = [held(0, -1), held(1, 7, prepared=True, in_hook=True), held(2, 7, alive=False)]
    assert decide_replicated(holdings=holdings).step == 7
    verdict = decide_replicated(holdings=holdings, decided=8)
    assert (verdict.step, verdict.settle, verdict.donor) == (8, {1: "forward"}, 1)
    assert decide_replicated(holdings=[held(0, -1), held(1, 7)], decided=8).step == 7, (
        "nobody that lives can get there"
    )


def test_a_twin_speaks_for_a_rank_whose_images_are_lost() -> None:
    """Method: HSDP with two replicas of two shards; ranks 2 and 3 are lost with their node. Without
    twins there is no state to go on from, and half of the twins is not enough.
    """
    there = [Holding((rank,), True, 8, (8,), 8, False, (9 - rank, 8, 7)) for rank in (0, 1)]
    lost = [Holding((rank,), False, -1, (), -1, False, ()) for rank in (2, 3)]
    healed = decide_sharded(holdings=there + lost, twins={2: (0,), 3: (1,)})
    assert healed.step == 8
    assert "ranks 2, 3 lost theirs with their node" in healed.reason
    for twins, missing in (({}, "[2, 3]"), ({2: (0,)}, "[3]")):
        torn = decide_sharded(holdings=there + lost, twins=twins)
        assert torn.step is None
        assert missing in torn.reason
