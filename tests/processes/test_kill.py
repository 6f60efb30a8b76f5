"""A kill that was ordered: evidence first, within its budget, and SIGKILL right after it. Process
and launcher are real.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.protocol.outputs import Kill, Spawn
from outlast.model.beacon import Beacon, pack_into
from outlast.model.messages import StoreUp
from outlast.model.records import Interruption
from outlast.model.terms import Mechanism
from outlast.runtime import clock
from outlast.runtime.agent.agent_driver import AgentDriver, NodeOptions, NodeParts
from outlast.runtime.agent.beacons import BeaconNews, Beacons
from outlast.runtime.agent.evidence import EvidenceCollector
from outlast.runtime.agent.logs import ConsolePolicy, WorkerLogs, make_log_folder
from outlast.runtime.agent.processes import Exited
from outlast.runtime.agent.specs import RunFolders, Specs, UserScript, WorldSize
from outlast.runtime.coordinator.bookkeeping import Bookkeeping
from outlast.runtime.coordinator.coordinator_driver import CoordinatorParts
from outlast.runtime.coordinator.launcher import Launcher
from outlast.runtime.ledger.store import Ledger
from outlast.runtime.linux import stat_fields
from outlast.runtime.loop import Loop
from outlast.runtime.tiers.vault import Vault
from tests.ledger import a_run
from tests.processes.house import BOUND_S

WORKER = 7


class Observed(AgentDriver):
    """A driver that keeps the ends of workers, and lets nothing follow from them."""

    ends: list[Exited]

    def on_started(self, worker: int, pid: int, at_s: float) -> None:
        self._parts.beacons.forked(worker, pid)

    def on_exit(self, exited: Exited) -> None:
        self.ends.append(exited)

    def on_channel_closed(self, worker: int, reason: str) -> None:
        """Do nothing: the program has no channel."""


class Watched(Launcher):
    """A launcher whose node is observed."""

    _node: Observed


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Watched]:
    (tmp_path / "evidence").mkdir()
    with (
        closing(Ledger.create(tmp_path / "ledger.db", a_run.META, pid=1)) as ledger,
        closing(Loop()) as loop,
    ):
        vault = Vault.create(tmp_path / "vault", a_run.META.run)
        logs = WorkerLogs(
            loop, make_log_folder(tmp_path / "logs", "run"), ConsolePolicy(), lambda *_: None
        )
        specs = Specs(
            place=RunFolders(a_run.META.run, str(tmp_path), str(vault.folder)),
            script=UserScript("sleep", "program", ("600",)),
            size=WorldSize(2, 2),
            role="default",
            master=("127.0.0.1", 0),
            max_restarts=0,
            logs=logs,
            options={},
        )
        books = Bookkeeping(
            ledger=ledger,
            records=ledger.read(),
            start_step=0,
            living=list,
            gauges=lambda: None,
            show=lambda _: None,
        )
        news = BeaconNews(over=books.life_over, step=books.step_seen)
        beacons = Beacons(vault, node="here", news=news)
        evidence = EvidenceCollector(
            loop=loop,
            folder=tmp_path / "evidence",
            vault=vault.folder,
            live_beacons=beacons.live_beacons,
            logs=logs.paths,
            command=("true",),
            on_verdict=lambda number, verdict: None,
        )
        node = NodeOptions(zygote=None, preload=(), first_path="", hang_after_s=None, greets=True)
        parts = NodeParts(
            "here", loop, logs, vault, beacons, specs, evidence, node, tell=lambda _: None
        )
        coordinator_parts = CoordinatorParts(
            loop, books, specs, vault, evidence, tmp_path, lambda _: None
        )
        one = Watched(parts, coordinator_parts, CoordinatorOptions(2, Restart()))
        one._node = Observed(parts, one._agent, one)
        one._node.ends = []
        one._node.host.open()
        yield one
        one._node.close()
        vault.remove()


def begin(launcher: Watched) -> int:
    """Start a process that sleeps. Its beacon has said once that it is in step 6 as rank 1, and the
    run takes it for hung.
    """
    order, parts, host = Spawn(WORKER, 1, "rank", 1), launcher._parts, launcher._node.host
    parts.specs.store_is_up(StoreUp("127.0.0.1", 1))
    parts.beacons.started(order)
    host.start(parts.specs.worker(order))
    assert parts.loop.run_until(lambda: WORKER in host.pids(), within_s=BOUND_S)
    pid = host.pids()[WORKER]
    pack_into(
        parts.vault.beacon(WORKER, create=True),
        Beacon(WORKER, pid, rank=1, step=6, at_ns=int(clock.now_s() * 1e9)),
    )
    parts.beacons.look(WORKER, pid, now_s=clock.now_s())
    launcher._coordinator_parts.books.record(
        Interruption(
            1,
            Mechanism.HANG,
            clock.now_s(),
            ranks=(1,),
            pids=(pid,),
            nodes=("here",),
            reason="it does not answer",
        )
    )
    return pid


def test_a_kill_comes_after_its_evidence_even_if_a_fifo_replaces_the_file(
    launcher: Watched, tmp_path: Path
) -> None:
    """The stacks' file is a FIFO that no process writes to: a process that opens it as a file waits
    for ever. The kernel's record is of a process that was alive.
    """
    os.mkfifo(tmp_path / "evidence" / f"stacks-{WORKER}.txt")
    pid = begin(launcher)
    launcher.queue.do([Kill(WORKER, "it hangs")])
    assert launcher._parts.loop.run_until(lambda: bool(launcher._node.ends), within_s=BOUND_S)
    assert (launcher._node.ends[0].pid, launcher._node.ends[0].signal) == (pid, signal.SIGKILL)
    launcher._parts.evidence.close(launcher._coordinator_parts.books.unresumed()[0])
    told = json.loads((tmp_path / "evidence" / "interruption-1" / "standing.json").read_text())
    (process,) = told["processes"]
    assert process["killed"], process
    assert stat_fields(process["kernel"]["stat"].encode())[0] in (b"S", b"R", b"D"), process
