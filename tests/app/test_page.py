"""The page of a run: its model, and what is written down of it as HTML and as Markdown."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from html.parser import HTMLParser
from pathlib import Path

import pytest

from outlast.app.page.curves import Curve, Value, averaged
from outlast.app.page.lanes import ROWS_MOST
from outlast.app.page.pace import POINTS_MOST, PacePoint, merged
from outlast.app.page.page_html import PARTS, node_id, report_page
from outlast.app.page.page_markdown import _interruption as interruption_lines
from outlast.app.page.page_markdown import code, report_markdown, text
from outlast.app.page.page_model import Page, losses, page_of
from outlast.app.page.svg import logged
from outlast.model.records import Event, Interruption, Life, Meta, Records, Session, SessionRecords
from outlast.model.terms import Cause, Mechanism
from outlast.runtime.ledger.store import Ledger
from outlast.runtime.ledger.view import RunView, look
from tests.app.command import outlast
from tests.ledger import a_run

HOSTILE = (
    '</code></pre><script>alert(1)</script><img src=x onerror="x"> | [a](javascript:x) `` \x1b[31m'
)
MADE_S = 1_767_400_000.0


def page(path: Path) -> Page:
    return page_of(look(str(path)), wall_s=MADE_S)


class Tags(HTMLParser):
    """Collects the tags, attributes and ids of a page, and checks that tags are closed in order."""

    VOID = ("meta", "link", "input", "br", "rect", "path")
    LEFT_OPEN = ("tr", "td", "th", "li")  # HTML lets these be closed by the next one

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.deepest_details = 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID and tag not in self.LEFT_OPEN:
            self.open.append(tag)
            self.deepest_details = max(self.deepest_details, self.open.count("details"))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.LEFT_OPEN:
            assert self.open.pop() == tag

    def values(self, name: str) -> list[str]:
        return [value or "" for key, value in self.attributes if key == name]


# --- what it says ---------------------------------------------------------------------------------


def test_the_six_questions_have_their_answers(tmp_path: Path) -> None:
    said = {one.question: one for one in page(a_run.ended_run(tmp_path)).answers}
    assert list(said) == [
        "Is it training?",
        "How fast?",
        "How long still?",
        "What failed last?",
        "Whose fault was it?",
        "What did it cost?",
    ]
    assert said["Is it training?"].answer == "no, it has ended well"
    assert said["How fast?"].answer == "10 steps/s on average"
    assert said["How long still?"].note == "It came to step 200."
    assert (said["What failed last?"].answer, said["What failed last?"].interruption) == (
        "rank 0: hung",
        3,
    )
    assert " before the end. " in said["What failed last?"].note
    assert said["Whose fault was it?"].answer == "no verdict"
    assert "2 interruptions and 1 more during a recovery took" in said["What did it cost?"].note


def test_what_failed_for_good_is_not_said_to_come_back_yet(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    with contextlib.closing(sqlite3.connect(path / "ledger.db")) as connection, connection:
        connection.execute("UPDATE interruptions SET resumed_s = NULL WHERE id = 3")
    said = {one.question: one for one in page(path).answers}
    assert said["What failed last?"].note.endswith("before the end. It did not come back.")


def test_a_live_run_trains_and_says_how_long_still(tmp_path: Path) -> None:
    """Method: the launcher's snapshot says a state, a rate and a target; then it falls silent."""
    folder, ledger = a_run.live_run(tmp_path)
    with contextlib.closing(folder), contextlib.closing(ledger):
        now_s = ledger.read().meta.started_s + 10
        ledger.add(Event(now_s, MADE_S, "script", {}))
        ledger.set_snapshot(
            a_run.SNAPSHOT | {"target_step": 800, "workers": a_run.SNAPSHOT["workers"][:1]},
            now_s=now_s,
        )
        ledger.flush()
        view = look(str(folder.path))
        said = {one.question: one for one in page_of(view, wall_s=MADE_S).answers}
        assert said["Is it training?"].answer == "yes"
        assert said["How fast?"].answer == "10 steps/s"
        assert said["How long still?"].answer == "about 1 m 00 s"
        later = RunView(view.path, view.records, (view.now_s or 0.0) + 60)
        said = {one.question: one for one in page_of(later, wall_s=MADE_S).answers}
        assert said["Is it training?"].answer == "not known"
        assert "written nothing for" in said["Is it training?"].note


def test_the_waterfall_ends_at_what_was_productive() -> None:
    found = losses({"startup": 10.0, "productive": 60.0, "lost": 30.0, "drain": None, "other": 0})
    assert [one.cause for one in found] == ["lost", "startup", "productive"]
    assert [one.before for one in found] == pytest.approx([1.0, 0.7, 0.6])
    assert found[-1].share == pytest.approx(0.6)


