"""Whose a line is: the launcher's, a pipe's to a child, a stack's, a warning, or the job's own failure."""

from __future__ import annotations

import pytest

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs import read_lines
from outlast.diagnose.stacks import Stack
from outlast.model.verdict import Role

SITE = "/srv/venv/lib/python3.11/site-packages/torch/distributed"
JSON = "/usr/lib/python3.11/json/decoder.py"


def found(text: str, name: str = "log") -> list[Finding]:
    return list(read_lines(text.encode().splitlines(keepends=True), name=name))


def raised(line: str, *paths: str) -> str:
    return "Traceback (most recent call last):\n" + "".join(f'  File "{path}", line 3, in call\n    call()\n' for path in paths) + line + "\n"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (raised("json.decoder.JSONDecodeError: Expecting value: line 1", f"{SITE}/run.py", f"{SITE}/elastic/multiprocessing/errors/__init__.py", JSON),
         "elastic.stumbled"),
        (raised("json.decoder.JSONDecodeError: Expecting value: line 1", f"{SITE}/elastic/multiprocessing/errors/__init__.py", "/srv/train.py", JSON),
         "data.broken"),
        (raised("ConnectionResetError: [Errno 104] Connection reset by peer", "/srv/train.py", "/usr/lib/python3.11/multiprocessing/connection.py"),
         "python.group_down"),
        (raised("ConnectionResetError: [Errno 104] Connection reset by peer", "/srv/train.py", f"{SITE}/distributed_c10d.py"), "store.broken"),
        (raised("RuntimeError: whatever it says", "/srv/train.py", f"{SITE}/distributed_c10d.py"), "c10d.backend_error"),
        (raised("RuntimeError: whatever it says", "/srv/train.py"), "python.user_runtime"),
    ],
    ids=["the launcher's", "a worker's below the launcher's wrapper", "a child's pipe", "a peer's socket", "a collective's", "the job's"],
)  # fmt: skip
def test_an_exception_is_whose_frames_it_was_raised_in(text: str, rule: str) -> None:
    assert [one.rule for one in found(text) if one.evidence.line == text.count("\n")] == [rule]


@pytest.mark.parametrize("stamp", ["W", "W1122 08:29:36.123456789", "W101 00:00:00.1"])
def test_a_warning_of_a_name_that_is_not_found_is_advice(stamp: str) -> None:
    (one,) = found(f"[{stamp} socket.cpp:752] [c10d] The hostname of the client socket cannot be retrieved. err=-3\n")
    assert one.evidence.role is Role.ADVICE


def test_a_frame_of_torch_distributed_in_a_stack_is_no_error_of_it() -> None:
    stack = f'Thread 0x00007f1617fff6c0 (most recent call first):\n  File "{SITE}/distributed_c10d.py", line 3 in recv\n  File "train.py", line 9 in <module>\n'
    assert [one.rule for one in found(stack)] == ["stack.waiting"]


def test_the_name_of_a_folder_is_no_bucket() -> None:
    assert not [one for one in found("  error_file: /tmp/logs/a_qf4wgs3r/attempt_0/1/error.json\n") if one.rule == "object.store"]
    assert [one.rule for one in found("botocore: s3 read timeout\n")] == ["object.store"]


def test_a_thread_that_was_started_is_not_the_main_one() -> None:
    """faulthandler names no threads."""
    started = '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap\n'
    text = f'Thread 0x01 (most recent call first):\n  File "pathlib.py", line 3 in rename\n{started}\nThread 0x02 (most recent call first):\n'
    read = [one for one in found(text + '  File "train.py", line 9 in pack\n  File "train.py", line 12 in <module>\n') if isinstance(one, Stack)]
    assert [one.frames[0] for one in read] == ["pack (train.py:9)"]


@pytest.mark.parametrize(
    ("frames", "rule"),
    [
        ("_ask (outlast/runtime/worker/ballots.py:3)", "stack.waiting"),
        ("__iter__ (outlast/runtime/channel.py:3)\n    _listen (outlast/runtime/worker/session.py:9)", "stack.idle"),
    ],
)
def test_in_our_own_files_a_rank_waits_for_its_peers_or_listens(frames: str, rule: str) -> None:
    (one,) = found(f'Process 7: python train.py\n\nThread 7 (idle): "MainThread"\n    {frames}\n\n')
    assert one.rule == rule


def test_a_rank_that_left_a_log_was_there_and_what_it_said_last_is_kept() -> None:
    (one,) = found("step 1\nend of data\n\n", name="attempt_0/3/stdout.log")
    assert (one.rule, one.rank, one.evidence.line, one.evidence.text, one.evidence.role) == ("log.last", 3, 2, "end of data", Role.ADVICE)
    assert not found("step 1\n", name="train.log")
