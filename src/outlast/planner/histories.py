"""Draw in advance the failures of many runs, and the random numbers of each recovery.

All depths of the planner, and all candidates of a search, then see the same failures.

Units      Times are seconds of wall-clock time since the run began.
Symbols    R  number of replicas
           N  number of failures of the replica that has the most
           C  number of failure classes
           S  number of streams of failures: one for each class, and one more for the extra failures
              that lemons have in that class
           B  number of stretches of time; within a stretch, hazards are taken as constant
Method     All failures together form one Poisson process. Sums of unit exponentials are turned into
           times by the inverse of the cumulative hazard of all streams. Then the stream of each
           failure is drawn: its probability is its share of the hazard in that stretch.
Stretches  The times are exact for constant rates and for waves. A Weibull hazard is exact at the
           ends of each stretch, so a time is wrong by less than the length of its stretch. There
           are 512 stretches of equal length and 512 of equal hazard.
Lemons     A lemon fails more often than other nodes. Its failures above the usual rate are drawn as
           if there were `lemons_bound` lemons all the time, and `extra` marks them. The simulation
           of a run lets each of them happen with probability lemons / lemons_bound (thinning).
Generators There is one for each purpose and each block of 256 replicas, with the seed (seed,
           purpose, block). So replica r of a seed does not depend on the batch in which it is
           drawn, and the luck of its k-th failure does not depend on how many failures follow.
           Only PCG64 and uniform numbers are used, so all versions of NumPy draw the same. There is
           one exception. If `uncertain` is True, the rate of a class with a `count` above 0 is
           multiplied by Generator.standard_gamma(count + 1/2) / count. NumPy may change that
           algorithm.
Limits     A repaired unit is as old as before. The classes of one replica are independent, except
           for lemons and waves.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

from outlast.errors import UsageError
from outlast.planner.scenario import FailureRate, Scenario, Unit

Floats = NDArray[np.float64]

BLOCK = 256
ROWS = 8  # the luck of this many failures is drawn at once, for all replicas
WEIBULL_STRETCHES = 512
FAILURES_MAX = 50_000_000  # of one call of `draw`; their times alone take 400 MB
# Purposes of generators, beside those in Luck. Class c has the purpose _GAMMA + c.
_CLASS, _GAPS, _LEMONS, _GAMMA = 100, 101, 102, 1000


class Luck(IntEnum):
    """The meaning of a failure's numbers in (0, 1): a column of `History.luck`."""

    STRUCK = 0  # which unit fails: floor(u x units). Monte Carlo does not use it
    DETECT = 1
    REGROUP = 2
    TAKE = 3
    REPAIR = 4
    RESTORE = 5
    LEMON = 6  # whether the failed node is a lemon; for an `extra` failure, whether it happens
    MENDED = 7  # whether the lemon is caught, or the healthy node is repaired badly
    DIAGNOSIS = 8  # whether a healthy node is taken out as well


@dataclass(frozen=True)
class History:
    """The failures of one replica.

    at_s     (N,): the time of each failure, ascending
    which    (N,): the class of each failure, as an index into scenario.failures
    extra    (N,) bool: the failure is one of those that only lemons have
    luck     (N, len(Luck)): the random numbers of each failure
    lemons   the number of lemons when the run begins
    """

    at_s: Floats
    which: NDArray[np.int64]
    extra: NDArray[np.bool_]
    luck: Floats
    lemons: int


