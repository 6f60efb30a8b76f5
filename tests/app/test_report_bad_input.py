"""`outlast report` of runs that are not what one expects: it answers, and makes nothing up."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from outlast.model.records import Meta
from outlast.runtime.folders.run_folder import RunFolder
from outlast.runtime.ledger.store import Ledger
from tests.app.command import outlast, outlast_anew
from tests.ledger import a_run


def report(path: Path) -> subprocess.CompletedProcess[str]:
    page, told = outlast("report", path), outlast("report", path, "--json")
    assert (page.returncode, told.returncode) == (0, 0), page.stderr + told.stderr
    return told


@pytest.mark.parametrize("ended", [True, False], ids=["empty", "starting"])
def test_a_run_without_a_process_yet_has_no_figures_and_no_errors(
    tmp_path: Path, ended: bool
) -> None:
    folder = RunFolder.create(tmp_path / "x", name="x", version="0.1.0", options={})
    meta = Meta("x", "x", 4, "0.1.0", 100.0, 1_767_323_045.0)
    ledger = Ledger.create(folder.ledger, meta, pid=os.getpid())
    with contextlib.closing(folder), contextlib.closing(ledger):
        if ended:
            ledger.end_session(ended_s=100.0, state="failed", exit_code=1, reason="no such file")
        facts = json.loads(report(folder.path).stdout)
    assert facts["ettr"] is None
    assert facts["balance"]["sums"], facts["balance"]
    assert facts["reliability"]["all"]["mttf_s"] is None
    assert facts["goodput"]["steps"] is None
    assert facts["components"] == []


def test_clocks_that_went_back_make_no_negative_seconds(tmp_path: Path) -> None:
    """The second launcher says that it began before the first one. An interruption says that it
    was over before it began.
    """
    path = a_run.ended_run(tmp_path)
    started_wall_s = a_run.META.started_wall_s - 3600
    with contextlib.closing(
        Ledger.resume(path / "ledger.db", pid=7, started_s=3.0, started_wall_s=started_wall_s)
    ) as ledger:
        ledger.end_session(ended_s=2.0, state="ended", exit_code=0, reason="")
    with contextlib.closing(sqlite3.connect(path / "ledger.db")) as connection, connection:
        connection.execute(
            "UPDATE interruptions SET resumed_s = 105.0, restored_s = 104.0, regrouped_s = 103.0"
        )
    facts = json.loads(report(path).stdout)
    assert facts["balance"]["sums"], facts["balance"]
    assert min(value for value in facts["rank_seconds"].values() if value is not None) >= 0
    assert facts["elapsed_s"] >= facts["wall_s"] >= 0
    assert all(one["lost_rank_s"] >= 0 for one in facts["interruptions"])
    assert facts["reliability"]["all"]["mttr_s"] >= 0


def test_the_time_zone_of_the_reader_changes_nothing(tmp_path: Path) -> None:
    """Every time says that it is UTC. Here it is 14 hours later than in UTC."""
    said = outlast_anew("report", a_run.ended_run(tmp_path), "--md", TZ="Pacific/Kiritimati")
    assert "started 2026-01-02 03:04:05 UTC" in said.stdout


def test_a_ledger_that_another_program_has_locked_is_named(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    with contextlib.closing(sqlite3.connect(path / "ledger.db")) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        done = outlast("report", path)
    assert done.returncode == 1
    assert "locked" in done.stderr
    assert "wait until the program that has locked it has ended" in " ".join(done.stderr.split())
    assert str(path / "ledger.db") in done.stderr


def test_a_ledger_of_a_newer_outlast_says_what_to_install(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    with contextlib.closing(sqlite3.connect(path / "ledger.db")) as connection, connection:
        connection.execute("PRAGMA user_version = 7")
        connection.execute("UPDATE meta SET version = '0.9.0'")
    done = outlast("report", path)
    assert done.returncode == 2
    assert "it was written by outlast 0.9.0: install that version or a newer one" in done.stderr


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_older_ledger_is_read_and_brought_up_to_date_by_a_resume(
    tmp_path: Path, version: int
) -> None:
    """Method: take away from a ledger what later schemas have added."""
    path = a_run.ended_run(tmp_path)
    before = json.loads(report(path).stdout)
    with contextlib.closing(sqlite3.connect(path / "ledger.db")) as connection, connection:
        connection.execute("ALTER TABLE sessions DROP COLUMN world_size")
        if version < 3:
            connection.execute("ALTER TABLE steps DROP COLUMN logged")
        if version < 2:
            stay = "BEFORE DELETE ON steps BEGIN SELECT RAISE(ABORT, 'x'); END"
            connection.execute("DROP TRIGGER steps_stay")
            connection.execute(f"CREATE TRIGGER steps_stay {stay}")
            connection.execute("ALTER TABLE lives DROP COLUMN stalls")
            connection.execute("ALTER TABLE interruptions DROP COLUMN tier")
        connection.execute(f"PRAGMA user_version = {version}")
    old = json.loads(report(path).stdout)
    assert old["rank_seconds"] == before["rank_seconds"]
    if version < 2:
        assert [one["tier"] for one in old["interruptions"]] == [None] * 3
    with contextlib.closing(
        Ledger.resume(path / "ledger.db", pid=7, started_s=3.0, started_wall_s=0.0)
    ) as ledger:
        ledger.add(a_run.LIVES[0])
        ledger.add(a_run.StepsBucket(3.0, 4.0, 200, 210, 0.1, 0.1, 0.1, {"loss": 2.0}))
        ledger.end_session(ended_s=4.0, state="ended", exit_code=0, reason="")
    assert len(json.loads(report(path).stdout)["sessions"]) == 2


@pytest.mark.parametrize(
    "given",
    [
        ("--table",),
        ("--predict", "cluster.toml"),
        ("--price", "2.5/h"),
        ("--tokens-per-step", "16M"),
        ("--flops-per-step", "4e19"),
    ],
    ids=lambda given: given[0],
)
def test_what_a_page_does_not_show_is_refused_beside_it(
    tmp_path: Path, given: tuple[str, ...]
) -> None:
    """Before, such an option was ignored without a word."""
    path = a_run.ended_run(tmp_path)
    said = outlast("report", path, "--html", tmp_path / "page.html", *given)
    assert said.returncode == 2
    assert f"{given[0]} goes with neither --html nor --md" in said.stderr
    assert not (tmp_path / "page.html").exists()


def test_two_views_are_not_asked_for_at_once(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    said = outlast("report", path, "--table", "--predict", tmp_path / "cluster.toml")
    assert (said.returncode, said.stdout) == (2, "")
    assert "--table and --predict are two views" in said.stderr


@pytest.mark.parametrize("table", ["lives", "interruptions", "steps", "snapshot"])
def test_what_a_damaged_ledger_lacks_is_never_reported_as_nothing(
    tmp_path: Path, table: str
) -> None:
    """Method: the root page of one table is overwritten. Each command says that the table lacks
    rows, and a figure that needs them is "not known", and not 0.
    """
    path = a_run.ended_run(tmp_path)
    a_run.overwrite(path / "ledger.db", table)
    told = json.loads(report(path).stdout)
    assert told["lacks"] == [table]
    assert told["ettr"] is None or table == "snapshot"
    assert (told["rank_seconds"]["productive"] is None) == (table == "lives")
    said = {
        "report": outlast("report", path).stdout,
        "status": outlast("status", path).stdout,
        "page": outlast("report", path, "--md").stdout,
        "export": outlast("export", path, tmp_path / "tables").stderr,
    }
    for name, text in said.items():
        assert "The ledger is damaged. It lacks" in " ".join(text.split()), name
    untrue = {
        "lives": ("ETTR    0.0 %",),
        "interruptions": ("No interruption so far", "None so far", "Nothing has failed"),
        "steps": ("the script calls neither",),
        "snapshot": (),
    }
    for one in untrue[table]:
        assert one not in said["report"] + said["page"], one
