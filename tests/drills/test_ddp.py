"""Replicated state under fault: every survivor holds the state, so whatever is struck, no committed
step is lost and no bit differs.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills._run import CalmRun, Drill, Fault, Outcome, drilled

pytestmark = pytest.mark.timeout(150)
STEPS = 38
INSIDE = ("forward", "backward", "before_optimizer", "apply", "tail")  # places of scripts/ddp.py
# places of the transaction
MARKS = ("sealing", "prepared", "voting", "passed", "applied", "committed")
SEALED_MARKS = ("prepared", "voting")  # a rank that is lost at one of these has sealed its step
Calm = Callable[..., dict[int, str]]


@pytest.fixture
def calm(calm_run: CalmRun) -> Calm:
    """Return a function that gives the digests of an undisturbed run, by rank."""
    return lambda *arguments: calm_run("ddp.py", *arguments).digests


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Yield a control group with room for half a gibibyte, under either hierarchy.

    Only root can make one.
    """
    v1 = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
    group = (
        Path("/sys/fs/cgroup/memory" if v1 else "/sys/fs/cgroup") / f"outlast-drill-{os.getpid()}"
    )
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(512 << 20))
        with contextlib.suppress(OSError):  # no swap accounting
            (group / ("memory.memsw.limit_in_bytes" if v1 else "memory.swap.max")).write_text(
                str(512 << 20 if v1 else 0)
            )
    except OSError as error:
        if group.exists():
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error.strerror}")
    yield group
    group.rmdir()


def nothing_shows(
    outcome: Outcome,
    digests: dict[int, str],
    *,
    faults: int,
    rungs: set[str] | None = None,
    lossless: bool = True,
) -> None:
    """Check that the run ended well with the digests of the undisturbed one, and that the ledger
    has `faults` interruptions.
    """
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == digests, str(outcome)
    assert len(outcome.interruptions) == faults, str(outcome)
    outcome.ledger_is_sound(lossless=lossless)
    # it does not do that
    assert "the script changes parameters itself" not in outcome.stderr, str(outcome)
    if rungs is not None:
        assert {one["rung"] for one in outcome.interruptions} <= rungs, str(outcome)


def kill_at(place: str, rank: int, step: int, **more: Any) -> Fault:
    return {
        "mark" if place in (*MARKS, "keeping") else "at": place,
        "rank": rank,
        "step": step,
        "do": "SIGKILL",
        **more,
    }


def one_each(places: tuple[str, ...], *, first: int, every: int) -> Iterator[Fault]:
    for number, place in enumerate(places):
        yield kill_at(place, (number + 1) % 4, first + every * number)


# --- one rank, at every place of a step -----------------------------------------------------------


@pytest.mark.parametrize("loaders", [0, pytest.param(2, marks=pytest.mark.drill)])
def test_a_kill_at_any_place_of_a_step_costs_no_step(
    tmp_path: Path, calm: Calm, loaders: int
) -> None:
    """One run: every three steps another rank is killed at another place, once with two DataLoader
    workers alive in each rank.

    A rank that is killed after it has sealed causes no repetition if its peers have sealed too. It
    waits there so that they have the time for it.
    """
    strikes, marks = (
        list(one_each(INSIDE, first=3, every=3)),
        list(one_each(MARKS, first=19, every=3)),
    )
    waits = [
        {**fault, "do": "sleep", "for_s": 0.5} for fault in marks if fault["mark"] in SEALED_MARKS
    ]
    outcome = drilled(
        tmp_path,
        "ddp.py",
        "--steps",
        STEPS,
        "--loaders",
        loaders,
        flags=("--spares", 1),
        strikes=strikes,
        marks=waits + marks,
        within_s=120,
    )
    nothing_shows(
        outcome,
        calm("--steps", STEPS),
        faults=len(strikes) + len(marks),
        rungs={"spare", "respawn"},
    )
    for one, fault in zip(outcome.interruptions, strikes + marks, strict=True):
        assert one["ranks"] == [fault["rank"]], str(outcome)
        assert (one["mechanism"], one["class"], one["parent"]) == ("signal", "unknown", None), str(
            outcome
        )
        repeated = 0 if fault.get("mark") in SEALED_MARKS else 1
        assert one["steps_repeated"] == repeated, (fault, str(outcome))


