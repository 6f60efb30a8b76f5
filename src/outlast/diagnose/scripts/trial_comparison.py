"""Compare two runs of a script: one undisturbed, and one with ranks killed and replaced.

At the beginning and at the end of each step, each rank has noted prints
(runtime/worker/trials/trial.py). They are those of the script's variables and of the content of
run.state. The same step must begin and end with the same prints in both runs. Prints that differ
are named:

    begin of the step in which a rank died   a variable that differs there was not kept (in the
                                             process that replaced it), or was changed by the
                                             attempt that was interrupted (in the others)
    end of the last step                     where the state differs, the run gives other results

What differed before any rank died is the script's own: times, folders, draws without a seed.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

BEGIN, END = "begin", "end"
STATE = "state:"
ALSO_KEPT = " of run.values"  # behind the type: a second name of a value that is kept
UNSEEN = "? "  # in front of the type of what cannot be compared
CACHE, GRADIENTS = "_lru_cache_wrapper", "gradients"  # such types, besides those of iterators


@dataclass(frozen=True, slots=True)
class ScriptLoop:
    """The place of the loop over the steps in the script."""

    file: str
    function: str
    line: int


@dataclass(frozen=True, slots=True)
class RankNote:
    """This is what one rank saw at one moment.

    prints   fingerprints, with a type after the digits
    """

    pid: int
    loop: ScriptLoop
    prints: Mapping[str, str]


Notes = Mapping[tuple[int, str, int], RankNote]  # by rank, BEGIN or END, step


@dataclass(frozen=True, slots=True)
class KilledRank:
    """A rank that was killed in a step, before its optimizer."""

    rank: int
    step: int


@dataclass(frozen=True, slots=True)
class UnseenCarrier:
    """Something that a step may get from an earlier one, and that cannot be compared.

    kind   an iterator's type, CACHE, or GRADIENTS
    """

    file: str
    function: str
    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that one rank did not have as in the undisturbed run.

    name      with its attributes: "trainer.best"
    kind      its type's name
    replaced  the rank was replaced; else it has repeated the step
    lasting   it also differs at the end of the last step
    kept      it is the same object as an attribute of run.values, where no rank was replaced
    """

    file: str
    function: str
    name: str
    kind: str
    rank: int
    step: int
    replaced: bool
    lasting: bool
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between the two runs.

    variables      that were not kept, each once
    state          by rank, the parts of run.state that differ at the end of the last step
    differs_from   the first step after which a part of the state differs; 0: none does
    own            parts of the state that differ before any rank was replaced
    last_step      the last step that every rank has ended in both runs
    unseen         what a step may get from an earlier one, and cannot be compared
    """

    variables: tuple[Variable, ...]
    state: Mapping[int, tuple[str, ...]]
    differs_from: int
    own: tuple[str, ...]
    last_step: int
    unseen: tuple[UnseenCarrier, ...] = ()


def compare(
    undisturbed: Notes, disturbed: Notes, struck: Collection[KilledRank], temporary: Collection[str]
) -> Comparison:
    """Return what differs between the undisturbed run and the disturbed one.

    `temporary` are the variables, and attributes of variables, by their whole keys, that the loop
    sets in each step before it reads them.
    """
    first = min((one.step for one in struck), default=1)
    before = [at for at in undisturbed if at[2] < first and at in disturbed]
    unstable = {key for at in before for key in _differing(undisturbed[at], disturbed[at])}
    own = tuple(sorted(key for key in unstable if key.startswith(STATE)))
    last = _last_step(undisturbed, disturbed)
    state = {
        rank: tuple(sorted(key[len(STATE) :] for key in found))
        for rank in _ranks(undisturbed)
        if (found := _state_differences(undisturbed, disturbed, rank, last) - unstable)
    }
    variables: dict[str, Variable] = {}
    for strike in sorted(struck, key=lambda one: one.step):
        for lost in _lost(undisturbed, disturbed, strike, unstable, temporary, last):
            key = f"{lost.file}:{lost.function}:{lost.name}"
            if (lost.lasting and not lost.kept) or state:
                variables.setdefault(key, lost)
    return Comparison(
        tuple(variables.values()),
        state,
        _differs_from(undisturbed, disturbed, unstable),
        own,
        last,
        _unseen(undisturbed),
    )


def _unseen(notes: Notes) -> tuple[UnseenCarrier, ...]:
    kinds = {
        key: text[len(UNSEEN) :]
        for (_, when, _), noted in notes.items()
        for key, text in noted.prints.items()
        if when == BEGIN and text.startswith(UNSEEN)
    }
    split = [(*key.rpartition(":")[::2], kind) for key, kind in sorted(kinds.items())]
    return tuple(
        UnseenCarrier(*place.rpartition(":")[::2], name, kind) for place, name, kind in split
    )


def _ranks(notes: Notes) -> set[int]:
    return {rank for rank, _, _ in notes}


def _differing(left: RankNote, right: RankNote) -> set[str]:
    return {
        key
        for key in left.prints.keys() | right.prints.keys()
        if left.prints.get(key) != right.prints.get(key)
    }


def _last_step(undisturbed: Notes, disturbed: Notes) -> int:
    """Return the newest step whose end every rank has noted in both runs."""
    ranks = _ranks(undisturbed)
    steps = {step for _, when, step in undisturbed if when == END}
    return max(
        (
            step
            for step in steps
            if all(
                (rank, END, step) in notes for rank in ranks for notes in (undisturbed, disturbed)
            )
        ),
        default=0,
    )


def _state_differences(undisturbed: Notes, disturbed: Notes, rank: int, step: int) -> set[str]:
    at = (rank, END, step)
    if at not in undisturbed or at not in disturbed:
        return set()
    return {key for key in _differing(undisturbed[at], disturbed[at]) if key.startswith(STATE)}


def _differs_from(undisturbed: Notes, disturbed: Notes, unstable: Collection[str]) -> int:
    return min(
        (
            step
            for rank, when, step in undisturbed
            if when == END
            and _state_differences(undisturbed, disturbed, rank, step).difference(unstable)
        ),
        default=0,
    )


def _lost(
    undisturbed: Notes,
    disturbed: Notes,
    strike: KilledRank,
    unstable: Collection[str],
    temporary: Collection[str],
    last: int,
) -> list[Variable]:
    """Return the variables that differ where the interrupted step began again."""
    out = []
    for rank in sorted(_ranks(undisturbed), key=lambda one: (one != strike.rank, one)):
        at = (rank, BEGIN, strike.step)
        if at not in undisturbed or at not in disturbed:
            continue
        earlier = (rank, BEGIN, strike.step - 1)
        known = set(unstable)
        if earlier in undisturbed and earlier in disturbed:
            known |= _differing(
                undisturbed[earlier], disturbed[earlier]
            )  # an earlier kill has shown it
        end = (rank, END, last)
        later = (
            _differing(undisturbed[end], disturbed[end])
            if end in undisturbed and end in disturbed
            else set()
        )
        for key in sorted(_differing(undisturbed[at], disturbed[at]) - known):
            if key.startswith(STATE) or _is_temporary(
                key, (undisturbed[at], disturbed[at]), temporary
            ):
                continue
            text = undisturbed[at].prints.get(key) or disturbed[at].prints.get(key, "")
            if text.startswith(UNSEEN):
                continue  # it is there or not, and that says nothing yet
            out.append(_variable(key, text, rank, strike, key in later))
    return out


def _is_temporary(key: str, noted: Collection[RankNote], temporary: Collection[str]) -> bool:
    """Return whether a variable is temporary itself, or is such an attribute by another name.

    `self.loss` of the loop may be `trainer.loss` in the module: both have the same values.
    """
    if any(owner in temporary for owner in _owners(key)):
        return True
    ending = f".{key.rpartition('.')[2]}"
    return any(
        other.rpartition(":")[2].endswith(ending)
        and all(one.prints.get(key) == one.prints.get(other) for one in noted)
        for other in temporary
    )


def _owners(key: str) -> set[str]:
    """Return the keys of a variable without attributes, and with its first attribute alone."""
    place, _, name = key.rpartition(":")
    parts = name.split(".")
    return {f"{place}:{'.'.join(parts[:count])}" for count in (1, 2)}


def _variable(key: str, text: str, rank: int, strike: KilledRank, lasting: bool) -> Variable:
    place, _, name = key.rpartition(":")
    file, _, function = place.rpartition(":")
    kind = text.partition(" ")[2]
    return Variable(
        file,
        function,
        name,
        kind.removesuffix(ALSO_KEPT),
        rank,
        strike.step,
        replaced=rank == strike.rank,
        lasting=lasting,
        kept=kind.endswith(ALSO_KEPT),
    )
