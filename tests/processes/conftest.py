"""Houses for tests with real processes: one whose zygote serves a whole file, and one without a
zygote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes.house import House

HERE = str(Path(__file__).parent)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Yield a house with a zygote whose workers have a fake session."""
    one = House(tmp_path_factory.mktemp("house"))
    one.host.start_zygote(preload=("fake_session",), first_path=HERE)
    one.until(lambda: bool(one.record.zygotes), "the zygote")
    yield one
    one.close()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Callable[[], House]]:
    houses: list[House] = []

    def make() -> House:
        houses.append(House(tmp_path))
        return houses[-1]

    yield make
    for one in houses:
        one.close()


@pytest.fixture(autouse=True)
def _quiet_console(request: pytest.FixtureRequest) -> None:
    if "house" in request.fixturenames:
        request.getfixturevalue("house").console.clear()