def test_the_timeline_shows_who_held_a_rank_and_each_interruption(tmp_path: Path) -> None:
    line = page(a_run.ended_run(tmp_path)).timeline
    assert [(row.key, row.interruptions, row.processes) for row in line.rows] == [
        ("0", 1, 2),
        ("1", 2, 3),
    ]
    assert sum(mark.count for mark in line.all_marks) == 3
    first = line.rows[0].spans
    assert (first[0].doing, first[0].end) == ("down", 30)  # 1 s of 20, in 600 columns
    assert first[-1].doing == "down"


def test_points_are_merged_and_none_is_lost() -> None:
    points = [PacePoint(float(at), at + 1.0, at * 10, at * 10 + 10) for at in range(1000)]
    few = merged(points, POINTS_MOST)
    assert len(few) <= POINTS_MOST
    assert (few[0].from_s, few[-1].to_s, few[-1].to_step) == (0.0, 1000.0, 10_000)
    assert all(one.per_s == pytest.approx(10.0) for one in few)


def test_what_the_script_logged_is_a_curve_for_each_name(tmp_path: Path) -> None:
    made = page(a_run.ended_run(tmp_path))
    loss, rate = made.curves
    assert (loss.name, [one.value for one in loss.values]) == ("loss", [4.0, 3.0])
    assert [(one.from_s, one.to_s, one.to_step) for one in loss.values] == [
        (2.0, 10.0, 131),
        (10.0, 19.0, 200),
    ]
    assert (rate.name, rate.least, rate.most) == ("rate", 0.1, 0.1)
    html = report_page(made)
    assert 'aria-label="loss over the run, between 3 and 4.' in html
    assert "## loss" in report_markdown(made)


@pytest.mark.parametrize("value", [0.0, 1.7e308, -1.7e308, 5e-324])
def test_a_curve_of_any_numbers_is_drawn(value: float) -> None:
    values = (Value(0.0, 1.0, 1, value), Value(1.0, 2.0, 2, -value))
    drawn = logged(Curve("loss", averaged(values, 2)), (), to_s=2.0)
    numbers = [float(one) for one in re.findall(r"-?[0-9.]+", drawn.split('d="')[1])]
    assert all(0 <= one <= 1000 for one in numbers)
    assert averaged(values, 1)[0].value == 0.0


# --- what is written ------------------------------------------------------------------------------


def test_the_file_has_no_script_and_nothing_from_outside(tmp_path: Path) -> None:
    html = report_page(page(a_run.ended_run(tmp_path)))
    found = Tags(html)
    assert not found.open
    assert not {"script", "link", "img", "iframe", "base", "form"} & set(found.tags)
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    assert all(href.startswith("#") and href[1:] in ids for href in found.values("href"))
    assert set(PARTS) <= set(ids)
    assert not found.values("src")


def test_what_a_run_says_is_never_markup(tmp_path: Path) -> None:
    """Method: put hostile text in each column that holds text, and read the pages as a browser."""
    path = a_run.ended_run(tmp_path)
    with contextlib.closing(sqlite3.connect(path / "ledger.db")) as connection, connection:
        connection.execute(
            "UPDATE interruptions SET reason = ?, error = ?, traceback = ?, nodes = json_array(?)",
            (HOSTILE,) * 4,
        )
        connection.execute("UPDATE lives SET node = ?", (HOSTILE,))
        connection.execute("UPDATE meta SET run = ?, name = ?", (HOSTILE, HOSTILE))
        connection.execute("DROP TRIGGER steps_fixed")
        connection.execute("UPDATE steps SET logged = json_object(?, 1.5)", (HOSTILE,))
        node = "json_set(json, '$.workers[0].node', ?)"
        connection.execute(f"UPDATE snapshot SET json = {node}", (HOSTILE,))
        verdict = """json_object('interruption', 3, 'verdict', json_object('class', ?, 'reason', ?,
            'action', ?, 'confidence', 0.5, 'ranks', json_array(), 'evidence', json_array(
            json_object('file', ?, 'line', 3, 'text', ?, 'role', ?))))"""
        connection.execute(
            "INSERT INTO events (session, at_s, wall_s, kind, data)"
            f" VALUES (1, 1, 1, 'verdict', {verdict})",
            (HOSTILE,) * 6,
        )
    clean = Tags(report_page(page(a_run.ended_run(tmp_path / "calm"))))
    made = page(path)
    html = report_page(made)
    found = Tags(html)
    assert set(found.tags) <= set(clean.tags) | {"code", "p", "pre", "caption"}
    assert {name for name, _ in found.attributes} <= {name for name, _ in clean.attributes} | {
        "tabindex"
    }
    assert "alert(1)" in html
    assert "\x1b" not in html
    markdown = report_markdown(made)
    assert "\x1b" not in markdown
    outside = re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", markdown)
    assert "alert(1)" in outside
    assert "<" not in outside
    assert not re.search(r"(?<!\\)\]\(", outside)


