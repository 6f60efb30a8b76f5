"""Where in the script a rank stood when an image of its private state was sealed, and which image
its successor begins from.

    prepared n   n phases after the step are done, and the script's code after the last of them
                 has not run yet. With n = 0, the vote of the step is next.
    entered n    everything that comes before phase n has run
    begun n      everything that comes before the next step has run, n phases among it

Two images of one rank and one step can differ, because the script may change state after the
block of a step. A successor has to begin with what its predecessor had where the survivors stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from outlast.model.limits import SLOTS_COUNT

PREPARED, ENTERED, BEGUN = "prepared", "entered", "begun"
_ORDER = (PREPARED, ENTERED, BEGUN)
STILL = {"still": "1"}


class Placed(Protocol):
    """An image that carries its place in its metadata."""

    @property
    def metadata(self) -> Mapping[str, str]: ...


ImageT = TypeVar("ImageT", bound=Placed)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the script.

    kind     PREPARED, ENTERED or BEGUN
    phases   how many phases after the step are done
    calls    1 if run.steps was called again after the step, else 0
    still    the script has come further since, up to the next step or phase, and nothing has moved
    """

    kind: str
    phases: int
    calls: int = 0
    still: bool = False

    def metadata(self) -> dict[str, str]:
        """Return what travels with the image: "legs" are `calls`, by their name of before."""
        said = {"place": self.kind, "phases": str(self.phases), "legs": str(self.calls)}
        return said | STILL if self.still else said

    @property
    def is_complete(self) -> bool:
        """Return True if the script had done all that it does before the next step or phase.

        Otherwise parts of the state may have changed after the image was sealed.
        """
        return self.kind != PREPARED or self.still


AT_VOTE = Place(PREPARED, 0)  # the vote of a step inside its block


def is_between_calls(before: tuple[int, Place] | None, now: tuple[int, Place]) -> bool:
    """Return True if only code between two calls of run.steps has run since `before`.

    Both are a step and a place where the script had done all that belongs there. A phase between
    the two calls has a vote of its own, so what follows it is no such code.
    """
    if before is None or not now[1].calls:
        return False
    return before[0] == now[0] and before[1].phases == now[1].phases


def place_of(metadata: Mapping[str, str]) -> Place:
    """Read what `Place.metadata` gave.

    Images that say nothing (shards) are sealed when the next step begins.
    """
    return Place(
        metadata.get("place", BEGUN),
        int(metadata.get("phases", "0")),
        int(metadata.get("legs", "0")),
        STILL.items() <= metadata.items(),
    )


def choose_slot(*, newest: int, newest_step: int, step: int, committed: int) -> int:
    """Choose the slot for the image of `step`, so that one whole image exists at any moment.

    An image goes beside the newest one. The exception is an image of a step that was not committed:
    the step is repeated, so the image is written over. What the repeat begins from stays.

    newest        the slot that holds the newest image, -1 if none is known
    newest_step   the step of that image
    committed     the newest step that this rank has committed
    """
    if newest < 0:
        return step % SLOTS_COUNT
    return newest if newest_step > committed else 1 - newest


def choose_image(
    images: Iterable[tuple[int, ImageT]], *, begun: bool, phases: int, calls: int = 0
) -> tuple[int, ImageT, Place]:
    """Choose the image from which a successor begins; return its slot, the image and its place.

    The choice is the image that was sealed last, of those that are not later than the place where
    the survivors stand. The survivors stand in the next step or right before it (`begun`), or
    after so many phases; and in the next call of run.steps, or (calls=0) before it. There is at
    least one image. Where all are later than the survivors, the earliest is taken.
    """

    def order(place: Place) -> tuple[bool, tuple[int, int, int]]:
        at = (place.calls, place.phases, _ORDER.index(place.kind))
        fits = place.calls <= calls and (begun or place.phases <= phases)
        return fits, at if fits else (-at[0], -at[1], -at[2])

    found = [(slot, image, place_of(image.metadata)) for slot, image in images]
    return max(found, key=lambda one: order(one[2]))