@dataclass(frozen=True)
class Histories:
    """The failures of R replicas.

    at_s    (R, N): the time of each failure, ascending; inf where a replica has no more failures
    stream  (R, N) int16: the stream s of each failure. If s is below C, the failure is one of class
            s at its usual rate. Otherwise it is an extra failure of a lemon, of class
            `stream_class[s]`
    lemons  (R,): the number of lemons when the run begins
    """

    seed: int
    first: int
    at_s: Floats
    stream: NDArray[np.int16]
    lemons: NDArray[np.int64]
    stream_class: NDArray[np.int64]
    class_count: int

    @property
    def replicas(self) -> int:
        return len(self.at_s)

    @cached_property
    def which(self) -> NDArray[np.int64]:
        """Return the index into scenario.failures of each failure, (R, N)."""
        return self.stream_class[self.stream]

    @cached_property
    def extra(self) -> NDArray[np.bool_]:
        """Return whether each failure is an extra one, which only lemons have, (R, N)."""
        return self.stream >= self.class_count

    def luck(self, column: Luck) -> Floats:
        """Draw the numbers of this column, (R, N), in (0, 1). Each call draws the same numbers."""
        return _columns(
            _generators(self.seed, column, self.first, self.replicas),
            self.at_s.shape[1],
            self.first,
            self.replicas,
        ).T

    def luck_in_order(self, column: Luck) -> Iterator[Floats]:
        """Yield the numbers of this column failure by failure, (ROWS, R) at a time.

        All of them at once would not fit into a processor's cache.
        """
        generators = _generators(self.seed, column, self.first, self.replicas)
        while True:
            yield _columns(generators, ROWS, self.first, self.replicas)

    def pieces(self, replicas: int) -> Iterator[Histories]:
        """Yield parts of `replicas` histories each, in their order.

        If `replicas` is a multiple of BLOCK, no random number is drawn twice.
        """
        for begin in range(0, self.replicas, replicas):
            here = slice(begin, begin + replicas)
            yield replace(
                self,
                first=self.first + begin,
                at_s=self.at_s[here],
                stream=self.stream[here],
                lemons=self.lemons[here],
            )

    def one(self, replica: int) -> History:
        """Return the history of replica `first + replica`."""
        count = int(np.isfinite(self.at_s[replica]).sum())
        first = self.first + replica
        luck = np.stack(
            [
                _columns(_generators(self.seed, column, first, 1), count, first, 1)[:, 0]
                for column in Luck
            ],
            axis=1,
        )
        part = (replica, slice(count))
        return History(
            self.at_s[part], self.which[part], self.extra[part], luck, int(self.lemons[replica])
        )


def draw(
    scenario: Scenario, *, seed: int, replicas: int, first: int = 0, uncertain: bool = True
) -> Histories:
    """Draw replicas `first` to `first + replicas - 1` of this seed.

    uncertain  True: each replica has rates of its own, drawn from the posterior of the counted
               rates. False: the rates are taken as known

    Raises UsageError if a number is negative, or if more than FAILURES_MAX failures are expected.
    """
    if seed < 0 or replicas < 0 or first < 0:
        raise UsageError(
            f"seed {seed}, {replicas} replicas from {first}",
            hint="give numbers that are not negative",
        )
    hazards = _Hazards.of(scenario)
    expected = hazards.cumulated[:, -1].sum() * (replicas + BLOCK)
    if expected > FAILURES_MAX:
        raise UsageError(
            f"{scenario.name}: {expected:.3g} failures are expected in {replicas} replicas, and at"
            f" most {FAILURES_MAX:,} are drawn at once",
            hint="draw fewer replicas at once, or a shorter run",
        )
    generators = _generators(seed, _GAPS, first, replicas)
    rates = _rates(scenario, seed, first, len(generators), uncertain)[hazards.stream_class]
    total = np.einsum("sr,sb->br", rates, hazards.cumulated)
    at_s = _arrivals(generators, total[-1])
    stretch = _take_back(at_s, total, hazards.ends_s)
    stream = _picked(
        _generators(seed, _CLASS, first, replicas), hazards.cumulated, rates, stretch, len(at_s)
    )
    here = slice(first % BLOCK, first % BLOCK + replicas)
    return Histories(
        seed,
        first,
        at_s[:, here].T,
        stream[:, here].T,
        _lemons(scenario, seed, first, replicas),
        hazards.stream_class,
        len(scenario.failures),
    )


def expected_failures(scenario: Scenario) -> float:
    """Return how many failures a history has on average, at the estimated rates.

    They include the extra failures of lemons, some of which do not happen.
    """
    return float(_Hazards.of(scenario).cumulated[:, -1].sum())


def expected_by_s(scenario: Scenario, failures: float) -> float:
    """Return the time by which `failures` failures are expected, at most the duration."""
    hazards = _Hazards.of(scenario)
    return float(np.interp(failures, hazards.cumulated.sum(axis=0), hazards.ends_s))


def _generator(seed: int, purpose: int, block: int) -> Generator:
    return Generator(PCG64(SeedSequence(seed, spawn_key=(purpose, block))))


