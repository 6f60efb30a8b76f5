"""What connections to thousands of agents cost one coordinator: its share of a core for heartbeats,
and how long a regroup takes to reach the last rank.

    python benchmarks/channel.py                                              12,500 agents of 8
                                                                              ranks, a beat each 5 s
    python benchmarks/channel.py --peers 500 --ranks-per-peer 2 --seconds 10
    python benchmarks/channel.py --profile 25                                 and where the
                                                                              coordinator's time
                                                                              goes during the last
                                                                              regroup

The real agent listener, sessions and coordinator in this process; all agents in another one
(`_agents.py`), over real sockets on loopback. A regroup is timed from the moment at which one agent
says that a rank has died, until the last of all ranks has its plan. Not measured: the ledger
(records are dropped), a network, and what workers do; agents answer at once. One process stands for
all of them: the time that it takes to answer is part of a regroup, and is printed.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import End, Output, SetTimer, Tell
from outlast.model import limits
from outlast.runtime.clock import now_s
from outlast.runtime.coordinator.agent_listener import AgentListener
from outlast.runtime.loop import Loop, LoopTimer

SHARE_TARGET = 0.5  # of one core
REGROUP_TARGET_S = 3.0
HEARTBEATS = "heartbeats only"
LAST_LEFT = "SUM: the last plan has left the coordinator, s"
LAST_CAME = "the last rank has its plan, s"


@dataclass(slots=True)
class RegroupTimes:
    """The moments of one regroup, in seconds since an agent said that its rank had died.

    heard      the coordinator has heard of the death
    leave      all survivors were told to leave
    still      all have said what they hold
    plans      the plans of the survivors are made
    told       the last plan is with the kernel
    received   the last rank has its plan
    back       all have said that they joined
    """

    heard: float = 0.0
    leave: float = 0.0
    still: float = 0.0
    plans: float = 0.0
    told: float = 0.0
    received: float = 0.0
    back: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    own_cpu: float = 0.0
    agents_cpu: float = 0.0


@dataclass(slots=True)
class Window:
    """Hold what was measured while only heartbeats came. Sizes are bytes for each beat."""

    share: float
    beats_per_s: float
    sent_per_beat: float
    received_per_beat: float
    agents_share: float


@dataclass(slots=True)
class Failed(Exception):
    """Raised with the reason if the run does not do what is to be measured."""

    why: str


@dataclass(slots=True)
class Seen:
    """The times at which the coordinator last asked for each timer, and last cancelled it."""

    asked_s: dict[str, float] = field(default_factory=dict)
    cancelled_s: dict[str, float] = field(default_factory=dict)


class CoordinatorHost:
    """Drive listener, sessions and coordinator as the launcher of a run does, without a ledger."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.loop = Loop()
        world = args.peers * args.ranks_per_peer
        self.coordinator = Coordinator(
            options=CoordinatorOptions(world, Restart(), nodes=args.peers)
        )
        self.sessions = CoordinatorSessions(
            self.coordinator, epoch=1, lease_s=args.beat_s * limits.LEASE_BEATS
        )
        self.seen = Seen()
        self._timers: dict[str, LoopTimer] = {}
        self.agent_listener = AgentListener(
            self.loop, self.sessions, peers=args.peers, owner=self._own
        )
        self.host, self.port = self.agent_listener.open()
        self.agent_listener.carry_out(self.sessions.start(now_s=now_s()))

    def _own(self, output: Output) -> None:
        if isinstance(output, SetTimer):
            self._set_timer(output)
        elif isinstance(output, End):
            raise Failed(f"the coordinator ended the run: {output.reason}")
        elif isinstance(output, Tell):
            print(f"  coordinator: {output.text[:200]}", flush=True)

    def _set_timer(self, output: SetTimer) -> None:
        if (old := self._timers.pop(output.name, None)) is not None:
            old.cancel()
        if output.at_s is None:
            self.seen.cancelled_s[output.name] = now_s()
            return
        self.seen.asked_s[output.name] = now_s()
        name = output.name
        self._timers[name] = self.loop.call_at(
            output.at_s,
            lambda: self.agent_listener.carry_out(self.sessions.on_timer(now_s=now_s(), name=name)),
        )

    def until(self, done: Callable[[], bool], within_s: float, what: str) -> None:
        if not self.loop.run_until(done, within_s=within_s):
            raise Failed(
                f"not within {within_s:g} s: {what} (stage {self.coordinator.stage.value},"
                f" {self.agent_listener.nodes} agents connected)"
            )


