"""Dumps read in processes of their own: many at once, and bombs among them, each of which costs its
own reader and nobody else.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from outlast.diagnose.collectives import Dump, find_blame, read_dump
from outlast.model.pieces import Piece
from outlast.runtime.evidence import unpickling
from outlast.runtime.evidence.unpickling import read_dumps
from tests.diagnose.collectives.simulator import Job, Layout

MEMORY, LIMIT_S = 256 << 20, 5.0


def piece(path: Path) -> Piece:
    return Piece(path.name, str(path), path.stat().st_size)


def read(paths: list[Path], processes: int = 2) -> tuple[list[Dump], dict[str, str]]:
    return read_dumps(
        [piece(path) for path in paths], processes=processes, memory_bytes=MEMORY, limit_s=LIMIT_S
    )


def job_in(folder: Path, shape: tuple[int, int, int] = (2, 2, 4)) -> tuple[Job, list[Path]]:
    job, paths = Job(Layout(*shape), ahead=2, sleeps={5: 9}), []
    for rank in range(job.layout.size):
        paths.append(folder / f"trace_{rank}")
        paths[-1].write_bytes(job.raw(rank))
    return job, paths


def nested(depth: int) -> bytes:
    """A table with a key of tuples inside each other: to hash it overflows the stack of C."""
    return b"\x80\x02})" + b"\x85" * depth + b"Ns."


MEMO = b"\x80\x02]r\xff\xff\xff\x7f."  # an index into the memo: seven bytes that ask for 32 GB
# keys with one hash
SLOW = (
    b"\x80\x02}("
    + b"".join(
        b"\x8a\x0a" + (k * ((1 << 61) - 1)).to_bytes(10, "little") + b"N" for k in range(1, 60_000)
    )
    + b"u."
)


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_what_comes_from_other_processes_is_what_was_read_here(
    tmp_path: Path, processes: int
) -> None:
    _, paths = job_in(tmp_path)
    dumps, unreadable = read(paths, processes)
    assert dumps == [read_dump(path.read_bytes(), name=path.name) for path in paths]
    assert not unreadable
    assert [one.rank for one in find_blame(dumps).ranks] == [5]


@pytest.mark.parametrize(
    ("bomb", "why"),
    [(MEMO, "256 MB of memory"), (nested(3_000_000), "SIGSEGV"), (SLOW, "processor time")],
    ids=["memo", "nesting", "hashes"],
)
def test_a_bomb_is_named_and_all_others_are_read(tmp_path: Path, bomb: bytes, why: str) -> None:
    _, paths = job_in(tmp_path)
    bad = tmp_path / "trace_99"
    bad.write_bytes(bomb)
    began_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    dumps, unreadable = read_dumps(
        [piece(path) for path in (*paths[:7], bad, *paths[7:])],
        processes=2,
        memory_bytes=MEMORY,
        limit_s=1.0,
    )
    assert len(dumps) == 16
    assert list(unreadable) == ["trace_99"]
    assert why in unreadable["trace_99"]
    assert time.monotonic() - began_s < 60
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < max(before, (MEMORY >> 10) * 4)


def test_an_attack_is_refused_in_the_reader_too(tmp_path: Path) -> None:
    _, paths = job_in(tmp_path)
    paths[3].write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    dumps, unreadable = read(paths)
    assert len(dumps) == 15
    assert unreadable["trace_3"].startswith("refused")
    assert any(
        finding.rule == "dump.refused"
        for finding in find_blame(dumps, unreadable=unreadable).findings
    )


def test_many_bombs_end_the_reading_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpickling, "ENDED_MAX_COUNT", 3)
    paths = []
    for number in range(8):
        paths.append(tmp_path / f"trace_{number}")
        paths[-1].write_bytes(nested(3_000_000))
    dumps, unreadable = read(paths)
    assert not dumps
    assert set(unreadable) == {path.name for path in paths}
    assert any("not read" in why for why in unreadable.values())


def test_what_is_not_a_file_of_bytes_is_named_and_never_waited_for(tmp_path: Path) -> None:
    """A FIFO that nobody writes to, a folder, a device, a file that is gone, a piece without a
    file.
    """
    _, paths = job_in(tmp_path, (2, 1, 2))
    os.mkfifo(tmp_path / "pipe_7")
    (tmp_path / "folder_8").mkdir()
    odd = [
        Piece("pipe_7", str(tmp_path / "pipe_7"), 100),
        Piece("folder_8", str(tmp_path / "folder_8"), 100),
        Piece("zero_9", "/dev/zero", 100),
    ]
    odd += [Piece("gone_6", str(tmp_path / "gone_6"), 5), Piece("none_5", None, 5)]
    dumps, unreadable = read_dumps(
        [*odd, *(piece(path) for path in paths)], processes=1, memory_bytes=MEMORY, limit_s=LIMIT_S
    )
    assert len(dumps) == 4
    assert set(unreadable) == {one.name for one in odd}


def test_a_reader_that_a_disk_keeps_waiting_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: in the reader, the read of one file stops its own process, as a disk does that never
    answers.
    """
    monkeypatch.setattr(unpickling, "WALL_S", 2.0)
    real = unpickling._bytes_of

    def stuck(path: str | None, size_bytes: int) -> bytes:
        if path and path.endswith("_2"):
            os.kill(os.getpid(), signal.SIGSTOP)
        return real(path, size_bytes)

    monkeypatch.setattr(unpickling, "_bytes_of", stuck)
    _, paths = job_in(tmp_path, (2, 1, 2))
    dumps, unreadable = read(paths)
    assert len(dumps) == 3
    assert "no answer" in unreadable["trace_2"]


def children() -> set[str]:
    return {
        child
        for task in os.listdir("/proc/self/task")
        for child in Path(f"/proc/self/task/{task}/children").read_text().split()
    }


def test_readers_leave_no_process_and_no_descriptor_behind(tmp_path: Path) -> None:
    _, paths = job_in(tmp_path)
    paths[2].write_bytes(nested(3_000_000))
    before = set(os.listdir("/proc/self/fd")), children()
    read(paths)
    assert (set(os.listdir("/proc/self/fd")), children()) == before


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    _, paths = job_in(tmp_path)
    told: list[tuple[int, int]] = []
    read_dumps(
        [piece(path) for path in paths],
        processes=2,
        on_progress=lambda done, count: told.append((done, count)),
    )
    assert told[-1] == (16, 16)
    assert told == sorted(told)
    assert read_dumps([]) == ([], {})


def test_a_file_that_grew_is_read_to_its_old_end_or_its_new_one(
    tmp_path: Path,
) -> None:
    """The old length is used if those bytes are a whole dump; otherwise the new length is."""
    job = Job(Layout(4, 1, 1), sleeps={2: 5})
    path = tmp_path / "fr_1.json"
    path.write_bytes(job.raw(1, backend="gloo"))
    found = piece(path)
    early = Piece(path.name, str(path), found.size_bytes - 9)
    assert read_dumps([early], processes=1) == read_dumps([found], processes=1)
    with path.open("ab") as file:
        file.write(b"more" * 1000)
    dumps, unreadable = read_dumps([found], processes=1)
    assert not unreadable
    assert dumps[0].rank == 1
    assert dumps[0].entry_count == len(json.loads(job.raw(1, backend="gloo"))["entries"])
