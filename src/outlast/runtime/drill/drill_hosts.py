"""Hosts on one machine: network namespaces on a bridge.

Each has a process tree, a /dev/shm and a name of its own.

    with Hosts(3) as hosts:
        one = hosts.start(0, ["outlast", "run", ...], out=file)
        hosts.kill(0)           # SIGKILL for everything on that host; its kernel lives on
        hosts.lose(1)           # the same without its link: no host learns that it is gone
        hosts.cut(2)            # its link is down; `mend` brings it back
        hosts.slow(2)           # its link carries 20 Mbit/s; `mend` ends that, too
        hosts.mute(2)           # nothing that it sends arrives, and it still hears the others
        hosts.deafen(2)         # the other way round; `mend` ends both

A host boots when something is started on it, and again after it was killed. Its /dev/shm is empty
then. Its address and its network stay.

None of this has a name outside. A process that sleeps holds each network, and the first process of
a host holds everything else of the host. The kernel ends these processes when the process that
created them ends, however it ends, and removes networks and memory with them. So nothing is left,
even after SIGKILL.

Needs the right to make namespaces, which root has, and the programs ip (iproute2), unshare and
nsenter (util-linux). `may_be_made` says why hosts cannot be made here, or "". For slow links it
needs tc (iproute2) and the kernel's token buckets: `may_be_slowed`. One direction of a link is cut
by tc as well.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from outlast.runtime import linux
from outlast.runtime.linux import stat_fields

# of a slow link: what it carries, what it passes on at once, and how long it holds back the rest
SLOW = ("rate", "20mbit", "burst", "64kb", "latency", "400ms")
WAIT_S = 20.0  # for a call of `ip`, and for the end of processes that were killed
_PARENT = 1  # in the fields of /proc/<pid>/stat, from the third on
_HOLD = "echo; exec sleep infinity"
# The first process of a host. It waits, so that it reaps processes whose parent has ended.
_BOOT = 'mount -t tmpfs tmpfs /dev/shm && hostname "$0" && echo && { sleep infinity & wait; }'
# Entering a mount namespace changes the folder. The shell stays, because nsenter would stop
# together with a program that is stopped.
_INSIDE = 'cd "$0" && { "$@"; exit $?; }'
_APART = ("--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")


@functools.cache
def may_be_made() -> str:
    """Return why no hosts can be created here, or ""."""
    needs = "network namespaces need root (CAP_SYS_ADMIN and CAP_NET_ADMIN)"
    why = ": {why}" if os.geteuid() == 0 else ""
    return _refusal(lambda hosts: hosts.boot(0), needs + why)


@functools.cache
def may_be_slowed() -> str:
    """Return why no link can be slowed here though hosts can be made, or ""."""
    return _refusal(lambda hosts: hosts.slow(0), "the kernel slows no link (tc, sch_tbf): {why}")


def _refusal(act: Callable[[Hosts], object], text: str) -> str:
    """Try something with one host. Return "" if it works, or why it does not.

    text   what to return if the system refuses it; {why} stands for what the system said
    """
    try:
        with Hosts(1) as hosts:
            act(hosts)
            return ""
    except FileNotFoundError as error:
        return f"the program {error.filename} is not installed here"
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        return text.replace("{why}", said.decode(errors="replace").strip() or str(error))


class Hosts:
    """A number of hosts, with the addresses 10.77.0.1, 10.77.0.2 and so on. Leaving removes them.

    Use it from a thread that lives as long as the hosts, because they end with it.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        # the network of the bridge, and that of each host
        self._networks: list[subprocess.Popen[bytes]] = []
        # for each host that is up: the process that keeps it up, and the pid of its own first
        # process
        self._booted: dict[int, tuple[subprocess.Popen[bytes], int]] = {}
        self._running: dict[int, list[subprocess.Popen[bytes]]] = {}
        self._slow: set[int] = set()
        # by host: the ends of its link that send nothing, as in `_ends`
        self._silent: dict[int, set[tuple[int, str]]] = {}

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"

    @staticmethod
    def name(host: int) -> str:
        """Return the host name that processes on this host see."""
        return f"host{host}"

    def __enter__(self) -> Hosts:
        try:
            bridge = self._hold()
            _ip(bridge, "link", "add", "bridge", "type", "bridge")
            _ip(bridge, "link", "set", "bridge", "up")
            for host in range(self.count):
                self._connect(bridge, host)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _hold(self) -> int:
        """Create a network, and return the pid of the process that holds it."""
        process = _speaks(["unshare", "--net", "sh", "-c", _HOLD])
        self._networks.append(process)
        return process.pid

    def _connect(self, bridge: int, host: int) -> None:
        network, port = self._hold(), f"port{host}"
        veth = ("type", "veth", "peer", "name", "eth0", "netns", str(network))
        _ip(bridge, "link", "add", port, *veth)
        _ip(bridge, "link", "set", port, "master", "bridge")
        _ip(bridge, "link", "set", port, "up")
        _ip(network, "link", "set", "lo", "up")
        _ip(network, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        _ip(network, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for host in tuple(self._booted):
            self.kill(host)
        for process in self._networks:
            process.kill()
            process.wait(WAIT_S)
        self._networks.clear()

    # --- processes --------------------------------------------------------------------------------

    def boot(self, host: int) -> int:
        """Boot a host, unless it has booted already. Return the pid of its first process."""
        if host not in self._booted:
            inside = ["unshare", *_APART, "sh", "-c", _BOOT, self.name(host)]
            process = _speaks([*_in_network(self._networks[host + 1].pid), *inside])
            (first,) = children_of(process.pid)
            self._booted[host] = process, first
        return self._booted[host][1]

    def start(
        self,
        host: int,
        command: Sequence[str | Path],
        *,
        out: BinaryIO,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program on a host, and boot the host first if it is down.

        The process that is returned is outside of the host. It ends when the program ends
        (`program_of`), and has its exit code, or 128 and the number of the signal that ended it.
        """
        enter = ["nsenter", f"--target={self.boot(host)}", "--net", "--mount", "--uts", "--pid"]
        words = ["sh", "-c", _INSIDE, str(cwd or Path.cwd()), *map(str, command)]
        process = _popen([*enter, *words], out, env=None if env is None else dict(env))
        others = [one for one in self._running.get(host, ()) if one.poll() is None]
        self._running[host] = [*others, process]
        return process

    def shared_memory(self, host: int) -> Path:
        """Return the path by which this process sees the /dev/shm of a host that has booted."""
        return Path(f"/proc/{self.boot(host)}/root/dev/shm")

    def is_up(self, host: int) -> bool:
        return host in self._booted

    # --- faults -----------------------------------------------------------------------------------

    def kill(self, host: int) -> None:
        """Kill all processes of a host at once, by SIGKILL to the first one of its process tree.

        Its kernel lives: it closes their connections, and refuses new ones.
        """
        booted = self._booted.pop(host, None)
        if booted is not None:
            booted[0].kill()
            booted[0].wait(WAIT_S)
        for process in self._running.pop(host, []):
            process.wait(WAIT_S)

    def lose(self, host: int) -> None:
        """Simulate a power loss of a host: its link goes down, then its processes are killed."""
        self.cut(host)
        self.kill(host)

    def cut(self, host: int) -> None:
        """Take the link of a host down. No process is told."""
        _ip(self._networks[0].pid, "link", "set", f"port{host}", "down")

    def slow(self, host: int) -> None:
        """Let the link of a host carry less, in both directions. Does nothing if it does already.

        Raises OSError or CalledProcessError if that cannot be done here.
        """
        if host not in self._slow:
            for network, device in self._ends(host):
                _in(network, "tc", "qdisc", "add", "dev", device, "root", "tbf", *SLOW)
            self._slow.add(host)

    def mute(self, host: int) -> None:
        """Drop all that a host sends. It still receives what others send. No process is told."""
        self._silence(host, self._ends(host)[1])

    def deafen(self, host: int) -> None:
        """Drop all that is sent to a host. What it sends still arrives. No process is told."""
        self._silence(host, self._ends(host)[0])

    def _silence(self, host: int, end: tuple[int, str]) -> None:
        network, device = end
        _in(network, "tc", "qdisc", "replace", "dev", device, "root", "blackhole")
        self._silent.setdefault(host, set()).add(end)

    def mend(self, host: int) -> None:
        """Bring the link of a host back, with all that it can carry."""
        ends = {*self._silent.pop(host, ()), *(self._ends(host) if host in self._slow else ())}
        self._slow.discard(host)
        for network, device in ends:
            _in(network, "tc", "qdisc", "del", "dev", device, "root")
        _ip(self._networks[0].pid, "link", "set", f"port{host}", "up")

    def _ends(self, host: int) -> tuple[tuple[int, str], tuple[int, str]]:
        """Return both ends of a host's link: who holds the network, and the device there."""
        return (self._networks[0].pid, f"port{host}"), (self._networks[host + 1].pid, "eth0")


def program_of(process: subprocess.Popen[bytes]) -> int:
    """Return the pid of the program that `Hosts.start` has started, or 0 if it does not run."""
    shells = children_of(process.pid)
    programs = children_of(shells[0]) if shells else []
    return programs[0] if programs else 0


def children_of(pid: int) -> list[int]:
    """Return the children of a process. This reads one file for each process here."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = stat_fields(Path(f"/proc/{name}/stat").read_bytes())
                if int(fields[_PARENT]) == pid:
                    found.append(int(name))
    return found


def _in_network(holder: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{holder}/ns/net"]


def _ip(holder: int, *words: str) -> None:
    """Run `ip` in the network that a process holds."""
    _in(holder, "ip", *words)


def _in(holder: int, *words: str) -> None:
    """Run a program in the network that a process holds."""
    command = [*_in_network(holder), *words]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT_S)


def _popen(
    command: Sequence[str], out: BinaryIO | int, *, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that dies with this thread, and that Ctrl-C does not reach."""
    mine = os.getpid()
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
        preexec_fn=lambda: linux.die_with(mine),
    )


def _speaks(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process, and wait for the line with which it reports that it is ready.

    Raises CalledProcessError, with what it has printed, if it ends before.
    """
    process = _popen(command, subprocess.PIPE)
    assert process.stdout is not None
    said = process.stdout.readline()
    if said == b"\n":
        process.stdout.close()
        return process
    said += process.stdout.read()
    process.stdout.close()
    code = process.wait()
    raise subprocess.CalledProcessError(code, command, stderr=said)
