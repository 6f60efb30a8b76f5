"""app/live.py: lines that stay in place on a terminal, plain lines elsewhere; stdout is nobody's
but the workers'.
"""

from __future__ import annotations

import io
import typing

import pytest
from rich.console import Console

from outlast.app import words
from outlast.app.live import LiveView
from tests.ledger import a_run

CUP = "\x1b[1A"  # one line up: what a view does to draw itself again


def snapshot(wall_s: float, *some: dict[str, object], **more: object) -> dict[str, typing.Any]:
    return {
        **a_run.SNAPSHOT,
        "run": "toy",
        "ettr": 0.9712,
        "wall_s": wall_s,
        "interruptions": list(some),
        **more,
    }


def interruption(*, resumed: bool) -> dict[str, object]:
    return a_run.KILL.public(began_s=a_run.ZERO_S) | (
        {} if resumed else {"resumed_s": None, "mttr_s": None, "rung": None}
    )


@pytest.fixture
def plain() -> tuple[LiveView, io.StringIO]:
    out = io.StringIO()
    return LiveView(Console(file=out, width=120, highlight=False)), out


@pytest.fixture
def terminal() -> tuple[LiveView, io.StringIO]:
    out = io.StringIO()
    return (
        LiveView(
            Console(
                file=out,
                width=100,
                highlight=False,
                force_terminal=True,
                color_system=None,
                _environ={"TERM": "xterm"},
            )
        ),
        out,
    )


def test_plain_lines_come_at_interruptions_and_every_ten_seconds(
    plain: tuple[LiveView, io.StringIO],
) -> None:
    view, out = plain
    for tenth in range(1, 210):
        at_s = tenth / 10
        some = [interruption(resumed=at_s >= 10.1)] if at_s >= 10.0 else []
        view.update(snapshot(at_s, *some))
    view.close()
    assert out.getvalue().splitlines() == [
        (
            "outlast toy  training  step 200   10 steps/s   ETTR 97.1 %   100 ms  "
            " generation 2   workers: 2 training; spares: 1 hot"
        ),
        "outlast interruption 1: rank 1, signal, at step 131, detected after 2 ms",
        "outlast interruption 1: back after 100 ms by spare, 1 step repeated, 0 lost",
        (
            "outlast toy  training  step 200   10 steps/s   ETTR 97.1 %   10.1 s  "
            " generation 2   workers: 2 training; spares: 1 hot"
        ),
        (
            "outlast toy  training  step 200   10 steps/s   ETTR 97.1 %   20.1 s  "
            " generation 2   workers: 2 training; spares: 1 hot"
        ),
    ]


def test_a_long_line_is_one_line_off_a_terminal() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=40, highlight=False))
    view.print_line("a line [with brackets] " * 10)
    assert out.getvalue().count("\n") == 1
    assert "[with brackets]" in out.getvalue()


def test_a_snapshot_with_the_bare_contract_is_enough(plain: tuple[LiveView, io.StringIO]) -> None:
    view, out = plain
    view.update(
        {
            "run": "r",
            "state": "starting",
            "generation": 0,
            "step": 0,
            "steps_per_s": 0.0,
            "workers": [],
            "spares": [],
        }
    )
    assert out.getvalue() == "outlast r  starting  step 0   0 ms   generation 0   workers: none\n"


def test_on_a_terminal_the_view_stays_in_place_and_goes_away_at_the_end(
    terminal: tuple[LiveView, io.StringIO],
) -> None:
    view, out = terminal
    with view:
        view.update(snapshot(1.0))
        assert "workers  2 training; spares: 1 hot" in out.getvalue()
        before = len(out.getvalue())
        view.update(snapshot(2.0, interruption(resumed=True)))
        assert CUP in out.getvalue()[before:]
        assert (
            "#1  at 10.0 s  rank 1, signal: back after 100 ms by spare" in out.getvalue()[before:]
        )
        before = len(out.getvalue())
        view.print_line("a word")
        assert "a word" in out.getvalue()[before:]
    assert "\x1b[?25h" in out.getvalue(), "the cursor is back"


def test_what_a_worker_writes_goes_between_two_drawings(
    terminal: tuple[LiveView, io.StringIO],
) -> None:
    view, out = terminal
    view.update(snapshot(1.0))
    before = len(out.getvalue())
    view.pass_through(lambda: out.write("loss 0.5\n"))
    erased, _, drawn = out.getvalue()[before:].partition("loss 0.5\n")
    assert erased.rfind("\x1b[2K") > erased.rfind("training"), (
        "the view is gone when the worker writes"
    )
    assert "training" in drawn
    view.close()


