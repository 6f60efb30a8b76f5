"""Train under fire, train again undisturbed, and compare: the proof that a fault costs time and
nothing else.

    make run                  or: python examples/drill.py --seed 7

Four workers and a spare train examples/train_gpt.py while killer.py, a process of its own, sends
SIGKILL and SIGSTOP to workers at random moments. Then the same training runs alone. Ends with 1 if
a run failed, if the two models differ in a single bit, or if no fault was fired: a drill without a
fault proves nothing.
"""

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUTLAST = str(Path(sys.executable).with_name("outlast"))
BOLD, RED, GREEN, PLAIN = (
    ("\033[1m", "\033[31m", "\033[32m", "\033[0m")
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ
    else ("",) * 4
)


def headline(text: str) -> None:
    print(f"\n{BOLD}== {text}{PLAIN}", flush=True)


def train(folder: Path, args: argparse.Namespace, *, under_fire: bool) -> str:
    """One run of the example; its lines are shown as they come.

    Gives the digest, or nothing if the run failed.
    """
    flags = [
        "--nproc-per-node",
        str(args.workers),
        "--spares",
        str(args.spares),
        "--run-dir",
        str(folder),
    ]
    script = [str(HERE / "train_gpt.py"), "--steps", str(args.steps), "--seed", str(args.seed)]
    digest = ""
    with subprocess.Popen(
        [OUTLAST, "run", *flags, *script], stdout=subprocess.PIPE, text=True
    ) as run:
        killer = start_killer(folder, args) if under_fire else None
        for line in run.stdout or ():
            print(line, end="", flush=True)
            if "digest " in line:
                digest = line.split("digest ")[1].strip()
    if killer:
        killer.terminate()
        killer.wait(timeout=30)
    if run.returncode:
        print(f"{RED}outlast run ended with {run.returncode}{PLAIN}", file=sys.stderr)
    return "" if run.returncode else digest


def start_killer(folder: Path, args: argparse.Namespace) -> subprocess.Popen:
    flags = [
        "--seed",
        str(args.seed),
        "--log",
        str(injections_of(folder)),
        "--until-step",
        str(args.steps - 20),
    ]
    return subprocess.Popen([sys.executable, str(HERE / "killer.py"), str(folder), *flags])


def injections_of(folder: Path) -> Path:
    return folder.with_suffix(".injections.jsonl")


def report_of(folder: Path) -> dict:
    said = subprocess.run(
        [OUTLAST, "report", str(folder), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(said.stdout)


def judge(report: dict, faults: list[dict], fire: str, calm: str) -> list[str]:
    """What is wrong; empty if all is well."""
    wrong = []
    if not fire or not calm:
        wrong.append("a run failed")
    elif fire != calm:
        wrong.append("the two models differ")
    if not faults:
        wrong.append("no fault was fired, so nothing is proven")
    if len(report["interruptions"]) < len(faults):
        wrong.append(
            f"{len(faults)} faults were fired, but the ledger has {len(report['interruptions'])}"
            " interruptions"
        )
    if lost := sum(one["steps_lost"] for one in report["interruptions"]):
        wrong.append(f"{lost} committed steps were lost")
    return wrong


def show(report: dict, faults: list[dict], fire: str, calm: str) -> None:
    mttr_s = [one["mttr_s"] for one in report["interruptions"] if one["mttr_s"] is not None]
    kills = sum(fault["signal"] == "SIGKILL" for fault in faults)
    one_step = f"one step takes {report['step_median_s'] or 0:.3f} s of it"
    rows = {
        "faults fired": f"{len(faults)}: {kills} SIGKILL, {len(faults) - kills} SIGSTOP",
        "interruptions": (
            f"{len(report['interruptions'])},"
            f" {sum(one['steps_repeated'] for one in report['interruptions'])} steps repeated"
        ),
        "ETTR": (
            f"{report['ettr']:.1%} of all rank-seconds; {report['ettr_training']:.1%} without"
            " start-up and shutdown"
        ),
        "MTTR": (
            f"median {statistics.median(mttr_s):.3f} s, maximum {max(mttr_s):.3f} s; {one_step}"
            if mttr_s
            else "none measured"
        ),
        "digest under fire": fire or "none",
        "digest undisturbed": calm or "none",
        "digests": "equal" if fire and fire == calm else "NOT EQUAL",
    }
    for name, value in rows.items():
        print(f"  {name:<20}{value}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Train under fire, then undisturbed, and compare.")
    parser.add_argument(
        "--seed",
        type=int,
        default=secrets.randbelow(100_000),
        help="of the training and of the killer (random)",
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--spares", type=int, default=1)
    args = parser.parse_args()

    stem = time.strftime(f"%Y%m%dT%H%M%SZ-drill-{args.seed}", time.gmtime())
    under_fire, undisturbed = Path("runs", f"{stem}-fire"), Path("runs", f"{stem}-calm")
    under_fire.parent.mkdir(exist_ok=True)
    headline(
        f"under fire: {args.workers} workers, {args.spares} spare, {args.steps} steps, seed"
        f" {args.seed}"
    )
    fire = train(under_fire, args, under_fire=True)
    headline("undisturbed: the same training, and nobody shoots")
    calm = train(undisturbed, args, under_fire=False)

    headline(f"what happened (outlast report {under_fire})")
    subprocess.run([OUTLAST, "report", str(under_fire)], check=False)
    log = injections_of(under_fire)
    faults = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    report = report_of(under_fire)
    headline(f"result, seed {args.seed}")
    show(report, faults, fire, calm)
    wrong = judge(report, faults, fire, calm)
    print(
        "\n"
        + (
            "\n".join(f"{RED}failed: {one}{PLAIN}" for one in wrong)
            or f"{GREEN}nothing was lost{PLAIN}"
        ),
        flush=True,
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
