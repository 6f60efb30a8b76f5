"""Hosts that leave a run and come back: after a notice, by command, and after their link was down.

The hosts are network namespaces on this machine, as in test_hosts.py.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from tests.drills._host_run import PORT, TOKEN, HostRun
from tests.drills._pids import below
from tests.drills._run import OUTLAST

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]


def launcher_of(run: HostRun, host: int) -> int:
    """Return the pid of a host's launcher: the first of its processes that runs `outlast run`."""
    for pid in sorted(below(run.processes[host].pid)):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if OUTLAST.encode() in words[:2] and b"run" in words[:3]:
            return pid
    raise AssertionError(f"no launcher on host {host}")


def said(run: HostRun, host: int, text: str) -> bool:
    return text in (run.folder.parent / f"host{host}.out").read_text()


def stopped_without_loss(run: HostRun, *, killed: bool = False) -> dict[str, Any]:
    """Stop the run by command, and check that no committed step was lost. Return its report.

    `killed` says that processes were killed. A process that is killed after the vote of a step does
    not make its on-commit call, and no other process makes it.
    """
    done = subprocess.run(
        [OUTLAST, "stop", str(run.folder)], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, f"{done}\n{run}"
    codes = run.finish()
    assert set(codes.values()) == {143}, f"{codes}\n{run}"
    assert len(codes) == len(run.processes), f"{codes}\n{run}"
    report = run.report()
    for one in report["interruptions"]:
        assert (one["steps_lost"], one["steps_repeated"] <= 1) == (0, True), one
    for rank in range(2):
        # processes of two hosts may have the same pid, because each host has its own pid namespace
        commits = [step for of, step, _ in run.commits if of == rank]
        lacking = [after - before - 1 for before, after in itertools.pairwise(commits)]
        may_lack = sum(killed and rank in one["ranks"] for one in report["interruptions"])
        assert commits[0] == 1, f"rank {rank}: {commits}\n{run}"
        assert set(lacking) <= {0, 1}, f"rank {rank}: {commits}\n{run}"
        assert sum(lacking) <= may_lack, f"rank {rank}: {commits}\n{run}"
    return report


def joined(run: HostRun, node: str) -> int:
    """Return how often a node has enrolled."""
    events = run.report()["node_events"]
    return sum(one["kind"] == "joined" and one["node"] == node for one in events)


def a_run(hosts: Hosts, folder: Path, *flags: str, spares: int = 1, drill: str = "") -> HostRun:
    """Start a run of two ranks on two hosts, and return it at its step 20. It ends once it is told
    to.

    All hosts share the cores of this machine, so the lease is longer than the default. `drill` is a
    plan for runtime/worker/instructions/marks.py.
    """
    given, env = ("--lease", "2", *flags), {"OUTLAST_DRILL": drill}
    run = HostRun(
        hosts,
        folder,
        "--steps",
        100_000,
        nodes=2,
        spares=spares,
        flags=given,
        within_s=200.0,
        env=env,
    )
    run.until(lambda: run.step_of(1) >= 20, "step 20")
    return run


def goes_on(run: HostRun, steps: int = 10) -> None:
    before = run.step_of(0), run.step_of(1)
    run.until(
        lambda: all(run.step_of(rank) >= before[rank] + steps for rank in range(2)), "more steps"
    )


def test_a_host_with_a_notice_is_drained_and_comes_back_as_a_spare(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """Host 1 is told by SIGTERM that it will be taken away. Its rank moves to host 2, and its
    launcher ends with 0. Then the launcher is started again, and stands ready.
    """
    run = a_run(three_hosts, tmp_path)
    os.kill(launcher_of(run, 1), signal.SIGTERM)
    assert run.processes[1].wait(60) == 0, str(run)
    run.processes[1] = run.start(1)
    run.until(lambda: said(run, 0, "node host1 has come back"), "host 1 again")
    goes_on(run)
    report = stopped_without_loss(run)
    (drained,) = report["interruptions"]
    assert drained["ranks"] == [1]
    why = "asked for by node host1: the launcher received SIGTERM"
    assert why in drained["reason"]
    is_told_why(report, f"Rank 1 was moved off node host1, which was drained, {why}")


def is_told_why(report: dict[str, Any], said: str) -> None:
    """Check that the first interruption's verdict says who wanted the drain, and why."""
    (verdict,) = [one for one in report["verdicts"] if one["interruption"] == 1]
    assert said in verdict["reason"], verdict
    assert verdict["class"] == "host_maintenance", verdict


def test_the_host_that_leads_is_drained_and_hands_the_run_over(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """Host 0 leads, and is told by SIGTERM that it will be taken away. Its rank moves to host 2,
    one of the others leads, and the launcher of host 0 ends with 0. No other rank is lost.
    """
    run = a_run(three_hosts, tmp_path)
    survivor = {pid for rank, _, pid in run.commits if rank == 1}
    os.kill(launcher_of(run, 0), signal.SIGTERM)
    assert run.processes.pop(0).wait(60) == 0, str(run)
    assert said(run, 0, "this node hands the run over: host1 or host2 leads it"), str(run)
    run.until(lambda: any(said(run, host, "leads the run now") for host in (1, 2)), "a takeover")
    goes_on(run)
    assert {pid for rank, _, pid in run.commits if rank == 1} == survivor, str(run)
    report = stopped_without_loss(run)
    drained = report["interruptions"][0]
    assert drained["ranks"] == [0]
    assert "the launcher received SIGTERM" in drained["reason"]
    assert all(one["rung"] != "restart" for one in report["interruptions"]), report


def test_the_host_that_leads_is_drained_by_command(tmp_path: Path, three_hosts: Hosts) -> None:
    """The command hears that the drain is done before another host leads the run."""
    run = a_run(three_hosts, tmp_path)
    words = ["drain", "host0", "--run", run.folder, "--reason", "a fan"]
    done = subprocess.run([OUTLAST, *words], capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done: node host0 is drained"])
    assert run.processes.pop(0).wait(60) == 0, str(run)
    run.until(lambda: any(said(run, host, "leads the run now") for host in (1, 2)), "a takeover")
    goes_on(run)
    report = stopped_without_loss(run)
    asked, *_ = report["requests"]  # the test itself stops the run
    why = f"asked for by {asked['by']}: a fan;"
    is_told_why(report, f"moved off node host0, which was drained, {why}")


def asked_from(run: HostRun, host: int, *words: str, token: str = TOKEN) -> tuple[int, str]:
    """Run a command on a host, and return its exit code and its last line."""
    where = ("--endpoint", f"{run.hosts.address(0)}:{PORT}")
    said_there = run.folder.parent / "asked.out"
    with said_there.open("wb") as out:
        command = run.hosts.start(
            host, [OUTLAST, *words, *where], out=out, env=run.environment(token), cwd=run.folder
        )
        code = command.wait(90)
    lines = said_there.read_text().strip().splitlines()
    return code, lines[-1] if lines else ""


def test_a_command_of_another_host_reaches_the_run_with_the_token(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """Host 2 asks host 0, which leads, over the network: to drain host 1, and to stop. With another
    token, nothing is heard. The ledger says who asked, from where, and why.
    """
    run = a_run(three_hosts, tmp_path)
    code, line = asked_from(run, 2, "drain", "host1", token="another secret, 32 bytes or more")
    assert (code, run.report()["requests"]) == (2, []), line
    code, line = asked_from(run, 2, "drain", "host1", "--reason", "a fan")
    assert (code, line) == (0, "done: node host1 is drained"), f"{line}\n{run}"
    assert run.processes.pop(1).wait(60) == 0, str(run)
    goes_on(run)
    code, line = asked_from(run, 2, "stop", "--reason", "enough")
    assert code == 0, f"{line}\n{run}"
    assert run.finish() == {0: 143, 2: 143}, str(run)
    drained, stopped = run.report()["requests"]
    assert (drained["what"], drained["node"], drained["reason"]) == ("drain", "host1", "a fan")
    assert f" at {three_hosts.address(2)} port " in drained["by"], drained
    assert (drained["state"], stopped["what"], stopped["state"]) == ("done", "stop", "done")


def test_a_drained_rank_finishes_the_step_that_its_peers_commit(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """Host 0 is drained while rank 0 waits in a vote. Rank 1 has sealed the step too, so the step
    is committed, also by the process of rank 0 that is about to end: its work for `step.on_commit`
    is done.

    Method: rank 1 waits before its vote in each step from 25 on, for so long that the drain comes
    meanwhile, unless the machine is busy. test_policy_actions.py has the same test without chance.
    """
    held = [
        {
            "mark": "voting",
            "rank": 1,
            "step": 25 + one,
            "do": "sleep",
            "for_s": 0.7,
            "once": str(tmp_path / f"held-{one}"),
        }
        for one in range(40)
    ]
    run = a_run(three_hosts, tmp_path, drill=json.dumps(held))
    run.until(lambda: run.step_of(0) >= 26, "a vote that takes long")
    leaves = {pid for rank, _, pid in run.commits if rank == 0}
    os.kill(launcher_of(run, 0), signal.SIGTERM)
    assert run.processes.pop(0).wait(60) == 0, str(run)
    goes_on(run, steps=2)
    report = stopped_without_loss(run)
    drained = report["interruptions"][0]
    assert (drained["ranks"], drained["rung"]) == ([0], "spare"), drained
    last = max(step for rank, step, pid in run.commits if rank == 0 and pid in leaves)
    assert [pid for rank, step, pid in run.commits if (rank, step) == (0, last)] == list(leaves)


def test_a_host_whose_link_was_down_takes_the_ranks_of_the_next_loss(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """The launcher of such a host lives on. It fences itself, dials again, and stands ready. Then
    host 2, which has taken its rank, is killed.
    """
    run = a_run(three_hosts, tmp_path)
    three_hosts.cut(1)
    run.until(lambda: run.report()["interruptions"], "a lost host")
    goes_on(run)
    three_hosts.mend(1)
    run.until(lambda: joined(run, "host1") == 2, "host 1 again")
    three_hosts.kill(2)
    del run.processes[2]
    goes_on(run)
    report = stopped_without_loss(run, killed=True)
    assert [one["ranks"] for one in report["interruptions"]] == [[1], [1]]


def test_a_killed_launcher_comes_back_as_a_spare_and_as_a_voter(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """The launcher of host 1 is killed, and its worker ends with it. Host 2 takes the rank. The
    launcher is started again, stands ready, and is named a voter. Then host 0, which leads, is
    killed: a majority of the new voters elects another coordinator, and no committed step is lost.
    """
    run = a_run(three_hosts, tmp_path)
    os.kill(launcher_of(run, 1), signal.SIGKILL)
    run.until(
        lambda: any(one["resumed_s"] is not None for one in run.report()["interruptions"]),
        "the rank of a lost host, on another one",
    )
    (lost,) = run.report()["interruptions"]
    assert (lost["ranks"], lost["steps_lost"]) == ([1], 0), lost
    three_hosts.kill(1)
    run.processes[1] = run.start(1)
    run.until(lambda: joined(run, "host1") == 2, "host 1 again")
    run.until(lambda: said(run, 0, "if this node is lost, one of host2, host1 takes over"), "votes")
    goes_on(run)
    three_hosts.kill(0)
    del run.processes[0]
    run.until(lambda: any(said(run, host, "leads the run now") for host in (1, 2)), "a takeover")
    goes_on(run)
    report = stopped_without_loss(run, killed=True)
    leads = [one for one in report["node_events"] if one["kind"] == "leads"]
    assert ["host0", "host1", "host2"] in [sorted(one["voters"]) for one in leads[1:]], leads


def test_all_hosts_are_drained_in_turn_by_command(tmp_path: Path, three_hosts: Hosts) -> None:
    """Each host stands ready again once it is empty. No step is lost."""
    run = a_run(three_hosts, tmp_path)
    words = ["drain", "--all", "--one-at-a-time", "--run", run.folder, "--reason", "a new kernel"]
    done = subprocess.run([OUTLAST, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{done}\n{run}"
    assert done.stdout.splitlines()[-1] == "done: all nodes were drained"
    goes_on(run)
    report = stopped_without_loss(run)
    departed = [one["node"] for one in report["node_events"] if one["kind"] == "departed"]
    assert departed == ["host0", "host1", "host2"]


def test_the_run_is_stopped_if_no_host_has_room(tmp_path: Path, three_hosts: Hosts) -> None:
    """Method: two hosts train, and no host stands ready. One is told by SIGUSR1 that it will be
    taken away.
    """
    run = a_run(three_hosts, tmp_path, "--checkpoint-every", "100000", spares=0)
    os.kill(launcher_of(run, 1), signal.SIGUSR1)
    codes = run.finish()
    assert codes == {0: 143, 1: 143}, f"{codes}\n{run}"
    report = run.report()
    assert report["reason"].startswith("node host1 is taken away (the launcher received SIGUSR1)")
    (saved,) = report["checkpoints"]
    assert (saved["outcome"], saved["step"]) == ("written", report["steps"])


def test_the_account_has_the_cost_of_a_drain_and_of_a_wait_for_a_host(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """Host 1 is drained, and host 2 takes its rank. Then host 2 is killed, and no host has room
    until the launcher of host 1 is started again, some seconds later.

    Drain and idle agree with the times of the two interruptions, and all causes sum up.
    """
    run = a_run(three_hosts, tmp_path)
    words = ["drain", "host1", "--run", run.folder]
    done = subprocess.run([OUTLAST, *words], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, f"{done}\n{run}"
    assert run.processes.pop(1).wait(60) == 0, str(run)
    goes_on(run)
    three_hosts.kill(2)
    del run.processes[2]
    run.until(
        lambda: any(one["kind"] == "awaited" for one in run.report()["node_events"]),
        "a wait for a host",
    )
    began_s = time.monotonic()
    run.until(lambda: time.monotonic() > began_s + 3.0, "three seconds of waiting")
    run.processes[1] = run.start(1)
    goes_on(run)
    report = stopped_without_loss(run, killed=True)
    assert report["balance"]["sums"], report["balance"]
    drained, lost = report["interruptions"]
    at_s = {one["kind"]: one["at_s"] for one in report["node_events"]}
    waited_s = at_s["found"] - at_s["awaited"]
    assert waited_s >= 3.0
    assert report["rank_seconds"]["idle"] == pytest.approx(2 * waited_s, abs=1.0)
    assert lost["seconds"]["idle"] == pytest.approx(2 * waited_s, abs=1.0)
    assert lost["seconds"].get("drain", 0.0) < 1e-3
    took_s = drained["restored_s"] - drained["detected_s"]
    assert 0.0 < report["rank_seconds"]["drain"] <= 2 * took_s + 0.2, drained
    assert drained["seconds"].get("regroup", 0.0) < 1e-3, drained
