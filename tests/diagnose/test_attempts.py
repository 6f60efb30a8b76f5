"""Two incidents in one folder, and a line of another run beside the dumps of this one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from outlast.model.records import Interruption
from outlast.model.terms import Mechanism
from outlast.runtime.evidence.reading import ReadDiagnosis, diagnose
from tests.diagnose._gloo_dump import all_reduce, dump_of

HOUR_NS = 3_600_000_000_000
NOW_NS = 1_795_246_423_000_000_000
PLACES = [folder / "shared" / "data" / "flight_recorder" for folder in Path(__file__).parents[3:]]
SHARED = next((place for place in PLACES if place.is_dir()), PLACES[0])
TRUTH = {"gpu_error_1st": {12, 14}, "lock_gil_1st": {9, 14}}
public_dumps = pytest.mark.skipif(not SHARED.is_dir(), reason="the dumps are not on this machine")


def dump(done: int, stands_in: int | None, at_ns: int) -> str:
    """A rank of gloo that has finished `done` all-reduces, and waits in another one or in none."""
    numbers = [*range(1, done + 1), *([stands_in] if stands_in else [])]
    return dump_of(
        all_reduce(seq, done=seq <= done, at_ns=at_ns + seq * 1_000_000) for seq in numbers
    )


def incident(folder: Path, culprit: int, at_ns: int, *, lost: tuple[int, ...] = ()) -> None:
    """Four ranks, of which one has not come to what the others wait in."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(4):
        if rank not in lost:
            text = dump(9, None if rank == culprit else 10, at_ns)
            (folder / f"fr_rank_{rank}").write_text(text)


def ranks(got: ReadDiagnosis) -> list[int]:
    return [one.rank for one in got.verdict.ranks]


@pytest.mark.parametrize("lost", [(), (0,), (2,), (0, 3)])
def test_of_two_incidents_in_one_folder_the_newer_is_diagnosed(
    tmp_path: Path, lost: tuple[int, ...]
) -> None:
    """Method: an hour apart; of the newer one, dumps are missing. An older dump fills no gap."""
    incident(tmp_path / "first", 1, NOW_NS - HOUR_NS)
    incident(tmp_path / "second", 2, NOW_NS, lost=lost)
    both, alone = diagnose([str(tmp_path)]), diagnose([str(tmp_path / "second")])
    assert ranks(both) == ranks(alone)
    assert [one.rank for one in both.verdict.suspects] == [
        one.rank for one in alone.verdict.suspects
    ]
    assert any("two incidents or attempts among the dumps" in note for note in both.notes)


def test_a_copy_of_the_dumps_is_no_second_incident(tmp_path: Path) -> None:
    incident(tmp_path / "here", 2, NOW_NS)
    shutil.copytree(tmp_path / "here", tmp_path / "copy")
    got = diagnose([str(tmp_path)])
    assert ranks(got) == [2]
    assert not any("incidents or attempts" in note for note in got.notes)


def test_of_torchruns_attempts_the_newest_is_diagnosed(tmp_path: Path) -> None:
    for attempt, rank, error in ((0, 1, "KeyError: 'x'"), (1, 3, "No module named 'apex'")):
        for other in range(4):
            folder = tmp_path / "logs" / "run_a" / f"attempt_{attempt}" / str(other)
            folder.mkdir(parents=True)
            text = "step 1\n"
            if other == rank:
                text += 'Traceback (most recent call last):\n  File "train.py", line 3, in f\n'
                text += f"ModuleNotFoundError: {error}\n" if attempt else f"{error}\n"
            (folder / "stderr.log").write_text(text)
    got = diagnose([str(tmp_path)])
    assert (got.verdict.failure_class.value, ranks(got)) == ("dependency", [3])
    assert any("earlier attempts" in note for note in got.notes)
    first = diagnose([str(tmp_path / "logs" / "run_a" / "attempt_0")])
    assert first.verdict.failure_class.value == "user_code"


def test_stacks_of_an_earlier_process_are_set_aside(tmp_path: Path) -> None:
    """Method: in the first attempt rank 1 worked and rank 0 waited; in the second, the reverse."""
    waits, works = "all_reduce (torch/distributed/distributed_c10d.py:2501)", "crunch (train.py:7)"
    for name, old_s, frames in (
        ("first", 600, (waits, works)),
        ("second", 0, (works, waits)),
    ):
        for rank, frame in enumerate(frames):
            path = tmp_path / name / f"stack_rank_{rank}.txt"
            path.parent.mkdir(exist_ok=True)
            pid = 100 + rank + old_s
            path.write_text(
                f'Process {pid}: python train.py\nThread {pid} (idle): "MainThread"\n'
                f"    {frame}\n    main (train.py:99)\n"
            )
            os.utime(path, (1_795_246_423 - old_s, 1_795_246_423 - old_s))
    assert ranks(diagnose([str(tmp_path)])) == [0]


