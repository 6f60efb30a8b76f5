"""Places in the script at which private state is sealed, and from which image a successor begins.

A script may change state after the block of a step, between phases, and up to the next step. So
several images of one step may differ, and each says at which place it was sealed:

    prepared n   right after phase n, before the script's own code that follows it. With n = 0:
                 in the block of the step, just before its vote
    entered n    as the script enters the phase that follows the first n
    begun n      as the script asks for the next step, after n phases

A successor has to begin with the state that its predecessor had at the place where the survivors
stand now.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from outlast.model.limits import SLOTS_COUNT

PREPARED, ENTERED, BEGUN = "prepared", "entered", "begun"
_ORDER = (PREPARED, ENTERED, BEGUN)
STILL = {"still": "1"}  # nothing has changed between the seal and the next step or phase


class PlacedImage(Protocol):
    """An image that carries its place in its metadata."""

    @property
    def metadata(self) -> Mapping[str, str]: ...


ImageT = TypeVar("ImageT", bound=PlacedImage)


@dataclass(frozen=True, slots=True)
class ScriptPosition:
    """A place in the script.

    kind     PREPARED, ENTERED or BEGUN
    phases   how many phases after the step are done
    calls    1 if run.steps was called again after the step, else 0
    still    the script has gone on since, up to the next step or phase, and has changed nothing
    """

    kind: str
    phases: int
    calls: int = 0
    still: bool = False

    def metadata(self) -> dict[str, str]:
        """Return the place as metadata of an image. "legs" is the older name of `calls`."""
        said = {"place": self.kind, "phases": str(self.phases), "legs": str(self.calls)}
        return said | STILL if self.still else said

    @property
    def is_complete(self) -> bool:
        """Return True if the image has everything that the script did before its next step or
        phase.

        Otherwise parts of the state may have changed after the image was sealed.
        """
        return self.kind != PREPARED or self.still


AT_VOTE = ScriptPosition(PREPARED, 0)  # the vote of a step inside its block


def is_between_calls(
    before: tuple[int, ScriptPosition] | None, now: tuple[int, ScriptPosition]
) -> bool:
    """Return True if only code between two calls of run.steps has run from `before` to `now`.

    Each is a step and a complete place after it. The answer is False if a phase is between them,
    because a phase has a vote of its own.
    """
    if before is None or not now[1].calls:
        return False
    return before[0] == now[0] and before[1].phases == now[1].phases


def place_of(metadata: Mapping[str, str]) -> ScriptPosition:
    """Return the place that an image's metadata names.

    Images of shards name none: they are always sealed when the next step begins.
    """
    return ScriptPosition(
        metadata.get("place", BEGUN),
        int(metadata.get("phases", "0")),
        int(metadata.get("legs", "0")),
        STILL.items() <= metadata.items(),
    )


def choose_slot(*, newest: int, newest_step: int, step: int, committed: int) -> int:
    """Return the slot for the image of `step`, so that one whole image exists at any moment.

    An image goes into the slot beside the newest one. But if the newest image is of a step that was
    not committed, that step is being repeated. Its image is overwritten, and the other slot stays,
    because the repeat begins from it.

    newest        the slot that holds the newest image; -1: none is known
    newest_step   the step of that image
    committed     the newest step that this rank has committed
    """
    if newest < 0:
        return step % SLOTS_COUNT
    return newest if newest_step > committed else 1 - newest


def choose_image(
    images: Iterable[tuple[int, ImageT]], *, begun: bool, phases: int, calls: int = 0
) -> tuple[int, ImageT, ScriptPosition]:
    """Choose the image from which a successor begins. Return its slot, the image and its place.

    Of the images that were sealed no later than the place of the survivors, the latest is chosen.
    If all are later than that place, the earliest is chosen. `images` has at least one.

    begun    the survivors stand in the next step, or right before it
    phases   otherwise: after so many phases
    calls    1 if the survivors are in the next call of run.steps, else 0
    """

    def order(place: ScriptPosition) -> tuple[bool, tuple[int, int, int]]:
        at = (place.calls, place.phases, _ORDER.index(place.kind))
        fits = place.calls <= calls and (begun or place.phases <= phases)
        return fits, at if fits else (-at[0], -at[1], -at[2])

    found = [(slot, image, place_of(image.metadata)) for slot, image in images]
    return max(found, key=lambda one: order(one[2]))
