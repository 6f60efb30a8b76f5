"""The specification of a process: everything that it needs to know when it is started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from outlast.engine.protocol.outputs import Spawn
from outlast.model import limits
from outlast.model.messages import Regroup, StoreUp
from outlast.runtime.agent.environment import RunIdentity, worker_environment
from outlast.runtime.agent.local_slots import LocalSlots
from outlast.runtime.agent.logs import WorkerLogs, read_error_file
from outlast.runtime.child import ChildSpec


@dataclass(frozen=True)
class UserScript:
    """The user's script. `entry`: "script", "module" or "program"; see `ChildSpec`."""

    script: str
    entry: str
    args: tuple[str, ...]


@dataclass(frozen=True)
class RunFolders:
    """The folders of a run."""

    run_id: str
    run_folder: str
    vault_folder: str


@dataclass(frozen=True)
class WorldSize:
    """The number of ranks of the run, and of each node."""

    ranks: int
    per_node: int

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.per_node)


class Specs:
    """Describe the processes of one node. `options` go to every worker's session.

    master      the address at which this node hosts the store; port 0: any that is free
    interface   the network interface by which ranks reach each other
    """

    def __init__(
        self,
        *,
        place: RunFolders,
        script: UserScript,
        size: WorldSize,
        role: str,
        master: tuple[str, int],
        max_restarts: int,
        logs: WorkerLogs,
        options: Mapping[str, Any],
        interface: str = "lo",
    ) -> None:
        self._place = place
        self._script = script
        self._size = size
        self._interface = interface
        self.slots = LocalSlots(size.per_node)
        self._role = role
        self._master = master
        self._max_restarts = max_restarts
        self._logs = logs
        self._options = dict(options)
        # It is read once, because the folder may be gone when a replacement is started.
        self._cwd = os.getcwd()
        self._store: tuple[str, int] | None = None
        self._waiting: list[Callable[[], None]] = []
        self._error_files: dict[int, str] = {}
        self._spares: set[int] = set()

    @property
    def run_id(self) -> str:
        return self._place.run_id

    def when_store_is_known(self, then: Callable[[], None]) -> None:
        """Call `then` once there is a store: a worker's environment has to name it."""
        if self._store is not None:
            then()
        else:
            self._waiting.append(then)

    def store_is_gone(self) -> None:
        self._store = None

    def store_is_up(self, message: StoreUp) -> None:
        self._store = (message.host, message.port)
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def worker(self, order: Spawn) -> ChildSpec:
        assert self._store is not None
        rank = order.rank if order.rank >= 0 else None
        attempt = max(order.generation - 1, 0)
        self._error_files[order.worker] = self._logs.error_file(
            attempt, order.rank if rank is not None else f"spare_{order.worker}"
        )
        if rank is None:
            self._spares.add(order.worker)
        size = self._size
        identity = RunIdentity(
            run_id=self._place.run_id,
            role=self._role,
            world_size=size.ranks,
            local_world_size=size.per_node,
            group_rank=max(order.rank, 0) // size.per_node,
            group_world_size=size.nodes,
            master_addr=self._store[0],
            master_port=self._store[1],
            max_restarts=self._max_restarts,
        )
        env = worker_environment(
            os.environ,
            identity,
            rank=rank,
            local_rank=None if rank is None else self.slots.take(order.worker, rank),
            attempt=attempt,
            error_file=self._error_files[order.worker],
        )
        if not {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"} & set(env):
            env["TORCH_FR_BUFFER_SIZE"] = str(limits.FLIGHT_RECORDER_ENTRIES)
        # Without this, gloo looks up this machine's name for each group, and listens on the
        # interface that it finds. If all ranks are on one node, no other host has to reach it.
        env.setdefault("GLOO_SOCKET_IFNAME", self._interface)
        if size.nodes > 1:
            env.setdefault("NCCL_SOCKET_IFNAME", self._interface)
        return self._spec(
            order.worker, order.kind, order.rank, order.generation, attempt, env, self._options
        )

    @property
    def saves_to_disk(self) -> bool:
        """Return True if the run writes checkpoints from time to time."""
        options = self._options
        return bool(options.get("checkpoint_every") or any(options.get("keep_disk", ())))

    @property
    def port_is_fixed(self) -> bool:
        """Return True if the user has named the port of the store."""
        return self._master[1] != 0

    def store(self, number: int, *, standby: bool = False) -> ChildSpec:
        """Describe a host of the store. A host that stands ready listens at any free port."""
        host, port = self._master
        options = {
            "host": host,
            "port": 0 if standby else port,
            "ports": self._options.get("ports"),
        }
        return self._spec(
            number, "store", -1, 0, 0, {**os.environ, "RES_OPTIONS": "attempts:0"}, options
        )

    def takes_rank(self, worker: int, plan: Regroup) -> Regroup:
        """Return the plan with the worker's place on this node.

        A spare that is given a rank gets a place now. From here on its output goes to the console
        and to the files of that rank.
        """
        place = self.slots.take(worker, plan.rank)
        if worker in self._spares:
            self._spares.discard(worker)
            self._logs.move(worker, attempt=plan.generation - 1, place=place, rank=plan.rank)
        return replace(plan, local_rank=place)

    def last_words(self, worker: int, *, killed: bool = False) -> str:
        """Return the last message of a worker that has ended.

        It is the message in its error file, or the last line of its stderr. A process that was
        `killed` by SIGKILL writes nothing about that, so its last line is not an error: it may be a
        progress bar.
        """
        path = self._error_files.pop(worker, "")
        record = read_error_file(path) if path else None
        if record is not None:
            return record.message
        if killed:
            return ""
        tail = [line for line in self._logs.stderr_tail(worker) if line.strip()]
        return tail[-1] if tail else ""

    def _spec(
        self,
        worker: int,
        kind: str,
        rank: int,
        generation: int,
        attempt: int,
        env: dict[str, str],
        options: dict[str, Any],
    ) -> ChildSpec:
        script = self._script
        return ChildSpec(
            worker=worker,
            kind=kind,
            rank=rank,
            world_size=self._size.ranks,
            local_world_size=self._size.per_node,
            generation=generation,
            env=env,
            script=script.script,
            entry=script.entry,
            args=script.args,
            cwd=self._cwd,
            run_folder=self._place.run_folder,
            vault_folder=self._place.vault_folder,
            run_id=self._place.run_id,
            attempt=attempt,
            launcher_pid=os.getpid(),
            options=options,
        )
