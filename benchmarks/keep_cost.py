"""What a step costs where other nodes keep copies or parity, and how late it counts as committed.

    python benchmarks/keep_cost.py [--rounds N] [--steps N] [--only NAME ...] [--rate 300mbit]

Workload   The model of `examples/train_gpt.py` under FSDP2, one rank on each of four hosts, and a
           fifth that stands ready. The hosts are network namespaces on this machine, whose cores
           they share. It needs root. Each rank seals an image of its state after each step.
Variants   vault    nothing leaves the host
           peers    --keep peers=1:step
           at-once  the same, but a copy is sent like any other connection (copies_at_once.py)
           parity   --keep parity=2+1:step
           disk     --keep disk:5s, so a checkpoint each five seconds
           upload   the same, and each is copied to a URL (file:///)
           With --rate, `tc tbf` limits how fast each host sends.
Measured   step     seconds of a step, the mean after the first ten, by rank 0's commits
           lag      from the end of a step's block until the step is committed, the median on rank
                    0. `step.on_commit` waits for that; training does not
Method     Each variant is started anew in each round, which begins with another one. Medians over
           rounds with 95 % intervals, and ratios to `vault` of the same round.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace

from _timing import paired_ratio, summarise
from hosts import HOSTS, Contestant, Trial, contestants
from side_by_side import write_result

from outlast.runtime.drill.drill_hosts import may_be_made

FIRST = 10  # steps that are not counted
LIMIT_S = 240.0
KEEP = {
    "vault": "",
    "peers": "peers=1:step",
    "at-once": "peers=1:step",
    "parity": "parity=2+1:step",
    "disk": "disk:5s",
    "upload": "disk:5s, file://{folder}/objects:5s",
}
USUAL = tuple(name for name in KEEP if name != "at-once")


def contestant(name: str) -> Contestant:
    """Return the run of hosts.py under FSDP2, with the copies that a variant keeps."""
    keep = KEEP[name]
    base = next(one for one in contestants() if one.name == "outlast-fsdp2")
    at = base.command.index("--keep")
    given = ("--keep", keep) if keep else ()
    command = (*base.command[:at], *given, *base.command[at + 2 :])
    if name == "at-once":
        command = tuple(word.replace("sharded_with_outlast", "copies_at_once") for word in command)
    return replace(base, command=command)


def slow(trial: Trial, rate: str) -> None:
    """Limit how fast each host sends. The queue at the limit is Linux's default, `pfifo_fast`."""
    limit = ("root", "handle", "1:", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms")
    queue = ("parent", "1:1", "handle", "10:", "pfifo_fast")
    for host in range(HOSTS + 1):
        for words in (limit, queue):
            with (trial.folder / "tc.out").open("ab") as out:
                command = ("tc", "qdisc", "add", "dev", "eth0", *words)
                if trial.hosts.start(host, command, out=out).wait(20):
                    raise SystemExit(f"tc cannot limit a link to {rate} here")


def step_and_lag_s(name: str, steps: int, rate: str) -> tuple[float, float]:
    """Train for so many steps. Return the mean seconds of one, and the median lag of its commit."""
    with Trial(contestant(name)) as trial:
        if rate:
            slow(trial, rate)
        done = trial.wait_for(
            lambda: all(len(trial.steps_of(rank)) >= FIRST + steps for rank in range(HOSTS)),
            LIMIT_S,
        )
        if not done:
            raise SystemExit(f"it never trained on {HOSTS} hosts\n{trial.output()}")
        commits = trial.steps_of(0)[FIRST - 1 : FIRST + steps]
    lags_s = [0.0 if one.ended_s is None else one.at_s - one.ended_s for one in commits]
    return (commits[-1].at_s - commits[0].at_s) / (len(commits) - 1), statistics.median(lags_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", nargs="+", choices=tuple(KEEP), default=USUAL)
    parser.add_argument("--rate", default="", help="limit of each host, as tc writes it")
    args = parser.parse_args()
    if why := may_be_made():
        print(f"error: no hosts can be made here: {why}", file=sys.stderr)
        return 2
    names = list(args.only)
    steps_s: dict[str, list[float]] = {name: [] for name in names}
    lags_s: dict[str, list[float]] = {name: [] for name in names}
    for number in range(args.rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            step_s, lag_s = step_and_lag_s(name, args.steps, args.rate)
            steps_s[name].append(step_s)
            lags_s[name].append(lag_s)
            print(f"  {name:<8}{step_s * 1e3:8.1f} ms a step, lag {lag_s * 1e3:.1f} ms", flush=True)
    print(f"\n{args.rounds} rounds of {args.steps} steps")
    for name in names:
        ratio = paired_ratio(steps_s[name], steps_s[names[0]]).text(digits=3, unit="x")
        print(
            f"  {name:<8} step {summarise(steps_s[name]).text(scale=1e3, unit=' ms', digits=1):<28}"
            f"{ratio:<26} lag {summarise(lags_s[name]).text(scale=1e3, unit=' ms', digits=1)}"
        )
    print(f"written to {write_result('keep_cost', {'step_s': steps_s, 'lag_s': lags_s})}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
