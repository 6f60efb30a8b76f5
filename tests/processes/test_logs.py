"""Log files in torchrun's layout, and lines on the console by torchrun's rules."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.limits import LOG_TAIL_LINES
from outlast.runtime.agent import logs
from outlast.runtime.agent.logs import (
    ConsolePolicy,
    ErrorRecord,
    WorkerLogs,
    make_log_folder,
    parse_streams,
    read_error_file,
)
from outlast.runtime.loop import Loop


class Desk:
    """The logs of workers whose pipes are written by the test."""

    def __init__(self, folder: Path | None, policy: ConsolePolicy) -> None:
        self.loop = Loop()
        self.console: list[tuple[str, str]] = []
        self.folder = folder
        self.logs = WorkerLogs(
            self.loop, folder, policy, lambda stream, text: self.console.append((stream, text))
        )
        self.writers: dict[int, tuple[int, int]] = {}

    def attach(self, worker: int, place: int | str) -> None:
        (out, out_writer), (err, err_writer) = os.pipe(), os.pipe()
        self.writers[worker] = (out_writer, err_writer)
        self.logs.attach(worker, out, err, attempt=0, place=place)

    def say(self, worker: int, data: bytes, *, err: bool = False) -> None:
        os.write(self.writers[worker][err], data)
        self.loop.turn(0)

    def done(self) -> None:
        for worker, writers in self.writers.items():
            self.logs.close(worker)
            for fd in writers:
                os.close(fd)
        self.loop.close()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def make(**policy: object) -> Desk:
        desks.append(Desk(make_log_folder(tmp_path / "logs", "run7"), ConsolePolicy(**policy)))  # type: ignore[arg-type]
        return desks[-1]

    yield make
    for one in desks:
        one.done()


def test_every_stream_has_its_file_and_goes_to_the_console_unchanged(
    desk: Callable[..., Desk],
) -> None:
    one = desk()
    one.attach(0, 3)
    one.say(0, b"hello\n")
    one.say(0, b"oops\n", err=True)
    assert one.console == [("stdout", "hello\n"), ("stderr", "oops\n")]
    assert one.folder is not None
    assert one.folder.name.startswith("run7_")
    assert (one.folder / "attempt_0/3/stdout.log").read_bytes() == b"hello\n"
    assert (one.folder / "attempt_0/3/stderr.log").read_bytes() == b"oops\n"
    assert one.logs.error_file(0, 3) == str(one.folder / "attempt_0/3/error.json")


@pytest.mark.parametrize(
    ("policy", "shown"),
    [
        ({"redirects": 1}, [("stderr", "e\n")]),
        ({"redirects": 3}, []),
        ({"redirects": {0: 3}}, []),
        ({"redirects": {1: 3}}, [("stdout", "o\n"), ("stderr", "e\n")]),
        (
            {"tee": 3, "role": "default"},
            [("stdout", "[default0]:o\n"), ("stderr", "[default0]:e\n")],
        ),
        ({"tee": 1, "redirects": 3, "role": "t"}, [("stdout", "[t0]:o\n")]),
        (
            {"tee": 3, "prefix": "<${role_name} ${rank}/${local_rank}> "},
            [("stdout", "<default 0/0> o\n"), ("stderr", "<default 0/0> e\n")],
        ),
        ({"only_ranks": frozenset({1})}, []),
        ({"only_ranks": frozenset({0})}, [("stdout", "o\n"), ("stderr", "e\n")]),
    ],
)
def test_the_console_shows_what_torchrun_would_show(
    desk: Callable[..., Desk], policy: dict[str, object], shown: list[tuple[str, str]]
) -> None:
    one = desk(**policy)
    one.attach(0, 0)
    one.say(0, b"o\n")
    one.say(0, b"e\n", err=True)
    assert one.console == shown


def test_lines_stay_whole_when_workers_write_in_pieces(desk: Callable[..., Desk]) -> None:
    one = desk()
    one.attach(0, 0)
    one.attach(1, 1)
    one.say(0, b"from ze")
    one.say(1, b"from one\n")
    one.say(0, b"ro\nand")
    one.say(0, b" more\n")
    assert [text for _, text in one.console] == ["from one\n", "from zero\n", "and more\n"]


def test_an_open_line_is_shown_after_a_while_and_a_bar_at_each_return(
    desk: Callable[..., Desk],
) -> None:
    one = desk(tee=3)
    one.attach(0, 0)
    one.say(0, b" 10%\r 20%\r", err=True)
    one.say(0, b"name? ")
    assert one.loop.run_until(lambda: len(one.console) == 3, within_s=5)
    one.say(0, b"none\n")
    assert one.console == [
        ("stderr", "[default0]: 10%\r"),
        ("stderr", "[default0]: 20%\r"),
        ("stdout", "[default0]:name? "),
        ("stdout", "none\n"),
    ]


def test_a_spare_is_silent_until_it_has_a_rank_and_uses_its_file_then(
    desk: Callable[..., Desk],
) -> None:
    one = desk()
    one.attach(0, 2)
    one.say(0, b"first life\n")
    one.attach(5, "spare_5")
    one.say(5, b"parked\n")
    one.logs.move(5, attempt=0, place=2)
    one.say(5, b"second life\n")
    assert [text for _, text in one.console] == ["first life\n", "second life\n"]
    assert one.folder is not None
    assert (one.folder / "attempt_0/spare_5/stdout.log").read_text() == "parked\n"
    assert (one.folder / "attempt_0/2/stdout.log").read_text() == "first life\nsecond life\n"


def test_the_folder_of_a_worker_is_known_after_its_end_too(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spare that takes a rank goes on in the folder of that rank."""
    monkeypatch.setattr(logs, "LOG_FOLDERS_COUNT", 2)
    one = desk()
    one.attach(5, "spare_5")
    one.logs.move(5, attempt=3, place=1)
    one.logs.close(5)
    assert one.folder is not None
    assert one.logs.folder_of(5) == str(one.folder / "attempt_3/1")
    one.attach(6, 0)
    one.attach(7, 1)
    assert list(one.logs.folders()) == [6, 7], "only those of the newest workers are kept"
    assert one.logs.folder_of(5) == ""