@pytest.mark.drill
def test_a_kill_inside_the_all_reduce(tmp_path: Path, calm: Calm) -> None:
    """Method: rank 1 reaches its backward 0.4 s late. Rank 2 waits for it in the all-reduce, and is
    killed there after 0.2 s.
    """
    strikes = [
        {"at": "backward", "rank": 1, "step": 5, "do": "sleep", "for_s": 0.4},
        {"at": "backward", "rank": 2, "step": 5, "do": "SIGKILL", "after_s": 0.2},
    ]
    outcome = drilled(tmp_path, "ddp.py", strikes=strikes)
    nothing_shows(outcome, calm(), faults=1, rungs={"respawn"})
    assert outcome.interruptions[0]["ranks"] == [2]
    assert outcome.interruptions[0]["steps_repeated"] == 1


# --- more than one --------------------------------------------------------------------------------

SECOND = [
    *((name, 1, 0) for name in ("still", "settled", "grouping", "grouped", "joined")),
    ("donating", 0, 0),
    *((name, 2, spares) for name in ("grouping", "restoring", "joined") for spares in (0, 1)),
]


@pytest.mark.drill
@pytest.mark.parametrize(("mark", "rank", "spares"), SECOND)
def test_a_second_fault_during_the_recovery_from_the_first(
    tmp_path: Path, calm: Calm, mark: str, rank: int, spares: int
) -> None:
    """Method: rank 2 is killed in step 6.

    While its rank is given to another process, a survivor (1, or 0 as the donor) or that process
    (2) is killed too.
    """
    drill = Drill(
        tmp_path,
        "ddp.py",
        flags=("--spares", spares),
        strikes=[kill_at("forward", 2, 6)],
        marks=[
            {"mark": mark, "rank": rank, "generation": 1 if mark == "still" else 2, "do": "SIGKILL"}
        ],
    )
    with drill:
        outcome = drill.finish()
    assert drill.fired(0), str(outcome)
    # it dies before it has left, which makes it a companion and not a second event
    if mark == "still":
        nothing_shows(outcome, calm(), faults=1, rungs={"spare", "respawn"})
        assert sorted(outcome.interruptions[0]["ranks"]) == [1, 2], str(outcome)
        return
    nothing_shows(outcome, calm(), faults=2, rungs={"spare", "respawn"})
    first, second = outcome.interruptions
    assert (first["ranks"], second["ranks"], second["parent"]) == ([2], [rank], first["id"]), str(
        outcome
    )
    assert first["resumed_s"] == second["resumed_s"], str(outcome)


@pytest.mark.drill
@pytest.mark.parametrize("mark", ["settled", "grouping", "joined"])
def test_a_second_fault_while_a_step_is_finished_by_a_plan(
    tmp_path: Path, calm: Calm, mark: str
) -> None:
    """Method: rank 2 dies once all had prepared step 6. The others apply the step, and are in its
    block when rank 1 dies. Code after the block moves the schedule: a healed rank has to move it
    too, exactly once.
    """
    marks = [kill_at("prepared", 2, 6), {"mark": mark, "rank": 1, "generation": 2, "do": "SIGKILL"}]
    outcome = drilled(tmp_path, "ddp.py", "--schedule-behind", marks=marks)
    nothing_shows(outcome, calm("--schedule-behind"), faults=2, rungs={"respawn"})


@pytest.mark.drill
def test_two_ranks_at_once(tmp_path: Path, calm: Calm) -> None:
    with Drill(tmp_path, "ddp.py", "--steps", 60, flags=("--spares", 1)) as drill:
        drill.until(lambda: drill.step >= 8, "step 8")
        pids = [drill.pid_of(rank) for rank in (1, 3)]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        outcome = drill.finish()
    nothing_shows(outcome, calm("--steps", 60), faults=1, rungs={"respawn"})
    one = outcome.interruptions[0]
    others = set(one["ranks"]) - {1, 3}
    assert {1, 3} <= set(one["ranks"]), str(outcome)
    assert not others or (len(others) == 1 and "did not leave its collective" in one["reason"]), (
        "a send that gloo has forgotten keeps one, at most"
    )