class Agents:
    """The process of all agents. `news`: what it has said, by event, the newest last."""

    def __init__(self, leader: CoordinatorHost, args: argparse.Namespace) -> None:
        command = [
            sys.executable,
            str(Path(__file__).with_name("_agents.py")),
            "--host",
            leader.host,
            "--port",
            str(leader.port),
            "--peers",
            str(args.peers),
        ]
        command += [
            "--ranks-per-peer",
            str(args.ranks_per_peer),
            "--beat-s",
            str(args.beat_s),
            "--step-s",
            str(args.step_s),
        ]
        self._leader = leader
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        self._fd = self._child.stdout.fileno()
        os.set_blocking(self._fd, False)
        self._rest = b""
        self.news: dict[str, list[dict[str, Any]]] = {}
        leader.loop.add_reader(self._fd, self._read)

    def _read(self) -> None:
        data = os.read(self._fd, 1 << 16)
        if not data:
            raise Failed("the process of the agents ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            one = json.loads(line)
            self.news.setdefault(one["event"], []).append(one)
            if one["event"] == "unexpected":
                raise Failed(f"no agent expects this order: {one['order']}")

    def tell(self, word: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(word.encode() + b"\n")
        self._child.stdin.flush()

    def ask(self, word: str, event: str, within_s: float) -> dict[str, Any]:
        before = len(self.news.get(event, ()))
        self.tell(word)
        self._leader.until(lambda: len(self.news.get(event, ())) > before, within_s, event)
        return self.news[event][-1]

    def end(self) -> None:
        """Kill the child by its process id, whatever it is doing, and reap it."""
        self._child.kill()
        self._child.wait(30)


def cpu_s() -> float:
    spent = os.times()
    return spent.user + spent.system


def window(leader: CoordinatorHost, agents: Agents, seconds: float) -> Window:
    """Measure `seconds` in which nothing is asked of the agents."""
    before, begin_s, spent = agents.ask("count", "count", 60), now_s(), cpu_s()
    leader.loop.run_until(lambda: False, within_s=seconds)
    wall_s, spent = now_s() - begin_s, cpu_s() - spent
    after = agents.ask("count", "count", 60)
    beats, agents_s = after["grants"] - before["grants"], after["at_s"] - before["at_s"]
    return Window(
        spent / wall_s,
        beats / agents_s,
        (after["received"] - before["received"]) / beats,
        (after["sent"] - before["sent"]) / beats,
        (after["cpu_s"] - before["cpu_s"]) / agents_s,
    )


def strike(leader: CoordinatorHost, agents: Agents, patience_s: float) -> RegroupTimes:
    """Let one rank die. All times are of the clock that both processes share."""
    leader.seen, planned, generation = (
        Seen(),
        len(agents.news["planned"]),
        leader.coordinator.generation,
    )
    spent = cpu_s()
    struck = agents.ask("strike", "struck", 60)

    def told() -> bool:
        member = leader.coordinator.roster.in_rank(struck["rank"])
        return (
            member is not None
            and member.path.plan_generation > generation
            and leader.agent_listener.unsent_bytes == 0
        )

    leader.until(told, patience_s, "the plan of the dead rank's successor")
    told_s = now_s()
    leader.until(
        lambda: len(agents.news["planned"]) > planned, patience_s, "every rank has its plan"
    )
    own_cpu = cpu_s() - spent
    leader.until(lambda: leader.coordinator.stage is Stage.TRAINING, patience_s, "training again")
    news, at_s, seen = agents.news["planned"][-1], struck["at_s"], leader.seen
    return RegroupTimes(
        heard=seen.asked_s["gather"] - at_s,
        leave=seen.asked_s["leave"] - at_s,
        still=seen.cancelled_s["leave"] - at_s,
        plans=seen.asked_s["move"] - at_s,
        told=told_s - at_s,
        received=news["plans"][1] - at_s,
        back=now_s() - at_s,
        sent_bytes=news["received"],
        received_bytes=news["sent"],
        own_cpu=own_cpu,
        agents_cpu=news["cpu_s"],
    )


def median_and_spread(values: list[float], digits: int = 2) -> str:
    return f"{statistics.median(values):.{digits}f}" + (
        f" [{min(values):.{digits}f}, {max(values):.{digits}f}]" if len(values) > 1 else ""
    )


def verdict(reached: bool) -> str:
    return "reached" if reached else "MISSED"


def row(name: str, figure: str, goal: str = "") -> None:
    print(f"  {name:<50}{figure:>24}{'   ' + goal if goal else ''}")


def show(
    args: argparse.Namespace,
    start: dict[str, float],
    windows: dict[str, Window],
    regroups: list[RegroupTimes],
) -> None:
    world = args.peers * args.ranks_per_peer
    python = f"Python {sys.version.split()[0]}"
    print(
        f"\n{args.peers:,} agents of {args.ranks_per_peer} ranks ({world:,} in all), a beat each"
        f" {args.beat_s:g} s; {os.cpu_count()} cores, {python}"
    )
    row("all agents are in, s", f"{start['enrolled']:.2f}")
    row("all ranks train, s after that", f"{start['trains']:.2f}")
    row(
        "memory of the coordinator, at most, MB",
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}",
    )
    for name, one in windows.items():
        print(f"\n{name}, {args.seconds:g} s")
        goal = (
            f"{verdict(one.share <= SHARE_TARGET)} <= {SHARE_TARGET:.0%}"
            if name == HEARTBEATS
            else ""
        )
        row("share of one core, coordinator", f"{one.share:.1%}", goal)
        row("beats granted, per s", f"{one.beats_per_s:,.0f}")
        row("coordinator's time per beat, microseconds", f"{one.share / one.beats_per_s * 1e6:.0f}")
        row(
            "coordinator sends / receives per beat, bytes",
            f"{one.sent_per_beat:.0f} / {one.received_per_beat:.0f}",
        )
        row("share of one core, all agents", f"{one.agents_share:.1%}")
    if regroups:
        show_regroups(regroups, world)


def show_regroups(regroups: list[RegroupTimes], world: int) -> None:
    print(f"\none rank dies; median of {len(regroups)} [smallest, largest]")
    rows: dict[str, Callable[[RegroupTimes], float]] = {
        "its death is heard, s": lambda one: one.heard,
        "companions waited for, all told to leave, s": lambda one: one.leave - one.heard,
        "all stand still and have said what they hold, s": lambda one: one.still - one.leave,
        "decided, survivors' plans with the kernel, s": lambda one: one.plans - one.still,
        "successor started, its plan with the kernel, s": lambda one: one.told - one.plans,
        LAST_LEFT: lambda one: one.told,
        LAST_CAME: lambda one: one.received,
        "all have said that they joined, s": lambda one: one.back,
        "coordinator's processor time until then, s": lambda one: one.own_cpu,
        "all agents' processor time until then, s": lambda one: one.agents_cpu,
        "coordinator sends, kB": lambda one: one.sent_bytes / 1e3,
        "coordinator receives, kB": lambda one: one.received_bytes / 1e3,
        "coordinator sends per rank, bytes": lambda one: one.sent_bytes / world,
        "coordinator receives per rank, bytes": lambda one: one.received_bytes / world,
    }
    for name, of in rows.items():
        values = [of(one) for one in regroups]
        goal = (
            f"{verdict(statistics.median(values) <= REGROUP_TARGET_S)} <= {REGROUP_TARGET_S:g} s"
            if name in (LAST_LEFT, LAST_CAME)
            else ""
        )
        row(name, median_and_spread(values, 0 if "bytes" in name else 2), goal)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peers", type=int, default=12_500)
    parser.add_argument("--ranks-per-peer", type=int, default=8)
    parser.add_argument("--beat-s", type=float, default=5.0)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="how long heartbeats are watched"
    )
    parser.add_argument(
        "--strikes", type=int, default=3, help="ranks that die, one after the other"
    )
    parser.add_argument(
        "--step-s",
        type=float,
        default=10.0,
        help=(
            "what the agents say that a step takes: survivors are given three of them to stand"
            " still"
        ),
    )
    parser.add_argument("--patience-s", type=float, default=300.0, help="for each phase")
    parser.add_argument(
        "--profile",
        type=int,
        metavar="ROWS",
        default=0,
        help="of the last regroup; it slows that one down",
    )
    return parser.parse_args()


