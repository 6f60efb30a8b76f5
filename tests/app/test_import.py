"""`outlast import`: a run's folder that report, status, calibrate and plan read like any other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.command import outlast
from tests.planner.test_imports import JOBS, WATCHED

READERS = ("status", "report", "calibrate")


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    file = tmp_path / "jobs"
    file.write_text(JOBS)
    return file


def test_slurm_jobs_become_a_run_that_everybody_reads(tmp_path: Path, jobs: Path) -> None:
    done = outlast("import", "--sacct", jobs, "--run-dir", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("jobs: 4 failures in 39 h 00 m, 8 sessions, 16 ranks\n")
    for name in READERS:
        read = outlast(name, tmp_path / "run", "--json")
        assert (read.returncode, read.stderr) == (0, ""), name
        assert outlast(name, tmp_path / "run").returncode == 0
    report = json.loads(outlast("report", tmp_path / "run", "--json").stdout)
    assert (report["state"], report["world_size"], len(report["sessions"])) == ("stopped", 16, 8)
    assert [one["class"] for one in report["interruptions"]] == [
        "unknown",
        "host_memory",
        "unknown",
        "unknown",
    ]
    assert report["wall_s"] == pytest.approx(39 * 3600)
    assert report["downtime_s"] == pytest.approx(10 * 60 * 3 + 30 * 60)
    assert report["ettr"] is None, "steps were not seen"
    plan = outlast(
        "plan",
        "--ledger",
        tmp_path / "run",
        "--gpus",
        "64",
        "--params",
        "1B",
        "--replicas",
        "2",
        "--cores",
        "1",
    )
    assert plan.returncode == 0, plan.stderr
    assert "every 9 h 45 m" in plan.stdout, "39 hours, 4 failures"


def test_reports_of_an_import_say_only_what_its_source_shows(tmp_path: Path, jobs: Path) -> None:
    """Slurm's table shows neither steps, nor what ranks did, nor when a failure was over."""
    run = tmp_path / "run"
    outlast("import", "--sacct", jobs, "--run-dir", run)
    said = [outlast(*words, run).stdout for words in (("report",), ("status",), ("report", "--md"))]
    for untrue in ("user code", "calls neither", "not yet", "open", "did not come back"):
        assert not [text for text in said if untrue in " ".join(text.split())], untrue
    assert "not in the source of the import" in said[0]
    page = run / "page.html"
    outlast("report", run, "--html", page)
    for text in (page.read_text(), said[2]):
        assert "not back" not in text
        assert "ime of return not known" in text or "time of its return is not known" in text


def test_a_table_gives_the_same_rates_by_way_of_a_ledger(tmp_path: Path) -> None:
    table = tmp_path / "failures.csv"
    table.write_text(WATCHED)
    assert outlast("import", "--csv", table, "--run-dir", tmp_path / "run").returncode == 0
    by_ledger = json.loads(outlast("calibrate", tmp_path / "run", "--json").stdout)
    by_table = json.loads(outlast("calibrate", "--csv", table, "--json").stdout)
    assert by_ledger["rates"] == by_table["rates"]


def test_names_that_a_terminal_would_obey_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    table = tmp_path / "failures.csv"
    table.write_text(WATCHED.replace("\na,", "\n\x1b]0;owned\x07a,"))
    done = outlast("import", "--csv", table, "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    for name in READERS:
        said = outlast(name, tmp_path / "run")
        assert not {"\x1b", "\x07"} & set(said.stdout + said.stderr), name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "one of the arguments --torchrun --sacct --csv is required"),
        (("--sacct", "{jobs}", "--csv", "{jobs}"), "not allowed with"),
        (("--sacct", "{jobs}", "--units", "3"), "are about a table of failures"),
        (("--csv", "{jobs}", "--job-name", "x"), "--job-name is about jobs of Slurm"),
        (("--csv", "{jobs}", "--no-diagnosis"), "--no-diagnosis is about logs"),
        (("--csv", "{jobs}"), "there is no column"),
        (("--sacct", "{none}"), "cannot be read"),
        (("--torchrun", "{none}"), "is not a folder"),
        (("--sacct", "{jobs}", "--run-dir", "{run}"), "run"),
    ],
)
def test_what_cannot_be_imported_leaves_nothing_behind(
    tmp_path: Path, jobs: Path, arguments: tuple[str, ...], said: str
) -> None:
    run = tmp_path / "run"
    assert outlast("import", "--sacct", jobs, "--run-dir", run).returncode == 0
    before = sorted(tmp_path.iterdir())
    words = [one.format(jobs=jobs, none=tmp_path / "none", run=run) for one in arguments]
    done = outlast("import", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "error: " in done.stderr
    assert sorted(tmp_path.iterdir()) == before


FAILING = """
import os
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    print("trained", flush=True)
main()
"""


@pytest.mark.drill
def test_the_logs_of_a_real_torchrun_are_read_and_diagnosed(tmp_path: Path) -> None:
    """Method: rank 1 fails once; torchrun starts both ranks again."""
    (tmp_path / "script.py").write_text(FAILING)
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    done = subprocess.run(
        [
            torchrun,
            "--standalone",
            "--nproc-per-node",
            "2",
            "--max-restarts",
            "1",
            "--monitor-interval",
            "0.2",
            "--redirects",
            "3",
            "--log-dir",
            "logs",
            "script.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    said = outlast("import", "--torchrun", tmp_path / "logs", "--run-dir", tmp_path / "run")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("logs: 1 failure in ")
    report = json.loads(outlast("report", tmp_path / "run", "--json").stdout)
    assert (report["state"], report["world_size"]) == ("ended", 2)
    (one,) = report["interruptions"]
    assert (one["class"], one["ranks"], one["mechanism"]) == ("hbm", [1], "exception")
    assert "uncorrectable ECC" in one["error"]
    (verdict,) = report["verdicts"]
    assert verdict["class"] == "hbm"
