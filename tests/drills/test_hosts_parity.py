"""FSDP2 on several hosts, which keep parity of each other's images, with spare hosts. Some hosts
are lost.

The hosts are network namespaces on this machine, as in test_hosts.py.
"""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from tests.drills._host_run import HostRun
from tests.drills._run import OUTLAST, CalmRun

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]
STEPS = 30


def generation_of(run: HostRun) -> int:
    """Return the newest generation in the ledger of a run that is still going on."""
    with contextlib.closing(
        sqlite3.connect(f"file:{run.folder}/ledger.db?mode=ro", uri=True)
    ) as db:
        newest: int | None = db.execute("SELECT max(generation) FROM generations").fetchone()[0]
    return newest or 0


@pytest.mark.parametrize(
    ("code", "hosts_count", "lost", "generation"),
    [
        ("2+1", 3, [1], 0),
        ("2+1", 3, [0], 0),
        ("2+2", 4, [1, 2], 0),
        ("4+2", 6, [1, 3], 0),
        ("4+2", 6, [1, 3], 2),
    ],
    ids=[
        "2+1, another host",
        "2+1, the host that leads",
        "2+2, two hosts at once",
        "4+2, two hosts at once",
        "4+2, the second during the rebuild",
    ],
)
def test_fsdp2_goes_on_from_parity_when_hosts_are_lost(
    tmp_path: Path, calm_run: CalmRun, code: str, hosts_count: int, lost: list[int], generation: int
) -> None:
    """Method: all processes of each host are killed at step 10, and its shared memory is lost. Its
    rank goes on from an image that is rebuilt from those of other hosts and from parity: no
    committed step is lost, none is committed twice on a rank, and the weights are those of an
    undisturbed run on a single host.

    generation   the next host is killed as soon as this generation has begun; with 2, that is while
    the images of the first host are rebuilt
    """
    given = ("--steps", STEPS, "--way", "main", "--batch", 2 * hosts_count)
    calm = calm_run("fsdp.py", *given, workers=hosts_count).digests
    flags = ("--nproc-per-node", "1", "--lease", "2", "--keep", f"parity={code}:step")
    spares = len(lost)
    with Hosts(hosts_count + spares) as hosts:
        run = HostRun(
            hosts,
            tmp_path,
            *given,
            "--step-s",
            "0.1",
            nodes=hosts_count,
            spares=spares,
            flags=flags,
            within_s=560.0,
            script=("fsdp.py",),
        )
        run.until(lambda: min(map(run.step_of, range(hosts_count))) >= 10, "step 10")
        for host in lost:
            if host != lost[0]:
                run.until(lambda: generation_of(run) >= generation, "the next generation")
            hosts.kill(host)
            del run.processes[host]
        codes = run.finish()
        left = {*range(hosts_count + spares)}.difference(lost)
        assert codes == dict.fromkeys(left, 0), f"{codes}\n{run}"
        report = run.report()
        found = report["interruptions"]
        assert sorted({rank for one in found for rank in one["ranks"]}) == lost, f"{found}\n{run}"
        assert sum(one["steps_lost"] for one in found) == 0, f"{found}\n{run}"
        assert any("rebuilt from parity" in one["reason"] for one in found), f"{found}\n{run}"
        assert report["steps"] == STEPS
        digests = [line.split()[2] for line in str(run).splitlines() if line.startswith("digest ")]
        assert (len(digests), {*digests}) == (hosts_count, {*calm.values()}), str(run)
        for rank in range(hosts_count):
            steps = [step for of, step, _ in run.commits if of == rank]
            assert (len(steps), steps[-1]) == (len({*steps}), STEPS), f"rank {rank}: {steps}\n{run}"


@pytest.mark.parametrize("host", [1, 0], ids=["another host", "the host that leads"])
def test_under_parity_a_host_is_drained_and_then_another_is_lost(
    tmp_path: Path, calm_run: CalmRun, host: int
) -> None:
    """Method: one host of three is drained at step 10, by command, and its launcher ends with 0. If
    it did not lead the run, it is started again as a spare, and ten steps later all processes of
    host 2 are killed. No committed step is lost, and the weights are those of an undisturbed run.
    """
    given = ("--steps", 200, "--way", "main", "--batch", 6)
    calm = calm_run("fsdp.py", *given, workers=3).digests
    flags = ("--nproc-per-node", "1", "--lease", "2", "--keep", "parity=2+1:step")
    with Hosts(4) as hosts:
        run = HostRun(
            hosts,
            tmp_path,
            *given,
            "--step-s",
            "0.1",
            nodes=3,
            spares=1,
            flags=flags,
            within_s=560.0,
            script=("fsdp.py",),
        )
        run.until(lambda: min(map(run.step_of, range(3))) >= 10, "step 10")
        words = [OUTLAST, "drain", f"host{host}", "--run", str(run.folder)]
        said = subprocess.run(words, capture_output=True, text=True, timeout=180)
        assert said.returncode == 0, f"{said}\n{run}"
        assert said.stdout.splitlines()[-1] == f"done: node host{host} is drained"
        assert run.processes[host].wait(60) == 0, str(run)
        if host != 0:
            run.processes[host] = run.start(host)
            run.until(lambda: "node host1 has come back" in run.output(0), "host 1 again")
            moved = run.step_of(0)
            run.until(lambda: min(map(run.step_of, range(3))) >= moved + 10, "ten more steps")
            hosts.kill(2)
            del run.processes[2]
        codes = run.finish()
        left = {0, 1, 3} if host else {0, 1, 2, 3}
        assert codes == dict.fromkeys(left, 0), f"{codes}\n{run}"
        report = run.report()
        found = report["interruptions"]
        assert [one["ranks"] for one in found] == ([[1], [2]] if host else [[0]]), f"{found}\n{run}"
        assert sum(one["steps_lost"] for one in found) == 0, f"{found}\n{run}"
        if host:
            assert "rebuilt from parity" in found[1]["reason"], f"{found}\n{run}"
        assert report["steps"] == 200
        digests = [line.split()[2] for line in str(run).splitlines() if line.startswith("digest ")]
        assert (len(digests), {*digests}) == (3, {*calm.values()}), str(run)
