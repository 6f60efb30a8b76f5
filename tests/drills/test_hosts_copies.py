"""FSDP2 on several hosts, each of which keeps copies for another one, with a spare host. One host
is lost.

The hosts are network namespaces on this machine, as in test_hosts.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.runtime.drill_hosts import Hosts, may_be_made
from tests.drills._host_run import HostRun
from tests.drills._run import CalmRun

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(280),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]
STEPS, HOSTS = 30, 3


@pytest.mark.parametrize("host", [1, 0], ids=["another host", "the host that leads"])
@pytest.mark.parametrize("way", ["main", "respawn"])
def test_fsdp2_goes_on_from_copies_at_peers_when_a_host_is_lost(
    tmp_path: Path, calm_run: CalmRun, host: int, way: str
) -> None:
    """Method: all processes of a host are killed at step 10, and its shared memory is lost. Its
    rank goes on from the copy that another host keeps, dropout included: no committed step is lost,
    none is committed twice on a rank, and the weights are those of an undisturbed run on a single
    host.
    """
    calm = calm_run("fsdp.py", "--steps", STEPS, "--way", way, workers=HOSTS).digests
    flags = ("--nproc-per-node", "1", "--lease", "2", "--keep", "peers=1:step")
    with Hosts(HOSTS + 1) as hosts:
        run = HostRun(
            hosts,
            tmp_path,
            "--steps",
            STEPS,
            "--step-s",
            "0.1",
            "--way",
            way,
            nodes=HOSTS,
            spares=1,
            flags=flags,
            within_s=240.0,
            script=("fsdp.py",),
        )
        run.until(lambda: min(map(run.step_of, range(HOSTS))) >= 10, "step 10")
        hosts.kill(host)
        del run.processes[host]
        codes = run.finish()
        assert codes == dict.fromkeys({*range(HOSTS + 1)} - {host}, 0), f"{codes}\n{run}"
        report = run.report()
        (lost,) = report["interruptions"]
        assert (lost["ranks"], lost["steps_lost"]) == ([host], 0), f"{lost}\n{run}"
        assert lost["steps_repeated"] <= 2, lost
        assert "another node keeps a copy" in lost["reason"], f"{lost}\n{run}"
        assert report["steps"] == STEPS
        digests = [line.split()[2] for line in str(run).splitlines() if line.startswith("digest ")]
        assert (len(digests), {*digests}) == (HOSTS, {*calm.values()}), str(run)
        for rank in range(HOSTS):
            steps = [step for of, step, _ in run.commits if of == rank]
            assert (len(steps), steps[-1]) == (len({*steps}), STEPS), f"rank {rank}: {steps}\n{run}"
