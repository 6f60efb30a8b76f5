"""The launcher's console: it is bounded, the launcher never waits for it, and it says what it left
out.
"""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from outlast.model.limits import CONSOLE_BUFFER_BYTES
from outlast.runtime.console import ConsoleStream, ConsoleWriter, unblocked


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    for end in (reader, writer):
        with suppress(OSError):
            os.close(end)


def read_all(fd: int) -> bytes:
    out = io.BytesIO()
    while data := os.read(fd, 1 << 16):
        out.write(data)
    return out.getvalue()


def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    reader, end = pipe
    writer = ConsoleWriter()
    lines = [f"line {number}\n".encode() for number in range(1000)]
    for line in lines:
        writer.put(end, line)
    writer.close(idle_s=10.0)
    os.close(end)
    assert read_all(reader) == b"".join(lines)


def test_a_reader_that_stops_is_not_waited_for_and_is_told_what_it_missed(
    pipe: tuple[int, int],
) -> None:
    reader, end = pipe
    writer = ConsoleWriter()
    line = b"x" * 999 + b"\n"
    put = 2 * CONSOLE_BUFFER_BYTES // len(line)
    for _ in range(put):
        writer.put(end, line)
    writer.close(idle_s=0.01)  # the reader does not move, so this gives up
    closing = threading.Thread(target=lambda: (writer.close(idle_s=10.0), os.close(end)))
    closing.start()
    shown = read_all(reader).splitlines()
    closing.join(10)
    notices = [text for text in shown if text.startswith(b"outlast: ")]
    assert notices, "what was left out is told where it is missing"
    assert len(shown) - len(notices) + sum(int(one.split()[1]) for one in notices) == put


def test_a_notice_is_a_line_of_its_own(pipe: tuple[int, int]) -> None:
    """Method: the console leaves out the end of a line whose beginning was shown."""
    reader, end = pipe
    writer = ConsoleWriter()
    beginning = b"x" * CONSOLE_BUFFER_BYTES
    writer.put(end, beginning)
    writer.put(end, b" and its end\nanother\n")
    closing = threading.Thread(target=lambda: (writer.close(idle_s=10.0), os.close(end)))
    closing.start()
    shown = read_all(reader)
    closing.join(10)
    assert shown.startswith(beginning + b"\noutlast: 2 lines were left out")


def test_a_reader_that_is_gone_causes_no_error(pipe: tuple[int, int]) -> None:
    reader, end = pipe
    writer = ConsoleWriter()
    os.close(reader)
    for _ in range(3):
        writer.put(end, b"nobody reads this\n")
        writer.close(idle_s=10.0)


def test_a_full_disk_leaves_out_what_it_cannot_take_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = os.write, [True]

    def write(fd: int, data: bytes) -> int:
        if full[0]:
            raise OSError(errno.ENOSPC, "no space")
        return real(fd, data)

    with (tmp_path / "out").open("wb") as out:
        writer = ConsoleWriter()
        monkeypatch.setattr(os, "write", write)
        writer.put(out.fileno(), b"one\ntwo\n")
        writer.close(idle_s=10.0)
        full[0] = False
        writer.put(out.fileno(), b"three\n")
        writer.close(idle_s=10.0)
    told, three = (tmp_path / "out").read_text().splitlines()
    assert told.startswith("outlast: 2 lines were left out")
    assert three == "three"


def test_a_terminal_that_does_not_block_is_waited_for_by_the_thread(pipe: tuple[int, int]) -> None:
    reader, end = pipe
    os.set_blocking(end, False)
    writer = ConsoleWriter()
    data = b"x" * 300_000
    writer.put(end, data)
    seen = b""
    while len(seen) < len(data):
        seen += os.read(reader, 1 << 16)
    writer.close(idle_s=10.0)
    assert seen == data


def test_a_stream_that_is_stuck_does_not_hold_up_the_other(pipe: tuple[int, int]) -> None:
    stuck, (reader, end) = os.pipe(), pipe
    first, second = ConsoleWriter(), ConsoleWriter()
    first.put(stuck[1], b"x" * 200_000)
    second.put(end, b"heard\n")
    second.close(idle_s=10.0)
    assert os.read(reader, 100) == b"heard\n"
    os.close(stuck[0])  # this wakes the other thread
    first.close(idle_s=10.0)
    os.close(stuck[1])


def test_a_stream_stands_in_for_the_real_one(pipe: tuple[int, int]) -> None:
    reader, end = pipe
    writer = ConsoleWriter()
    with open(end, "w", encoding="ascii", closefd=False) as real:
        stream = ConsoleStream(real, writer)
        print("caf\u00e9", file=stream)
        assert (stream.fileno(), stream.isatty(), stream.encoding) == (end, False, "ascii")
    writer.close(idle_s=10.0)
    assert os.read(reader, 100) == b"caf\\xe9\n"


def test_a_message_begins_a_line_whatever_a_progress_bar_has_left(tmp_path: Path) -> None:
    """Method: as in `outlast run train.py > log 2>&1`, beside a script that draws a progress bar
    with carriage returns.

    A finished line is not followed by an empty one, and streams that go to different files are
    independent.
    """
    code = (
        "import sys\n"
        "from outlast.app.launch.live import LiveView\n"
        "from outlast.app.launch.node_setup import WorkerOutput\n"
        "from outlast.app.words import console_for\n"
        "from outlast.runtime.console import unblocked\n"
        "with unblocked():\n"
        "    sink = WorkerOutput(LiveView(console_for(stderr=True, environment={})))\n"
        "    sink('stdout', 'step 1\\n')\n"
        "    sink.view.print_line('first')\n"
        "    for piece in ('\\r', '45 %'):\n"
        "        sink('stdout', piece)\n"
        "    sink.view.print_line('second')\n"
        "    sink('stdout', '\\r50 %\\n')\n"
        "    sink.view.print_line('third')\n"
        "    sink.close()\n"
    )
    together, apart = tmp_path / "together", tmp_path / "apart"
    with together.open("w") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, stderr=file, check=True)
    assert together.read_bytes() == (
        b"step 1\noutlast first\n\r45 %\noutlast second\n\r50 %\noutlast third\n"
    )
    with apart.open("w") as file:
        subprocess.run(
            [sys.executable, "-c", code], stdout=file, stderr=subprocess.DEVNULL, check=True
        )
    assert apart.read_bytes() == b"step 1\n\r45 %\r50 %\n", "every byte, and no more"


def test_streams_are_put_back(capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled():
        before = sys.stdout, sys.stderr
        with unblocked():
            assert sys.stdout is not before[0]
        assert (sys.stdout, sys.stderr) == before


def test_where_there_is_no_file_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = io.StringIO()
    monkeypatch.setattr(sys, "stdout", memory)
    with unblocked():
        print("seen")
        assert sys.stdout is memory
    assert memory.getvalue() == "seen\n"