def _generators(seed: int, purpose: int, first: int, replicas: int) -> list[Generator]:
    return [_generator(seed, int(purpose), block) for block in _blocks(first, replicas)]


def _blocks(first: int, replicas: int) -> range:
    return range(first // BLOCK, (first + replicas - 1) // BLOCK + 1) if replicas else range(0)


def _columns(generators: list[Generator], rows: int, first: int, replicas: int) -> Floats:
    """Return random numbers in (0, 1), of shape (rows, replicas).

    They are drawn failure by failure, so that a longer history begins like a shorter one.
    """
    out = _uniforms(generators, rows)
    np.maximum(out, 2.0**-54, out=out)  # random() may be 0
    return out[:, first % BLOCK : first % BLOCK + replicas]


def _uniforms(generators: list[Generator], rows: int) -> Floats:
    out = np.empty((rows, len(generators) * BLOCK))
    for number, generator in enumerate(generators):
        out[:, number * BLOCK : (number + 1) * BLOCK] = generator.random((rows, BLOCK))
    return out


def _lemons(scenario: Scenario, seed: int, first: int, replicas: int) -> NDArray[np.int64]:
    exactly = scenario.lemons.share * scenario.job.nodes
    if not exactly:
        return np.zeros(replicas, dtype=np.int64)
    rounded: NDArray[np.int64] = np.floor(
        exactly + _columns(_generators(seed, _LEMONS, first, replicas), 1, first, replicas)[0]
    ).astype(np.int64)
    return rounded


# --- hazards --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Hazards:
    """The hazards of all streams.

    ends_s        (B + 1,): the ends of the stretches, and the beginning of the first one
    cumulated     (S, B + 1): the failures of each stream that are expected by these times, at the
                  estimated rates
    stream_class  (S,): the class of each stream, as an index into scenario.failures
    """

    ends_s: Floats
    cumulated: Floats
    stream_class: NDArray[np.int64]

    @staticmethod
    def of(scenario: Scenario) -> _Hazards:
        ends_s = _ends(scenario)
        usual = [
            _cumulated(rate, scenario.job.units(rate.unit), ends_s) for rate in scenario.failures
        ]
        of_lemons = (scenario.lemons.factor - 1) * scenario.lemons_bound
        in_node = {Unit.GPU: min(scenario.job.gpus_per_node, scenario.job.gpus), Unit.NODE: 1}
        above = [
            (index, usual[index] * (of_lemons * in_node[rate.unit] / scenario.job.units(rate.unit)))
            for index, rate in enumerate(scenario.failures)
            if of_lemons and rate.unit in in_node
        ]
        streams = [*usual, *(hazard for _, hazard in above)]
        stream_class = np.array(
            [*range(len(usual)), *(index for index, _ in above)], dtype=np.int64
        )
        return _Hazards(ends_s, np.array(streams).reshape(len(streams), len(ends_s)), stream_class)


def _ends(scenario: Scenario) -> Floats:
    """Return the ends of the stretches: the edges of waves, and cuts through Weibull hazards."""
    duration_s = scenario.job.duration_s
    ends = [0.0, duration_s]
    for rate in scenario.failures:
        ends += [
            edge
            for wave in rate.waves
            for edge in (wave.begins_s, wave.ends_s)
            if 0 < edge < duration_s
        ]
        if rate.shape != 1 and math.isfinite(rate.mttf_s):
            share = np.linspace(0.0, 1.0, WEIBULL_STRETCHES + 1)[1:-1]
            young, old = rate.age_s, rate.age_s + duration_s
            equal_hazard = (
                old
                * ((young / old) ** rate.shape + share * (1 - (young / old) ** rate.shape))
                ** (1 / rate.shape)
                - young
            )
            ends += [
                *(duration_s * share).tolist(),
                *np.clip(equal_hazard, 0.0, duration_s).tolist(),
            ]
    return np.unique(np.array(ends))


def _cumulated(rate: FailureRate, units: int, ends_s: Floats) -> Floats:
    """Return the failures of a class that are expected by each of these times.

    Without waves that is units x (((age + t)/scale)^k - (age/scale)^k). What each stretch adds is
    multiplied by the factors of the waves that it is in. What a stretch adds is at most 1e200, so
    that nothing overflows.
    """
    with np.errstate(over="ignore"):
        if rate.shape == 1 or math.isinf(rate.mttf_s):
            grown = ends_s / rate.mttf_s
        else:
            grown = np.power((rate.age_s + ends_s) / rate.mttf_s, rate.shape) - np.power(
                rate.age_s / rate.mttf_s, rate.shape
            )
        pieces = np.diff(np.minimum(units * grown, 1e200))
        middles_s = (ends_s[1:] + ends_s[:-1]) / 2
        for wave in rate.waves:
            pieces *= np.where(
                (middles_s > wave.begins_s) & (middles_s < wave.ends_s), wave.factor, 1.0
            )
    return np.concatenate([[0.0], np.cumsum(np.minimum(pieces, 1e200))])


# --- times and classes of whole blocks ------------------------------------------------------------


def _rates(scenario: Scenario, seed: int, first: int, blocks: int, uncertain: bool) -> Floats:
    """Draw the factor by which each replica's rates differ from the estimated ones, (C, R)."""
    rates = np.ones((len(scenario.failures), blocks * BLOCK))
    for index, rate in enumerate(scenario.failures):
        if uncertain and rate.count:
            each = [
                _generator(seed, _GAMMA + index, first // BLOCK + number).standard_gamma(
                    rate.count + 0.5, BLOCK
                )
                for number in range(blocks)
            ]
            rates[index] = np.concatenate(each) / rate.count
    return rates


def _arrivals(generators: list[Generator], until: Floats) -> Floats:
    """Draw sums of unit exponentials, (N, R), until all replicas are beyond `until`."""
    most = float(until.max(initial=0.0))
    rows = math.ceil(most + 4 * math.sqrt(most) + 8)
    pieces: list[Floats] = []
    last = np.zeros(until.shape)
    while bool((last < until).any()):
        sums = _uniforms(generators, rows)
        for row in sums:  # row by row, as long as it is in the cache
            np.subtract(1.0, row, out=row)
            np.log(row, out=row)
            last = np.subtract(last, row, out=row)
        rows = rows // 8 + 8
        pieces.append(sums)
    arrivals = (
        pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros((0, len(until))), *pieces])
    )
    while len(arrivals) and bool((arrivals[-1] > until).all()):
        arrivals = arrivals[:-1]
    return arrivals


