"""planner/fit/{ledgers,phases,calibration,cluster}.py on records whose truth is known. The ledger
is the product's own.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import PCG64, Generator

from outlast.errors import UsageError
from outlast.model.goodput import account
from outlast.model.records import (
    Event,
    Generation,
    Interruption,
    Life,
    Meta,
    Records,
    Session,
    SessionRecords,
    StepsBucket,
)
from outlast.model.terms import Cause, FailureClass, Mechanism, Rung
from outlast.planner import cluster_file
from outlast.planner.cluster_text import render
from outlast.planner.fit.calibration import Calibration, calibrate, facts
from outlast.planner.fit.cluster import cluster_of, never_seen
from outlast.planner.fit.failures_table import read_failures
from outlast.planner.fit.ledgers import booked, observe
from outlast.planner.fit.phases import ENOUGH, fit_spread, phases_of
from outlast.planner.scenario import Extent, Unit
from outlast.planner.spread import Shape
from outlast.runtime.ledger.store import read_ledger
from tests.ledger import a_run

STEP_S = 0.5


def interruption(number: int, at_s: float, **more: object) -> Interruption:
    """Return an interruption that is detected after 0.1 s, regrouped in 0.2 s and restored in 0.3
    s. Its first step takes 0.6 s, a tenth longer than other steps.
    """
    known = {
        "fault_s": at_s,
        "detected_s": at_s + 0.1,
        "left_s": at_s + 0.15,
        "regrouped_s": at_s + 0.3,
        "restored_s": at_s + 0.6,
        "resumed_s": at_s + 1.2,
        "rung": Rung.SPARE,
        "ranks": (1,),
        "mechanism": Mechanism.SIGNAL,
    }
    return Interruption(id=number, **(known | more))  # type: ignore[arg-type]


def session(
    *interruptions: Interruption,
    number: int = 1,
    began_s: float = 1000.0,
    ranks: int = 4,
    nodes: int = 2,
    **more: object,
) -> SessionRecords:
    """Return a session of a hundred seconds: 8 of them are startup and 2 are shutdown. Its clock
    shows 1,000 when the launcher starts.
    """
    seconds = {Cause.STARTUP: 8.0, Cause.PRODUCTIVE: 88.0, Cause.DATA_WAIT: 2.0}
    lives = tuple(
        Life(
            rank,
            100 + rank,
            f"n{rank % nodes}",
            rank,
            "rank",
            1000.0,
            opened_s=1000.0,
            ended_s=1098.0,
            seconds=seconds,
            cause=Cause.SHUTDOWN,
        )
        for rank in range(ranks)
    )
    steps = tuple(
        StepsBucket(1008.0 + 10 * k, 1018.0 + 10 * k, 20 * k, 20 * k + 20, 0.4, STEP_S, 0.6)
        for k in range(9)
    )
    one = Session(number, 1, 1000.0, 5000.0, seen_s=1100.0, ended_s=1100.0, state="ended")
    given = {
        "generations": (Generation(0, ranks, 1001.0, tuple(range(ranks))),),
        "lives": lives,
        "interruptions": interruptions,
        "steps": steps,
    }
    session = dataclasses.replace(one, **more)
    return SessionRecords(session, began_s, **given)  # type: ignore[arg-type]


def ledger(*sessions: SessionRecords, ranks: int = 4) -> Records:
    return Records(Meta("r", "r", ranks, "0", 1000.0, 5000.0), sessions)


def calibrated(*ledgers: Records) -> Calibration:
    records = [observe(one, now_s=None, source=f"run{index}") for index, one in enumerate(ledgers)]
    return calibrate(
        records, phases=phases_of(ledgers), booked=[booked(one, now_s=None) for one in ledgers]
    )


# --- exposure and failures ------------------------------------------------------------------------


def test_exposure_is_training_as_the_ledger_books_it() -> None:
    one = observe(ledger(session(interruption(1, 1050.0))), now_s=None, source="x")
    assert one.exposure_s == pytest.approx(
        {Unit.GPU: 4 * 90.0, Unit.NODE: 2 * 90.0, Unit.RUN: 90.0}
    )
    books = booked(ledger(session(interruption(1, 1050.0))), now_s=None)
    assert (
        books.training_s,
        books.steady_s[Cause.DATA_WAIT],
        books.steady_s[Cause.STALL],
    ) == pytest.approx((90.0, 2.0, 0.0))
    assert one.units == {Unit.GPU: 4.0, Unit.NODE: 2.0, Unit.RUN: 1.0}
    assert [(failure.at_s, failure.failure_class, failure.extent) for failure in one.failures] == [
        (50.0, FailureClass.UNKNOWN, Extent.PROCESS)
    ]
    assert one.span_s == 100.0


def test_the_ledger_of_the_product_is_counted_as_its_report_counts(tmp_path: Path) -> None:
    records = read_ledger(a_run.ended_run(tmp_path) / "ledger.db")
    one = observe(records, now_s=None, source="x")
    seconds = account(records, now_s=None).rank_seconds
    assert one.exposure_s[Unit.GPU] == pytest.approx(
        sum(seconds.values()) - seconds[Cause.STARTUP] - seconds[Cause.SHUTDOWN]
    )
    assert [(failure.at_s, failure.failure_class) for failure in one.failures] == [
        (pytest.approx(10.0), FailureClass.UNKNOWN),
        (pytest.approx(10.05), FailureClass.UNKNOWN),
        (pytest.approx(16.0), FailureClass.USER_CODE),
    ]


def test_extents_are_what_the_mechanism_and_the_end_say() -> None:
    lost, last = (
        interruption(1, 1010.0, mechanism=Mechanism.LOST_NODE),
        interruption(2, 1090.0, resumed_s=None, rung=Rung.STOP),
    )
    failures = observe(
        ledger(session(lost, interruption(3, 1050.0), last)), now_s=None, source="x"
    ).failures
    assert [one.extent for one in failures] == [Extent.NODE, Extent.PROCESS, Extent.RUN]


def test_a_vanished_launcher_is_a_failure_of_the_run() -> None:
    vanished = ledger(session(ended_s=None, state=""))
    assert [one.extent for one in observe(vanished, now_s=None, source="x").failures] == [
        Extent.RUN
    ]
    assert observe(vanished, now_s=1100.0, source="x").failures == ()


def test_time_between_sessions_is_no_exposure_and_a_relaunch_is_measured() -> None:
    second = session(interruption(1, 1020.0), number=2, began_s=1000.0 - 160.0)
    both = ledger(session(ended_s=1100.0, state="failed"), second)
    one = observe(both, now_s=None, source="x")
    assert one.exposure_s[Unit.RUN] == pytest.approx(180.0)
    assert [failure.at_s for failure in one.failures] == [120.0]
    assert phases_of([both]).relaunch.samples_s == (60.0,)
    stopped = ledger(session(state="stopped"), second)
    assert phases_of([stopped]).relaunch.samples_s == ()


def test_a_class_comes_from_the_ledger_else_from_a_verdict_that_is_sure() -> None:
    def verdict(number: int, name: str, confidence: float) -> Event:
        return Event(
            1060.0,
            0.0,
            "verdict",
            {"interruption": number, "verdict": {"class": name, "confidence": confidence}},
        )

    some = [interruption(n, 1010.0 + 10 * n) for n in range(4)]
    some[3] = interruption(3, 1040.0, failure_class=FailureClass.HOST_MEMORY)
    events = (
        verdict(0, "hbm", 0.9),
        verdict(1, "hbm", 0.3),
        verdict(2, "no_such", 0.9),
        verdict(3, "gpu", 0.9),
        Event(1.0, 0.0, "verdict", {"verdict": 3}),
    )
    found = observe(
        ledger(dataclasses.replace(session(*some), events=events)), now_s=None, source="x"
    )
    assert [one.failure_class.value for one in found.failures] == [
        "hbm",
        "unknown",
        "unknown",
        "host_memory",
    ]
    assert found.limits == (
        "why 2 of 4 failures came: `outlast diagnose` on their evidence may tell more",
    )


def test_a_ledger_without_a_committed_step_is_an_error() -> None:
    with pytest.raises(UsageError, match="has no committed step") as caught:
        observe(ledger(dataclasses.replace(session(), steps=())), now_s=None, source="x")
    assert "a run that has trained" in caught.value.hint


def test_a_session_that_never_trained_is_left_out_and_said() -> None:
    one = observe(
        ledger(
            dataclasses.replace(session(interruption(1, 1001.0)), steps=()),
            session(number=2, began_s=800.0),
        ),
        now_s=None,
        source="x",
    )
    assert one.failures == ()
    assert one.exposure_s[Unit.RUN] == pytest.approx(90.0)
    assert any("1 of 2 sessions never committed a step" in text for text in one.limits)


# --- phases ---------------------------------------------------------------------------------------


def test_each_phase_is_measured_between_its_moments() -> None:
    phases = phases_of([ledger(session(interruption(1, 1030.0), interruption(2, 1060.0)))])
    seen = {
        phase.name: [round(sample_s, 9) for sample_s in phase.samples_s] for phase in phases.all()
    }
    assert seen == {
        "detect": [0.1] * 2,
        "regroup": [0.2] * 2,
        "take": [],
        "restore": [0.3] * 2,
        "first step": [0.6] * 2,
        "relaunch": [],
    }
    assert phases.step_s == pytest.approx(STEP_S)
    assert phases.slow_start_s == pytest.approx(0.1)
    assert phases.restore.mean_s == pytest.approx(0.3)
    assert phases.regroup.by == {"spare": (2, pytest.approx(0.2))}


def test_a_step_is_measured_where_nothing_was_interrupted() -> None:
    """Method: the bucket with the interruption is slower, and the other buckets decide."""
    part = session(interruption(1, 1013.0))
    slow = dataclasses.replace(part.steps[0], to_step=5)
    rest = tuple(
        dataclasses.replace(one, from_step=one.from_step - 15, to_step=one.to_step - 15)
        for one in part.steps[1:]
    )
    assert phases_of(
        [ledger(dataclasses.replace(part, steps=(slow, *rest)))]
    ).step_s == pytest.approx(STEP_S)


def test_a_fault_whose_time_is_unknown_lies_in_the_middle_and_is_counted() -> None:
    phases = phases_of(
        [
            ledger(
                session(
                    interruption(
                        1, 1030.0, fault_s=None, fault_not_before_s=1029.5, mechanism=Mechanism.HANG
                    )
                )
            )
        ]
    )
    assert phases.detect.samples_s == (pytest.approx(0.3),)
    assert phases.unknown_faults == 1


def test_a_failure_during_a_recovery_gives_detection_and_no_other_sample() -> None:
    parent, child = (
        interruption(1, 1030.0, resumed_s=1040.0),
        interruption(2, 1030.4, parent=1, resumed_s=1040.0),
    )
    phases = phases_of([ledger(session(parent, child))])
    assert [len(phase.samples_s) for phase in phases.all()] == [2, 0, 0, 0, 0, 0]


def test_what_losing_a_node_adds_is_apart() -> None:
    lost = interruption(
        3,
        1070.0,
        mechanism=Mechanism.LOST_NODE,
        regrouped_s=1075.0,
        restored_s=1075.3,
        resumed_s=1075.9,
    )
    phases = phases_of([ledger(session(interruption(1, 1030.0), interruption(2, 1050.0), lost))])
    assert phases.take.samples_s == (pytest.approx(4.9 - 0.2),)
    assert len(phases.regroup.samples_s) == 2
    assert phases.survived is Extent.NODE


@pytest.mark.parametrize(("lost", "survived"), [(0, Extent.PROCESS), (3, None)])
def test_live_state_survives_what_cost_no_step(lost: int, survived: Extent | None) -> None:
    assert (
        phases_of([ledger(session(interruption(1, 1030.0, steps_lost=lost)))]).survived is survived
    )


def test_an_interruption_that_is_not_over_gives_no_sample() -> None:
    phases = phases_of(
        [
            ledger(
                session(interruption(1, 1090.0, resumed_s=None, restored_s=None, regrouped_s=None))
            )
        ]
    )
    assert all(not phase.samples_s for phase in phases.all())
    assert phases.unfinished == 1
    assert phases.recovery(source="x") is None
    assert phases.restore.spread is None


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=200))
def test_a_spread_keeps_the_mean_of_its_samples(samples_s: list[float]) -> None:
    """A lognormal and a constant keep it exactly. A measured spread keeps it to a hundredth of its
    range.
    """
    spread, _ = fit_spread(samples_s)
    assert spread is not None
    mean_s = statistics.fmean(samples_s)
    if spread.shape is Shape.MEASURED:
        assert abs(spread.mean_s - mean_s) <= (max(samples_s) - min(samples_s)) / 100 + 1e-9
    else:
        assert spread.mean_s == pytest.approx(mean_s, rel=1e-6, abs=1e-12)


def test_how_a_spread_is_made_depends_on_how_many_samples_there_are() -> None:
    luck = Generator(PCG64(1))
    samples_s = list(np.exp(luck.random(400)))
    shapes = [fit_spread(samples_s[:count]) for count in (0, 2, 3, ENOUGH - 1, ENOUGH, 400)]
    assert [None if spread is None else spread.shape for spread, _ in shapes] == [
        None,
        Shape.CONSTANT,
        Shape.LOGNORMAL,
        Shape.LOGNORMAL,
        Shape.MEASURED,
        Shape.MEASURED,
    ]
    widest = shapes[-1][0]
    assert widest is not None
    assert float(widest.quantile(0.9)) == pytest.approx(
        float(np.quantile(samples_s, 0.9)), rel=0.01
    )


def test_two_kinds_of_failure_do_not_promise_seconds_that_never_came() -> None:
    """Deaths are found after 1 ms, and hangs after 0.5 s. A lognormal that is fitted to the
    logarithms would have a mean of several seconds.
    """
    samples_s = [0.001] * 5 + [0.5] * 5
    logs = np.log(samples_s)
    assert math.exp(float(logs.mean() + logs.var() / 2)) > 2.0
    spread, _ = fit_spread(samples_s)
    assert spread is not None
    assert spread.mean_s == pytest.approx(0.2505)


# --- put together ---------------------------------------------------------------------------------


def test_a_calibration_says_what_it_cannot_tell() -> None:
    said = "\n".join(calibrated(ledger(session(interruption(1, 1030.0)))).cannot_tell())
    for what in (
        "a node is lost: it was never seen",
        "one world size only (4 ranks)",
        "with only 1 sample, the mean is taken; 20 samples would show it",
        "whether failures come in waves",
    ):
        assert what in said


def test_a_cluster_file_says_what_was_measured_and_is_read_back() -> None:
    one = calibrated(ledger(session(*(interruption(n, 1010.0 + n) for n in range(1, 5)))))
    text = render(cluster_of(one, name="mine"))
    cluster = cluster_file.parse(text, source="c.toml")
    assert {
        path: cluster.value(path)
        for path in (
            "job.gpus",
            "job.gpus_per_node",
            "failure.unknown.count",
            "failure.unknown.unit",
        )
    } == {
        "job.gpus": 4,
        "job.gpus_per_node": 2,
        "failure.unknown.count": 4.0,
        "failure.unknown.unit": "gpu",
    }
    assert cluster.value("failure.unknown.exposure") == pytest.approx(360.0)
    assert cluster.value("recovery.detect").mean_s == pytest.approx(0.1)
    assert cluster.value("recovery.regroup").mean_s == pytest.approx(0.2)
    assert cluster.value("job.step") == cluster.value("tier.live.interval") == pytest.approx(STEP_S)
    assert cluster.value("tier.live.survives") == "process"
    assert cluster.value("tier.live.restore").mean_s == pytest.approx(0.3), (
        "the slow first step behind it is productive to the ledger"
    )
    assert (cluster.failures, cluster.tiers) == (("unknown",), ("live",))
    assert not cluster.given("repair.time")
    [comment] = never_seen(one)
    assert comment.startswith("# never seen: a node is lost; at most once in ")


def test_a_step_and_its_stall_together_last_as_long_as_was_measured() -> None:
    """A tenth of the training was stalls. A plan that added them to the whole step would count them
    twice.
    """
    part = session(interruption(1, 1030.0))
    seconds = {Cause.STARTUP: 8.0, Cause.PRODUCTIVE: 79.0, Cause.DATA_WAIT: 2.0, Cause.STALL: 9.0}
    cluster = cluster_of(
        calibrated(
            ledger(
                dataclasses.replace(
                    part,
                    lives=tuple(dataclasses.replace(one, seconds=seconds) for one in part.lives),
                )
            )
        ),
        name="c",
    )
    assert (cluster.value("job.step"), cluster.value("tier.live.stall")) == pytest.approx(
        (0.9 * STEP_S, 0.1 * STEP_S)
    )
    assert cluster.value("tier.live.interval") == cluster.value("job.step")


def test_a_ledger_without_failures_leaves_the_rate_open() -> None:
    one = calibrated(ledger(session()))
    assert (one.rates, one.failures) == ((), 0)
    assert one.bounds[0].high_per_s == pytest.approx(1.9207 / 360.0, rel=1e-4)
    cluster = cluster_of(one, name="quiet")
    assert (cluster.value("failure.unknown.count"), cluster.value("failure.unknown.exposure")) == (
        0.0,
        pytest.approx(360.0),
    )
    assert not cluster.given("recovery.detect")
    assert "live" not in cluster.tiers


def test_a_law_of_age_goes_into_the_cluster_file_where_the_data_tell_one() -> None:
    luck = Generator(PCG64(3))
    lines = ["node,time,class,start,end,installed"]
    for unit in range(300):
        age = 1000.0 * (-math.log1p(-luck.random())) ** (1 / 3)
        lines.append(f"u{unit},{age:.3f},gpu,0,{age:.3f},0" if age < 900 else f"u{unit},,,0,900,0")
    one = calibrate([read_failures(lines, source="f.csv")])
    assert one.shapes[FailureClass.GPU].varies
    [law] = one.scenario_rates()
    assert law.shape == pytest.approx(3.0, rel=0.15)
    assert law.mttf_s == pytest.approx(1000.0, rel=0.1)
    assert law.age_s == 900.0
    cluster = cluster_of(one, name="ages")
    assert cluster.value("failure.gpu.shape") == pytest.approx(law.shape, rel=1e-5)
    assert cluster.value("failure.gpu.mttf") == pytest.approx(law.mttf_s, rel=1e-5)


def test_two_ledgers_of_different_size_tell_how_failures_grow() -> None:
    small = ledger(session(*(interruption(n, 1010.0 + n) for n in range(10))))
    large = ledger(
        session(*(interruption(n, 1010.0 + n / 2) for n in range(80)), ranks=32, nodes=4), ranks=32
    )
    one = calibrated(small, large)
    assert one.scale is not None
    assert "each rank adds its share" in one.scale.reason
    assert one.rates[0].count == 90
    assert one.rates[0].exposure_s == pytest.approx((4 + 32) * 90.0)


def test_the_facts_are_numbers_that_json_can_hold() -> None:
    for one in (
        calibrated(ledger(session())),
        calibrated(ledger(session(interruption(1, 1030.0)))),
    ):
        assert json.loads(json.dumps(facts(one), allow_nan=False))["failures"] == one.failures


def test_nothing_to_calibrate_from_is_an_error() -> None:
    with pytest.raises(UsageError, match="nothing to calibrate from"):
        calibrate([])
