"""Plans of `outlast drill`: what is injected, how much of it, and over how long.

    schema = 1
    name = "ours"             # optional
    time_scale = 60           # all times are divided by this (1)

    [draw]                    # faults that are drawn with the seed
    count = 40
    over_s = 36000            # they come within so many seconds, before they are divided;
                              # or over_steps = 380: within so many steps of the run
    waves = 0.3               # this share follows closely on another fault (0)
    lemon = 0.2               # this share strikes one rank more (0)

    [draw.kinds]              # weights; all kinds stand in `drill_faults.ON_ONE_HOST`
    kill = 3
    raise = 1                 # on several hosts also those in `drill_faults.HOST_KINDS`

    [[fault]]                 # beside them: exact ones, as in the plans of `outlast sim`
    kind = "segv"
    target = { rank = 1 }
    when = { at_s = 12.5 }    # or { at_step = 40 }

Seconds count from the third step of the run under fire, because a run that has not begun to train
is not drilled.

This module is pure: text in, data out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from outlast.errors import UsageError
from outlast.model import fault_plan
from outlast.model.drills import drill_faults as library
from outlast.model.drills.drill_faults import (
    ALL_KINDS,
    HOST_KINDS,
    KINDS,
    LLAMA3,
    LLAMA3_ON_HOSTS,
    NOT_HERE,
    ON_HOSTS,
    ON_ONE_HOST,
    PLANNED,
    PLANNED_ON_HOSTS,
    Portion,
)
from outlast.model.fault_plan import PlannedFault
from outlast.model.strict import known, meant, toml, whole
from outlast.model.strict import seconds as checked_s
from outlast.model.time_units import DAY_S

SCHEMA = 1
COUNT_MAX = 100_000


@dataclass(frozen=True, slots=True)
class DrillPlan:
    """A plan of faults. Times are those of the plan: real ones are `time_scale` times shorter.

    over_steps what is drawn comes within so many steps, and not within `over_s`
    portions   what is drawn. `exact`: so many of each; otherwise their counts are weights
    count      how many are drawn
    each       one fault of each of these kinds, evenly spread, in a drawn order
    fixed      faults that the plan names one by one
    left_out   kinds that this host cannot have, and how many of them the plan wants
    """

    name: str
    over_s: float = 0.0
    over_steps: int = 0
    time_scale: float = 1.0
    count: int = 0
    portions: tuple[Portion, ...] = ()
    exact: bool = False
    each: tuple[str, ...] = ()
    waves: float = 0.0
    lemon: float = 0.0
    fixed: tuple[PlannedFault, ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()

    @property
    def length_s(self) -> float:
        """Return how long the plan takes on this machine."""
        ends_s = [one.at_s + one.after_s for one in self.fixed if one.at_s is not None]
        return max([self.over_s, *ends_s]) / self.time_scale

    @property
    def planned_count(self) -> int:
        return self.count + len(self.each) + len(self.fixed)


def _one_of_each(
    kinds: Mapping[str, library.FaultKind], *, weight: float = 1.0
) -> tuple[Portion, ...]:
    return tuple(Portion(one.stands_for, weight, {one.name: 1.0}) for one in kinds.values())


_LLAMA3_MIX = (*LLAMA3, PLANNED)
NAMED: Mapping[str, DrillPlan] = {
    one.name: one
    for one in (
        DrillPlan("smoke", over_s=60.0, each=tuple(KINDS)),
        DrillPlan(
            "llama3-day",
            over_s=DAY_S,
            time_scale=1_440.0,
            count=9,
            portions=_LLAMA3_MIX,
            waves=0.3,
            lemon=0.2,
        ),
        DrillPlan(
            "llama3",
            over_s=54 * DAY_S,
            time_scale=1_440.0,
            count=466,
            portions=_LLAMA3_MIX,
            exact=True,
            waves=0.3,
            lemon=0.2,
        ),
        DrillPlan(
            "everything",
            over_s=4_300.0,
            count=2_150,  # a script without loader's workers lacks a twentieth of them
            waves=0.3,
            lemon=0.1,
            portions=_one_of_each({**KINDS, **library.MEMORY_KINDS}),
        ),
        DrillPlan("network-bad-day", over_s=60.0, count=8, portions=library.NETWORK_DAY, waves=0.5),
        DrillPlan("lemon-node", over_s=60.0, count=8, portions=library.LEMON, lemon=0.8),
        DrillPlan("maintenance", over_s=60.0, count=5, portions=library.MAINTENANCE),
        DrillPlan("silent-corruption", over_s=20.0, count=1, portions=library.SILENT),
    )
}
_HOST_MIX = (*LLAMA3_ON_HOSTS, PLANNED_ON_HOSTS)
_ON_HOSTS: Mapping[str, Mapping[str, Any]] = {
    "smoke": {"each": (*KINDS, *HOST_KINDS), "over_s": 120.0},
    "llama3-day": {"portions": _HOST_MIX},
    "llama3": {"portions": _HOST_MIX},
    # a tenth strike hosts: the run has to be whole again in between
    "everything": {
        "portions": (
            *_one_of_each({**KINDS, **library.MEMORY_KINDS}),
            *_one_of_each(HOST_KINDS, weight=0.25),
        )
    },
    "network-bad-day": {"portions": library.NETWORK_DAY_ON_HOSTS, "over_s": 120.0},
    "lemon-node": {"portions": library.LEMON_ON_HOSTS, "over_s": 120.0},
    "maintenance": {"portions": library.MAINTENANCE_ON_HOSTS, "over_s": 120.0},
    "silent-corruption": {},
}


def named(name: str, *, hosts: bool = False) -> DrillPlan | None:
    """Return the plan of this name, or None. `hosts`: there are several, so they fail, too."""
    plan = NAMED.get(name)
    return replace(plan, **_ON_HOSTS[name]) if plan is not None and hosts else plan


def parse(text: str, *, source: str, hosts: bool = False) -> DrillPlan:
    """Read a plan. Raises UsageError, which names `source` and the key.

    hosts   there are several; without them their faults are left out
    """
    given = toml(text, source=source, schema=SCHEMA)
    known(given, ("schema", "name", "time_scale", "draw", "fault"), source)
    name = given.get("name", source)
    if not isinstance(name, str) or not name:
        raise UsageError(f"{source}: name is {name!r}; it is a text")
    kinds = ON_HOSTS if hosts else ON_ONE_HOST
    fixed, left_out = _fixed(given, source, kinds)
    plan = DrillPlan(
        name,
        fixed=fixed,
        left_out=tuple(left_out.items()),
        time_scale=_positive(given.get("time_scale", 1.0), f"{source}: time_scale"),
    )
    if "draw" in given:
        plan = _drawn(plan, given["draw"], f"{source}: draw", kinds)
    if not plan.planned_count:
        of_hosts = any(name in HOST_KINDS for name, _ in plan.left_out)
        raise UsageError(
            f"{source} plans no fault that this host can have",
            hint="its faults strike whole hosts: give --hosts 5"
            if of_hosts and not hosts
            else "add a table [draw] or [[fault]]; docs/how-to/rehearse.md shows both",
        )
    return plan


def scaled(plan: DrillPlan, factor: float | None) -> DrillPlan:
    """Return the plan at another time scale, if one is given."""
    if factor is None:
        return plan
    return replace(plan, time_scale=_positive(factor, "--time-scale"))


def _fixed(
    given: Mapping[str, Any], source: str, kinds: Mapping[str, library.FaultKind]
) -> tuple[tuple[PlannedFault, ...], dict[str, int]]:
    """Read the faults that are named one by one, without those that this host cannot have."""
    more = {name: one.passes for name, one in ALL_KINDS.items()}
    faults = fault_plan.read(
        {"schema": SCHEMA, "fault": given.get("fault", [])}, source=source, more=more
    )
    kept, left_out = [], dict[str, int]()
    for one in faults:
        if one.agent:  # of the kinds that a plan can name, only "stop" strikes one
            one = replace(one, kind="stop_agent")
        if one.kind not in kinds and one.kind in NOT_HERE:
            left_out[one.kind] = left_out.get(one.kind, 0) + 1
            continue
        if one.kind not in kinds:
            raise UsageError(f"{source}, fault {one.id}: no drill has the kind {one.kind!r}")
        if one.mark:
            raise UsageError(
                f"{source}, fault {one.id}: on_mark names a place in the simulated world",
                hint="a drill takes when = { at_s = ... } or { at_step = ... }",
            )
        kept.append(_meant_for(one, f"{source}, fault {one.id}"))
    return tuple(kept), left_out


def _meant_for(one: PlannedFault, where: str) -> PlannedFault:
    """Return the fault. One that strikes a spare has a kind of its own."""
    kind = ALL_KINDS[one.kind]
    if one.disk:
        raise UsageError(f"{where}: there is no disk {one.disk}", hint="target = { disk = 0 }")
    if one.rank != -1 or kind.struck == "spare":
        return one
    if one.kind != "kill":
        raise UsageError(
            f"{where}: {one.kind} cannot strike a spare", hint='a spare can be struck by "kill"'
        )
    return replace(one, kind="kill_spare")


def _drawn(
    plan: DrillPlan, table: object, where: str, known_kinds: Mapping[str, library.FaultKind]
) -> DrillPlan:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is {table!r}; it is a table", hint="write it as [draw]")
    known(table, ("count", "over_s", "over_steps", "waves", "lemon", "kinds"), where)
    if ("over_s" in table) == ("over_steps" in table):
        raise UsageError(f"{where} needs one of over_s and over_steps", hint="as in over_s = 600")
    usual = (one for one in known_kinds if one in KINDS or one in HOST_KINDS)
    kinds = table.get("kinds", dict.fromkeys(usual, 1))
    if not isinstance(kinds, dict) or not kinds:
        raise UsageError(f"{where}.kinds is {kinds!r}; it is a table of kinds and weights")
    portions, left_out = [], dict(plan.left_out)
    for name, weight in kinds.items():
        share = _positive(weight, f"{where}.kinds.{name}")
        if name in known_kinds:
            portions.append(Portion(known_kinds[name].stands_for, share, {name: 1.0}))
        elif name in NOT_HERE:
            left_out[name] = left_out.get(name, 0) + 1
        else:
            hint = meant(name, known_kinds)
            raise UsageError(f"{where}.kinds: there is no kind {name!r}", hint=hint)
    count = whole(table.get("count"), f"{where}.count")
    if count > COUNT_MAX:
        raise UsageError(f"{where}.count is {count:,}; at most {COUNT_MAX:,} faults are drawn")
    return replace(
        plan,
        count=count if portions else 0,
        over_s=_positive(table["over_s"], f"{where}.over_s") if "over_s" in table else 0.0,
        over_steps=whole(table["over_steps"], f"{where}.over_steps", least=10)
        if "over_steps" in table
        else 0,
        waves=_share(table.get("waves", 0.0), f"{where}.waves"),
        lemon=_share(table.get("lemon", 0.0), f"{where}.lemon"),
        portions=tuple(portions),
        left_out=tuple(left_out.items()),
    )


def _positive(value: object, where: str) -> float:
    number = checked_s(value, where) if type(value) in (int, float) else 0.0
    if number <= 0.0:
        raise UsageError(f"{where} is {value!r}; it is a number above 0")
    return number


def _share(value: object, where: str) -> float:
    number = checked_s(value, where)
    if number > 1.0:
        raise UsageError(f"{where} is {value!r}; it is a share from 0 to 1")
    return number
