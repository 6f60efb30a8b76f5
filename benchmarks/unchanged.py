"""How long scripts without outlast calls stand still after a SIGKILL: `outlast run` and torchrun.

    python benchmarks/unchanged.py
    python benchmarks/unchanged.py --scripts gpt gan --of outlast torchrun-own-store --repeats 5

The scripts are those of tests/drills/foreign/scripts/unchanged, two ranks each. The time is from
the signal to the first optimizer step of the processes that were started again, less one step.
Which step that is depends on the script's own checkpoints, and is the same under all launchers.
Each strike is at a fresh start of the script, because they are short: rank 0 and rank 1 in turn.

torchrun is measured as it comes, and with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 (own-store), which
lets it come back where its shared store does not. Steps are paced by 50 ms for all.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from side_by_side import HOME, PEERS, Contestant, Strike, Trial, summary, write_result

UNCHANGED = HOME / "tests" / "drills" / "foreign" / "scripts" / "unchanged"
ARGUMENTS = {"gpt": ("--resume",), "reference": ("--amp", "--resume", "checkpoint.pth")}
SCRIPTS = ("gpt", "gan", "reference", "callbacks")
WORKERS = 2
LIMIT_S = 60.0  # torchrun comes back within half of this, or not at all


def contestants(script: str) -> list[Contestant]:
    """Return the launchers, each with this script."""
    words = (str(PEERS / "timed.py"), str(UNCHANGED / f"{script}.py"), *ARGUMENTS.get(script, ()))
    paced = {"PACED_S": "0.05"}
    torchrun = (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(WORKERS), "--max-restarts", "100", *words),
    )
    outlast = (
        *(str(Path(sys.executable).with_name("outlast")), "run", "--run-dir", "{folder}/run"),
        *("--nproc-per-node", str(WORKERS), *words),
    )
    own_store = {**paced, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return [
        Contestant("outlast", outlast, paced, limit_s=LIMIT_S, workers=WORKERS),
        Contestant("torchrun", torchrun, paced, limit_s=LIMIT_S, workers=WORKERS),
        Contestant("torchrun-own-store", torchrun, own_store, limit_s=LIMIT_S, workers=WORKERS),
    ]


def strike_once(contestant: Contestant, rank: int) -> Strike | None:
    """Start a contestant and kill one of its ranks. Return None if it never trained."""
    with Trial(contestant) as trial:
        strike = trial.strike(rank, signal.SIGKILL)
        if strike is None:
            print(f"{contestant.name} never trained:\n{trial.output()}", file=sys.stderr)
        return strike


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    everybody = [one.name for one in contestants(SCRIPTS[0])]
    known = sorted(path.stem for path in UNCHANGED.glob("*.py"))
    parser.add_argument("--scripts", nargs="+", choices=known, default=list(SCRIPTS))
    parser.add_argument("--of", nargs="+", choices=everybody, default=everybody)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    found = {}
    for script in args.scripts:
        chosen = [one for one in contestants(script) if one.name in args.of]
        strikes: dict[str, list[Strike]] = {one.name: [] for one in chosen}
        for number in range(args.repeats):
            for one in chosen:
                if strike := strike_once(one, number % WORKERS):
                    strikes[one.name].append(strike)
                    back = "never" if strike.seconds is None else f"{strike.seconds:.3f} s"
                    print(f"  {script:<12}{one.name:<20}rank {strike.rank}  {back}", flush=True)
        for name, struck in strikes.items():
            one = found[f"{script} {name}"] = summary(struck)
            print(
                f"{script:<12}{name:<20}back {one['came_back']} of {one['strikes']}"
                f"  median {one['median_s']} s  most {one['max_s']} s",
                flush=True,
            )
    print(f"written to {write_result('unchanged', found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
