"""Lines of a log: bounded, numbered as an editor numbers them, no more than was there."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.model.limits import EVIDENCE_LINE_MAX_BYTES, EVIDENCE_READ_BYTES
from outlast.model.pieces import Piece
from outlast.runtime.evidence.lines import Lines, last_lines
from outlast.runtime.evidence.opening import NotRegular, open_regular


def piece(path: Path, data: bytes | None = None) -> Piece:
    if data is not None:
        path.write_bytes(data)
    return Piece(path.name, str(path), path.stat().st_size)


@given(
    st.lists(
        st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"").replace(b"\x00", b"")),
        max_size=30,
    )
)
def test_lines_are_those_between_newlines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    data = b"x\n" + b"".join(line + b"\n" for line in lines)
    assert list(Lines(piece(tmp_path_factory.mktemp("lines") / "a", data))) == [b"x", *lines]


@pytest.mark.parametrize("around", [-3, -1, 0, 1, 5])
def test_a_line_over_the_end_of_a_chunk_is_one_line(tmp_path: Path, around: int) -> None:
    filler = b"y" * 63 + b"\n"
    data = (
        filler * (EVIDENCE_READ_BYTES // 64 - 1)
        + b"z" * (60 + around)
        + b"\nlast words\nno newline"
    )
    assert list(Lines(piece(tmp_path / "a", data))) == data.split(b"\n")


def test_both_ends_of_a_line_of_256_megabytes_are_read_in_little_memory(
    tmp_path: Path,
) -> None:
    """Method: three megabytes of letters, 256 megabytes that are not on the disk, and letters
    again, without a newline; the peak of memory before and after.
    """
    path = tmp_path / "a"
    with path.open("wb") as file:
        file.write(b"first words " + b"x" * (3 << 20))
        file.seek(1 << 28)
        file.write(b"last words\nnext line\n")
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = Lines(piece(path))
    got = list(lines)
    assert [len(line) for line in got] == [EVIDENCE_LINE_MAX_BYTES, 9]
    assert (got[0][:11], got[0][-10:], got[1], lines.cut_count) == (
        b"first words",
        b"last words",
        b"next line",
        1,
    )
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 64 << 10


def test_a_file_that_grows_is_read_to_the_size_it_had(tmp_path: Path) -> None:
    """Method: the file grows while it is read, after each line: a reader without that limit would
    never end.
    """
    one = piece(tmp_path / "a", b"line\n" * 1_000)
    count = 0
    with (tmp_path / "a").open("ab", buffering=0) as file:
        for line in Lines(one):
            count += 1
            assert line == b"line"
            file.write(b"more\n" * 100)
    assert count == 1_000


def test_a_file_that_shrank_ends_where_it_ends(tmp_path: Path) -> None:
    one = piece(tmp_path / "a", b"line\n" * 1_000)
    os.truncate(tmp_path / "a", 12)
    assert list(Lines(one)) == [b"line", b"line", b"li"]


def test_a_file_that_became_a_fifo_or_a_link_is_not_opened(tmp_path: Path) -> None:
    one = piece(tmp_path / "a", b"line\n")
    (tmp_path / "a").unlink()
    os.mkfifo(tmp_path / "a")
    with pytest.raises(NotRegular):
        list(Lines(one))
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to("/etc/hostname")
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(str(tmp_path / "a"))


def test_utf16_is_turned_and_zeros_are_left_out(tmp_path: Path) -> None:
    assert list(Lines(piece(tmp_path / "a", "é one\ntwo\n".encode("utf-16")))) == [
        "é one".encode(),
        b"two",
    ]
    assert list(Lines(piece(tmp_path / "b", b"one\n" + bytes(5_000) + b"two\n"))) == [
        b"one",
        b"two",
    ]


def test_the_last_lines_are_whole(tmp_path: Path) -> None:
    one = piece(tmp_path / "a", b"".join(b"line %d\n" % number for number in range(1_000)))
    assert last_lines(one, size=20) == [b"line 998", b"line 999", b""]
    assert last_lines(one)[0] == b"line 0"
