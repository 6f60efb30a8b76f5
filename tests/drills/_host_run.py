"""One run on several hosts of this machine, as its operator sees it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outlast.runtime.drill.drill_hosts import Hosts
from tests.app.command import outlast
from tests.drills._run import OUTLAST, SCRIPTS

PORT = 29_400
TOKEN = "a secret of the drills, 32 bytes"


class HostRun:
    """One run on several hosts, as its operator sees it. Host 0 leads it."""

    def __init__(
        self,
        hosts: Hosts,
        folder: Path,
        *arguments: str | int,
        nodes: int,
        spares: int,
        flags: tuple[str, ...] = (),
        within_s: float = 90.0,
        env: Mapping[str, str] | None = None,
        script: tuple[str, ...] = ("quick.py", "--dropout", "0"),
        domains: tuple[str, ...] = (),
    ) -> None:
        """Start all launchers. `domains`: what each host names as its failure domain."""
        self.hosts = hosts
        self._domains = domains
        self.folder = folder / "run"
        self._scratch = folder
        self._commits = folder / "commits"
        self._commits.touch()
        self._end_s = time.monotonic() + within_s
        given = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("OUTLAST_", "DRILL_"))
        }
        self._env = {
            **given,
            "OMP_NUM_THREADS": "1",
            "DRILL_COMMITS": str(self._commits),
            "OUTLAST_TOKEN": TOKEN,
            **(env or {}),
        }
        self._command = [
            OUTLAST,
            "run",
            "--nnodes",
            str(nodes),
            "--spare-nodes",
            str(spares),
            "--rdzv-endpoint",
            f"{hosts.address(0)}:{PORT}",
            "--run-dir",
            str(self.folder),
            *flags,
            str(SCRIPTS / script[0]),
            *script[1:],
            *map(str, arguments),
        ]
        self.processes = {host: self.start(host) for host in range(nodes + spares)}

    def start(self, host: int, *, token: str = TOKEN) -> subprocess.Popen[bytes]:
        """Start the launcher of one host."""
        env = self.environment(token)
        if self._domains:
            env["OUTLAST_NODE_DOMAIN"] = self._domains[host]
        with self._out(host).open("ab") as out:
            return self.hosts.start(host, self._command, out=out, env=env, cwd=self._scratch)

    def environment(self, token: str = TOKEN) -> dict[str, str]:
        """Return the environment of a launcher."""
        return {**self._env, "OUTLAST_TOKEN": token}

    def output(self, host: int) -> str:
        """Return what the launcher of a host has printed."""
        return self._out(host).read_text()

    def _out(self, host: int) -> Path:
        return self._scratch / f"host{host}.out"

    @property
    def commits(self) -> list[tuple[int, int, int]]:
        """Return rank, step and pid of each commit, in the order in which they were noted."""
        rows = [line.split() for line in self._commits.read_text().splitlines()]
        return [(int(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3]

    def step_of(self, rank: int) -> int:
        return max((step for of, step, _ in self.commits if of == rank), default=0)

    def until(self, condition: Any, what: str) -> None:
        while not condition():
            assert time.monotonic() < self._end_s, f"not in time: {what}\n{self}"
            time.sleep(0.02)

    def finish(self) -> dict[int, int]:
        """Wait for the launchers that are left, and return their exit codes by host."""
        codes = {}
        for host, process in self.processes.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                codes[host] = process.wait(max(0.1, self._end_s - time.monotonic()))
        return codes

    @property
    def digests(self) -> dict[int, str]:
        path = Path(f"{self._commits}.digests")
        lines = path.read_text().splitlines() if path.exists() else []
        return {int(rank): digest for rank, digest in (line.split() for line in lines)}

    def report(self) -> dict[str, Any]:
        said = outlast("report", self.folder, "--json")
        assert said.returncode == 0, said.stderr
        report: dict[str, Any] = json.loads(said.stdout)
        return report

    def __str__(self) -> str:
        outs = (f"--- {one.name}\n{one.read_text()[-3000:]}" for one in self._outs())
        return f"steps {[self.step_of(rank) for rank in range(2)]}\n" + "\n".join(outs)

    def _outs(self) -> Iterator[Path]:
        yield from sorted(self._scratch.glob("host*.out"))
