"""Hosts that do not fit a run: of another run, of another version, without room in shared memory.

The hosts are network namespaces on this machine, as in test_hosts.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from tests.drills._host_run import PORT, HostRun
from tests.drills._run import SCRIPTS

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(240),
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


def stranger(run: HostRun, name: str, *words: str) -> subprocess.Popen[bytes]:
    """Start another launcher on host 2. `words` begin its command; NAME.out has what it prints."""
    folder = run.folder.parent
    endpoint = ("--rdzv-endpoint", f"{Hosts.address(0)}:{PORT}", "--nnodes", "2")
    own = ("--run-dir", str(folder / name), str(SCRIPTS / "quick.py"))
    command = [sys.executable, *words[:2], "run", *words[2:], *endpoint, *own]
    with (folder / f"{name}.out").open("wb") as out:
        return run.hosts.start(2, command, out=out, env=run.environment(), cwd=folder)


def test_nodes_of_another_run_or_version_are_turned_away(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """Each is told why, and ends at once. The run goes on."""
    run = HostRun(three_hosts, tmp_path, "--steps", 1_000_000, nodes=2, spares=0, within_s=180.0)
    run.until(lambda: "leads the run" in (tmp_path / "host0.out").read_text(), "a leader")
    strangers = {
        "looks for the run 'another' (--rdzv-id)": stranger(
            run, "another", "-m", "outlast", "--rdzv-id", "another"
        ),
        "install the same outlast on all nodes": stranger(run, "newer", "-c", OTHER_VERSION),
    }
    for said, process in strangers.items():
        assert process.wait(150) == 2, f"{said}\n{run}"
        assert said in "".join(one.read_text() for one in tmp_path.glob("*er.out")), (
            f"{said}\n{run}"
        )
    before = run.step_of(0)
    run.until(lambda: min(map(run.step_of, (0, 1))) >= before + 5, "more steps")
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
