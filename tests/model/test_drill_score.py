"""The score of a drill: whose interruption it is, what was right, and what fails a drill.

Method: reports made by hand, with the keys of `outlast report --json` that the score reads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outlast.model.drills.drill_faults import ALL_KINDS
from outlast.model.drills.drill_redundancy import InForce
from outlast.model.drills.drill_score import Ended, Struck, outcomes, score, spread, wrong

WELL = Ended(well=True, step=100)
NO_LEAKS = {"processes": 0, "segments": 0}


def struck(
    number: int,
    kind: str,
    *,
    rank: int = 1,
    at_s: float,
    step: int = 10,
    ranks: tuple[int, ...] = (),
) -> Struck:
    known = ALL_KINDS[kind]
    return Struck(str(number), known, known.stands_for, rank, 77, at_s, step, ranks)


def interruption(number: int, mechanism: str, at_s: float, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "ranks": [1],
        "mechanism": mechanism,
        "fault_s": at_s,
        "detected_s": at_s + 0.01,
        "resumed_s": at_s + 0.25,
        "steps_lost": 0,
        "class": "unknown",
        "lost_rank_s": 1.0,
    } | more


def report(*some: dict[str, Any], verdicts: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {
        "interruptions": list(some),
        "verdicts": list(verdicts),
        "world_size": 4,
        "ettr": 0.9,
        "ettr_training": 0.95,
    }


def scored(found: Any, facts: dict[str, Any], **more: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        "plan": "x",
        "seed": 1,
        "planned_count": len(found),
        "left_out": {},
        "digest_equal": True,
        "ended": WELL,
        "leaks": NO_LEAKS,
    } | more
    return score(found, facts, **given)


def test_a_slow_rank_does_not_take_the_interruption_of_another_fault() -> None:
    """A rank was slow, and raised two seconds later. The exception is not the slowness's."""
    faults = [struck(1, "slow", at_s=5.0), struck(2, "shape", at_s=7.0)]
    facts = report(interruption(1, "exception", 7.0))
    slow, shape = outcomes(faults, facts, WELL)
    assert (slow.interruption, slow.mttr_s, slow.judged) == (None, None, "")
    assert shape.interruption == 1
    assert shape.mttr_s == pytest.approx(0.25)


def test_a_fault_in_the_midst_of_a_recovery_belongs_to_it() -> None:
    faults = [struck(1, "kill", at_s=5.0), struck(2, "kill", rank=0, at_s=5.1)]
    first, second = outcomes(faults, report(interruption(1, "signal", 5.0)), WELL)
    assert first.interruption == second.interruption == 1
    assert second.mttr_s == pytest.approx(0.15)
    assert second.judged == "unknown", "it has no verdict of its own"
    assert (first.lost_s, second.lost_s) == (0.25, 0.0), "and its cost is counted once"
    assert not wrong(scored((first, second), report()), (first, second), "")


@pytest.mark.parametrize(("kind", "booked"), [("order", True), ("spin", False)])
def test_another_ranks_death_frees_a_rank_that_hung_in_a_collective(
    kind: str, booked: bool
) -> None:
    """It was killed before the hang was noticed. An endless loop goes on."""
    faults = [struck(1, kind, at_s=5.0), struck(2, "kill", rank=0, at_s=5.5)]
    facts = report(interruption(1, "signal", 5.5, ranks=[0]))
    hung, _ = outcomes(faults, facts, WELL)
    assert (hung.interruption is not None) == booked


def test_a_hang_is_found_long_after_the_strike_and_a_kill_is_not() -> None:
    facts = report(interruption(1, "hang", 4.0, detected_s=30.0, resumed_s=31.0))
    assert outcomes([struck(1, "deaf", at_s=5.0)], facts, WELL)[0].mttr_s == pytest.approx(26.0)
    late = report(interruption(1, "signal", 30.0))
    found = outcomes([struck(1, "kill", at_s=5.0)], late, WELL)
    assert found[0].interruption is None
    assert "the ledger has no interruption for 1 faults" in wrong(scored(found, late), found, "")[0]


