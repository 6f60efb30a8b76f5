"""Train on several hosts, lose one of them, train again undisturbed, and compare.

    make run ARGS="--hosts 3"     or, as root: python examples/lost_host.py --hosts 3

The hosts are network namespaces on this machine, each with an address, a process tree and a
/dev/shm of its own. All but one of them train examples/train_gpt.py, one worker on each, and the
last one stands ready. Then everything on one host that trains is killed at once. It ends with 1 if
a launcher failed, if the two models differ in a single bit, or if a committed step was lost.
"""

import argparse
import json
import os
import random
import secrets
import subprocess
import sys
import time
from pathlib import Path

from outlast.runtime.drill.drill_hosts import Hosts, may_be_made

HERE = Path(__file__).resolve().parent
OUTLAST = str(Path(sys.executable).with_name("outlast"))
PORT = 29_400
TOKEN = "a token of this machine alone, 32 bytes"
LEASE_S = "3"  # all hosts share the cores of this machine, so each is held up by the others
END_S = 300.0  # a launcher that is not done by then has failed


def headline(text: str) -> None:
    print(f"\n== {text}", flush=True)


def report_of(folder: Path) -> dict:
    said = subprocess.run(
        [OUTLAST, "report", str(folder), "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(said.stdout)


def digest_of(printed: str) -> str:
    """Return the digest that a run of the example has printed, or ""."""
    lines = [line for line in printed.splitlines() if line.startswith("digest ")]
    return lines[-1].split()[1] if lines else ""


def script_of(args: argparse.Namespace) -> list[str]:
    """Return the training script and its options.

    There is no dropout, because the random state of a lost host is lost with it.
    """
    given = ["--steps", str(args.steps), "--seed", str(args.seed), "--dropout", "0"]
    return [str(HERE / "train_gpt.py"), *given]


def step_of(folder: Path) -> int:
    """Return the newest step that the run's ledger has; 0 while there is no ledger."""
    return report_of(folder)["steps"] if (folder / "ledger.db").exists() else 0


def train(folder: Path, args: argparse.Namespace) -> tuple[str, int]:
    """Train on hosts, and lose one. Return the digest, or nothing, and the step of the loss."""
    chance = random.Random(args.seed)
    # host 0 leads the run, and the last one stands ready
    lost = chance.randrange(1, args.hosts - 1)
    flags = ["--nnodes", str(args.hosts - 1), "--spare-nodes", "1", "--run-dir", str(folder)]
    flags += ["--lease", LEASE_S]
    script = script_of(args)
    env = os.environ | {"OUTLAST_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    with Hosts(args.hosts) as hosts:
        command = [OUTLAST, "run", "--rdzv-endpoint", f"{hosts.address(0)}:{PORT}", *flags, *script]
        outs = [folder.with_suffix(f".host{host}.out") for host in range(args.hosts)]
        runs = []
        for host, out in enumerate(outs):
            with out.open("wb") as file:
                runs.append(hosts.start(host, command, out=file, env=env))
        at = chance.randrange(args.steps // 4, args.steps // 2)
        print(f"host {lost} is to be lost after step {at}; its output and others: {outs[0]}, ...")
        step = wait_for_step(folder, at, runs[0])
        if step:
            hosts.kill(lost)
            print(f"host {lost} was killed after step {step}", flush=True)
        codes = [run.wait(END_S) for host, run in enumerate(runs) if host != lost or not step]
    print(outs[0].read_text(errors="replace")[-3000:])
    if any(codes):
        print(f"the launchers ended with {codes}", file=sys.stderr)
    printed = "".join(out.read_text(errors="replace") for out in outs)
    return ("" if any(codes) else digest_of(printed)), step


def wait_for_step(folder: Path, at: int, leader: subprocess.Popen) -> int:
    """Return the step that the run has come to, once it is `at`; 0 if it has ended before."""
    while leader.poll() is None:
        if (step := step_of(folder)) >= at:
            return step
        time.sleep(0.2)
    return 0


def main(words: list[str] | None = None) -> int:
    """Run the two trainings, and return the exit code."""
    parser = argparse.ArgumentParser(description="Lose one of several hosts, and compare.")
    parser.add_argument("--hosts", type=int, default=3, help="3 or more; one stands ready")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(100_000))
    args = parser.parse_args(words)
    if args.hosts < 3:
        parser.error("--hosts takes 3 or more: one leads, one is lost, one stands ready")
    if why := may_be_made():
        print(f"error: no hosts can be made here: {why}", file=sys.stderr)
        print("\nhint: run it as root, where network namespaces are permitted", file=sys.stderr)
        return 2
    stem = time.strftime(f"%Y%m%dT%H%M%SZ-hosts-{args.seed}", time.gmtime())
    under_fire, undisturbed = Path("runs", f"{stem}-fire"), Path("runs", f"{stem}-calm")
    under_fire.parent.mkdir(exist_ok=True)
    headline(f"{args.hosts} hosts, one of them in reserve; {args.steps} steps, seed {args.seed}")
    fire, step = train(under_fire, args)
    headline("undisturbed: the same training on one host, and nobody shoots")
    script = script_of(args)
    flags = ["--nproc-per-node", str(args.hosts - 1), "--run-dir", str(undisturbed)]
    calm = subprocess.run([OUTLAST, "run", *flags, *script], stdout=subprocess.PIPE, text=True)
    print(calm.stdout, end="")
    return judge(report_of(under_fire), fire, digest_of(calm.stdout), step)


def judge(report: dict, fire: str, calm: str, step: int) -> int:
    """Say what came of it, and return the exit code."""
    headline("result")
    for one in report["interruptions"]:
        back = f"{one['resumed_s'] - one['detected_s']:.3f} s" if one["resumed_s"] else "never"
        print(f"  {one['reason']}")
        print(f"  a new step {back} after that was noticed, {one['steps_lost']} steps lost")
    print(
        f"  digest with a lost host  {fire or 'none'}\n  digest undisturbed       {calm or 'none'}"
    )
    wrong = []
    if not step:
        wrong.append("no host was lost, so nothing is proven")
    if not fire or fire != calm:
        wrong.append("the two models differ" if fire and calm else "a run failed")
    if any(one["steps_lost"] for one in report["interruptions"]):
        wrong.append("committed steps were lost")
    if not report["interruptions"]:
        wrong.append("the ledger has no interruption")
    said = [f"failed: {one}" for one in wrong]
    print("\n" + ("\n".join(said) or "nothing was lost"), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
