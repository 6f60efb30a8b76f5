"""Where in the script a rank stood when its private image was sealed, and which image of a step its
successor begins from.

    prepared n   n phases behind the step are done, and the script's code behind the last of them
                 has not run yet; with n = 0: the vote of the step is next
    entered n    all that comes before phase n has run
    begun n      all that comes before the next step has run, n phases among it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outlast.runtime.tiers.image import Image

PREPARED, ENTERED, BEGUN = "prepared", "entered", "begun"
_ORDER = (PREPARED, ENTERED, BEGUN)


@dataclass(frozen=True, slots=True)
class Place:
    """`phases`: how many are done. `legs`: 1 if run.steps was called again behind the step, else 0."""

    kind: str
    phases: int
    legs: int = 0

    def metadata(self) -> dict[str, str]:
        """Return what travels with the image."""
        return {"place": self.kind, "phases": str(self.phases), "legs": str(self.legs)}

    @property
    def is_complete(self) -> bool:
        """Return whether the script had done all that it does before the next step or phase.

        Else parts may have moved since.
        """
        return self.kind != PREPARED


def place_of(metadata: Mapping[str, str]) -> Place:
    """Read what `Place.metadata` gave.

    Images of other kinds (shards) are sealed when the next step begins.
    """
    return Place(
        metadata.get("place", BEGUN),
        int(metadata.get("phases", "0")),
        int(metadata.get("legs", "0")),
    )


def best(
    images: Iterable[tuple[int, Image]], *, begun: bool, phases: int, legs: int = 0
) -> tuple[int, Image, Place]:
    """Return the slot, the image and its place: the one sealed latest that is not later than where
    the survivors stand.

    They stand in the next step, or next to it (`begun`), or behind so many phases; and in the next
    leg of the run, or (legs=0) before it. There is at least one image; where all are later than
    that, the earliest is taken.
    """

    def rank(place: Place) -> tuple[bool, tuple[int, int, int]]:
        at = (place.legs, place.phases, _ORDER.index(place.kind))
        fits = place.legs <= legs and (begun or place.phases <= phases)
        return fits, at if fits else (-at[0], -at[1], -at[2])

    found = [(slot, image, place_of(image.metadata)) for slot, image in images]
    return max(found, key=lambda one: rank(one[2]))
