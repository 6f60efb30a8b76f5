"""`outlast calibrate` through the real command, over ledgers that the product's own writer made."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from outlast.app import cli
from outlast.model.drills import drill_plan
from outlast.model.records import StepsBucket
from outlast.planner import cluster_file
from outlast.runtime.ledger.store import Ledger
from tests.app.command import outlast, same_as_golden
from tests.ledger import a_run

TABLE = "node,time,class,start,end,installed\nn1,50,gpu,0,100,0\nn2,,,0,100,0\n"
KEYS = {
    "sources",
    "failures",
    "exposure_s",
    "rates",
    "bounds",
    "shapes",
    "clumps",
    "scale",
    "phases",
    "booked",
    "cannot_tell",
    "assumptions",
    "out",
    "drill",
}


def quiet_run(root: Path) -> Path:
    """A run that trained for five seconds and was never interrupted."""
    folder, ledger = a_run.live_run(root)
    began_s = ledger.read().meta.started_s
    ledger.add(StepsBucket(began_s + 4, began_s + 9, 0, 50, 0.09, 0.1, 0.2))
    ledger.end_session(ended_s=began_s + 10, state="ended", exit_code=0, reason="")
    ledger.close()
    folder.close()
    return folder.path


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]
Facts = Callable[..., dict]


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Run:
    """`outlast calibrate` in this process, which takes a hundredth of a new one's time; what
    matters of a new one is tried in one.
    """

    def run(*arguments: str | Path) -> Done:
        capsys.readouterr()
        code = cli.main(["calibrate", *map(str, arguments)])
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


@pytest.fixture
def calibrated(here: Run) -> Facts:
    def run(*arguments: str | Path) -> dict:
        done = here(*arguments, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    return run


# --- ledgers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [120, 80])
def test_the_page_of_a_run(tmp_path: Path, columns: int) -> None:
    done = outlast("calibrate", a_run.ended_run(tmp_path), COLUMNS=str(columns))
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= columns
    same_as_golden(f"calibrate-{columns}.txt", done.stdout)


def test_the_json_has_rates_phases_and_what_cannot_be_told(
    tmp_path: Path, calibrated: Facts
) -> None:
    facts = calibrated(a_run.ended_run(tmp_path))
    assert set(facts) == KEYS
    assert facts["failures"] == 3
    assert {one["class"]: (one["count"], one["unit"], one["extent"]) for one in facts["rates"]} == {
        "unknown": (2, "gpu", "process"),
        "user_code": (1, "run", "process"),
    }
    for one in facts["rates"]:
        assert one["low_per_s"] < one["rate_per_s"] < one["high_per_s"]
        assert one["mttf_s"] == pytest.approx(one["exposure_s"] / one["count"])
    assert facts["phases"]["detect"]["count"] == 3
    assert facts["phases"]["unknown_faults"] == 1
    assert any("one world size only" in text for text in facts["cannot_tell"])


def test_a_run_that_never_failed_has_a_bound_and_is_no_error(
    tmp_path: Path, here: Run, calibrated: Facts
) -> None:
    path = quiet_run(tmp_path)
    page = here(path)
    assert page.returncode == 0
    assert (
        "Nothing has failed yet. That is no rate of zero, but an upper bound (95 %)" in page.stdout
    )
    facts = calibrated(path)
    assert facts["rates"] == []
    assert {one["what"]: (one["count"], one["rate_per_s"]) for one in facts["bounds"]} == {
        "anything fails": (0, None),
        "a node is lost": (0, None),
    }
    assert facts["bounds"][0]["high_per_s"] * facts["bounds"][0]["exposure_s"] == pytest.approx(
        1.9207, rel=1e-4
    )


def test_a_ledger_without_a_step_is_an_error_that_says_what_to_do(
    tmp_path: Path, here: Run
) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        done = here(folder.path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "has no committed step: there was no training in which a failure could be seen"
        in done.stderr
    )
    assert "hint: calibrate from a run that has trained" in done.stderr


def test_a_live_run_is_calibrated_up_to_now(tmp_path: Path, calibrated: Facts) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        began_s = ledger.read().meta.started_s
        ledger.add(StepsBucket(began_s + 4, began_s + 9, 0, 50, 0.09, 0.1, 0.2))
        ledger.flush()
        facts = calibrated(folder.path)
    assert 6.0 <= facts["exposure_s"]["gpu"] < 60.0


def test_several_runs_are_taken_together(tmp_path: Path, calibrated: Facts) -> None:
    one, two = a_run.ended_run(tmp_path / "one"), a_run.ended_run(tmp_path / "two")
    alone, both = calibrated(one), calibrated(one, two)
    assert both["failures"] == 2 * alone["failures"]
    assert both["exposure_s"]["gpu"] == pytest.approx(2 * alone["exposure_s"]["gpu"])


def test_without_a_name_it_is_the_newest_run(tmp_path: Path) -> None:
    a_run.ended_run(tmp_path / "runs")
    done = outlast("calibrate", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("toy: 3 failures in ")


def test_a_cluster_file_is_written_once_and_can_be_read(
    tmp_path: Path, here: Run, calibrated: Facts
) -> None:
    run, out = a_run.ended_run(tmp_path), tmp_path / "cluster.toml"
    assert calibrated(run, "--out", out)["out"] == str(out)
    text = out.read_text()
    cluster = cluster_file.parse(text, source="cluster.toml")
    assert cluster.failures == ("unknown", "user_code")
    assert cluster.value("failure.unknown.count") == 2.0
    assert "# never seen: a node is lost; at most once in " in text
    again = here(run, "--out", out)
    assert (again.returncode, again.stdout) == (2, "")
    assert f"error: {out} exists" in again.stderr
    assert out.read_text() == text


def test_a_drill_plan_has_the_mix_of_failures_that_was_seen(
    tmp_path: Path, here: Run, calibrated: Facts
) -> None:
    run, out = a_run.ended_run(tmp_path), tmp_path / "mix.toml"
    assert calibrated(run, "--drill", out)["drill"] == str(out)
    plan = drill_plan.parse(out.read_text(), source="mix.toml")
    weights = {kind: one.count for one in plan.portions for kind in one.kinds}
    assert plan.count == 3
    assert weights == pytest.approx(
        {"kill": 1.5, "hang": 0.5, "raise": 0.667, "shape": 0.333}, abs=1e-3
    )
    assert plan.time_scale == 1.0, "they came faster than a drill would have them"
    again = here(run, "--drill", out)
    assert (again.returncode, again.stdout) == (2, "")
    assert f"error: {out} exists" in again.stderr


def test_a_plan_of_a_large_fleet_fits_into_a_drill(tmp_path: Path, here: Run) -> None:
    """600 failures in 60,000 s: 466 of them, in 8 s each."""
    rows = "".join(f"n1,{at * 99},hbm,0,60000,0\n" for at in range(1, 601))
    (tmp_path / "f.csv").write_text(TABLE.splitlines()[0] + "\n" + rows)
    done = here("--csv", tmp_path / "f.csv", "--drill", tmp_path / "mix.toml")
    assert done.returncode == 0, done.stderr
    assert "outlast drill" in done.stdout
    plan = drill_plan.parse((tmp_path / "mix.toml").read_text(), source="mix.toml")
    assert plan.count == 466
    assert plan.length_s == pytest.approx(466 * 8.0, rel=0.01)
    assert {kind: one.stands_for.value for one in plan.portions for kind in one.kinds} == {
        "abort": "hbm",
        "exit": "silent_data_corruption",
    }


def test_without_a_failure_there_is_no_mix_and_no_file(tmp_path: Path, here: Run) -> None:
    out, mix = tmp_path / "cluster.toml", tmp_path / "mix.toml"
    done = here(quiet_run(tmp_path), "--out", out, "--drill", mix)
    assert done.returncode == 2
    assert "nothing has failed yet" in done.stderr
    assert not out.exists()
    assert not mix.exists()
    same = here(a_run.ended_run(tmp_path / "b"), "--out", out, "--drill", out)
    assert (same.returncode, out.exists()) == (2, False)


def test_a_damaged_ledger_is_exit_code_1(tmp_path: Path, here: Run) -> None:
    path = a_run.ended_run(tmp_path)
    (path / "ledger.db").write_bytes(b"damaged by somebody" * 100)
    done = here(path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not a ledger" in done.stderr


def test_text_from_the_run_is_never_obeyed(tmp_path: Path) -> None:
    """Method: a run's folder whose name holds an escape sequence and markup."""
    path = a_run.ended_run(tmp_path)
    evil = path.rename(tmp_path / "a\x1b[31m[red]b")
    with contextlib.closing(Ledger.read_only(evil / "ledger.db")) as ledger:
        assert ledger.read().sessions
    done = outlast("calibrate", evil)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stdout.startswith("a\\x1b[31m[red]b: 3 failures")


