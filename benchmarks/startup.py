"""How long a command takes to say what it can do, beside a bare interpreter that does nothing.

    python benchmarks/startup.py [--rounds N]

Each round starts each of them once, one after the other; times are processor seconds of the
process, so that others on the machine weigh less. Goal: 0.3 s each. Exit code 0, or 1 where the
goal is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from _timing import summarise

GOAL_S = 0.3
OUTLAST = str(Path(sys.executable).with_name("outlast"))
BARE = (sys.executable, "-c", "pass")
COMMANDS = ((), ("diagnose",), ("sim",), ("run",), ("policy",), ("plan",), ("calibrate",))


def processor_s(command: tuple[str, ...]) -> float:
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    contestants = {"python -c pass": BARE} | {
        " ".join(("outlast", *words, "--help")): (OUTLAST, *words, "--help") for words in COMMANDS
    }
    took_s: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, command in contestants.items():
            took_s[name].append(processor_s(command))
    bare_s = summarise(took_s["python -c pass"]).median
    slowest_s = 0.0
    for name, samples in took_s.items():
        found = summarise(samples)
        slowest_s = max(slowest_s, found.median)
        print(
            f"{name:28} {found.text(scale=1e3, unit=' ms', digits=0):>22}  "
            f" {found.median / bare_s:.1f} x a bare interpreter"
        )
    return int(slowest_s > GOAL_S)


if __name__ == "__main__":
    sys.exit(main())
