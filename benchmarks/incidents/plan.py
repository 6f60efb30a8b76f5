"""What happens in a made incident, drawn from a seed: kind, layout, guilty ranks, place, how it
ends, and what its user had kept.

Same seed, same plan, on any machine. What is *not* the same twice: processes, times, and where
exactly a signal meets a process. Seeds below JUDGING are for development; judging begins there
(`seeds`). No rule and no threshold may be chosen by looking at incidents of the latter.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from typing import Any

JUDGING = 1_000_000

KINDS = (
    "sleep",
    "stopped",
    "interpreter_lock",
    "shape",
    "order",
    "uneven",
    "loader",
    "disk",
    "killed",
    "exception",
)
MESHES = {
    "tp_dp": ((2, 2), (3, 2), (2, 3), (4, 2), (2, 4)),
    "pp_dp": ((2, 2), (3, 2), (2, 3), (4, 2), (2, 4)),
    "hsdp": ((2, 2), (3, 2), (2, 3), (2, 4), (4, 2)),
}
DUMP_NAMES = (
    "fr/nccl_trace_rank_{rank}",
    "fr/comm_lib_trace_rank_{rank}",
    "flight/dump_{rank}",
    "traces/gpt_{host}_{rank}",
)
HANGS = ("sleep", "stopped", "interpreter_lock", "order")
IN_PAIRS = ("sleep", "stopped", "interpreter_lock", "killed")
PAIRS_OF_100 = 20
PHASES = ("data", "forward", "backward", "optimizer")
STEPS_MAX = 10_000  # more than any incident lives to see

# What makes a rank do it: a note on one of its records
SLEEPS: tuple[dict[str, Any], ...] = (
    {"kind": "retry"},
    {"kind": "lock"},
    {"kind": "remote"},
    {"kind": "spin"},
)
LOCKS: tuple[dict[str, Any], ...] = ({"kind": "pack"}, {"kind": "match"})
CODE_RECORDS: tuple[dict[str, Any], ...] = ({"token": "<99>"}, {"shape": [3, 7]}, {"length": 0})
DATA_RECORDS: tuple[dict[str, Any], ...] = ({"text": '{"prompt": "once upon'}, {"bytes": "74c3"})
DISKS = ("full", "full_torch", "limit", "limit_torch")


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault.

    `note`: on the rank's record of `step`; None where the blow comes from outside the process.
    """

    rank: int
    step: int
    kind: str
    note: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """`variant` says which way of a kind was drawn; `timeout_s`: of the process group, None where
    the job is looked at while it hangs.
    """

    seed: int
    kind: str
    variant: str
    layout: str
    mesh: tuple[int, int]
    strikes: tuple[Strike, ...]
    timeout_s: float | None
    workers: int
    dump_name: str
    json_dumps: tuple[bool, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def world(self) -> int:
        return self.mesh[0] * self.mesh[1]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(strike.rank for strike in self.strikes))

    @property
    def name(self) -> str:
        return f"{self.seed:07}-{self.kind}"

    def public(self) -> dict[str, Any]:
        return asdict(self)


def seeds(count: int, *, judging: bool, first: int = 0) -> range:
    start = (JUDGING if judging else 0) + first
    return range(start, start + count)


def draw(seed: int, kind: str | None = None) -> Plan:
    """Draw an incident. Kinds take turns, so that a row of seeds has as many of each."""
    chance = random.Random(f"incident {seed}")
    kind = kind or KINDS[seed % len(KINDS)]
    layout = chance.choice(sorted(MESHES))
    mesh = chance.choice(MESHES[layout])
    world = mesh[0] * mesh[1]
    step = chance.randrange(4, 16)
    variant, notes, kept_alive = _fault(chance, kind, step)
    pair = kind in IN_PAIRS and chance.randrange(100) < PAIRS_OF_100 and world > 4
    ranks = chance.sample(range(world), 2 if pair else 1)
    by_timeout = kind in HANGS and chance.random() < 0.3
    return Plan(
        seed=seed,
        kind=kind,
        variant=variant,
        layout=layout,
        mesh=mesh,
        strikes=tuple(Strike(rank, step, kind, notes) for rank in ranks),
        timeout_s=1.5 if by_timeout else None,
        workers=1 if kind == "loader" else 0,
        dump_name=chance.choice(DUMP_NAMES),
        json_dumps=_formats(chance, world),
        settings={
            "faulthandler": chance.random() < 0.5,
            "save_every": kept_alive.pop("save_every", 5),
            "last_barrier": False,
            "plain_save": chance.random() < 0.5,
            "state_bytes": 1 << 20,
            **kept_alive,
        },
        kept=_kept(chance, layout),
    )


def _kept(chance: random.Random, layout: str) -> dict[str, Any]:
    """Draw which evidence there is. A pipeline's stacks always are.

    gloo's recorder sees no receives, and without a stack nobody can tell who waits in one from who
    is awaited.
    """
    stacks = chance.choice(("faulthandler", "py-spy", "none"))
    if stacks == "none" and layout == "pp_dp":
        stacks = "faulthandler"
    return {
        "stacks": stacks,
        "places": chance.random() < 0.6,
        "processes": chance.random() < 0.5,
        "tee": chance.random() < 0.3,
    }


def _formats(chance: random.Random, world: int) -> tuple[bool, ...]:
    """Draw the formats of dumps: all JSON, all pickle, or some of each."""
    drawn = chance.choice(("json", "pickle", "mixed"))
    return tuple(
        chance.random() < 0.5 if drawn == "mixed" else drawn == "json" for _ in range(world)
    )


def _fault(
    chance: random.Random, kind: str, step: int
) -> tuple[str, dict[str, Any] | None, dict[str, Any]]:
    """Draw a variant, the note that makes it, and the settings that belong to it.

    The note is None where the fault comes from outside.
    """
    phase = chance.choice(PHASES)
    if kind == "sleep":
        note = chance.choice(SLEEPS)
        return note["kind"], {**note, "phase": phase}, {}
    if kind == "interpreter_lock":
        note = chance.choice(LOCKS)
        return note["kind"], {**note, "phase": phase}, {}
    if kind == "shape":
        return (
            "wide",
            {
                "kind": "long",
                "phase": "update",
                "width": chance.choice((6, 64, 5000)),
                "pause_s": 0.4,
            },
            {},
        )
    if kind == "order":
        variant = chance.choice(("early", "eager"))
        return variant, {"kind": variant, "phase": "update"}, {}
    if kind == "uneven":
        last_barrier = chance.random() < 0.3
        return (
            "barrier" if last_barrier else "exit",
            {"kind": "short", "phase": ""},
            {"last_barrier": last_barrier},
        )
    if kind == "disk":
        variant = chance.choice(DISKS)
        limit = {"limit_bytes": 1 << 18} if variant.startswith("limit") else {}
        return (
            variant,
            {"kind": "disk", "phase": "checkpoint", **limit},
            {"save_every": step + 1, "plain_save": not variant.endswith("torch")},
        )
    if kind == "exception":
        record = chance.choice((*CODE_RECORDS, *DATA_RECORDS))
        return (
            "data" if record in DATA_RECORDS else "code",
            {"kind": "record", "record": record, "phase": phase},
            {},
        )
    return "signal", None, {}
