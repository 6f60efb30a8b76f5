"""Folders of jobs with many ranks, whose lines stand in one log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.model.verdict import Verdict
from outlast.runtime.evidence.reading import diagnose

LABELS: dict[str, Callable[[int], str]] = {
    "torch": lambda rank: f"[rank{rank}]: ",
    "tee": lambda rank: f"[default{rank}]:",
    "srun": lambda rank: f"{rank:2d}: ",
    "none": lambda rank: "",
}
CUDA = """\
torch.AcceleratorError: CUDA error: invalid device function
CUDA kernel errors might be asynchronously reported at some other API call.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."""


def raised(said: str) -> str:
    return f"""\
Traceback (most recent call last):
  File "/app/train.py", line 12, in <module>
    main(cfg)
  File "/app/train.py", line 97, in main
    step(x)
{said}"""


def labelled(label: str, text: str) -> str:
    return "".join(f"{label}{line}\n" for line in text.splitlines())


def verdict_of(folder: Path, text: str) -> Verdict:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "out.log").write_text(text)
    return diagnose([str(folder)]).verdict


def ranks_of(verdict: Verdict) -> list[int]:
    return [one.rank for one in verdict.ranks]


@pytest.mark.parametrize("label", LABELS)
def test_what_all_ranks_raise_is_no_sign_that_the_job_goes_on(tmp_path: Path, label: str) -> None:
    """The lines between two such exceptions come again and again, and are no progress."""
    for count in (16, 64):
        text = "".join(labelled(LABELS[label](rank), raised(CUDA)) for rank in range(count))
        got = verdict_of(tmp_path / str(count), text)
        assert (got.failure_class.value, ranks_of(got)) == ("software_bug", [])
        assert "goes on" not in got.reason


def test_numbers_of_ranks_and_processes_are_no_steps(tmp_path: Path) -> None:
    """A launcher's table of 16 ranks grows as steps do, and so do the pids that it kills."""
    failed = labelled("[rank3]: ", raised("ValueError: bad"))
    entry = (
        "[{0}]:\n  time      : 2026-11-24_03:40:12\n  host      : h\n  rank      : {0} (local_rank:"
        " {0})\n  exitcode  : -6 (pid: 22{0:02d})\n  error_file: <N/A>\n"
        "  traceback : Signal 6 (SIGABRT) received by PID 22{0:02d}\n"
    )
    closings = {
        "table": "Failures:\n" + "".join(map(entry.format, range(16))),
        "kills": "".join(
            f"[INFO] [launch.py:319] Killing subprocess {9120 + at}\n" for at in range(16)
        ),
        "warned": "".join(
            f"[rank{at}]:[W1124] Warning: rank {at} has pending work\n" for at in range(32)
        ),
    }
    for name, after in closings.items():
        got = verdict_of(tmp_path / name, failed + after)
        assert (got.failure_class.value, ranks_of(got)) == ("user_code", [3]), name


@pytest.mark.parametrize("label", ["torch", "srun", "none"])
def test_one_more_step_of_many_ranks_is_no_training_that_goes_on(
    tmp_path: Path, label: str
) -> None:
    """The others print their steps until they notice that rank 3 is gone."""

    def steps(first: int, last: int, *, gone: int = -1) -> str:
        return "".join(
            f"{LABELS[label](rank)}INFO rank={rank} step={step} loss=2.2\n"
            for step in range(first, last)
            for rank in range(64)
            if rank != gone
        )

    own = LABELS[label](3) or "[rank3]: "
    failed = labelled(own, raised("ValueError: bad"))
    got = verdict_of(tmp_path / "failed", steps(0, 6) + failed + steps(6, 8, gone=3))
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [3])
    handled = verdict_of(tmp_path / "handled", steps(0, 6) + failed + steps(6, 36))
    assert handled.reason.startswith("Nothing that was read tells of a failure")


def timed_out(rank: int) -> str:
    return (
        f"[rank{rank}]:[E1124 03:40:0{rank}.221 ProcessGroupNCCL.cpp:685] [Rank {rank}] Watchdog"
        " caught collective operation timeout: WorkNCCL(SeqNum=9011, OpType=ALLREDUCE, NumelIn=8,"
        " NumelOut=8, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
    )


ENTRY = (
    "[0]:\n  time      : 2026-11-24_03:40:12\n  host      : h\n"
    "  rank      : {0} (local_rank: {0})\n"
    "  exitcode  : {1} (pid: 22{0:02d})\n  error_file: <N/A>\n  traceback : none\n"
)
FAILURES, ROOT = "Failures:\n", "Root Cause (first observed failure):\n"


def test_a_rank_that_only_printed_is_what_the_others_waited_for(tmp_path: Path) -> None:
    """The table of the launcher lists the ranks that their watchdogs aborted."""
    waits = "".join(timed_out(rank) for rank in range(7))
    text = "[rank7]: INFO epoch 0 is done\n" + waits
    assert ranks_of(verdict_of(tmp_path / "log", text)) == [7]
    aborted = "".join(ENTRY.format(rank, -6) for rank in range(1, 7))
    table = f"{FAILURES}{aborted}{ROOT}{ENTRY.format(0, -6)}{'=' * 60}\n"
    assert ranks_of(verdict_of(tmp_path / "table", text + table)) == [7]


def test_an_abort_by_the_watchdog_is_a_hang(tmp_path: Path) -> None:
    waits = "".join(timed_out(rank) for rank in range(4))
    for rank, code, mechanism in ((1, -6, "hang"), (4, -9, "signal")):
        text = f"{waits}{FAILURES}{ROOT}{ENTRY.format(rank, code)}{'=' * 60}\n"
        got = verdict_of(tmp_path / str(code), text)
        assert got.mechanism is not None
        assert got.mechanism.value == mechanism


def test_srun_tells_the_node_of_a_rank_that_it_started_itself(tmp_path: Path) -> None:
    text = labelled("[rank9]: ", raised("OSError: [Errno 116] Stale file handle: 'a'"))
    ended = "srun: error: c3-14: task 9: Exited with exit code 1\n"
    assert verdict_of(tmp_path / "ranks", text + ended).nodes == ("c3-14",)
    launcher = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    assert verdict_of(tmp_path / "launchers", text + launcher + ended).nodes == ()


def test_torchs_label_goes_before_that_of_a_tee(tmp_path: Path) -> None:
    """Torchrun's label is a local rank: rank 17 is the second one of its node."""
    text = labelled("[default1]:[rank17]: ", raised("KeyError: 'attention_mask'"))
    got = verdict_of(tmp_path, text)
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [17])


def test_the_last_words_of_a_rank_that_left_are_shown(tmp_path: Path) -> None:
    said = "[rank2]: vocabulary of 32000 and not 32064, giving up\n"
    table = f"{FAILURES}{ROOT}{ENTRY.format(2, 3)}{'=' * 60}\n"
    got = verdict_of(tmp_path, said + table)
    assert ranks_of(got) == [2]
    assert "its log ends: [rank2]: vocabulary of 32000" in got.reason
