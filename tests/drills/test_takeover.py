"""Runs on several hosts, which are network namespaces on this machine, that lose the host which
leads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills._hosts import Hosts, may_be_made
from tests.drills._run import CalmRun
from tests.drills.test_hosts import HostRun

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]


@pytest.fixture
def three_hosts() -> Iterator[Hosts]:
    with Hosts(3) as hosts:
        yield hosts


def test_a_run_outlives_the_host_that_leads_it(
    tmp_path: Path, three_hosts: Hosts, calm_run: CalmRun
) -> None:
    """Two ranks on two hosts, and a third host stands ready. All processes of host 0, which leads
    and hosts the store, are killed at once. Another host takes the run over: its ledger tells of
    the whole run, and the weights are those of a run that nothing happened to.
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
