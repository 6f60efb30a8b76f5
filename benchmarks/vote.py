"""How long a vote of ranks on several hosts takes, beside gloo's smallest collectives.

    python benchmarks/vote.py                          four hosts with one rank each
    python benchmarks/vote.py --hosts 3 --local 2      three hosts with two ranks each
    python benchmarks/vote.py --realtime               with real-time priority in short turns: what
                                                       else runs on the machine does not weigh then
    python benchmarks/vote.py --steps ../before        step time under DDP on four hosts, beside the
                                                       outlast of another checkout

The hosts are network namespaces on this machine; it needs root. The ranks share its cores.

The ranks take turns, in an order drawn for each: so many votes one after the other, as many
all-reduces of two numbers, and as many all-to-alls of a ballot, which is how such ranks voted until
2026-11-27. The vote is the whole
call of outlast: ballot, exchange, tally and outcome, with one logged value. Timed is rank 0's mean
in each turn, and the ratio to the all-reduce of the same turn. Printed are medians over the turns
with 95 % intervals. Exit code 1 if the vote takes more than 1.5 times the all-reduce.

With --steps both checkouts are started in turn, the first one changing, and the figure is the ratio
of their median steps in each pair of starts. The two differ by what is in the checkouts, so give
one that differs in the vote alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from _timing import summarise
from hosts import HOSTS, Contestant, Trial, contestants
from side_by_side import HOME, PEERS, write_result

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made

GOAL = 1.5
PORT = 29_600
LIMIT_S = 300.0
REALTIME_PAUSE_S = 0.15  # between turns, for whatever else wants a processor
STEPS = 60  # of a start; the first ten are not counted


# --- one rank -------------------------------------------------------------------------------------


def rank_main(
    rank: int, hosts: int, local: int, turns: int, each: int, realtime: bool, folder: Path
) -> None:
    """Take all turns with the other ranks. Rank 0 writes down what each call took."""
    import torch
    import torch.distributed as dist

    from outlast.runtime.tiers.area import allocate, map_file
    from outlast.runtime.worker.communication import groups, node_votes, shared_vote
    from outlast.runtime.worker.communication.guards import Guards
    from outlast.runtime.worker.communication.node_votes import ROW_LENGTH, NodeVotes
    from outlast.runtime.worker.communication.shared_rows import Participant
    from outlast.runtime.worker.communication.wake import SocketWatch
    from outlast.runtime.worker.member import ballot_box
    from outlast.runtime.worker.steps.vote import Ballot, vote

    @dataclass(frozen=True)
    class Member:
        """This is what `vote` asks of a membership."""

        world_size: int
        ballots: ballot_box.BallotBox
        guards: Guards

    torch.set_num_threads(1)
    if realtime:  # of gloo's threads too, which are started later
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    world, host = hosts * local, rank // local
    store = groups.serve(Hosts.address(0), PORT) if rank == 0 else None
    client = store or groups.connect(Hosts.address(0), PORT, 60.0)
    groups.build(
        store=client,
        generation=1,
        rank=rank,
        world_size=world,
        backend="gloo",
        timeout_s=LIMIT_S,
        watch=SocketWatch(),
    )
    nodes, rows = [list(range(one * local, (one + 1) * local)) for one in range(hosts)], None
    if local > 1:
        path = folder / f"votes-{host}"
        allocate(path, shared_vote.LAYOUT.size(local))
        participant = Participant(1, rank % local, local, LIMIT_S, lambda: False)
        rows = node_votes.shared_rows(map_file(path), participant)
    votes = NodeVotes(nodes, rank, timeout_s=LIMIT_S, rows=rows)
    member = Member(world, ballot_box.BallotBox(None, votes), Guards())
    two = torch.zeros(2, dtype=torch.float64)
    sent = torch.zeros(world * ROW_LENGTH, dtype=torch.float64)
    came, default = torch.empty_like(sent), dist.group.WORLD
    assert default is not None

    calls: dict[str, Callable[[], object]] = {
        "vote": lambda: vote(member, Ballot(True, False, (("loss", 1.0),))),  # type: ignore[arg-type]
        "all-reduce": lambda: default.allreduce([two]).wait(),
        "all-to-all": lambda: default.alltoall_base(came, sent, [], []).wait(),
    }
    took_s: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 1):
        time.sleep(REALTIME_PAUSE_S if realtime else 0.0)
        for name in random.Random(turn).sample(list(calls), len(calls)):  # the same on all ranks
            dist.barrier()
            began_s = time.perf_counter()
            for _ in range(each):
                calls[name]()
            if turn:  # the first one warms up
                took_s[name].append((time.perf_counter() - began_s) / each)
    dist.barrier()
    if rank == 0:
        (folder / "took.json").write_text(json.dumps(took_s))


# --- all ranks ------------------------------------------------------------------------------------


def vote_beside_collectives(
    hosts: int, local: int, turns: int, each: int, *, realtime: bool
) -> dict:
    """Start the ranks on their hosts, and return what they took."""
    with ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="outlast-bench-")))
        made = closing.enter_context(Hosts(hosts))
        processes, outs = [], []
        environment = {
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "PYTHONPATH": f"{HOME / 'src'}:{Path(__file__).parent}",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        for rank in range(hosts * local):
            outs.append(folder / f"rank{rank}.out")
            words = [sys.executable, __file__, "--rank", rank, "--folder", folder]
            words += ["--hosts", hosts, "--local", local, "--turns", turns, "--each", each]
            words += ["--realtime"] if realtime else []
            with outs[-1].open("wb") as out:
                processes.append(
                    made.start(rank // local, list(map(str, words)), out=out, env=environment)
                )
        over_s = time.monotonic() + LIMIT_S
        took = folder / "took.json"
        while not took.exists() or processes[0].poll() is None:
            ended = [rank for rank, one in enumerate(processes) if one.poll() not in (None, 0)]
            if ended or time.monotonic() > over_s:
                raise SystemExit("\n".join(one.read_text(errors="replace") for one in outs))
            time.sleep(0.05)
        took_s: dict[str, list[float]] = json.loads(took.read_text())
    result = {"hosts": hosts, "local": local, "turns": turns, "each": each}
    for name, samples in took_s.items():
        ratios = [one / other for one, other in zip(samples, took_s["all-reduce"], strict=True)]
        result[name] = {
            "seconds": summarise(samples).as_dict(),
            "ratio": summarise(ratios).as_dict(),
        }
        print(
            f"  {name:<12}{summarise(samples).text(scale=1e3, unit=' ms', digits=3):<32}"
            f"{summarise(ratios).text(unit=' of an all-reduce')}"
        )
    return result


# --- step time ------------------------------------------------------------------------------------


def step_time_beside(before: Path, starts: int) -> dict:
    """Start this checkout and `before` in turn on four hosts, and compare their steps."""
    ours = next(one for one in contestants() if one.name == "outlast-ddp")
    sides = {"now": HOME, "before": before.resolve()}
    medians: dict[str, list[float]] = {name: [] for name in sides}
    for start in range(starts):
        for name in sorted(sides, reverse=bool(start % 2)):
            paths = ":".join(map(str, (sides[name] / "src", HOME / "examples", PEERS)))
            environment = {**ours.environment, "PYTHONPATH": paths}
            medians[name].append(median_step_s(replace(ours, environment=environment)))
            print(f"  {name:<8}{medians[name][-1] * 1e3:.2f} ms a step", flush=True)
    ratios = [one / other for one, other in zip(medians["now"], medians["before"], strict=True)]
    print(f"  now / before: {summarise(ratios).text(digits=3)}, {starts} pairs of starts")
    return {"medians_s": medians, "ratio": summarise(ratios).as_dict()}


def median_step_s(contestant: Contestant) -> float:
    with Trial(contestant) as trial:
        settled = trial.wait_for(
            lambda: all(len(trial.steps_of(rank)) >= STEPS for rank in range(HOSTS)), LIMIT_S
        )
        if not settled:
            raise SystemExit(f"it never trained on {HOSTS} hosts\n{trial.output()}")
        at_s = [commit.at_s for commit in trial.steps_of(0)][10:]
    return statistics.median(after - one for one, after in itertools.pairwise(at_s))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--local", type=int, default=1, help="ranks on each host")
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--each", type=int, default=10, help="calls in a turn")
    parser.add_argument("--realtime", action="store_true", help="take the processors for a turn")
    parser.add_argument("--steps", type=Path, help="another checkout, for its step time")
    parser.add_argument("--starts", type=int, default=4, help="of each checkout, for --steps")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        rank_main(
            args.rank, args.hosts, args.local, args.turns, args.each, args.realtime, args.folder
        )
        return 0
    if why := may_be_made():
        print(f"error: no hosts can be made here: {why}", file=sys.stderr)
        return 2
    if args.steps is not None:
        write_result("vote_steps", step_time_beside(args.steps, args.starts))
        return 0
    result = vote_beside_collectives(
        args.hosts, args.local, args.turns, args.each, realtime=args.realtime
    )
    print(f"written to {write_result('vote', result)}")
    return int(result["vote"]["ratio"]["median"] > GOAL)


if __name__ == "__main__":
    sys.exit(main())
