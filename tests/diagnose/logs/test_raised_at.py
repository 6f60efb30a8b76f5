"""Where an exception was raised, read from what stands around a traceback in a log."""

from __future__ import annotations

import json

import pytest

from outlast.diagnose.logs import read_lines
from outlast.diagnose.logs.tracebacks import RaisedAt, Tracebacks

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


@pytest.mark.parametrize("each", ["[rank1]: ", "gpu07: [rank1]: "])
def test_a_label_of_a_host_before_a_ranks_own_hides_no_place(each: str) -> None:
    """Each line has both, so that the rank's own is at no line's beginning."""
    header, *lines = TRACEBACK
    reader = Tracebacks()
    reader.begin(each + header)
    (raised,) = [found for line in lines if (found := reader.feed(each + line)) is not None]
    assert raised.place == "step (me/train.py:4)"
    assert not reader.active


@pytest.mark.parametrize("tee", ["", "[default1]:"])
def test_a_bar_before_a_ranks_own_label_hides_no_place(tee: str) -> None:
    """torch's exception hook writes its label at the place where the bar has left the cursor."""
    header, *lines = TRACEBACK
    reader = Tracebacks()
    reader.begin(f"{tee}{BAR}[rank1]: {header}")
    said = (reader.feed(f"{tee}[rank1]: {line}") for line in lines)
    (raised,) = [found for found in said if found is not None]
    assert raised.place == "step (me/train.py:4)"
    assert not reader.active


def test_a_colour_that_ends_behind_a_frame_is_no_part_of_its_name() -> None:
    """A collector of logs ends the colour of each line at that line's end."""
    header, frame, *lines = TRACEBACK
    reader = Tracebacks()
    reader.begin(header)
    said = (reader.feed(line) for line in (f"{frame}\x1b[0m", *lines))
    (raised,) = [found for found in said if found is not None]
    assert raised.place == "step (me/train.py:4)"


def test_an_exception_of_a_private_class_has_its_place() -> None:
    """NumPy's error of memory is called `_ArrayMemoryError`."""
    reader = Tracebacks()
    reader.begin(TRACEBACK[0])
    assert reader.feed(TRACEBACK[1]) is None
    raised = reader.feed("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9. GiB")
    assert raised is not None
    assert raised.place == "step (me/train.py:4)"


BOX = """\
╭──────────── Traceback (most recent call last) ────────────╮
│ /data/me/train.py:9 in <module>                           │
│                                                           │
│ ❱ 9 │   step()                                            │
│ ╭─ locals ─╮                                              │
│ │ x = OSError('No space left on device') │                │
│ ╰──────────╯                                              │
│ /data/me/train.py:4 in step                               │
│ ❱ 4 │   raise MemoryError("CUDA out of memory")           │
╰───────────────────────────────────────────────────────────╯
AssertionError: loss"""


@pytest.mark.parametrize("each", ["", "[rank1]: "])
def test_a_box_of_rich_shows_the_place_and_its_contents_are_quoted(each: str) -> None:
    """Source and locals in the box hold words of failures that did not happen."""
    header, *inside, error = [f"{each}{line}" for line in BOX.splitlines()]
    reader = Tracebacks()
    reader.begin(header)
    for line in inside[:-1]:
        assert reader.quotes(line)
        assert reader.feed(line) is None
    assert reader.feed(inside[-1]) is None
    raised = reader.feed(error)
    assert raised is not None
    assert raised.place == "step (me/train.py:4)"
    assert not reader.active


def test_a_group_of_exceptions_has_its_place_behind_its_margin() -> None:
    """Its source is quoted, too: `raise OSError(...)` in it is no exception."""
    reader = Tracebacks()
    reader.begin("[rank1]:   + Exception Group Traceback (most recent call last):")
    assert reader.feed('[rank1]:   |   File "/data/me/train.py", line 4, in step') is None
    source = "[rank1]:   |     raise ExceptionGroup('two', [OSError(28, 'No space left')])"
    assert reader.quotes(source)
    assert reader.feed(source) is None
    raised = reader.feed("[rank1]:   | ExceptionGroup: two (1 sub-exception)")
    assert raised is not None
    assert raised.place == "step (me/train.py:4)"


LOADS = (
    "Traceback (most recent call last):",
    '  File "/data/me/train.py", line 4, in resume',
    '  File "/venv/lib/python3.11/site-packages/torch/serialization.py", line 1626, in load',
)
UNPICKLER = (
    '  File "/venv/lib/python3.11/site-packages/torch/_weights_only_unpickler.py", line 5, in x'
)
LEGACY = (
    '  File "/venv/lib/python3.11/site-packages/torch/serialization.py", line 9, in _legacy_load'
)
USERS = '  File "/data/me/model.py", line 7, in __setstate__'


@pytest.mark.parametrize(
    ("frames", "error", "rule"),
    [
        ((), "OSError: [Errno 22] Invalid argument", "torch.stream_reader"),
        ((LEGACY, UNPICKLER), "EOFError", "torch.stream_reader"),
        ((LEGACY,), "RuntimeError: odd", "torch.stream_reader"),
        ((USERS,), "EOFError", "python.group_down"),  # its own class reads on
        ((), "FileNotFoundError: [Errno 2] No such file: 'x.pt'", "files.missing"),
        ((), "PermissionError: [Errno 13] Permission denied: 'x.pt'", "files.permission"),
    ],
)
def test_what_torch_load_raises_says_that_the_file_is_damaged(
    frames: tuple[str, ...], error: str, rule: str
) -> None:
    """A file that is not there, or that may not be read, is another matter."""
    lines = [line.encode() for line in (*LOADS, *frames, error)]
    (found,) = (one for one in read_lines(lines, name="train.log") if one.rule != "log.last")
    assert found.rule == rule


def test_a_traceback_in_a_record_among_lines_of_text_is_read() -> None:
    """Most of the file's lines are no records, so that it is not read as a file of records."""
    record = {"rank": 1, "msg": "unhandled", "exc_info": "\n".join(TRACEBACK)}
    lines = [b"step 1", json.dumps(record).encode(), b"E1126 api.py:1002] a launcher's words"]
    raised = [one for one in read_lines(lines, name="a.log") if isinstance(one, RaisedAt)]
    assert [(one.rank, one.place) for one in raised] == [(1, "step (me/train.py:4)")]
