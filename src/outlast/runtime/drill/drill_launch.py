"""How a drill starts a run on one host, and what it sees of the run.

`Launched` is the interface. `runtime/drill/drill_host_launchers.py` does the same for several
hosts.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from outlast.errors import OutlastError
from outlast.runtime import linux, stop_signals
from outlast.runtime.drill.drill_looks import LookedAtNode, LookedAtRun
from outlast.runtime.drill.drill_strikes import HostFaults
from outlast.runtime.drill.striking import Target, Usage
from outlast.runtime.folders.run_folder import read_card
from outlast.runtime.ledger.pointer import LEDGER
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.tiers.vault_owner import vault_folder
from outlast.runtime.trials import stop_run

COMMAND = (sys.executable, "-m", "outlast.app.cli", "run")


class Launched(Protocol):
    """A run that a drill has started.

    target   its processes into which faults may be injected
    hosts    injects faults into whole hosts; None: there is one host only
    """

    @property
    def target(self) -> Target: ...
    @property
    def hosts(self) -> HostFaults | None: ...

    def poll(self) -> int | None:
        """Return the exit code of the run once it is over. Call it often."""

    def step(self) -> int:
        """Return the newest committed step, according to the ranks' beacons; 0 without beacons."""

    def memory(self) -> LookedAtRun:
        """Return where the run keeps its state now, and its living processes."""

    def usages(self) -> Mapping[int, Usage]:
        """Return what each launcher uses now, by its pid."""

    def segments_left(self) -> int:
        """Return how many files in shared memory are left, once the run is over."""

    def stop(self) -> int:
        """End a run that is not over, and return its exit code. Nothing of it remains then."""


class OneLauncher:
    """A run on this host: one launcher, in a session of its own (`Launched`)."""

    def __init__(
        self,
        run: Path,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        before: Sequence[str] = (),
    ) -> None:
        """Start it. `before`: words in front of the command, which end by becoming the command."""
        self.hosts: HostFaults | None = None
        self._run = run
        self._vault: Vault | None = None
        mine = os.getpid()
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*before, *COMMAND, "--run-dir", str(run), *words],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=lambda: linux.stop_with(mine),
            )
        self.launcher = self._process.pid
        self.target = Target(self.launcher)

    def poll(self) -> int | None:
        return self._process.poll()

    def step(self) -> int:
        if self._vault is None:
            with contextlib.suppress(OutlastError):  # it has not begun yet
                self._vault = Vault.open(vault_folder(str(read_card(self._run)["run"])))
        return 0 if self._vault is None else self._vault.newest_committed()

    def memory(self) -> LookedAtRun:
        here = LookedAtNode(self._vault, self.target.children())
        return LookedAtRun((here,), self._run / LEDGER)

    def usages(self) -> Mapping[int, Usage]:
        return self.target.usages()

    def segments_left(self) -> int:
        folder = None if self._vault is None else self._vault.folder
        return sum(1 for _ in folder.iterdir()) if folder is not None and folder.exists() else 0

    def stop(self) -> int:
        with stop_signals.masked(signal.SIG_BLOCK):
            if self._process.poll() is None:
                stop_run(self._process, self._run)
        return self._process.returncode