def test_the_end_of_stderr_is_kept_for_the_verdict(desk: Callable[..., Desk]) -> None:
    one = desk(redirects=3)
    one.attach(0, 0)
    for number in range(LOG_TAIL_LINES + 50):
        one.say(0, f"line {number}\n".encode(), err=True)
    tail = one.logs.stderr_tail(0)
    assert len(tail) == LOG_TAIL_LINES
    assert tail[-1] == f"line {LOG_TAIL_LINES + 49}"


def test_the_pipe_of_a_dead_worker_is_read_though_a_child_holds_it(
    desk: Callable[..., Desk],
) -> None:
    one = desk()
    one.attach(0, 0)
    os.write(one.writers[0][0], b"x" * 5_000 + b"\nlast words")
    one.logs.drain(0)
    assert one.console[-1] == ("stdout", "last words")


def test_a_rank_that_is_taken_again_loses_the_dead_ones_error_file(
    desk: Callable[..., Desk],
) -> None:
    one = desk()
    one.attach(0, 0)
    Path(one.logs.error_file(0, 0)).write_text("{}")
    one.logs.close(0)
    one.attach(1, 0)
    assert not Path(one.logs.error_file(0, 0)).exists()
    for fd in one.writers.pop(0):
        os.close(fd)


def test_dev_null_as_log_folder_means_no_files(tmp_path: Path) -> None:
    assert make_log_folder(Path(os.devnull), "r") is None
    one = Desk(None, ConsolePolicy())
    one.attach(0, 0)
    one.say(0, b"shown\n")
    assert one.console == [("stdout", "shown\n")]
    assert one.logs.error_file(0, 0) == one.logs.folder_of(0) == ""
    one.done()