@pytest.mark.parametrize(
    ("kind", "mechanism", "said", "confidence", "reason", "judged"),
    [
        ("raise", "exception", "user_code", 0.9, "", "right"),
        ("raise", "exception", "network", 0.9, "", "wrong"),
        ("raise", "exception", "unknown", 0.3, "", "unknown"),
        ("kill", "signal", "unknown", 0.3, "killed by signal 9 (SIGKILL)", "unknown"),
        ("kill", "signal", "gpu", 0.6, "", "wrong"),
        ("segv", "signal", "unknown", 0.3, "rank 1 died of signal 11 (SIGSEGV)", "right"),
        ("segv", "signal", "unknown", 0.3, "rank 1 died", "unknown"),
        ("io", "exception", "storage", 0.7, "", "right"),
        ("loader", "exception", "unknown", 0.5, "it lost a worker of its DataLoader", "right"),
        ("loader", "exception", "host_memory", 0.5, "", "right"),
        ("exit", "exit", "unknown", 0.3, "rank 1 ended: exit code 3", "right"),
        ("exit", "exit", "unknown", 0.3, "rank 1 ended: exit code 31", "unknown"),
    ],
)
def test_a_verdict_is_judged_by_what_the_evidence_allows(
    kind: str, mechanism: str, said: str, confidence: float, reason: str, judged: str
) -> None:
    verdict = {"interruption": 1, "class": said, "confidence": confidence, "reason": reason}
    facts = report(interruption(1, mechanism, 5.0), verdicts=(verdict,))
    found = outcomes([struck(1, kind, at_s=5.0)], facts, WELL)
    assert found[0].judged == judged
    counts = scored(found, facts)["diagnosis"]
    assert counts[judged] == 1
    assert counts["confident_wrong"] == (judged == "wrong" and confidence >= 0.8)


DIVERGED = "at step 16, rank 1 disagrees with the others about head.weight, though it was the same"


@pytest.mark.parametrize(
    ("ended", "silent", "failed"),
    [
        (
            Ended(well=False, step=15, reason=DIVERGED),
            {"found": True, "after_steps": 6, "named_rank": True},
            [],
        ),
        (
            Ended(well=False, step=15, reason="at step 16, all ranks hold different values of x"),
            {"found": True, "after_steps": 6, "named_rank": False},
            [],
        ),
        (
            WELL,
            {"found": False, "after_steps": None, "named_rank": False},
            ["the flipped bit was not found"],
        ),
        (
            Ended(well=False, step=15, reason="the disk is full"),
            {"found": False, "after_steps": None, "named_rank": False},
            [
                "the flipped bit was not found",
                "the run under fire did not reach its end: the disk is full",
            ],
        ),
    ],
)
def test_a_flipped_bit_is_found_or_not_and_a_find_may_end_the_run(
    ended: Ended, silent: dict[str, Any], failed: list[str]
) -> None:
    found = outcomes([struck(1, "flip_weights", at_s=5.0)], report(), ended)
    facts = scored(found, report(), ended=ended, digest_equal=None)
    assert facts["silent"] == silent
    assert facts["survived"] == silent["found"]
    assert wrong(facts, found, ended.reason) == failed


def test_what_was_lost_fails_the_drill_with_a_sentence_each() -> None:
    faults = [struck(1, "kill", at_s=5.0)]
    facts = report(interruption(1, "signal", 5.0, resumed_s=None, steps_lost=3))
    ended = Ended(well=False, step=10)
    found = outcomes(faults, facts, ended)
    result = scored(
        found,
        facts,
        planned_count=2,
        digest_equal=False,
        ended=ended,
        leaks={"processes": 1, "segments": 2},
    )
    said = wrong(result, found, "a crash loop")
    assert len(said) == 7
    assert "a crash loop" in said[0]
    assert result["manual_interventions"] == 1
    assert (result["faults_planned"], result["faults_fired"], result["survived"]) == (2, 1, 0)


def test_nothing_is_wrong_with_a_drill_that_is_survived() -> None:
    facts = report(interruption(1, "signal", 5.0))
    found = outcomes([struck(1, "kill", at_s=5.0)], facts, WELL)
    result = scored(found, facts)
    assert not wrong(result, found, "")
    assert list(result) == [
        "schema",
        "plan",
        "seed",
        "steps",
        "faults_left_out",
        "faults_planned",
        "faults_fired",
        "survived",
        "manual_interventions",
        "steps_lost",
        "digest_equal",
        "ettr",
        "ettr_training",
        "predicted_ettr_training",
        "mttr_s",
        "mttr_s_by_class",
        "diagnosis",
        "leaks",
        "silent",
        "lost_s_by_class",
        "redundancy",
    ]
    assert result["lost_s_by_class"] == {"gpu": 0.25}
    assert result["silent"] is None
    assert result["mttr_s_by_class"] == {"gpu": result["mttr_s"]}