@pytest.mark.drill
@pytest.mark.parametrize(
    ("workers", "every", "said"),
    [(1, 0, "back to the beginning"), (1, 5, "back to the newest checkpoint"), (2, 0, "")],
)
def test_one_rank_without_copies_is_warned_what_a_kill_costs(
    tmp_path: Path, workers: int, every: int, said: str
) -> None:
    more = ("--checkpoint-every", every) if every else ()
    outcome = drilled(tmp_path, "ddp.py", workers=workers, flags=("--keep", "vault:never", *more))
    assert outcome.code == 0, str(outcome)
    assert outcome.stderr.count("nobody but this one rank") == bool(said), str(outcome)
    assert said in outcome.stderr, str(outcome)


@pytest.mark.drill
def test_a_spare_that_took_a_rank_has_its_name(tmp_path: Path) -> None:
    with Drill(tmp_path, "ddp.py", "--steps", 100_000, flags=("--spares", 1)) as drill:
        drill.until(lambda: drill.step >= 8 and drill.parked(), "step 8, and a spare")
        lost = drill.pid_of(2)
        os.kill(lost, signal.SIGKILL)
        drill.until(lambda: drill.pid_of(2) != lost, "rank 2 is back")
        assert Path(f"/proc/{drill.pid_of(2)}/comm").read_text() == "outlast-rank2\n"


@pytest.mark.drill
@pytest.mark.parametrize("every", [0, 5])
def test_all_ranks_lost_without_copies_start_from_a_checkpoint_or_zero(
    tmp_path: Path, calm: Calm, every: int
) -> None:
    """No process that held the state is left.

    The ledger says how many committed steps that cost.
    """
    flags = ("--keep", "vault:never", *(("--checkpoint-every", every) if every else ()))
    with Drill(tmp_path, "ddp.py", "--steps", 60, flags=flags) as drill:
        drill.until(lambda: drill.step >= 18, "step 18")
        if every:
            drill.until(lambda: list(drill.folder.glob("checkpoints/*/manifest*")), "a checkpoint")
        for rank in range(4):
            os.kill(drill.pid_of(rank), signal.SIGKILL)
        outcome = drill.finish()
    nothing_shows(outcome, calm("--steps", 60), faults=1, rungs={"restart"}, lossless=False)
    one = outcome.interruptions[0]
    assert sorted(one["ranks"]) == [0, 1, 2, 3]
    assert one["steps_lost"] >= 18 if not every else 0 <= one["steps_lost"] <= 3 * every, str(
        outcome
    )
    assert outcome.report["rank_seconds"]["repeated"] > 0


@pytest.mark.drill
@pytest.mark.parametrize(
    ("keep", "workers"),
    [
        ("vault:step", 2),
        ("vault:auto", 4),
        ("vault:step", 1),
        ("vault:3steps", 2),
        ("vault:50ms", 2),
    ],
)
def test_all_ranks_lost_start_from_their_copies_in_the_vault(
    tmp_path: Path, calm_run: CalmRun, keep: str, workers: int
) -> None:
    """No process that held the state is left. With a copy of each step, at most the last committed
    step is lost: its copy is made when the next step begins.
    """
    flags = ("--keep", keep)
    with Drill(tmp_path, "ddp.py", "--steps", 60, workers=workers, flags=flags) as drill:
        drill.until(lambda: drill.step >= 18, "step 18")
        for rank in range(workers):
            os.kill(drill.pid_of(rank), signal.SIGKILL)
        outcome = drill.finish()
    expected = calm_run("ddp.py", "--steps", 60, workers=workers).digests
    nothing_shows(outcome, expected, faults=1, rungs={"restart"}, lossless=False)
    (one,) = outcome.interruptions
    assert sorted(one["ranks"]) == list(range(workers))
    assert "from the copy of step" in one["reason"], str(outcome)
    if keep == "vault:step":
        assert one["steps_lost"] <= 1, str(outcome)


