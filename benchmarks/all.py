"""Run benchmarks beside their peers, and write what they measured into RESULTS.md.

    make bench                                       about 40 minutes on two cores, which nothing
                                                     else should use
    make bench ARGS="--torchft-python PATH"          with torchft, from an interpreter that has it
    make bench ARGS="--only overhead-4 stall"

Each benchmark has a section of its own there, which takes the place of the one before. Sections of
benchmarks that were not run, or that were written by hand, stay as they are. So do the pages in
results/, which are written by hand; the figures that `make bench` keeps lie beside them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from _results_page import with_sections

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


def commands(args: argparse.Namespace) -> dict[str, list[str]]:
    """Return the benchmarks by name, each with its program and options."""
    torchft = ["--torchft-python", args.torchft_python] if args.torchft_python else []
    return {
        "mttr-sigkill": ["mttr.py", *torchft],
        "mttr-sigstop": ["mttr.py", "--signal", "SIGSTOP", *torchft],
        "overhead-4": ["overhead.py"],
        "overhead-4-late": ["overhead.py", "--late"],
        "overhead-2": ["overhead.py", "--workers", "2"],
        "stall": ["stall.py", "--json", str(RESULTS / "stall.json")],
        "durable": ["durable.py"],
        "parity": ["parity.py"],
        "channel": ["channel.py"],
        "simulator": ["simulator.py"],
        "planner_speed": ["planner_speed.py"],
        "flight_recorder": ["flight_recorder.py"],
        "titan": ["titan.py"],
        "long_run": ["long_run.py"],
    }


def mttr_section(kept: dict) -> list[str]:
    rows = [
        condition(kept),
        "",
        "| | came back | median s | max s | one step s | outlast-hot is faster by |",
        "|---|---|---|---|---|---|",
    ]
    best_s = kept["result"].get("outlast-hot", {}).get("median_s")
    for name, one in kept["result"].items():
        figures = [
            "-" if one[key] is None else f"{one[key]:.3f}"
            for key in ("median_s", "max_s", "step_s")
        ]
        ratio = (
            f"{one['median_s'] / best_s:.0f} x"
            if best_s and best_s > 0 and one["median_s"] and name != "outlast-hot"
            else ""
        )
        rows.append(
            f"| {name} | {one['came_back']} of {one['strikes']} | "
            + " | ".join([*figures, ratio])
            + " |"
        )
    return rows


def overhead_title(kept: dict) -> str:
    one = kept["result"]
    late = ", steps that vote late" if one["late"] else ""
    return f"Step time without faults, {one['workers']} workers{late}, beside {one['other']}"


def overhead_section(kept: dict) -> list[str]:
    one = kept["result"]
    return [
        condition(kept, workers=one["workers"]),
        "",
        (
            f"outlast takes **{one['overhead']:+.2%}** (95 % interval {one['low']:+.2%} to"
            f" {one['high']:+.2%}), {one['outlast_step_s']:.4f} s beside {one['other']}'s"
            f" {one['other_step_s']:.4f} s; {one.get('starts', 1)} starts of"
            f" {one['pairs']} pairs of turns of {one['steps']} steps,"
            f" {one['batch']} sequences each. Goal of 2 %: {one['goal']}."
        ),
        "Processor seconds of the ranks for a step: {:+.2%} ({:+.2%} to {:+.2%}).".format(
            *one["ranks_cpu"]
        ),
    ]


MTTR = {
    "mttr-sigkill": "SIGKILL of one of four workers to the first new commit, less one step",
    "mttr-sigstop": "The same with SIGSTOP",
}
PRINTED = {
    "stall": "One snapshot each step",
    "durable": "A state on disk, and back: outlast.checkpoint, DCP, torch.save, safetensors",
    "parity": "Parity of four parts, made and rebuilt by one core",
    "channel": "One coordinator, 12,500 agents, 100,000 ranks",
    "simulator": "An hour of a large run in the simulated world",
    "planner_speed": "Simulated runs in a second, beside SimPy, NumPy and numba",
    "flight_recorder": "From flight recorder dumps to the guilty rank",
    "titan": "Titan's boards: fitted before a date, compared with what happened after it",
    "long_run": "The ledger of a long run: its writes, and its report",
}


def printed_section(name: str, text: str) -> list[str]:
    plot = ["", f"![{PRINTED[name]}]({name}.svg)"] if (HERE / f"{name}.svg").exists() else []
    return [
        f"What `benchmarks/{name}.py` printed:",
        "",
        "```",
        *text.strip().splitlines(),
        "```",
        *plot,
    ]


def condition(kept: dict, *, workers: int = 4) -> str:
    return (
        f"{kept['at']}; {kept['machine']}; {workers} workers with one thread each; the model of"
        " `examples/train_gpt.py` (23 MB of state)."
    )


def measured() -> dict[str, str]:
    """Return the sections of all benchmarks whose results lie here, by their titles."""
    sections = {}
    for name, title in MTTR.items():
        if (path := RESULTS / f"{name}.json").exists():
            sections[title] = mttr_section(json.loads(path.read_text()))
    for path in sorted(RESULTS.glob("overhead-*.json"), reverse=True):
        kept = json.loads(path.read_text())
        sections[overhead_title(kept)] = overhead_section(kept)
    for name, title in PRINTED.items():
        if (path := RESULTS / f"{name}.txt").exists():
            sections[title] = printed_section(name, path.read_text())
    return {title: "\n".join(lines) for title, lines in sections.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", nargs="*", help="these benchmarks; with no name: only write the page again"
    )
    parser.add_argument("--torchft-python", help="an interpreter that has torchft and this torch")
    args = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    bad = []
    for name, command in commands(args).items():
        if args.only is not None and name not in args.only:
            continue
        print(f"\n== {name}", flush=True)
        with subprocess.Popen(
            [sys.executable, str(HERE / command[0]), *command[1:]],
            stdout=subprocess.PIPE,
            text=True,
        ) as running:
            said = []
            for line in running.stdout or ():
                print(line, end="", flush=True)
                said.append(line)
        if name in PRINTED:
            (RESULTS / f"{name}.txt").write_text("".join(said))
        if running.returncode not in (0, 3):
            bad.append(f"{name} ended with {running.returncode}")
    page = HERE / "RESULTS.md"
    page.write_text(with_sections(page.read_text(), measured()))
    print("\n" + ("\n".join(bad) or "all well") + f"\nwritten to {page}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
