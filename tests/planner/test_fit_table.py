"""planner/fit/failures_table.py counts what a table says. An error names the line that is wrong."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.terms import FailureClass
from outlast.planner.fit.failures_table import Fleet, read_failures, read_moment
from outlast.planner.fit.observed import Observed
from outlast.planner.fit.weibull import fit_weibull
from outlast.planner.scenario import Extent, Unit

HEAD = "node,time,class,start,end,installed"


def read(*lines: str, **keywords: object) -> Observed:
    return read_failures(lines, source="f.csv", **keywords)  # type: ignore[arg-type]


def test_a_table_says_who_was_watched_and_who_failed() -> None:
    one = read(
        HEAD,
        "# a comment",
        "n1,2025-01-05T12:00:00Z,gpu,2025-01-01,2025-01-31,2024-12-01",
        "",
        "n1,2025-01-06 12:00:00+02:00,user_code,2025-01-01,2025-01-31,",
        "n2,,,2025-01-11,2025-01-21,2025-01-01",
    )
    day_s = 86_400.0
    assert one.exposure_s == {Unit.NODE: 40 * day_s}
    assert [
        (one.at_s / day_s, one.failure_class, one.extent, one.unit) for one in one.failures
    ] == [
        (4.5, FailureClass.GPU, Extent.NODE, "n1"),
        (5 + 10 / 24, FailureClass.USER_CODE, Extent.PROCESS, "n1"),
    ]
    assert one.span_s == 30 * day_s
    assert one.units[Unit.NODE] == pytest.approx(4 / 3)
    assert one.age_s == 61 * day_s  # of n1, which is the one that is still watched at the end
    gpu = one.lives[FailureClass.GPU]
    assert sorted(zip(gpu.entry_s / day_s, gpu.exit_s / day_s, gpu.failed, strict=True)) == [
        (10, 20, False),
        (31, 35.5, True),
        (35.5, 61, False),
    ]


def test_a_fleet_stands_for_units_that_never_failed() -> None:
    one = read("gpu,time,class", "g1,50,hbm", "g7,20,hbm", fleet=Fleet(16, 0.0, 100.0))
    assert one.exposure_s == {Unit.GPU: 1600.0}
    assert [failure.at_s for failure in one.failures] == [20.0, 50.0]
    assert one.lives == {}
    assert any("how old" in text for text in one.limits)
    assert any("all 16 gpus were watched the whole time" in text for text in one.assumptions)


def test_names_of_the_tables_own_stand_for_classes() -> None:
    one = read(
        "gpu,time,class", "g1,50,DBE", fleet=Fleet(1, 0.0, 100.0), classes={"DBE": FailureClass.HBM}
    )
    assert one.failures[0].failure_class is FailureClass.HBM


def test_columns_come_in_any_order_with_any_ends_of_lines() -> None:
    one = read("\ufeffend , class, start, RACK, time\r\n", "9,gpu,0,r1,3\r\n")
    assert (one.exposure_s, one.failures[0].at_s) == ({Unit.RACK: 9.0}, 3.0)


def test_without_the_age_of_every_unit_nothing_is_said_of_age() -> None:
    one = read(HEAD, "a,2,gpu,0,9,0", "b,,,0,9,")
    assert (one.lives, one.age_s) == ({}, None)
    assert any("how old 1 of 2 units are" in text for text in one.limits)


def test_the_same_stretch_said_with_each_failure_counts_once() -> None:
    assert read(HEAD, "a,2,gpu,0,9,0", "a,3,gpu,0,9,0", "a,12,gpu,9,20,0").exposure_s == {
        Unit.NODE: 20.0
    }


def test_units_that_replace_others_enter_at_their_age() -> None:
    """Method: write a table from lifetimes of a known law, read it, and fit the law again."""
    luck = np.random.Generator(np.random.PCG64(1))
    lines = [HEAD]
    for unit in range(400):
        born = -900.0 * luck.random()
        life = 1000.0 * ((-born / 1000.0) ** 2 - np.log1p(-luck.random())) ** 0.5
        fails_at = born + life
        failed = fails_at < 700.0
        failure, end = (f"{fails_at:.3f},gpu", f"{fails_at:.3f}") if failed else (",", "700")
        lines.append(f"u{unit},{failure},0,{end},{born:.3f}")
    fit = fit_weibull(read(*lines).lives[FailureClass.GPU])
    assert fit.shape_low <= 2.0 <= fit.shape_high
    assert abs(fit.shape - 2.0) < 0.4


def test_units_that_are_all_equally_old_cannot_tell_age_from_the_calendar() -> None:
    alike = read(HEAD, "a,50,gpu,0,100,-5", "b,,,0,100,-2", "c,,,0,100,-90")
    assert any(
        "installed at about the same time hold 67% of the unit-time" in text
        for text in alike.limits
    )
    mixed = read(HEAD, "a,50,gpu,0,100,-5", "b,,,0,100,-60", "c,,,0,100,-90")
    assert not any("calendar" in text for text in mixed.limits)


# --- what is wrong is named -----------------------------------------------------------------------

WRONG = [
    ([], "is empty", "first line names the columns"),
    (["# only a comment"], "is empty", "first line names the columns"),
    ([HEAD], "has no row", "never failed"),
    (["node,tim,class"], "line 1: there is no column 'tim'", "did you mean 'time'"),
    (["time,class"], "line 1: no column says which unit failed", "node, gpu or rack"),
    (["node,gpu,time,class"], "line 1: more than one column says", "node, gpu or rack"),
    (["node,class"], "line 1: there is no column 'time'", "first line names"),
    (["node,time,class,class"], "line 1: a column occurs twice", "first line names"),
    (["node,time,class,start"], "line 1: start and end go together", "first line names"),
    (
        [HEAD, "a,2,gpu,0,9"],
        "line 2 has 5 cells; the first line names 6 columns",
        "still has its comma",
    ),
    ([HEAD, ",2,gpu,0,9,"], "line 2: the unit is missing", "names one"),
    ([HEAD, "a,2,,0,9,"], "line 2: a failure has a time and a class", "leave both empty"),
    ([HEAD, "a,,gpu,0,9,"], "line 2: a failure has a time and a class", "leave both empty"),
    ([HEAD, "a,2,gpuu,0,9,"], "line 2: class is 'gpuu', which is not known", "did you mean 'gpu'"),
    (
        [HEAD, "a,2,XID79,0,9,"],
        "line 2: class is 'XID79', which is not known",
        "--class XID79=CLASS",
    ),
    ([HEAD, "a,2,gpu,0,,"], "line 2: start and end go together", "ends when the record does"),
    (
        [HEAD, "a,2,gpu,9,0,"],
        "line 2: the end of watching is not after its start",
        "start is before end",
    ),
    (
        [HEAD, "a,2,gpu,9,9,"],
        "line 2: the end of watching is not after its start",
        "start is before end",
    ),
    ([HEAD, "a,0,gpu,0,9,"], "line 2: the failure is not within start and end", "after start"),
    ([HEAD, "a,10,gpu,0,9,"], "line 2: the failure is not within start and end", "not after end"),
    (
        [HEAD, "a,2,gpu,0,9,1"],
        "line 2: the unit was watched before it was installed",
        "installed is not after start",
    ),
    (
        [HEAD, "a,2,gpu,0,9,0", "a,12,gpu,10,19,-5"],
        "line 3: line 2 gives another time at which a was installed",
        "gets a new name",
    ),
    (
        [HEAD, "a,2,gpu,0,9,", "a,12,gpu,10,19,5"],
        "line 3: a was watched before it was installed: see line 2",
        "installed is not after start",
    ),
    (
        [HEAD, "a,2,gpu,0,9,0", "a,12,gpu,8,19,0"],
        "lines 2 and 3: the stretches of a overlap",
        "touch, but not overlap",
    ),
    (
        [HEAD, "a,2,gpu,0,9,0", "b,3,gpu,,,"],
        "line 3: it is not known when this unit was watched",
        "--units",
    ),
    (
        ["node,time,class", "a,3,gpu"],
        "line 2: it is not known when this unit was watched",
        "--units, --from and --to",
    ),
    (
        [HEAD, "a,yesterday,gpu,0,9,"],
        "line 2: time is 'yesterday', which is not a time",
        "write 2025-03-02",
    ),
    (
        [HEAD, "a,2025-02-30,gpu,2025-01-01,2025-03-01,"],
        "line 2: time is '2025-02-30', which is not a date",
        "write 2025-03-02",
    ),
    (
        [HEAD, "a,2,gpu,0,9,", "b,,,2025-01-01,2025-03-01,"],
        "line 3: start is in dates, and f.csv, line 2: time in seconds",
        "one of the two",
    ),
    ([HEAD, "a,nan,gpu,0,9,"], "line 2: time is 'nan'", "write 2025-03-02"),
    ([HEAD, 'a,"2,gpu,0,9,'], "line 2 is not CSV", "quote"),
    ([HEAD, "a\0,2,gpu,0,9,"], "line 2 is not a line of text", "UTF-8"),
    ([HEAD, "a," + "9" * 70_000], "line 2 is not a line of text", "UTF-8"),
]


@pytest.mark.parametrize(
    ("lines", "error", "hint"), WRONG, ids=[error[:40] for _, error, _ in WRONG]
)
def test_what_is_wrong_is_named_with_its_line(lines: list[str], error: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(*lines)
    assert error in caught.value.args[0]
    assert caught.value.args[0].startswith("f.csv")
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("lines", "fleet", "error"),
    [
        (
            [HEAD, "a,2,gpu,0,9,0"],
            Fleet(5, 0.0, 9.0),
            "line 2: both the table and --units",
        ),
        (
            ["node,time,class", "a,12,gpu"],
            Fleet(5, 0.0, 9.0),
            "line 2: the failure is not within --from and --to",
        ),
        (
            ["node,time,class", "a,2,gpu", "b,3,gpu"],
            Fleet(1, 0.0, 9.0),
            "names 2 units, and --units says 1",
        ),
        (["node,time,class", "a,2,gpu"], Fleet(0, 0.0, 9.0), "0 units were watched"),
        (["node,time,class", "a,2,gpu"], Fleet(5, 9.0, 0.0), "5 units were watched for -9 s"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(lines: list[str], fleet: Fleet, error: str) -> None:
    with pytest.raises(UsageError, match=re.escape(error)):
        read(*lines, fleet=fleet)


def test_the_fleets_times_are_of_the_tables_kind() -> None:
    with pytest.raises(UsageError, match="time is in seconds, and --from in dates"):
        read("node,time,class", "a,2,gpu", fleet=Fleet(5, 0.0, 9.0), dates=True)


# --- for all tables -------------------------------------------------------------------------------


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], float, int]:
    """Draw a good table. Return it with its exposure in seconds and its number of failures."""
    lines, exposure, failures = [HEAD], 0, 0
    for unit in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, 100))
        born = draw(st.integers(0, at))
        for _ in range(draw(st.integers(1, 3))):
            end = at + draw(st.integers(1, 50))
            failed = draw(st.lists(st.integers(at + 1, end), max_size=3))
            classes = [draw(st.sampled_from(["gpu", "hbm", "unknown"])) for _ in failed]
            watched = f"{at},{end},{draw(st.sampled_from(['', born]))}"
            lines += [
                f"u{unit},{when},{what},{watched}"
                for when, what in zip(failed, classes, strict=True)
            ] or [f"u{unit},,,{watched}"]
            exposure, failures = exposure + end - at, failures + len(failed)
            at = end + draw(st.integers(0, 20))
    body = draw(st.permutations(lines[1:]))
    return [HEAD, *body], float(exposure), failures


@settings(deadline=None, max_examples=80)
@given(tables())
def test_what_a_good_table_says_is_what_is_counted(table: tuple[list[str], float, int]) -> None:
    lines, exposure_s, failures = table
    one = read(*lines)
    assert one.exposure_s == {Unit.NODE: exposure_s}
    assert len(one.failures) == failures
    assert [failure.at_s for failure in one.failures] == sorted(
        failure.at_s for failure in one.failures
    )
    for lives in one.lives.values():
        assert lives.exposure_s == pytest.approx(exposure_s)
    if one.lives:
        assert sum(lives.count for lives in one.lives.values()) == failures


CELLS = st.one_of(
    st.sampled_from(
        ["", "n1", "gpu", "hbm", "0", "5", "9", "2025-01-01", "2025-13-01", "1e3", "-4", '"', "#"]
    ),
    st.text(max_size=6),
)


@settings(deadline=None, max_examples=200)
@given(
    st.one_of(
        st.lists(st.lists(CELLS, min_size=1, max_size=7).map(",".join), max_size=5),
        st.lists(st.text(max_size=40), max_size=5),
    ),
    st.booleans(),
)
def test_any_text_is_read_or_refused_with_the_name_of_the_table(
    lines: list[str], headed: bool
) -> None:
    said = outcome([HEAD, *lines] if headed else lines)
    if isinstance(said, UsageError):
        assert said.args[0].startswith("f.csv")
        assert said.hint
    else:
        assert sum(said.exposure_s.values()) > 0


def outcome(lines: list[str]) -> Observed | UsageError:
    try:
        return read(*lines)
    except UsageError as error:
        return error


@given(st.integers(315_532_800, 3_786_912_000), st.integers(-11, 11))
def test_a_moment_is_the_same_in_every_zone(moment_s: int, hours: int) -> None:
    there = datetime.fromtimestamp(moment_s, timezone.utc)
    here = there.astimezone(timezone(timedelta(hours=hours)))
    assert (
        read_moment(here.isoformat(), "t")
        == read_moment(there.replace(tzinfo=None).isoformat(), "t")
        == (there.timestamp(), True)
    )