# --- tables ---------------------------------------------------------------------------------------


def test_a_table_of_failures_is_calibrated(tmp_path: Path, calibrated: Facts) -> None:
    (tmp_path / "f.csv").write_text(TABLE)
    facts = calibrated("--csv", tmp_path / "f.csv")
    [rate] = facts["rates"]
    assert (rate["class"], rate["unit"], rate["extent"], rate["count"], rate["exposure_s"]) == (
        "gpu",
        "node",
        "node",
        1,
        200.0,
    )
    assert facts["shapes"]["gpu"]["varies"] is False
    assert any("a table of failures does not have that" in text for text in facts["cannot_tell"])


def test_a_table_without_a_failure_has_bounds_too(
    tmp_path: Path, here: Run, calibrated: Facts
) -> None:
    (tmp_path / "f.csv").write_text("node,time,class,start,end\nn1,,,0,100\nn2,,,0,100\n")
    assert (
        "anything fails: never seen in 3 m 20 s of nodes; at most once in 1 m 44 s of a node"
        in here("--csv", tmp_path / "f.csv").stdout
    )
    facts = calibrated("--csv", tmp_path / "f.csv", "--out", tmp_path / "c.toml")
    assert [one["what"] for one in facts["bounds"]] == ["anything fails", "a node is lost"]
    cluster = cluster_file.parse((tmp_path / "c.toml").read_text(), source="c.toml")
    assert (cluster.value("failure.unknown.count"), cluster.value("failure.unknown.unit")) == (
        0.0,
        "node",
    )


