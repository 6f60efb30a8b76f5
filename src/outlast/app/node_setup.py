"""The parts of a node that `outlast run` opens, the same for one node and for several."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from outlast.app.torchrun import RunOptions
from outlast.runtime.agent.agent_driver import NodeOptions
from outlast.runtime.agent.beacons import Beacons
from outlast.runtime.agent.logs import Sink, WorkerLogs, make_log_folder
from outlast.runtime.agent.zygote_client import ZygoteClient
from outlast.runtime.coordinator.evidence import Evidence
from outlast.runtime.loop import Loop
from outlast.runtime.tiers.vault import Vault


def make_logs(options: RunOptions, folder: Path, loop: Loop, sink: Sink) -> WorkerLogs:
    """Open the logs of a node's workers, in `folder` unless --log-dir names another."""
    given = Path(options.log_dir) if options.log_dir else folder
    made = make_log_folder(given, options.meeting.run_id or "none")
    return WorkerLogs(loop, made, options.console, sink)


def make_evidence(
    loop: Loop, folder: Path, vault: Vault, beacons: Beacons, logs: WorkerLogs, *,
    on_verdict: Callable[[int, Mapping[str, object]], None],
) -> Evidence:  # fmt: skip
    """Return the part that secures evidence of a node's processes in `folder`."""
    return Evidence(
        loop=loop,
        folder=folder,
        vault=vault.folder,
        standing=beacons.standing,
        logs=logs.paths,
        command=(sys.executable, "-m", "outlast.app.cli", "diagnose", "--json"),
        on_verdict=on_verdict,
    )


def of_node(options: RunOptions, zygote: ZygoteClient) -> NodeOptions:
    """Return how a node starts its processes, and when it takes them for hung."""
    return NodeOptions(
        zygote=zygote if options.zygote else None,
        preload=options.preload,
        first_path=options.program.first_path,
        hang_after_s=options.hang_after_s,
        greets=options.program.entry != "program",
    )