@pytest.mark.parametrize("said", ["a|b", "<b>", "[a](b)", "*x*", "`x`", "# x", "@all", "a\nb"])
def test_a_text_in_markdown_means_only_itself(said: str) -> None:
    written = text(said)
    assert "\n" not in written
    for sign in "|<[]*`#@":
        assert sign not in written.replace(f"\\{sign}", "")


def test_a_block_of_code_ends_where_its_text_ends() -> None:
    block = code("a\n```\n# b\n````\n")
    assert block[0] == "`````text"
    assert block[-2] == "`````"
    assert not any(line.startswith("`````") for line in block[1:-2])


def test_names_of_nodes_share_no_id() -> None:
    assert len({node_id(name) for name in ("a b", "a.20b", "a%20b", "a-b")}) == 4


def big_run(nodes: int, *, per_node: int = 8, interruptions: int = 0) -> RunView:
    """A run that trains on many ranks, with failures spread over them."""
    size = nodes * per_node
    lives = tuple(
        Life(
            rank,
            1000 + rank,
            f"node-{rank // per_node:04d}",
            rank,
            "rank",
            10.0,
            opened_s=12.0,
            seconds={Cause.STARTUP: 2.0, Cause.PRODUCTIVE: 900.0},
            cause=Cause.PRODUCTIVE,
        )
        for rank in range(size)
    )
    some = tuple(
        Interruption(
            id=number,
            mechanism=Mechanism.SIGNAL,
            detected_s=20.0 + number * 980 / interruptions,
            ranks=(number * 37 % size,),
            fault_s=19.9 + number * 980 / interruptions,
            resumed_s=20.5 + number * 980 / interruptions,
            steps_repeated=1,
            reason="signal 9",
            nodes=(f"node-{number * 37 % size // per_node:04d}",),
            step=number,
        )
        for number in range(interruptions)
    )
    session = Session(1, 1, 0.0, MADE_S, 1000.0)
    steps = (a_run.StepsBucket(12.0, 1000.0, 0, 5000, 0.1, 0.2, 1.0),)
    events = (Event(12.0, MADE_S, "script", {}),)
    part = SessionRecords(session, 0.0, (), lives, some, steps, events)
    workers = [
        {"rank": one.rank, "pid": one.pid, "node": one.node, "state": "training"} for one in lives
    ]
    snapshot = {"state": "training", "step": 5000, "steps_per_s": 5.0, "workers": workers}
    meta = Meta("big", "big", size, "0.1.0", 0.0, MADE_S)
    return RunView(Path("big"), Records(meta, (part,), snapshot), 1001.0)


def test_the_file_of_16384_ranks_has_every_rank_and_is_small() -> None:
    """Each rank is at most two openings away: its node's group, then its node."""
    html = report_page(page_of(big_run(2048, interruptions=300), wall_s=MADE_S))
    assert len(html.encode()) < 1_000_000
    said = {int(one) for one in re.findall(r"<li(?: id=\"rank-\d+\")?>(\d+) pid", html)}
    assert said == set(range(16_384))
    assert Tags(html).deepest_details <= 2


def test_a_large_run_has_a_lane_for_the_nodes_with_most_interruptions() -> None:
    line = page_of(big_run(100, interruptions=60), wall_s=MADE_S).timeline
    assert line.by_node
    assert len(line.rows) == ROWS_MOST
    assert line.hidden == 100 - ROWS_MOST
    assert min(row.interruptions for row in line.rows) >= 1


# --- the command ----------------------------------------------------------------------------------


def test_report_writes_the_page_and_prints_markdown(tmp_path: Path) -> None:
    path, file = a_run.ended_run(tmp_path), tmp_path / "page.html"
    done = outlast("report", path, "--html", file, "--md")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# 20260102T030405Z-toy-abc123: ended\n")
    assert "<title>ended: 20260102T030405Z-toy-abc123</title>" in file.read_text()
    assert outlast("report", path, "--html", file).returncode == 0  # our own page is written again


def test_report_overwrites_no_file_of_others(tmp_path: Path) -> None:
    path, file = a_run.ended_run(tmp_path), tmp_path / "train.log"
    file.write_text("precious")
    done = outlast("report", path, "--html", file)
    assert done.returncode == 2
    assert file.read_text() == "precious"


def test_a_ledger_that_says_what_cannot_be_makes_no_page(tmp_path: Path) -> None:
    path = a_run.ended_run(tmp_path)
    ledger = Ledger.resume(path / "ledger.db", pid=1, started_s=0, started_wall_s=0)
    with contextlib.closing(ledger):
        ledger.add(Event(0, 0, "verdict", {"interruption": [], "verdict": {"class": 1}}))
        ledger.flush()
    done = outlast("report", path, "--md")
    assert done.returncode == 1
    assert "hint:" in done.stderr


def test_a_restart_without_seen_steps_has_no_time_to_recover(tmp_path: Path) -> None:
    one = page(a_run.ended_run(tmp_path)).report["interruptions"][-1] | {"steps_seen": False}
    assert "All run again with new processes; steps not seen." in "\n".join(
        interruption_lines(one, None)
    )
