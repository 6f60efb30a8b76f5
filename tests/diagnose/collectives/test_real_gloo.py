"""Four real processes over gloo, and what their own recorders leave: both forms of the dump, read
as any stranger's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.diagnose.collectives import Blame, find_blame
from outlast.model.pieces import Piece
from outlast.runtime.evidence.unpickling import read_dumps

CULPRIT = 2
SETTLED_LOOKS, LIMIT_S = 3, 110.0

pytestmark = pytest.mark.timeout(300)


class Four:
    def __init__(self, folder: Path, scenario: str) -> None:
        self.folder = folder
        for form in ("json", "pickle"):
            (folder / form).mkdir()
        program = Path(__file__).with_name("gloo_rank.py")
        self.ranks = subprocess.Popen(
            [sys.executable, str(program), str(folder), scenario, str(CULPRIT)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def blame(self, form: str, *, without: int | None = None) -> tuple[Blame, int]:
        """And how many entries all dumps had."""
        paths = [path for path in sorted((self.folder / form).iterdir()) if path.suffix != ".new"]
        dumps, unreadable = read_dumps(
            [Piece(path.name, str(path), path.stat().st_size) for path in paths], processes=1
        )
        assert not unreadable
        return find_blame([dump for dump in dumps if dump.rank != without], world_size=4), sum(
            dump.entry_count for dump in dumps
        )

    def settled(self, form: str, *, without: int | None = None) -> Blame:
        """Once all have left dumps, and none of some looks in a row shows anything new."""
        over_s, looks = time.monotonic() + LIMIT_S, []
        while time.monotonic() < over_s:
            time.sleep(0.3)
            if all((self.folder / form / name).exists() for name in self.names(form)):
                looks.append(self.blame(form, without=without))
                if (
                    len(looks) >= SETTLED_LOOKS
                    and looks[-1][1] > 4 * 8
                    and len({repr(look) for look in looks[-SETTLED_LOOKS:]}) == 1
                ):
                    return looks[-1][0]
        raise AssertionError(f"nothing settled in {LIMIT_S:g} s: {looks[-2:]}")

    def after_the_abort(self) -> Blame:
        """Once a rank has ended, and the others have had the time to leave one more dump."""
        over_s = time.monotonic() + LIMIT_S
        while time.monotonic() < over_s and not (self.folder / "ended").exists():
            time.sleep(0.02)
        time.sleep(0.5)
        return self.blame("json")[0]

    def names(self, form: str) -> list[str]:
        return [
            f"node-a_{rank}.json" if form == "json" else f"trace_rank_{rank}" for rank in range(4)
        ]

    def end(self) -> None:
        os.killpg(self.ranks.pid, signal.SIGKILL)
        self.ranks.wait(timeout=20)


@pytest.fixture
def four(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Four]:
    job = Four(tmp_path, request.param)
    yield job
    job.end()


@pytest.mark.parametrize("four", ["sleep"], indirect=True)
def test_a_sleeping_rank_of_four_is_named_from_real_dumps(four: Four) -> None:
    """TP pairs and DP pairs: its neighbour in one group is waited for by that one's neighbour in
    the other. From JSON and from pickles with stacks.
    """
    for form in ("json", "pickle"):
        blame = four.settled(form)
        (four.folder / "stands").touch()
        assert ([one.rank for one in blame.ranks], blame.kind, blame.suspects) == (
            [CULPRIT],
            "missing",
            (),
        ), form
    assert any("gloo_rank.py" in finding.evidence.text for finding in blame.findings)
    for lost in range(4):
        blame, _ = four.blame("pickle", without=lost)
        assert {one.rank for one in blame.ranks} <= {CULPRIT}
        assert {one.rank for one in blame.suspects} <= {lost}
        assert CULPRIT in {one.rank for one in (*blame.ranks, *blame.suspects)}


@pytest.mark.drill
def test_a_rank_that_brings_another_shape_is_named_from_real_dumps(tmp_path: Path) -> None:
    """Method: try until enough ranks have left a dump of that step.

    Gloo aborts some ranks at once, often before their thread has written it. With the dumps of two
    ranks, nothing tells which of them is the odd one.
    """
    for number in range(8):
        (tmp_path / str(number)).mkdir()
        job = Four(tmp_path / str(number), "shape")
        try:
            blame = job.after_the_abort()
        finally:
            job.end()
        if blame.kind != "mismatch":
            continue
        assert CULPRIT in [one.rank for one in blame.ranks]
        if not blame.either:
            break
    assert ([one.rank for one in blame.ranks], blame.kind, blame.either) == (
        [CULPRIT],
        "mismatch",
        False,
    )
