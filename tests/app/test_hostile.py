"""`status`, `report` and `diagnose` on folders that are damaged, or made to harm: an answer always,
within seconds, without a traceback and without a byte that a terminal obeys.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.app.command import outlast
from tests.ledger import a_run

READERS = ("status", "report")
ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
CODES = {"status": (0, 1, 2), "report": (0, 1, 2), "diagnose": (0, 2, 3)}


def answers(command: str, folder: Path, *flags: str) -> str:
    """What it prints; `outlast` here has a bound on its time."""
    done = outlast(command, folder, *flags)
    said = done.stdout + done.stderr
    assert done.returncode in CODES[command], said
    assert "Traceback" not in said, said
    assert done.returncode == 0 or command == "diagnose" or "hint: " in said, said
    assert not {letter for letter in said if letter in ESCAPE and not letter.isalnum()} & set(
        "\x1b\x07\x9b\u202e"
    ), repr(said)
    return said


def change(folder: Path, sql: str, *values: object) -> None:
    """Change the ledger against its own rules, as a bit flip does."""
    with closing(sqlite3.connect(folder / "ledger.db")) as ledger:
        for (name,) in ledger.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            ledger.execute(f"DROP TRIGGER {name}")
        ledger.execute(sql, values)
        ledger.commit()


DEEP = "[" * 100_000
CHANGES: dict[str, tuple[str, tuple[object, ...]]] = {
    "a billion ranks": ("UPDATE meta SET world_size = ?", (1_000_000_000,)),
    "no ranks": ("UPDATE meta SET world_size = ?", (0,)),
    "fewer than none": ("UPDATE meta SET world_size = ?", (-4,)),
    "a billion ranks of a session": ("UPDATE sessions SET world_size = ?", (1_000_000_000,)),
    "fewer ranks than none": ("UPDATE sessions SET world_size = ?", (-4,)),
    "infinite time": ("UPDATE sessions SET started_s = ?", (float("inf"),)),
    "time in words": ("UPDATE sessions SET seen_s = ?", ("soon",)),
    "far future": ("UPDATE sessions SET ended_s = ?", (1e308,)),
    "infinite detection": ("UPDATE interruptions SET detected_s = ?", (float("inf"),)),
    "an infinite step": ("UPDATE interruptions SET step = ?", (float("inf"),)),
    "half a step": ("UPDATE interruptions SET step = ?", (0.5,)),
    "ranks in words": ("UPDATE interruptions SET ranks = ?", ('["a", {}]',)),
    "ranks as a number": ("UPDATE interruptions SET ranks = ?", ("7",)),
    "deep ranks": ("UPDATE interruptions SET ranks = ?", (DEEP,)),
    "no such mechanism": ("UPDATE interruptions SET mechanism = ?", ("magic",)),
    "bytes": ("UPDATE interruptions SET reason = ?", (b"\xff\xfe\x00",)),
    "infinite seconds": ("UPDATE lives SET seconds = ?", ('{"productive": Infinity}',)),
    "seconds in words": ("UPDATE lives SET seconds = ?", ('{"productive": "many"}',)),
    "seconds of nothing": ("UPDATE lives SET seconds = ?", ('{"magic": 1}',)),
    "NaN": ("UPDATE lives SET seconds = ?", ('{"productive": NaN}',)),
    "a deep event": ("UPDATE events SET data = ?", (DEEP,)),
    "an event that is a list": ("UPDATE events SET kind = 'verdict', data = ?", ("[1]",)),
    "half a verdict": ("UPDATE events SET kind = 'verdict', data = ?", ('{"verdict": {}}',)),
    "a step of words": ("UPDATE steps SET to_step = ?", ("last",)),
    "a deep snapshot": ("INSERT OR REPLACE INTO snapshot VALUES (1, ?)", (DEEP,)),
    "a snapshot of a number": ("INSERT OR REPLACE INTO snapshot VALUES (1, ?)", ("7",)),
    "workers that are none": (
        "INSERT OR REPLACE INTO snapshot VALUES (1, ?)",
        ('{"workers": [7], "step": "x", "spares": {}}',),
    ),
    "no session": ("DELETE FROM sessions", ()),
    "no run": ("DELETE FROM meta", ()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_ledger_that_was_changed_gets_an_answer(tmp_path: Path, name: str) -> None:
    folder = a_run.ended_run(tmp_path)
    sql, values = CHANGES[name]
    change(folder, sql, *values)
    for command in READERS:
        answers(command, folder)
        answers(command, folder, "--json")


def test_a_snapshot_of_nothing_gets_an_answer(tmp_path: Path) -> None:
    """The schema forbids it, but a page that was cut off may read as NULL."""
    folder = a_run.ended_run(tmp_path)
    with closing(sqlite3.connect(folder / "ledger.db")) as ledger:
        ledger.executescript(
            "DROP TABLE snapshot; CREATE TABLE snapshot (id, json);"
            " INSERT INTO snapshot VALUES (1, NULL);"
        )
    for command in READERS:
        answers(command, folder)


def test_a_ledger_cut_short_anywhere_gets_an_answer(tmp_path: Path) -> None:
    """Twenty lengths, drawn by seed, and those at the edges of pages."""
    whole = a_run.ended_run(tmp_path / "whole")
    size = (whole / "ledger.db").stat().st_size
    drawn = random.Random(9).sample(range(size), 8)
    for number, length in enumerate([0, 1, 16, 99, 100, 4095, 4096, 4097, size - 1, *drawn]):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        os.truncate(folder / "ledger.db", length)
        answers(READERS[number % 2], folder)


def test_a_ledger_with_flipped_bytes_gets_an_answer(tmp_path: Path) -> None:
    whole = a_run.ended_run(tmp_path / "whole")
    chance = random.Random(4)
    for number in range(12):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        data = bytearray((folder / "ledger.db").read_bytes())
        for at in chance.sample(range(len(data)), 40):
            data[at] = chance.randrange(256)
        (folder / "ledger.db").write_bytes(data)
        answers(READERS[number % 2], folder)


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def as_loop(path: Path) -> None:
    path.symlink_to(path.name)


def as_folder(path: Path) -> None:
    path.mkdir()


def as_deep(path: Path) -> None:
    path.write_text("[" * 200_000)


def as_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS = (as_pipe, as_zeros, as_loop, as_folder, as_deep, as_huge)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_stands_in_for_a_file_of_a_run_is_not_waited_for(
    tmp_path: Path, kind: Callable[[Path], None]
) -> None:
    for number, name in enumerate(("run.json", "ledger.db", "ledger.db-journal", "lock")):
        folder = a_run.ended_run(tmp_path / name)
        (folder / name).unlink(missing_ok=True)
        kind(folder / name)
        answers(READERS[number % 2], folder)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_diagnose_does_not_wait_for_what_is_no_file(
    tmp_path: Path, kind: Callable[[Path], None]
) -> None:
    for name in ("rank0.log", "stderr.log", "dump.json", "nccl_trace_rank_0", "events.jsonl"):
        kind(tmp_path / name)
    answers("diagnose", tmp_path)


def test_what_a_terminal_obeys_is_shown_escaped(tmp_path: Path) -> None:
    """In the ledger's texts, in run.json, in names of folders, in what a snapshot says."""
    folder = a_run.ended_run(tmp_path)
    for column in ("reason", "error", "traceback"):
        change(folder, f"UPDATE interruptions SET {column} = ?", f"a{ESCAPE}b")
    change(folder, "UPDATE sessions SET state = 'failed', reason = ?", ESCAPE)
    change(folder, "UPDATE meta SET run = ?", f"run{ESCAPE}")
    for command in READERS:
        assert "\\x1b" in answers(command, folder)
        assert "owned" in answers(command, folder, "--json")
    card = json.loads((folder / "run.json").read_text()) | {"format": 99, "version": ESCAPE}
    (folder / "run.json").write_text(json.dumps(card))
    for command in READERS:
        assert "\\x1b" in answers(command, folder)
        answers(command, tmp_path / f"no{ESCAPE}run")
    answers("diagnose", tmp_path / f"no{ESCAPE}run")