@pytest.mark.parametrize(
    ("copies", "lost", "failed"),
    [
        (4, 0, []),
        (4, 3, ["3 committed steps were lost"]),
        (1, 3, []),
        (1, 14, ["14 committed steps were lost, 3 more than the redundancy in force allowed"]),
    ],
)
def test_a_lost_step_fails_a_drill_only_if_it_was_promised(
    copies: int, lost: int, failed: list[str]
) -> None:
    """The last rank that held the state of step 50 is killed. There is a copy of step 40."""
    then = InForce(50, False, copies, 1, 0, 40, 0, 0)
    fault = replace(struck(1, "kill", at_s=5.0), in_force=then)
    facts = report(interruption(1, "signal", 5.0, steps_lost=lost))
    found = outcomes([fault], facts, WELL)
    result = scored(found, facts)
    assert wrong(result, found, "") == failed
    assert result["steps_lost"] == lost
    assert result["redundancy"]["recorded"] == 1
    assert result["redundancy"]["least"]["copies"] == copies
    assert (result["redundancy"]["steps_lost_beyond"] == 0) == (not failed)


def test_steps_that_a_plain_script_does_again_fail_no_drill() -> None:
    facts = report(interruption(1, "signal", 5.0, steps_lost=9))
    then = InForce(50, None, None, None, 1, 0, 0, None)
    found = outcomes([replace(struck(1, "kill", at_s=5.0), in_force=then)], facts, WELL)
    result = scored(found, facts, digest_equal=None)
    assert result["steps_lost"] == 9
    assert result["redundancy"]["recorded"] == 0
    assert wrong(result, found, "") == ["9 committed steps were lost"]
    assert wrong(result, found, "", plain=True) == []


def test_steps_that_a_plain_script_loses_are_not_known() -> None:
    facts = report(interruption(1, "signal", 5.0, steps_lost=None))
    found = outcomes([struck(1, "kill", at_s=5.0)], facts, WELL)
    assert scored(found, facts, digest_equal=None)["steps_lost"] is None


def test_the_spread_is_by_rank_of_the_values() -> None:
    assert spread([]) == {"median": None, "p95": None, "max": None}
    assert spread(float(one) for one in range(1, 101)) == {
        "median": 50.5,
        "p95": 95.0,
        "max": 100.0,
    }


def test_a_lost_host_has_the_interruption_of_any_of_its_ranks() -> None:
    """Its lease has to end first, so it is noticed seconds later, and then as a lost node."""
    lost = struck(1, "lose_node", rank=-1, at_s=5.0, ranks=(1, 2))
    found = outcomes(
        [lost], report(interruption(1, "lost_node", 8.0, ranks=[2], resumed_s=9.0)), WELL
    )
    assert (found[0].interruption, found[0].mttr_s) == (1, pytest.approx(4.0))
    for other in ({"ranks": [0]}, {"mechanism": "signal"}, {"detected_s": 90.0}):
        facts = report(interruption(1, "lost_node", 8.0, resumed_s=9.0) | other)
        assert outcomes([lost], facts, WELL)[0].interruption is None, other


def test_a_lost_host_without_ranks_interrupts_nothing() -> None:
    idle = outcomes([struck(1, "lose_node", rank=-1, at_s=5.0)], report(), WELL)
    held = outcomes([struck(1, "lose_node", rank=-1, at_s=5.0, ranks=(1,))], report(), WELL)
    assert not wrong(scored(idle, report()), idle, "")
    assert "no interruption for 1 faults" in wrong(scored(held, report()), held, "")[0]


def test_a_fault_before_a_lost_host_is_noticed_belongs_to_its_loss() -> None:
    """Nothing goes on until the lease has ended. A rank that hung just before is given up then."""
    faults = [
        struck(1, "deaf", rank=3, at_s=4.8),
        struck(2, "lose_node", rank=-1, at_s=5.0, ranks=(1,)),
        struck(3, "abort", rank=0, at_s=6.0),
    ]
    lost = interruption(1, "lost_node", 8.0, ranks=[1, 3], resumed_s=9.0)
    found = outcomes(faults, report(lost), WELL)
    assert [one.interruption for one in found] == [1, 1, 1]
    assert [one.mttr_s for one in found] == pytest.approx([4.2, 4.0, 3.0])
    assert not wrong(scored(found, report(lost)), found, "")