@pytest.mark.drill
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", ["keeping", "prepared", "committed"])
def test_all_ranks_are_lost_while_one_copies_its_state(
    tmp_path: Path, calm_run: CalmRun, place: str, rank: int
) -> None:
    """One rank is struck, and when the launcher reacts, the other one is dead too. No copy consists
    of two halves.

    Method: both ranks strike themselves, each at its own mark of the same step.
    """
    marks = [kill_at(place, rank, 12), kill_at("keeping", 1 - rank, 12)]
    outcome = drilled(
        tmp_path, "ddp.py", "--steps", 40, workers=2, flags=("--keep", "vault:step"), marks=marks
    )
    expected = calm_run("ddp.py", "--steps", 40, workers=2)
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == expected.digests, str(outcome)
    assert all(one["steps_lost"] <= 1 for one in outcome.interruptions), str(outcome)


# --- what is not a rank ---------------------------------------------------------------------------


@pytest.mark.drill
def test_a_lost_spare_is_replaced_without_an_interruption(tmp_path: Path, calm: Calm) -> None:
    with Drill(tmp_path, "ddp.py", "--steps", 150, flags=("--spares", 1)) as drill:
        drill.until(drill.parked, "a parked spare")
        (first,) = drill.parked()
        os.kill(first, signal.SIGKILL)
        drill.until(
            lambda: any(spare["pid"] not in (0, first) for spare in drill.status.get("spares", [])),
            "another spare",
        )
        outcome = drill.finish()
    nothing_shows(outcome, calm("--steps", 150), faults=0)


@pytest.mark.drill
def test_without_its_zygote_a_run_still_replaces_ranks(tmp_path: Path, calm: Calm) -> None:
    with Drill(tmp_path, "ddp.py", "--steps", 60) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        os.kill(drill.zygote(), signal.SIGKILL)
        before = drill.step
        drill.until(lambda: drill.step >= before + 3, "three more steps")
        os.kill(drill.pid_of(1), signal.SIGKILL)
        outcome = drill.finish()
    nothing_shows(outcome, calm("--steps", 60), faults=1, rungs={"respawn"})


@pytest.mark.drill
def test_a_lost_store_is_replaced_without_an_interruption(tmp_path: Path, calm: Calm) -> None:
    with Drill(tmp_path, "ddp.py", "--steps", 60, flags=("--spares", 1)) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        os.kill(drill.store(), signal.SIGKILL)
        before = drill.step
        drill.until(lambda: drill.step >= before + 3, "three more steps")
        os.kill(drill.pid_of(1), signal.SIGKILL)
        outcome = drill.finish()
    nothing_shows(outcome, calm("--steps", 60), faults=1, rungs={"spare", "respawn"})


@pytest.mark.drill
def test_the_store_and_a_rank_at_once(tmp_path: Path, calm: Calm) -> None:
    with Drill(tmp_path, "ddp.py", "--steps", 60) as drill:
        drill.until(lambda: drill.step >= 5, "step 5")
        for pid in (drill.store(), drill.pid_of(2)):
            os.kill(pid, signal.SIGKILL)
        outcome = drill.finish()
    blamed = [one["ranks"] for one in outcome.interruptions]
    assert blamed in (
        [[2]],
        [[2], []],
    ), "a group that was begun with the store fails with it, and that is no rank's fault"
    nothing_shows(outcome, calm("--steps", 60), faults=len(blamed), rungs={"respawn", "repeat"})


# --- the rank's own doing -------------------------------------------------------------------------


def test_an_exception_that_comes_once_is_repeated_in_place(tmp_path: Path, calm: Calm) -> None:
    outcome = drilled(
        tmp_path,
        "ddp.py",
        "--steps",
        STEPS,
        strikes=[{"at": "forward", "rank": 1, "step": 5, "do": "raise"}],
    )
    nothing_shows(outcome, calm("--steps", STEPS), faults=1, rungs={"repeat"})
    one = outcome.interruptions[0]
    assert (one["mechanism"], one["class"], one["ranks"], one["steps_repeated"]) == (
        "exception",
        "user_code",
        [1],
        1,
    )
    assert "Struck: struck at forward" in one["traceback"]
    assert len({pid for _, _, pid in outcome.commits}) == 4, "the same four processes"


