"""Rules for plans and state: one owner of each rank, one point to go on from, no step lost."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.model import limits
from outlast.sim.rules.checker import NEAR_S, Checker
from outlast.sim.rules.observations import (
    GroupJoined,
    Observation,
    OldStore,
    Planned,
    RankGiven,
    Restored,
    StartedOver,
    StepDone,
    Stretch,
)


class OneStepPerGeneration(Checker):
    """A generation starts from one step, and generations only grow."""

    of = (Planned,)

    def __init__(self) -> None:
        self._newest = 0

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned):
            if len(set(seen.steps)) > 1:
                yield (
                    f"generation {seen.generation} starts from several steps:"
                    f" {sorted(set(seen.steps))}"
                )
            if seen.generation <= self._newest:
                yield f"generation {seen.generation} comes after {self._newest}"
            self._newest = seen.generation


class PauseAfterCutLink(Checker):
    """A group that could not be formed across a link is tried again only after a pause.

    It gets a store that all nodes can reach, if there is a place for one.
    """

    of = (Planned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned) and seen.cut_s is not None:
            if seen.cut_s < limits.LINK_RETRY_S - NEAR_S:
                yield (
                    f"generation {seen.generation} is tried {seen.cut_s:.3f} s after the report"
                    " that the last one failed because of a link"
                )
            if seen.store_cut:
                yield (
                    f"generation {seen.generation} is tried with the store on {seen.store_cut},"
                    " which some ranks could not reach"
                )


class OneOwner(Checker):
    """A rank is given away only after its holder is dead. Only its holder commits steps."""

    of = (RankGiven, StepDone, Stretch)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, RankGiven) and seen.others:
            yield (
                f"rank {seen.plan.rank} is given to worker {seen.worker} while worker"
                f" {seen.others[0]} lives"
            )
        if isinstance(seen, StepDone) and seen.owners != (seen.worker,):
            yield f"rank {seen.rank} commits step {seen.step}, but workers {seen.owners} hold it"
        if isinstance(seen, Stretch) and seen.shared:
            yield (
                f"ranks {list(seen.shared)} commit steps {seen.first} to {seen.last}, but are not"
                " held by one process each"
            )


class Fenced(Checker):
    """No rank commits in a generation once a newer one has committed."""

    of = (StepDone, Stretch)

    def __init__(self) -> None:
        self._newest = 0

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, (StepDone, Stretch)):
            if seen.generation < self._newest:
                who = (
                    f"rank {seen.rank} commits step {seen.step}"
                    if isinstance(seen, StepDone)
                    else f"steps from {seen.first} on are committed"
                )
                yield f"{who} in generation {seen.generation}, after a step in {self._newest}"
            self._newest = max(self._newest, seen.generation)


class StateFitsStep(Checker):
    """All ranks join a generation at the same step, with the state of that step.

    When a step is committed, the state is that of this step.
    """

    of = (GroupJoined, StepDone, Stretch)

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, GroupJoined):
            if seen.content != seen.step:
                yield (
                    f"rank {seen.rank} joins generation {seen.generation} at step {seen.step} with"
                    f" the state of step {seen.content}"
                )
            first = self._steps.setdefault(seen.generation, seen.step)
            if first != seen.step:
                yield (
                    f"rank {seen.rank} joins generation {seen.generation} at step {seen.step},"
                    f" others at {first}"
                )
        if isinstance(seen, StepDone) and seen.content != seen.step:
            yield f"rank {seen.rank} commits step {seen.step} with the state of step {seen.content}"
        if isinstance(seen, StepDone) and seen.excess:
            times = f"{abs(seen.excess)} times {'too often' if seen.excess > 0 else 'too seldom'}"
            yield (
                f"rank {seen.rank} commits step {seen.step}, but on its state the script's code"
                f" after step {seen.step - 1} has run {times}"
            )
        if isinstance(seen, Stretch) and seen.torn:
            yield (
                f"ranks {list(seen.torn)} commit steps from {seen.first} on without the state of"
                " the step before"
            )


class SealedStateExists(Checker):
    """If a plan tells a rank to read state, this state exists."""

    of = (Restored,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Restored) and seen.step not in seen.found:
            yield (
                f"rank {seen.rank} has to read step {seen.step} from the {seen.source}, but found"
                f" {list(seen.found) or 'nothing'} there"
            )


class SealedStateUsed(Checker):
    """A rank reads the private state of the step that it goes on from, if it is sealed or saved.

    It does not begin with private state as the script makes it, if its slots or the checkpoint have
    the state of that step.
    """

    of = (StartedOver,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, StartedOver) and seen.step > 0 and seen.step in seen.sealed:
            yield (
                f"rank {seen.rank} goes on from step {seen.step} with private state as the script"
                " makes it, but its slots have a sealed image of that step"
            )
        elif isinstance(seen, StartedOver) and seen.step > 0 and seen.read:
            yield (
                f"rank {seen.rank} goes on from step {seen.step} with private state as the script"
                " makes it, but the checkpoint of that step was read"
            )


class NothingDurableLost(Checker):
    """A run goes back no further than to its newest good checkpoint.

    `NothingLost` is the rule while some rank holds the newest committed step.
    """

    of = (Planned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, Planned)
            and seen.steps
            and not seen.holders
            and min(seen.steps) < min(seen.durable, seen.committed)
        ):
            yield (
                f"generation {seen.generation} goes back to step {min(seen.steps)}, although there"
                f" is a good checkpoint of step {seen.durable}"
            )


class NothingLost(Checker):
    """A committed step stays committed as long as its state is available.

    It is available if some rank holds it, if some rank can still follow the last plan, or if it is
    in a transfer image.
    """

    of = (Planned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, Planned)
            and seen.steps
            and min(seen.steps) < seen.committed
            and (why := _why_not_lost(seen))
        ):
            yield (
                f"generation {seen.generation} goes back to step {min(seen.steps)}, although step"
                f" {seen.committed} is committed and {why}"
            )


class NothingCopiedLost(Checker):
    """A run goes back no further than to the newest step that survives the loss of any node.

    This holds while every rank's image of that step is available: its own, or a copy on another
    node.
    """

    of = (Planned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned) and seen.steps and min(seen.steps) < seen.copied:
            yield (
                f"generation {seen.generation} goes back to step {min(seen.steps)}, although there"
                f" are copies of step {seen.copied} on other nodes"
            )


class CopiedElsewhere(Checker):
    """Copies of a rank's images are on other nodes than the rank, each on a node of its own.

    If it is possible, they are also in other domains, and so is parity.
    """

    of = (Planned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned) and seen.own_node_copies:
            yield (
                f"in generation {seen.generation}, ranks {list(seen.own_node_copies)} send copies"
                " of their images to the node that they live on"
            )
        if isinstance(seen, Planned) and seen.few_copies:
            yield (
                f"in generation {seen.generation}, ranks {list(seen.few_copies)} send copies of"
                " their images to fewer nodes than could keep one"
            )
        if isinstance(seen, Planned) and seen.close_copies:
            yield (
                f"in generation {seen.generation}, all that is kept of the images of ranks"
                f" {list(seen.close_copies)} elsewhere is lost with their own domain"
            )


class HandedOverOnce(Checker):
    """A step is not handed over again if its transfer image already exists.

    A rank that waits for it could read that image.
    """

    of = (Planned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned) and seen.again:
            yield (
                f"generation {seen.generation} waits for an image of step {seen.image}, although"
                " there is one"
            )


class ReturningNodeAwaited(Checker):
    """Nothing is decided while a node is about to enrol again, with what its ranks had sealed."""

    of = (Planned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Planned) and seen.returning:
            yield (
                f"generation {seen.generation} is planned while nodes {', '.join(seen.returning)}"
                " are about to enrol again"
            )


class NewestStore(Checker):
    """Groups are built with the newest store, because not all nodes may reach an older one."""

    of = (OldStore,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, OldStore):
            yield (
                f"generation {seen.generation} has to be built with store {seen.number}, but store"
                f" {seen.newest} is up"
            )


def _why_not_lost(seen: Planned) -> str:
    """Return why the newest committed step is still available, or "" if it is not known to be."""
    if seen.holders:
        return f"ranks {list(seen.holders)} hold it"
    if seen.follow:
        return f"ranks {list(seen.follow)} can go forward to it, as the last plan says"
    return "it is in the transfer image" if seen.image == seen.committed else ""