@public_dumps
@pytest.mark.parametrize("said", ["RuntimeError: odd", "ValueError: no", "KeyError: 'x'"])
@pytest.mark.parametrize("name", TRUTH)
def test_a_line_of_another_run_does_not_move_the_blame(
    tmp_path: Path, name: str, said: str
) -> None:
    """Method: two public incidents of 16 ranks, and one line that says an innocent rank raised."""
    shutil.copytree(SHARED / name, tmp_path / "dumps", ignore=shutil.ignore_patterns("*.log"))
    alone = diagnose([str(tmp_path)])
    (tmp_path / "other.log").write_text(f"[rank0]: {said}\n")
    got = diagnose([str(tmp_path)])
    assert set(ranks(got)) == TRUTH[name]
    assert got.verdict.failure_class is alone.verdict.failure_class
    assert any("alive and waiting" in note for note in got.notes)


def test_dumps_from_long_before_the_job_ended_are_not_of_its_end(tmp_path: Path) -> None:
    """Method: rank 2 slept an hour before; then the job went on, and its launcher was ended.

    A job that hangs prints nothing after its dumps, so a log that was touched later shows nothing.
    """
    incident(tmp_path / "dumps", 2, NOW_NS - HOUR_NS)
    for path in (tmp_path / "dumps").iterdir():
        at_ns = NOW_NS - HOUR_NS + 60_000_000_000
        os.utime(path, ns=(at_ns, at_ns))
    logs = tmp_path / "logs" / "run" / "attempt_0"
    for rank in range(4):
        (logs / str(rank)).mkdir(parents=True)
        (logs / str(rank) / "stdout.log").write_text("step 9 done\n")
        os.utime(logs / str(rank) / "stdout.log", ns=(NOW_NS, NOW_NS))
    assert ranks(diagnose([str(tmp_path)])) == [2]
    (tmp_path / "launcher.log").write_text(
        "W1125 Received 15 death signal, shutting down workers\n"
    )
    got = diagnose([str(tmp_path)])
    assert ranks(got) == []
    assert any("go on long after" in note for note in got.notes)


def test_ranks_that_called_just_before_their_dumps_ran_then(tmp_path: Path) -> None:
    """A minute later the same dumps show a hang; in a job that ended by itself nothing follows."""
    incident(tmp_path / "dumps", 2, NOW_NS)
    for age_s, guilty in ((1.0, []), (60.0, [2])):
        for path in (tmp_path / "dumps").iterdir():
            at_ns = NOW_NS + 10_000_000 + int(age_s * 1e9)
            os.utime(path, ns=(at_ns, at_ns))
        got = diagnose([str(tmp_path)])
        assert ranks(got) == guilty
        assert ("the job ran on" in got.verdict.reason) == (not guilty)
    for path in (tmp_path / "dumps").iterdir():
        os.utime(path, ns=(NOW_NS + 1_000_000_000, NOW_NS + 1_000_000_000))
    (tmp_path / "launcher.log").write_text("traceback : Signal 9 (SIGKILL) received by PID 7\n")
    assert "the job ran on" not in diagnose([str(tmp_path)]).verdict.reason
    (tmp_path / "launcher.log").write_text(
        "W1125 Received 15 death signal, shutting down workers\n"
    )
    assert "the job ran on" in diagnose([str(tmp_path)]).verdict.reason, "until it was ended"


def test_a_hang_that_the_run_has_seen_is_one_however_soon_it_was_found(
    tmp_path: Path,
) -> None:
    """Method: outlast looks once its deadline has passed, here a second after the last call."""
    incident(tmp_path / "dumps", 2, NOW_NS)
    for path in (tmp_path / "dumps").iterdir():
        os.utime(path, ns=(NOW_NS + 1_000_000_000, NOW_NS + 1_000_000_000))
    for mechanism, guilty in ((Mechanism.SIGNAL, False), (Mechanism.HANG, True)):
        about = Interruption(1, mechanism, 9.0, ranks=(2,)).public(began_s=0.0)
        seen = {"schema": 1, "outlast": "standing", "interruption": about, "processes": []}
        (tmp_path / "standing.json").write_text(json.dumps(seen))
        assert ("the job ran on" not in diagnose([str(tmp_path)]).verdict.reason) == guilty
