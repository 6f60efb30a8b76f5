"""A run of a drill on several hosts of this machine, with a launcher on each (`Launched`).

    run = HostLaunchers(path, words, environment=env, log=log, layout=HostLayout(5, ranks=1))
    while run.poll() is None: ...

All hosts but one hold ranks, and the last one stands ready. They share this machine's files, and
each has a network, a process tree and a /dev/shm of its own (`drill_hosts.py`).

A launcher that was struck is started again, as a scheduler or a machine that boots would do. It
then dials the node that leads now, which `leader.json` names. While no other node leads, it waits.

The run is over once all launchers have ended by themselves, or END_S after the leading launcher has
ended.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from outlast.errors import OutlastError
from outlast.runtime import clock, stop_signals
from outlast.runtime.drill.drill_hosts import Hosts, program_of
from outlast.runtime.drill.drill_launch import COMMAND
from outlast.runtime.drill.drill_looks import LookedAtNode, LookedAtRun
from outlast.runtime.drill.drill_strikes import HostFaults
from outlast.runtime.drill.striking import RunProcess, Target, Usage
from outlast.runtime.folders.leader_file import Leader, find_leader
from outlast.runtime.folders.run_folder import read_card
from outlast.runtime.ledger.node_events import NodesIn, read_nodes
from outlast.runtime.ledger.pointer import LEDGER, find_ledger
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.tiers.vault_owner import OWNER, vault_folder
from outlast.runtime.worker.instructions.run_ends_folder import SAME_DRAWS

PORT = 29_400
LEASE_S = (
    "2"  # unless --lease is given: the hosts share this machine's cores, and hold each other up
)
END_S = 30.0  # launchers that go on for this long after the leading one are stopped
AGAIN_S = 3.0  # when a launcher that has ended by itself while the run goes on is started again
JOIN_S = 10.0  # a launcher that has not joined by then dials again, if another node leads meanwhile
STOP_S = 20.0  # a run that is stopped may take this long; then it is killed
TICK_S = 0.05
_OF_NETWORK = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # a host has other interfaces


@dataclass(frozen=True, slots=True)
class HostLayout:
    """This says how many hosts there are, one of them in reserve, and how many ranks each takes."""

    hosts: int
    ranks: int

    @property
    def world_size(self) -> int:
        return (self.hosts - 1) * self.ranks


@dataclass(slots=True)
class HostNode:
    """One host of the run, and the launcher that it has now.

    process    outside of the host, the launcher's parent; None: the host has no launcher
    launcher   the pid of the launcher; 0: it is just being started
    endpoint   the address that it was given to dial
    back_s     when the launcher is to be started again; None: it is there, or ends by itself
    leaving_s  if it was told to leave the run: seconds from its end until it is started again
    ended_s    when it has ended by itself
    code       its exit code then
    """

    number: int
    process: Popen[bytes] | None = None
    launcher: int = 0
    endpoint: str = ""
    started_wall_s: float = 0.0
    back_s: float | None = None
    leaving_s: float | None = None
    ended_s: float | None = None
    code: int = 0
    vault: Vault | None = None

    def gone(self, back_s: float | None) -> None:
        """Forget the launcher, which has ended. `back_s`: when it will be started again."""
        if self.vault is not None:
            self.vault.close()
        self.process, self.launcher, self.vault = None, 0, None
        self.back_s, self.leaving_s = back_s, None


@dataclass(frozen=True, slots=True)
class _Given:
    """The settings that every launcher is started with."""

    run: Path
    words: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    layout: HostLayout
    token: str = field(default_factory=lambda: secrets.token_hex(32))

    def command(self, host: int, endpoint: str) -> list[str]:
        nodes = ["--nnodes", str(self.layout.hosts - 1), "--spare-nodes", "1", "--lease", LEASE_S]
        meets = ["--rdzv-endpoint", endpoint, "--run-dir", str(self.run)]
        meets += ["--node-name", Hosts.name(host)]
        return [*COMMAND, *nodes, *meets, *self.words]

    def log_of(self, host: int) -> Path:
        """Return the file with a host's output. The first host leads, and has the log."""
        return self.log if host == 0 else self.log.with_suffix(f".host{host}.log")