@pytest.mark.drill
def test_an_exception_after_an_update_that_a_plan_carried_forward(
    tmp_path: Path, calm: Calm
) -> None:
    """Method: rank 2 dies once all had prepared step 6. The others apply it because the plan says
    so, and rank 1 raises in the same block. Its state is torn.
    """
    outcome = drilled(
        tmp_path,
        "ddp.py",
        marks=[kill_at("prepared", 2, 6)],
        strikes=[{"at": "tail", "rank": 1, "step": 6, "do": "raise"}],
    )
    nothing_shows(outcome, calm(), faults=2)
    assert [one["mechanism"] for one in outcome.interruptions] == ["signal", "exception"], str(
        outcome
    )
    assert outcome.interruptions[1]["ranks"] == [1], str(outcome)


@pytest.mark.drill
def test_an_exception_that_always_comes_ends_the_run_with_its_traceback(
    tmp_path: Path,
) -> None:
    outcome = drilled(
        tmp_path,
        "ddp.py",
        flags=("--spares", 1),
        strikes=[{"at": "forward", "rank": 1, "step": 5, "do": "raise", "always": True}],
    )
    assert outcome.code == 1, str(outcome)
    assert outcome.report["state"] == "failed"
    said = [line for line in outcome.stderr.splitlines() if line.strip()]
    first = next(
        number
        for number, line in enumerate(said)
        if line.startswith("Traceback (most recent call last)")
    )
    assert any("Struck: struck at forward" in line for line in said[first:]), str(outcome)
    assert next(number for number, line in enumerate(said) if line.startswith("error: ")) > first, (
        str(outcome)
    )
    assert "ddp.py" in outcome.stderr
    assert max(step for _, step, _ in outcome.commits) == 4, (
        "no rank went past the step that failed"
    )


@pytest.mark.drill
@pytest.mark.parametrize("code", [0, 7])
def test_a_rank_that_leaves_by_os_exit_is_replaced(tmp_path: Path, calm: Calm, code: int) -> None:
    """This holds for code 0 too: during its steps, no rank has ended well."""
    outcome = drilled(
        tmp_path,
        "ddp.py",
        strikes=[{"at": "before_optimizer", "rank": 2, "step": 5, "do": "exit", "code": code}],
    )
    nothing_shows(outcome, calm(), faults=1, rungs={"respawn"})
    assert (outcome.interruptions[0]["mechanism"], outcome.interruptions[0]["ranks"]) == (
        "exit",
        [2],
    )


@pytest.mark.drill
def test_a_rank_that_the_kernel_kills_for_memory(
    tmp_path: Path, calm: Calm, small_group: Path
) -> None:
    strikes = [
        {
            "at": "forward",
            "rank": 2,
            "step": 5,
            "do": "eat",
            "group": str(small_group / "cgroup.procs"),
        }
    ]
    outcome = drilled(tmp_path, "ddp.py", strikes=strikes)
    nothing_shows(outcome, calm(), faults=1, rungs={"respawn"})
    assert (outcome.interruptions[0]["mechanism"], outcome.interruptions[0]["class"]) == (
        "signal",
        "host_memory",
    ), str(outcome)


# --- what a step may hold -------------------------------------------------------------------------


@pytest.mark.drill
def test_a_kill_in_each_micro_batch(tmp_path: Path, calm: Calm) -> None:
    strikes = [kill_at(f"micro{number}", number, 4 + 4 * number) for number in range(4)]
    outcome = drilled(
        tmp_path, "ddp.py", "--accumulate", 4, "--steps", 24, flags=("--spares", 1), strikes=strikes
    )
    nothing_shows(
        outcome, calm("--accumulate", 4, "--steps", 24), faults=4, rungs={"spare", "respawn"}
    )


