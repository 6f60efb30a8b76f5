"""Where logs end: what can be known of a job that hangs and printed nothing about it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.diagnose.log_ends import read_ends, with_ends
from outlast.model.verdict import Verdict
from tests.diagnose._written import verdict_of

NOTHING = "Nothing that was read tells of a failure."


def clock(second: int) -> str:
    return f"2026-11-24 {3 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"


def steps(last: int, *, first: int = 0, label: str = "", every_s: int = 0, end: str = "\n") -> str:
    times = (f"{clock(at * every_s)} INFO " if every_s else "" for at in range(first, last + 1))
    lines = [f"{label}{time}step: {first + at} loss: 2.2" for at, time in enumerate(times)]
    return "\n".join(lines) + end


def ranks_of(count: int, late: Iterable[int], *, last: int = 40) -> dict[str, str]:
    odd = set(late)
    return {f"log/rank_{one}.log": steps(last - (one in odd)) for one in range(count)}


def says_nothing_of_guilt(verdict: Verdict) -> bool:
    return verdict.failure_class.value == "unknown" and not (verdict.ranks or verdict.suspects)


def test_the_rank_that_is_a_step_behind_is_the_one_to_look_at(tmp_path: Path) -> None:
    """A job that runs on looks like this, too: no class and no rank follows from it."""
    got = verdict_of(tmp_path, ranks_of(8, [5]))
    assert says_nothing_of_guilt(got)
    assert "The log of rank 5 ends at step 39, and those of the other 7 at step 40" in got.reason
    assert "look at rank 5 first" in got.action
    assert "outlast diagnose --collect" in got.action


def test_ranks_of_one_mixed_log_are_told_apart_by_their_labels(tmp_path: Path) -> None:
    lines = [
        f"[rank{rank}]: iter {at} loss 2.2\n"
        for at in range(40)
        for rank in (3, 1, 0, 2)
        if (at, rank) != (39, 1)
    ]
    got = verdict_of(tmp_path, {"train.log": "".join(lines)})
    assert says_nothing_of_guilt(got)
    assert "The log of rank 1 ends at step 38" in got.reason


def test_labels_of_one_node_are_not_ranks_of_the_job(tmp_path: Path) -> None:
    """Torchrun's --tee and srun count anew on each node."""
    text = "".join(
        f"[default{one}]:step {at} loss 2\n"
        for at in range(30)
        for one in range(4)
        if (at, one) != (29, 3)
    )
    got = verdict_of(tmp_path, {"n0.log": text, "n1.log": text.replace("[default3]", "[default2]")})
    assert "rank 3" not in got.reason
    assert says_nothing_of_guilt(got)


def test_logs_that_end_alike_do_not_tell_the_ranks_apart(tmp_path: Path) -> None:
    got = verdict_of(tmp_path / "alike", ranks_of(4, []))
    assert got.reason.startswith(f"{NOTHING} All 4 logs end at step 40.")
    assert "squeue" in got.next_test
    most = verdict_of(tmp_path / "most", ranks_of(4, [0, 1, 2]))
    assert "4 logs end at steps 39 to 40" in most.reason
    assert "look at" not in most.action


@pytest.mark.parametrize(
    "end",
    [
        "Training complete. Saving final model\n",
        "{'train_runtime': 812.1, 'train_samples_per_second': 9.1}\n",
        "[2026-11-24 03:10:00,000] [INFO] [launch.py:350:main] Process 7 exits successfully.\n",
        "step 500/500 loss 2.2\n" * 2 + "step: 40 loss: 2.2\n",
    ],
)
def test_a_job_that_says_that_it_ended_does_not_hang(tmp_path: Path, end: str) -> None:
    """Only the last one does not say so: a step of another form is none of these."""
    files = ranks_of(4, [2])
    files["log/rank_0.log"] += end
    got = verdict_of(tmp_path, files)
    assert (got.reason == NOTHING) == ("500/500" not in end)


def test_a_bar_that_stops_says_how_far_it_came(tmp_path: Path) -> None:
    """A long bar is all that is within the end of the file."""
    for name, count in (("short", 100), ("long", 3_000)):
        bar = "".join(f"\r 9%|##   | {at}/9000 [01:02<1:10,  1.98s/it]" for at in range(1, count))
        got = verdict_of(tmp_path / name, {"nohup.out": f"start\n{bar}"})
        assert f"nohup.out ends at step {count - 1} of 9000" in got.reason, name
    done = "".join(f"\r{at}%|##   | {at}/100 [01:02<1:10,  1.98s/it]" for at in range(101))
    assert verdict_of(tmp_path / "done", {"nohup.out": done}).reason == NOTHING


LIMIT = "slurmstepd: error: *** JOB 7 ON n17 CANCELLED AT 2026-11-24T{} DUE TO TIME LIMIT ***\n"


