"""How long one lost worker of four holds up the training: outlast beside torchrun and torchft.

All train the same model, and are timed by the same clock.

    python benchmarks/mttr.py                        SIGKILL
    python benchmarks/mttr.py --signal SIGSTOP       a worker that hangs
    python benchmarks/mttr.py --of outlast-hot torchrun-own-store --repeats 10 --torchft-python
    /path/to/python
    python benchmarks/mttr.py --against ../before --repeats 12
                                                     beside the outlast of another checkout

Against another checkout both are started anew `--repeats` times, the first one changing, and struck
STRIKES times in each start. The figure is the ratio of the medians of a start's strikes.

Ranks are struck in random order, rank 0 included. torchft is measured if an interpreter is named
that has it. torchrun is measured with and without TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 (own-store);
under SIGSTOP with a group time-out of 10 s, as torch's own is 30 minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from _timing import paired_ratio
from side_by_side import (
    PEERS,
    WORKERS,
    Contestant,
    Strike,
    Trial,
    outlast,
    summary,
    torchrun,
    write_result,
)

ENDLESS = ("--steps", "1000000")
STRIKES = 5  # in each start, against another checkout


def a_hot_spare_stands_ready(folder: Path) -> bool:
    """Return whether `outlast status` of the run in this folder shows a hot spare."""
    said = subprocess.run(
        [str(Path(sys.executable).with_name("outlast")), "status", str(folder / "run"), "--json"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return said.returncode == 0 and any(
        spare["kind"] == "hot" for spare in json.loads(said.stdout)["spares"]
    )


def contestants(how: signal.Signals, torchft: str | None) -> list[Contestant]:
    """Return who is struck by this signal. `torchft`: an interpreter that has it, if there is."""
    stopped = how == signal.SIGSTOP
    saving = (*ENDLESS, "--checkpoint", "{folder}/checkpoint.pt")
    restarts = ("--standalone", "--max-restarts", "100")
    # torch's 30 minutes would be waited for in full
    short = (*saving, "--timeout", "10") if stopped else saving
    few = 2 if stopped else 1_000
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    everybody = [
        Contestant(
            "outlast-hot", outlast("--spares", "1", script=ENDLESS), ready=a_hot_spare_stands_ready
        ),
        Contestant("outlast-respawn", outlast(script=ENDLESS)),
        Contestant("torchrun-own-store", torchrun(*restarts, script=short), own_store, most=few),
    ]
    if not stopped:
        everybody.append(
            Contestant("torchrun", torchrun(*restarts, script=short), most=3, limit_s=90)
        )
    if torchft:
        base = Contestant(
            "", (torchft, str(PEERS / "with_torchft.py"), *ENDLESS), limit_s=180, most=few
        )
        everybody += [
            replace(
                base, name="torchft-heartbeat-1s", command=(*base.command, "--heartbeat-ms", "1000")
            ),
            replace(base, name="torchft-heartbeat-5s"),
        ]
    return everybody


def strike_all(
    contestant: Contestant, how: signal.Signals, repeats: int, chance: random.Random
) -> list[Strike]:
    """Strike a contestant `repeats` times. Start it again if it does not come back."""
    done: list[Strike] = []
    while len(done) < repeats:
        with Trial(contestant) as trial:
            while len(done) < repeats:
                strike = trial.strike(chance.randrange(WORKERS), how)
                if strike is None:
                    print(
                        f"{contestant.name} never trained with {WORKERS}"
                        f" workers:\n{trial.output()}",
                        file=sys.stderr,
                    )
                    return done
                done.append(strike)
                print(
                    f"  {contestant.name:<24}rank {strike.rank} "
                    f" {'never' if strike.seconds is None else f'{strike.seconds:.3f} s'}",
                    flush=True,
                )
                if strike.seconds is None:
                    break
    return done


def against(source: Path, how: signal.Signals, rounds: int, chance: random.Random) -> dict:
    """Return both summaries, and the ratio of this checkout's medians to the other's."""
    ours = contestants(how, None)[0]
    theirs = replace(ours, name="before", source=source)
    struck: dict[str, list[Strike]] = {ours.name: [], theirs.name: []}
    medians: dict[str, list[float]] = {ours.name: [], theirs.name: []}
    for number in range(rounds):
        for one in (ours, theirs) if number % 2 else (theirs, ours):
            strikes = strike_all(one, how, STRIKES, chance)
            struck[one.name] += strikes
            back_s = [strike.seconds for strike in strikes if strike.seconds is not None]
            medians[one.name].append(statistics.median(back_s))
    ratio = paired_ratio(medians[ours.name], medians[theirs.name])
    print(f"\noutlast beside before, {rounds} starts of each: {ratio.text(unit=' x')}")
    return {name: summary(strikes) for name, strikes in struck.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--signal",
        type=lambda name: signal.Signals[name],
        default=signal.SIGKILL,
        help="SIGKILL or SIGSTOP",
    )
    parser.add_argument(
        "--repeats", type=int, default=10, help="of each; fewer where one takes minutes"
    )
    parser.add_argument("--of", nargs="*", help="these only; nothing is written then")
    parser.add_argument(
        "--against",
        type=Path,
        help="a checkout of outlast, with its C part built; nothing is written then",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--torchft-python", help="an interpreter that has torchft and this torch")
    args = parser.parse_args()

    chosen = [
        one
        for one in contestants(args.signal, args.torchft_python)
        if not args.of or one.name in args.of
    ]
    results = {}
    if args.against:
        chosen, source = [], args.against.resolve() / "src"
        results = against(source, args.signal, args.repeats, random.Random(args.seed))
    for contestant in chosen:
        results[contestant.name] = summary(
            strike_all(
                contestant,
                args.signal,
                min(args.repeats, contestant.most),
                random.Random(args.seed),
            )
        )
    print(
        f"\n{args.signal.name}, {WORKERS} workers, first new commit less one"
        f" step\n{'':26}{'came back':>10}{'median s':>10}{'max s':>10}{'step s':>10}"
    )
    for who, one in results.items():
        figures = "".join(
            f"{'-' if one[key] is None else format(one[key], '.3f'):>10}"
            for key in ("median_s", "max_s", "step_s")
        )
        print(f"  {who:<24}{one['came_back']:>5} of {one['strikes']:<2}{figures}")
    if not args.of and not args.against:
        print(f"written to {write_result(f'mttr-{args.signal.name.lower()}', results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
