"""How long one lost host of four holds up the training: outlast beside torchrun.

A fifth host stands ready. The hosts are network namespaces on this machine, each with an address, a
process tree and a /dev/shm of its own. It needs root.

    python benchmarks/hosts.py                          all of it; about an hour
    python benchmarks/hosts.py --faults killed --of outlast-ddp outlast-fsdp2 --repeats 10

The faults:

    killed   all processes of a host that does not lead are killed at once
    cut      the link of such a host goes down, and nothing says so to anybody
    leader   all processes of the host that leads are killed; it has the store of the group, too
    idle     the same, of a host that leads and has no ranks: it stands ready, and four others train
    drain    no fault: `outlast drain --all --one-at-a-time`, so that each host is empty once

What is timed is from the fault to the first step that the fifth host commits, less one step (the
median of those before). Under `idle` it is until another host leads, as `leader.json` says. Under
`drain` it is the longest time between two steps, less one step: the slowest swap of a host. In all
cases the longest time between two steps after the fault is printed as well. A step counts from its
first commit on any rank. Each fault strikes a start of its own.

torchrun meets at the first host (c10d), and writes a checkpoint each step into a folder that all
hosts see. In its favour, the workers of each start have a store of their own, because restarts
often fail without it. Its agents look for lost ones as by default: with shorter times, on two
cores, they take living ones for lost. Under `cut` its process group has a time-out of 10 s, as
torch's own is 30 minutes. Without the host that it meets at, it is over: `leader` is not tried
there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from side_by_side import PEERS, Commit, CommitLog, summary, write_result

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made
from outlast.runtime.folders.leader_file import read_leader

HOSTS = 4  # that train, one rank on each; one more stands ready
SETTLED_STEPS = 12  # the first two are not counted into the step time
PORT = 29_500
TOKEN = "a token of this machine alone, 32 bytes"
FAULTS = ("killed", "cut", "leader", "idle", "drain")
STEPS_AFTER = 12  # that are awaited after `idle` and `drain`
ENDLESS = ("--steps", "1000000")


@dataclass(frozen=True)
class Contestant:
    """Something that trains on several hosts.

    command   starts it on each host; {folder} is a folder that all hosts see, {address} the host's,
              {place} its place among the hosts, {leads} whether it is the one to meet at
    ready     says by that folder whether the named host stands ready
    faults    those that it is struck by
    waits     it begins once the fifth host is there as well
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[Path, str], bool] = lambda folder, spare: True
    faults: tuple[str, ...] = FAULTS
    waits: bool = True
    limit_s: float = 120.0


