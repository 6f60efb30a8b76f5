"""`make test` leaves no test out and runs none twice, however it is cut in two."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.halves import FIRST, halves

HOME = Path(__file__).parents[1]


def test_what_the_first_half_runs_the_second_ignores_and_it_is_there() -> None:
    first, second = halves(["-x"])
    assert [one for one in first if not one.startswith("-")] == list(FIRST)
    assert [one.removeprefix("--ignore=") for one in second if one.startswith("--ignore=")] == list(
        FIRST
    )
    assert second[-1] == "tests"
    assert "-x" in first
    assert "-x" in second
    missing = [path for path in FIRST if not (HOME / path).exists()]
    assert not missing, f"nothing would be run for {missing}"
    nested = [one for one in FIRST for other in FIRST if one.startswith(f"{other}/")]
    assert not nested, f"run twice: {nested}"


@pytest.mark.parametrize(
    "arguments", [["tests/engine"], ["-k", "digest"], ["-m", "drill"], ["tests/engine", "-x"]]
)
def test_who_asks_for_some_tests_gets_one_pytest(arguments: list[str]) -> None:
    assert halves(arguments) == [arguments]
