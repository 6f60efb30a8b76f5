"""Hosts on one machine: network namespaces on a bridge, each with a process tree, a /dev/shm and a
name of its own.

    with Hosts(3) as hosts:
        one = hosts.start(0, ["outlast", "run", ...], out=file)
        hosts.kill(0)           # SIGKILL for everything on that host
        hosts.cut(1)            # its link is down; `mend` brings it back

Needs root. `may_be_made` says why hosts cannot be made here, or "".
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

_MOUNTS = 'mount -t tmpfs -o size=512m tmpfs /dev/shm && hostname "$0" && "$@"'


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@functools.cache
def may_be_made() -> str:
    """Return why no hosts can be made here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Hosts(1):
            return ""
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", b"") or b""
        return f"network namespaces cannot be made here: {error} {said.decode(errors='replace')}"


class Hosts:
    """So many hosts, with the addresses 10.77.0.1, 10.77.0.2 and so on. Leaving removes them."""

    def __init__(self, count: int) -> None:
        self._net = f"olh{os.getpid()}"
        self._count = count
        self._running: dict[int, list[subprocess.Popen[bytes]]] = {}

    def name(self, host: int) -> str:
        return f"{self._net}-{host}"

    @staticmethod
    def address(host: int) -> str:
        return f"10.77.0.{host + 1}"

    def __enter__(self) -> Hosts:
        try:
            _ip("netns", "add", self._net)
            _ip("-n", self._net, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._net, "link", "set", "bridge", "up")
            for host in range(self._count):
                self._add(host)
        except BaseException:
            self._remove()
            raise
        return self

    def _add(self, host: int) -> None:
        name, port = self.name(host), f"port{host}"
        _ip("netns", "add", name)
        _ip(
            "-n",
            self._net,
            "link",
            "add",
            port,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            name,
        )
        _ip("-n", self._net, "link", "set", port, "master", "bridge")
        _ip("-n", self._net, "link", "set", port, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")

    def __exit__(self, *_: object) -> None:
        for host in tuple(self._running):
            self.kill(host)
        self._remove()

    def _remove(self) -> None:
        for name in (*(self.name(host) for host in range(self._count)), self._net):
            if Path("/run/netns", name).exists():
                with contextlib.suppress(subprocess.SubprocessError):
                    _ip("netns", "delete", name)

    def start(
        self,
        host: int,
        command: Sequence[str | Path],
        *,
        out: BinaryIO,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a program on a host. Everything below it ends with it."""
        name = self.name(host)
        inside = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        words = [*inside, "sh", "-c", _MOUNTS, f"host{host}", *map(str, command)]
        process = subprocess.Popen(
            ["ip", "netns", "exec", name, *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
        )
        self._running.setdefault(host, []).append(process)
        return process

    def kill(self, host: int) -> None:
        """SIGKILL for all processes of a host, at once: the first of its process tree ends."""
        for process in self._running.pop(host, []):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(20)

    def cut(self, host: int) -> None:
        """Take the link of a host down. Nothing says so to anybody."""
        _ip("-n", self._net, "link", "set", f"port{host}", "down")

    def mend(self, host: int) -> None:
        """Bring the link of a host back."""
        _ip("-n", self._net, "link", "set", f"port{host}", "up")