@pytest.mark.parametrize(
    ("out", "error"),
    [
        ("no-folder/c.toml", "no-folder is not a folder"),
        ("/proc/c.toml", "/proc/c.toml cannot be written"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_an_error(
    tmp_path: Path, here: Run, monkeypatch: pytest.MonkeyPatch, out: str, error: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.csv").write_text(TABLE)
    done = here("--csv", "f.csv", "--out", out)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr


def test_a_fleet_is_said_on_the_command_line(tmp_path: Path, calibrated: Facts) -> None:
    (tmp_path / "f.csv").write_text("gpu,time,class\ng1,2025-01-03,DBE\n")
    fleet = ("--units", "16", "--from", "2025-01-01", "--to", "2025-01-31", "--class", "DBE=hbm")
    [rate] = calibrated("--csv", tmp_path / "f.csv", *fleet)["rates"]
    assert (rate["class"], rate["unit"], rate["exposure_s"]) == ("hbm", "gpu", 16 * 30 * 86_400.0)


@pytest.mark.parametrize(
    ("text", "arguments", "error"),
    [
        (TABLE + "n3,x,gpu,0,100,0\n", (), "f.csv, line 4: time is 'x', which is not a time"),
        ("", (), "f.csv is empty"),
        (TABLE, ("--units", "3"), "--from, --to missing"),
        (
            TABLE,
            ("--units", "3", "--from", "0", "--to", "2025-01-01"),
            "--from and --to are not alike",
        ),
        (
            TABLE,
            ("--units", "3", "--from", "0", "--to", "100"),
            "line 2: both the table and --units",
        ),
        (TABLE, ("--class", "gpu"), "--class gpu: 'gpu' is not a class"),
        (TABLE, ("--class", "a=gpu", "--class", "a=hbm"), "--class says a twice"),
        (TABLE, ("--class", "DBE=hbn"), "--class DBE=hbn: 'hbn' is not a class"),
        (TABLE, ("a-run",), "runs and --csv cannot be calibrated together"),
        (TABLE, ("--units", "many"), "argument --units: invalid int value: 'many'"),
    ],
)
def test_a_wrong_table_or_option_is_an_error_with_exit_code_2(
    tmp_path: Path,
    text: str,
    arguments: tuple[str, ...],
    error: str,
    here: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "f.csv").write_text(text)
    monkeypatch.chdir(tmp_path)
    done = here(*arguments, "--csv", "f.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr
    assert "\nhint: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("none.csv", None, "none.csv cannot be read: No such file"),
        ("b.csv", b"node,time,class\n\xff\n", "b.csv, line 2 is not text in UTF-8"),
        ("long.csv", b"a" * 70_000, "long.csv, line 1 is longer than"),
    ],
)
def test_a_file_that_is_no_table_is_an_error(
    tmp_path: Path,
    name: str,
    content: bytes | None,
    error: str,
    here: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    done = here("--csv", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert error in done.stderr


def test_options_of_tables_are_refused_for_ledgers(
    tmp_path: Path, here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = here("--units", "3")
    assert done.returncode == 2
    assert "are about a table of failures" in done.stderr


def test_a_run_named_twice_is_refused(tmp_path: Path, here: Run) -> None:
    path = a_run.ended_run(tmp_path)
    done = here(path, path / ".." / path.name)
    assert done.returncode == 2
    assert "is named twice" in done.stderr


def test_the_help_names_every_option() -> None:
    """`outlast --help` lists it; its own help names every option."""
    assert "calibrate" in outlast("--help").stdout
    page = outlast("calibrate", "--help").stdout
    assert all(
        option in page
        for option in (
            "--csv",
            "--units",
            "--from",
            "--to",
            "--class",
            "--out",
            "--drill",
            "--json",
        )
    )
