"""The calendar of a drill: each fault of a plan with its time and its rank, drawn with a seed.

The same plan, seed, world size and number of spares give the same calendar.

Failures of real clusters come in waves, and one node has more of them than others. A plan says how
many: `waves` is the share of faults that follow another one within a quarter of the mean distance
on average, and `lemon` the share that hits one drawn rank, in addition to those that hit it by
chance.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from outlast.model.drills.drill_faults import (
    ALL_KINDS,
    DISK_KINDS,
    NOT_HERE,
    FaultKind,
    Leaves,
    Portion,
)
from outlast.model.drills.drill_plan import DrillPlan
from outlast.model.terms import FailureClass

FROM_PLAN = "plan-"  # the ids of faults that a plan names; those that are drawn are numbers
_NO_CHECKPOINTS = (
    "the run writes no checkpoints into its folder while it trains (`--keep disk:10s` does)"
)
FIRST_STEP = 4  # a run that has done fewer does not train yet
WAVE_SHARE = 0.25  # of the mean distance: how far a fault of a wave is after the one before
# a rank that is stopped for longer than this, in seconds, hangs: it is replaced
DRAWN_FOR_S = (0.5, 4.0)
DRAWN_SHARE = (0.05, 0.5)  # of the processor, left to a process that is slow


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One fault of a calendar.

    rank      the rank that is struck, or whose host is; -1: no rank, but what the kind says
    at_s      real seconds since the third step of the run under fire; None: `at_step` says when
    for_s     how long it lasts, if it passes
    node      the number of the host that is struck; None: that of the rank, or no host
    share     of the processor that is left to a process that is slow
    """

    id: str
    kind: FaultKind
    stands_for: FailureClass
    rank: int
    at_s: float | None
    at_step: int | None = None
    for_s: float = 0.0
    node: int | None = None
    share: float = 0.5

    @property
    def plan_id(self) -> str:
        """Return its id in the plan, if that names it."""
        return self.id.removeprefix(FROM_PLAN)

    @property
    def order(self) -> tuple[float, int]:
        """Return a key that sorts faults by the time at which they are due."""
        return (self.at_s or 0.0, self.at_step or 0)


@dataclass(frozen=True, slots=True)
class Calendar:
    """All faults of a drill, and how many were left out, by the name of what is missing."""

    faults: tuple[Scheduled, ...]
    left_out: dict[str, int]


def draw(plan: DrillPlan, *, seed: int, world_size: int, spares: int) -> Calendar:
    """Draw the calendar of a plan. Its times are divided by the plan's time scale."""
    chance = random.Random(f"{plan.name} {seed}")
    shares = random.Random(f"{plan.name} {seed} shares")
    kinds = [*_each(plan, chance), *_mixed(plan, chance)]
    times = [*_even(plan, chance), *_waves(plan, chance)]
    lemon = chance.randrange(world_size)
    faults = []
    for number, ((stands_for, name), at) in enumerate(zip(kinds, times, strict=True), 1):
        strikes_lemon = chance.random() < plan.lemon
        rank = lemon if strikes_lemon else chance.randrange(world_size)
        for_s = chance.uniform(*DRAWN_FOR_S)
        kind = ALL_KINDS[name]
        at_step = FIRST_STEP + round(at) if plan.over_steps else None
        faults.append(
            Scheduled(
                str(number),
                kind,
                stands_for,
                rank if kind.struck in ("rank", "host", "agent") else -1,
                at / plan.time_scale if at_step is None else None,
                at_step,
                for_s=for_s if kind.passes else 0.0,
                share=shares.uniform(*DRAWN_SHARE),
            )
        )
    faults += _fixed(plan)
    left_out = dict(plan.left_out)
    if not spares:
        without = [one for one in faults if one.kind.struck == "spare"]
        faults = [one for one in faults if one.kind.struck != "spare"]
        if without:
            left_out["kill_spare"] = len(without)
    return Calendar(tuple(sorted(faults, key=lambda one: one.order)), left_out)


def without_hangs(calendar: Calendar) -> Calendar:
    """Return the calendar for a run in which no hang would be noticed."""
    return without(calendar, [one.name for one in ALL_KINDS.values() if one.leaves is Leaves.STACK])


def without_loaders(calendar: Calendar) -> Calendar:
    """Return the calendar for a script whose ranks have no DataLoader with workers."""
    return without(calendar, ["loader"])


def without_disks(calendar: Calendar) -> Calendar:
    """Return the calendar for a run that writes no checkpoint to a disk while it trains."""
    return without(calendar, DISK_KINDS)