def test_a_job_that_stood_still_did_not_need_more_time(tmp_path: Path) -> None:
    """Steps come each second until 03:06:40. At a whole hour the clocks may be of two zones."""
    text = steps(400, every_s=1)
    got = verdict_of(tmp_path / "still", {"slurm-7.out": text + LIMIT.format("03:40:00")})
    assert (got.failure_class.value, got.mechanism and got.mechanism.value) == ("unknown", "hang")
    assert "had stood still" in got.reason
    assert "was 33 m 20 s old" in got.reason
    for name, at in (("went_on", "03:06:42"), ("zone", "04:06:42"), ("save", "03:09:00")):
        went_on = verdict_of(tmp_path / name, {"slurm-7.out": text + LIMIT.format(at)})
        assert went_on.failure_class.value == "host_maintenance", name
        assert "ask for more time" in went_on.action, name
    timeless = verdict_of(tmp_path / "none", {"slurm-7.out": steps(400) + LIMIT.format("03:40:00")})
    assert timeless.failure_class.value == "host_maintenance"


def test_lines_of_closing_down_are_no_sign_of_life(tmp_path: Path) -> None:
    closing = f"{clock(2_399)} INFO caught SIGTERM, closing the loader\n"
    files = {"slurm-7.out": steps(400, every_s=1) + closing + LIMIT.format("03:40:00")}
    assert "had stood still" in verdict_of(tmp_path, files).reason


def test_a_launcher_that_was_stopped_by_hand_ended_a_hang(tmp_path: Path) -> None:
    """Torchrun's own lines have no year."""
    stop = (
        "W1124 03:40:00.113000 2190 torch/distributed/elastic/agent/server/api.py:719] Received"
        " Signals.SIGINT death signal, shutting down workers\n"
    )
    files = {f"rank_{one}.log": steps(400 - (one == 2), every_s=1) for one in range(4)}
    got = verdict_of(tmp_path, {**files, "launcher.log": stop})
    assert (got.failure_class.value, got.mechanism and got.mechanism.value) == ("unknown", "hang")
    assert "The log of rank 2 ends at step 399" in got.reason
    assert got.ranks == ()


def test_who_fell_silent_first_is_told_where_steps_are_alike(tmp_path: Path) -> None:
    alive = "".join(f"{clock(at)} INFO waits for its peers\n" for at in range(402, 800, 2))
    files = {f"pod-{one}.log": steps(400, every_s=1) + alive for one in range(4)}
    files["pod-3.log"] = steps(400, every_s=1)
    got = verdict_of(tmp_path / "one", files)
    assert says_nothing_of_guilt(got)
    assert "pod-3.log ends 6 m 38 s before those of the others" in got.reason
    files = {
        f"pod-{one}.log": steps(400, every_s=1) + alive[: 5_000 * one + 500] for one in range(4)
    }
    scattered = verdict_of(tmp_path / "scattered", files)
    assert "before those of the others" not in scattered.reason


def test_output_that_is_buffered_is_not_compared(tmp_path: Path) -> None:
    files = {f"rank_{one}.log": steps(40 + 7 * one, end="\nstep: 99 lo") for one in range(4)}
    got = verdict_of(tmp_path, files)
    assert "PYTHONUNBUFFERED=1" in got.reason
    assert "look at" not in got.action


def test_ranks_that_print_at_other_intervals_are_not_compared(tmp_path: Path) -> None:
    files = {"rank_0.log": steps(95)}
    files |= {
        f"rank_{one}.log": "".join(f"step: {at}\n" for at in range(0, 90, 10)) for one in (1, 2)
    }
    got = verdict_of(tmp_path, files)
    assert "looks like a hang in which" not in got.reason


def test_an_older_attempt_is_no_rank_that_is_behind(tmp_path: Path) -> None:
    files = {f"r/attempt_1/{one}/stdout.log": steps(40) for one in range(4)}
    files |= {f"r/attempt_0/{one}/stdout.log": steps(900 - one) for one in range(4)}
    assert "All 4 logs end at step 40" in verdict_of(tmp_path, files).reason


def test_a_failure_that_is_told_goes_before_the_ends_of_logs(tmp_path: Path) -> None:
    files = ranks_of(4, [2])
    files["log/rank_1.log"] += (
        'Traceback (most recent call last):\n  File "/app/train.py", line 7, in main\n    x()\n'
        "ValueError: nothing to read\n"
    )
    got = verdict_of(tmp_path, files)
    assert [one.rank for one in got.ranks] == [1]
    assert "step 39" not in got.reason


LINES = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.builds(
            lambda a, b, c: f"{a}{b} {c}/10".encode(),
            st.sampled_from(["", "[rank3]: ", "2: ", "2026-11-24 03:00:00 ", "[default1]:"]),
            st.sampled_from(["step", "iter", "batch:", "x_step=", "updates"]),
            st.integers(0, 10**9),
        ),
    ),
    max_size=40,
)


@given(st.dictionaries(st.sampled_from(["a", "rank_1.log", "attempt_2/3/x"]), LINES, max_size=3))
def test_no_end_of_a_log_can_break_the_reading(logs: dict[str, list[bytes]]) -> None:
    ends = [one for name, lines in logs.items() for one in read_ends(name, lines)]
    found = with_ends([], ends)
    assert all(one.failure_class is None and one.rank is None for one in found)
