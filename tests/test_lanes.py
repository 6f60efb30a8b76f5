"""`make test` and `make drill` leave no test out and run none twice, however many lanes run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lanes import DRILLS, TESTS, lanes

HOME = Path(__file__).parents[1]


@pytest.mark.parametrize(("arguments", "parts"), [(["-x"], TESTS), (["--drills", "-x"], DRILLS)])
def test_the_last_lane_runs_what_all_others_leave_out(
    arguments: list[str], parts: tuple[tuple[str, ...], ...]
) -> None:
    *before, last = lanes(arguments)
    ran = [one for lane in before for one in lane if one.startswith("tests/")]
    assert ran == [path for part in parts for path in part]
    assert [one.removeprefix("--ignore=") for one in last if one.startswith("--ignore=")] == ran
    assert last[-1] == "tests"
    assert all("-x" in lane for lane in (*before, last))
    missing = [path for path in ran if not (HOME / path).exists()]
    assert not missing, f"nothing would be run for {missing}"
    nested = [one for one in ran for other in ran if one.startswith(f"{other}/")]
    assert not nested, f"run twice: {nested}"
    assert len(set(ran)) == len(ran)


@pytest.mark.parametrize(
    "arguments", [["tests/engine"], ["-k", "digest"], ["-m", "drill"], ["tests/engine", "-x"]]
)
def test_who_asks_for_some_tests_gets_one_pytest(arguments: list[str]) -> None:
    assert lanes(arguments) == [arguments]
    assert lanes(["--drills", *arguments]) == [["-m", "slow or drill", *arguments]]
