"""Runs on several hosts, which are network namespaces on this machine.

One host is lost, and the run goes on without losing a step.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from tests.app.command import outlast
from tests.drills._host_run import HostRun
from tests.drills._run import CalmRun

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]


@pytest.mark.drill
def test_a_run_outlives_a_host_whose_processes_are_all_killed(
    tmp_path: Path, three_hosts: Hosts, calm_run: CalmRun
) -> None:
    """Method: two ranks on two hosts, with a third host that stands ready. All processes of host 1
    are killed at once. The run goes on with host 2, and ends like an undisturbed run on a single
    host.
    """
    arguments = ("--steps", 120)
    calm = calm_run("quick.py", "--dropout", 0, *arguments, workers=2).digests
    run = HostRun(three_hosts, tmp_path, *arguments, nodes=2, spares=1)
    run.until(lambda: run.step_of(1) >= 20, "step 20")
    before = run.step_of(0)
    three_hosts.kill(1)
    del run.processes[1]
    codes = run.finish()
    assert codes == {0: 0, 2: 0}, f"{codes}\n{run}"
    assert run.digests == calm, str(run)
    assert run.step_of(0) == run.step_of(1) == 120 > before
    report = run.report()
    assert report["steps"] == 120
    (lost,) = report["interruptions"]
    assert (lost["ranks"], lost["steps_lost"]) == ([1], 0), lost
    assert "the launcher of node host1 has ended" in lost["reason"], "its lease was waited for"
    seconds = sum(value or 0.0 for value in report["rank_seconds"].values())
    assert abs(seconds - 2 * report["wall_s"]) < 1e-6, report["rank_seconds"]
    logs_are_named(run)


def logs_are_named(run: HostRun) -> None:
    """Check that status names the log of each rank, and each launcher that of rank 0."""
    said = outlast("status", run.folder, "--json")
    places = {one["rank"]: (one["node"], one["log"]) for one in json.loads(said.stdout)["workers"]}
    assert {rank: node for rank, (node, _) in places.items()} == {0: "host0", 1: "host2"}
    for rank, (_, folder) in places.items():
        assert f"over {rank}\n" in (Path(folder) / "stdout.log").read_text(), places
    for host in run.processes:
        line = f"the log of rank 0 is in {places[0][1]} on node host0\n"
        assert line in run.output(host), str(run)


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_a_host_with_two_ranks_is_lost_and_its_peers_go_on(
    tmp_path: Path, three_hosts: Hosts, calm_run: CalmRun
) -> None:
    """Method: four ranks on two hosts. The ranks of a host vote through its memory, and the hosts
    by messages.

    All processes of host 1 are killed at once. Host 2 takes both of its ranks.
    """
    arguments = ("--steps", 120)
    calm = calm_run("quick.py", "--dropout", 0, *arguments, workers=4).digests
    run = HostRun(
        three_hosts,
        tmp_path,
        *arguments,
        nodes=2,
        spares=1,
        flags=("--nproc-per-node", "2"),
        within_s=180.0,  # six worker processes and three launchers share the cores
    )
    run.until(lambda: run.step_of(3) >= 20, "step 20")
    three_hosts.kill(1)
    del run.processes[1]
    codes = run.finish()
    assert codes == {0: 0, 2: 0}, f"{codes}\n{run}"
    assert run.digests == calm, str(run)
    report = run.report()
    assert report["steps"] == 120
    assert sorted(report["interruptions"][0]["ranks"]) == [2, 3], report["interruptions"]
    assert sum(one["steps_lost"] for one in report["interruptions"]) == 0


@pytest.mark.drill
def test_a_host_that_is_silently_cut_off_is_replaced_and_fences_itself(
    tmp_path: Path, three_hosts: Hosts, calm_run: CalmRun
) -> None:
    """Method: the link of host 1 goes down without any notice. Its agent kills its worker by
    itself, and none of its commits comes after those of the rank's next holder.
    """
    arguments = ("--steps", 120)
    calm = calm_run("quick.py", "--dropout", 0, *arguments, workers=2).digests
    run = HostRun(three_hosts, tmp_path, *arguments, nodes=2, spares=1)
    run.until(lambda: run.step_of(1) >= 20, "step 20")
    three_hosts.cut(1)
    del run.processes[1]
    codes = run.finish()
    assert codes == {0: 0, 2: 0}, f"{codes}\n{run}"
    assert run.digests == calm, str(run)
    steps = [step for rank, step, _ in run.commits if rank == 1]
    assert steps == sorted(set(steps)), f"a step was committed twice: {steps}\n{run}"
    (lost,) = run.report()["interruptions"]
    assert (lost["ranks"], lost["steps_lost"]) == ([1], 0), lost


def test_a_node_without_the_token_is_turned_away(tmp_path: Path, three_hosts: Hosts) -> None:
    """Method: host 0 leads, and another host has a different token. It ends at once and
    says why.
    """
    # the run trains for as long as the other host takes to come
    run = HostRun(three_hosts, tmp_path, "--steps", 1_000_000, nodes=2, spares=0)
    run.until(lambda: "leads the run" in (tmp_path / "host0.out").read_text(), "a leader")
    stranger = run.start(2, token="a secret of somebody else, 32 bytes")
    assert stranger.wait(60) == 2, str(run)
    assert "does not know this run's token" in (tmp_path / "host2.out").read_text(), str(run)
