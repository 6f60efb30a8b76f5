"""Kill and stop random workers of a run at random moments, from outside.

    python examples/killer.py RUN_FOLDER --seed 7 --log injections.jsonl

It knows what any stranger could know: the pids that `outlast status RUN --json` prints. Each line
of the log is one fault: {"at_s": CLOCK_MONOTONIC seconds, "signal", "pid", "rank", "step"}. It ends
when the run does.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

OUTLAST = str(Path(sys.executable).with_name("outlast"))


def status_of(run_folder: Path) -> dict:
    """The run as `outlast status` sees it; nothing while it has not begun."""
    said = subprocess.run(
        [OUTLAST, "status", str(run_folder), "--json"], capture_output=True, text=True, timeout=30
    )
    return json.loads(said.stdout) if said.returncode == 0 and said.stdout.strip() else {}


def signals(chance: random.Random) -> Iterator[signal.Signals]:
    """SIGKILL and SIGSTOP in random order, equally often in every four."""
    while True:
        four = [signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGSTOP]
        chance.shuffle(four)
        yield from four


def strike(pid: int, how: signal.Signals) -> bool:
    """False if the process was gone before."""
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill and stop random workers of a run.")
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True, help="one line of JSON for each fault")
    parser.add_argument(
        "--every",
        type=float,
        nargs=2,
        default=(3.0, 8.0),
        metavar=("LEAST_S", "MOST_S"),
        help="pause between two faults",
    )
    parser.add_argument(
        "--from-step", type=int, default=5, help="the first fault is not before this step"
    )
    parser.add_argument(
        "--until-step",
        type=int,
        default=sys.maxsize,
        help="no fault from this step on, so that each is survived before the end",
    )
    args = parser.parse_args()

    chance = random.Random(args.seed)
    order = signals(chance)
    launcher = os.getppid()  # if whoever started this is gone, nobody wants more faults
    with args.log.open("w", buffering=1) as log:
        pause_s = chance.uniform(*args.every)
        while os.getppid() == launcher:
            time.sleep(pause_s)
            seen = status_of(args.run_folder)
            step = seen.get("step") or 0
            if step >= args.until_step or seen.get("state") in {
                "ended",
                "failed",
                "stopped",
                "lost",
            }:
                return
            victims = [worker for worker in seen.get("workers", []) if worker.get("pid")]
            if step < args.from_step or not victims:
                pause_s = 0.5
                continue
            victim, how, at_s = chance.choice(victims), next(order), time.monotonic()
            if strike(victim["pid"], how):
                log.write(
                    json.dumps(
                        {
                            "at_s": at_s,
                            "signal": how.name,
                            "pid": victim["pid"],
                            "rank": victim["rank"],
                            "step": step,
                        }
                    )
                    + "\n"
                )
                print(
                    f"killer: {how.name} to rank {victim['rank']} (pid {victim['pid']}) at step"
                    f" {step}",
                    flush=True,
                )
            pause_s = chance.uniform(*args.every)


if __name__ == "__main__":
    main()