@pytest.mark.drill
def test_a_step_that_the_grad_scaler_skips(tmp_path: Path, calm: Calm) -> None:
    """Steps 5 and 9 overflow: no optimizer is called, and the end of the block votes.

    Method: kills in a skipped step, at its vote, and after one.
    """
    arguments = ("--scaler", "--overflow", 5, 9, 13, "--steps", 24)
    marks = [kill_at("voting", 1, 5), kill_at("applied", 2, 13)]
    strikes = [kill_at("before_optimizer", 3, 9), kill_at("forward", 0, 17)]
    outcome = drilled(
        tmp_path, "ddp.py", *arguments, flags=("--spares", 1), strikes=strikes, marks=marks
    )
    nothing_shows(outcome, calm(*arguments), faults=4, rungs={"spare", "respawn"})


@pytest.mark.drill
@pytest.mark.parametrize(
    "place", ["second_backward", "apply", "tail", "prepared", "voting", "passed", "applied"]
)
def test_two_optimizers_with_a_backward_between_them(
    tmp_path: Path, calm: Calm, place: str
) -> None:
    """As in a GAN, the first optimizer is applied before the second backward runs. So the step
    keeps an undo copy and votes at its end.
    """
    fault = kill_at(place, 2, 6)
    outcome = drilled(
        tmp_path, "ddp.py", "--gan", **{"marks" if place in MARKS else "strikes": [fault]}
    )
    nothing_shows(outcome, calm("--gan"), faults=1, rungs={"respawn"})
    assert any("undo copy" in text for text in outcome.report["warnings"])


@pytest.mark.drill
def test_two_optimizers_struck_before_the_undo_copy_is_known_to_be_needed(
    tmp_path: Path, calm: Calm
) -> None:
    """In the first step it is not known yet that a backward will follow. Nothing is committed, so
    nothing is lost by starting again.
    """
    outcome = drilled(tmp_path, "ddp.py", "--gan", strikes=[kill_at("second_backward", 2, 1)])
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == calm("--gan"), str(outcome)
    outcome.ledger_is_sound()


@pytest.mark.drill
@pytest.mark.parametrize("step", [5, 9])
def test_an_exception_in_the_data_set_repeats_without_a_rollback(
    tmp_path: Path, calm: Calm, step: int
) -> None:
    """The exception comes between two steps: the schedule and the batch norm of the previous step
    are committed, and stay.

    With micro-batches, those already drawn are kept.
    """
    arguments = ("--accumulate", 4) if step == 9 else ()
    items = 4 * step * (4 if arguments else 1) + 7  # the rank has fetched this many by then
    outcome = drilled(
        tmp_path,
        "ddp.py",
        *arguments,
        strikes=[{"at": "load", "rank": 2, "step": step, "visit": items, "do": "raise"}],
    )
    nothing_shows(outcome, calm(*arguments), faults=1, rungs={"repeat"})


# --- phases between steps -------------------------------------------------------------------------


def evaluations(outcome: Outcome) -> set[str]:
    return {line for line in outcome.stdout.splitlines() if line.startswith("evaluated ")}


