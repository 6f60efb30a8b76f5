"""Hosts with sharded state are drained: by command, in turn, and after a notice.

The hosts are network namespaces on this machine, as in test_hosts.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from tests.drills._host_run import HostRun
from tests.drills._run import OUTLAST, CalmRun
from tests.drills.test_hosts_leave import launcher_of, said

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]
STEPS = 200


def a_run(
    hosts: Hosts, folder: Path, *arguments: str, flags: tuple[str, ...] = (), spares: int = 1
) -> HostRun:
    """Start a run of two hosts with two ranks each, and return it at its step 10."""
    run = HostRun(
        hosts,
        folder,
        "--steps",
        STEPS,
        "--step-s",
        "0.1",
        *arguments,
        nodes=2,
        spares=spares,
        flags=("--nproc-per-node", "2", "--lease", "3", *flags),
        within_s=380.0,
        script=("fsdp.py",),
    )
    run.until(lambda: min(map(run.step_of, range(4))) >= 10, "step 10")
    return run


def asked(run: HostRun, *words: str) -> list[str]:
    """Run an `outlast` command about the run, and return the lines that it prints."""
    command = [OUTLAST, *words, "--run", str(run.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, f"{done}\n{run}"
    return done.stdout.splitlines()


def check_whole(run: HostRun, digests: dict[int, str], *, ranks: list[list[int]]) -> None:
    """Check that no committed step was lost, that each rank committed each step once, and that the
    weights are those of an undisturbed run. `ranks` are those of each interruption.
    """
    report = run.report()
    seen = report["interruptions"]
    assert [one["ranks"] for one in seen] == ranks, f"{seen}\n{run}"
    assert all(one["steps_lost"] == 0 for one in seen), f"{seen}\n{run}"
    assert all(one["steps_repeated"] <= 1 for one in seen), f"{seen}\n{run}"
    assert report["steps"] == STEPS
    found = [line.split()[2] for line in str(run).splitlines() if line.startswith("digest ")]
    assert (len(found), {*found}) == (4, {*digests.values()}), str(run)
    for rank in range(4):
        steps = [step for of, step, _ in run.commits if of == rank]
        assert steps == list(range(1, STEPS + 1)), f"rank {rank}: {steps}\n{run}"


@pytest.mark.parametrize(
    ("arguments", "flags", "moves"),
    [
        pytest.param((), (), True, id="fsdp2"),
        pytest.param((), ("--snapshot-every", "7"), True, id="seldom sealed"),
        pytest.param(("--way", "respawn"), (), True, id="all restart"),
        pytest.param((), ("--keep", "peers=1:step"), None, id="copies at peers"),
        pytest.param(("--hsdp",), (), False, id="hsdp"),
    ],
)
def test_a_host_is_drained_and_then_all_in_turn(
    tmp_path: Path,
    three_hosts: Hosts,
    calm_run: CalmRun,
    arguments: tuple[str, ...],
    flags: tuple[str, ...],
    moves: bool | None,
) -> None:
    """Host 1 is drained, and its launcher ends with 0. It is started again, and stands ready. Then
    all hosts are drained in turn. `moves` says that images have to be sent for a drain. With copies
    at peers (None) that is so if the newest copy has not arrived.
    """
    calm = calm_run("fsdp.py", "--steps", STEPS, *arguments, workers=4).digests
    run = a_run(three_hosts, tmp_path, *arguments, flags=flags)
    assert asked(run, "drain", "host1", "--reason", "a fan")[-1] == "done: node host1 is drained"
    assert run.processes[1].wait(60) == 0, str(run)
    assert moves in (None, said(run, 0, "move to another node")), str(run)
    run.processes[1] = run.start(1)
    run.until(lambda: said(run, 0, "node host1 has come back"), "host 1 again")
    words = ("drain", "--all", "--one-at-a-time", "--reason", "a new kernel")
    assert asked(run, *words)[-1] == "done: all nodes were drained"
    codes = run.finish()
    assert codes == dict.fromkeys(range(3), 0), f"{codes}\n{run}"
    # Host 2 holds ranks 2 and 3 by then. Host 1 takes those of host 0, and is drained last.
    check_whole(run, calm, ranks=[[2, 3], [0, 1], [2, 3], [0, 1]])


def test_a_host_of_sharded_state_with_a_notice_is_drained(
    tmp_path: Path, three_hosts: Hosts, calm_run: CalmRun
) -> None:
    """Method: SIGUSR1 to the launcher of the host that leads. Its ranks move, and it hands the run
    over before its launcher ends.
    """
    calm = calm_run("fsdp.py", "--steps", STEPS, workers=4).digests
    run = a_run(three_hosts, tmp_path)
    os.kill(launcher_of(run, 0), signal.SIGUSR1)
    assert run.processes.pop(0).wait(90) == 0, str(run)
    codes = run.finish()
    assert codes == {1: 0, 2: 0}, f"{codes}\n{run}"
    check_whole(run, calm, ranks=[[0, 1]])


def test_a_host_whose_images_find_no_room_stays_and_the_run_stops(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """Method: the shared memory of the host that stands ready gets no more room, and host 1 gets a
    notice. The run stops with a last checkpoint, and no committed step is lost.
    """
    run = a_run(three_hosts, tmp_path, flags=("--checkpoint-every", "100000"))
    with (tmp_path / "mount.out").open("wb") as out:
        words = "mount -o remount,size=$(($(du -sk /dev/shm | cut -f1) + 64))k /dev/shm"
        assert three_hosts.start(2, ["sh", "-c", words], out=out).wait(20) == 0
    os.kill(launcher_of(run, 1), signal.SIGUSR1)
    codes = run.finish()
    assert codes == dict.fromkeys(range(3), 143), f"{codes}\n{run}"
    report = run.report()
    assert "its ranks could not be moved in time" in report["reason"], report["reason"]
    (saved,) = report["checkpoints"]
    assert (saved["outcome"], saved["step"]) == ("written", report["steps"])
    assert all(one["steps_lost"] == 0 for one in report["interruptions"])
