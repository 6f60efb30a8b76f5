"""A fault that a process does to itself happens once, and is not taken for a bug of outlast."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from outlast.model.drills.drill_faults import KINDS
from outlast.model.own_bugs import is_own_bug
from outlast.runtime.evidence.api import diagnose
from outlast.runtime.worker.instructions import drill_code


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


@pytest.mark.parametrize("do", ["raise", "shape", "nan", "uneven", "io"])
def test_an_injected_exception_is_no_bug_of_outlast(tmp_path: Path, do: str) -> None:
    order(tmp_path, do)
    with pytest.raises((LookupError, RuntimeError, FloatingPointError, OSError)) as raised:
        drill_code.obey(str(tmp_path), rank=2, step=7)
    assert not is_own_bug("".join(traceback.format_exception(raised.value)))


def test_a_diagnosis_takes_it_for_a_line_of_the_script(tmp_path: Path) -> None:
    """Though it was outlast that called it."""
    orders, logs = tmp_path / "orders", tmp_path / "logs"
    orders.mkdir()
    logs.mkdir()
    order(orders, "raise")
    with pytest.raises(KeyError) as raised:
        drill_code.obey(str(orders), rank=2, step=7)
    (logs / "rank2.log").write_text("".join(traceback.format_exception(raised.value)))
    verdict = diagnose(logs)
    assert verdict.failure_class in KINDS["raise"].classes, verdict.reason
    assert "4711" in verdict.reason


LOADS = """
import contextlib, os, sys
from torch.utils.data import DataLoader
from outlast.runtime.worker.instructions import drill_code

def look(step):
    drill_code.obey(sys.argv[1], rank=2, step=step)

look(7)
batches = iter(DataLoader(range(1_000), num_workers=1))
next(batches)
with contextlib.suppress(RuntimeError):  # torch raises that death wherever the process stands
    look(8)
    batches._workers[0].join(30)
with contextlib.suppress(RuntimeError):
    batches._workers[0].join(30)
print(batches._workers[0].exitcode, flush=True)
os._exit(0)
"""


def test_the_worker_of_a_loader_is_killed_once_there_is_one(tmp_path: Path) -> None:
    """At the first look the rank has no loader with workers, so the order waits."""
    order(tmp_path, "loader")
    command = [sys.executable, "-c", LOADS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.stdout == f"{-signal.SIGKILL}\n", done.stderr
    assert json.loads((tmp_path / "fired-1").read_text())["step"] == 8
    assert not (tmp_path / "rank-2").exists()