class HostLaunchers:
    """The launchers of a run on several hosts.

    `nodes` and `machines` are for `HostStrikes`, which injects faults into them. Call `poll` often.
    """

    def __init__(
        self,
        run: Path,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        layout: HostLayout,
    ) -> None:
        # The hosts share the cores of this machine, and a lost host's random state is lost.
        own = {"OMP_NUM_THREADS": "1", SAME_DRAWS: "1"}
        own |= {key: value for key, value in environment.items() if key not in _OF_NETWORK}
        self._given = _Given(run.resolve(), words, own, log, layout)
        self.target = Target()
        self.machines = Hosts(layout.hosts)
        self.nodes = [HostNode(number) for number in range(layout.hosts)]
        self.hosts: HostFaults | None = None  # set by the code that injects faults into the hosts
        # the node that leads, and the folder of its ledger
        self._led: tuple[Path, Leader] | None = None
        self._code: int | None = None
        self._closing = contextlib.ExitStack()
        self._closing.enter_context(self.machines)
        try:
            for node in self.nodes:
                self._start(node, f"{Hosts.address(0)}:{PORT}")
        except BaseException:
            self._closing.close()
            raise

    @property
    def layout(self) -> HostLayout:
        return self._given.layout

    def _start(self, node: HostNode, endpoint: str) -> None:
        given, node.started_wall_s = self._given, clock.wall_s()
        with given.log_of(node.number).open("ab") as out:
            node.process = self.machines.start(
                node.number,
                given.command(node.number, endpoint),
                out=out,
                env={**given.environment, "OUTLAST_TOKEN": given.token},
            )
        node.endpoint, node.back_s = endpoint, None

    # --- what becomes of them ---------------------------------------------------------------------

    def poll(self) -> int | None:
        """Watch the launchers. Return the exit code of the run once it is over."""
        if self._code is not None:
            return self._code
        now_s, self._led = clock.now_s(), find_leader(self._given.run)
        for node in self.nodes:
            self._look_at(node, now_s)
        if self._is_over(now_s):
            self._code = self._end()
            return self._code
        leads = self.leading()
        for node in self.nodes:
            if leads is not None and self._led is not None:
                self._bring_back(node, leads, self._led[1], now_s)
        return None

    def _look_at(self, node: HostNode, now_s: float) -> None:
        """Find the launcher's pid, and find out whether it has ended."""
        process = node.process
        if process is None or node.ended_s is not None:
            return
        if node.launcher == 0 and (found := program_of(process)):
            node.launcher = found
            self.target.add(found)
        code = process.poll()
        if code is None:
            return
        self.target.drop(node.launcher)
        if node.leaving_s is not None:
            node.gone(now_s + node.leaving_s)
        else:
            node.ended_s, node.code = now_s, code

    def _is_over(self, now_s: float) -> bool:
        """Return whether the run is over.

        It is over if no launcher runs, or if the leading launcher ended a while ago. The host that
        was struck last may still be away then.
        """
        ended = [node for node in self.nodes if node.ended_s is not None]
        if not ended:
            return False
        if all(node.process is None or node.ended_s is not None for node in self.nodes):
            return True
        leads = self._leading()
        if leads is None or leads.ended_s is None:
            return False
        goes_on = [one for one in self.nodes if one.process is not None and one.ended_s is None]
        # a launcher that has just been started again dials, and gets no answer
        in_vain = all(self.vault(node) is None for node in goes_on)
        return now_s > leads.ended_s + (AGAIN_S if in_vain else END_S)

    def _end(self) -> int:
        """Stop the remaining launchers, and return the exit code of the run."""
        codes = [node.code for node in self.nodes if node.ended_s is not None]
        for node in self.nodes:
            if node.process is not None and node.ended_s is None:
                self.machines.kill(node.number)
                node.gone(None)
        leads = self._leading()
        if leads is not None and leads.ended_s is not None:
            return leads.code
        return next((code for code in codes if code), 0)

    def _bring_back(self, node: HostNode, leads: HostNode, leader: Leader, now_s: float) -> None:
        """Start a launcher again if it is time to do so. `leads`: the host that leads the run."""
        if node.ended_s is not None and node.code and now_s >= node.ended_s + AGAIN_S:
            # It ended while the run goes on, as after a refusal.
            node.ended_s = None
            node.gone(now_s)
        elif node.process is not None and not self._joined(node, leader):
            self.target.send_launcher(node.launcher, signal.SIGKILL)
            self.target.drop(node.launcher)
            node.gone(now_s)
        if node.back_s is not None and now_s >= node.back_s and leads is not node:
            self._start(node, leader.endpoint)

    def _joined(self, node: HostNode, leader: Leader) -> bool:
        """Return whether a launcher is in the run, or may still join it."""
        late = clock.wall_s() > node.started_wall_s + JOIN_S and node.endpoint != leader.endpoint
        return not late or node.launcher == 0 or self.vault(node) is not None

    def _leading(self) -> HostNode | None:
        """Return the host that began to lead last, which may be away."""
        named = "" if self._led is None else self._led[1].node
        return next((one for one in self.nodes if Hosts.name(one.number) == named), None)

    def leading(self) -> HostNode | None:
        """Return the host that leads the run. Return None if it is not known, or is away."""
        leads = self._leading()
        return leads if leads is not None and leads.launcher and leads.ended_s is None else None

    # --- what a drill sees ------------------------------------------------------------------------

    def vault(self, node: HostNode) -> Vault | None:
        """Return the vault of a host, or None if its launcher is not in the run."""
        if node.vault is None and node.process is not None:
            with contextlib.suppress(OutlastError, OSError):
                run = str(read_card(self._given.run)["run"])
                name = vault_folder(f"{run}-{Hosts.name(node.number)}").name
                folder = self.machines.shared_memory(node.number) / name
                # what an earlier launcher has left is older, and is removed by the new one
                if (folder / OWNER).stat().st_mtime >= node.started_wall_s:
                    node.vault = Vault.open(folder)
        return node.vault

    def step(self) -> int:
        vaults = filter(None, map(self.vault, self.nodes))
        return max((vault.newest_committed() for vault in vaults), default=0)

    def memory(self) -> LookedAtRun:
        """Return what the hosts have that are in the run. One that is cut off is not."""
        away, homes = () if self.hosts is None else self.hosts.away(), self.homes()
        nodes = [
            LookedAtNode(self.vault(node), homes[node.number])
            for node in self.nodes
            if node.number not in away
        ]
        folder = self._given.run if self._led is None else self._led[0]
        return LookedAtRun(nodes, folder / LEDGER)

    def usages(self) -> Mapping[int, Usage]:
        return self.target.usages()

    def homes(self) -> dict[int, list[RunProcess]]:
        """Return the living processes of each launcher, by the number of its host."""
        numbers = {node.launcher: node.number for node in self.nodes if node.launcher}
        out: dict[int, list[RunProcess]] = {node.number: [] for node in self.nodes}
        for one in self.target.children():
            if one.parent in numbers:
                out[numbers[one.parent]].append(one)
        return out

    def are_all_in(self) -> bool:
        """Return whether every launcher has joined since it was started, and there are voters.

        Only then can the leading host be lost, too.
        """
        nodes = NodesIn() if self._led is None else read_nodes(find_ledger(self._led[0]).path)
        since = nodes.since_wall_s
        return bool(nodes.voters) and all(
            since.get(Hosts.name(node.number), 0.0) >= node.started_wall_s for node in self.nodes
        )

    def segments_left(self) -> int:
        """Count the files that were left by launchers that ended by themselves."""
        return sum(1 for node in self.nodes for _ in self._left_by(node))

    def _left_by(self, node: HostNode) -> Iterator[Path]:
        if node.ended_s is not None and self.machines.is_up(node.number):
            for folder in self.machines.shared_memory(node.number).glob("outlast-*"):
                yield from folder.rglob("*")

    # --- the end ----------------------------------------------------------------------------------

    def stop(self) -> int:
        """End the run, if it is not over, and remove the hosts. Return the exit code."""
        with stop_signals.masked(signal.SIG_BLOCK), self._closing:
            if self._code is None:
                self._code = self._ask_to_stop()
        return self._code

    def _ask_to_stop(self) -> int:
        """Ask the leading launcher to stop the run, and wait for all launchers for a while."""
        if self.hosts is not None:
            self.hosts.close()
        leads = self.leading()
        if leads is not None:
            self.target.send_launcher(leads.launcher, signal.SIGINT)
        until_s = clock.now_s() + STOP_S
        while leads is not None and clock.now_s() < until_s:
            running = (node.process for node in self.nodes if node.process is not None)
            if all(process.poll() is not None for process in running):
                break
            time.sleep(TICK_S)
        return 128 + signal.SIGINT
