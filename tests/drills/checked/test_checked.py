"""`outlast check` tries scripts: it names planted flaws with their lines, and nothing else.

`python -m tests.drills.checked.table` prints the same as a table.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.drills._pids import alive, below
from tests.drills.checked.table import FLAWED, GOOD, HERE, check

pytestmark = pytest.mark.timeout(300)
# The ordinary suite has only these, and OWN_FILES for the good ones. `make drill` runs all.
QUICK = {"half_adopted"}
SCRIPTS = [
    pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.drill)
    for path in [*GOOD, *FLAWED]
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_flaws_are_named_with_their_lines_and_good_scripts_pass(script: Path) -> None:
    """Method: run `outlast check --json` as a process, in the folder of the script."""
    row = check(script)
    assert row.well, f"{row}\n{row.stderr}"


def test_there_are_twelve_good_scripts_and_ten_flawed_ones() -> None:
    assert len(GOOD) >= 12
    assert len(FLAWED) >= 10


OWN_FILES = """\
import os
import sys

import torch
from torch import nn

import outlast

run = outlast.join()
torch.manual_seed(0)
model = run.replicate(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=50):
    with step:
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if run.rank == 0:
        torch.save(model.state_dict(), "best.pt")
        os.makedirs("out/inner", exist_ok=True)
        with open("out/inner/log.txt", "a") as log:
            log.write(f"{step.number}\\n")
        with open("kept.txt.part", "w") as part:
            part.write("overwritten")
        os.replace("kept.txt.part", "kept.txt")
        if os.path.exists("removed.txt"):
            os.remove("removed.txt")
    if len(sys.argv) > 1:
        os.system("sleep 600")
"""


def left_behind(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"(folder)"
        for path in folder.rglob("*")
    }


def own_files(folder: Path) -> tuple[Path, dict[str, bytes]]:
    script = folder / "train.py"
    script.write_text(OWN_FILES)
    for name in ("best.pt", "kept.txt", "removed.txt"):
        (folder / name).write_text(f"the user's {name}")
    return script, left_behind(folder)


@pytest.mark.drill
def test_the_files_of_the_script_are_as_before(tmp_path: Path) -> None:
    """A check overwrites no checkpoint: files that are overwritten, replaced or removed are
    restored, and files that were made are removed.
    """
    script, before = own_files(tmp_path)
    row = check(script)
    assert row.code == 0, f"{row}\n{row.stderr}"
    assert left_behind(tmp_path) == before
    put_back = {Path(one).name for one in row.facts["trial"]["files_put_back"]}
    assert {"best.pt", "kept.txt", "removed.txt", "log.txt"} <= put_back


@pytest.mark.drill
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_check_that_is_stopped_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals
) -> None:
    """No process, no shared memory and no temporary folder is left, and the user's files are as
    before.

    Method: send the signal once the script has written its first file and stands still.
    """
    folder, temporary = tmp_path / "home", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    script, before = own_files(folder)
    process = subprocess.Popen(
        [sys.executable, "-m", "outlast.app.cli", "check", str(script), "--", "--sleep"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    try:
        end_s = time.monotonic() + 100
        while not (folder / "out/inner/log.txt").exists():
            assert process.poll() is None
            assert time.monotonic() < end_s
            time.sleep(0.05)
        started = below(process.pid)
        runs = [json.loads(card.read_text())["run"] for card in temporary.rglob("run.json")]
        mine = [Path(f"/dev/shm/outlast-{os.getuid()}-{run}") for run in runs]
        assert started
        assert mine
        assert all(one.exists() for one in mine)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert not alive(started)
        assert not [one for one in mine if one.exists()]
        # torch itself makes a folder for what it compiles
        left = [one.name for one in temporary.iterdir() if "torchinductor" not in one.name]
        assert left == []
        assert left_behind(folder) == before
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.drill
def test_a_script_that_takes_too_long_is_stopped_and_undetermined(tmp_path: Path) -> None:
    script, before = own_files(tmp_path)
    row = check(script, "--time-limit", "12", "--", "--sleep")
    assert row.code == 3, f"{row}\n{row.stderr}"
    assert "--time-limit" in row.facts["trial"]["undetermined"][0]
    assert left_behind(tmp_path) == before


@pytest.mark.drill
def test_a_script_that_differs_by_itself_is_not_blamed(tmp_path: Path) -> None:
    """Method: each run trains on different data, which depend on the clock."""
    script = tmp_path / "train.py"
    text = (HERE / "flawed/joined_twice.py").read_text()
    text = text.replace("second = outlast.join()", "second = run")
    text = text.replace("torch.manual_seed(6)", "torch.manual_seed(__import__('time').time_ns())")
    script.write_text(text)
    row = check(script)
    assert row.code == 3, f"{row}\n{row.stderr}"
    assert "the script itself gives other results" in row.facts["trial"]["undetermined"][0]


@pytest.mark.drill
def test_the_check_of_a_plain_script_says_with_which_step_it_goes_on(tmp_path: Path) -> None:
    """Method: a script of torchrun's shape, which saves at each second step, or does not save."""
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    row = check(script)
    assert row.code == 0, f"{row}\n{row.stderr}"
    assert "it came back with step 5 and repeated none" in row.facts["trial"]["seen"][0]
    script.write_text(PLAIN.replace("step % 2 == 0", "step % 100 == 0"))
    row = check(script)
    assert "it came back with step 1, so 4 of 4 steps" in row.facts["trial"]["seen"][0], row
    assert left_behind(tmp_path).keys() == {"train.py"}


PLAIN = """\
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters())
first = 1
if os.path.exists("ckpt.pt"):
    saved = torch.load("ckpt.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"] + 1
for step in range(first, 1000):
    model(torch.randn(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 0 and dist.get_rank() == 0:
        both = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(both, "ckpt.pt")
"""