def test_without_a_view_output_passes_untouched(plain: tuple[LiveView, io.StringIO]) -> None:
    view, out = plain
    view.pass_through(lambda: out.write("loss 0.5\n"))
    assert out.getvalue() == "loss 0.5\n"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *[
            (None, "-"),
            (0, "0 ms"),
            (1e-9, "1 us"),
            (0.00036, "360 us"),
            (0.0004999, "500 us"),
            (0.0005001, "1 ms"),
        ],
        *[(0.0123, "12 ms"), (0.9996, "1.00 s"), (9.99, "9.99 s"), (59.94, "59.9 s")],
        *[(59.96, "1 m 00 s"), (3599.6, "1 h 00 m"), (11_220, "3 h 07 m")],
    ],
)
def test_durations_in_words(seconds: float | None, said: str) -> None:
    assert words.duration(seconds) == said


@pytest.mark.parametrize(
    ("share", "said"), [(0, "0.0 %"), (0.9999, "99.9 %"), (1, "100.0 %"), (0.8137, "81.4 %")]
)
def test_only_all_is_100_percent(share: float, said: str) -> None:
    assert words.percent(share) == said


def test_no_color_makes_a_terminal_plain() -> None:
    assert words.console_for(environment={"NO_COLOR": "1"}).color_system is None
    assert words.console_for(environment={"NO_COLOR": "1", "COLUMNS": "90"}).width == 90


def test_a_script_whose_steps_are_not_seen_gets_no_figures(
    plain: tuple[LiveView, io.StringIO],
) -> None:
    view, out = plain
    seen = interruption(resumed=True) | {
        "steps_seen": False, "mttr_s": None, "steps_lost": None, "steps_repeated": None,
    }  # fmt: skip
    view.update(snapshot(12.0, seen, ettr=None, steps_seen=False))
    began, ended, status = out.getvalue().splitlines()
    assert began.startswith("outlast interruption 1: rank 1, signal"), began
    assert ended == "outlast interruption 1: all processes run again by spare; steps not seen"
    assert "steps not seen" in status, status
    assert "ETTR" not in status, status


def test_quiet_leaves_warnings_and_nothing_else() -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=120, highlight=False), quiet=True)
    view.update(snapshot(12.0, interruption(resumed=True)))
    view.print_line("interruption 1: Rank 1 was killed")
    view.print_line("warning: the disk is full")
    view.close()
    assert out.getvalue() == "outlast warning: the disk is full\n"


@pytest.mark.parametrize(("every_s", "said"), [(0.0, 0), (2.0, 3), (60.0, 1)])
def test_the_status_line_comes_as_often_as_was_asked_for(every_s: float, said: int) -> None:
    out = io.StringIO()
    view = LiveView(Console(file=out, width=120, highlight=False), status_every_s=every_s)
    for second in range(6):
        view.update(snapshot(float(second)))
    assert out.getvalue().count("training") == said * 2  # the state, and that of the workers


def test_what_a_terminal_obeys_is_escaped_in_a_message_and_in_a_snapshot(
    plain: tuple[LiveView, io.StringIO],
) -> None:
    """The message of an ordinary exception comes to both; a worker's own output passes as it is."""
    view, out = plain
    view.print_line("warning: \x1b]0;owned\x07 and \x9b31m\nthe next line")
    view.update(snapshot(1.0, run="toy\x1b[2J"))
    said = out.getvalue()
    assert "\\x1b]0;owned\\x07 and \\x9b31m\nthe next line" in said
    assert "toy\\x1b[2J" in said
    assert not set("\x1b\x07\x9b") & set(said)


def test_a_wait_is_told_once_and_only_if_it_lasts(plain: tuple[LiveView, io.StringIO]) -> None:
    """One that is over within a second is not told; one that goes on is told with its bound."""
    view, out = plain
    short = {"what": "rank 0 to leave the step", "left_s": 0.4}
    for tenth in range(1, 120):
        at_s = tenth / 10
        long = {"what": "rank 1: its interpreter starts", "left_s": 60.0 - at_s}
        wait = None if at_s < 1.0 else short if at_s < 2.0 else long
        view.update(snapshot(at_s, waits_for=wait))
    told = [line for line in out.getvalue().splitlines() if "waits for" in line]
    assert told == ["outlast waits for rank 1: its interpreter starts, for up to 55.0 s"]