def main() -> int:
    args = arguments()
    leader = CoordinatorHost(args)
    begin_s = now_s()
    agents = Agents(leader, args)
    start: dict[str, float] = {}
    windows: dict[str, Window] = {}
    regroups: list[RegroupTimes] = []
    profile = cProfile.Profile()
    try:
        leader.until(lambda: "enrolled" in agents.news, args.patience_s, "all agents enrolled")
        start["enrolled"] = now_s() - begin_s
        leader.until(
            lambda: "planned" in agents.news and leader.coordinator.stage is Stage.TRAINING,
            args.patience_s,
            "all ranks train",
        )
        start["trains"] = now_s() - begin_s - start["enrolled"]
        leader.loop.run_until(lambda: False, within_s=2 * args.beat_s)  # late words of the start
        gc.collect()
        windows[HEARTBEATS] = window(leader, agents, args.seconds)
        agents.tell("progress")
        windows["heartbeats, and with each a step that is done"] = window(
            leader, agents, args.seconds
        )
        agents.tell("progress")
        for number in range(args.strikes):
            leader.loop.run_until(lambda: False, within_s=args.beat_s)
            last = number == args.strikes - 1
            if args.profile and last:
                profile.enable()
            regroups.append(strike(leader, agents, args.patience_s))
            profile.disable()
            print(
                f"  strike {number + 1}: last plan left after {regroups[-1].told:.2f} s, arrived"
                f" after {regroups[-1].received:.2f} s",
                flush=True,
            )
    except Failed as error:
        print(f"FAILED: {error.why}", file=sys.stderr)
    finally:
        profile.disable()
        agents.end()
        leader.agent_listener.close()
        leader.loop.close()
    if windows:
        show(args, start, windows, regroups)
    if args.profile and regroups:
        pstats.Stats(profile).sort_stats("tottime").print_stats(args.profile)
    return 0 if len(regroups) == args.strikes else 1


if __name__ == "__main__":
    sys.exit(main())
