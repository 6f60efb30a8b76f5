"""`outlast drill` with real processes: a disk that is full or slow, and images that are damaged.

tests/processes/test_drill_disk.py and test_drill_images.py test each of these by itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlast.app.reports.report_facts import report_facts
from outlast.runtime.drill.drill_disk import may_be_filled, may_be_slowed
from outlast.runtime.ledger.view import look

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]

REPLICATED = """
import time
import torch
from torch import nn
import outlast

run = outlast.join()
torch.manual_seed(0)
model = run.replicate(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1)))
optimizer = torch.optim.AdamW(model.parameters())
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=200):
    with step:
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.03)
"""
SHARDED = """
import time
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
import outlast


def train(run):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 8))
    fully_shard(model, mesh=run.mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    state = run.state(model=model, optimizer=optimizer)
    for step in run.steps(state, until=120):
        with step:
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(0.03)


outlast.main(train)
"""
FAULT = """
[[fault]]
kind = "{kind}"
target = {target}
when = {{ at_step = {step} }}
"""


def drill(
    tmp_path: Path, script: str, *faults: tuple[str, str, int, float], keep: str
) -> tuple[int, dict[str, Any], str]:
    """Drill a script. Return the exit code, the score, and what the run under fire has printed.

    faults   kind, target, step, and how long it lasts; 0.0: it does not pass
    """
    text = "schema = 1\nname = 'damage'\n"
    for kind, target, step, for_s in faults:
        text += FAULT.format(kind=kind, target=target, step=step)
        text += f"for_s = {for_s}\n" if for_s else ""
    (tmp_path / "plan.toml").write_text(text)
    (tmp_path / "train.py").write_text(script)
    command = ["drill", "plan.toml", "--seed", "3", "--nproc-per-node", "2", "--run-dir", "d"]
    command += ["--json", "--", "--keep", keep, "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "outlast.app.cli", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.stdout, done.stderr
    log = (tmp_path / "d" / "under-fire.log").read_text()
    return done.returncode, json.loads(done.stdout), log


@pytest.mark.skipif(bool(may_be_filled()), reason=f"NO FULL DISK: {may_be_filled()}")
def test_a_full_disk_costs_checkpoints_and_a_damaged_image_the_bits(tmp_path: Path) -> None:
    """Under replicated state, an image holds random state only. The rank goes on with an older
    one, and says so. So states are not compared, and no step is lost.
    """
    code, facts, log = drill(
        tmp_path,
        REPLICATED,
        ("full_disk", "{ disk = 0 }", 60, 2.0),
        ("corrupt_image", "{ rank = 1 }", 150, 0.0),
        keep="vault:auto, disk:10steps",
    )
    assert code == 0, (facts, log)
    assert (facts["faults_fired"], facts["survived"], facts["steps_lost"]) == (2, 2, 0)
    assert facts["digest_equal"] is None
    assert "does not match its seal" in log
    outcomes = [
        one["outcome"]
        for one in report_facts(look(str(tmp_path / "d" / "under-fire")))["checkpoints"]
    ]
    assert "failed" in outcomes, "the disk was never full"
    assert outcomes[0] == outcomes[-1] == "written", "it had room before and afterwards"
    kinds = [json.loads(one)["kind"] for one in truth(tmp_path)]
    assert kinds == ["full_disk", "corrupt_image"]


@pytest.mark.skipif(bool(may_be_slowed(Path())), reason=f"NO SLOW DISK: {may_be_slowed(Path())}")
def test_a_torn_image_of_sharded_state_costs_no_promised_step(tmp_path: Path) -> None:
    """All ranks go back to the image before it, unless another rank has sealed over its own one.
    Then they go back to the checkpoint. The disk is slow meanwhile.
    """
    code, facts, log = drill(
        tmp_path,
        SHARDED,
        ("slow_disk", "{ disk = 0 }", 40, 2.0),
        ("torn_image", "{ rank = 1 }", 65, 0.0),
        keep="disk:10steps",
    )
    assert code == 0, (facts, log)
    assert (facts["faults_fired"], facts["survived"]) == (2, 2)
    assert facts["digest_equal"] is True
    assert "does not match its seal" in log
    then = json.loads(truth(tmp_path)[1])["in_force"]
    assert then["sharded"] is True
    assert 0 < then["checkpoint_step"] <= then["kept_step"]
    assert 1 <= facts["steps_lost"] <= 1 + then["step"] - then["checkpoint_step"]
    assert facts["redundancy"]["steps_lost_beyond"] == 0


def test_a_run_without_checkpoints_has_no_disk_to_fill(tmp_path: Path) -> None:
    code, facts, log = drill(
        tmp_path,
        REPLICATED.replace("until=200", "until=60"),
        ("full_disk", "{ disk = 0 }", 20, 1.0),
        ("kill", "{ rank = 1 }", 30, 0.0),
        keep="vault:auto",
    )
    assert code == 0, (facts, log)
    assert facts["faults_left_out"] == {"full_disk": 1}
    assert facts["faults_fired"] == 1


def truth(tmp_path: Path) -> list[str]:
    return (tmp_path / "d" / "under-fire.jsonl").read_text().splitlines()
