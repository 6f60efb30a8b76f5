"""A host with its loop and a record of everything it reported, for tests with real processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from outlast.model.messages import Message
from outlast.runtime.agent.host import ProcessHost
from outlast.runtime.agent.logs import ConsolePolicy, WorkerLogs, make_log_folder
from outlast.runtime.agent.processes import Exited
from outlast.runtime.child import ChildSpec
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop

BOUND_S = 60.0  # of every wait; reached only if something is broken


@dataclass
class Record:
    """The events of a host, as they arrived."""

    started: dict[int, int] = field(default_factory=dict)
    started_s: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    exits: dict[int, Exited] = field(default_factory=dict)
    messages: list[tuple[int, Message]] = field(default_factory=list)
    closed: dict[int, str] = field(default_factory=dict)
    zygotes: list[int] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    preload_errors: list[str] = field(default_factory=list)

    def on_started(self, worker: int, pid: int, at_s: float) -> None:
        self.started[worker], self.started_s[worker] = pid, at_s

    def on_failed(self, worker: int, error: str) -> None:
        self.failed[worker] = error

    def on_exit(self, exited: Exited) -> None:
        self.exits[exited.worker] = exited

    def on_message(self, worker: int, message: Message) -> None:
        self.messages.append((worker, message))

    def on_channel_closed(self, worker: int, reason: str) -> None:
        self.closed[worker] = reason

    def on_zygote_ready(self, pid: int, imports_s: float) -> None:
        self.zygotes.append(pid)

    def on_zygote_lost(self, reason: str) -> None:
        self.lost.append(reason)

    def on_fallback(self, reason: str) -> None:
        self.fallbacks.append(reason)

    def on_preload_failed(self, error: str) -> None:
        self.preload_errors.append(error)


class House:
    """One host, whose workers are numbered in the order in which they are requested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loop = Loop()
        self.record = Record()
        self.console: list[tuple[str, str]] = []
        self.log_folder = make_log_folder(folder / "logs", "run")
        self.logs = WorkerLogs(
            self.loop,
            self.log_folder,
            ConsolePolicy(),
            lambda stream, text: self.console.append((stream, text)),
        )
        self.host = ProcessHost(self.loop, self.record, self.logs)
        self.host.open()
        self.workers = 0
        self.others = children()  # children of this process that other tests have started

    def until(self, done: Callable[[], bool], what: str = "") -> None:
        assert self.loop.run_until(done, within_s=BOUND_S), (
            f"not within {BOUND_S} s: {what} {self.record} {self.console}"
        )

    def wait_exit(self, worker: int) -> Exited:
        self.until(
            lambda: worker in self.record.exits or worker in self.record.failed,
            f"the end of {worker}",
        )
        assert worker not in self.record.failed, self.record.failed
        return self.record.exits[worker]

    def script(self, text: str, *args: str, **fields: object) -> int:
        """Start a script as a worker that needs no session, and return its number."""
        path = self.folder / f"script_{self.workers}.py"
        path.write_text(text)
        return self.start(replace(self.spec(), script=str(path), args=args, **fields))  # type: ignore[arg-type]

    def spec(self) -> ChildSpec:
        env = {
            **os.environ,
            "RANK": "0",
            "LOCAL_RANK": "0",
            "OMP_NUM_THREADS": "1",
            "OUTLAST_TEST_FAKE": "1",
        }
        return ChildSpec(
            worker=self.workers,
            kind="rank",
            rank=0,
            world_size=1,
            local_world_size=1,
            generation=1,
            env=env,
            script="",
            entry="script",
            args=(),
            cwd=os.getcwd(),
            run_folder=str(self.folder),
            vault_folder=str(self.folder / "vault"),
            run_id="run",
            attempt=0,
            launcher_pid=os.getpid(),
        )

    def start(self, spec: ChildSpec) -> int:
        self.workers = spec.worker + 1
        self.host.start(spec)
        return spec.worker

    def text(self, stream: str = "stdout") -> str:
        return "".join(text for name, text in self.console if name == stream)

    def wait_text(self, needle: str, stream: str = "stdout") -> str:
        self.until(lambda: needle in self.text(stream), f"{needle!r} on {stream}")
        return self.text(stream)

    def close(self) -> None:
        self.host.close()
        self.loop.close()


CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children")  # not every kernel has it


def children() -> set[int]:
    """Return the children of this process's main thread, or none if the kernel does not
    list them.
    """
    return set(map(int, CHILDREN.read_text().split())) if CHILDREN.exists() else set()


def is_gone(pid: int) -> bool:
    """Return True if the process is neither running nor a zombie."""
    return not Path(f"/proc/{pid}").exists()


def now() -> float:
    return now_s()


def python() -> str:
    return sys.executable
