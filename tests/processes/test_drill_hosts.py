"""Simulated hosts on one machine: what a host sees, what its loss does, and that nothing is left of
it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import Hosts, children_of, may_be_made, may_be_slowed

pytestmark = pytest.mark.skipif(
    bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"
)
DIAL = """
import socket, sys
try:
    socket.create_connection(("10.77.0.1", 5000), 0.4).close()
except OSError as error:
    print(type(error).__name__)
"""
ANSWER = """
import socket
server = socket.create_server(("10.77.0.1", 5000))
print("up", flush=True)
while True:
    server.accept()
"""
TAKE = """
import socket
server = socket.create_server(("10.77.0.1", 5000))
print("up", flush=True)
while True:
    one, _ = server.accept()
    while one.recv(1 << 16):
        pass
    one.close()
"""
SEND = """
import socket, time
one = socket.create_connection(("10.77.0.1", 5000))
began_s = time.monotonic()
one.sendall(bytes(2 << 20))
one.shutdown(socket.SHUT_WR)
one.recv(1)
print(time.monotonic() - began_s)
"""
MAKE = """
import sys
from outlast.runtime.drill.drill_hosts import Hosts, program_of
with Hosts(2) as hosts:
    one = hosts.start(1, ["sleep", "600"], out=sys.stderr.buffer)
    while not program_of(one):
        pass
    print(one.pid, hosts.boot(1), program_of(one), flush=True)
    one.wait()
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as made:
        yield made


def said(hosts: Hosts, host: int, *command: str) -> str:
    """Return what a program prints on a host."""
    with tempfile.TemporaryFile() as out:
        hosts.start(host, command, out=out).wait(20)
        out.seek(0)
        return out.read().decode().strip()


def until(condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end_s, f"not in time: {what}"
        time.sleep(0.01)


def test_a_host_has_a_name_a_memory_and_processes_of_its_own(hosts: Hosts) -> None:
    """A program runs in the current folder, and its exit code is returned."""
    assert said(hosts, 0, "hostname") == "host0"
    assert said(hosts, 1, "sh", "-c", "pwd; touch /dev/shm/mine") == str(Path.cwd())
    assert [one.name for one in hosts.shared_memory(1).iterdir()] == ["mine"]
    assert said(hosts, 0, "ls", "/dev/shm") == ""
    assert not Path("/dev/shm/mine").exists()
    pids = said(hosts, 0, "sh", "-c", "echo /proc/[0-9]*").split()
    assert pids[0] == "/proc/1", "its processes are numbered anew"
    assert len(pids) <= 4, "and it sees no others"
    with tempfile.TemporaryFile() as out:
        assert hosts.start(1, ["sh", "-c", "exit 3"], out=out).wait(20) == 3
        assert hosts.start(1, ["sh", "-c", "kill -9 $$"], out=out).wait(20) == 137


def test_a_killed_host_refuses_connections_and_a_lost_one_is_silent(hosts: Hosts) -> None:
    """After its link is cut and mended, a host answers again. After it has booted again, its memory
    is empty.
    """

    def serve() -> None:
        with tempfile.NamedTemporaryFile() as out:
            hosts.start(0, [sys.executable, "-c", ANSWER], out=out)  # type: ignore[arg-type]
            until(lambda: Path(out.name).read_text(), "a server")

    dial = (sys.executable, "-c", DIAL)
    serve()
    said(hosts, 0, "touch", "/dev/shm/mine")
    assert said(hosts, 1, *dial) == ""
    hosts.cut(0)
    assert said(hosts, 1, *dial) == "TimeoutError"
    hosts.mend(0)
    until(lambda: said(hosts, 1, *dial) == "", "a link")
    hosts.kill(0)
    assert said(hosts, 1, *dial) == "ConnectionRefusedError"
    assert not hosts.is_up(0)
    serve()
    assert list(hosts.shared_memory(0).iterdir()) == []
    hosts.lose(0)
    assert said(hosts, 1, *dial) == "TimeoutError"
    hosts.mend(0)
    serve()
    until(lambda: said(hosts, 1, *dial) == "", "a host that is back")


@pytest.mark.skipif(bool(may_be_slowed()), reason=f"no slow links: {may_be_slowed()}")
def test_a_slow_link_carries_less_until_it_is_mended(hosts: Hosts) -> None:
    """Two megabytes take most of a second at 20 Mbit/s, and no time at all otherwise."""

    def seconds() -> float:
        return float(said(hosts, 1, sys.executable, "-c", SEND))

    with tempfile.NamedTemporaryFile() as out:
        hosts.start(0, [sys.executable, "-c", TAKE], out=out)  # type: ignore[arg-type]
        until(lambda: Path(out.name).read_text(), "a server")
        usual_s = seconds()
        hosts.slow(0)
        hosts.slow(0)
        slow_s = seconds()
        hosts.mend(0)
        assert slow_s > 0.5
        assert usual_s < slow_s / 2
        assert seconds() < slow_s / 2


def test_nothing_is_left_after_the_maker_is_killed() -> None:
    """Neither a process of a host nor one that holds a network outlives a SIGKILL of the process
    that made them.
    """
    command = [sys.executable, "-c", MAKE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker:
        try:
            assert maker.stdout is not None
            outside, *inside = map(int, maker.stdout.readline().split())
            all_of_it = [*children_of(maker.pid), *children_of(outside), *inside]
            assert len(all_of_it) == 8, "of three networks, of a host that is up, and the program's"
        finally:
            maker.kill()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in all_of_it), "their end")