@given(st.lists(st.binary(max_size=30), max_size=12))
def test_the_console_gets_every_byte_once_and_in_order(pieces: list[bytes]) -> None:
    """Method: any bytes in any pieces. Only the end of the stream may flush an unfinished line."""
    one = Desk(None, ConsolePolicy())
    one.attach(0, 0)
    for piece in pieces:
        one.say(0, piece)
    one.logs.drain(0)
    data = b"".join(pieces)
    assert "".join(text for _, text in one.console) == "".join(
        part.decode("utf-8", "replace") for part in _lines(data)
    )
    one.done()


def _lines(data: bytes) -> list[bytes]:
    """Split by hand: a line ends with a newline, or with a carriage return that no newline
    follows.
    """
    lines, begin = [], 0
    for at, byte in enumerate(data):
        if byte == 10 or (byte == 13 and data[at + 1 : at + 2] != b"\n"):
            lines.append(data[begin : at + 1])
            begin = at + 1
    return [*lines, data[begin:]]


def test_stream_choices_are_torchruns() -> None:
    assert parse_streams("3", "--tee") == 3
    assert parse_streams("0:1,11:2", "--tee") == {0: 1, 11: 2}
    for wrong in ("4", "", "0:4", "a", "0:1,"):
        with pytest.raises(UsageError, match="--tee"):
            parse_streams(wrong, "--tee")


def test_error_files_are_read_in_both_forms_and_half_written_ones_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "error.json"
    assert read_error_file(path) is None
    path.write_text(
        json.dumps(
            {
                "message": {
                    "message": "ValueError: x",
                    "extraInfo": {"py_callstack": "Traceback", "timestamp": "17"},
                }
            }
        )
    )
    assert read_error_file(path) == ErrorRecord("ValueError: x", "Traceback", 17)
    path.write_text(json.dumps({"message": "plain", "timestamp": 5}))
    assert read_error_file(path) == ErrorRecord("plain", "", 5)
    for broken in ("", '{"message": {"mess', "[]", '{"message": {}}', '{"message": 5}'):
        path.write_text(broken)
        assert read_error_file(path) is None, broken


def test_a_line_whose_end_is_in_the_pipe_already_is_not_cut(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher may be late, so that the rest of the line and the timer are due in the same
    turn.
    """
    monkeypatch.setattr(logs, "LOG_PARTIAL_S", 0.0)
    one = desk()
    one.attach(0, 3)
    one.say(0, b"step 7")
    one.say(0, b" of 9\n")
    assert one.console == [("stdout", "step 7 of 9\n")]


def test_the_wait_for_the_end_of_a_line_begins_with_that_line(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With output that never pauses, each read ends in the middle of another line."""
    one = desk()
    one.attach(0, 3)
    monkeypatch.setattr(logs, "LOG_PARTIAL_S", 0.0)
    os.write(one.writers[0][0], b"step 1\nst")
    one.loop.turn(0)
    monkeypatch.setattr(logs, "LOG_PARTIAL_S", 60.0)
    one.say(0, b"ep 2\nst")
    one.loop.turn(0)
    assert one.console == [("stdout", "step 1\n"), ("stdout", "step 2\n")]


def test_a_prompt_without_an_end_is_shown(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LOG_PARTIAL_S", 0.0)
    one = desk()
    one.attach(0, 3)
    one.say(0, b"continue? ")
    one.loop.turn(0)
    assert one.console == [("stdout", "continue? ")]


def test_output_is_read_in_small_pieces_where_memory_is_short(
    desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = desk()
    one.attach(0, 3)
    read = os.read

    def short(fd: int, count: int) -> bytes:
        if count > 512:
            raise MemoryError
        return read(fd, count)

    monkeypatch.setattr(logs.os, "read", short)
    text = b"x" * 300 + b"\n"
    one.say(0, text)
    one.loop.turn(0)
    assert one.console == [("stdout", text.decode())]
