"""`outlast report` of several runs, its table of components, and what users add to a ledger."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from pathlib import Path

import pytest

from outlast.app.reports.report_table import COMPONENTS
from outlast.app.web.site import Site
from outlast.model.terms import FailureClass
from tests.app.command import outlast
from tests.app.test_serve import ask, served
from tests.ledger import a_run


def report(*arguments: str | Path) -> dict:
    done = outlast("report", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def two_runs(root: Path) -> tuple[Path, Path]:
    (root / "one").mkdir()
    (root / "two").mkdir()
    return a_run.ended_run(root / "one"), a_run.lost_run(root / "two")


def test_every_second_that_was_lost_has_an_interruption_a_class_and_a_node(
    tmp_path: Path,
) -> None:
    facts = report(a_run.ended_run(tmp_path))
    lost = facts["lost"]
    spent = facts["rank_seconds"]
    taken = sum(spent[name] for name in ("detection", "regroup", "restore", "repeated", "degraded"))
    assert lost["rank_s"] + lost["without_interruption_s"] == pytest.approx(taken)
    for by in ("by_class", "by_node", "by_tier"):
        total = sum(one["rank_s"] for one in lost[by].values())
        assert total == pytest.approx(lost["rank_s"]), by
    assert sum(lost["by_cause"].values()) == pytest.approx(lost["rank_s"])
    assert {name: one["count"] for name, one in lost["by_class"].items()} == {
        "unknown": 2,
        "user_code": 1,
    }
    assert list(lost["by_node"]) == ["here"]


def test_mttf_and_mttr_come_with_intervals_that_hold_them(tmp_path: Path) -> None:
    every = report(a_run.ended_run(tmp_path))["reliability"]
    for rates in (every["all"], *every["by_class"].values()):
        for name in ("mttf", "rank_mttf", "mttr"):
            low, high = rates[f"{name}_range_s"]
            assert low < rates[f"{name}_s"] < high
    assert every["all"]["count"] == 3
    assert every["all"]["recovered_count"] == 2, "the child is over with its parent"


def test_a_run_that_never_failed_has_a_least_mttf_and_no_bound_above(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    with contextlib.closing(sqlite3.connect(path / "ledger.db")) as connection, connection:
        connection.execute("DROP TRIGGER interruptions_stay")
        connection.execute("DELETE FROM interruptions")
    rates = report(path)["reliability"]["all"]
    assert (rates["mttf_s"], rates["mttf_range_s"][1], rates["mttr_range_s"]) == (
        None,
        None,
        [None, None],
    )
    assert rates["mttf_range_s"][0] > 0


def test_two_runs_add_up(tmp_path: Path) -> None:
    one, two = two_runs(tmp_path)
    apart, both = [report(one), report(two)], report(one, two)
    for cause, value in both["rank_seconds"].items():
        if value is not None:
            assert value == pytest.approx(sum(each["rank_seconds"][cause] for each in apart))
    assert both["reliability"]["all"]["count"] == 6
    assert both["balance"]["sums"]
    assert [run["state"] for run in both["runs"]] == ["ended", "lost"]
    page = outlast("report", one, two).stdout
    assert page.startswith("2 runs added up\n")


def test_the_table_has_the_words_of_llama_3s_paper(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    with contextlib.closing(sqlite3.connect(path / "ledger.db")) as connection, connection:
        connection.execute("UPDATE interruptions SET failure_class = 'hbm' WHERE id < 3")
        connection.execute("UPDATE interruptions SET failure_class = 'unknown' WHERE id = 3")
    rows = [line.split("  ") for line in outlast("report", path, "--table").stdout.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells[:4] == [
        ["component", "category", "count", "%"],
        ["GPU HBM3 memory", "GPU", "1", "50.0"],
        ["Hang of unknown cause", "Unknown", "1", "50.0"],
        ["total", "2", "100.0"],
    ]
    assert set(COMPONENTS) == set(FailureClass)


def test_tokens_flops_and_money_are_known_where_they_are_given(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    bare = report(path)
    assert (bare["goodput"]["tokens"], bare["cost"]["money"]) == (None, None)
    given = ("--tokens-per-step", "1k", "--flops-per-step", "2e15", "--price", "3.6/h")
    facts = report(path, *given)
    assert facts["goodput"]["tokens"] == 200 * 1000
    assert facts["goodput"]["flops_per_s"] == pytest.approx(200 * 2e15 / 20)
    assert facts["cost"]["money"] == pytest.approx(40 * 3.6 / 3600)


def test_a_prediction_lies_beside_what_happened_key_by_key(tmp_path: Path) -> None:
    """Method: calibrate from the run itself; what was counted is then what is expected."""
    path = a_run.ended_run(tmp_path)
    cluster = tmp_path / "cluster.toml"
    assert outlast("calibrate", path, "--out", cluster).returncode == 0
    facts = report(path, "--predict", cluster)
    rows = {row["key"]: row for row in facts["predicted"]}
    assert {"ettr", "interruptions", "mttf_s", "seconds.regroup", "lost.unknown"} <= set(rows)
    assert rows["interruptions"]["happened"] == 3
    assert rows["interruptions"]["inside"] is True
    assert rows["seconds.productive"]["happened"] == pytest.approx(facts["productive_s"])
    page = outlast("report", path, "--predict", cluster).stdout
    assert page.startswith("The planner's prediction, and what happened\n")


def test_an_account_that_does_not_sum_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: lose the seconds of one rank, as a bug would."""
    from outlast.app.reports import report_facts
    from outlast.app.reports.report import show_report
    from outlast.app.words import console_for
    from outlast.model.goodput import account
    from outlast.runtime.ledger import view

    def lossy(*given: object, **named: object) -> object:
        books = account(*given, **named)  # type: ignore[arg-type]
        books.by_rank[1].update(dict.fromkeys(books.by_rank[1], 0.0))  # type: ignore[attr-defined]
        return books

    monkeypatch.setattr(view, "account", lossy)
    facts = report_facts.report_facts(view.look(str(a_run.ended_run(tmp_path))))
    assert not facts["balance"]["sums"]
    console = console_for(environment={})
    with console.capture() as page:
        show_report(console, facts)
    assert "does not sum up" in page.get()


@pytest.mark.parametrize("table", ["steps", "interruptions"])
def test_a_damaged_run_among_several_is_said(tmp_path: Path, table: str) -> None:
    """Method: the root page of one table of one run is overwritten, and two runs are added up.

    Report and overview say what is damaged, and show a number that needs it as not known.
    """
    good, bad = (a_run.ended_run(tmp_path / name) for name in ("good", "bad"))
    a_run.overwrite(bad / "ledger.db", table)
    told = json.loads(outlast("report", good, bad, "--json").stdout)
    whole, damaged = told["runs"]
    assert (whole["damage"], whole["steps"]) == ("", 200)
    assert damaged["lacks"] == [table]
    assert (damaged["steps"] is None) == (table == "steps")
    assert (told["goodput"]["steps"] is None) == (table == "steps")
    text = outlast("report", good, bad).stdout
    assert f"{damaged['run']}: The ledger is damaged. It lacks" in " ".join(text.split())
    assert "not known, because a ledger is damaged" in text
    assert len(re.findall(rf"{damaged['run']} +ended .* -(?: |$)", text, re.MULTILINE)) == 1
    card = Site(bad.parent).card("toy")
    assert (card.step is None) == (table == "steps")
    assert (card.interruptions is None) == (table == "interruptions")
    answer = ask(served(bad.parent), "/")
    assert "The ledger is damaged. It lacks" in answer.body
    assert "- (not known)" in answer.body
