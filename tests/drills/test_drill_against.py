"""`outlast drill --against` with real processes: other launchers get the same faults.

Method: three faults during some seconds of training on two ranks. One of the faults can only be
given to outlast.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.drill, pytest.mark.timeout(600)]

PLAN = """
schema = 1
name = "few"
[[fault]]
kind = "kill"
target = { rank = 1 }
when = { at_step = 40 }
[[fault]]
kind = "raise"
target = { rank = 0 }
when = { at_step = 80 }
[[fault]]
kind = "lose_store"
target = { store = true }
when = { at_step = 60 }
"""
OURS = """
import outlast, torch
from torch import nn

run = outlast.join()
torch.manual_seed(0)
model = run.replicate(nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
for step in run.steps(run.state(model=model, optimizer=optimizer), until=120):
    with step:
        torch.manual_seed(step.number * 8 + run.rank)
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
THEIRS = """
import os, sys, time, torch
import torch.distributed as dist
from pathlib import Path
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, saved = dist.get_rank(), Path(sys.argv[1])
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
done = 0
if saved.exists():
    state = torch.load(saved)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["step"]
for step in range(done + 1, 121):
    torch.manual_seed(step * 8 + rank)
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
    if rank == 0:
        if step % 30 == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, "part.pt")
            os.replace("part.pt", saved)
        print(f"step {step}", flush=True)
if rank == 0:
    print("digest", sum(one.double().sum().item() for one in model.parameters()), flush=True)
"""


def drill(tmp_path: Path, *words: str) -> dict[str, Any]:
    (tmp_path / "plan.toml").write_text(PLAN)
    command = [sys.executable, "-m", "outlast.app.cli", "drill", "plan.toml", "--seed", "3"]
    command += ["--nproc-per-node", "2", "--run-dir", "drill", "--json", "--html", "drill.html"]
    done = subprocess.run(
        [*command, *words], cwd=tmp_path, capture_output=True, text=True, timeout=580
    )
    assert done.returncode == 0, done.stderr + done.stdout
    facts: dict[str, Any] = json.loads(done.stdout)
    assert facts["faults_left_out"] == {"lose_store": 1}
    assert facts["digest_equal"] is True
    page = (tmp_path / "drill.html").read_text()
    assert "The same faults under other launchers" in page
    return facts


def check(facts: dict[str, Any], name: str) -> dict[str, Any]:
    """Check what holds for every launcher that recovered. Return its row."""
    row: dict[str, Any] = next(one for one in facts["against"]["runs"] if one["name"] == name)
    assert row["ended_well"], row
    assert (row["faults_fired"], row["survived"], row["steps"]) == (2, 2, facts["steps"]), row
    assert 0 < row["ettr"] < row["ettr_training"] < 1.5, row
    assert row["mttr_s"]["median"] > 0, row
    return row


def test_torchrun_and_dcp_get_the_same_faults_on_the_shipped_training(tmp_path: Path) -> None:
    """torchrun repeats the steps since its checkpoint, and with two ranks all launchers end with
    the same bits. With more ranks, the first backward after a restart adds in another order.
    """
    facts = drill(tmp_path, "--against", "torchrun", "--against", "dcp", "--steps", "120")
    ours = check(facts, "outlast")
    assert ours["steps_lost"] == 0
    for name in ("torchrun", "dcp"):
        row = check(facts, name)
        assert row["mttr_s"]["median"] > ours["mttr_s"]["median"]
        assert row["save_every_steps"] >= 1
        assert row["digest_equal"] is True
        truth = (tmp_path / "drill" / f"{name}.jsonl").read_text().splitlines()
        assert [json.loads(line)["kind"] for line in truth] == ["kill", "raise"]
    assert not (tmp_path / "drill" / "torchrun-undisturbed").exists()


def test_a_second_script_of_the_user_is_drilled_under_torchrun(tmp_path: Path) -> None:
    """The script saves every 30 steps. After the kill in step 40 it repeats ten steps, after the
    one in step 80 twenty.
    """
    (tmp_path / "train.py").write_text(OURS)
    (tmp_path / "ddp.py").write_text(THEIRS)
    facts = drill(tmp_path, "--against-script", "ddp.py {run}/saved.pt", "--", "train.py")
    row = check(facts, "torchrun")
    assert row["steps_lost"] >= 20
    assert row["save_every_steps"] is None
    assert row["digest_equal"] is True


@pytest.mark.skipif(not find_spec("torchft"), reason="torchft is not installed")
def test_torchft_goes_on_with_fewer_ranks_and_that_is_reported(tmp_path: Path) -> None:
    facts = drill(tmp_path, "--against", "torchft", "--nproc-per-node", "3", "--steps", "120")
    row = check(facts, "torchft")
    assert row["steps_with_fewer_ranks"] > 0
    assert row["digest_equal"] is False
