"""Does the planner foresee real runs?

Real training is struck by real SIGKILLs, fitted once, and predicted where it has never been.

    make validate-plan-live                             about 40 minutes; nothing else should use
                                                        the cores
    python benchmarks/validate_plan/live.py --seconds 600 --strike-each 5 --keep FOLDER

0. A short run is struck now and then, to see how long a recovery takes on this machine. Strikes
   come eight times as far apart from then on: nearer than five times, outlast ends a run sooner or
   later, since six strikes in a row before a step is done are a crash loop; much further, and
   hardly any finds the spare spent, so that nothing is learned of a respawn.
1. One run (FSDP2, `job.py`) of one world size and one rate of strikes is fitted: phases by rung,
   what a step and a snapshot take.
2. Six runs of other world sizes, rates, snapshot intervals and spares are predicted, and the
   predictions are printed and written down with their time.
3. They are run, and scored: lost time (1 - ETTR), the 90 % interval of one run, median MTTR, beside
   the naive predictor.
Strikes are a Poisson process, drawn ahead from `--seed`; a prediction knows its rate only, but for
the column that says so. Exit code 1 unless all that is wanted is reached.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.validate_plan.fit import Fit, fit
from benchmarks.validate_plan.measured import Measured, measured
from benchmarks.validate_plan.predict import Prediction, Variant, predict
from benchmarks.validate_plan.runs import Ran, carry_out_run
from benchmarks.validate_plan.score import Row, lines, table
from benchmarks.validate_plan.strikes import Strike, draw
from outlast.errors import UsageError
from outlast.runtime.ledger.view import look

PAUSE_S = 0.04
PROBE_S, PROBE_EACH_S = 60.0, 5.0
APART = 8.0  # times what a recovery takes
FITTED = Variant(
    "fitted", world_size=3, mttf_s=1.0, snapshot_every=1, spares=1, duration_s=0.0, seed=0
)
TARGETS = (  # mttf_s is in units of `--strike-each` here
    replace(FITTED, name="more strikes", mttf_s=0.75),
    replace(FITTED, name="fewer strikes", mttf_s=1.5),
    replace(FITTED, name="two ranks", world_size=2, mttf_s=0.75),
    replace(FITTED, name="four ranks", world_size=4),
    replace(FITTED, name="no spare", spares=0),
    # nearer, and steps done again use up the budget of replacements
    replace(FITTED, name="an image each 20 steps", mttf_s=1.5, snapshot_every=20),
)


def said(text: str = "") -> None:
    print(text, flush=True)


def strikes_of(variant: Variant) -> list[Strike]:
    return draw(
        seed=variant.seed,
        mttf_s=variant.mttf_s,
        duration_s=variant.duration_s,
        world_size=variant.world_size,
    )


def carried_out(variant: Variant, folder: Path) -> Ran:
    ran = carry_out_run(
        variant,
        strikes_of(variant),
        folder / variant.name.replace(" ", "-").replace(",", ""),
        pause_s=PAUSE_S,
    )
    told = ran.wrong if ran.run is None else told_of(ran.run)
    said(
        f"  {clock()}  {variant.name}: {told}; {ran.busy_cores:.2f} cores busy, {ran.others:.1f}"
        " other programs on them"
    )
    return ran


def kept(folder: Path) -> Ran:
    records = look(str(folder)).records
    run = measured(records)
    said(f"  fitted to the run in {folder}: {told_of(run)}")
    return Ran(records, run, (), 0.0, 0.0, "")


def told_of(run: Measured) -> str:
    rungs = ", ".join(f"{count} {rung}" for rung, count in sorted(run.rungs.items()))
    lost = ", ".join(
        f"{cause} {value:.2f}"
        for cause, value in run.seconds.items()
        if value >= 0.005 and cause not in ("startup", "shutdown")
    )
    mttr = "-" if run.mttr_median_s is None else f"{run.mttr_median_s:.3f} s"
    return (
        f"ETTR {run.ettr:.1%}, {run.interruptions} interruptions in {run.families} families"
        f" ({rungs}), MTTR {mttr}, {run.steps} steps; seconds: {lost}"
    )


def told_of_fit(known: Fit) -> str:
    rate_per_s, low_per_s, high_per_s = known.rate_per_s
    rungs = "; ".join(
        f"{rung.value} {one.count} times: "
        + ", ".join(
            f"{name} {statistics.median(getattr(one, f'{name}_s')):.3f} s"
            for name in ("detect", "regroup", "restore", "first")
        )
        for rung, one in known.phases.items()
    )
    return (
        f"fitted: step {known.step_s:.4f} s, of it productive {known.share:.1%}; snapshot"
        f" {known.stall_s * 1e3:.2f} ms; medians of {rungs}; a spent spare is replaced in"
        f" {known.refill_s:.2f} s; booked {known.booked:.1%} of the seconds between fault and state"
        f" in place; {known.again_s:.3f} s repeated beyond half a step; {known.others:.1f} other"
        f" programs on the cores; a strike each {1 / rate_per_s:.2f} s ({1 / high_per_s:.2f} to"
        f" {1 / low_per_s:.2f}), drawn with {known.mttf_s:g} s"
    )


def predictions(known: Fit, targets: Sequence[Variant]) -> list[Prediction]:
    cores = len(os.sched_getaffinity(0))
    return [
        predict(
            known,
            one,
            cores=cores,
            strikes_s=[strike.at_s for strike in strikes_of(one)],
            seed=one.seed,
        )
        for one in targets
    ]


def show_predictions(targets: Sequence[Variant], foreseen: Sequence[Prediction]) -> None:
    said(f"\npredicted at {clock()}, before any of these was run")
    for one, prediction in zip(targets, foreseen, strict=True):
        said(
            f"  {one.name}: ETTR {prediction.ettr:.2%} ({prediction.low:.2%} to"
            f" {prediction.high:.2%}), median MTTR {prediction.mttr_median_s:.3f} s,"
            f" {prediction.spare_share:.0%} find a spare, {prediction.ended:.0%} of such runs are"
            f" ended by outlast; with the strikes drawn for it {prediction.told_ettr:.2%}"
        )
    said()


def clock() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())


def machine() -> str:
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, Python"
        f" {platform.python_version()}, gloo on the CPU"
    )


def write(path: Path | None, facts: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=280.0, help="of each run that is predicted"
    )
    parser.add_argument(
        "--fit-seconds", type=float, default=280.0, help="of the run that is fitted"
    )
    parser.add_argument(
        "--strike-each",
        type=float,
        metavar="SECONDS",
        help=(
            "mean, of the fitted run; the others are struck each 0.75 to 1.5 times as long"
            f" (default: {APART:g} times what a recovery takes here)"
        ),
    )
    parser.add_argument("--seed", type=int, default=1, help="of the strikes; run k has seed + k")
    parser.add_argument(
        "--fitted",
        type=Path,
        metavar="FOLDER",
        help="a run's folder, kept from before: fit to that, and run none",
    )
    parser.add_argument("--only", type=int, help="the first so many predictions")
    parser.add_argument(
        "--json", type=Path, help="write all of it here; the predictions before the runs begin"
    )
    parser.add_argument("--keep", type=Path, help="keep the runs' folders here")
    return parser.parse_args()


def probed(folder: Path, *, seed: int) -> float | None:
    """Return how far apart strikes are to come on this machine; None: the run tells nothing."""
    variant = replace(FITTED, name="probe", mttf_s=PROBE_EACH_S, duration_s=PROBE_S, seed=seed)
    ran = carried_out(variant, folder)
    return (
        None
        if ran.run is None or ran.run.mttr_median_s is None
        else round(APART * ran.run.mttr_median_s, 1)
    )


def validate(args: argparse.Namespace, folder: Path) -> int:
    said(
        f"{machine()}; each run lasts {args.seconds:g} s, the fitted one {args.fit_seconds:g} s;"
        f" steps pause for {PAUSE_S:g} s"
    )
    each_s = probed(folder, seed=args.seed + 100) if args.strike_each is None else args.strike_each
    if each_s is None:
        return 1
    fitted = replace(FITTED, duration_s=args.fit_seconds, mttf_s=each_s, seed=args.seed)
    targets = [
        replace(
            one, duration_s=args.seconds, mttf_s=one.mttf_s * each_s, seed=args.seed + 1 + number
        )
        for number, one in enumerate(TARGETS[: args.only])
    ]
    said(f"the fitted run is struck each {each_s:g} s")
    first = carried_out(fitted, folder) if args.fitted is None else kept(args.fitted)
    if first.records is None or first.run is None:
        return 1
    try:
        known = fit(
            first.records,
            mttf_s=fitted.mttf_s,
            spares=fitted.spares,
            pause_s=PAUSE_S,
            others=first.others,
        )
    except UsageError as error:
        said(f"error: {error}")
        return 1
    said(f"  {told_of_fit(known)}")
    foreseen = predictions(known, targets)
    facts = predicted(fitted, first, targets, foreseen)
    show_predictions(targets, foreseen)
    write(args.json, facts)
    done = [carried_out(one, folder) for one in targets]
    rows = [
        Row(
            one,
            prediction,
            known.ettr,
            ran.run,
            sum(struck.pid > 0 for struck in ran.struck),
            ran.wrong,
        )
        for one, prediction, ran in zip(targets, foreseen, done, strict=True)
    ]
    verdicts = lines(rows)
    said("\n" + table(rows) + "\n")
    for line in verdicts:
        said(
            f"{'' if line.reached is None else 'reached    ' if line.reached else 'NOT reached'} "
            f" {line.text}".lstrip()
        )
    runs = [
        {
            "run": None if ran.run is None else asdict(ran.run),
            "wrong": ran.wrong,
            "busy_cores": ran.busy_cores,
            "others": ran.others,
        }
        for ran in done
    ]
    write(args.json, facts | {"runs": runs, "lines": [asdict(line) for line in verdicts]})
    return 0 if all(line.reached is not False for line in verdicts) else 1


def predicted(
    fitted: Variant, first: Ran, targets: Sequence[Variant], foreseen: Sequence[Prediction]
) -> dict[str, Any]:
    """Return what is written down before the runs that were predicted begin."""
    return {
        "machine": machine(),
        "fitted": {
            "variant": asdict(fitted),
            "run": asdict(first.run),
            "busy_cores": first.busy_cores,
            "others": first.others,
        },
        "predicted_at": clock(),
        "predicted": [
            {"variant": asdict(one), **asdict(prediction)}
            for one, prediction in zip(targets, foreseen, strict=True)
        ],
    }


def main() -> int:
    args = arguments()
    # so that the run under way is ended too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(
        prefix="validate-plan-", ignore_cleanup_errors=True
    ) as temporary:
        return validate(args, args.keep or Path(temporary))


if __name__ == "__main__":
    raise SystemExit(main())
