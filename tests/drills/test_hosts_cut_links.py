"""A link between two hosts carries nothing, and both still reach the host that leads.

The hosts are network namespaces on this machine, as in test_hosts.py. Packets get lost because a
host is given a wrong hardware address for the other one.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from tests.drills._host_run import HostRun

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"),
]
CUT_S = 25.0  # longer than the shortest deadline of a hang
NOBODY = "02:00:00:00:00:99"
# It sends a byte each tenth of a second, and prints what the kernel knows of that.
SENDS = """
import socket, sys, time
from outlast.runtime.worker.communication.peer_ends import is_cut_off
sock = socket.create_connection((sys.argv[1], 4000), timeout=20)
while True:
    sock.send(b"x")
    print(int(is_cut_off(sock)), flush=True)
    time.sleep(0.1)
"""
# It accepts one connection, and reads nothing.
TAKES = """
import socket, sys, time
listener = socket.create_server((sys.argv[1], 4000))
held = listener.accept()
time.sleep(600)
"""


def at(hosts: Hosts, host: int, *words: str, out: Path) -> subprocess.Popen[bytes]:
    with out.open("wb") as file:
        return hosts.start(host, list(words), out=file)


def cut(hosts: Hosts, one: int, other: int, out: Path) -> None:
    """Let nothing through between two hosts, in either direction."""
    for host, far in ((one, other), (other, one)):
        words = ("ip", "neigh", "replace", hosts.address(far), "lladdr", NOBODY, "dev", "eth0")
        assert at(hosts, host, *words, "nud", "permanent", out=out).wait(20) == 0, out.read_text()


def mend(hosts: Hosts, one: int, other: int, out: Path) -> None:
    for host, far in ((one, other), (other, one)):
        words = ("ip", "neigh", "del", hosts.address(far), "dev", "eth0")
        assert at(hosts, host, *words, out=out).wait(20) == 0, out.read_text()


def until(out: Path, last: str, within_s: float = 40.0) -> None:
    end_s = time.monotonic() + within_s
    while not out.read_text().endswith(f"{last}\n"):
        assert time.monotonic() < end_s, out.read_text()[-200:]
        time.sleep(0.05)


def test_the_kernel_tells_of_a_link_that_carries_nothing(tmp_path: Path) -> None:
    """A peer that reads nothing is not cut off. Once the link is mended, it acknowledges again."""
    out, other = tmp_path / "sends", tmp_path / "other"
    with Hosts(2) as hosts:
        at(hosts, 1, sys.executable, "-c", TAKES, hosts.address(1), out=other)
        time.sleep(1)
        at(hosts, 0, sys.executable, "-c", SENDS, hosts.address(1), out=out)
        until(out, "0")
        cut(hosts, 0, 1, tmp_path / "ip")
        until(out, "1")
        assert "1\n0\n1" not in out.read_text(), "it changes its mind"
        mend(hosts, 0, 1, tmp_path / "ip")
        until(out, "0")


def test_no_rank_is_blamed_for_a_link_that_carries_nothing(
    tmp_path: Path, three_hosts: Hosts
) -> None:
    """Three hosts with a rank each train. The link between hosts 1 and 2 carries nothing for longer
    than the deadline of a hang. No process is killed, and training goes on once it is mended.
    """
    flags = ("--lease", "3")
    run = HostRun(
        three_hosts, tmp_path, "--steps", 100_000, nodes=3, spares=0, flags=flags, within_s=200.0
    )
    run.until(lambda: min(map(run.step_of, range(3))) >= 20, "step 20")
    pids = {rank: pid for rank, _, pid in run.commits}
    cut(three_hosts, 1, 2, tmp_path / "ip")
    began_s, stood = time.monotonic(), run.step_of(0)
    while time.monotonic() < began_s + CUT_S:
        time.sleep(0.2)
    assert run.step_of(0) <= stood + 5, "the link carried something"
    mend(three_hosts, 1, 2, tmp_path / "ip")
    before = run.step_of(0)
    run.until(lambda: min(map(run.step_of, range(3))) >= before + 10, "more steps")
    assert {rank: pid for rank, _, pid in run.commits} == pids, str(run)
    assert run.report()["interruptions"] == [], str(run)
    for host in range(3):
        three_hosts.kill(host)
