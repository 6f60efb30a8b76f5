"""benchmarks/titan.py reads the table as its operators meant it, and its predictors find the laws
from which a test draws its data.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks._titan import (
    AGES,
    AGES_PER_YEAR,
    NEW,
    OLD,
    Boards,
    Cells,
    cells_of,
    read_boards,
    table_of,
)
from benchmarks.titan import bins_of, clock, flat, hazards, lives_of, main, score
from outlast.errors import UsageError
from outlast.model.terms import FailureClass
from outlast.planner.fit.failures_table import read_failures
from outlast.planner.scenario import Unit

HEAD = "SN,location,insert,remove,duration,out,event"
PLACES = [folder / "shared" / "data" / "titan_gc_full.csv" for folder in Path(__file__).parents[3:]]
DATA = next((place for place in PLACES if place.is_file()), PLACES[0])

MADE = [
    HEAD,
    "A,c1-0c0s0n0,2014-01-01 00:00:00,2016-06-01 00:00:00,1,FALSE,",
    "A,c2-0c2s0n0,2016-07-01 00:00:00,2016-07-11 00:00:00,1,TRUE,DBE",
    "A,c2-0c2s0n0,,2016-07-10 12:00:00,,,OTB",
    "A,c2-0c2s0n0,,2016-07-05 12:00:00,,,DBE",
    "B,c3-1c1s7n3,2016-02-01 00:00:00,2017-01-01 00:00:00,1,FALSE,",
]


def made(*lines: str) -> Boards:
    return read_boards([*MADE, *lines], source="t.csv")


def test_a_row_is_a_stretch_an_event_that_ended_one_or_one_more_event() -> None:
    boards = made()
    assert boards.names == ["A", "B"]
    assert list(boards.batch) == [OLD, NEW]
    assert list(
        zip(
            boards.stretch_board,
            boards.stretch_cage,
            boards.end - boards.begin,
            boards.ended_by_event,
            strict=True,
        )
    ) == [
        (0, 0, 882.0, False),
        (0, 2, 10.0, True),
        (1, 1, 335.0, False),
    ]
    assert list(zip(boards.event_board, boards.event_cage, boards.event_kind, strict=True)) == [
        (0, 2, "DBE"),
        (0, 2, "OTB"),
        (0, 2, "DBE"),
    ]


def test_events_of_a_board_within_a_day_are_one_failure() -> None:
    # the first row comes half a day after the second
    assert list(made().failures(apart_days=1.0)) == [False, True, True]
    assert (
        list(made().failures(apart_days=0.4))
        == list(made().failures(apart_days=0))
        == [True, True, True]
    )


def test_cells_hold_all_the_time_and_all_the_events() -> None:
    boards = made()
    cells = cells_of(boards, kept=boards.failures(apart_days=0))
    assert (cells.months[0], cells.months[-1]) == ("2014-01", "2017-01")
    assert cells.exposure.sum() * 365.25 == pytest.approx(882 + 10 + 335)
    july = cells.month("2016-07")
    assert cells.exposure[july, OLD, 2].sum() * 365.25 == pytest.approx(10.0)
    # it turned 30 twelfths of a year old in these ten days
    assert list(np.flatnonzero(cells.exposure[july, OLD, 2])) == [29, 30]
    assert cells.count[july, OLD, 2].sum() == cells.count.sum() == 3
    # age: since the first of January 2014, the time out of the machine included
    assert cells.count[july, OLD, 2, 30] == 3
    assert cells.exposure[july, NEW, 1].sum() * 365.25 == pytest.approx(31.0)


def test_lives_go_on_at_the_age_of_the_board() -> None:
    lives = lives_of(made(), OLD)
    assert list(lives.entry_s / 86_400) == [0.0, 912.0]
    assert list(lives.exit_s / 86_400) == [882.0, 922.0]
    assert list(lives.failed) == [False, True]


def test_the_boards_can_be_calibrated_from_as_any_table_of_failures() -> None:
    rows, left_out = table_of(made("B,c3-1c1s7n3,,2018-01-01 00:00:00,,,OTB"))
    one = read_failures(
        rows, source="t.csv", classes={"DBE": FailureClass.HBM, "OTB": FailureClass.GPU}
    )
    assert left_out == 1
    assert one.exposure_s[Unit.GPU] == pytest.approx((882 + 10 + 335) * 86_400)
    assert sorted(failure.failure_class.value for failure in one.failures) == ["gpu", "hbm", "hbm"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("C,c1-0c0s0n0,2014-01-01 00:00:00,2016-06-01 00:00:00,1,FALSE", "line 7 has 6 cells"),
        (
            "C,c1-0c3s0n0,2014-01-01 00:00:00,2016-06-01 00:00:00,1,FALSE,",
            "line 7: location is 'c1-0c3s0n0'",
        ),
        ("C,c1-0c0s0n0,2014-01-01,2016-06-01 00:00:00,1,FALSE,", "line 7: '2014-01-01' is no time"),
        (
            "C,c1-0c0s0n0,2016-07-01 00:00:00,2016-06-01 00:00:00,1,FALSE,",
            "line 7: the board was removed before it was inserted",
        ),
        (
            "C,c1-0c0s0n0,2014-01-01 00:00:00,2016-06-01 00:00:00,1,FALSE,XID",
            "line 7: event is 'XID'",
        ),
        ("C,c1-0c0s0n0,,2016-06-01 00:00:00,,,", "line 7 is neither a stretch nor an event"),
        ("C,c1-0c0s0n0,,2016-06-01 00:00:00,,,DBE", "board C was never inserted"),
    ],
)
def test_a_row_that_cannot_be_is_named(line: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        made(line)


def test_another_table_is_refused() -> None:
    with pytest.raises(UsageError, match="is not Titan's table"):
        read_boards(["node,time,class"], source="t.csv")


# --- predictors -----------------------------------------------------------------------------------


def world(*, rates: np.ndarray, months: int = 60, old_until: int = 60, seed: int = 1) -> Cells:
    """Return drawn Poisson counts.

    `rates` are failures in a board-year, by batch, cage and age in months. Each cage has 1,000 old
    boards, and as many new ones from month 24 on.
    """
    luck = np.random.Generator(np.random.PCG64(seed))
    exposure, count = np.zeros((months, 2, 3, AGES)), np.zeros((months, 2, 3, AGES))
    for month in range(months):
        exposure[month, OLD, :, month] = 1000 / 12 if month < old_until else 100 / 12
        if month >= 24:
            exposure[month, NEW, :, month - 24] = 1000 / 12
    expected = exposure * rates
    for index in np.argwhere(expected > 0):
        at, cell = 0.0, tuple(index)
        while (at := at - float(np.log1p(-luck.random()))) < expected[cell]:
            count[cell] += 1
    names = [f"{2014 + month // 12}-{month % 12 + 1:02d}" for month in range(months)]
    return Cells(names, exposure, count)


def stepped(*, ageing: tuple[float, ...] = (1.0, 4.0, 8.0)) -> np.ndarray:
    years = np.minimum(np.arange(AGES) // AGES_PER_YEAR, len(ageing) - 1)
    rate = 0.05 * np.array([1.0, 2.0, 6.0])[:, None] * np.array(ageing)[years][None, :]
    return np.stack([rate, np.full((3, AGES), 0.1) * np.array([1.0, 2.0, 6.0])[:, None]])


def test_proportional_hazards_are_found_and_hold_when_boards_are_replaced() -> None:
    """Method: draw from hazards as the model has them, in a world where most old boards leave after
    the fit. The effects of batch and cage still hold then, and a constant rate does not.
    """
    cells = world(rates=stepped(), old_until=36)
    forecast, fit = hazards(cells, 36)
    factor = dict(zip(fit.names, fit.coefficients, strict=True))
    assert np.exp(factor["cage 1"]) == pytest.approx(2.0, rel=0.15)
    assert np.exp(factor["cage 2"]) == pytest.approx(6.0, rel=0.15)
    assert np.exp(factor["old, from year 2"] - factor["old, from year 0"]) == pytest.approx(
        8.0, rel=0.25
    )
    held_out = range(36, 60)
    ours = score(forecast, cells, held_out)
    assert ours.inside >= 0.8
    assert ours.predicted == pytest.approx(ours.came, rel=0.1)
    for other in [*flat(cells, 36, months=None), *flat(cells, 36, months=12)]:
        assert score(other, cells, held_out).log_score < ours.log_score - 0.5


def test_a_cage_that_makes_boards_age_faster_is_found() -> None:
    """Method: a hazard that rises with age, and clocks at 1, 1.5 and 2 times the speed."""
    clocks = np.array([1.0, 1.5, 2.0])
    age = (np.arange(AGES) + 0.5) / 12
    rates = np.stack([0.05 * (age[None, :] * clocks[:, None]) ** 2, np.full((3, AGES), 0.05)])
    _, _, found = clock(world(rates=rates), 48)
    assert found == (pytest.approx(1.5, abs=0.35), pytest.approx(2.0, abs=0.35))


def test_a_batch_that_was_never_seen_is_taken_as_the_other() -> None:
    cells = world(rates=stepped())
    _, fit = hazards(cells, 20)
    assert not any("new" in name for name in fit.names)
    assert clock(cells, 20)[0].expected[:, 40].min() > 0


def test_old_ages_that_were_hardly_seen_join_their_neighbours() -> None:
    exposure = np.zeros(AGES)
    exposure[:24], exposure[24:27] = 100.0, 1.0
    assert list(bins_of(exposure, width=12)[[0, 11, 12, 24, AGES - 1]]) == [0, 0, 1, 1, 1]


# --- the record itself ----------------------------------------------------------------------------


def test_without_the_data_it_says_so_and_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["titan.py", "--data", str(tmp_path / "none.csv")])
    assert main() == 0
    assert "skipped: " in capsys.readouterr().out


def test_titans_table_has_the_boards_hours_and_events_that_were_published() -> None:
    """They are 30,207 boards, 883.8 million hours, 4,826 DBE and 1,541 OTB. The batches are those
    of the operators' own summary.
    """
    if not DATA.is_file():
        pytest.skip("Titan's table is not there")
    with DATA.open(encoding="utf-8", newline="") as lines:
        boards = read_boards(lines, source="titan")
    assert (len(boards.names), len(boards.event_at)) == (30_207, 6_367)
    assert (boards.event_kind.count("DBE"), boards.event_kind.count("OTB")) == (4_826, 1_541)
    assert (boards.end - boards.begin).sum() * 24 / 1e6 == pytest.approx(883.8, abs=0.05)
    at_2016, at_2017 = (
        np.datetime64(day).astype("datetime64[s]").astype(float) / 86_400
        for day in ("2016-01-01", "2017-01-01")
    )
    assert (boards.event_at < at_2016).sum() == 428
    assert ((boards.event_at >= at_2016) & (boards.event_at < at_2017)).sum() == 2_611
    with DATA.with_name("titan_gc_summary_loc.csv").open(encoding="utf-8", newline="") as lines:
        said = {row["SN"]: row["batch"] for row in csv.DictReader(lines)}
    assert all(
        said[name] == ("old", "new")[batch]
        for name, batch in zip(boards.names, boards.batch, strict=True)
    )
