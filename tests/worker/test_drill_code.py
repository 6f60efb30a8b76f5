"""A fault that a process does to itself happens once, and is not taken for a bug of outlast."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest

from outlast.model.own_bugs import is_own_bug
from outlast.runtime.worker import drill_code


def order(folder: Path, do: str, *, name: str = "1", rank: int = 2) -> None:
    (folder / f"rank-{rank}").write_text(json.dumps({"id": name, "do": do}))


def test_an_order_is_carried_out_once(tmp_path: Path) -> None:
    order(tmp_path, "nan")
    with pytest.raises(FloatingPointError):
        drill_code.obey(str(tmp_path), rank=2, step=7)
    told = json.loads((tmp_path / "fired-1").read_text())
    assert told["step"] == 7
    assert told["at_s"] > 0
    drill_code.obey(str(tmp_path), rank=2, step=7)  # the step is repeated, and no fault comes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fired-1"]


def test_a_process_that_takes_the_rank_over_does_not_repeat_the_fault(tmp_path: Path) -> None:
    """Method: the process before was killed between its note and the fault, so the order is still
    there.
    """
    order(tmp_path, "nan")
    (tmp_path / "fired-1").write_text("{}")
    drill_code.obey(str(tmp_path), rank=2, step=7)
    assert not (tmp_path / "rank-2").exists()


def test_an_order_for_another_rank_is_left_alone(tmp_path: Path) -> None:
    order(tmp_path, "nan", rank=1)
    drill_code.obey(str(tmp_path), rank=2, step=7)
    assert (tmp_path / "rank-1").exists()


@pytest.mark.parametrize("do", ["raise", "shape", "nan", "io"])
def test_an_injected_exception_is_no_bug_of_outlast(tmp_path: Path, do: str) -> None:
    order(tmp_path, do)
    with pytest.raises((KeyError, RuntimeError, FloatingPointError, OSError)) as raised:
        drill_code.obey(str(tmp_path), rank=2, step=7)
    assert not is_own_bug("".join(traceback.format_exception(raised.value)))
