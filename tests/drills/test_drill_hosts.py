"""`outlast drill --hosts` with real processes: hosts are lost, cut off and taken out, and come
back.

The hosts are network namespaces on this machine. tests/processes/test_drill_host_strikes.py tests
each kind of strike by itself.
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

from outlast.runtime.drill.drill_hosts import children_of, may_be_made

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(500),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]
PLAN = """
schema = 1
name = "hosts"
"""
FAULT = """
[[fault]]
kind = "{kind}"
target = {target}
when = {{ at_step = {step} }}
"""
SCRIPT = """
import time
import torch
from torch import nn
import outlast

run = outlast.join()
torch.manual_seed(0)
model = run.replicate(nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters())
state = run.state(model=model, optimizer=optimizer)
{before}
for step in run.steps(state, until={steps}):
    with step:
        inputs = torch.randn(4, 8)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.05)
"""


def command(tmp_path: Path, plan: str, *, steps: int, before: str = "") -> list[str]:
    (tmp_path / "plan.toml").write_text(plan)
    (tmp_path / "train.py").write_text(SCRIPT.format(steps=steps, before=before))
    words = ["plan.toml", "--hosts", "3", "--seed", "3", "--run-dir", "d", "--json", "--"]
    return [sys.executable, "-m", "outlast.app.cli", "drill", *words, "train.py"]


def fault(kind: str, target: str, step: int) -> str:
    return FAULT.format(kind=kind, target=target, step=step)


def drill(tmp_path: Path, *faults: str, **more: object) -> dict[str, object]:
    """Drill two ranks on two hosts, with a third host in reserve. Check that nothing is lost."""
    words = command(tmp_path, PLAN + "".join(faults), **more)  # type: ignore[arg-type]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=480)
    logs = "\n".join(
        f"--- {one.name}\n{one.read_text(errors='replace')[-3000:]}"
        for one in sorted((tmp_path / "d").glob("under-fire*.log"))
    )
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout}\n{logs}"
    facts: dict[str, object] = json.loads(done.stdout)
    assert facts["faults_planned"] == facts["faults_fired"] == facts["survived"] == len(faults)
    assert (facts["steps_lost"], facts["manual_interventions"]) == (0, 0), facts
    return facts


def test_a_host_is_lost_and_another_one_is_taken_out(tmp_path: Path) -> None:
    """A rank is killed as well. The state is that of an undisturbed run, bit for bit."""
    facts = drill(
        tmp_path,
        fault("lose_node", "{ rank = 1 }", 20),
        fault("kill", "{ rank = 0 }", 30),
        fault("maintenance", "{ rank = 0 }", 40),
        steps=900,
    )
    assert facts["digest_equal"] is True, facts
    leaks = facts["leaks"]
    assert isinstance(leaks, dict)
    assert (leaks["processes"], leaks["segments"]) == (0, 0)
    truth = [json.loads(line) for line in (tmp_path / "d" / "under-fire.jsonl").open()]
    ranks = {one["kind"]: one.get("ranks") for one in truth}
    assert ranks == {"lose_node": [1], "kill": None, "maintenance": [0]}


def test_the_launcher_that_leads_is_lost_and_a_link_is_cut(tmp_path: Path) -> None:
    """The host that led before dials the one that leads now. Then the link of that one goes
    down.
    """
    facts = drill(
        tmp_path,
        fault("lose_coordinator", "{ coordinator = true }", 20),
        fault("cut", "{ rank = 1 }", 40),
        fault("stop", "{ agent = 2 }", 60),
        steps=1100,
    )
    assert facts["digest_equal"] is True, facts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_drill_leaves_no_host_behind(tmp_path: Path, number: signal.Signals) -> None:
    """After SIGINT the command ends with 130. After SIGKILL the kernel ends everything that it has
    made.
    """
    words = command(tmp_path, PLAN + fault("kill", "{ rank = 0 }", 20), steps=10_000)
    with subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        card = tmp_path / "d" / "undisturbed" / "run.json"
        until_s = time.monotonic() + 120
        while not card.exists() and process.poll() is None and time.monotonic() < until_s:
            time.sleep(0.02)
        assert card.exists()
        below = {process.pid}
        found: set[int] = set()
        while below:
            below = {child for pid in below for child in children_of(pid)}
            found |= below
        process.send_signal(number)
        assert process.wait(60) in (130, -signal.SIGKILL)
    assert len(found) > 10, "hosts, and what runs on them"
    until_s = time.monotonic() + 20
    while left := [pid for pid in found if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < until_s, f"{left} live on"
        time.sleep(0.02)
    run = json.loads(card.read_text())["run"]
    assert not any(run in name for name in os.listdir("/dev/shm"))
