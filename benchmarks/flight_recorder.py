"""How long it takes from a folder of dumps to the guilty rank, beside torch's own analyser.

    python benchmarks/flight_recorder.py [--ranks N ...] [--peer-ranks N ...] [--entries N]
    [--rounds N] [--json FILE]

Workload   dumps as NCCL jobs of torch 2.13 leave them: pickles of version 2.10 in torch's own
           bytes, 200 entries a rank (--entries), all and not only active ones, no stacks. Groups of
           8 ranks (TP), of every eighth rank (DP), and of all. Two thirds through, one rank does
           not come to its next TP all-reduce: its TP neighbours wait for it there, and everybody
           else waits in DP, for it or for one of those.
Beside     `python -m torch.distributed.flight_recorder.fr_trace FOLDER`, the same files, turn by
           turn in one run
Measured   Wall seconds, and processor seconds for a machine that others use too, of the whole
           process, start of the interpreter and (for the peer) import of torch included: nobody
           diagnoses without. Files are in the page cache for both, and so is their bytecode, as of
           installed packages. Largest resident memory: of the process, and for ours the sum over
           its reading processes. The clock is that of this process.
Goals      20x less time at 2,048 ranks, 50x at 16,384, 16,384 in 10 s, memory linear. Each is
           judged by wall seconds, and again by processor seconds, where ours are those of all
           processes: what is reached by them is reached by the clock of a machine of one's own.
           Where the peer is not run (--peer-ranks) its time is extrapolated with the exponent of
           its last two sizes, and said to be. Exit code 0, or 1 where a goal is missed by both.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _timing import Summary, alternate, paired_ratio, summarise

sys.path.insert(0, str(Path(__file__).parents[1]))

from outlast.diagnose.collectives import find_blame
from outlast.model.pieces import Piece
from outlast.runtime.evidence.unpickling import read_dumps
from tests.diagnose.collectives.torch_pickle import torch_pickle

HOME = Path(__file__).resolve().parents[1]
TP = 8
ENTRIES = 200
GOAL_2048, GOAL_16384, GOAL_S, GOAL_LINEAR = 20.0, 50.0, 10.0, 1.5
PEER = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
PEER_LIMIT_S = 1_800.0


# --- dumps ----------------------------------------------------------------------------------------


def guilty_of(ranks: int) -> int:
    return ranks // 2 + 3


@functools.cache
def program(entries: int) -> list[tuple[bool, str, int]]:
    """Return what every rank does, in order: whether it is in TP, the operation, the elements.

    There are three operations in TP for each one in DP.
    """
    kinds = [
        (True, "all_reduce", 4096),
        (True, "_all_gather_base", 2048),
        (True, "all_reduce", 1024),
        (False, "_reduce_scatter_base", 32),
    ]
    return [kinds[place % 4] for place in range(entries * 2)]


def entry(
    record: int,
    number: int,
    group: tuple[str, str],
    seq: int,
    operation: str,
    size: int,
    members: int,
    *,
    is_done: bool,
) -> dict[str, Any]:
    created = 1_790_000_000_000_000_000 + record * 1_500_000
    into, out = (
        (size * members if "scatter" in operation else size),
        (size * members if "gather" in operation else size),
    )
    return {
        "record_id": record,
        "pg_id": number,
        "process_group": group,
        "thread_name": "python3",
        "thread_id": "139813808016256",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{operation}",
        "time_created_ns": created,
        "input_sizes": [[into, 5120]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[out, 5120]],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if is_done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created + 900_000 if is_done else None,
        "retired": is_done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def dump_of(rank: int, ranks: int, entries: int, world: str, dp: str) -> dict[str, Any]:
    """Return the dump of one rank of a job that stops in the TP all-reduce at `stop`.

    The guilty rank has not come to it, and its neighbours have. All other ranks are in the DP
    operation after it.
    """
    guilty, stop = guilty_of(ranks), 3 * 4 * ((entries * 4 // 3) // 12)
    tp_index, dp_index = rank // TP, rank % TP
    tp_group, dp_group = (
        (str(1 + tp_index), "TENSOR_MODEL_PARALLEL_GROUP"),
        (str(1 + ranks // TP + dp_index), "DATA_PARALLEL_GROUP"),
    )
    done = stop if tp_index == guilty // TP else stop + 3
    last = done if rank == guilty else done + 1
    seqs = {True: 0, False: 0}
    kept = []
    for place, (is_tp, operation, size) in enumerate(program(entries)[:last]):
        seqs[is_tp] += 1
        if place >= last - entries:
            group = tp_group if is_tp else dp_group
            kept.append(
                entry(
                    place,
                    1 if is_tp else 2,
                    group,
                    seqs[is_tp],
                    operation,
                    size,
                    TP if is_tp else ranks // TP,
                    is_done=place < done,
                )
            )
    counters = {"last_started_collective": -1}
    ended = {
        is_tp: sum(one[0] is is_tp for one in program(entries)[:done]) for is_tp in (True, False)
    }
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.3",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": world},
            tp_group[0]: {
                "name": tp_group[0],
                "desc": tp_group[1],
                "ranks": str(list(range(tp_index * TP, tp_index * TP + TP))),
            },
            dp_group[0]: {"name": dp_group[0], "desc": dp_group[1], "ranks": dp},
        },
        "pg_status": {
            "0": counters | {"last_enqueued_collective": 1, "last_completed_collective": 1},
            "1": (
                counters
                | {
                    "last_enqueued_collective": seqs[True],
                    "last_completed_collective": ended[True],
                }
            ),
            "2": (
                counters
                | {
                    "last_enqueued_collective": seqs[False],
                    "last_completed_collective": ended[False],
                }
            ),
        },
        "entries": kept,
    }


def make(folder: Path, ranks: int, entries: int) -> int:
    """Write the dumps of all ranks into a new folder. Return how many bytes that are."""
    folder.mkdir()
    world, total = str(list(range(ranks))), 0
    dps = [str(list(range(place, ranks, TP))) for place in range(TP)]
    for rank in range(ranks):
        raw = torch_pickle(dump_of(rank, ranks, entries, world, dps[rank % TP]))
        (folder / f"nccl_trace_rank_{rank}").write_bytes(raw)
        total += len(raw)
    return total


# --- contestants ----------------------------------------------------------------------------------


def ours(folder: str) -> None:
    """Find the guilty rank, in this process and those that it starts. Print what was found."""
    with os.scandir(folder) as found:
        pieces = [Piece(one.name, one.path, one.stat().st_size) for one in found]
    dumps, unreadable = read_dumps(pieces)
    blame = find_blame(dumps, unreadable=unreadable)
    readers = min(len(os.sched_getaffinity(0)), len(pieces))
    own, each = (
        resource.getrusage(who).ru_maxrss / 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    said = {
        "dumps": len(dumps),
        "ranks": [one.rank for one in blame.ranks],
        "suspects": len(blame.suspects),
        "megabytes": own + readers * each,
        "own": own,
    }
    print(json.dumps(said))


def timed(
    command: list[str], limit_s: float, **environment: str
) -> tuple[float, float, float, str]:
    """Run a command. Return wall seconds, processor seconds, megabytes and its output.

    The processor seconds are those of its children as well, and the megabytes are the largest
    resident memory. Raises TimeoutExpired if it takes longer than `limit_s`.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(HOME / "src"),
        "OMP_NUM_THREADS": "1",
    } | environment
    with tempfile.TemporaryFile() as output:
        began_s = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.DEVNULL, env=environment
        )
        while time.perf_counter() - began_s < limit_s:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                took_s, process.returncode = (
                    time.perf_counter() - began_s,
                    os.waitstatus_to_exitcode(status),
                )
                output.seek(0)
                assert process.returncode == 0, f"{command[:4]} ended with {process.returncode}"
                return (
                    took_s,
                    used.ru_utime + used.ru_stime,
                    used.ru_maxrss / 1024,
                    output.read().decode(errors="replace"),
                )
            time.sleep(0.002)
        process.kill()
        process.wait()
        raise subprocess.TimeoutExpired(command, limit_s)


