"""Is anybody blamed or killed in a healthy run?

Trains under `outlast run` beside processes that keep the cores busy, and asks the ledger.

    python benchmarks/incidents/healthy.py --seconds 7200

`--busy` processes burn processor time in spells drawn from the seed: 0.2 to 5 s of work, as long of
rest. After so many seconds the run is ended by SIGTERM. Healthy: no interruption in the ledger,
exit code 0 or 143, and `outlast diagnose` over the run's folder names no rank, no suspect and no
class. Else exit code 1. Steps are counted too: a run that makes none proves nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
OUTLAST = str(Path(sys.executable).with_name("outlast"))
BURNER = """
import random, sys, time
chance = random.Random(int(sys.argv[1]))
while True:
    until_s = time.monotonic() + chance.uniform(0.2, 5.0)
    while time.monotonic() < until_s:
        sum(range(10_000))
    time.sleep(chance.uniform(0.2, 5.0))
"""
EPILOGUE_S = 60.0


@contextmanager
def busy(count: int, seed: int) -> Iterator[None]:
    burners = [
        subprocess.Popen(
            [sys.executable, "-c", BURNER, str(seed + number)], stdin=subprocess.DEVNULL
        )
        for number in range(count)
    ]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait(10)


def train(folder: Path, args: argparse.Namespace) -> int:
    """Train, and return the exit code."""
    command = [
        OUTLAST,
        "run",
        "--nproc-per-node",
        str(args.workers),
        "--run-dir",
        str(folder),
        "--checkpoint-every",
        "200",
    ]
    command += [
        str(HERE / "healthy_training.py"),
        *(["--compile", args.compile] if args.compile else []),
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder.parent / "output.txt").open("wb") as out:
        run = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env
        )
    try:
        return run.wait(args.seconds)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGTERM)
        return run.wait(EPILOGUE_S)
    finally:
        if run.poll() is None:
            run.kill()  # its workers die with it
            run.wait(10)


def asked(*words: str) -> dict[str, Any]:
    done = subprocess.run([OUTLAST, *words, "--json"], capture_output=True, text=True, timeout=120)
    if done.returncode not in (0, 3):
        raise SystemExit(f"outlast {' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def wrong_with(code: int, report: Mapping[str, Any], verdict: Mapping[str, Any]) -> list[str]:
    """Return all findings that a healthy run should not have; none if all is well."""
    wrong = []
    if code not in (0, 128 + signal.SIGTERM):
        wrong.append(f"exit code {code}: {report['reason']}")
    wrong += [
        f"an interruption: {one['mechanism']}, ranks {one['ranks']}, step {one['step']}:"
        f" {one['reason']}"
        for one in report["interruptions"]
    ]
    if not report["steps"]:
        wrong.append("no step was made, so nothing is proven")
    if verdict["ranks"] or verdict["suspects"]:
        wrong.append(
            f"blamed: ranks {verdict['ranks']}, suspects {verdict['suspects']}: {verdict['reason']}"
        )
    if verdict["class"] != "unknown":
        wrong.append(
            f"a cause for nothing: {verdict['class']} {verdict['confidence']:.2f}:"
            f" {verdict['reason']}"
        )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--compile", default="aot_eager", help="a backend of torch.compile, or nothing"
    )
    parser.add_argument("--run-dir", type=Path, help="keep the run's folder here")
    args = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="healthy-") as temporary:
        folder = args.run_dir or Path(temporary) / "run"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with busy(args.busy, args.seed):
            code = train(folder, args)
        report, verdict = asked("report", str(folder)), asked("diagnose", str(folder))
        wrong = wrong_with(code, report, verdict)
        if code not in (0, 143):
            print((folder.parent / "output.txt").read_text()[-4000:])
    spent = f"{time.monotonic() - began_s:.0f} s, {report['steps']} steps"
    print(
        f"{spent}, exit code {code}, {len(report['interruptions'])} interruptions, verdict"
        f" {verdict['class']}"
    )
    print("\n".join(wrong) or "nobody was blamed, nobody was killed")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
