"""`outlast export`: the ledger as flat tables that any program reads."""

from __future__ import annotations

import csv
import json
import os
import pty
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.app.reports.export_tables import TABLES, csv_of, json_lines_of, tables_of
from outlast.model.records import Event
from outlast.model.terms import CAUSES
from outlast.runtime.ledger.view import look
from tests.app.command import outlast
from tests.ledger import a_run


def rows_in(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as text:
        return list(csv.DictReader(text))


def test_every_row_of_the_ledger_is_in_a_file(tmp_path: Path) -> None:
    run = a_run.ended_run(tmp_path)
    done = outlast("export", run, tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {f"{one}.csv" for one in TABLES}
    with closing(sqlite3.connect(run / "ledger.db")) as ledger:
        for name in TABLES:
            (count,) = ledger.execute(f"SELECT count(*) FROM {name}").fetchone()
            rows = rows_in(tmp_path / "out" / f"{name}.csv")
            assert len(rows) == count, name
            assert f"{name}.csv  {count} rows" in done.stdout
            assert {(row["run"], row["session"]) for row in rows} == {(a_run.META.run, "1")}


def test_moments_count_from_the_start_and_are_there_in_utc(tmp_path: Path) -> None:
    """The run begins at monotonic 100 s; rank 1 is killed 10 s later."""
    run = a_run.ended_run(tmp_path)
    outlast("export", run, tmp_path / "out")
    first = rows_in(tmp_path / "out" / "interruptions.csv")[0]
    assert (first["fault_s"], first["detected_s"], first["resumed_s"]) == ("10.0", "10.002", "10.1")
    assert first["at"] == "2026-01-02T03:04:15.002Z"
    assert (first["mechanism"], first["ranks"], first["nodes"]) == ("signal", "[1]", '["here"]')
    life = rows_in(tmp_path / "out" / "lives.csv")[0]
    assert (life["assigned_s"], life["seconds_productive"]) == ("1.0", "13.0")
    assert {f"seconds_{cause.value}" for cause in CAUSES} <= set(life)
    step = rows_in(tmp_path / "out" / "steps.csv")[0]
    assert (step["from_s"], step["to_s"], step["median_s"]) == ("2.0", "10.0", "0.06")


def test_json_lines_keep_lists_and_objects(tmp_path: Path) -> None:
    run = a_run.ended_run(tmp_path)
    said = outlast("export", run, "--table", "interruptions", "--format", "jsonl").stdout
    rows = [json.loads(line) for line in said.splitlines()]
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert rows[0]["ranks"] == [1]
    assert rows[2]["fault_s"] is None
    events = outlast("export", run, "--table", "events", "--format", "jsonl").stdout
    assert any(json.loads(line)["data"] == {"sharded": False} for line in events.splitlines())


def test_the_class_is_that_of_the_verdict_where_the_ledger_says_none(tmp_path: Path) -> None:
    records = look(str(a_run.ended_run(tmp_path))).records
    (part,) = records.sessions
    said = {"class": "hbm", "confidence": 0.9}
    verdict = Event(111.0, 1.0, "verdict", {"interruption": 1, "verdict": said})
    told = replace(records, sessions=(replace(part, events=(*part.events, verdict)),))
    (table,) = [one for one in tables_of(told) if one.name == "interruptions"]
    assert [row["failure_class"] for row in table.rows] == ["hbm", "unknown", "user_code"]


def test_hostile_text_is_no_formula_and_no_second_row(tmp_path: Path) -> None:
    records = look(str(a_run.ended_run(tmp_path))).records
    (part,) = records.sessions
    bad = replace(
        a_run.KILL,
        reason='=HYPERLINK("http://x")',
        error='a,"b"\nc\0',
        traceback="-1+1|cmd",
        fault_s=float("nan"),
    )
    told = replace(records, sessions=(replace(part, interruptions=(bad,)),))
    (table,) = [one for one in tables_of(told) if one.name == "interruptions"]
    (tmp_path / "x.csv").write_text(csv_of(table))
    (row,) = rows_in(tmp_path / "x.csv")
    assert row["reason"] == '\'=HYPERLINK("http://x")'
    assert row["traceback"] == "'-1+1|cmd"
    assert row["error"] == 'a,"b"\nc'
    (line,) = json_lines_of(table).splitlines()
    assert json.loads(line)["reason"] == '=HYPERLINK("http://x")', "JSON has no formulas"
    assert json.loads(line)["fault_s"] is None


def test_parquet_has_the_same_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run = a_run.ended_run(tmp_path)
    done = outlast("export", run, tmp_path / "out", "--format", "parquet")
    assert (done.returncode, done.stderr) == (0, "")
    table = parquet.read_table(tmp_path / "out" / "interruptions.parquet")
    assert table.column("ranks").to_pylist() == [[1], [1], [0]]
    assert table.column("resumed_s").to_pylist() == [10.1, 10.1, 16.25]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "say where the tables go"),
        (("{out}", "--table", "steps"), "say where the tables go"),
        (("{old}",), "exists"),
        (("{old}/no/out",), "is not a folder"),
        (("--table", "ranks"), "invalid choice"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    run = a_run.ended_run(tmp_path)
    (tmp_path / "old").mkdir()
    words = [one.format(out=tmp_path / "out", old=tmp_path / "old") for one in arguments]
    done = outlast("export", run, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([run.name, "old"])


def test_a_table_on_a_terminal_has_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    """Method: a node's name has codes that clear the screen and set the title. A pipe gets them."""
    run = a_run.ended_run(tmp_path)
    name = "n1\x1b[2J\x1b]0;owned\x07"
    with closing(sqlite3.connect(run / "ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE lives SET node = ?", (name,))
    assert name in outlast("export", run, "--table", "lives").stdout
    command = [sys.executable, "-m", "outlast", "export", str(run), "--table", "lives"]
    screen, terminal = pty.openpty()
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, stdin=terminal) as process:
        os.close(terminal)
        said = b""
        try:
            while part := os.read(screen, 65536):
                said += part
        except OSError:  # EIO: the last process has closed the terminal
            pass
        assert process.wait(30) == 0
    os.close(screen)
    assert b"\\x1b[2J" in said
    assert b"\x1b" not in said
    assert b"\x07" not in said