def measure(folder: Path, ranks: int, rounds: int, *, with_peer: bool) -> dict[str, Any]:
    """Time outlast, and the peer if it is wanted, on the dumps in a folder, turn by turn."""
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    worked: dict[str, list[float]] = {"ours": [], "peer": []}
    memory = {"ours": 0.0, "peer": 0.0}
    command = [sys.executable, __file__, "--ours", str(folder)]
    bytecode = {
        "PYTHONPYCACHEPREFIX": str(folder.with_name("bytecode")),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    timed(command, PEER_LIMIT_S, **bytecode)

    def one_of_ours() -> None:
        took_s, worked_s, _, output = timed(command, PEER_LIMIT_S, **bytecode)
        said = json.loads(output)
        assert (said["dumps"], said["ranks"], said["suspects"]) == (
            ranks,
            [guilty_of(ranks)],
            0,
        ), said
        times["ours"].append(took_s)
        worked["ours"].append(worked_s)
        memory["ours"] = max(memory["ours"], said["megabytes"])

    def one_of_the_peer() -> None:
        took_s, worked_s, megabytes, _ = timed([*PEER, str(folder)], PEER_LIMIT_S)
        times["peer"].append(took_s)
        worked["peer"].append(worked_s)
        memory["peer"] = max(memory["peer"], megabytes)

    variants: list[Callable[[], None]] = (
        [one_of_ours, one_of_the_peer] if with_peer else [one_of_ours]
    )
    alternate(rounds, variants)
    measured = {
        "ranks": ranks,
        "ours_s": summarise(times["ours"]).as_dict(),
        "ours_mb": memory["ours"],
        "ours_worked_s": summarise(worked["ours"]).as_dict(),
    }
    if with_peer:
        measured |= {
            "peer_s": summarise(times["peer"]).as_dict(),
            "peer_mb": memory["peer"],
            "ratio": paired_ratio(times["peer"], times["ours"]).as_dict(),
        }
        measured |= {
            "peer_worked_s": summarise(worked["peer"]).as_dict(),
            "worked_ratio": paired_ratio(worked["peer"], worked["ours"]).as_dict(),
        }
    return measured


# --- what it comes to -----------------------------------------------------------------------------


def extrapolate(measured: list[dict[str, Any]]) -> float:
    """Add `peer_guess_s` and `peer_worked_guess_s` where the peer was not run.

    Return the exponent with which its processor time grows.
    """
    run = [one for one in measured if "peer_s" in one]
    if len(run) < 2:
        return math.nan
    exponent = 0.0
    for guess, known in (("peer_guess_s", "peer_s"), ("peer_worked_guess_s", "peer_worked_s")):
        before, last = run[-2], run[-1]
        exponent = math.log(last[known]["median"] / before[known]["median"]) / math.log(
            last["ranks"] / before["ranks"]
        )
        for one in measured:
            if "peer_s" not in one:
                one[guess] = last[known]["median"] * (one["ranks"] / last["ranks"]) ** exponent
    return exponent


def line(one: dict[str, Any]) -> str:
    text = (
        f"{one['ranks']:>7,} {Summary(**one['ours_s']).text(unit=' s'):>24}"
        f" {one['ours_worked_s']['median']:>7.2f} {one['ours_mb']:>8,.0f}"
    )
    if "peer_s" in one:
        text += (
            f" {Summary(**one['peer_s']).text(unit=' s'):>26}"
            f" {one['peer_worked_s']['median']:>8.2f} {one['peer_mb']:>8,.0f}"
        )
        return (
            f"{text} {Summary(**one['ratio']).text(unit='x', digits=1):>22}"
            f" {one['worked_ratio']['median']:>9.1f}x"
        )
    if "peer_guess_s" in one:
        worked = one["peer_worked_guess_s"]
        text += (
            f" {one['peer_guess_s']:>18,.0f} s (guess) {worked:>8,.0f} {'-':>8}"
            f" {one['peer_guess_s'] / one['ours_s']['median']:>13,.0f}x (guess)"
        )
        return f"{text} {worked / one['ours_worked_s']['median']:>9,.0f}x"
    return text


def judge(measured: list[dict[str, Any]]) -> bool:
    """Print whether each goal is reached by the clock, and by processor seconds.

    Return whether all are, by one of the two.
    """
    cores, by_ranks = len(os.sched_getaffinity(0)), {one["ranks"]: one for one in measured}
    goals: list[tuple[str, bool, bool]] = []
    if "ratio" in (small := by_ranks.get(2048, {})):
        wall, worked = small["ratio"]["median"], small["worked_ratio"]["median"]
        goals.append(
            (
                f"2,048 ranks, {GOAL_2048:g}x less time: {wall:.1f}x; processor time {worked:.1f}x",
                wall >= GOAL_2048,
                worked >= GOAL_2048,
            )
        )
    if (large := by_ranks.get(16384)) is not None:
        wall, worked = large["ours_s"]["median"], large["ours_worked_s"]["median"]
        text = (
            f"16,384 ranks in {GOAL_S:g} s: {wall:.1f} s; processor time {worked:.1f} s,"
            f" {worked / cores:.1f} s for each of {cores} cores"
        )
        goals.append((text, wall < GOAL_S, worked / cores < GOAL_S))
        if "peer_guess_s" in large:
            wall, worked = large["peer_guess_s"] / wall, large["peer_worked_guess_s"] / worked
            text = (
                f"16,384 ranks, {GOAL_16384:g}x less time than extrapolated: {wall:.0f}x; processor"
                f" time {worked:.0f}x"
            )
            goals.append((text, wall >= GOAL_16384, worked >= GOAL_16384))
    if len(measured) > 1:
        first, last = measured[-2], measured[-1]
        growth = last["ours_mb"] / first["ours_mb"] / (last["ranks"] / first["ranks"])
        text = (
            f"memory linear: from {first['ranks']:,} to {last['ranks']:,} ranks it grows"
            f" {growth:.2f} times as much as ranks, goal {GOAL_LINEAR:g}"
        )
        goals.append((text, growth <= GOAL_LINEAR, growth <= GOAL_LINEAR))
    for text, by_clock, by_processor in goals:
        by = "reached by processor time" if by_processor else "missed"
        print(f"{'reached' if by_clock else by:<26} {text}")
    return all(by_clock or by_processor for _, by_clock, by_processor in goals)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[512, 2_048, 4_096, 16_384])
    parser.add_argument(
        "--peer-ranks",
        type=int,
        nargs="*",
        default=[512, 2_048, 4_096],
        help="sizes at which the peer is run too",
    )
    parser.add_argument(
        "--entries", type=int, default=ENTRIES, help="of each dump; torch's own ring holds 2,000"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ours", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ours:
        ours(args.ours)
        return 0
    print(
        f"Python {sys.version.split()[0]}, {len(os.sched_getaffinity(0))} cores, load"
        f" {os.getloadavg()[0]:.1f}; median [95 %] of {args.rounds} rounds"
    )
    print(
        "Seconds: wall; CPU: processor seconds, all processes of each; the ratios are of pairs"
        " taken in one round"
    )
    print(
        f"{'ranks':>7} {'outlast':>24} {'CPU':>7} {'MB':>8} {'torchfrtrace':>26} {'CPU':>8}"
        f" {'MB':>8} {'less time by':>22} {'less CPU':>10}",
        flush=True,
    )
    measured = []
    for ranks in sorted(args.ranks):
        with tempfile.TemporaryDirectory(prefix="outlast-bench-") as scratch:
            make(Path(scratch) / "dumps", ranks, args.entries)
            measured.append(
                measure(
                    Path(scratch) / "dumps", ranks, args.rounds, with_peer=ranks in args.peer_ranks
                )
            )
        exponent = extrapolate(measured)
        print(line(measured[-1]), flush=True)
    print(
        f"torchfrtrace grows with ranks to the power of {exponent:.2f} between its last two sizes"
    )
    if args.json:
        args.json.write_text(
            json.dumps({"measured": measured, "exponent": exponent}, indent=2) + "\n"
        )
    return 0 if judge(measured) else 1


if __name__ == "__main__":
    sys.exit(main())
