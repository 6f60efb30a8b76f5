"""Runs on several hosts, which are network namespaces on this machine, that lose the host which
leads.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from tests.drills._host_run import HostRun
from tests.drills._pids import below
from tests.drills._run import OUTLAST, CalmRun

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]


def test_a_run_outlives_the_host_that_leads_it(
    tmp_path: Path, three_hosts: Hosts, calm_run: CalmRun
) -> None:
    """Method: two ranks on two hosts, with a third host that stands ready. All processes of host 0,
    which leads and has the store, are killed at once. Another host takes the run over: its ledger
    has the whole run, and the weights are those of an undisturbed run.
    """
    arguments = ("--steps", 120)
    calm = calm_run("quick.py", "--dropout", 0, *arguments, workers=2).digests
    run = HostRun(three_hosts, tmp_path, *arguments, nodes=2, spares=1)
    run.until(lambda: run.step_of(1) >= 20, "step 20")
    before = run.step_of(0)
    survivor = {pid for rank, _, pid in run.commits if rank == 1}
    three_hosts.kill(0)
    del run.processes[0]
    codes = run.finish()
    assert codes == {1: 0, 2: 0}, f"{codes}\n{run}"
    assert run.digests == calm, str(run)
    assert run.step_of(0) == run.step_of(1) == 120 > before
    assert {pid for rank, _, pid in run.commits if rank == 1} == survivor, "it was restarted"
    report = run.report()
    assert report["steps"] == 120
    (lost,) = report["interruptions"]
    assert (lost["ranks"], lost["steps_lost"]) == ([0], 0), lost
    seconds = sum(value or 0.0 for value in report["rank_seconds"].values())
    assert abs(seconds - 2 * report["wall_s"]) < 1e-6, report["rank_seconds"]
    said = subprocess.run(
        [OUTLAST, "status", str(run.folder), "--json"], capture_output=True, text=True, timeout=30
    )
    coordinator = json.loads(said.stdout)["coordinator"]
    assert coordinator["node"] in ("host1", "host2")
    assert coordinator["voters"] == [], "two nodes are left"
    leads = [one for one in report["node_events"] if one["kind"] == "leads"]
    assert [one["node"] for one in leads[:2]] == ["host0", coordinator["node"]]
    assert [sorted(one["voters"]) for one in leads[:2]] == [["host0", "host1", "host2"]] * 2


def launcher_below(pid: int) -> int:
    """Return the process that is `outlast run`, and not a shell that starts it."""
    for one in below(pid):
        words = Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")
        if words[1:3] == [str(OUTLAST).encode(), b"run"]:
            return one
    raise AssertionError(f"no launcher below {pid}")


def never_twice(run: HostRun) -> None:
    """Check that no rank has committed a step twice, or after its next holder has."""
    for rank in (0, 1):
        steps = [step for of, step, _ in run.commits if of == rank]
        assert steps == sorted(set(steps)), f"rank {rank}: {steps}\n{run}"


@pytest.mark.drill
def test_a_leading_host_that_is_silently_cut_off_leads_no_longer(
    tmp_path: Path, three_hosts: Hosts, calm_run: CalmRun
) -> None:
    """Method: the link of host 0 goes down without any notice. Two coordinators live then, and only
    the one with a majority decides: no step is committed twice.
    """
    arguments = ("--steps", 120)
    calm = calm_run("quick.py", "--dropout", 0, *arguments, workers=2).digests
    run = HostRun(three_hosts, tmp_path, *arguments, nodes=2, spares=1)
    run.until(lambda: run.step_of(1) >= 20, "step 20")
    three_hosts.cut(0)
    del run.processes[0]
    codes = run.finish()
    assert codes == {1: 0, 2: 0}, f"{codes}\n{run}"
    assert run.digests == calm, str(run)
    never_twice(run)
    assert "leads the run no longer" in (tmp_path / "host0.out").read_text(), str(run)
    report = run.report()
    assert report["steps"] == 120
    (lost,) = report["interruptions"]
    assert (lost["ranks"], lost["steps_lost"]) == ([0], 0), lost


@pytest.mark.drill
def test_a_leading_launcher_that_stands_still_for_5_s_costs_no_other_host(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """Method: the launcher of host 0 is stopped, and goes on 5 s later. The worker of host 1 lives
    on, and host 0 stays in the run as a host that stands ready.
    """
    run = HostRun(three_hosts, tmp_path, "--steps", 600, nodes=2, spares=1, flags=("--lease", "1"))
    run.until(lambda: run.step_of(1) >= 20, "step 20")
    survivor = {pid for rank, _, pid in run.commits if rank == 1}
    launcher = launcher_below(run.processes[0].pid)
    os.kill(launcher, signal.SIGSTOP)
    until_s, before = time.monotonic() + 5.0, run.step_of(0)
    run.until(lambda: time.monotonic() > until_s, "5 s")
    os.kill(launcher, signal.SIGCONT)
    assert run.step_of(0) > before + 1, f"nobody led meanwhile\n{run}"
    assert run.finish() == {0: 0, 1: 0, 2: 0}, str(run)
    never_twice(run)
    assert {pid for rank, _, pid in run.commits if rank == 1} == survivor, str(run)
    assert run.report()["steps"] == 600
