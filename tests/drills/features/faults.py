"""The faults of a drawn script: when they strike, where, and on which rank. They are drawn from the
seed, after the features.

A fault is written `PLACE@STEP:RANK[:WHAT][+SECONDS][/GENERATION]`, for example `forward@5:1`,
`mark.voting@7:2:SIGSTOP`, `before@6:0+0.004`, `mark.joined@0:1/2`. WHAT is a signal (SIGKILL if it
is not given), or `raise`: an exception in the script's own code. PLACE is one of the script's
places (`strike("forward", ...)` in its text) or, with `mark.`, one of outlast's
(worker/instructions/marks.py). With `+SECONDS` the process is struck that much later, by a thread,
at an arbitrary moment.

A drawn plan has one to four faults, in events that are some steps apart, so that one recovery is
over before the next fault. An event is a fault on one rank; faults on two ranks at once; or a fault
on one rank, and one on another process during the recovery.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

from tests.drills.features.draw import Features

STEPS_APART = 4  # the steps between two events need all ranks, so a recovery is over by then


@dataclass(frozen=True)
class Fault:
    """One fault. For outlast's marks it does not strike before `generation`. A run begins with
    generation 1.
    """

    place: str
    step: int
    rank: int
    do: str = "SIGKILL"
    after_s: float = 0.0
    generation: int = 0

    @property
    def is_mark(self) -> bool:
        return self.place.startswith("mark.")

    def as_plan(self) -> dict[str, Any]:
        """Return the fault in the form that OUTLAST_DRILL or DRILL_STRIKES need."""
        where = {"rank": self.rank, "step": self.step, "do": self.do}
        if self.is_mark:
            mark = self.place.removeprefix("mark.")
            return {"mark": mark, "generation": self.generation, **where}
        return {"at": self.place, "after_s": self.after_s, **where}

    def __str__(self) -> str:
        do = "" if self.do == "SIGKILL" else f":{self.do}"
        late = f"+{self.after_s:g}" if self.after_s else ""
        after = f"/{self.generation}" if self.generation else ""
        return f"{self.place}@{self.step}:{self.rank}{do}{late}{after}"


_FAULT = re.compile(r"([\w.]+)@(\d+):(\d+)(?::(SIG\w+|raise))?(?:\+([\d.]+))?(?:/(\d+))?")


def parse_fault(text: str) -> Fault:
    found = _FAULT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not PLACE@STEP:RANK[:WHAT][+SECONDS][/GENERATION]")
    place, step, rank, do, late, generation = found.groups()
    return Fault(
        place, int(step), int(rank), do or "SIGKILL", float(late or 0), int(generation or 0)
    )


# --- where a script can be struck -----------------------------------------------------------------

_STEP_MARKS = ("prepared", "voting", "passed", "applied", "committed")
_SURVIVORS_MARKS = ("still", "settled", "grouped")  # where survivors go on in place
_SUCCESSORS_MARKS = ("grouping", "restoring", "joined")


def places(features: Features) -> tuple[str, ...]:
    """Return all places that occur in each step of this script, `strike`s first."""
    f = features
    found = ["before", "begin", "forward", "backward", "reduced", "tail", "tail_end"]
    found += ["behind", "behind_end"]
    found += [f"micro{number}" for number in range(f.accumulate)] if f.accumulate > 1 else []
    found += ["clipped"] if f.clip != "none" else []
    found += ["between_optimizers"] if f.second_optimizer else []
    found += ["load"] if f.loader != "none" and f.workers == 0 else []
    found += [f"draws_{where}" for where in f.draws if where != "calls"]
    marks = [*_STEP_MARKS, "sealing", "sealed"] if f.sharded else list(_STEP_MARKS)
    if f.sharded and f.snapshot_every > 1:
        marks = list(_STEP_MARKS)  # images are sealed in some steps only
    return (*found, *(f"mark.{name}" for name in marks))


def rare_places(features: Features) -> dict[str, tuple[int, ...]]:
    """Return the places that occur in some steps only, and these steps."""
    f, last = features, features.until[-1]
    found: dict[str, tuple[int, ...]] = {}
    if f.evaluate != "none":
        evaluated = tuple(range(EVALUATE_EVERY, last + 1, EVALUATE_EVERY))
        found |= dict.fromkeys(("evaluate", "evaluate_end"), evaluated)
    if len(f.until) > 1:
        found["calls"] = f.until[:-1]
    return found


def is_left_out(features: Features, step: int) -> bool:
    """Return whether no rank is struck in `step`.

    assumptions.md: if state that differs between ranks first changes after the vote of a step, a
    rank that is lost after its vote of that very step is not bit-exact, and the run says so. Here,
    that is the first evaluation that draws numbers.
    """
    f = features
    begins = f.evaluate == "plain" and f.evaluation_moves and f.stands
    return begins and step == EVALUATE_EVERY and not {"tail", "behind"} & {*f.draws}


def last_struck(features: Features) -> int:
    """Return the last step in which a rank may be struck.

    The docstring of run.steps says: a rank that is lost after another one has left the loop by
    `break` may not come back.
    """
    return features.until[-1] - 2 * features.left_by_break


# in these places an exception leads to a repeat: before the optimizer, and in a phase
_RAISING = ("begin", "load", "forward", "backward", "micro", "draws_inside", "reduced", "clipped")
EVALUATE_EVERY = 3  # steps


# --- the draw -------------------------------------------------------------------------------------


def draw_faults(features: Features) -> tuple[Fault, ...]:
    """Draw one to four faults for this script."""
    chance = random.Random(f"faults {features.seed}")
    last = last_struck(features)
    wanted = chance.choice((1, 1, 2, 2, 3, 3, 4))
    faults: list[Fault] = []
    step = chance.randint(1, max(1, last - STEPS_APART * wanted))
    generation: int | None = 1  # None: it is unknown, because two faults at once may be one or two
    while len(faults) < wanted and step <= last:
        event = _event(features, chance, step, room=wanted - len(faults), generation=generation)
        faults += event
        # Two ranks that are lost at once, or one while the others gather, make one generation or
        # two.
        at_once = len(event) > 1 and (not event[1].generation or event[1].place == "mark.still")
        generation = None if at_once or generation is None else generation + len(event)
        step = max(one.step for one in faults) + STEPS_APART + chance.randint(0, 4)
    if len(faults) < 4 and chance.random() < 0.3 and step <= last and not features.left_by_break:
        faults.append(_late(features, chance, last))
    return tuple(faults)


def _event(
    features: Features, chance: random.Random, step: int, *, room: int, generation: int | None
) -> list[Fault]:
    """Draw one event. `generation` is that of the run when this event comes."""
    first = _one(features, chance, step)
    others = [rank for rank in range(features.world) if rank != first.rank]
    lucky = chance.random()
    if room < 2 or lucky < 0.4 or first.do != "SIGKILL":
        return [first]
    if _is_rank_0s(features, first.place):  # no other rank comes to that place
        return [first]
    # one rank survives: the loss of all ranks at once is another promise
    if lucky < 0.6 and len(others) > 1:
        return [first, Fault(first.place, first.step, chance.choice(others))]
    # the generation distinguishes a mark of this recovery from those of earlier ones
    if generation is None:
        return [first]
    if features.stands and len(others) > 1 and chance.random() < 0.5:
        name, rank = chance.choice(_SURVIVORS_MARKS), chance.choice(others)
        within = generation if name == "still" else generation + 1
        return [first, Fault(f"mark.{name}", 0, rank, generation=within)]
    name = chance.choice(_SUCCESSORS_MARKS)
    return [first, Fault(f"mark.{name}", 0, first.rank, generation=generation + 1)]


def _one(features: Features, chance: random.Random, step: int) -> Fault:
    rank = chance.randrange(features.world)
    rare = [
        (
            name,
            [
                at
                for at in steps
                if step <= at < step + STEPS_APART
                and at <= last_struck(features)
                and not is_left_out(features, at)
            ],
        )
        for name, steps in rare_places(features).items()
    ]
    near = [(name, at) for name, steps in rare for at in steps]
    if near and chance.random() < 0.3:
        place, step = chance.choice(near)
    else:
        place = chance.choice(places(features))
        step += is_left_out(features, step)
    if _is_rank_0s(features, place):
        rank = 0
    lucky = chance.random()
    repeated = place.rstrip("0123456789") in _RAISING or (
        place == "evaluate" and features.evaluate == "phase" and features.stands
    )
    raises = lucky < 0.2 and repeated
    return Fault(place, step, rank, "raise" if raises else "SIGSTOP" if lucky > 0.88 else "SIGKILL")


def _is_rank_0s(features: Features, place: str) -> bool:
    return features.evaluate_on == "first" and place in ("evaluate", "evaluate_end")


def _late(features: Features, chance: random.Random, last: int) -> Fault:
    """Draw the last fault of a plan: at any moment of the last steps, or after all of them."""
    rank = chance.randrange(features.world)
    if chance.random() < 0.5:
        return Fault("end", last, rank)
    return Fault("before", last - 2, rank, after_s=round(chance.uniform(0.0, 0.01), 4))
