"""Drawn scripts under drawn faults: the whole state of every rank is as in the undisturbed run.

Most tests here are about the draw and start no process. For more seeds: `python -m
tests.drills.features --seeds 1:300 --jobs 2`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.drills.features.draw import CHOICES, RULES, Features, Rule, draw, plain, ruled, unruled
from tests.drills.features.faults import (
    EVALUATE_EVERY,
    Fault,
    draw_faults,
    is_left_out,
    last_struck,
    parse_fault,
    places,
    rare_places,
)
from tests.drills.features.reduce import reduced
from tests.drills.features.run import Found, compare, drill
from tests.drills.features.script import script_of

MANY = range(1, 301)
SEEDS = (182, 262, 118, 192, 383, 222, 106, 330, 319, 437)  # together they have every feature


def all_names() -> set[str]:
    named = {f"{field}={value}" for field, values in CHOICES.items() for value in values}
    return named | {"calls=1", "calls=2"}


# --- the draw, without a process ------------------------------------------------------------------


def test_a_seed_always_gives_the_same_script_and_faults() -> None:
    """Method: draw twice. No two of a hundred seeds give the same script."""
    for seed in (1, 17, 300):
        assert draw(seed) == draw(seed)
        assert draw_faults(draw(seed)) == draw_faults(draw(seed))
        assert script_of(draw(seed)) == script_of(draw(seed))
    assert len({script_of(draw(seed)) for seed in range(100)}) == 100


def test_every_drawn_script_compiles() -> None:
    for seed in MANY:
        compile(script_of(draw(seed)), f"seed {seed}", "exec")


def test_every_feature_is_drawn_soon() -> None:
    """Each value of each feature occurs among the first 150 seeds, after the rules were applied."""
    drawn = {name for seed in range(1, 151) for name in draw(seed).names}
    assert drawn >= all_names(), all_names() - drawn


def test_the_drilled_seeds_have_every_feature() -> None:
    drilled = {name for seed in SEEDS for name in draw(seed).names}
    assert drilled >= all_names(), all_names() - drilled


def test_a_feature_that_a_rule_excludes_is_never_drawn() -> None:
    """After the rules, no rule applies any more: a later rule does not undo an earlier one."""
    for seed in MANY:
        broken = [rule.name for rule in RULES if rule.conflicts(draw(seed))]
        assert not broken, f"seed {seed}: {broken}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_has_its_reason_and_something_to_exclude(rule: Rule) -> None:
    """A rule that matches no drawn combination is dead."""
    assert any(rule.conflicts(unruled(seed)) for seed in MANY)
    assert len(rule.why) > 10


# --- the faults -----------------------------------------------------------------------------------


def test_a_fault_is_parsed_as_it_is_written() -> None:
    written = ("forward@5:1", "mark.voting@7:2:SIGSTOP", "load@9:0:raise", "before@6:0+0.004")
    for text in (*written, "mark.joined@0:1/2"):
        assert str(parse_fault(text)) == text
    with pytest.raises(ValueError, match="is not PLACE@STEP"):
        parse_fault("forward")
    for seed in MANY:
        for fault in draw_faults(draw(seed)):
            assert parse_fault(str(fault)) == fault


def test_each_plan_has_one_to_four_faults_in_steps_that_occur() -> None:
    for seed in MANY:
        features, faults = draw(seed), draw_faults(draw(seed))
        assert 1 <= len(faults) <= 4, f"seed {seed}"
        for fault in faults:
            assert 0 <= fault.step <= features.until[-1], f"seed {seed}: {fault}"
            assert 0 <= fault.rank < features.world, f"seed {seed}: {fault}"


def test_no_rank_is_struck_where_state_begins_to_move() -> None:
    """A loss there is reported as not bit-exact. All other steps are struck as usual."""
    left_out = [seed for seed in MANY if is_left_out(draw(seed), EVALUATE_EVERY)]
    struck = {one.step for seed in left_out for one in draw_faults(draw(seed))}
    assert struck
    assert EVALUATE_EVERY not in struck


def test_no_rank_is_struck_once_another_may_have_left_the_loop() -> None:
    """A `break` ends the run for the ranks that reach it, and a lost one may not come back."""
    left = [draw(seed) for seed in range(1, 1301)]
    left = [features for features in left if features.left_by_break]
    late = [one.seed for one in left for fault in draw_faults(one) if fault.step > last_struck(one)]
    assert len(left) > 100
    assert late == []


def test_some_rank_survives_each_moment() -> None:
    """The loss of all ranks at once is another promise: then the steps since the newest checkpoint
    are lost.
    """
    for seed in MANY:
        features, faults = draw(seed), draw_faults(draw(seed))
        struck = [one for one in faults if not one.generation]
        for fault in struck:
            together = {one.rank for one in struck if abs(one.step - fault.step) < 2}
            assert len(together) < features.world or not features.stands, f"seed {seed}: {faults}"
        # a survivor is struck while another rank is replaced
        for before, after in pairwise(faults):
            if after.generation and after.rank != before.rank:
                assert features.world > 2, f"seed {seed}: {faults}"


def test_every_kind_of_fault_and_every_place_is_drawn() -> None:
    drawn = [(draw(seed), draw_faults(draw(seed))) for seed in MANY]
    struck = {fault.place for _, faults in drawn for fault in faults}
    known = {place for f, _ in drawn for place in (*places(f), *rare_places(f))}
    assert struck >= known | {"end"}, known - struck
    assert {fault.do for _, faults in drawn for fault in faults} == {"SIGKILL", "SIGSTOP", "raise"}
    assert any(fault.after_s for _, faults in drawn for fault in faults)
    assert any(len({fault.step for fault in faults}) < len(faults) for _, faults in drawn)


def test_every_place_occurs_in_the_script() -> None:
    for seed in MANY:
        features = draw(seed)
        text = script_of(features)
        for place in (*places(features), *rare_places(features)):
            named = 'strike(f"micro{number}"' if place.startswith("micro") else f'strike("{place}"'
            assert place.startswith("mark.") or named in text, f"seed {seed}: {place}"


# --- the comparison -------------------------------------------------------------------------------


def test_a_difference_names_its_rank_and_its_parts() -> None:
    """A missing part counts as a difference, and so does a rank that wrote nothing."""
    found = Found(plain(world=3), (Fault("forward", 5, 1),), Path("script.py"))
    peace = {rank: {"parameter a": "1", "meter": "2"} for rank in range(3)}
    war = {0: dict(peace[0]), 1: {"parameter a": "9"}}
    compare(peace, war, found)
    assert found.differing == {1: ["meter", "parameter a"]}
    assert found.kinds == {"state", "under faults: no result"}
    assert "rank 2 wrote no result" in found.line
    calm = Found(plain(world=3), (), Path("script.py"))
    compare(peace, peace, calm)
    assert not calm.problems


def test_a_reduction_keeps_only_what_the_problem_needs(tmp_path: Path) -> None:
    """Method: a run is bad if it has dropout, meters in its tail, and the second fault."""
    fault = Fault("tail", 9, 1)

    def bad(features: Features, faults: Sequence[Fault], folder: Path) -> Found:
        found = Found(features, tuple(faults), folder)
        if features.dropout and "tail" in features.metered and fault in faults:
            found.blame("state", "rank 1 differs")
        return found

    features = ruled(replace(draw(6), kind="ddp", dropout=True, metered=("before", "tail")))
    faults = (Fault("forward", 5, 0), fault, Fault("mark.voting", 14, 0))
    small = reduced(bad(features, faults, tmp_path), tmp_path / "smaller", run=bad)
    last = (small.features.until[-1],)
    assert small.faults == (fault,)
    assert small.features == plain(seed=6, until=last, dropout=True, metered=("tail",))


# --- with processes -------------------------------------------------------------------------------


@pytest.mark.drill
def test_a_plain_script_ends_as_without_faults(tmp_path: Path) -> None:
    found = drill(plain(world=2, reads_rank=True), [Fault("backward", 5, 1)], tmp_path / "drill")
    assert not found.problems, str(found)


@pytest.mark.drill
def test_an_average_and_numbers_drawn_between_calls_survive_two_kills(tmp_path: Path) -> None:
    """This combines the two scripts below, with the faults of both."""
    features = plain(
        world=2,
        until=(4, 8),
        reads_rank=True,
        dropout=True,
        draws=("calls",),
        average="ema",
        average_at="behind",
        average_by_data=True,
    )
    faults = [Fault("backward", 1, 1), Fault("mark.passed", 5, 1)]
    found = drill(features, faults, tmp_path / "drill")
    assert not found.problems, str(found)


@pytest.mark.drill
def test_numbers_drawn_between_two_calls_do_not_move_in_the_next_step(tmp_path: Path) -> None:
    """Method: a rank is lost when it has passed its vote on the first step of the second call.

    Its successor begins the next step with the random numbers of its predecessor, not with those of
    the survivor: nothing was drawn after that vote.
    """
    features = plain(world=2, until=(4, 8), reads_rank=True, dropout=True, draws=("calls",))
    found = drill(features, [Fault("mark.passed", 5, 1)], tmp_path / "drill")
    assert not found.problems, str(found)


@pytest.mark.drill
@pytest.mark.parametrize("by_data", [True, False])
def test_an_average_moved_after_an_interrupted_first_step_is_restored(
    tmp_path: Path, by_data: bool
) -> None:
    """The script runs on after the block, and moves the average once more than it should.

    Method: the peer is lost in the backward, so the survivor is interrupted inside its block.
    """
    features = plain(world=2, average="ema", average_at="behind", average_by_data=by_data)
    found = drill(features, [Fault("backward", 1, 1)], tmp_path / "drill")
    assert not found.problems, str(found)


@pytest.mark.drill
def test_an_average_that_first_moves_in_an_interrupted_second_step(tmp_path: Path) -> None:
    """The average moves before the optimizer: in the first step it takes the weights that it
    already has.
    """
    features = plain(world=2, average="ema", average_at="inside")
    found = drill(features, [Fault("backward", 2, 1)], tmp_path / "drill")
    assert not found.problems, str(found)


@pytest.mark.drill
@pytest.mark.parametrize("fault", ["mark.voting@4:1", "tail_end@4:0", "behind_end@4:2"])
def test_a_rank_is_lost_in_the_step_after_state_began_to_move(tmp_path: Path, fault: str) -> None:
    """Method: the first evaluation draws random numbers after step 3, and each rank draws different
    ones.

    Step 4 already votes at its end, so it is repeated as a whole. Drawn script 14122 found this.
    """
    features = plain(
        world=3, reads_rank=True, evaluate="plain", evaluation_draws=True, dropout=True
    )
    found = drill(features, [parse_fault(fault)], tmp_path / "drill")
    assert not found.problems, str(found)


@pytest.mark.drill
@pytest.mark.parametrize(
    "fault", ["begin@4:1", "behind_end@4:1", "behind_end@6:0", "behind_end@6:1"]
)
def test_a_rank_is_lost_where_rank_0_alone_draws_numbers(tmp_path: Path, fault: str) -> None:
    """All ranks vote late from step 4 on, including the one on which nothing moves after the vote.

    If that rank is lost, its successor takes nothing of rank 0's random state.
    """
    features = plain(
        world=2, reads_rank=True, evaluate="plain", evaluate_on="first", evaluation_draws=True
    )
    found = drill(features, [parse_fault(fault)], tmp_path / "drill")
    assert not found.problems, str(found)


@pytest.mark.drill
def test_a_fault_that_never_fires_is_a_failed_drill(tmp_path: Path) -> None:
    found = drill(plain(world=2), [Fault("backward", 99, 1)], tmp_path / "drill")
    assert found.kinds == {"a fault never fired"}, str(found)


@pytest.mark.drill
def test_restarted_ranks_know_the_state_that_moves_after_the_vote(tmp_path: Path) -> None:
    """Method: a rank is lost after its block, all ranks start over, and its successor is lost as
    well.

    The second hand-over comes from a rank that is as new as the successor, and has executed no
    step.
    """
    features = plain(world=3, spares="hot", reads_rank=True, collective_before=True, history=True)
    faults = [parse_fault(text) for text in ("behind@3:2", "mark.joined@0:2/2")]
    found = drill(features, faults, tmp_path / "drill")
    assert not found.problems, str(found)


@pytest.mark.drill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_script_ends_as_without_faults(tmp_path: Path, seed: int) -> None:
    """The whole state of every rank at the end is compared, under the faults of this seed and
    without any.
    """
    found = drill(draw(seed), draw_faults(draw(seed)), tmp_path / "drill")
    assert not found.problems, str(found)
