"""A ledger that lies on the disk of one machine while its run goes on (`--state-dir`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from outlast.runtime.ledger.view import look
from outlast.runtime.tiers import local
from tests.app.command import outlast
from tests.drills._host_run import HostRun
from tests.drills._run import CalmRun, Drill
from tests.drills.test_resume import kill_launcher, resumed

pytestmark = [pytest.mark.drill, pytest.mark.timeout(300)]
STEPS = 60


def said(command: str, folder: Path) -> str:
    done = outlast(command, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("lost", [False, True], ids=["this machine", "another machine"])
def test_a_run_goes_on_from_its_ledger_or_from_the_copy(
    tmp_path: Path, calm_run: CalmRun, lost: bool
) -> None:
    """The launcher is killed after a checkpoint, and the run is resumed.

    Method: rank 2 waits in an evaluation, which may last long, until the checkpoint is written. For
    another machine, the folder of the ledger is removed before.
    """
    script = ("ddp.py", "--steps", STEPS, "--evaluate", 18)
    expected = calm_run(*script).digests
    state = tmp_path / "state"
    flags = ("--checkpoint-every", 5, "--state-dir", state)
    strike = [{"at": "evaluate", "rank": 2, "step": 18, "do": "sleep"}]
    with Drill(tmp_path, *script, flags=flags, strikes=strike) as drill:
        run = drill.folder
        drill.until(
            lambda: (
                (found := local.checkpoints(run / "checkpoints")) and found[0].manifest.step == 15
            ),
            "the checkpoint of step 15",
        )
        pointed = Path(json.loads((run / "ledger.json").read_text())["ledger"])
        assert state in pointed.parents
        assert drill.status["copy_of_ledger"] is None
        drill.until(lambda: _steps_of_copy(run) >= 5, "a copy with a checkpoint")
        kill_launcher(drill)
    assert "copy of the ledger" not in said("report", run)
    if lost:
        shutil.rmtree(state)
        assert "This is a copy of the ledger" in said("status", run)
        assert "This is a copy of the ledger" in said("report", run)
    outcome = resumed(tmp_path, *script, flags=flags)
    assert outcome.code == 0, outcome
    assert outcome.digests == expected, outcome
    assert ("goes on from a copy" in outcome.stderr) == lost, outcome
    assert not (run / "ledger.json").exists()
    assert list(state.iterdir()) == []
    view = look(str(run))
    assert (view.state, view.step, len(view.records.sessions)) == ("ended", STEPS, 2), outcome
    outcome.ledger_is_sound(lossless=False)  # steps after the checkpoint are done again


def _steps_of_copy(run: Path) -> int:
    """Return the newest step of a checkpoint that the copy in a run's folder knows; 0: none."""
    facts = json.loads((run / "ledger.json").read_text())
    (run.parent / "seen").mkdir(exist_ok=True)
    for name in ("run.json", "ledger.db"):
        if not (run / name).exists():
            return 0
        shutil.copy(run / name, run.parent / "seen" / name)
    view = look(str(run.parent / "seen"))
    saved = [one.data for one in view.records.sessions[-1].events if one.kind == "checkpoint"]
    return max((int(str(one["step"])) for one in saved), default=0) if facts else 0


@pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}")
def test_the_ledger_moves_to_the_host_that_takes_the_run_over(
    tmp_path: Path, three_hosts: Hosts, calm_run: CalmRun
) -> None:
    """Host 0, which leads, is killed, and its ledger is not used any more. At the end the run's
    folder has the whole ledger, and no other file of it is left on the hosts that live.
    """
    arguments = ("--steps", 120)
    calm = calm_run("quick.py", "--dropout", 0, *arguments, workers=2).digests
    state = tmp_path / "state"
    flags = ("--state-dir", str(state))
    run = HostRun(three_hosts, tmp_path, *arguments, nodes=2, spares=1, flags=flags)
    run.until(lambda: run.step_of(1) >= 20, "step 20")
    assert json.loads((run.folder / "ledger.json").read_text())["node"] == "host0"
    assert list(run.folder.rglob("copy.db")) == [], "voters keep their copies elsewhere, too"
    three_hosts.kill(0)
    del run.processes[0]
    codes = run.finish()
    assert codes == {1: 0, 2: 0}, f"{codes}\n{run}"
    assert run.digests == calm, str(run)
    assert not (run.folder / "ledger.json").exists(), str(run)
    report = run.report()
    assert (report["steps"], report["copy_of_ledger"]) == (120, None)
    leads = [one["node"] for one in report["node_events"] if one["kind"] == "leads"]
    assert leads[0] == "host0"
    assert leads[1] in ("host1", "host2")
    left = {one.relative_to(state).parts[0] for one in state.rglob("*.db")}
    assert left <= {"host0"}, left
