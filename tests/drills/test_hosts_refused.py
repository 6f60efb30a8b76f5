"""Hosts that do not fit a run: of another run, of another version, without room in shared memory.

The hosts are network namespaces on this machine, as in test_hosts.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from outlast.runtime.drill_hosts import Hosts, may_be_made
from tests.drills._host_run import PORT, HostRun
from tests.drills._run import SCRIPTS

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(200),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]

# outlast with another version of the protocol between nodes
OTHER_VERSION = """
import sys
from outlast.model import wire
wire.WIRE_VERSION += 1
from outlast.app.cli import main
sys.exit(main())
"""


def stranger(run: HostRun, host: int, *flags: str, program: tuple[str, ...]) -> tuple[int, str]:
    """Start another launcher on a host. Return its exit code, and what it has printed."""
    folder = run.folder.parent
    endpoint = ("--rdzv-endpoint", f"{Hosts.address(0)}:{PORT}", "--nnodes", "2")
    own = ("--run-dir", str(folder / "another"))
    command = [*program, "run", *endpoint, *own, *flags, str(SCRIPTS / "quick.py")]
    with (folder / "stranger.out").open("wb") as out:
        process = run.hosts.start(host, command, out=out, env=run.environment(), cwd=folder)
        code = process.wait(90)
    return code, (folder / "stranger.out").read_text()


def test_nodes_of_another_run_or_version_are_turned_away(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """Each is told why, and ends at once. The run goes on."""
    run = HostRun(three_hosts, tmp_path, "--steps", 1_000_000, nodes=2, spares=0, within_s=140.0)
    run.until(lambda: run.step_of(1) >= 5, "step 5")
    ours = (sys.executable, "-m", "outlast")
    code, said = stranger(run, 2, "--rdzv-id", "another", program=ours)
    assert (code, "looks for the run 'another' (--rdzv-id)" in said) == (2, True), f"{said}\n{run}"
    code, said = stranger(run, 2, program=(sys.executable, "-c", OTHER_VERSION))
    assert (code, "install the same outlast on all nodes" in said) == (2, True), f"{said}\n{run}"
    before = run.step_of(0)
    run.until(lambda: run.step_of(0) >= before + 5, "more steps")
    assert run.report()["interruptions"] == [], str(run)


def test_too_little_shared_memory_on_one_host_is_said_before_training(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """FSDP2: the images of the rank on host 1 do not fit into the /dev/shm of that host alone."""
    small = ["mount", "-o", "remount,size=4m", "/dev/shm"]
    with (tmp_path / "mount.out").open("wb") as out:
        assert three_hosts.start(1, small, out=out).wait(20) == 0
    script = ("fsdp.py", "--width", "512")
    run = HostRun(three_hosts, tmp_path, "--steps", 20, nodes=2, spares=0, script=script)
    codes = run.finish()
    assert codes == {0: 1, 1: 1}, f"{codes}\n{run}"
    assert run.commits == [], str(run)
    named = r"more bytes in /dev/shm/outlast-\S+-host1 for 1 ranks"
    assert re.search(named, (tmp_path / "host0.out").read_text()), str(run)
