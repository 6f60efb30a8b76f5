"""What a calibration would have said of Titan's GPU boards before a date, and what came after it.

    python benchmarks/titan.py [--data ../shared/data/titan_gc_full.csv] [--json FILE] [--table
    FILE]

Two dates: before 2016 (the wave of failures that began then is not in the data) and before 2017 (it
is). Predicted is each later month's count of events. Boards that are in the machine in that month
are taken as known (who replaces boards knows where they are), for all predictors alike.

hazards        Poisson regression on cells of board-time (month x batch x cage x age): rate = batch
               and year of age x cage. An age bin with less than 5 % of its batch's board-time joins
               the one before, and what is older than anything seen has the rate of the last one. A
               batch that was never seen is taken as the other one.
clock          the same, but the cage makes boards age faster (heat), instead of making a rate
               higher at every age; half-year bins
constant       all events before the date over all board-time; last 12 months: of those months
Each as Gamma-Poisson (`P`: nothing but the rate is unsure) and with the spread between months
learnt from the months before the date (`NB`). The regressions have the second only; their
coefficients are drawn from the sandwich over months.

in 90 %   share of the held-out months whose count lies in the predicted 90 % interval;  log score
          mean of ln(probability given to what came); higher is better
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._titan import (
    AGES,
    AGES_PER_YEAR,
    CAGES,
    DAY_S,
    NEW,
    OLD,
    Boards,
    Cells,
    Floats,
    Whole,
    cells_of,
    read_boards,
    table_of,
)
from outlast.model.reliability import rate_interval_per_s
from outlast.planner.fit.counts import Prediction, fit_size, predict
from outlast.planner.fit.regression import PoissonFit, fit_poisson
from outlast.planner.fit.weibull import Lifetimes, decide_shape
from outlast.planner.spread import normal_quantile

CUTS = ("2016-01", "2017-01")
BATCHES = ("old", "new")
THIN = 0.05  # an age bin with less of its batch's board-time joins its neighbour
DRAWS = 200
SEED = 20
APART_DAYS = 1.0
CLOCKS = np.arange(1.0, 4.01, 0.1)  # how much faster boards of the upper cages may age


@dataclass(frozen=True)
class Forecast:
    """Hold what one predictor expects.

    expected    the counts of all months, in draws: (draws, months)
    size        the size of the negative binomial
    likelihood  the Poisson likelihood of the cells before the date, up to what is the same for all
                regressions; None for flat rates
    """

    name: str
    expected: Floats
    size: float
    likelihood: float | None = None


@dataclass(frozen=True)
class Score:
    name: str
    predicted: float  # a month, on average
    came: float
    inside: float
    width: float
    log_score: float
    likelihood: float | None


# --- predictors -----------------------------------------------------------------------------------


def bins_of(exposure: Floats, *, width: int) -> Whole:
    """Return the bin of each age, in twelfths of a year. A bin is `width` twelfths wide.

    The oldest bins are joined until they hold enough of the board-time that was seen.
    """
    bins = np.arange(AGES) // width
    top = int(bins[np.flatnonzero(exposure)[-1]])
    while top > 0 and exposure[bins >= top].sum() < THIN * exposure.sum():
        top -= 1
    return np.minimum(bins, top)


def batch_seen(cells: Cells, until: int) -> Whole:
    """Return for each batch the batch that its boards are taken for: OLD if it was never seen."""
    return np.array([one if cells.exposure[:until, one].sum() > 0 else OLD for one in (OLD, NEW)])


def hazards(cells: Cells, until: int, *, width: int = AGES_PER_YEAR) -> tuple[Forecast, PoissonFit]:
    taken = batch_seen(cells, until)
    bins = np.stack(
        [
            bins_of(cells.exposure[:until, taken[one]].sum(axis=(0, 1)), width=width)
            for one in (OLD, NEW)
        ]
    )
    level = np.zeros((2, CAGES, AGES), dtype=np.int64)
    level[:] = (taken[:, None] * AGES + bins)[:, None, :]
    years = width / AGES_PER_YEAR
    names = {
        int(one): f"{BATCHES[one // AGES]}, from year {one % AGES * years:g}"
        for one in np.unique(level)
    }
    columns: list[tuple[str, Floats]] = [
        (name, (level == one).astype(float)) for one, name in names.items()
    ]
    cage = np.broadcast_to(np.arange(CAGES)[:, None], level.shape)
    columns += [(f"cage {one}", (cage == one).astype(float)) for one in range(1, CAGES)]
    return _regress(
        "hazards" if width == AGES_PER_YEAR else f"hazards, bins of {years:g} years",
        cells,
        until,
        columns,
    )


def clock(
    cells: Cells, until: int, *, width: int = AGES_PER_YEAR // 2
) -> tuple[Forecast, PoissonFit, tuple[float, float]]:
    """Fit rates by age, where boards of the upper cages age faster.

    How much faster is what has the greatest likelihood. How sure that is, the interval leaves out.
    """
    taken = batch_seen(cells, until)
    exposure, count = cells.exposure[:until, OLD].sum(axis=0), cells.count[:until, OLD].sum(axis=0)

    def levels(clocks: tuple[float, ...]) -> Whole:
        """Return for each cage and age the bin of that age on the cage's clock."""
        ages = np.minimum(
            AGES - 1,
            ((np.arange(AGES) + 0.5)[None, :] * np.array(clocks)[:, None]).astype(np.int64),
        )
        watched = np.bincount(ages.ravel(), exposure.ravel(), AGES)
        return bins_of(watched, width=width)[ages]

    def likelihood(clocks: tuple[float, ...]) -> float:
        level = levels(clocks).ravel()
        seen, struck = np.bincount(level, exposure.ravel()), np.bincount(level, count.ravel())
        return float((struck * np.log((struck + 1e-9) / seen)).sum())

    scaled = [(1.0, float(a), float(b)) for a, b in itertools.product(CLOCKS, CLOCKS) if a <= b]
    best = max(
        (likelihood(tuple(one / clocks[-1] for one in clocks)), clocks) for clocks in scaled
    )[1]
    level = levels(tuple(one / best[-1] for one in best))
    both = np.stack([level, level if taken[NEW] == OLD else np.full_like(level, AGES)])
    columns = [
        (f"{BATCHES[one // AGES]}, bin {one % AGES}", (both == one).astype(float))
        for one in np.unique(both)
    ]
    forecast, fit = _regress("clock", cells, until, columns)
    return forecast, fit, (best[1], best[2])


