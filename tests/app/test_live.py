"""app/launch/live.py: lines that stay in place on a terminal, plain lines elsewhere; stdout is
nobody's but the workers'.
"""

from __future__ import annotations

import io
import re
import typing

import pytest
from rich.console import Console

from outlast.app import words
from outlast.app.launch.live import LiveView, live_console
from outlast.app.launch.run import WorkerOutput
from outlast.app.panel import REDRAWN_MAX_COUNT
from tests.ledger import a_run

CUP = "\x1b[2A\x1b[J"  # two lines up, and clear: what the view does to draw itself again


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


def test_plain_lines_come_at_interruptions_and_every_minute(
    plain: tuple[LiveView, io.StringIO],
) -> None:
    view, out = plain
    for tenth in range(1, 1220):
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
            "outlast toy  training  step 200   10 steps/s   ETTR 97.1 %   1 m 00 s  "
            " generation 2   workers: 2 training; spares: 1 hot"
        ),
        (
            "outlast toy  training  step 200   10 steps/s   ETTR 97.1 %   2 m 00 s  "
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
    assert out.getvalue() == (
        "outlast r  starting  step 0   0 ms   generation 0   workers: none yet\n"
    )


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
        assert "#1  rank 1, signal: back after 100 ms by spare" in out.getvalue()[before:]
        before = len(out.getvalue())
        view.print_line("a word")
        assert "a word" in out.getvalue()[before:]
    assert out.getvalue().endswith("\x1b[J"), "the view is gone"


def screen(said: str, width: int = 100, rows: int = 40) -> list[str]:
    """Return what a terminal shows after these bytes; it knows what the view sends, and no more."""
    lines, row, column = [""], 0, 0
    for part in re.split(r"(\x1b\[\d*[A-Za-z]|\r|\n)", said):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.endswith("A") and part.startswith("\x1b["):
            row -= int(part[2:-1])
            assert row >= 0, "the view went above the top"
        elif part == "\x1b[J":
            lines[row] = lines[row][:column]
            del lines[row + 1 :]
        elif part and not (part.startswith("\x1b[") and part.endswith("m")):
            lines[row] = lines[row][:column] + part + lines[row][column + len(part) :]
            column += len(part)
            assert column <= width, f"a line wraps: {lines[row]!r}"
    return lines


def test_what_a_worker_writes_stays_above_the_view(
    terminal: tuple[LiveView, io.StringIO],
) -> None:
    view, out = terminal
    view.update(snapshot(1.0))
    for number in range(3):
        view.pass_through("stdout", f"loss 0.{number}\n", out.write)
    shown = screen(out.getvalue())
    assert shown[:3] == ["loss 0.0", "loss 0.1", "loss 0.2"]
    assert shown[3].startswith("toy  training  step 200")
    view.close()
    assert screen(out.getvalue()) == ["loss 0.0", "loss 0.1", "loss 0.2", ""]


def test_a_progress_bar_of_a_worker_moves_in_the_view_and_stays_once(
    terminal: tuple[LiveView, io.StringIO],
) -> None:
    """It ends in carriage returns. Only its last state is printed for good."""
    view, out = terminal
    view.update(snapshot(1.0))
    view.pass_through("stderr", "epoch 10 %\r", out.write)
    view.pass_through("stderr", "epoch 55 %\r", out.write)
    assert [line for line in screen(out.getvalue()) if "epoch" in line] == ["epoch 55 %"]
    view.pass_through("stdout", "a line\n", out.write)
    assert screen(out.getvalue())[:2] == ["a line", "epoch 55 %"]
    view.pass_through("stderr", "epoch 100 %\n", out.write)
    view.pass_through("stdout", "no newline", out.write)
    view.close(lambda stream, text: out.write(text))
    assert screen(out.getvalue()) == ["a line", "epoch 100 %", "no newline"]


def test_ten_thousand_lines_are_not_each_followed_by_a_drawing(
    terminal: tuple[LiveView, io.StringIO],
) -> None:
    view, out = terminal
    view.update(snapshot(1.0))
    for _ in range(10_000):
        view.pass_through("stdout", "x\n", out.write)
    assert out.getvalue().count("training  step") <= REDRAWN_MAX_COUNT + 1
    view.update(snapshot(2.0))
    assert screen(out.getvalue())[10_000].startswith("toy  training")


OUTLOOK = {
    "target_step": 800,
    "time_left_s": 400.0,
    "logged": {"step": 200, "values": {"lr": 0.1, "train_loss": 2.34567}},
    "last_checkpoint": {"step": 150, "at_s": 10.0, "folder": "x"},
}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_view_fits_the_terminal(width: int, encoding: str) -> None:
    """No line wraps, what matters is there, and an old terminal gets letters it can show."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(
        file=file,
        width=width,
        height=24,
        highlight=False,
        force_terminal=True,
        color_system=None,
        _environ={"TERM": "xterm"},
    )
    view = LiveView(console)
    failed = interruption(resumed=True) | {"verdict": "host memory (97 % sure): " + "why " * 60}
    view.update(snapshot(40.0, failed, run="20260102T030405Z-toy-abc123", **OUTLOOK))
    file.flush()
    shown = screen(typing.cast(io.BytesIO, file.buffer).getvalue().decode(encoding), width - 1)
    first, progress, workers, last, _ = shown
    for word in ("training", "10 steps/s", "train_loss 2.346", "ETTR 97.1 %"):
        assert word in first, first
    assert "step 200 of 800" in progress
    assert "25.0 %   6 m 40 s left" in progress
    assert ("\N{BOX DRAWINGS HEAVY HORIZONTAL}" if encoding == "utf-8" else "#--") in progress
    assert "2 training; spares: 1 hot" in workers
    assert ("checkpoint: step 150, 30.0 s ago" in workers) == (width > 60)
    assert "rank 1, signal: back after 100 ms by spare" in last
    assert ("host memory (97 %" in last) == (width > 60)


def test_the_plain_line_says_the_target_the_loss_and_the_time_left(
    plain: tuple[LiveView, io.StringIO],
) -> None:
    view, out = plain
    view.update(snapshot(40.0, **OUTLOOK))
    assert out.getvalue() == (
        "outlast toy  training  step 200 of 800   10 steps/s   train_loss 2.346   ETTR 97.1 %  "
        " 40.0 s   6 m 40 s left   generation 2   workers: 2 training; spares: 1 hot\n"
    )


@pytest.mark.parametrize(
    ("environment", "in_place"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True),
        ({"TERM": "dumb"}, False),
    ],
)
def test_no_color_keeps_the_view_and_a_dumb_terminal_gets_lines(
    environment: dict[str, str], in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR", "COLORTERM", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    view = LiveView(live_console(environment))
    view.update(snapshot(1.0))
    view.update(snapshot(2.0))
    assert ("\x1b[2A" in out.getvalue()) == in_place
    assert ("\x1b[" in out.getvalue()) == in_place
    if "NO_COLOR" in environment:
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", out.getvalue()), "no colour"
    if not in_place:
        assert out.getvalue().count("\n") == 1


def test_without_a_view_output_passes_untouched(plain: tuple[LiveView, io.StringIO]) -> None:
    view, out = plain
    view.pass_through("stdout", "loss 0.5", out.write)
    view.pass_through("stdout", "1\n", out.write)
    assert out.getvalue() == "loss 0.51\n"


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
        "steps_seen": False,
        "mttr_s": None,
        "steps_lost": None,
        "steps_repeated": None,
    }
    view.update(snapshot(12.0, seen, ettr=None, steps_seen=False))
    began, ended, status = out.getvalue().splitlines()
    assert began.startswith("outlast interruption 1: rank 1, signal"), began
    assert ended == "outlast interruption 1: all processes run again by spare; steps not seen"
    assert "steps not seen" in status, status
    assert "ETTR" not in status, status


def test_an_interruption_without_a_rung_says_that_nothing_was_run_again() -> None:
    """The script had ended before anything was decided."""
    over = interruption(resumed=True) | {"rung": None}
    assert words.ended(over).endswith("; nothing was run again"), words.ended(over)
    assert "over after" in words.ended(over)
    assert "run again;" not in words.ended(over | {"steps_seen": False})


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
    view.update(snapshot(0.0))
    for tenth in range(1, 120):
        at_s = tenth / 10
        long = {"what": "rank 1: its interpreter starts", "left_s": 60.0 - at_s}
        wait = None if at_s < 1.0 else short if at_s < 2.0 else long
        view.update(snapshot(at_s, waits_for=wait))
    told = [line for line in out.getvalue().splitlines() if "waits for" in line]
    assert told == ["outlast waits for rank 1: its interpreter starts, for up to 55.0 s"]


def test_a_start_is_given_more_time_before_a_wait_is_told(
    plain: tuple[LiveView, io.StringIO],
) -> None:
    """Imports take seconds, and a newcomer need not hear of them. The status line names them."""
    view, out = plain
    for second in range(16):
        wait = {"what": "ranks 0, 1: their interpreters start", "left_s": 1800.0 - second}
        begins = {"state": "starting", "generation": 1, "waits_for": wait}
        view.update(snapshot(float(second), **begins))
        assert ("outlast waits for" in out.getvalue()) == (second >= 12)
    said, told = [line for line in out.getvalue().splitlines() if "waits for" in line]
    assert told == "outlast waits for ranks 0, 1: their interpreters start, for up to 30 m"
    assert said.startswith("outlast toy  starting"), said
    assert said.endswith("   " + told.removeprefix("outlast ")), said


@pytest.mark.parametrize("state", ["starting", "regrouping"])
def test_each_status_line_says_what_is_waited_for_and_until_when(
    plain: tuple[LiveView, io.StringIO], state: str
) -> None:
    """A run that trains waits for nothing, so its line says nothing of the kind."""
    view, out = plain
    wait = {"what": "rank 1: it restores its state", "left_s": 24.0}
    view.update(snapshot(0.0, state=state, waits_for=wait))
    view.update(snapshot(60.0, waits_for=None))
    first, second = out.getvalue().splitlines()
    assert first.endswith("   waits for rank 1: it restores its state, for up to 24.0 s"), first
    assert "waits for" not in second


def test_a_plain_script_has_as_long_as_a_start_before_its_wait_is_told(
    plain: tuple[LiveView, io.StringIO],
) -> None:
    """Its processes run, and no step of it was seen: it still imports its modules, mostly."""
    view, out = plain
    wait = {"what": "ranks 0, 1: their scripts run", "left_s": None}
    for second in range(13):
        more = {"generation": 1, "steps_seen": False, "ettr": None}
        view.update(snapshot(float(second), waits_for=wait, **more))
        assert ("outlast waits for" in out.getvalue()) == (second >= 12)


def test_a_file_gets_every_byte_at_once_though_the_view_is_on_a_terminal(
    terminal: tuple[LiveView, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `outlast run train.py > out`: nothing of a progress bar is kept back or left out."""
    view, _ = terminal
    file = io.StringIO()
    monkeypatch.setattr("sys.stdout", file)
    sink = WorkerOutput(view)
    view.update(snapshot(1.0))
    for piece in ("bar 1\r", "bar 2\r", "no newline"):
        sink("stdout", piece)
    assert file.getvalue() == "bar 1\rbar 2\rno newline"
    sink.close()
    assert file.getvalue() == "bar 1\rbar 2\rno newline"