@pytest.mark.drill
@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("place", ["evaluate", "evaluated", "phase_over", "forward"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_kill_in_a_phase_repeats_the_phase_with_all_ranks(
    tmp_path: Path, calm_run: CalmRun, place: str, rank: int, spares: int
) -> None:
    """The phase has a collective. A new process that went straight to the next step would meet it
    with a different collective. The place "forward" is that of the step after the phase.
    """
    arguments = ("--evaluate", 3)
    fault = kill_at(place, rank, 7 if place == "forward" else 6)
    outcome = drilled(tmp_path, "ddp.py", *arguments, flags=("--spares", spares), strikes=[fault])
    nothing_shows(
        outcome, calm_run("ddp.py", *arguments).digests, faults=1, rungs={"spare", "respawn"}
    )
    assert evaluations(outcome) <= evaluations(calm_run("ddp.py", *arguments)), str(outcome)
    assert len(evaluations(outcome)) >= 3, str(outcome)
    if place != "phase_over":  # there, the survivors may be on either side of the phase's end
        assert outcome.interruptions[0]["steps_repeated"] == (1 if place == "forward" else 0), str(
            outcome
        )


@pytest.mark.drill
@pytest.mark.parametrize("mark", MARKS)
def test_a_kill_at_the_end_of_a_step_that_a_phase_follows(
    tmp_path: Path, calm_run: CalmRun, mark: str
) -> None:
    """The successor takes over the committed step. The phase after it is still ahead of all
    ranks.
    """
    arguments = ("--evaluate", 3)
    outcome = drilled(tmp_path, "ddp.py", *arguments, marks=[kill_at(mark, 2, 6)])
    nothing_shows(outcome, calm_run("ddp.py", *arguments).digests, faults=1, rungs={"respawn"})
    assert evaluations(outcome) == evaluations(calm_run("ddp.py", *arguments)), str(outcome)


@pytest.mark.drill
@pytest.mark.parametrize("mark", ["grouping", "restoring", "joined"])
def test_a_successor_that_dies_on_its_way_into_a_phase(
    tmp_path: Path, calm_run: CalmRun, mark: str
) -> None:
    arguments = ("--evaluate", 3)
    strikes, marks = (
        [kill_at("evaluate", 2, 6)],
        [{"mark": mark, "rank": 2, "generation": 2, "do": "SIGKILL"}],
    )
    outcome = drilled(tmp_path, "ddp.py", *arguments, strikes=strikes, marks=marks)
    nothing_shows(outcome, calm_run("ddp.py", *arguments).digests, faults=2, rungs={"respawn"})
    assert evaluations(outcome) == evaluations(calm_run("ddp.py", *arguments)), str(outcome)


@pytest.mark.drill
def test_an_exception_in_a_phase_repeats_it_in_place(tmp_path: Path, calm_run: CalmRun) -> None:
    arguments = ("--evaluate", 3)
    outcome = drilled(
        tmp_path,
        "ddp.py",
        *arguments,
        strikes=[{"at": "evaluate", "rank": 1, "step": 6, "do": "raise"}],
    )
    nothing_shows(outcome, calm_run("ddp.py", *arguments).digests, faults=1, rungs={"repeat"})
    assert evaluations(outcome) == evaluations(calm_run("ddp.py", *arguments)), str(outcome)


@pytest.mark.drill
@pytest.mark.parametrize("flags", [(), ("--checkpoint-every", 3)], ids=["no copy", "a checkpoint"])
@pytest.mark.parametrize("rank", [-1, 1])
def test_an_exception_that_always_comes_in_a_phase_ends_the_run(
    tmp_path: Path, rank: int, flags: tuple[str | int, ...]
) -> None:
    """A restart of all ranks would leave the phase out, and the run would end well without it.

    It would begin from the checkpoint of the step before the phase, if there is one.
    """
    outcome = drilled(
        tmp_path,
        "ddp.py",
        "--evaluate",
        3,
        workers=2,
        flags=flags,
        strikes=[{"at": "evaluate", "rank": rank, "step": 6, "do": "raise", "always": True}],
    )
    if rank == -1:
        assert "would leave that phase out" in outcome.stderr, str(outcome)
        assert all(one["rung"] != "restart" for one in outcome.interruptions), str(outcome)
    assert outcome.code == 1, str(outcome)
    assert outcome.last_step == 6, str(outcome)
    assert "Traceback (most recent call last)" in outcome.stderr, str(outcome)
    assert "Struck: struck at evaluate" in outcome.stderr, str(outcome)


# --- how the script is made -----------------------------------------------------------------------


@pytest.mark.drill
@pytest.mark.parametrize("place", ["start", "forward", "passed", "committed"])
@pytest.mark.parametrize(
    ("arguments", "rung"),
    [
        (("--collectives",), "respawn"),
        (("--collectives", "--main"), "respawn"),
        (("--main",), "respawn"),
    ],
)
def test_collectives_before_the_steps_restart_all_but_lose_no_step(
    tmp_path: Path, calm: Calm, arguments: tuple[str, ...], rung: str, place: str
) -> None:
    """Outside outlast.main all ranks restart from what one survivor hands over. Inside it, the
    function is entered again.
    """
    if place == "start":
        fault = {"at": place, "do": "SIGKILL"}
    else:
        fault = kill_at(place, 2, 6)
    outcome = drilled(
        tmp_path, "ddp.py", *arguments, **{"marks" if place in MARKS else "strikes": [fault]}
    )
    nothing_shows(outcome, calm(*arguments), faults=1)
    if place != "start":
        assert outcome.interruptions[0]["rung"] == rung, str(outcome)
        processes = {pid for _, _, pid in outcome.commits}
        if arguments == ("--collectives",):
            assert len(processes) == 8, str(outcome)
        else:
            replaced = outcome.interruptions[0]["ranks"]
            assert len(processes) == 4 + len(replaced), str(outcome)
            # a survivor's send may meet the dead peer's reset, which gloo ignores (see wake.py);
            # then the survivor is replaced too
            assert len(replaced) <= 2, str(outcome)


@pytest.mark.drill
def test_the_transfer_image_that_all_depend_on_is_not_written_again(
    tmp_path: Path, calm: Calm
) -> None:
    """All ranks enter main again and drop their state, and the successor dies while it restores.

    If a donor wrote the image again now, and died, nothing would be left.
    """
    arguments = ("--collectives", "--main")
    drill = Drill(
        tmp_path,
        "ddp.py",
        *arguments,
        strikes=[kill_at("forward", 2, 6)],
        marks=[
            {"mark": "restoring", "rank": 2, "generation": 2, "do": "SIGKILL"},
            {"mark": "donating", "rank": 0, "generation": 3, "do": "SIGKILL"},
        ],
    )
    with drill:
        outcome = drill.finish()
    assert drill.fired(0), str(outcome)
    assert not drill.fired(1), str(outcome)
    nothing_shows(outcome, calm(*arguments), faults=2)


@pytest.mark.drill
def test_a_donor_that_dies_while_it_writes_again_loses_no_step(tmp_path: Path, calm: Calm) -> None:
    """At the third failure at one step the image is written again, in case it causes the failure.

    The new image is written beside the existing one. A kill from outside does not count against an
    image, so rank 2 ends by a fault of its own.
    """
    arguments = ("--collectives", "--main")
    restoring = [
        {"mark": "restoring", "rank": 2, "generation": generation, "do": "SIGSEGV"}
        for generation in (2, 3)
    ]
    donating = {"mark": "donating", "rank": 0, "generation": 4, "do": "SIGKILL"}
    with Drill(
        tmp_path,
        "ddp.py",
        *arguments,
        strikes=[{**kill_at("forward", 2, 6), "do": "SIGSEGV"}],
        marks=[*restoring, donating],
    ) as drill:
        outcome = drill.finish()
    assert all(drill.fired(number) for number in range(3)), str(outcome)
    nothing_shows(outcome, calm(*arguments), faults=4)


@pytest.mark.drill
def test_a_killed_loader_worker_is_one_interruption_and_named(
    tmp_path: Path, calm_run: CalmRun
) -> None:
    """Whatever the rank does at that moment, the death is reported where the next batch is
    fetched.
    """
    arguments = ("--steps", 200, "--step-s", 0.0, "--loaders", 2)
    expected = calm_run("quick.py", *arguments, workers=2)
    with Drill(tmp_path, "quick.py", *arguments, workers=2) as drill:
        drill.until(lambda: drill.oldest_of(2) >= 20, "step 20 on both ranks")
        rank = drill.pid_of(1)
        worker = int(Path(f"/proc/{rank}/task/{rank}/children").read_text().split()[0])
        os.kill(worker, signal.SIGKILL)
        outcome = drill.finish()
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == expected.digests, str(outcome)
    (only,) = outcome.interruptions
    assert (only["ranks"], only["mechanism"], only["rung"]) == ([1], "exception", "repeat"), only
    said = f"Rank 1 (pid {rank}) lost a worker of its DataLoader (pid {worker}), which was killed"
    assert f"{said} by signal 9 (SIGKILL)" in outcome.stderr, str(outcome)
    outcome.ledger_is_sound()
