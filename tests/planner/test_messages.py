"""Messages and decisions simulate the same runs. They choose the same rungs and do as many steps,
except for differences that milliseconds decide (`messages.Compared.agree`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.validate_plan.depths import grid
from outlast.errors import UsageError
from outlast.model.fault_plan import PlannedFault
from outlast.model.terms import Rung
from outlast.planner.messages import as_scenario, compare, measure, spread_faults
from outlast.sim.durations import steady_step_s
from outlast.sim.options import Options
from outlast.sim.simulated_run import simulate
from tests.planner.course import live as course_of

SMALL = Options(
    ranks=16,
    nodes=6,
    spare_nodes=2,
    beat_s=0.2,
    latency_s=0.001,
    step_s=2.0,
    for_s=300.0,
    failures=1,
    steps=10**6,
)


@pytest.mark.parametrize("mode", ["in_place", "sharded"])
def test_messages_and_decisions_agree_on_a_small_grid(mode: str) -> None:
    """There are 16 ranks on 4 nodes. In five minutes 12 failures come: kills, lost nodes and hangs.
    Detection and regroup are measured in other runs.
    """
    points = list(
        grid(ranks=16, nodes=4, seed=3, modes=(mode,), steps_s={2.0: 300.0}, counts=(12,))
    )
    assert len(points) == 3
    assert [point.line() for point in points if not point.compared.agree] == []
    assert all(point.compared.decided.per_interruption >= 1 for point in points)
    for point in points:
        assert (
            point.compared.decided.ended_s is not None
            or len(point.compared.simulated.fired) >= point.count - 1
        ), "a fault that never fires tests nothing"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("mode", "counts"), [("in_place", (3, 6, 12)), ("sharded", (3,))])
def test_messages_and_decisions_agree_on_a_thousand_ranks(
    mode: str, counts: tuple[int, ...]
) -> None:
    """There are 1,024 ranks on 128 nodes, for ten minutes with steps of 8 s.
    benchmarks/validate_plan/depths.py runs the whole grid.
    """
    points = list(
        grid(ranks=1024, nodes=128, seed=1, modes=(mode,), steps_s={8.0: 600.0}, counts=counts)
    )
    assert [point.line() for point in points if not point.compared.agree] == []


@pytest.mark.parametrize("mode", ["in_place", "respawn", "reenter", "sharded"])
def test_both_end_a_run_for_the_same_reason_at_the_same_step(mode: str) -> None:
    """A process exits by itself every second and a half, and steps take 8 s, so no step is
    committed. If processes were killed from outside, it would be no crash loop before the 21st. The
    planner does not tell these apart.
    """
    options = replace(SMALL, recovery_mode=mode, step_s=8.0)
    faults = tuple(
        PlannedFault(str(number), "exit", number % 16, at_s=100.0 + 1.5 * number)
        for number in range(12)
    )
    compared = compare(options, faults, seed=4)
    assert compared.agree
    assert compared.simulated.end == "failed"
    assert compared.simulated.rungs[-1] == Rung.STOP.value
    assert compared.message_steps == compared.decision_steps
    assert compared.decided.why_ended in compared.simulated.interruptions[-1].reason
    assert compared.monte_carlo_steps > compared.decision_steps


def test_a_difference_is_seen() -> None:
    """The same run is compared with one whose steps take a quarter longer, and with one that
    answers a kill by another rung.
    """
    faults = spread_faults(SMALL, ("kill",), count=6, seed=2)
    compared = compare(SMALL, faults, seed=2)
    assert compared.agree
    assert not replace(compared, decision_steps=round(compared.decision_steps * 0.8)).agree
    answer = compared.decided.answers[2]
    answer.chosen = replace(answer.chosen, rung=Rung.RESTART)
    assert not compared.agree


def test_a_life_says_where_it_ended_and_what_its_ledger_knows() -> None:
    """Sharded state has no copies, so the loss of a node takes all ranks back to the beginning. The
    node's machine sends nothing, so its lease has to pass. Undisturbed steps follow each other
    without a gap.
    """
    fault = PlannedFault("1", "lose_node", 3, at_s=150.0, for_s=60.0)
    life = simulate(seed=2, options=replace(SMALL, recovery_mode="sharded"), faults=(fault,))
    (one,) = life.interruptions
    assert life.committed == pytest.approx(
        (300 - (one.restored_s or 0)) / steady_step_s(SMALL), abs=2.5
    )
    assert 150 <= one.detected_s < (one.left_s or 0) < (one.restored_s or 0) < 160
    assert simulate(seed=1, options=SMALL, faults=()).committed == pytest.approx(
        300 / steady_step_s(SMALL), abs=1.5
    )


def test_a_life_is_told_with_its_own_kinds_and_seconds() -> None:
    kinds = ("kill", "hang", "lose_node")
    faults = spread_faults(SMALL, kinds, count=3, seed=1)
    known = measure(SMALL, seed=9, kinds=kinds)
    scenario, history = as_scenario(SMALL, faults, known)
    course = course_of(scenario, history)
    assert [one.at_s + known.began_s for one in course.interruptions] == pytest.approx(
        [fault.at_s for fault in faults]
    )
    spent_s = [next(iter(one.spent_s.values())) for one in course.interruptions]
    assert spent_s == pytest.approx([known.detect_s[fault.kind] for fault in faults])
    assert known.detect_s["kill"] < 0.1 < known.detect_s["lose_node"] < known.detect_s["hang"]


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        (SMALL, (PlannedFault("1", "part", None, node=0, peer=1, at_s=5.0),)),
        (SMALL, (PlannedFault("1", "kill", 0, mark="voting"),)),
        (replace(SMALL, for_s=0.0, failures=0), (PlannedFault("1", "kill", 0, at_s=5.0),)),
        (replace(SMALL, ranks=17), (PlannedFault("1", "kill", 0, at_s=5.0),)),
    ],
)
def test_what_cannot_be_told_as_a_scenario_is_refused(
    options: Options, faults: tuple[PlannedFault, ...]
) -> None:
    with pytest.raises(UsageError, match="cannot be written as a scenario"):
        as_scenario(options, faults, measure(SMALL, seed=1, kinds=()))
