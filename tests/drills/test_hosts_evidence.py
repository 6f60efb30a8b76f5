"""Evidence on several hosts: a failure on a host that does not lead ends in a verdict as on one
host. The hosts share no run folder, so that all evidence has to be sent.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from tests.app.command import outlast
from tests.drills._host_run import HostRun

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]


def hide_folder(hosts: Hosts, host: int, folder: Path) -> None:
    """Let a host see an empty folder of its own in place of `folder`."""
    mount = ["mount", "-t", "tmpfs", "tmpfs", folder]
    with (folder.parent / f"mount{host}.out").open("wb") as out:
        assert hosts.start(host, mount, out=out).wait(30) == 0


def struck(
    hosts: Hosts, folder: Path, do: str, *, shared: bool = False, steps: int = 100, **more: object
) -> HostRun:
    """Start a run in which rank 1, on host 1, is struck in its tenth step."""
    (folder / "run").mkdir()
    if not shared:
        for host in (1, 2):
            hide_folder(hosts, host, folder / "run")
    strike = {"at": "forward", "rank": 1, "step": 10, "do": do, "once": str(folder / "struck")}
    return HostRun(
        hosts,
        folder,
        "--steps",
        steps,
        nodes=2,
        spares=1,
        env={"DRILL_STRIKES": json.dumps([strike | more])},
        within_s=150.0,
    )


def evidence(folder: Path) -> Path:
    return folder / "run" / "evidence" / "interruption-1"


def rank_1(folder: Path) -> dict[str, Any]:
    told = json.loads((evidence(folder) / "standing.json").read_text())
    assert {one["node"] for one in told["processes"]} == {"host0", "host1"}, told
    assert told["missing"] == {}, told
    found: dict[str, Any] = next(one for one in told["processes"] if one["rank"] == 1)
    return found


def verdict_on_rank_1(run: HostRun) -> dict[str, Any]:
    """Return the only verdict. It names rank 1 and its host."""
    (verdict,) = run.report()["verdicts"]
    assert [one["rank"] for one in verdict["ranks"]] == [1], verdict
    assert verdict["nodes"] == ["host1"], verdict
    assert verdict["suspects"] == [], verdict
    found: dict[str, Any] = verdict
    return found


@pytest.mark.drill
@pytest.mark.parametrize("do", ["SIGSTOP", "spin", "gil"])
def test_a_hang_on_another_host_ends_in_a_verdict(
    tmp_path: Path, three_hosts: Hosts, do: str
) -> None:
    """Method: the process of rank 1 stops itself, or loops, or holds the interpreter lock."""
    run = struck(three_hosts, tmp_path, do)
    assert run.finish() == {0: 0, 1: 0, 2: 0}, str(run)
    verdict = verdict_on_rank_1(run)
    assert verdict["mechanism"] == "hang", verdict
    assert "on node host1 hung" in verdict["reason"], verdict
    process = rank_1(tmp_path)
    assert process["killed"], process
    assert process["kernel"].keys() == {"stat", "wchan", "syscall"}
    state = process["kernel"]["stat"].rpartition(")")[2].split()[0]
    assert (state == "T") == (do == "SIGSTOP"), process
    sent = evidence(tmp_path) / "nodes"
    if do != "SIGSTOP":
        assert "in _act\n" in (sent / "host1" / "stacks-rank1.txt").read_text(), str(run)
        assert verdict["stacks"], verdict
        assert (sent / "host0" / "recorder-rank0.json").exists(), "of the rank that waited"
    assert (evidence(tmp_path) / "verdict.json").exists()


@pytest.mark.drill
@pytest.mark.parametrize(("do", "mechanism"), [("raise", "exception"), ("exit", "exit")])
def test_a_failure_on_another_host_ends_in_a_verdict(
    tmp_path: Path, three_hosts: Hosts, do: str, mechanism: str
) -> None:
    """Method: rank 1 raises, or ends by itself. Then its log is among the evidence."""
    run = struck(three_hosts, tmp_path, do, code=3)
    assert run.finish() == {0: 0, 1: 0, 2: 0}, str(run)
    verdict = verdict_on_rank_1(run)
    assert verdict["mechanism"] == mechanism, verdict
    process = rank_1(tmp_path)
    assert process["exit_code"] == (3 if do == "exit" else None), process


@pytest.mark.drill
def test_a_run_that_fails_on_another_host_waits_for_the_last_verdict(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """Method: rank 1 raises in each attempt of step 10, until the run gives up."""
    run = struck(three_hosts, tmp_path, "raise", always=True)
    codes = run.finish()
    assert set(codes.values()) == {1}, f"{codes}\n{run}"
    report = run.report()
    last = report["interruptions"][-1]
    assert last["resumed_s"] is None
    verdicts = {one["interruption"]: one for one in report["verdicts"]}
    verdict = verdicts[last["id"] if last["parent"] is None else last["parent"]]
    assert (verdict["mechanism"], verdict["nodes"]) == ("exception", ["host1"]), verdict


@pytest.mark.drill
def test_a_host_that_died_sends_nothing_and_the_verdict_says_so(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    run = struck(three_hosts, tmp_path, "sleep", for_s=0)
    run.until(lambda: run.step_of(1) >= 20, "step 20")
    three_hosts.kill(1)
    del run.processes[1]
    assert run.finish() == {0: 0, 2: 0}, str(run)
    (verdict,) = run.report()["verdicts"]
    said = "no evidence came from node host1, because it is not in the run any more"
    assert said in verdict["reason"], verdict
    told = json.loads((evidence(tmp_path) / "standing.json").read_text())
    assert {one["node"] for one in told["processes"]} == {"host0"}, told


@pytest.mark.drill
@pytest.mark.parametrize("shared", [True, False])
def test_a_host_that_takes_over_finds_the_missing_verdict(
    tmp_path: Path, three_hosts: Hosts, shared: bool
) -> None:
    """Method: rank 1 raises on host 1. As soon as training goes on, all processes of host 0, which
    leads, are killed. It cannot have found a verdict by then.
    """
    run = struck(three_hosts, tmp_path, "raise", shared=shared, steps=400)
    run.until(lambda: run.step_of(1) >= 12, "step 12")
    three_hosts.kill(0)
    del run.processes[0]
    assert not (evidence(tmp_path) / "verdict.json").exists(), "it was killed too late"
    assert run.finish() == {1: 0, 2: 0}, str(run)
    led = run.folder if shared else led_elsewhere(three_hosts, run.folder)
    said = outlast("report", led, "--json")
    assert said.returncode == 0, said.stderr
    verdicts = {one["interruption"]: one for one in json.loads(said.stdout)["verdicts"]}
    assert verdicts.keys() == {1, 2}, f"{verdicts}\n{run}"
    assert (verdicts[1]["mechanism"], verdicts[1]["nodes"]) == ("exception", ["host1"])
    told = json.loads((led / "evidence" / "interruption-1" / "standing.json").read_text())
    assert "host1" in {one["node"] for one in told["processes"]}, told


def led_elsewhere(hosts: Hosts, folder: Path) -> Path:
    """Return a copy of the run's folder on the host that has taken over."""
    seen = [Path(f"/proc/{hosts.boot(host)}/root{folder}") for host in (1, 2)]
    (found,) = (path for path in seen if (path / "leader.json").exists())
    return shutil.copytree(found, folder.parent / "led", ignore=shutil.ignore_patterns("control"))
