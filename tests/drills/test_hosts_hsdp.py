"""HSDP on two hosts, each of which holds a replica, with a spare host. One host is lost.

The hosts are network namespaces on this machine, as in test_hosts.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from tests.drills._host_run import HostRun
from tests.drills._run import CalmRun

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(280),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]
STEPS = 30


@pytest.mark.parametrize("host", [1, 0], ids=["another host", "the host that leads"])
def test_hsdp_heals_from_the_other_replica_when_a_host_is_lost(
    tmp_path: Path, three_hosts: Hosts, calm_run: CalmRun, host: int
) -> None:
    """Method: all processes of a host are killed at step 10, and a whole replica with them. The
    successors of its ranks on host 2 take the shards from the ranks of the other replica. No step
    is lost, and the weights are those of an undisturbed run on a single host: all ranks have the
    same random state here, so dropout draws the same numbers.
    """
    calm = calm_run("fsdp.py", "--steps", STEPS, "--hsdp").digests
    flags = ("--nproc-per-node", "2", "--lease", "2")
    run = HostRun(
        three_hosts,
        tmp_path,
        "--steps",
        STEPS,
        "--step-s",
        "0.1",
        "--hsdp",
        nodes=2,
        spares=1,
        flags=flags,
        within_s=240.0,
        script=("fsdp.py",),
    )
    run.until(lambda: min(map(run.step_of, range(4))) >= 10, "step 10")
    three_hosts.kill(host)
    del run.processes[host]
    codes = run.finish()
    assert codes == {1 - host: 0, 2: 0}, f"{codes}\n{run}"
    report = run.report()
    (lost,) = report["interruptions"]
    ranks = [2 * host, 2 * host + 1]
    assert (lost["ranks"], lost["steps_lost"]) == (ranks, 0), f"{lost}\n{run}"
    assert lost["steps_repeated"] <= 1, lost
    assert lost["rung"] in ("spare", "respawn"), f"{lost}\n{run}"
    assert report["steps"] == STEPS
    digests = [line.split()[2] for line in str(run).splitlines() if line.startswith("digest ")]
    assert (len(digests), {*digests}) == (4, {*calm.values()}), str(run)
    for rank in range(4):
        steps = [step for of, step, _ in run.commits if of == rank]
        assert (len(steps), steps[-1]) == (len({*steps}), STEPS), f"rank {rank}: {steps}\n{run}"