def stands_ready(folder: Path, spare: str) -> bool:
    """Return whether `outlast status` shows a hot spare on the host `spare`."""
    said = subprocess.run(
        [_program("outlast"), "status", str(folder / "run"), "--json"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return said.returncode == 0 and any(
        one["kind"] == "hot" and one["node"] == spare for one in json.loads(said.stdout)["spares"]
    )


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def contestants() -> list[Contestant]:
    meets = f"{Hosts.address(0)}:{PORT}"
    outlast = (
        _program("outlast"),
        "run",
        "--nnodes",
        str(HOSTS),
        "--spare-nodes",
        "1",
        "--nproc-per-node",
        "1",
        "--rdzv-endpoint",
        meets,
        "--node-rank",
        "{place}",
        "--run-dir",
        "{folder}/run",
    )
    torchrun = (
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        str(HOSTS),
        "--nproc-per-node",
        "1",
        "--max-restarts",
        "100",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        meets,
        "--rdzv-id",
        "hosts",
        "--local-addr",
        "{address}",
        "--rdzv-conf",
        "is_host={leads}",
    )
    saving = ("--checkpoint", "{folder}/checkpoint", "--timeout", "10")
    own_store = {"GLOO_SOCKET_IFNAME": "eth0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def ours(name: str, script: str, *flags: str, faults: tuple[str, ...] = FAULTS) -> Contestant:
        command = (*outlast, *flags, str(PEERS / script), *ENDLESS)
        token = {"OUTLAST_TOKEN": TOKEN}
        return Contestant(name, command, token, ready=stands_ready, faults=faults)

    def theirs(name: str, script: str) -> Contestant:
        command = (*torchrun, str(PEERS / script), *ENDLESS, *saving)
        return Contestant(
            name, command, own_store, faults=("killed", "cut"), waits=False, limit_s=180.0
        )

    return [
        ours("outlast-ddp", "with_outlast.py"),
        ours(
            "outlast-fsdp2",
            "sharded_with_outlast.py",
            "--keep",
            "peers=1:step",
            faults=("killed", "cut", "leader", "idle"),  # such a run is not drained
        ),
        theirs("torchrun-ddp", "with_torchrun.py"),
        theirs("torchrun-fsdp2", "sharded_with_torchrun.py"),
    ]


@dataclass(frozen=True)
class Strike:
    """One fault, and how long it held the training up.

    step_s     the median of the undisturbed steps before
    seconds    what is timed (see the head of this file); None: not in time
    lost       committed steps that were done again, on the rank with most of them
    longest_s  the longest time between two steps after the fault
    """

    step_s: float
    seconds: float | None
    lost: int
    longest_s: float = 0.0


class Trial:
    """A contestant at work on five hosts. Leaving ends all of it.

    first   the host with the first rank: 1 leaves the one that leads without any
    """

    def __init__(self, contestant: Contestant, *, first: int = 0) -> None:
        self.contestant = contestant
        self._first = first
        self._scratch = tempfile.TemporaryDirectory(
            prefix="outlast-bench-", ignore_cleanup_errors=True
        )
        self.folder = Path(self._scratch.name)
        self.hosts = Hosts(HOSTS + 1)
        self._log = CommitLog(self.folder / "commits")
        self._closing = ExitStack()

    def __enter__(self) -> Trial:
        with ExitStack() as closing:
            closing.enter_context(self._scratch)
            closing.enter_context(self.hosts)
            for host in range(HOSTS + 1):
                self._start(host)
                if host == HOSTS - 1 and not self.contestant.waits:
                    # otherwise the fifth host might be one of those that train
                    self.wait_for(lambda: bool(self._log.commits), self.contestant.limit_s)
            self._closing = closing.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _start(self, host: int) -> None:
        command = [
            word.replace("{folder}", str(self.folder))
            .replace("{address}", Hosts.address(host))
            .replace("{leads}", str(host == 0).lower())
            .replace("{place}", str((host - self._first) % (HOSTS + 1)))
            for word in self.contestant.command
        ]
        with (self.folder / f"host{host}.out").open("wb") as out:
            environment = self._log.environment(self.contestant.environment)
            self.hosts.start(host, command, out=out, env=environment, cwd=self.folder)

    def output(self) -> str:
        outs = sorted(self.folder.glob("host*.out"))
        return "\n".join(
            f"--- {one.name}\n{one.read_text(errors='replace')[-1500:]}" for one in outs
        )

    def wait_for(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Return whether `condition` holds before the time is over."""
        return self._log.wait_for(condition, limit_s)

    def steps_of(self, rank: int) -> list[Commit]:
        return [commit for commit in self._log.commits if commit.rank == rank]

    def is_settled(self) -> bool:
        """Return whether all ranks have trained for long enough, and a spare host stands ready."""
        enough = all(len(self.steps_of(rank)) >= SETTLED_STEPS for rank in range(HOSTS))
        return enough and self.contestant.ready(self.folder, self.spare)

    @property
    def spare(self) -> str:
        """Return the name of the host without ranks."""
        return Hosts.name((self._first - 1) % (HOSTS + 1))

    def longest_s(self, since_s: float) -> float:
        """Return the longest time between the first commits of two steps, of those since then."""
        first_s: dict[int, float] = {}
        for commit in sorted(self._log.commits, key=lambda one: one.at_s):
            first_s.setdefault(commit.step, commit.at_s)
        between = itertools.pairwise(first_s.values())
        return max((after - one for one, after in between if after > since_s), default=0.0)

    def strike(self, fault: str, chance: random.Random) -> Strike | None:
        """Let the fault happen, and wait for what ends it.

        Return None if the contestant never settled.
        """
        if not self.wait_for(self.is_settled, self.contestant.limit_s):
            return None
        at_s = [commit.at_s for commit in self.steps_of(0)][2:]
        step_s = statistics.median(after - before for before, after in itertools.pairwise(at_s))
        if fault == "drain":
            return self._drain(step_s)
        if fault == "idle":
            return self._kill_idle_leader(step_s)
        host = 0 if fault == "leader" else chance.randrange(1, HOSTS)
        struck_s = time.clock_gettime(time.CLOCK_MONOTONIC)
        if fault == "cut":
            self.hosts.cut(host)
        else:
            self.hosts.kill(host)

        def firsts() -> list[Commit]:
            return [commit for commit in self._log.commits if commit.host == self.spare]

        if not self.wait_for(lambda: bool(firsts()), self.contestant.limit_s):
            return Strike(step_s, None, 0)
        first = firsts()[0]
        before = max(one.step for one in self.steps_of(first.rank) if one.at_s < struck_s)
        lost = max(0, before + 1 - first.step)
        seconds = first.at_s - struck_s - step_s
        return Strike(step_s, seconds, lost, self.longest_s(struck_s))

    def _kill_idle_leader(self, step_s: float) -> Strike:
        """Kill the host that leads and has no ranks, and wait until another one leads."""
        struck_s = time.clock_gettime(time.CLOCK_MONOTONIC)
        self.hosts.kill(0)

        def led_again() -> bool:
            leader = read_leader(self.folder / "run")
            return leader is not None and leader.epoch > 1

        led = self.wait_for(led_again, self.contestant.limit_s)
        seconds = time.clock_gettime(time.CLOCK_MONOTONIC) - struck_s
        on = self._goes_on()
        return Strike(
            step_s, seconds if led and on else None, self._repeated(), self.longest_s(struck_s)
        )

    def _drain(self, step_s: float) -> Strike:
        """Drain all hosts in turn, and let all ranks commit some more steps."""
        began_s = time.clock_gettime(time.CLOCK_MONOTONIC)
        words = ("drain", "--all", "--one-at-a-time", "--run", str(self.folder / "run"))
        done = subprocess.run(
            [_program("outlast"), *words],
            env=self._log.environment({}),
            capture_output=True,
            text=True,
            timeout=self.contestant.limit_s,
        )
        on = self._goes_on()
        longest_s = self.longest_s(began_s)
        if done.returncode or not on:
            print(done.stdout, done.stderr, file=sys.stderr)
            return Strike(step_s, None, self._repeated(), longest_s)
        return Strike(step_s, longest_s - step_s, self._repeated(), longest_s)

    def _goes_on(self) -> bool:
        """Return whether all ranks commit some more steps in time."""
        newest = max(commit.step for commit in self._log.follow())
        return self.wait_for(
            lambda: all(
                self.steps_of(rank)[-1].step >= newest + STEPS_AFTER for rank in range(HOSTS)
            ),
            self.contestant.limit_s,
        )

    def _repeated(self) -> int:
        """Return how many committed steps were done again, on the rank with most of them."""
        steps = [[one.step for one in self.steps_of(rank)] for rank in range(HOSTS)]
        return max(len(of_rank) - len(set(of_rank)) for of_rank in steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=FAULTS)
    parser.add_argument("--repeats", type=int, default=10, help="of each fault, for outlast")
    parser.add_argument("--peer-repeats", type=int, default=3, help="of each fault, for torchrun")
    parser.add_argument("--of", nargs="*", help="these only; nothing is written then")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if why := may_be_made():
        print(f"error: no hosts can be made here: {why}", file=sys.stderr)
        return 2
    results: dict[str, dict] = {}
    for contestant in contestants():
        if args.of and contestant.name not in args.of:
            continue
        repeats = args.repeats if contestant.name.startswith("outlast") else args.peer_repeats
        for fault in args.faults:
            if fault not in contestant.faults:
                continue
            chance = random.Random(args.seed)
            strikes = []
            for _ in range(repeats):
                with Trial(contestant, first=int(fault == "idle")) as trial:
                    strike = trial.strike(fault, chance)
                    if strike is None or strike.seconds is None:
                        print(trial.output(), file=sys.stderr)
                if strike is None:
                    print(f"{contestant.name} never trained on {HOSTS} hosts", file=sys.stderr)
                    continue
                strikes.append(strike)
                back = "never" if strike.seconds is None else f"{strike.seconds:.3f} s"
                print(
                    f"  {contestant.name:<16}{fault:<8}{back}, a step {strike.step_s:.3f} s,"
                    f" then {strike.longest_s:.3f} s at most, {strike.lost} lost",
                    flush=True,
                )
            most = max((strike.lost for strike in strikes), default=0)
            results[f"{contestant.name} {fault}"] = {
                **summary(strikes),
                "longest_s": [round(strike.longest_s, 4) for strike in strikes],
                "most_lost": most,
            }
    print(f"\n{'':26}{'came back':>10}{'median s':>10}{'max s':>10}{'step s':>10}{'lost':>6}")
    for who, one in results.items():
        figures = "".join(
            f"{'-' if one[key] is None else format(one[key], '.3f'):>10}"
            for key in ("median_s", "max_s", "step_s")
        )
        print(
            f"  {who:<24}{one['came_back']:>5} of {one['strikes']:<2}{figures}{one['most_lost']:>6}"
        )
    if not args.of:
        print(f"written to {write_result('hosts', results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
