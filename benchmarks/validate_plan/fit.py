"""From the ledger of one struck run to what a Scenario needs, and to what another world size makes
of it.

Units      seconds.
Symbols    w0, w  ranks of the run that was measured, of the one that is predicted;  c  cores that
           all ranks share;  N  other programs that want them
Method     Phases are those of `planner.fit.phases`, of each rung (spare, respawn) by itself. Of
           interruptions that came one into another only the last counts, as if it had come alone: a
           failure during a recovery starts it again. How phases change with the ranks is a model,
           and a coarse one. What a step does beside its pause is processor time on shared cores:
           max(w, c) + N over max(w0, c) + N times as long, where N other programs want the cores as
           well. In a snapshot and in a recovery somebody always waits for a message, and a spent
           spare's successor boots meanwhile: of all that wants the cores, ROOM more than there are
           cores cost nothing, and each one beyond takes its part: max(w + 1 + N, c + ROOM) in the
           place of max(w, c) + N. A respawn takes longer than a spare by the boot of one process,
           however many ranks there are, and whether or not there are spares. How often a strike
           finds no spare: Erlang's loss formula, spares as servers, with the time in which a spent
           spare is replaced as holding time; that time is what makes the formula give the share of
           respawns that was seen.
Booking    Survivors that are ready early train, and wait in the collective: so the ledger books
           fewer seconds to detection, regroup and restore than lie between fault and state in
           place. `booked` is that ratio; phases are multiplied by it where ETTR is predicted, and
           are not where MTTR is. A slow first step is productive to the ledger, unless it is done
           again: where some ranks had committed a step that others had not sealed, or where images
           are rare. `again_s` is what the ledger books to repeated for each interruption beyond
           half a step.
Source     Erlang's loss formula depends on the mean holding time only (Sevastyanov 1957).

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.validate_plan.measured import STANDING, families_of, measured
from outlast.errors import UsageError
from outlast.model.records import Records
from outlast.model.terms import Cause, Rung
from outlast.planner.fit.ledgers import observe
from outlast.planner.fit.phases import phases_of
from outlast.planner.fit.rates import class_rate
from outlast.planner.scenario import Extent, Unit

RUNGS = (Rung.SPARE, Rung.RESPAWN)
ENOUGH = 3  # recoveries of each rung
LOAD_MAX = 1e6
ROOM = 1  # from runs of 2, 3 and 4 ranks that are not judged: benchmarks/results/planner.md
Samples = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """Seconds of each recovery of one rung, phase by phase, each sorted by itself.

    `first_s`: state in place to the first new commit, a slow first step.
    """

    detect_s: Samples
    regroup_s: Samples
    restore_s: Samples
    first_s: Samples

    @property
    def count(self) -> int:
        return len(self.regroup_s)


@dataclass(frozen=True, slots=True)
class Fit:
    """Hold what one run taught.

    `step_s`: undisturbed, its snapshot apart; `share`: of that, what the ledger books as
    productive; `stall_s`: of one snapshot.

    rate_per_s  of strikes as the ledger shows them, with its 90 % interval. They are drawn at a
                known rate; this is to see that none is missed
    refill_s    until a spent spare is replaced; spares: kept in that run
    others      programs besides the run that wanted the cores meanwhile
    """

    world_size: int
    spares: int
    others: float
    mttf_s: float
    pause_s: float
    step_s: float
    share: float
    stall_s: float
    booked: float
    again_s: float
    ettr: float
    refill_s: float
    rate_per_s: tuple[float, float, float]
    phases: Mapping[Rung, Sampled]

    @property
    def first_mean_s(self) -> float:
        return statistics.fmean(
            [sample_s for rung in RUNGS for sample_s in self.phases[rung].first_s]
        )


def fit(
    records: Records, *, mttf_s: float, spares: int, pause_s: float, others: float = 0.0
) -> Fit:
    """Fit what recoveries take, from a run that sealed an image at each step.

    Raises UsageError if the run shows too little of either rung.
    """
    run = measured(records)
    phases = {rung: _sampled(records, rung) for rung in RUNGS}
    if few := [
        f"{phases[rung].count} recoveries by {rung.value}"
        for rung in RUNGS
        if phases[rung].count < ENOUGH
    ]:
        raise UsageError(
            f"the run that is fitted to shows {' and '.join(few)}; {ENOUGH} of each are needed",
            hint="let it last longer",
        )
    seconds = {Cause(cause): value for cause, value in run.seconds.items()}
    work_s = seconds[Cause.PRODUCTIVE] + seconds[Cause.DATA_WAIT] + seconds[Cause.OTHER]
    recovered = sum(one.count for one in phases.values())
    firsts_s = sum(sum(one.first_s) for one in phases.values())
    stall_s = seconds[Cause.STALL] / run.steps
    step_s = (work_s + seconds[Cause.STALL] - firsts_s) / (run.steps - recovered) - stall_s
    return Fit(
        world_size=run.world_size,
        spares=spares,
        others=others,
        mttf_s=mttf_s,
        pause_s=pause_s,
        step_s=step_s,
        share=seconds[Cause.PRODUCTIVE] / work_s,
        stall_s=stall_s,
        booked=sum(seconds[cause] for cause in STANDING) / run.standing_s,
        ettr=run.ettr,
        again_s=max(0.0, seconds[Cause.REPEATED] / run.interruptions - (step_s + stall_s) / 2),
        refill_s=mttf_s * load_for(phases[Rung.RESPAWN].count / recovered, spares),
        rate_per_s=_rate_per_s(records),
        phases=phases,
    )


def _sampled(records: Records, rung: Rung) -> Sampled:
    """Return the last interruption of each family that is over, if it was of this rung."""
    parts = []
    for part in records.sessions:
        lasts = [family[-1] for family in families_of(list(part.interruptions))]
        parts.append(
            replace(
                part,
                interruptions=tuple(
                    replace(one, parent=None)
                    for one in lasts
                    if one.rung is rung and one.fault_s is not None
                ),
            )
        )
    found = phases_of([replace(records, sessions=tuple(parts))])
    return Sampled(
        found.detect.samples_s,
        found.regroup.samples_s,
        found.restore.samples_s,
        found.first_step.samples_s,
    )


def _rate_per_s(records: Records) -> tuple[float, float, float]:
    watched = observe(records, now_s=None, source="the run that is fitted to")
    found = class_rate(
        watched.failures[0].failure_class,
        Unit.RUN,
        Extent.PROCESS,
        count=len(watched.failures),
        exposure_s=watched.exposure_s[Unit.RUN],
    )
    return found.rate_per_s or 0.0, found.low_per_s, found.high_per_s


# --- another world size ---------------------------------------------------------------------------


def elsewhere(known: Fit, *, world_size: int, spares: int, cores: int) -> Fit:
    """Return the fit for so many ranks and spares on the same cores. See Method."""
    step = (max(world_size, cores) + known.others) / (max(known.world_size, cores) + known.others)
    recovery = _shared(known, world_size, cores) / _shared(known, known.world_size, cores)
    spare, respawn = known.phases[Rung.SPARE], known.phases[Rung.RESPAWN]
    boot_s = max(0.0, statistics.fmean(respawn.regroup_s) - statistics.fmean(spare.regroup_s))
    phases = {
        Rung.SPARE: _scaled(spare, recovery, 0.0, known.pause_s),
        Rung.RESPAWN: _scaled(respawn, recovery, boot_s, known.pause_s),
    }
    (step_s,) = _slower((known.step_s,), step, known.pause_s)
    return replace(
        known,
        world_size=world_size,
        spares=spares,
        step_s=step_s,
        stall_s=recovery * known.stall_s,
        again_s=recovery * known.again_s,
        phases=phases,
    )


def _shared(known: Fit, world_size: int, cores: int) -> float:
    """Return how much wants the cores during a recovery, and has to wait for them."""
    return max(world_size + 1 + known.others, cores + ROOM)


def _scaled(one: Sampled, factor: float, boot_s: float, pause_s: float) -> Sampled:
    """Scale all but one boot in each regroup, and all but one pause in each first step."""
    return replace(
        one,
        regroup_s=_slower(one.regroup_s, factor, boot_s),
        restore_s=_slower(one.restore_s, factor, 0.0),
        first_s=_slower(one.first_s, factor, pause_s),
    )


def _slower(samples_s: Samples, factor: float, fixed_s: float) -> Samples:
    """Scale all but the first `fixed_s` of each sample."""
    return tuple(min(one, fixed_s) + factor * max(0.0, one - fixed_s) for one in samples_s)


def resampled(known: Fit, chance: random.Random) -> Fit:
    """Return the fit of another run of the same kind, as it might have been seen.

    The seconds of each phase are drawn again, with replacement.
    """

    def again(samples_s: Samples) -> Samples:
        return tuple(sorted(chance.choices(samples_s, k=len(samples_s))))

    phases = {
        rung: Sampled(*map(again, (one.detect_s, one.regroup_s, one.restore_s, one.first_s)))
        for rung, one in known.phases.items()
    }
    return replace(known, phases=phases)


def longer(known: Fit, factor: float) -> Fit:
    """Let all phases of all recoveries take so many times as long.

    What is repeated for them takes longer as well.
    """

    def scaled(samples_s: Samples) -> Samples:
        return tuple(factor * sample_s for sample_s in samples_s)

    phases = {
        rung: Sampled(*map(scaled, (one.detect_s, one.regroup_s, one.restore_s, one.first_s)))
        for rung, one in known.phases.items()
    }
    return replace(known, again_s=factor * known.again_s, phases=phases)


# --- spares ---------------------------------------------------------------------------------------


def lost_share(load: float, spares: int) -> float:
    """Return the share of strikes that finds no spare, by Erlang's loss formula.

    `load` is how many strikes come while one spent spare is replaced.
    """
    share = 1.0
    for number in range(1, spares + 1):
        share = load * share / (number + load * share)
    return share


def load_for(share: float, spares: int) -> float:
    """Return the load at which `lost_share` is so much, by halving."""
    low, high = 0.0, LOAD_MAX
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if lost_share(middle, spares) < share else (low, middle)
    return low