def without_slow_disk(calendar: Calendar) -> Calendar:
    """Return a calendar that does not have both a full disk and a slow one.

    For a full disk the run's checkpoints are in memory, where a limit of writes does nothing.
    """
    full = any(one.kind.name == "full_disk" for one in calendar.faults)
    return without(calendar, ["slow_disk"]) if full else calendar


def without(calendar: Calendar, names: Collection[str]) -> Calendar:
    """Return the calendar without the kinds of these names, and count them as left out."""
    left_out = dict(calendar.left_out)
    for one in calendar.faults:
        if one.kind.name in names:
            left_out[one.kind.name] = left_out.get(one.kind.name, 0) + 1
    kept = tuple(one for one in calendar.faults if one.kind.name not in names)
    return Calendar(kept, left_out)


def without_hosts(calendar: Calendar) -> Calendar:
    """Return the calendar for a run on one host: faults of whole hosts are left out."""
    return without(calendar, [one.name for one in ALL_KINDS.values() if one.of_host])


def why_left_out(name: str) -> str:
    """Return the reason why a kind was left out of a calendar."""
    if name == "loader":
        return "the script has no DataLoader with workers"
    if name == "slow_disk":
        return f"{_NO_CHECKPOINTS}, or keeps them in memory for a full disk"
    if name == "full_disk":
        return _NO_CHECKPOINTS
    if name in ALL_KINDS and ALL_KINDS[name].leaves is Leaves.STACK:
        return "a script without outlast calls needs --hang-after for it"
    if name in ALL_KINDS and ALL_KINDS[name].struck in ("spare", "store", "zygote"):
        return f"the run, or one that it is compared with, has no {ALL_KINDS[name].struck}"
    return NOT_HERE.get(name, "it needs more than one host")


def _fixed(plan: DrillPlan) -> Iterable[Scheduled]:
    for one in plan.fixed:
        kind = ALL_KINDS[one.kind]
        strikes_rank = kind.struck in ("rank", "host", "agent")
        rank = one.rank if strikes_rank and one.rank is not None else -1
        at_s = None if one.at_s is None else (one.at_s + one.after_s) / plan.time_scale
        yield Scheduled(
            f"{FROM_PLAN}{one.id}",
            kind,
            kind.stands_for,
            rank,
            at_s,
            one.at_step,
            for_s=one.for_s if kind.passes else 0.0,
            node=one.node,
        )


# --- which ----------------------------------------------------------------------------------------


def _each(plan: DrillPlan, chance: random.Random) -> list[tuple[FailureClass, str]]:
    order = list(plan.each)
    chance.shuffle(order)
    return [(ALL_KINDS[name].stands_for, name) for name in order]


def _mixed(plan: DrillPlan, chance: random.Random) -> list[tuple[FailureClass, str]]:
    """Draw kinds by the plan's portions. An exact plan has the count of each portion."""
    if not plan.count:
        return []
    if plan.exact:
        chosen = [one for one in plan.portions for _ in range(round(one.count))]
        chance.shuffle(chosen)
    else:
        chosen = chance.choices(plan.portions, [one.count for one in plan.portions], k=plan.count)
    return [(one.stands_for, _kind_of(one, chance)) for one in chosen]


def _kind_of(one: Portion, chance: random.Random) -> str:
    return chance.choices(list(one.kinds), list(one.kinds.values()))[0]


# --- when -----------------------------------------------------------------------------------------


def _even(plan: DrillPlan, chance: random.Random) -> Sequence[float]:
    """Return a time for each of `plan.each`: one in the middle half of each equal part."""
    part_s = plan.over_s / max(1, len(plan.each))
    return [(number + chance.uniform(0.25, 0.75)) * part_s for number in range(len(plan.each))]


def _waves(plan: DrillPlan, chance: random.Random) -> Sequence[float]:
    """Return the times of what is drawn, or their steps: a share comes closely after another."""
    over = plan.over_steps - FIRST_STEP if plan.over_steps else plan.over_s
    followers = sum(chance.random() < plan.waves for _ in range(plan.count))
    times = [chance.uniform(0.0, over) for _ in range(max(1, plan.count - followers))]
    mean = over / max(1, plan.count)
    while len(times) < plan.count:
        behind = chance.choice(times) + chance.expovariate(1.0 / (WAVE_SHARE * mean))
        times.append(min(behind, over))
    return sorted(times[: plan.count])
