"""The ladder: which rung is chosen in which situation, cheapest first, and that it ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.engine.budget import Budget, Budgets, default_budgets
from outlast.engine.recovery import (
    RECOVERY_MODES,
    RecoveryVerdict,
    Situation,
    decide_rung,
    replacing,
)
from outlast.model import limits
from outlast.model.terms import Rung

CALM = Situation(
    lost=(),
    raised=(),
    recovery_mode="in_place",
    state=True,
    committed=10,
    reached=10,
    error="",
    trained=True,
)


def decide(
    situation: Situation, *, spares: tuple[int, ...] = (), world: int = 4
) -> RecoveryVerdict:
    return decide_rung(
        situation=situation, spares=spares, budgets=default_budgets(None), world_size=world
    )


def left_by(verdict: RecoveryVerdict) -> Budgets:
    assert verdict.budgets is not None
    return verdict.budgets


def again_and_again(situation: Situation, budgets: Budgets, times: int) -> list[RecoveryVerdict]:
    """Return the verdicts on this many interruptions. Each has the budgets that the one before
    left.
    """
    out = []
    for _ in range(times):
        out.append(decide_rung(situation=situation, spares=(), budgets=budgets, world_size=4))
        budgets = left_by(out[-1])
    return out


def test_a_decision_leaves_the_budgets_that_it_is_given_as_they_were() -> None:
    budgets = default_budgets(None)
    for situation in (CALM, replace(CALM, lost=(1,)), replace(CALM, recovery_mode="respawn")):
        verdict = decide_rung(situation=situation, spares=(), budgets=budgets, world_size=4)
        assert budgets == default_budgets(None) != left_by(verdict)


def test_with_every_process_alive_the_step_is_repeated_in_place() -> None:
    assert decide(CALM).rung is Rung.REPEAT
    assert decide(replace(CALM, raised=(2,))).rung is Rung.REPEAT


def test_a_rank_that_cannot_get_over_the_step_is_replaced() -> None:
    budgets = default_budgets(None)
    rungs = again_and_again(replace(CALM, raised=(2,)), budgets, limits.REPEATS_PER_STEP_COUNT + 1)
    assert [verdict.rung for verdict in rungs[:-1]] == [Rung.REPEAT] * limits.REPEATS_PER_STEP_COUNT
    assert (rungs[-1].rung, rungs[-1].replace) == (Rung.RESPAWN, {2: -1})


@pytest.mark.parametrize(
    ("error", "again"),
    [
        ("SyntaxError: invalid syntax (model.py, line 2)", False),
        ("ModuleNotFoundError: No module named 'outlats'", False),
        ("train.py: error: the following arguments are required: --data", False),
        ("train.py: error: unrecognized arguments: --nproc-per-node 4", False),
        ("Error: No such option: --lr", False),
        ("ImportError: cannot import name 'x' (stale file handle)", True),
        ("OSError: [Errno 98] Address already in use", True),
        ("RuntimeError: ModuleNotFoundError: in a worker of the loader", True),
        ("", True),
    ],
)
@pytest.mark.parametrize("mode", RECOVERY_MODES)
def test_a_script_that_fails_the_same_way_each_time_is_not_started_again(
    error: str, again: bool, mode: str
) -> None:
    """The script is started again if it has trained before, or if the user has said how often to
    try.
    """
    start = replace(
        CALM,
        raised=(0,),
        recovery_mode=mode,
        state=False,
        committed=0,
        reached=0,
        error=error,
        trained=False,
    )
    first = decide(start)
    assert (first.rung is not Rung.STOP) is again, first
    assert again or first.reason.endswith(f"last error: {error}")
    assert decide(replace(start, trained=True)).rung is not Rung.STOP
    named = decide_rung(situation=start, spares=(), budgets=default_budgets(1), world_size=4)
    assert named.rung is not Rung.STOP


def test_a_step_that_fails_again_without_a_culprit_restarts_all() -> None:
    """A script without outlast.main cannot be entered again."""
    budgets = default_budgets(None)
    verdicts = again_and_again(CALM, budgets, limits.REPEATS_PER_STEP_COUNT + 1)
    assert (verdicts[-1].rung, verdicts[-1].survivors) == (Rung.RESTART, "exit")


def test_spares_come_before_forks_and_both_serve_one_event() -> None:
    assert decide(replace(CALM, lost=(1,)), spares=(9, 8)).replace == {1: 9}
    mixed = decide(replace(CALM, lost=(3, 1)), spares=(9,))
    assert (mixed.rung, mixed.replace, mixed.survivors) == (Rung.RESPAWN, {1: 9, 3: -1}, "in_place")


def test_survivors_enter_main_again_where_that_is_their_way() -> None:
    assert decide(replace(CALM, recovery_mode="reenter")).rung is Rung.REENTER
    assert decide(replace(CALM, recovery_mode="reenter", lost=(0,))).survivors == "reenter"


def test_the_reason_for_a_restart_is_true() -> None:
    """The reason names collectives of the script only if the script made some, and names a step
    that fails again only if a process still lives.
    """
    assert (
        "no process is left"
        in decide(replace(CALM, lost=(0, 1, 2, 3), recovery_mode="reenter")).reason
    )
    assert (
        "no process stands in a step"
        in decide(replace(CALM, lost=(1,), recovery_mode="respawn", state_is_live=False)).reason
    )
    assert (
        "collectives of its own" in decide(replace(CALM, lost=(1,), recovery_mode="respawn")).reason
    )
    assert "no outlast call" in decide(replace(CALM, lost=(1,), recovery_mode="plain")).reason


@pytest.mark.parametrize(
    ("change", "rung"),
    [
        ({"recovery_mode": "plain"}, Rung.RESTART),
        ({"state": False}, Rung.RESTART),
        ({"recovery_mode": "respawn"}, Rung.RESPAWN),
        ({"lost": (0, 1, 2, 3)}, Rung.RESTART),
    ],
)
def test_all_ranks_restart_if_none_can_go_on(change: dict[str, object], rung: Rung) -> None:
    verdict = decide(replace(CALM, **{"lost": (1,), **change}))  # type: ignore[arg-type]
    assert (verdict.rung, verdict.survivors, verdict.replace) == (rung, "exit", {})


@given(
    lost=st.sets(st.integers(0, 3)),
    raised=st.sets(st.integers(0, 3)),
    mode=st.sampled_from(RECOVERY_MODES),
    state=st.booleans(),
    trained=st.booleans(),
    spares=st.lists(st.integers(10, 20), unique=True, max_size=3),
)
def test_a_crash_loop_ends_in_every_situation(
    lost: set[int], raised: set[int], mode: str, state: bool, trained: bool, spares: list[int]
) -> None:
    """If no step is committed in between, the run ends after some rung. Each verdict names a source
    for every lost rank, or restarts all ranks.
    """
    budgets = default_budgets(None)
    situation = Situation(
        tuple(sorted(lost)),
        tuple(sorted(raised - lost)),
        mode,
        state,
        3,
        3,
        "KeyError: 'x'",
        trained,
    )
    for _ in range(30):
        verdict = decide_rung(situation=situation, spares=spares, budgets=budgets, world_size=4)
        budgets = left_by(verdict)
        if verdict.rung is Rung.STOP:
            assert "KeyError" in verdict.reason
            return
        assert verdict.survivors == "exit" or lost <= set(verdict.replace)
        assert verdict.survivors != "reenter" or mode == "reenter"
        given_out = [worker for worker in verdict.replace.values() if worker >= 0]
        assert len(given_out) == len(set(given_out)) <= len(spares)
    raise AssertionError("thirty interruptions at one step, and no end")


def _until_it_stops(reached: Iterable[int], *, committed: int) -> tuple[int, str]:
    """Lose one rank again and again, with replacements that cost nothing. Return how many
    interruptions were answered, and why the next one was not.
    """
    budgets = replace(default_budgets(None), respawns=Budget(1000, 1))
    for count, place in enumerate(reached):
        situation = replace(
            CALM, lost=(0,), recovery_mode="reenter", committed=committed, reached=place
        )
        verdict = decide_rung(situation=situation, spares=(), budgets=budgets, world_size=4)
        budgets = left_by(verdict)
        if verdict.rung is Rung.STOP:
            return count, verdict.reason
    raise AssertionError("it was never ended")


def test_a_run_that_fails_at_one_step_again_and_again_is_ended() -> None:
    """Images are rare: all ranks go back from step 57 to step 40 each time, and reach step 57
    again.
    """
    count, why = _until_it_stops(itertools.repeat(57), committed=57)
    assert (count, why) == (
        limits.SAME_STEP_FAULTS_COUNT,
        "6 interruptions without a step executed after step 57: a crash loop",
    )


def test_random_faults_while_old_steps_repeat_are_no_crash_loop() -> None:
    """Method: from step 40 on, each fault strikes at another step. The run ends only after many
    interruptions without a newly committed step.
    """
    count, why = _until_it_stops(itertools.cycle((57, 41, 49, 44, 52)), committed=57)
    assert (count, why) == (
        limits.STANDSTILL_FAULTS_COUNT,
        "21 interruptions without a step committed after step 57: a crash loop",
    )


def test_few_failures_are_allowed_before_the_first_step() -> None:
    budgets = default_budgets(None)
    new = replace(CALM, committed=0, reached=0, trained=False)
    rungs = [
        verdict.rung for verdict in again_and_again(new, budgets, limits.SETUP_FAULTS_COUNT + 1)
    ]
    assert [rung is Rung.STOP for rung in rungs] == [False] * limits.SETUP_FAULTS_COUNT + [True]


def test_a_rung_extended_to_a_rank_without_a_spare_is_named_so() -> None:
    """Found by the swarm (seed 3010051): a spare was to answer a drain, and another rank died
    before that was done. The ledger then said "taken by spares".
    """
    assert (
        replacing({1: 7}, survivors="in_place").rung,
        replacing({1: 7, 0: -1}, survivors="in_place").rung,
    ) == (Rung.SPARE, Rung.RESPAWN)
    assert (
        replacing({1: 7, 0: -1}, survivors="reenter").reason
        == "ranks [0, 1] are forked from the zygote or taken by spares; survivors enter main's"
        " function again"
    )
    assert (
        replacing({1: -1}, survivors="in_place").reason
        == "ranks [1] are forked from the zygote; survivors go on in place"
    )


def test_kills_from_outside_do_not_end_a_run_that_commits_steps() -> None:
    """Method: 99 kills, 11 at each step. As a control, the same number of ends that a script can
    cause by itself.
    """

    def rungs(*, outside: bool) -> set[Rung]:
        budgets, found = default_budgets(None), set()
        for number in range(99):
            step = 10 + number // 11
            struck = replace(
                CALM, lost=(number % 4,), committed=step, reached=step, outside=outside
            )
            verdict = decide_rung(situation=struck, spares=(), budgets=budgets, world_size=4)
            budgets = left_by(verdict)
            found.add(verdict.rung)
        return found

    assert rungs(outside=True) == {Rung.RESPAWN}
    assert Rung.STOP in rungs(outside=False)


def _struck(number: int, *, now_s: float, trained: bool = True, committed: int = 10) -> Situation:
    return replace(
        CALM,
        lost=(number % 4,),
        outside=True,
        now_s=now_s,
        trained=trained,
        committed=committed,
        reached=committed,
    )


@pytest.mark.parametrize(
    ("trained", "borne"), [(True, limits.STRIKES_COUNT), (False, limits.SETUP_STRIKES_COUNT)]
)
def test_kills_from_outside_end_only_a_run_that_stands_still_for_long(
    trained: bool, borne: int
) -> None:
    """Hundreds of kills within seconds are tolerated, and a few over any length of time.

    Method: kills come ten times a second. The run goes on until it has stood still for the time
    that a limit names. Then kills come once a minute: the run goes on until there are too many.
    """
    stood_s: dict[float, float] = {}
    counted: dict[float, int] = {}
    for every_s in (0.1, 60.0):
        budgets, number, verdict = default_budgets(None), 0, None
        while verdict is None or verdict.rung is not Rung.STOP:
            now_s = 1000.0 + every_s * number
            verdict = decide_rung(
                situation=_struck(number, now_s=now_s, trained=trained),
                spares=(),
                budgets=budgets,
                world_size=4,
            )
            budgets, number = left_by(verdict), number + 1
            assert number < 1000
        stood_s[every_s], counted[every_s] = now_s - 1000.0, number
        assert "killed from outside" in verdict.reason
    assert stood_s[0.1] == pytest.approx(limits.STRIKES_STANDSTILL_S, abs=0.11)
    assert counted[60.0] == borne + 1


def test_a_step_begins_the_count_of_kills_and_their_time_anew() -> None:
    """Method: a kill each second for ten minutes, and a new step after each 25 of them. That is no
    crash loop.
    """
    budgets = default_budgets(None)
    for number in range(600):
        situation = _struck(number, now_s=float(number), committed=10 + number // 25)
        verdict = decide_rung(situation=situation, spares=(), budgets=budgets, world_size=4)
        budgets = left_by(verdict)
        assert verdict.rung is Rung.RESPAWN, (number, verdict.reason)


def test_a_fault_of_the_run_after_many_kills_is_the_first_of_its_kind() -> None:
    """The kills do not count at the place where the run then fails by itself."""
    budgets = default_budgets(None)
    for number in range(19):
        verdict = decide_rung(
            situation=_struck(number, now_s=0.1 * number), spares=(), budgets=budgets, world_size=4
        )
        budgets = left_by(verdict)
    rungs = [
        verdict.rung
        for verdict in again_and_again(
            replace(CALM, lost=(1,), now_s=2.0), budgets, limits.SAME_STEP_FAULTS_COUNT + 1
        )
    ]
    assert rungs == [Rung.RESPAWN] * limits.SAME_STEP_FAULTS_COUNT + [Rung.STOP]


@pytest.mark.parametrize(("max_restarts", "borne"), [(None, 20), (2, 2), (0, 0)])
def test_whole_restarts_after_kills_are_charged_only_where_the_user_says(
    max_restarts: int | None, borne: int
) -> None:
    """Method: all ranks are killed at once, again and again within seconds."""
    budgets, answered = default_budgets(max_restarts), 0
    while answered < 20:
        situation = replace(CALM, lost=(0, 1, 2, 3), outside=True, now_s=0.1 * answered)
        verdict = decide_rung(situation=situation, spares=(), budgets=budgets, world_size=4)
        if verdict.rung is Rung.STOP:
            break
        budgets, answered = left_by(verdict), answered + 1
    assert answered == borne


def test_what_all_ranks_raise_twice_is_not_tried_a_third_time() -> None:
    """Method: every rank's script ends with an error at the same step. A different error or a
    different step counts anew. With --max-restarts, the user has said how often all ranks start
    over.
    """
    raised = replace(
        CALM, lost=(0, 1, 2, 3), all_raised=True, error="KeyError: 'loss'", recovery_mode="respawn"
    )
    first, second = again_and_again(raised, default_budgets(None), 2)
    assert (first.rung, second.rung) == (Rung.RESPAWN, Rung.STOP)
    assert second.reason.startswith("every rank raised after step 10, and again after all ranks")
    assert second.reason.endswith("last error: KeyError: 'loss'")
    for other in (replace(raised, error="OSError: full"), replace(raised, reached=11)):
        verdict = decide_rung(situation=other, spares=(), budgets=left_by(first), world_size=4)
        assert verdict.rung is Rung.RESPAWN, other
    in_phase = replace(raised, ended_in_run_phase=True)
    verdict = decide_rung(situation=in_phase, spares=(), budgets=default_budgets(3), world_size=4)
    assert verdict.rung is Rung.STOP, "a restart would leave the phase out"
    paid = again_and_again(raised, default_budgets(3), 3)
    assert [one.rung for one in paid] == [Rung.RESPAWN] * 3