def _regress(
    name: str, cells: Cells, until: int, columns: Sequence[tuple[str, Floats]]
) -> tuple[Forecast, PoissonFit]:
    """Fit a Poisson regression. Columns are of (batch, cage, age), the same in all months."""
    x = np.stack([column.ravel() for _, column in columns], axis=1)
    months = len(cells.months)
    exposure, count = cells.exposure.reshape(months, -1), cells.count.reshape(months, -1)
    fit = fit_poisson(
        np.tile(x, (until, 1)),
        names=[one for one, _ in columns],
        exposure=exposure[:until].ravel(),
        count=count[:until].ravel(),
        clusters=np.repeat(np.arange(until), x.shape[0]),
    )
    values, vectors = np.linalg.eigh(fit.covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = normal_quantile(np.random.Generator(np.random.PCG64(SEED)).random((DRAWS, x.shape[1])))
    drawn = np.stack(
        [exposure @ fit.rate(x, coefficients=fit.coefficients + root @ one) for one in normal]
    )
    size = fit_size(count[:until].sum(axis=1), exposure[:until] @ fit.rate(x))
    rate = fit.rate(x)
    likelihood = float((count[:until] * np.log(rate)).sum() - (exposure[:until] @ rate).sum())
    return Forecast(name, drawn, size, likelihood), fit


def flat(cells: Cells, until: int, *, months: int | None) -> list[Forecast]:
    """Forecast by one rate for all boards, with and without the spread between months.

    The rate is that of the last so many `months`; None: of all.
    """
    begin = 0 if months is None else until - months
    name = "constant" if months is None else f"last {months} months"
    exposure, count = cells.exposure.sum(axis=(1, 2, 3)), cells.count.sum(axis=(1, 2, 3))
    struck, watched = count[begin:until].sum(), exposure[begin:until].sum()
    expected = (struck + 0.5) / watched * exposure[None, :]
    return [
        Forecast(f"{name}, P", expected, struck + 0.5),
        Forecast(f"{name}, NB", expected, fit_size(count[begin:until], expected[0, begin:until])),
    ]


def score(forecast: Forecast, cells: Cells, held_out: range) -> Score:
    """Hold a forecast against the counts of the months that were held out."""
    came = cells.count.sum(axis=(1, 2, 3))
    predictions: list[tuple[Prediction, int]] = [
        (
            predict(forecast.expected[:, month], size=forecast.size, reach=int(came[month])),
            int(came[month]),
        )
        for month in held_out
    ]
    ends = [(one.quantile(0.05), one.quantile(0.95), y) for one, y in predictions]
    return Score(
        forecast.name,
        float(np.mean([one.mean for one, _ in predictions])),
        float(np.mean([y for _, y in predictions])),
        float(np.mean([low <= y <= high for low, high, y in ends])),
        float(np.mean([high - low for low, high, _ in ends])),
        float(np.mean([one.log_score(y) for one, y in predictions])),
        forecast.likelihood,
    )


# --- what is said ---------------------------------------------------------------------------------


def overview(boards: Boards, cells: Cells, say: Callable[[str], None]) -> None:
    kinds = {kind: boards.event_kind.count(kind) for kind in ("DBE", "OTB")}
    failures = int(boards.failures(apart_days=APART_DAYS).sum())
    say(
        f"{len(boards.names):,} boards, {cells.exposure.sum() * 365.25 * 24 / 1e6:.1f} million"
        f" board-hours, {len(boards.event_at):,} events ({kinds['DBE']:,} DBE, {kinds['OTB']:,}"
        f" OTB); {failures:,} without those within a day of another of the same board"
    )
    say(f"{'boards':<8}{'events':>8}{'hours each':>14}   90 % interval")
    for name, part in (
        ("all", slice(None)),
        ("old", slice(OLD, OLD + 1)),
        ("new", slice(NEW, NEW + 1)),
    ):
        struck, hours = (
            int(cells.count[:, part].sum()),
            float(cells.exposure[:, part].sum()) * 365.25 * 24,
        )
        low, high = rate_interval_per_s(failures=struck, exposure_s=hours * 3600)
        say(
            f"{name:<8}{struck:>8,}{hours / struck:>14,.0f}   {1 / high / 3600:,.0f} to"
            f" {1 / low / 3600:,.0f}"
        )
    for name, batch in (("old", OLD), ("new", NEW)):
        say(f"age, {name} boards: {decide_shape(lives_of(boards, batch)).reason}")


def lives_of(boards: Boards, batch: int) -> Lifetimes:
    """Return the stretches of a batch by age in seconds. Those that an event ended are failures."""
    chosen = (boards.batch[boards.stretch_board] == batch) & (boards.end > boards.begin)
    born = boards.first[boards.stretch_board[chosen]]
    return Lifetimes.of(
        entry_s=(boards.begin[chosen] - born) * DAY_S,
        exit_s=(boards.end[chosen] - born) * DAY_S,
        failed=boards.ended_by_event[chosen],
    )


def held_against(cells: Cells, cut: str, say: Callable[[str], None], *, title: str) -> list[Score]:
    # the record ends on the first day of its last month
    until, last = cells.month(cut), len(cells.months) - 1
    proportional, fit = hazards(cells, until)
    by_clock, _, clocks = clock(cells, until)
    finer, _ = hazards(cells, until, width=AGES_PER_YEAR // 2)
    forecasts = [
        proportional,
        finer,
        by_clock,
        *flat(cells, until, months=None),
        *flat(cells, until, months=12),
    ]
    scores = [score(one, cells, range(until, last)) for one in forecasts]
    say(
        f"\n{title}, fitted before {cut}, held against {last - until} months ({cells.months[until]}"
        f" to {cells.months[last - 1]})"
    )
    say(
        f"  {'':<26}{'a month':>9}{'came':>8}{'in 90 %':>9}{'width':>8}{'log score':>11}  "
        " likelihood before"
    )
    for one in scores:
        say(
            f"  {one.name:<26}{one.predicted:>9.1f}{one.came:>8.1f}{one.inside:>8.0%}"
            f" {one.width:>8.0f}{one.log_score:>11.2f}"
            + ("" if one.likelihood is None else f"{one.likelihood:>20,.0f}")
        )
    factors = ", ".join(_factor(fit, name) for name in ("cage 1", "cage 2"))
    say(
        f"  hazards: {factors} times cage 0; a board-year: "
        + ", ".join(
            f"{name} {np.exp(value):.4f}"
            for name, value in zip(fit.names, fit.coefficients, strict=True)
            if name[0] in "on"
        )
    )
    say(
        f"  clock: boards of cage 1 age {clocks[0]:.1f} times, of cage 2 {clocks[1]:.1f} times as"
        " fast as those of cage 0"
    )
    return scores


def _factor(fit: PoissonFit, name: str) -> str:
    index = fit.names.index(name)
    value, wide = fit.coefficients[index], 1.6449 * fit.standard_errors[index]
    return f"{name} {np.exp(value):.1f} ({np.exp(value - wide):.1f} to {np.exp(value + wide):.1f})"


def why(cells: Cells, say: Callable[[str], None]) -> None:
    """Print the old boards' rate, year by year: what was in the data at each date."""
    say("\nevents per board-year by year (board-years)")
    say(
        f"  {'':<6}"
        + "".join(f"{f'old, cage {cage}':>20}" for cage in range(CAGES))
        + f"{'new':>20}"
    )
    for year in sorted({name[:4] for name in cells.months}):
        months = [index for index, name in enumerate(cells.months) if name.startswith(year)]
        parts = [*((OLD, slice(cage, cage + 1)) for cage in range(CAGES)), (NEW, slice(None))]
        pairs = [
            (
                cells.count[months][:, batch, cages].sum(),
                cells.exposure[months][:, batch, cages].sum(),
            )
            for batch, cages in parts
        ]
        say(
            f"  {year:<6}"
            + "".join(
                f"{f'{struck / seen:.4f} ({seen:,.0f})' if seen > 0.5 else '-':>20}"
                for struck, seen in pairs
            )
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("../shared/data/titan_gc_full.csv"),
        help="Titan's table (not part of this project)",
    )
    parser.add_argument("--json", type=Path, help="also write the scores here")
    parser.add_argument(
        "--table",
        type=Path,
        help="only write the boards here, as a table for `outlast calibrate --csv`",
    )
    args = parser.parse_args()
    if not args.data.is_file():
        print(f"skipped: {args.data} is missing; it is gc_full.csv of github.com/olcf/TitanGPULife")
        return 0
    with args.data.open(encoding="utf-8", newline="") as lines:
        boards = read_boards(lines, source=str(args.data))
    if args.table:
        rows, left_out = table_of(boards)
        args.table.write_text("\n".join(rows) + "\n")
        print(
            f"{len(rows) - 1:,} rows in {args.table}; {left_out:,} events lie in no stretch of"
            " their board, and were left out"
        )
        return 0
    everything = cells_of(boards, kept=boards.failures(apart_days=0))
    failures = cells_of(boards, kept=boards.failures(apart_days=APART_DAYS))
    overview(boards, everything, print)
    why(everything, print)
    scores = {
        f"{what}, before {cut}": [vars(one) for one in held_against(cells, cut, print, title=what)]
        for cut, (what, cells) in itertools.product(
            CUTS, (("all events", everything), ("first of a day", failures))
        )
    }
    if args.json:
        args.json.write_text(
            json.dumps(
                {"boards": len(boards.names), "events": len(boards.event_at), "scores": scores},
                indent=2,
            )
            + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
