"""Where an exception was raised, read from what stands around a traceback in a log."""

from __future__ import annotations

import pytest

from outlast.diagnose.logs.tracebacks import Tracebacks

TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/data/me/train.py", line 4, in step',
    "    assert loss < 10",
    "           ^^^^^^^^^",
    "AssertionError",
)
BAR = "\r 80%|####  | 8/10\r 90%|####  | 9/10 [00:01<00:00, 5.00it/s]"


@pytest.mark.parametrize(
    ("first", "each"),
    [
        ("", ""),
        ("", "[rank1]: "),
        ("", "2026-11-26 02:00:00 worker "),  # no label that is known
        (BAR, ""),
        (BAR, "[rank1]: "),
    ],
)
def test_the_place_is_read_behind_a_label_or_a_progress_bar(first: str, each: str) -> None:
    """A label stands before each line, an unfinished bar before the first line alone."""
    header, *lines = TRACEBACK
    reader = Tracebacks()
    # a launcher puts its label where a worker's line begins, which is in front of the bar
    reader.begin(each + first + header)
    (raised,) = [found for line in lines if (found := reader.feed(each + line)) is not None]
    assert raised.place == "step (me/train.py:4)"
    assert not reader.active
