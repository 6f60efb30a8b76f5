"""How long an hour of a large run takes in the simulated world, and what an event costs there.

    python benchmarks/simulator.py [--failures N] [--large AGENTS] [--agents N ...] [--plot FILE]
    [--json FILE]

Workload   an hour     1,024 ranks on 128 agents and 4 spare ones, heartbeats every 5 s, steps of
                       2 s, 50 failures spread over an hour as hardware fails (FAILURES in
                       sim/faults/drawn_faults.py). Steps are arithmetic where nothing happens, and
                       simulated message by message around each failure. Ranks and nodes that
                       nothing tells apart are simulated as one, while the coordinator hears and
                       tells each node
           large hour  100,000 ranks on 12,500 agents and 4 spare ones, heartbeats every 10 s, 60
                       failures
           events      100, 1,000 and 12,500 agents with one rank each, heartbeats every 10 s, steps
                       of 2 s, two failures in five minutes; each node by itself, so that an event
                       is one node's
Measured   Processor seconds of the one process that simulates, so that others on the machine weigh
           less; its events; its largest resident memory. A life that breaks a rule, or does not
           end, is an error.
Goals      An hour in 10 s; the large one in 120 s and 4 GB; an event at 12,500 agents costs at most
           2.5x one at 100. Exit code 0, or 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from outlast.sim.simulated_run import simulate_seed

GOAL_HOUR_S, GOAL_RATIO, GOAL_LARGE_S, GOAL_LARGE_GB, LARGE_RANKS = 10.0, 2.5, 120.0, 4.0, 8
LIKE = {
    "recovery_mode": "in_place",
    "spares": 0,
    "spare_nodes": 4,
    "latency_s": 0.001,
    "phase_after": -1,
    "first_step_s": 0.0,
    "step_s": 2.0,
}
HOUR = LIKE | {"nodes": 132, "ranks": 1024, "beat_s": 5.0, "for_s": 3600.0}
LARGE = LIKE | {"beat_s": 10.0, "for_s": 3600.0, "failures": 60}
EVENTS = LIKE | {"beat_s": 10.0, "for_s": 300.0}


def one(given: dict[str, Any], *, every_node: bool) -> dict[str, Any]:
    """Simulate a run in this process. Return what was measured."""
    began_s = time.process_time()
    life = simulate_seed(seed=1, given=given, every_node=every_node)
    took_s = time.process_time() - began_s
    assert (life.result, life.end) == (
        "ok",
        "stopped",
    ), f"{life.result}, {life.end}: {life.violations}"
    return {
        "agents": given["nodes"] - given["spare_nodes"],
        "ranks": given["ranks"],
        "failures": given["failures"],
        "fired": len(life.fired),
        "steps": life.marks["committed"] // given["ranks"],
        "seconds": took_s,
        "events": life.events,
        "us": took_s / life.events * 1e6,
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "regroups": len(life.rungs),
    }


def alone(given: dict[str, Any], *, every_node: bool = False) -> dict[str, Any]:
    """Simulate a run in a process of its own, so that its memory can be told."""
    how = ["--every-node"] if every_node else []
    done = subprocess.run(
        [sys.executable, __file__, "--one", json.dumps(given), *how],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout))


def line(what: dict[str, Any]) -> str:
    """Return what was measured as a line of the table."""
    return (
        f"{what['agents']:>7,} {what['ranks']:>7,} {what['failures']:>8} {what['steps']:>7,}"
        f" {what['seconds']:>10.1f} {what['events']:>11,} {what['us']:>9.1f}"
        f" {what['megabytes']:>8,.0f}"
    )


def plot(measured: list[dict[str, Any]], path: Path) -> None:
    """Draw what an event costs, against the number of agents, with the goal as a line."""
    width, height, left, bottom = 480, 260, 60, 40
    most = max(2.6 * measured[0]["us"], *(what["us"] for what in measured)) * 1.1
    spots = []
    for place, what in enumerate(measured):
        x = left + 40 + place * (width - left - 100) / max(len(measured) - 1, 1)
        spots.append((x, height - bottom - what["us"] / most * (height - bottom - 20), what))
    goal_y = height - bottom - GOAL_RATIO * measured[0]["us"] / most * (height - bottom - 20)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
            ' font-family="sans-serif" font-size="12">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<path d="M{left} 20V{height - bottom}H{width - 20}" fill="none" stroke="black"/>',
        f'<path d="M{left} {goal_y:.1f}H{width - 20}" stroke="firebrick" stroke-dasharray="4"/>',
        (
            f'<text x="{left + 6}" y="{goal_y - 5:.1f}" fill="firebrick">goal: {GOAL_RATIO:g} x'
            f" that of {measured[0]['agents']:,} agents</text>"
        ),
        (
            f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, _ in spots)}" fill="none"'
            ' stroke="steelblue" stroke-width="2"/>'
        ),
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="steelblue"/>' for x, y, _ in spots),
        *(
            f'<text x="{x:.1f}" y="{y - 9:.1f}" text-anchor="middle">{what["us"]:.0f} us</text>'
            for x, y, what in spots
        ),
        *(
            f'<text x="{x:.1f}" y="{height - bottom + 16}"'
            f' text-anchor="middle">{what["agents"]:,}</text>'
            for x, _, what in spots
        ),
        f'<text x="{(left + width) / 2}" y="{height - 6}" text-anchor="middle">agents</text>',
        (
            f'<text x="14" y="{height / 2}" transform="rotate(-90 14 {height / 2})"'
            ' text-anchor="middle">microseconds an event</text>'
        ),
        "</svg>",
    ]
    path.write_text("\n".join(lines) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--failures", type=int, default=50, help="in the hour (50)")
    parser.add_argument(
        "--large", type=int, default=12_500, help="agents of the large hour (12500)"
    )
    parser.add_argument(
        "--agents",
        type=int,
        nargs="+",
        default=[100, 1_000, 12_500],
        help="for the cost of an event",
    )
    parser.add_argument("--plot", type=Path, default=Path(__file__).parent / "simulator.svg")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--every-node", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.one:
        print(json.dumps(one(json.loads(args.one), every_node=args.every_node)))
        return 0
    print(
        f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f};"
        " one process simulates, processor seconds"
    )
    print(" agents   ranks failures   steps    seconds      events  us/event  MB most", flush=True)
    hour = alone(HOUR | {"failures": args.failures})
    print(line(hour), flush=True)
    large = alone(LARGE | {"nodes": args.large + 4, "ranks": LARGE_RANKS * args.large})
    print(line(large), flush=True)
    events = []
    for agents in args.agents:
        events.append(
            alone(EVENTS | {"nodes": agents + 4, "ranks": agents, "failures": 2}, every_node=True)
        )
        print(line(events[-1]), flush=True)
    plot(events, args.plot)
    if args.json:
        args.json.write_text(
            json.dumps({"hour": hour, "large": large, "events": events}, indent=2) + "\n"
        )
    return judge(hour, large, events)


def judge(hour: dict[str, Any], large: dict[str, Any], events: list[dict[str, Any]]) -> int:
    """Say which goals are reached. Return 1 if one is missed, and 0 otherwise."""
    ratio, largest = events[-1]["us"] / events[0]["us"], events[-1]
    goals = [
        (
            "an hour of 1,024 ranks",
            f"{hour['seconds']:.1f} s",
            hour["seconds"] <= GOAL_HOUR_S,
            f"{GOAL_HOUR_S:g} s",
        ),
        (
            f"an hour of {large['ranks']:,} ranks",
            f"{large['seconds']:.0f} s",
            large["seconds"] <= GOAL_LARGE_S,
            f"{GOAL_LARGE_S:g} s",
        ),
        (
            f"an hour of {large['ranks']:,} ranks",
            f"{large['megabytes'] / 1024:.1f} GB",
            large["megabytes"] <= 1024 * GOAL_LARGE_GB,
            f"{GOAL_LARGE_GB:g} GB",
        ),
        (
            f"an event at {largest['agents']:,} agents / at {events[0]['agents']:,}",
            f"{ratio:.2f}x",
            ratio <= GOAL_RATIO,
            f"{GOAL_RATIO:g}x",
        ),
    ]
    for what, is_so, reached, goal in goals:
        print(f"{'reached' if reached else 'missed':<8} {what}: {is_so}, goal {goal}")
    return 0 if all(reached for _, _, reached, _ in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
