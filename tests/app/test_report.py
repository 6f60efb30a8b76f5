"""`outlast report` through the real command: the contract's JSON, and the page for people as golden
files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sqlite3
from pathlib import Path

import pytest

from outlast.app import words
from outlast.app.reports.report import _began_anew
from outlast.model.records import Event
from outlast.model.terms import CAUSES, UNMEASURED
from outlast.runtime import clock
from outlast.runtime.ledger.store import Ledger
from tests.app.command import outlast, same_as_golden
from tests.ledger import a_run

CONTRACT = {
    "run",
    "ettr",
    "ettr_training",
    "wall_s",
    "world_size",
    "steps",
    "rank_seconds",
    "spare_seconds",
    "interruptions",
}
INTERRUPTION = {
    *(
        "id",
        "parent",
        "class",
        "mechanism",
        "ranks",
        "nodes",
        "rung",
        "fault_s",
        "fault_not_before_s",
    ),
    *("detected_s", "resumed_s", "mttr_s", "steps_repeated", "steps_lost"),
}


def report(path: Path) -> dict:
    done = outlast("report", path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("ended", "not seen: the script calls neither"),
        ("failed", "the run was over before the first one, or the script calls neither"),
        ("stopped", "the run was over before the first one, or the script calls neither"),
        ("", "none seen so far: the first one is still to come, or the script calls neither"),
    ],
)
def test_a_script_is_blamed_for_no_steps_only_once_it_has_ended(
    tmp_path: Path, state: str, said: str
) -> None:
    """Method: a ledger without a step, over in each way and not over."""
    folder, ledger = a_run.live_run(tmp_path)
    if state:
        ledger.end_session(ended_s=clock.now_s(), state=state, exit_code=0, reason="told to")
    try:
        page = " ".join(outlast("report", folder.path).stdout.split())
    finally:
        ledger.close()
        folder.close()
    assert said in page, page


def test_the_json_keeps_its_contract_and_causes_sum_up(
    tmp_path: Path,
) -> None:
    facts = report(a_run.ended_run(tmp_path))
    assert set(facts) >= CONTRACT
    assert set(facts["rank_seconds"]) == {cause.value for cause in CAUSES}
    unmeasured = {cause for cause, value in facts["rank_seconds"].items() if value is None}
    assert unmeasured == {cause.value for cause in UNMEASURED}
    assert math.isclose(
        sum(value or 0.0 for value in facts["rank_seconds"].values()),
        facts["world_size"] * facts["wall_s"],
        abs_tol=1e-6,
    )
    assert (facts["balance"]["expected_s"], facts["balance"]["wrong"]) == (40.0, [])
    assert facts["balance"]["sums"]
    assert (facts["run"], facts["state"], facts["wall_s"], facts["world_size"], facts["steps"]) == (
        a_run.META.run,
        "ended",
        20.0,
        2,
        200,
    )
    assert facts["ettr"] == pytest.approx(facts["rank_seconds"]["productive"] / 40.0)
    assert facts["ettr_training"] == pytest.approx(
        facts["rank_seconds"]["productive"]
        / (40.0 - facts["rank_seconds"]["startup"] - facts["rank_seconds"]["shutdown"])
    )
    assert facts["spare_seconds"] == pytest.approx(8.51)


def test_interruptions_are_in_seconds_since_the_run_began(tmp_path: Path) -> None:
    kill, child, hang = report(a_run.ended_run(tmp_path))["interruptions"]
    assert set(kill) >= INTERRUPTION
    assert (kill["class"], kill["mechanism"], kill["ranks"], kill["nodes"], kill["rung"]) == (
        "unknown",
        "signal",
        [1],
        ["here"],
        "spare",
    )
    assert (kill["fault_s"], kill["detected_s"], kill["resumed_s"], kill["mttr_s"]) == (
        10.0,
        10.002,
        10.1,
        0.1,
    )
    assert (child["parent"], child["resumed_s"]) == (kill["id"], kill["resumed_s"])
    assert (hang["fault_s"], hang["fault_not_before_s"], hang["mttr_s"], hang["class"]) == (
        None,
        15.0,
        None,
        "user_code",
    )


def test_mttr_takes_an_unknown_fault_as_an_interval(tmp_path: Path) -> None:
    mttr = report(a_run.ended_run(tmp_path))["mttr"]
    assert (mttr["count"], mttr["open_count"]) == (2, 0)
    assert mttr["median_s"] == pytest.approx(0.1)
    assert mttr["max_range_s"] == pytest.approx([0.25, 1.25])


def test_a_live_run_counts_up_to_now_and_the_step_in_flight_with_it(tmp_path: Path) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        facts = report(folder.path)
    assert facts["state"] == "starting"
    assert 10.0 <= facts["wall_s"] < 40.0
    assert facts["rank_seconds"]["startup"] == 4.0
    assert facts["rank_seconds"]["productive"] == pytest.approx(facts["wall_s"] - 4.0)


def test_a_lost_run_counts_up_to_its_last_sign_of_life(tmp_path: Path) -> None:
    facts = report(a_run.lost_run(tmp_path))
    assert (facts["state"], facts["wall_s"]) == ("lost", 19.0)


def test_the_time_between_two_launchers_is_apart(tmp_path: Path) -> None:
    path = a_run.lost_run(tmp_path)
    with contextlib.closing(
        Ledger.resume(
            path / "ledger.db", pid=7, started_s=3.0, started_wall_s=a_run.META.started_wall_s + 60
        )
    ) as ledger:
        ledger.end_session(ended_s=8.0, state="ended", exit_code=0, reason="")
    facts = report(path)
    assert (facts["wall_s"], facts["elapsed_s"], facts["downtime_s"]) == pytest.approx(
        (24.0, 65.0, 41.0)
    )
    assert [(one["from_s"], one["to_s"]) for one in facts["sessions"]] == [
        (0.0, 19.0),
        (60.0, 65.0),
    ]
    assert "between 2 launcher sessions" in outlast("report", path).stdout


@pytest.mark.parametrize(("fewer", "more"), [(1, 5), (5, 1)])
def test_sessions_with_other_ranks_are_told_and_sum_up(
    tmp_path: Path, fewer: int, more: int
) -> None:
    """Two ranks for 19 s, then others for 5 s and for 10 s. All that shows a run says so."""
    path = a_run.lost_run(tmp_path)
    for number, ranks in enumerate((fewer, more), 1):
        wall_s = a_run.META.started_wall_s + 60 * number
        with contextlib.closing(
            Ledger.resume(
                path / "ledger.db", pid=7, started_s=3.0, started_wall_s=wall_s, world_size=ranks
            )
        ) as ledger:
            ledger.end_session(ended_s=3.0 + 5 * number, state="ended", exit_code=0, reason="")
    facts = report(path)
    held_s = 2 * 19.0 + fewer * 5.0 + more * 10.0
    assert facts["balance"]["expected_s"] == pytest.approx(held_s)
    assert facts["balance"]["sums"], facts["balance"]
    assert (facts["world_size"], facts["mean_ranks"]) == (more, pytest.approx(held_s / 34.0))
    assert [one["world_size"] for one in facts["sessions"]] == [2, fewer, more]
    assert facts["cost"]["gpu_hours"] == pytest.approx(held_s / 3600.0)
    told = f"2, {fewer}, then {words.count(more, 'rank')}"
    for shown in (outlast("report", path).stdout, outlast("report", path, "--md").stdout):
        assert told in shown, shown
    status = json.loads(outlast("status", path, "--json").stdout)
    assert status["world_size"] == more
    assert status["ettr"] is None or 0 <= status["ettr"] <= 1


# --- for people -----------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [120, 80])
def test_the_page_of_an_ended_run(tmp_path: Path, columns: int) -> None:
    done = outlast("report", a_run.ended_run(tmp_path), COLUMNS=str(columns))
    assert max(map(len, done.stdout.splitlines())) <= columns
    same_as_golden(f"report-{columns}.txt", done.stdout)


def test_a_failed_run_says_why_first_with_the_users_traceback(tmp_path: Path) -> None:
    path = a_run.ended_run(
        tmp_path, state="failed", exit_code=1, reason="step 170 failed on every attempt"
    )
    with contextlib.closing(sqlite3.connect(path / "ledger.db")) as connection, connection:
        connection.execute(
            "UPDATE interruptions SET traceback = ?, resumed_s = NULL WHERE id = 3",
            ("Traceback:\n  train.py:12\nValueError: nan\n",),
        )
    same_as_golden("report-failed.txt", outlast("report", path).stdout)


def test_an_undisturbed_run_has_a_short_page(tmp_path: Path) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    began_s = ledger.read().meta.started_s
    life = ledger.read().sessions[0].lives[0]
    ledger.add(
        dataclasses.replace(
            life,
            ended_s=began_s + 9.5,
            seconds={a_run.S: 4.0, a_run.P: 5.0},
            cause=a_run.Cause.SHUTDOWN,
        )
    )
    wall_s = ledger.read().meta.started_wall_s
    ledger.add(Event(began_s + 4, wall_s + 4, "script", {"sharded": False}))
    ledger.add(a_run.StepsBucket(began_s + 4, began_s + 9, 0, 50, 0.09, 0.1, 0.2))
    ledger.end_session(ended_s=began_s + 10, state="ended", exit_code=0, reason="")
    ledger.close()
    folder.close()
    same_as_golden("report-undisturbed.txt", outlast("report", folder.path).stdout)


def test_a_verdict_is_told_with_what_to_do(tmp_path: Path) -> None:
    """Of an unknown class the reason alone is said; of another one how sure it is, too."""
    path = a_run.ended_run(tmp_path)
    gone_on = "no restart is needed: the run went on by itself"
    unknown = {"class": "unknown", "reason": "Rank 1 was killed.", "action": gone_on}
    disk = {"class": "storage", "confidence": 0.93, "reason": "It is full.", "action": "free it"}
    wall_s = a_run.META.started_wall_s
    ledger = Ledger.resume(path / "ledger.db", pid=1, started_s=0.0, started_wall_s=wall_s)
    with contextlib.closing(ledger):
        for number, verdict in ((1, unknown), (3, disk)):
            about = {"interruption": number, "verdict": verdict}
            ledger.add(Event(1.0, wall_s, "verdict", about))
        ledger.end_session(ended_s=1.0, state="ended", exit_code=0, reason="")
    page = outlast("report", path, COLUMNS="160").stdout
    assert f"  #1 Rank 1 was killed. To do: {gone_on}.\n" in page
    assert "  #3 storage (93 % sure): It is full. To do: free it.\n" in page


@pytest.mark.parametrize(
    ("calls", "lost", "said"), [(False, 40, True), (False, 15, False), (True, 40, False)]
)
def test_a_script_that_began_anew_is_told_what_would_keep_its_steps(
    calls: bool, lost: int, said: bool
) -> None:
    """Only a script without outlast calls, and only where it lost all that it had done.

    It may well load its checkpoint, and have saved none so far: nothing else is claimed.
    """
    some = [{"id": 1, "step": 40, "steps_lost": lost}, {"id": 2, "step": 9, "steps_lost": None}]
    text = _began_anew({"calls_outlast": calls, "interruptions": some})
    assert ("After interruption 1 the script began with its first step" in text) == said, text


def test_many_interruptions_show_the_last_twenty(tmp_path: Path) -> None:
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        for number in range(1, 26):
            ledger.add(
                a_run.Interruption(
                    id=number,
                    mechanism=a_run.Mechanism.SIGNAL,
                    detected_s=a_run.clock.now_s() - 1,
                    ranks=(0,),
                )
            )
        ledger.flush()
        page = outlast("report", folder.path).stdout
    assert "Interruptions (the newest 20 of 25; --json has all)" in page
    assert "25 interruptions, 25 not yet over" in page


def test_without_a_unicode_output_the_page_is_ascii(tmp_path: Path) -> None:
    """Bars are made of #; what a reason holds beyond ASCII is escaped, not an error."""
    path = a_run.ended_run(tmp_path)
    with contextlib.closing(sqlite3.connect(path / "ledger.db")) as connection, connection:
        connection.execute("UPDATE interruptions SET reason = 'caf\u00e9'")
    done = outlast("report", path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "####" in done.stdout


def test_text_from_the_run_is_never_taken_for_markup(tmp_path: Path) -> None:
    path = a_run.ended_run(
        tmp_path, state="failed", exit_code=1, reason="index [/red] of [bold]x[/bold]"
    )
    with contextlib.closing(
        Ledger.resume(path / "ledger.db", pid=1, started_s=0.0, started_wall_s=0.0)
    ) as ledger:
        ledger.add(Event(1.0, 0.0, "warning", {"text": "[/x] in a warning"}))
        ledger.end_session(
            ended_s=1.0, state="failed", exit_code=1, reason="index [/red] of [bold]x[/bold]"
        )
    page = outlast("report", path).stdout
    assert "index [/red] of [bold]x[/bold]" in page
    assert "[/x] in a warning" in page
