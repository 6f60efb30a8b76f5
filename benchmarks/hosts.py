"""How long one lost host of four holds up the training: outlast beside torchrun.

A fifth host stands ready. The hosts are network namespaces on this machine, each with an address, a
process tree and a /dev/shm of its own. It needs root.

    python benchmarks/hosts.py                          all of it; about an hour
    python benchmarks/hosts.py --faults killed --of outlast-ddp outlast-fsdp2 --repeats 10

The faults:

    killed   all processes of a host that does not lead are killed at once
    cut      the link of such a host goes down, and nothing says so to anybody
    leader   all processes of the host that leads are killed; it has the store of the group, too

What is timed is from the fault to the first step that the fifth host commits, less one step (the
median of those before). Each fault strikes a start of its own.

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

from outlast.runtime.drill_hosts import Hosts, may_be_made

HOSTS = 4  # that train, one rank on each; one more stands ready
SPARE = f"host{HOSTS}"
SETTLED_STEPS = 12  # the first two are not counted into the step time
PORT = 29_500
TOKEN = "a token of this machine alone, 32 bytes"
FAULTS = ("killed", "cut", "leader")
ENDLESS = ("--steps", "1000000")


@dataclass(frozen=True)
class Contestant:
    """Something that trains on several hosts.

    command   starts it on each host; {folder} is a folder that all hosts see
    ready     says by that folder whether the fifth host stands ready
    faults    those that it is struck by
    waits     it begins once the fifth host is there as well
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[Path], bool] = lambda folder: True
    faults: tuple[str, ...] = FAULTS
    waits: bool = True
    limit_s: float = 120.0


def a_spare_host_stands_ready(folder: Path) -> bool:
    """Return whether `outlast status` shows a hot spare on the fifth host."""
    said = subprocess.run(
        [_program("outlast"), "status", str(folder / "run"), "--json"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return said.returncode == 0 and any(
        spare["kind"] == "hot" and spare["node"] == SPARE
        for spare in json.loads(said.stdout)["spares"]
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

    def ours(name: str, script: str, *flags: str) -> Contestant:
        command = (*outlast, *flags, str(PEERS / script), *ENDLESS)
        return Contestant(name, command, {"OUTLAST_TOKEN": TOKEN}, ready=a_spare_host_stands_ready)

    def theirs(name: str, script: str) -> Contestant:
        command = (*torchrun, str(PEERS / script), *ENDLESS, *saving)
        return Contestant(
            name, command, own_store, faults=("killed", "cut"), waits=False, limit_s=180.0
        )

    return [
        ours("outlast-ddp", "with_outlast.py"),
        ours("outlast-fsdp2", "sharded_with_outlast.py", "--keep", "peers=1:step"),
        theirs("torchrun-ddp", "with_torchrun.py"),
        theirs("torchrun-fsdp2", "sharded_with_torchrun.py"),
    ]


@dataclass(frozen=True)
class Strike:
    """One fault, and how long it held the training up.

    step_s    the median of the undisturbed steps before
    seconds   until the fifth host's first commit, less one step; None: not in time
    lost      committed steps that were done again, on the rank with most of them
    """

    step_s: float
    seconds: float | None
    lost: int


class Trial:
    """A contestant at work on five hosts. Leaving ends all of it."""

    def __init__(self, contestant: Contestant) -> None:
        self.contestant = contestant
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
        return enough and self.contestant.ready(self.folder)

    def strike(self, fault: str, chance: random.Random) -> Strike | None:
        """Let the fault happen, and wait for the fifth host's first commit.

        Return None if the contestant never settled.
        """
        if not self.wait_for(self.is_settled, self.contestant.limit_s):
            return None
        at_s = [commit.at_s for commit in self.steps_of(0)][2:]
        step_s = statistics.median(after - before for before, after in itertools.pairwise(at_s))
        host = 0 if fault == "leader" else chance.randrange(1, HOSTS)
        struck_s = time.clock_gettime(time.CLOCK_MONOTONIC)
        if fault == "cut":
            self.hosts.cut(host)
        else:
            self.hosts.kill(host)

        def firsts() -> list[Commit]:
            return [commit for commit in self._log.commits if commit.host == SPARE]

        if not self.wait_for(lambda: bool(firsts()), self.contestant.limit_s):
            return Strike(step_s, None, 0)
        first = firsts()[0]
        before = max(one.step for one in self.steps_of(first.rank) if one.at_s < struck_s)
        return Strike(step_s, first.at_s - struck_s - step_s, max(0, before + 1 - first.step))


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
                with Trial(contestant) as trial:
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
                    f" {strike.lost} lost",
                    flush=True,
                )
            most = max((strike.lost for strike in strikes), default=0)
            results[f"{contestant.name} {fault}"] = {**summary(strikes), "most_lost": most}
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
