"""app/charts.py: curves and bars in letters; app/charts_file.py: the same as PNG and SVG, where
matplotlib is there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.app.charts import Bars, Chart, Curves, Line, drawn
from outlast.app.charts_file import can_draw, draw, format_of, picture
from outlast.errors import UsageError

needs_matplotlib = pytest.mark.skipif(
    not can_draw(), reason="matplotlib is not installed: pip install 'outlast[plot]'"
)


def say(value: float) -> str:
    return f"{value:g}"


CURVES = Curves(
    "A title",
    "GPUs",
    "ETTR",
    (Line("one", (1, 10, 100), (1.0, 0.5, 0.0)), Line("two", (1, 10, 100), (0.9, 0.4, 0.1))),
    say,
    say,
    y_from_zero=True,
)
PLAIN = Bars("Lost", "share", (("saves", 0.0, 0.5), ("restart", 0.0, 0.25)), say)
AROUND = Bars(
    "Depends",
    "ETTR",
    (("mttf", 0.5, 0.9), ("restart", 0.6, 0.8)),
    say,
    base=0.7,
    notes=("half and twice",),
)


def test_a_curve_is_a_row_for_each_x_with_a_bar_for_the_first_line() -> None:
    lines = drawn(CURVES, blocks=False)
    assert lines[0] == "A title"
    assert lines[1].split() == ["GPUs", "one", "two"]
    assert [line.count("#") for line in lines[2:]] == [40, 20, 0]
    assert lines[3].split()[:3] == ["10", "0.5", "0.4"]


def test_bars_that_do_not_begin_at_zero_say_so() -> None:
    chart = Curves("t", "x", "y", (Line("one", (1, 2), (0.90, 0.95)),), say, say)
    assert drawn(chart, blocks=False)[-1].strip().startswith("bars begin at 0.8")


def test_a_marked_point_has_its_name_in_its_row() -> None:
    chart = Curves(
        "t",
        "x",
        "y",
        (Line("one", (1, 2), (0.5, 0.25)),),
        say,
        say,
        marks=(("the best", 1, 0.5),),
        y_from_zero=True,
    )
    assert [line.endswith("the best") for line in drawn(chart, blocks=False)] == [
        False,
        False,
        True,
        False,
    ]


def test_plain_bars_are_as_long_as_their_share_of_the_longest() -> None:
    assert [line.count("#") for line in drawn(PLAIN, blocks=False)] == [0, 40, 20]


def test_bars_around_a_base_reach_to_both_sides_on_one_scale() -> None:
    first, second = drawn(AROUND, blocks=False)[1:]
    assert first.index("|") == second.index("|")
    assert (first.count("-"), first.count("+")) == (2 * second.count("-"), 2 * second.count("+"))
    assert first.endswith("0.5 to 0.9  half and twice")


@pytest.mark.parametrize(
    "chart",
    [
        CURVES,
        PLAIN,
        AROUND,
        Bars("none", "x", (), say),
        Curves("flat", "x", "y", (Line("one", (1, 2), (0.0, 0.0)),), say, say),
    ],
)
def test_letters_stay_ascii_where_the_output_cannot_show_more(chart: Chart) -> None:
    assert all(line.isascii() and line == line.rstrip() for line in drawn(chart, blocks=False))


def test_a_chart_goes_into_a_file_of_a_known_kind() -> None:
    with pytest.raises(UsageError, match=r"drawn as svg or png"):
        format_of("chart.pdf")


@needs_matplotlib
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_same_charts_are_the_same_file(tmp_path: Path, kind: str) -> None:
    draw([CURVES, PLAIN, AROUND], str(tmp_path / f"chart.{kind}"))
    data = (tmp_path / f"chart.{kind}").read_bytes()
    assert data == picture([CURVES, PLAIN, AROUND], kind)
    assert data.startswith(b"\x89PNG" if kind == "png" else b"<?xml")


@needs_matplotlib
def test_a_drawn_chart_says_what_the_letters_say() -> None:
    svg = picture([CURVES, AROUND], "svg").decode()
    assert all(word in svg for word in ("A title", "GPUs", "two", "mttf", "half and twice", "100"))
