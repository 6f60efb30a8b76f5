"""What a verdict is worth beside the truth, and the tables of many. Pure.

A verdict is what `outlast diagnose --json` prints. Two questions are asked of it:

all evidence kept      exact: `ranks` are the guilty ones, no more and no less
some of it lost        sound: the guilty are in `ranks` or `suspects`; nobody innocent is in
                       `ranks`; `suspects` are only ranks whose dump is missing

A dump under another name that still ends in its rank is not missing; one that was removed, cut, or
whose name says nothing, is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.incidents.truth import SURE

EXACT_WANTED, SOUND_WANTED = 0.98, 0.95


@dataclass(frozen=True, slots=True)
class Mark:
    """The judgement of one verdict.

    `strayed` counts suspects whose evidence was there. `surely_wrong` means a class that does not
    count, with confidence SURE or more.
    """

    name: str
    kind: str
    exact: bool
    covered: bool
    innocents: tuple[int, ...]
    strayed: tuple[int, ...]
    class_right: bool
    mechanism_right: bool
    surely_wrong: bool
    said: str

    @property
    def sound(self) -> bool:
        return self.covered and not self.innocents and not self.strayed


def judge(
    name: str, told: Mapping[str, Any], verdict: Mapping[str, Any], *, missing: Collection[int] = ()
) -> Mark:
    """Judge one diagnosis.

    told     the incident's truth.json
    missing  ranks whose dump the diagnosis could not have
    """
    truth = told["truth"]
    guilty = set(truth["ranks"])
    ranks, suspects = (
        {one["rank"] for one in verdict["ranks"]},
        {one["rank"] for one in verdict["suspects"]},
    )
    says = f"{verdict['class']} {verdict['confidence']:.2f}, {verdict['mechanism']}"
    counts = verdict["class"] in truth["classes"] or (
        verdict["class"] in truth["hedged"] and verdict["confidence"] < SURE
    )
    return Mark(
        name=name,
        kind=told["plan"]["kind"],
        exact=ranks == guilty,
        covered=guilty <= ranks | suspects,
        innocents=tuple(sorted(ranks - guilty)),
        strayed=tuple(sorted(suspects - set(missing))),
        class_right=counts,
        mechanism_right=verdict["mechanism"] in truth["mechanisms"],
        surely_wrong=not counts and verdict["confidence"] >= SURE,
        said=f"{says}, ranks {_named(ranks)}, suspects {_named(suspects)}; truth {_named(guilty)}",
    )


def _named(ranks: Collection[int]) -> str:
    shown = sorted(ranks)
    return f"{shown[:8]}" + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")


def missing_of(told: Mapping[str, Any]) -> set[int]:
    return {int(rank) for rank, way in told["hidden"].items() if way != "renamed"}


def table(marks: Iterable[Mark], *, damaged: bool) -> str:
    """Return a line for each kind, and one for all."""
    marks = list(marks)
    good = "sound" if damaged else "exact"
    lines = [
        f"{'kind':18}{'count':>6}{good:>8}{'covered':>9}{'innocents':>11}{'suspects':>10}"
        f"{'class':>8}{'mechanism':>11}{'surely wrong':>14}"
    ]
    kinds = sorted({mark.kind for mark in marks})
    for kind in [*kinds, "all"]:
        of = [mark for mark in marks if kind in ("all", mark.kind)]
        right = sum(mark.sound if damaged else mark.exact for mark in of)
        lines.append(
            f"{kind:18}{len(of):6}{_share(right, of):>8}"
            f"{_share(sum(mark.covered for mark in of), of):>9}"
            f"{sum(bool(mark.innocents) for mark in of):11}"
            f"{sum(bool(mark.strayed) for mark in of):10}"
            f"{_share(sum(mark.class_right for mark in of), of):>8}"
            f"{_share(sum(mark.mechanism_right for mark in of), of):>11}"
            f"{sum(mark.surely_wrong for mark in of):14}"
        )
    return "\n".join(lines)


def _share(count: int, of: list[Mark]) -> str:
    return f"{100 * count / len(of):.1f} %" if of else "-"


def reached(kept: Collection[Mark], damaged: Collection[Mark]) -> bool:
    return (
        share(mark.exact for mark in kept) >= EXACT_WANTED
        and share(mark.sound for mark in damaged) >= SOUND_WANTED
    )


def share(true: Iterable[bool]) -> float:
    """Return the share of what is true, and 0 if there is nothing."""
    values = list(true)
    return sum(values) / len(values) if values else 0.0
