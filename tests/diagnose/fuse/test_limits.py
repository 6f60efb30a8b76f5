"""A limit of the machine or of the job is no fault of the line that meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast import diagnose

TRACEBACK = 'Traceback (most recent call last):\n  File "/srv/train.py", line 4, in step\n    f()\n'


@pytest.mark.parametrize(
    "said",
    [
        "RuntimeError: can't start new thread",
        "BlockingIOError: [Errno 11] Resource temporarily unavailable",
        "OSError: [Errno 24] Too many open files: '/srv/data/7.bin'",
    ],
)
def test_the_limit_is_to_be_raised_where_one_was_reached(tmp_path: Path, said: str) -> None:
    (tmp_path / "rank_0.log").write_text(f"step 1 loss 2.0\n{TRACEBACK}{said}\n")
    (tmp_path / "rank_1.log").write_text("step 1 loss 2.0\n")
    verdict = diagnose(tmp_path)
    assert verdict.failure_class.value == "user_code"
    assert [one.rank for one in verdict.ranks] == [0]
    assert "raise the limit" in verdict.action
    assert "fix the script" not in verdict.action
