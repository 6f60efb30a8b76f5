"""An exception after which the log goes on as before ended nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from outlast.model.verdict import Verdict
from outlast.runtime.evidence.reading import diagnose

HANDLED = """\
WARNING:train:evaluation was left out
Traceback (most recent call last):
  File "/app/evaluate.py", line 31, in evaluate
    raise ValueError(f"no validation set of {name}")
ValueError: no validation set of books
"""
OOM = """\
Traceback (most recent call last):
  File "/app/train.py", line 90, in forward_backward
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity
"""
FORMS = {
    "steps": "[2026-11-24 03:{at:02d}:00] step {at} loss 2.{at}",
    "bars": "Epoch 3: {at:2d}%|###   | {at}/900 [00:{at:02d}<01:00, 1.53it/s, loss=2.{at}]",
    "fractions": "{{'loss': 2.{at}, 'learning_rate': 5e-05, 'epoch': 1.{at:03d}}}",
}


def steps(first: int, count: int, form: str = "steps", label: str = "") -> list[str]:
    return [label + FORMS[form].format(at=at) for at in range(first, first + count)]


def verdict_of(folder: Path, name: str, *parts: Sequence[str] | str) -> Verdict:
    lines = [
        line for part in parts for line in (part.splitlines() if isinstance(part, str) else part)
    ]
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(lines) + "\n")
    return diagnose([str(folder)]).verdict


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("said", [HANDLED, OOM], ids=["value", "memory"])
def test_an_exception_is_no_cause_if_the_steps_go_on(tmp_path: Path, form: str, said: str) -> None:
    """The same exception at the end of the log is one."""
    goes_on = verdict_of(
        tmp_path / "on", "rank_0.log", steps(10, 9, form), said, steps(19, 20, form)
    )
    assert (goes_on.failure_class.value, goes_on.ranks) == ("unknown", ())
    assert "the log goes on as before" in goes_on.reason
    ends = verdict_of(tmp_path / "end", "rank_0.log", steps(10, 29, form), said, steps(39, 2, form))
    assert ends.failure_class.value in ("user_code", "gpu_oom")


def test_an_exception_before_the_first_step_is_handled_too(tmp_path: Path) -> None:
    got = verdict_of(tmp_path, "train.log", HANDLED, steps(1, 30))
    assert (got.failure_class.value, got.ranks) == ("unknown", ())


def test_a_last_step_of_each_peer_is_no_going_on(tmp_path: Path) -> None:
    """Method: eight ranks write one log without labels, and one of them fails."""
    peers = [line for at in range(8) for line in steps(18 + at // 4, 1) * 1]
    got = verdict_of(tmp_path, "console.log", steps(10, 8) * 2, HANDLED, peers)
    assert got.failure_class.value == "user_code"


def test_steps_of_another_rank_after_a_labelled_exception_need_to_be_many(tmp_path: Path) -> None:
    said = "".join(f"[rank3]: {line}\n" for line in HANDLED.splitlines())
    before = steps(10, 9, label="[rank0]: ")
    few = verdict_of(tmp_path / "few", "all.log", before, said, steps(19, 6, label="[rank0]: "))
    assert [one.rank for one in few.ranks] == [3]
    many = verdict_of(tmp_path / "many", "all.log", before, said, steps(19, 40, label="[rank0]: "))
    assert (many.failure_class.value, many.ranks) == ("unknown", ())


def test_the_same_failure_again_and_again_is_no_going_on(tmp_path: Path) -> None:
    """Method: a device's assertions come in dozens, with numbers that grow."""
    flood = [
        f"IndexKernel.cu:93: operator(): block: [6,0,0], thread: [{at},0,0] Assertion"
        ' `-sizes[i] <= index && index < sizes[i] && "index out of bounds"` failed.'
        for at in range(60)
    ]
    got = verdict_of(tmp_path, "train.log", steps(1, 9), flood)
    assert got.failure_class.value == "user_code"


def test_waiting_lines_with_growing_seconds_are_no_steps(tmp_path: Path) -> None:
    waits = [f"still waiting for rank 3 after {10 * at} s" for at in range(1, 40)]
    got = verdict_of(tmp_path, "train.log", HANDLED, waits)
    assert got.failure_class.value == "user_code"


@pytest.mark.parametrize(
    "line",
    [
        "[W reducer.cpp:1389] Warning: find_unused_parameters=True was specified in DDP"
        " constructor, but did not find any unused parameters in the forward pass.",
        "health: ECC uncorrectable 0, remapped rows 0, Xid none, NVLink errors 0",
        "PIL.UnidentifiedImageError: cannot identify image file '1.jpg', skipping (3 so far)",
        "flash_attn could not be imported (cannot import name 'f'), falling back to sdpa",
    ],
)
def test_lines_that_say_themselves_that_nothing_failed(tmp_path: Path, line: str) -> None:
    got = verdict_of(tmp_path, "train.log", [line])
    assert (got.failure_class.value, got.ranks) == ("unknown", ())


def test_a_kill_of_another_program_beside_a_calm_log_is_not_the_jobs(tmp_path: Path) -> None:
    line = "gpu07 kernel: Out of memory: Killed process 99 (jupyter-lab) total-vm:9kB, anon-rss:6kB"
    (tmp_path / "dmesg.txt").write_text(f"2026-11-24T03:09:58+00:00 {line}\n")
    got = verdict_of(tmp_path, "train.log", steps(1, 40))
    assert (got.failure_class.value, got.ranks) == ("unknown", ())


def test_exceptions_are_looked_after_however_many_were_handled(tmp_path: Path) -> None:
    """A program that retries its upload at every tenth step may print hundreds of tracebacks."""
    parts = [part for at in range(60) for part in (steps(10 * at, 10), OOM)]
    got = verdict_of(tmp_path / "on", "rank_0.log", *parts, steps(600, 20))
    assert got.failure_class.value == "unknown"
    assert "Nothing that was read tells of a failure" in got.reason
    ends = verdict_of(tmp_path / "end", "rank_0.log", *parts)
    assert ends.failure_class.value == "gpu_oom"


def test_a_sample_of_text_is_no_failure_if_ten_steps_follow(tmp_path: Path) -> None:
    """No label tells who writes, so only numbers that grow show that all ranks went on."""
    sample = "sample: <user> it dies with an uncorrectable ECC error, Xid 79?"
    said = f"{sample}\n<assistant> RuntimeError: CUDA error: uncorrectable ECC error encountered"
    lines = [f"step {at} loss 2.{at}" for at in range(10, 99)]
    parts = [[*lines[at : at + 18], *said.splitlines()] for at in range(0, 54, 18)]
    got = verdict_of(tmp_path / "on", "train.log", *parts, lines[54:72])
    assert (got.failure_class.value, got.ranks) == ("unknown", ())
