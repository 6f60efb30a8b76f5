"""Ranks that live and do not move are found by their beacons, killed and replaced. A process that
wakes up later is not admitted again.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.drills._run import Drill, Fault, Outcome, drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(150)]
STEPS = ("--steps", 30)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    outcome = drilled(tmp_path_factory.mktemp("calm"), "ddp.py", *STEPS)
    assert outcome.code == 0, str(outcome)
    assert outcome.interruptions == [], str(outcome)
    return outcome.digests


def replaced(outcome: Outcome, expected: dict[int, str], *, ranks: list[int]) -> None:
    """Check for one interruption by a hang of these ranks, no committed step lost, and the same
    bits.
    """
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == expected, str(outcome)
    outcome.ledger_is_sound()
    found = [(one["mechanism"], one["ranks"]) for one in outcome.interruptions]
    assert found == [("hang", ranks)], str(outcome)


def at(place: str, do: str, rank: int = 2, step: int = 10) -> Fault:
    return {"at": place, "rank": rank, "step": step, "do": do}


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_stopped_rank_is_replaced_and_does_not_come_back(
    tmp_path: Path, expected: dict[int, str]
) -> None:
    """Method: SIGSTOP from outside, and SIGCONT as soon as the successor has committed.

    The old process commits nothing more, because it is dead by then.
    """
    with Drill(tmp_path, "ddp.py", *STEPS, flags=("--spares", 1)) as drill:
        drill.until(lambda: drill.step >= 8, "step 8")
        old = drill.pid_of(2)
        os.kill(old, signal.SIGSTOP)
        drill.until(lambda: drill.pid_of(2) != old, "a commit by the successor")
        assert ended(old), "its successor took the rank while it was there"
        last = max(step for _, step, pid in drill.commits if pid == old)
        outcome = drill.finish()
    replaced(outcome, expected, ranks=[2])
    assert max(step for _, step, pid in outcome.commits if pid == old) == last
    assert outcome.interruptions[0]["rung"] in ("spare", "respawn")


def test_a_stop_that_is_over_at_once_is_no_interruption(
    tmp_path: Path, expected: dict[int, str]
) -> None:
    with Drill(tmp_path, "ddp.py", *STEPS) as drill:
        drill.until(lambda: drill.step >= 8, "step 8")
        pid = drill.pid_of(2)
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
        outcome = drill.finish()
    assert outcome.interruptions == [], str(outcome)
    assert outcome.digests == expected, str(outcome)


@pytest.mark.parametrize("place", ["forward", "backward", "before_optimizer", "apply", "tail"])
def test_a_rank_that_stops_itself_at_any_place(
    tmp_path: Path, expected: dict[int, str], place: str
) -> None:
    replaced(
        drilled(tmp_path, "ddp.py", *STEPS, strikes=[at(place, "SIGSTOP")]), expected, ranks=[2]
    )


def test_a_thread_that_holds_the_interpreter_lock_for_ever(
    tmp_path: Path, expected: dict[int, str]
) -> None:
    """The listener of such a rank cannot answer the ping."""
    replaced(
        drilled(tmp_path, "ddp.py", *STEPS, strikes=[at("forward", "gil")]), expected, ranks=[2]
    )


@pytest.mark.parametrize("place", ["forward", "backward", "before_optimizer"])
def test_a_rank_that_sleeps_in_the_body_is_told_from_waiting_ranks(
    tmp_path: Path, expected: dict[int, str], place: str
) -> None:
    replaced(drilled(tmp_path, "ddp.py", *STEPS, strikes=[at(place, "sleep")]), expected, ranks=[2])


def test_a_rank_that_sleeps_after_its_optimizer(tmp_path: Path, expected: dict[int, str]) -> None:
    """The peers are one step ahead, and wait in the first collective of the next step."""
    replaced(
        drilled(tmp_path, "ddp.py", *STEPS, strikes=[at("tail", "sleep")]), expected, ranks=[2]
    )


def test_a_loader_that_blocks(tmp_path: Path, expected: dict[int, str]) -> None:
    replaced(
        drilled(tmp_path, "ddp.py", *STEPS, strikes=[at("load", "sleep")]), expected, ranks=[2]
    )


def test_a_loader_whose_worker_process_blocks(tmp_path: Path, expected: dict[int, str]) -> None:
    """The main thread waits for a DataLoader worker that will not answer.

    Loader workers know neither rank nor step: the first one that reaches its 20th item blocks.
    """
    outcome = drilled(
        tmp_path,
        "ddp.py",
        *STEPS,
        "--loaders",
        2,
        strikes=[{"at": "load", "visit": 20, "do": "sleep"}],
    )
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == expected, str(outcome)
    outcome.ledger_is_sound()
    assert [one["mechanism"] for one in outcome.interruptions] == ["hang"], str(outcome)


@pytest.mark.parametrize("mark", ["voting", "applied", "sealing"])
def test_a_rank_that_stops_inside_the_transaction(
    tmp_path: Path, expected: dict[int, str], mark: str
) -> None:
    fault = {"mark": mark, "rank": 1, "step": 10, "do": "SIGSTOP"}
    replaced(drilled(tmp_path, "ddp.py", *STEPS, marks=[fault]), expected, ranks=[1])


@pytest.mark.parametrize(
    ("mark", "rank"), [("grouping", 1), ("grouped", 3), ("grouping", 2), ("restoring", 2)]
)
def test_a_rank_that_stops_while_another_is_replaced(
    tmp_path: Path, expected: dict[int, str], mark: str, rank: int
) -> None:
    """Method: rank 2 is killed. A survivor, or its successor, is stopped on the way into the next
    generation.
    """
    marks = [{"mark": mark, "rank": rank, "generation": 2, "do": "SIGSTOP"}]
    outcome = drilled(tmp_path, "ddp.py", *STEPS, strikes=[at("forward", "SIGKILL")], marks=marks)
    assert outcome.code == 0, str(outcome)
    assert outcome.digests == expected, str(outcome)
    outcome.ledger_is_sound()
    first, second = outcome.interruptions
    assert (second["mechanism"], second["ranks"], second["parent"]) == (
        "hang",
        [rank],
        first["id"],
    ), str(outcome)
