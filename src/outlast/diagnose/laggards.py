"""Find ranks that are behind, from beacons alone.

Beacons are the pages in which the workers of a run said where they stood (model/beacon.py).

Ranks that stand in the vote, or wait for the coordinator, wait for others. Only the newest
generation counts. The first of these rules that finds a rank decides:

    apart    a rank that stands where it waits for no peer (loading data, copying), while others
             wait at the vote of its next step
    behind   ranks that have committed fewer steps than others
    body     ranks still in the body of the step whose vote others wait in. If it is one rank, they
             wait for it; otherwise it may be any of them

Limits  A body has collectives of its own, which beacons do not tell apart. If several ranks are in
        it, any may wait for another, so none is named. A beacon shows the moment of its last write.
        A rank that died has a beacon too. Beacons of a healthy run, copied while it trained, look
        like this as well.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outlast.diagnose.file_findings import file_finding
from outlast.diagnose.findings import Finding
from outlast.model.beacon import Beacon
from outlast.model.terms import Phase

RANKS_MIN = 2
_APART = (Phase.DATA, Phase.SNAPSHOT, Phase.CHECKPOINT, Phase.BETWEEN)
_NOT_IN_A_STEP = (Phase.PARKED, Phase.BOOT)


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    beacon: Beacon

    @property
    def rank(self) -> int:
        return self.beacon.rank

    def says(self, newest_ns: int) -> str:
        stood_s = max(0.0, (newest_ns - self.beacon.at_ns) / 1e9)
        return (
            f"rank {self.rank}: in {self.beacon.phase.value} after step {self.beacon.step},"
            f" {stood_s:.1f} s before the newest beacon"
        )


def find_laggards(beacons: Mapping[str, Beacon]) -> tuple[Finding, ...]:
    """Return the findings about ranks that are behind.

    The beacons are by the names of their files. They have to be of one node, so that their times
    are of one clock.
    """
    places = _newest_of_each_rank(beacons)
    if len(places) < RANKS_MIN:
        return ()
    newest_ns = max(place.beacon.at_ns for place in places)
    voters = [place for place in places if place.beacon.phase is Phase.VOTE]
    voted_for = max((place.beacon.step for place in voters), default=-1)
    apart = [
        place for place in places if place.beacon.phase in _APART and place.beacon.step <= voted_for
    ]
    furthest = max(place.beacon.step for place in places)
    behind = [place for place in places if place.beacon.step < furthest]
    body = [
        place
        for place in places
        if place.beacon.phase is Phase.BODY and place.beacon.step <= voted_for
    ]
    for rule, found in (("beacon.apart", apart), ("beacon.behind", behind), ("beacon.body", body)):
        if found and len(found) < len(places):
            name = rule if rule != "beacon.body" or len(found) == 1 else "beacon.one_of"
            return tuple(
                file_finding(name, place.name, place.says(newest_ns), place.rank) for place in found
            )
    if all(place.beacon.phase is places[0].beacon.phase for place in places):
        text = (
            f"all {len(places)} ranks are in {places[0].beacon.phase.value} after step"
            f" {furthest}: beacons do not tell them apart"
        )
        return (file_finding("beacon.level", places[0].name, text, None),)
    return ()


def _newest_of_each_rank(beacons: Mapping[str, Beacon]) -> Sequence[_Place]:
    """Return the newest beacon of each rank, of the newest generation.

    A worker that handed its rank on has left a beacon too, which is older.
    """
    held = [
        _Place(name, beacon)
        for name, beacon in beacons.items()
        if beacon.rank >= 0 and beacon.phase not in _NOT_IN_A_STEP
    ]
    generation = max((place.beacon.generation for place in held), default=0)
    newest: dict[int, _Place] = {}
    for place in sorted(held, key=lambda place: place.beacon.at_ns):
        if place.beacon.generation == generation:
            newest[place.rank] = place
    return [newest[rank] for rank in sorted(newest)]
