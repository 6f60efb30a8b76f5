"""The pure parts of the program that compares the planner with real runs. `make validate-plan-live`
does the runs themselves.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.validate_plan.fit import (
    ROOM,
    Fit,
    Sampled,
    elsewhere,
    fit,
    load_for,
    longer,
    lost_share,
    resampled,
)
from benchmarks.validate_plan.measured import Measured, measured
from benchmarks.validate_plan.predict import (
    Prediction,
    Variant,
    by_the_books,
    mixed,
    mttrs_s,
    predict,
    without_spare,
)
from benchmarks.validate_plan.score import Row, lines, table
from benchmarks.validate_plan.strikes import draw
from outlast.errors import UsageError
from outlast.model.records import (
    Interruption,
    Life,
    Meta,
    Records,
    Session,
    SessionRecords,
    StepsBucket,
)
from outlast.model.terms import Cause, Mechanism, Rung
from outlast.planner.histories import draw as draw_histories
from outlast.planner.stops import run_with_stops

VARIANT = Variant(
    "one", world_size=2, mttf_s=5.0, snapshot_every=1, spares=1, duration_s=200.0, seed=3
)


# --- strikes --------------------------------------------------------------------------------------


def test_strikes_are_poisson_and_strike_all_ranks_alike() -> None:
    """With 20,000 strikes, the mean and the variance of the gaps and the share of each rank are
    within four standard errors.
    """
    strikes = draw(seed=7, mttf_s=2.0, duration_s=40_000.0, world_size=4)
    gaps = [after.at_s - before.at_s for before, after in pairwise(strikes)]
    assert statistics.fmean(gaps) == pytest.approx(2.0, abs=4 * 2.0 / len(gaps) ** 0.5)
    assert statistics.pstdev(gaps) == pytest.approx(2.0, rel=0.05)
    for rank in range(4):
        assert sum(one.rank == rank for one in strikes) / len(strikes) == pytest.approx(
            0.25, abs=4 * (0.1875 / len(strikes)) ** 0.5
        )


def test_a_longer_run_is_struck_like_a_shorter_one_of_its_seed() -> None:
    short, long = (
        draw(seed=1, mttf_s=2.0, duration_s=duration_s, world_size=3)
        for duration_s in (50.0, 100.0)
    )
    assert long[: len(short)] == short
    assert len(long) > len(short)
    assert all(0 < before.at_s < after.at_s < 100 for before, after in pairwise(long))
    assert draw(seed=2, mttf_s=2.0, duration_s=50.0, world_size=3) != short


# --- what a ledger says ---------------------------------------------------------------------------


def interrupted(
    number: int,
    at_s: float,
    *,
    parent: int | None = None,
    rung: Rung = Rung.SPARE,
    resumes: bool = True,
) -> Interruption:
    """Return an interruption. It is detected after 0.1 s, regrouped 0.3 s later (0.5 s by a
    respawn) and restored 0.1 s later. Its first step takes 0.5 s.
    """
    regrouped_s = at_s + (0.4 if rung is Rung.SPARE else 0.6)
    return Interruption(
        id=number,
        mechanism=Mechanism.SIGNAL,
        detected_s=at_s + 0.1,
        parent=parent,
        ranks=(1,),
        rung=rung,
        fault_s=at_s,
        left_s=at_s + 0.2,
        regrouped_s=regrouped_s,
        restored_s=regrouped_s + 0.1,
        resumed_s=regrouped_s + 0.6 if resumes else None,
    )


def a_ledger(*interruptions: Interruption, seconds: dict[Cause, float]) -> Records:
    """Return the ledger of a run of two ranks. Both have booked these seconds, from 10 s on."""
    wall_s = 10.0 + sum(seconds.values())
    session = Session(0, 1, 0.0, 0.0, seen_s=wall_s, ended_s=wall_s, state="stopped")
    lives = tuple(
        Life(
            rank + 1,
            100 + rank,
            "here",
            rank,
            "rank",
            0.0,
            opened_s=10.0,
            ended_s=wall_s,
            seconds=seconds,
        )
        for rank in range(2)
    )
    steps = (StepsBucket(10.0, wall_s, 0, 100, 0.1, 0.1, 0.1),)
    part = SessionRecords(session, 0.0, lives=lives, interruptions=interruptions, steps=steps)
    return Records(Meta("run", "run", 2, "0", 0.0, 0.0), (part,))


def struck(*, respawns: int = 3, repeated_s: float = 0.7) -> Records:
    """Return the ledger of a run whose lost ranks are taken by spares five times. One of them is
    struck again, and is respawned like the others.

    The run does 100 steps. The first step after a recovery takes 0.5 s, and the others take 0.2 s.
    """
    alone = [interrupted(number, 20.0 * number) for number in range(1, 5)]
    family = [
        interrupted(5, 100.0, resumes=False),
        interrupted(6, 100.3, parent=5, rung=Rung.RESPAWN),
    ]
    respawned = [
        interrupted(7 + number, 120.0 + 10 * number, rung=Rung.RESPAWN)
        for number in range(respawns - 1)
    ]
    recovered = len(alone) + respawns
    work_s = recovered * 0.5 + (100 - recovered) * 0.2
    standing_s = 4 * 0.5 + 1.0 + (respawns - 1) * 0.7
    seconds = {
        Cause.PRODUCTIVE: 0.9 * work_s,
        Cause.DATA_WAIT: 0.1 * work_s,
        Cause.STALL: 1.0,
        Cause.REPEATED: repeated_s,
        Cause.DETECTION: 0.2,
        Cause.REGROUP: 0.8 * standing_s - 0.3,
        Cause.RESTORE: 0.1,
    }
    return a_ledger(*alone, *family, *respawned, seconds=seconds)


def test_a_family_of_interruptions_counts_once() -> None:
    run = measured(struck())
    assert run.interruptions == 8
    assert run.families == 7
    assert sorted(run.mttr_s) == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.2, 1.2, 1.5])
    assert run.mttr_median_s == pytest.approx(1.0)
    assert run.rungs == {"spare": 5, "respawn": 3}
    assert sum(run.seconds.values()) == pytest.approx(10.0 + run.training_s)
    assert run.ettr == pytest.approx(run.seconds["productive"] / run.training_s)


def test_an_interruption_that_is_not_over_has_no_mttr() -> None:
    run = measured(
        a_ledger(
            interrupted(1, 20.0),
            interrupted(2, 30.0, resumes=False),
            seconds={Cause.PRODUCTIVE: 50.0},
        )
    )
    assert run.families == 2
    assert len(run.mttr_s) == 1


def test_a_fit_finds_phases_step_and_ratio_of_the_books() -> None:
    known = fit(struck(), mttf_s=4.0, spares=1, pause_s=0.05)
    spare, respawn = known.phases[Rung.SPARE], known.phases[Rung.RESPAWN]
    assert (spare.count, respawn.count) == (4, 3)  # of the family, the last
    assert spare.regroup_s == pytest.approx([0.3] * 4)
    assert respawn.regroup_s == pytest.approx([0.5] * 3)
    assert spare.restore_s + respawn.restore_s == pytest.approx([0.1] * 7)
    assert known.first_mean_s == pytest.approx(0.5)
    assert known.stall_s == pytest.approx(0.01)
    assert known.step_s == pytest.approx(0.2 + 1.0 / 93 - 0.01)
    assert known.share == pytest.approx(0.9)
    assert known.booked == pytest.approx(0.8)
    assert lost_share(known.refill_s / 4.0, 1) == pytest.approx(3 / 7)
    low, high = known.rate_per_s[1:]
    assert low < 8 / measured(struck()).training_s < high


def test_work_repeated_beyond_half_a_step_is_lost() -> None:
    """Eight interruptions repeat 4 s in all, half a second each. Of that, half a step with its
    snapshot is the usual cost of an interruption.
    """
    known = fit(struck(repeated_s=4.0), mttf_s=4.0, spares=1, pause_s=0.05)
    assert known.again_s == pytest.approx(0.5 - (known.step_s + known.stall_s) / 2)
    assert fit(struck(), mttf_s=4.0, spares=1, pause_s=0.05).again_s == 0
    scenario = by_the_books(known, replace(VARIANT, spares=0))
    assert scenario.tiers[0].restore.mean_s == pytest.approx(0.8 * 0.1 + known.again_s)


def test_too_few_recoveries_of_a_rung_are_refused() -> None:
    with pytest.raises(UsageError, match="2 recoveries by respawn"):
        fit(struck(respawns=2), mttf_s=4.0, spares=1, pause_s=0.05)


# --- models ---------------------------------------------------------------------------------------


@pytest.fixture
def known() -> Fit:
    return fit(struck(), mttf_s=4.0, spares=1, pause_s=0.05)


def test_erlangs_formula_agrees_with_simulated_spares() -> None:
    """Two spares are replaced in 3 s each, and a strike comes each 2 s. The simulation has 40,000
    strikes. Replacements have a fixed duration, because only its mean matters.
    """
    chance, at_s, back_s, lost = random.Random(5), 0.0, [0.0, 0.0], 0
    for _ in range(40_000):
        at_s += chance.expovariate(1 / 2.0)
        first = min(range(2), key=back_s.__getitem__)
        if back_s[first] > at_s:
            lost += 1
        else:
            back_s[first] = at_s + 3.0
    assert lost_share(1.5, 2) == pytest.approx(lost / 40_000, abs=0.01)
    assert lost_share(1.5, 0) == 1
    assert lost_share(0.0, 1) == 0
    assert load_for(lost_share(1.5, 2), 2) == pytest.approx(1.5)


def test_more_ranks_on_the_same_cores_take_longer(
    known: Fit,
) -> None:
    """Two ranks and the process that boots are one more than two cores, and that costs nothing.
    With four ranks, five processes share the time of four.
    """
    assert ROOM == 1
    more = elsewhere(replace(known, world_size=3), world_size=4, spares=1, cores=2)
    assert more.phases[Rung.SPARE].regroup_s == pytest.approx([1.25 * 0.3] * 4)
    assert more.phases[Rung.RESPAWN].regroup_s == pytest.approx([0.2 + 1.25 * 0.3] * 3)
    assert more.stall_s == pytest.approx(1.25 * known.stall_s)
    assert more.step_s == pytest.approx(0.05 + 4 / 3 * (known.step_s - 0.05))
    fewer = elsewhere(replace(known, world_size=3), world_size=2, spares=1, cores=2)
    assert fewer.phases[Rung.SPARE].regroup_s == pytest.approx([0.75 * 0.3] * 4)
    assert fewer.step_s == pytest.approx(0.05 + 2 / 3 * (known.step_s - 0.05))
    on_many_cores = elsewhere(known, world_size=4, spares=1, cores=8)
    assert on_many_cores == replace(known, world_size=4)


def test_on_busy_cores_one_more_rank_matters_less(
    known: Fit,
) -> None:
    busy = replace(known, world_size=3, others=6.0)
    more, fewer = (
        elsewhere(busy, world_size=world_size, spares=1, cores=2) for world_size in (4, 2)
    )
    assert more.phases[Rung.SPARE].regroup_s == pytest.approx([1.1 * 0.3] * 4)
    assert fewer.phases[Rung.SPARE].regroup_s == pytest.approx([0.9 * 0.3] * 4)
    assert more.step_s == pytest.approx(0.05 + 10 / 9 * (known.step_s - 0.05))


def test_a_respawn_takes_as_long_in_a_run_without_spares(known: Fit) -> None:
    fitted = replace(known, world_size=3)
    assert elsewhere(fitted, world_size=3, spares=0, cores=2) == replace(fitted, spares=0)


def test_a_mixture_has_both_rungs_in_their_shares() -> None:
    samples = {Rung.SPARE: (1.0, 1.0), Rung.RESPAWN: (3.0, 3.0)}
    assert mixed(samples, 0.0).mean_s == pytest.approx(1.0)
    assert mixed(samples, 1.0).mean_s == pytest.approx(3.0)
    assert mixed(samples, 0.25).mean_s == pytest.approx(1.5, abs=0.02)
    assert float(mixed(samples, 0.25).quantile(0.5)) == 1.0


def test_without_spares_every_strike_finds_none(known: Fit) -> None:
    assert without_spare(known, replace(VARIANT, spares=0)) == 1
    assert without_spare(known, replace(VARIANT, mttf_s=4.0)) == pytest.approx(3 / 7)
    assert without_spare(known, replace(VARIANT, mttf_s=40.0)) < 0.1


def test_a_fit_that_is_drawn_again_has_as_many_recoveries_of_each_rung(known: Fit) -> None:
    again = resampled(known, random.Random(1))
    assert {rung: one.count for rung, one in again.phases.items()} == {
        rung: one.count for rung, one in known.phases.items()
    }
    assert set(again.phases[Rung.SPARE].regroup_s) <= set(known.phases[Rung.SPARE].regroup_s)


def test_a_run_whose_recoveries_all_take_longer_keeps_its_steps(known: Fit) -> None:
    slow = longer(known, 1.5)
    assert slow.phases[Rung.SPARE].regroup_s == pytest.approx([0.45] * 4)
    assert slow.first_mean_s == pytest.approx(1.5 * known.first_mean_s)
    assert (slow.step_s, slow.stall_s, slow.refill_s) == (
        known.step_s,
        known.stall_s,
        known.refill_s,
    )


# --- predictions ----------------------------------------------------------------------------------


def test_lost_time_is_what_arithmetic_says_where_failures_are_rare(known: Fit) -> None:
    """By the books, each failure costs detection, regroup, restore and half a step. Stalls are
    added, and the seconds that no step books as productive.
    """
    rare = replace(VARIANT, mttf_s=100.0, spares=0, duration_s=10_000.0)
    said = predict(replace(known, spares=0), rare, cores=2, strikes_s=[], seed=1)
    each_s = 0.8 * (0.1 + 0.5 + 0.1) + (known.step_s + known.stall_s) / 2
    kept = 1 - each_s / 100.0
    assert said.ettr == pytest.approx(
        0.9 * kept * known.step_s / (known.step_s + known.stall_s), rel=1e-3
    )
    assert said.low < said.ettr < said.high
    assert said.told_ettr == pytest.approx(
        0.9 * known.step_s / (known.step_s + known.stall_s), rel=1e-4
    )
    assert said.mttr_median_s == pytest.approx(0.1 + 0.5 + 0.1 + 0.5, rel=1e-3)
    assert said.spare_share == 0


def test_rare_images_lose_half_an_interval_and_a_slow_first_step(known: Fit) -> None:
    rare = replace(VARIANT, mttf_s=500.0, spares=0, duration_s=20_000.0)
    each, twentieth = (
        predict(
            replace(known, spares=0),
            replace(rare, snapshot_every=every),
            cores=2,
            strikes_s=[],
            seed=1,
        )
        for every in (1, 20)
    )
    stalls = (known.step_s + known.stall_s) / (known.step_s + known.stall_s / 20)
    more_s = 19 / 2 * known.step_s + known.first_mean_s - 2 * known.step_s - known.stall_s
    assert each.ettr * stalls - twentieth.ettr == pytest.approx(0.9 * more_s / 500.0, rel=0.05)


def test_a_strike_during_a_recovery_makes_one_family_of_two(known: Fit) -> None:
    """At a strike each second and recoveries of 1.2 s, most families have several members."""
    scenario = by_the_books(known, replace(VARIANT, mttf_s=1.0, spares=0))
    outcomes, (stops,) = run_with_stops(scenario, draw_histories(scenario, seed=1, replicas=1))
    families = mttrs_s(stops)
    assert 0 < len(families) < outcomes.interruptions[0]
    assert len(stops) - len(families) <= 1, "only the end of the run leaves a family open"
    assert min(families) >= 0.8 * 0.7 - 1e-9


def test_it_is_said_how_many_such_runs_outlast_itself_ends(known: Fit) -> None:
    """Recoveries take 1.2 s. With a strike each 0.6 s, nearly all runs have six interruptions in a
    row. With a strike each minute, none has.
    """
    bare = replace(known, spares=0)
    often, rarely = (
        predict(
            bare,
            replace(VARIANT, mttf_s=mttf_s, spares=0, duration_s=60.0),
            cores=2,
            strikes_s=[],
            seed=1,
        ).ended
        for mttf_s in (0.6, 60.0)
    )
    assert often > 0.9
    assert rarely == 0.0


# --- the verdict ----------------------------------------------------------------------------------


def a_row(
    *,
    predicted: float = 0.9,
    measured: float = 0.9,
    naive: float = 0.5,
    mttr_s: float = 1.0,
    wrong: str = "",
) -> Row:
    run = (
        Measured(2, measured, 100.0, {}, 1000, 0, 5, 5, (1.0,) * 5, 5.0, {}) if not wrong else None
    )
    return Row(
        VARIANT,
        Prediction(predicted, predicted - 0.05, predicted + 0.05, 0.1, mttr_s, measured, 1.0, 0.0),
        naive,
        run,
        5,
        wrong,
    )


def reached(*rows: Row) -> list[bool | None]:
    return [line.reached for line in lines(rows)][:5]


def test_all_that_is_wanted_is_reached_by_predictions_that_are_right() -> None:
    rows = [a_row() for _ in range(4)] + [a_row(predicted=0.7, measured=0.7)]
    assert reached(*rows) == [True] * 5
    assert "yes" in table(rows)
    assert len(table(rows).splitlines()) == 2 + len(rows)


@pytest.mark.parametrize(
    ("bad", "which"),
    [
        (a_row(predicted=0.88), 1),
        (a_row(predicted=0.915), 1),
        (a_row(predicted=0.96), 2),
        (a_row(mttr_s=1.16), 3),
        (a_row(mttr_s=0.84), 3),
        (a_row(wrong="it stopped"), 0),
    ],
)
def test_each_miss_shows_in_its_line(bad: Row, which: int) -> None:
    """Two of three rows are bad, so less than 80 % are good."""
    rows = [a_row(predicted=0.7, measured=0.7), bad, bad]
    assert reached(*rows)[which] is False


def test_the_naive_predictor_is_told_and_not_judged() -> None:
    assert [line.reached for line in lines([a_row()])][5:] == [None, None]
    assert "0 of 1 within 15%" in lines([a_row()])[-1].text
    assert "1 of 1 within 15%" in lines([a_row(naive=0.9)])[-1].text


def test_a_run_that_did_not_last_is_told_why() -> None:
    assert "it stopped" in table([a_row(wrong="it stopped")])


def test_the_booked_phases_of_a_scenario_are_those_of_the_ledger(known: Fit) -> None:
    scenario = by_the_books(known, replace(VARIANT, spares=0))
    assert scenario.recovery.regroup.mean_s == pytest.approx(0.8 * 0.5)
    assert scenario.tiers[0].restore.mean_s == pytest.approx(0.8 * 0.1)
    assert scenario.failures[0].mttf_s == VARIANT.mttf_s
    assert isinstance(known.phases[Rung.SPARE], Sampled)
