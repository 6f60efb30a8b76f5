"""Whatever happens to the surroundings of a run, training goes on with equal weights, or ends with
a reason.

The table is in tests/drills/surroundings/table.py. For some cells, or several at once: `python -m
tests.drills.surroundings --only vault --jobs 2`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.drills.surroundings import acts, settings
from tests.drills.surroundings.page import page
from tests.drills.surroundings.run import Digests, calm, judged
from tests.drills.surroundings.table import LEFT_OUT, ROWS, Cell, Moment, cells

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "what-survives-what.md"
THINGS = {
    "console",
    "store host",
    "zygote",
    "vault",
    "run folder",
    "disk",
    "checkpoint folder",
    "ledger",
    "descriptors",
    "memory",
    "processes",
    "threads",
    "launcher",
    "loopback",
    "others",
    "clock",
}


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Digests:
    return calm(tmp_path_factory.mktemp("calm"))


# --- the table, without a process -----------------------------------------------------------------


def test_the_page_is_made_from_the_table() -> None:
    assert PAGE.read_text() == page(), "python -m tests.drills.surroundings --page > " + str(PAGE)


def test_the_table_has_all_that_surrounds_a_run_at_all_moments() -> None:
    found = cells()
    assert {cell.row.thing for cell in found} >= THINGS
    assert len(found) >= 150
    by_moment = Counter(cell.moment for cell in found)
    assert set(by_moment) == set(Moment), by_moment
    assert min(by_moment.values()) >= 15, by_moment


def test_every_row_can_be_done_and_has_a_name_of_its_own() -> None:
    """If a run ends or may wait for longer, the table says what is kept, and why."""
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert callable(getattr(acts, row.act)), row
        assert row.setting in {"", *settings.NAMES}, row
        assert row.codes == (0,) or row.kept, row
        assert row.within_s <= 30.0 or row.because, row
    assert all(what and why for what, why in LEFT_OUT)


def test_the_draw_of_moments_is_the_same_each_time() -> None:
    assert [cell.name for cell in cells()] == [cell.name for cell in cells()]
    assert [cell.name for cell in cells(1)] != [cell.name for cell in cells(2)]


# --- the cells, on real processes -----------------------------------------------------------------


@pytest.mark.drill
@pytest.mark.timeout(240)
@pytest.mark.parametrize("cell", cells(), ids=[cell.name.replace(" ", "-") for cell in cells()])
def test_a_cell_of_the_table(cell: Cell, tmp_path: Path, expected: Digests) -> None:
    found = judged(cell, tmp_path, expected)
    assert not found.problems, str(found)
