"""`outlast drill` with real processes: its faults fire, its comparison finds differences, and
nothing is left.

Method: a plan with a few faults from outside and inside, on a training of some seconds, run by the
command as a user calls it. The scripts are in this file, because each of them is about one
property.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]

PLAN = """
schema = 1
name = "few"
[[fault]]
kind = "kill"
target = { rank = 1 }
when = { at_step = 20 }
[[fault]]
kind = "nan"
target = { rank = 0 }
when = { at_step = 40 }
[[fault]]
kind = "kill"
target = { spare = true }
when = { at_step = 60 }
[[fault]]
kind = "lose_node"
target = { node = 0 }
when = { at_s = 1.0 }
"""
SCRIPT = """
import random, time
import torch
from torch import nn
import outlast

run = outlast.join()
torch.manual_seed(0)
model = run.replicate(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1)))
optimizer = torch.optim.AdamW(model.parameters())
state = run.state(model=model, optimizer=optimizer)
{before}
for step in run.steps(state, until=200):
    with step:
        {inside}
        loss = model(torch.randn(4, 8) + random.random()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.03)
    {behind}
"""


NAN = """
schema = 1
[[fault]]
kind = "nan"
target = { rank = 0 }
when = { at_step = 40 }
"""


def drill(tmp_path: Path, script: str, plan: str = PLAN) -> subprocess.CompletedProcess[str]:
    (tmp_path / "plan.toml").write_text(plan)
    (tmp_path / "train.py").write_text(script)
    command = ["plan.toml", "--seed", "3", "--nproc-per-node", "2", "--run-dir", "drill", "--json"]
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "outlast.app.cli",
            "drill",
            *command,
            "--html",
            "drill.html",
            "--",
            "train.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_a_drill_is_survived_and_scored(tmp_path: Path) -> None:
    """The script draws numbers without a seed. They are the same in both runs."""
    done = drill(tmp_path, SCRIPT.format(before="", inside="", behind=""))
    assert done.returncode == 0, done.stderr + done.stdout
    facts = json.loads(done.stdout)
    assert facts["digest_equal"] is True
    assert (facts["faults_planned"], facts["faults_fired"], facts["survived"]) == (3, 3, 3)
    assert facts["faults_left_out"] == {"lose_node": 1}
    assert (facts["steps"], facts["steps_lost"], facts["manual_interventions"]) == (200, 0, 0)
    assert (facts["leaks"]["processes"], facts["leaks"]["segments"]) == (0, 0)
    assert facts["diagnosis"]["wrong"] == 0
    assert set(facts["mttr_s_by_class"]) == {"gpu", "software_bug"}
    truth = (tmp_path / "drill" / "under-fire.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in truth] == ["kill", "nan", "kill_spare"]
    # two ranks hold the state when each fault strikes, and a spare stands ready for the last one
    recorded = [json.loads(line)["in_force"] for line in truth]
    assert [one["copies"] for one in recorded[1:]] == [2, 2]
    assert recorded[0]["copies"] in (2, None), "on a busy machine the run has not said so yet"
    assert (recorded[2]["sharded"], recorded[2]["spares"]) == (False, 1)
    assert all(0 <= one["kept_step"] <= one["step"] for one in recorded)
    assert facts["redundancy"]["recorded"] == 3
    assert facts["redundancy"]["steps_lost_beyond"] == 0
    # the prediction was made before the first fault, and is in the score
    told = json.loads((tmp_path / "drill" / "prediction.json").read_text())
    assert told == facts["prediction"]
    assert 0.0 < told["low"] < told["ettr_training"] < told["high"] < 1.0
    assert facts["predicted_ettr_training"] == told["ettr_training"]
    log = tmp_path / "drill" / "under-fire.log"
    made_s = (tmp_path / "drill" / "prediction.json").stat().st_mtime
    assert made_s < log.stat().st_mtime
    assert "predicted: ETTR of" in done.stderr
    assert "nothing was lost" in (tmp_path / "drill.html").read_text()
    assert not (tmp_path / "drill" / "undisturbed-again").exists()


def test_a_flipped_bit_is_found_and_its_rank_is_named(tmp_path: Path) -> None:
    """Three ranks, so that two agree. The run ends, and the drill has gone well."""
    (tmp_path / "train.py").write_text(SCRIPT.format(before="", inside="", behind=""))
    command = ["silent-corruption", "--time-scale", "10", "--seed", "1", "--nproc-per-node", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "outlast.app.cli", "drill", *command, "--json", "--", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    facts = json.loads(done.stdout)
    assert (facts["faults_fired"], facts["survived"], facts["manual_interventions"]) == (1, 1, 1)
    assert facts["silent"]["found"]
    assert facts["silent"]["named_rank"]
    assert facts["digest_equal"] is None


def test_a_state_that_a_fault_has_changed_fails_the_drill(tmp_path: Path) -> None:
    """The script counts blocks in a plain variable. A repeated step counts twice, on all ranks
    alike.
    """
    script = SCRIPT.format(
        before="count = 0",
        inside="count += 1; optimizer.param_groups[0]['lr'] = 1e-3 * (1 + count % 7)",
        behind="",
    )
    done = drill(tmp_path, script, NAN)
    assert done.returncode == 1, done.stderr + done.stdout
    assert json.loads(done.stdout)["digest_equal"] is False, done.stdout
    assert (tmp_path / "drill" / "undisturbed-again").exists(), "it was seen that it does not vary"


def test_a_script_that_varies_by_itself_is_undetermined(tmp_path: Path) -> None:
    script = SCRIPT.format(before="torch.manual_seed(time.time_ns())", inside="", behind="")
    done = drill(tmp_path, script)
    assert done.returncode == 3, done.stderr + done.stdout
    assert json.loads(done.stdout)["digest_equal"] is None


def test_an_interrupted_drill_leaves_nothing_behind(tmp_path: Path) -> None:
    """Method: SIGTERM during the first run. The command ends with the code of that signal, and the
    run ends with it.
    """
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "train.py").write_text(SCRIPT.format(before="", inside="", behind=""))
    command = [sys.executable, "-m", "outlast.app.cli", "drill", "plan.toml", "--run-dir", "d"]
    command += ["--nproc-per-node", "2", "--", "train.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        card = tmp_path / "d" / "undisturbed" / "run.json"
        until_s = time.monotonic() + 60
        while not card.exists() and process.poll() is None and time.monotonic() < until_s:
            time.sleep(0.02)
        run = json.loads(card.read_text())
        process.terminate()
        assert process.wait(60) == 143
    assert not any(run["run"] in name for name in os.listdir("/dev/shm"))
    assert not Path(f"/proc/{run['pid']}").exists()


def test_a_reader_that_leaves_does_not_end_a_drill(tmp_path: Path) -> None:
    """As in `outlast drill ... 2>&1 | head -1`: the drill goes on to its end, and its exit code is
    that of the drill.
    """
    (tmp_path / "plan.toml").write_text(NAN)
    (tmp_path / "train.py").write_text(SCRIPT.format(before="", inside="", behind=""))
    command = [sys.executable, "-m", "outlast.app.cli", "drill", "plan.toml", "--run-dir", "d"]
    command += ["--nproc-per-node", "2", "--", "train.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"outlast drill: undisturbed")
        process.stdout.close()
        assert process.wait(280) == 0
    assert json.loads((tmp_path / "d" / "score.json").read_text())["survived"] == 1


def test_a_collective_that_one_rank_alone_calls_is_found_soon(tmp_path: Path) -> None:
    """The other rank votes meanwhile, and a vote counts as a collective: the counts are equal."""
    order = NAN.replace("nan", "order")
    done = drill(tmp_path, SCRIPT.format(before="", inside="", behind=""), plan=order)
    assert done.returncode == 0, done.stderr + done.stdout
    facts = json.loads(done.stdout)
    assert (facts["survived"], facts["steps_lost"], facts["digest_equal"]) == (1, 0, True)
    assert facts["mttr_s"]["max"] < 30.0