def _take_back(sums: Floats, total: Floats, ends_s: Floats) -> NDArray[np.intp]:
    """Turn sums of unit exponentials into times, in place, and return the stretch of each.

    total  (B + 1, R): the cumulative hazard of all streams

    A sum beyond the last row of `total` becomes inf. If there is only one stretch, an empty array
    is returned.
    """
    if len(ends_s) == 2:
        with np.errstate(divide="ignore"):
            scale_s = ends_s[1] / total[1]
        for row in sums:
            np.copyto(row, np.inf, where=row > total[1])
            row *= scale_s
        return np.zeros((0, 0), dtype=np.intp)
    stretch = np.empty(sums.shape, dtype=np.intp)
    for replica in range(sums.shape[1]):
        here = sums[:, replica].copy()
        sums[:, replica] = np.where(
            here > total[-1, replica], np.inf, np.interp(here, total[:, replica], ends_s)
        )
        stretch[:, replica] = np.searchsorted(total[:, replica], here) - 1
    return np.clip(stretch, 0, len(ends_s) - 2)


def _picked(
    generators: list[Generator],
    cumulated: Floats,
    rates: Floats,
    stretch: NDArray[np.intp],
    rows: int,
) -> NDArray[np.int16]:
    """Draw the stream of each failure, (rows, R), by its share of the hazard in the stretch."""
    picked = np.zeros((rows, len(generators) * BLOCK), dtype=np.int16)
    if len(cumulated) < 2:
        return picked
    pieces = np.diff(cumulated)
    for number, generator in enumerate(generators):
        block = slice(number * BLOCK, (number + 1) * BLOCK)
        parts = [
            rate[block] * (piece[stretch[:, block]] if stretch.size else piece[0])
            for rate, piece in zip(rates, pieces, strict=True)
        ]
        at = generator.random((rows, BLOCK)) * sum(parts[1:], parts[0])
        upto = np.zeros_like(parts[0])
        for part in parts[:-1]:
            upto = upto + part
            picked[:, block] += at >= upto
    return picked
