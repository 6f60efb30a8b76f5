"""Rules for the actions of a policy.

It drains only nodes that it may drain, keeps its budgets, and undoes no commit.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlast.sim.rules.checker import Checker
from outlast.sim.rules.final_observations import (
    ActionDecided,
    Diagnosed,
    DrainPlanned,
    EventWritten,
    RunEnded,
    StartedOnBarredNode,
)
from outlast.sim.rules.observations import Observation, Planned, StepDone, Stretch
from outlast.sim.rules.run_end import APART

SURE, TWICE = 0.8, 2
MOVE = ("drain", "shrink")
# if one of these strikes, a node may be unreachable, or needed
NODES = set(APART) - {"lose_coordinator"}
# A number of steps. An agent reports its step once a tick, and a coordinator that is away has to
# come back first. Under sharded state ranks are asked to seal after each step, and answer that.
LEAVES_WITHIN = 12


class DrainNeedsReason(Checker):
    """A node is drained only if its verdict is sure, or if it is its second outage."""

    of = (Diagnosed, ActionDecided)

    def __init__(self) -> None:
        self._outages: dict[str, set[int]] = {}
        self._newest: Diagnosed | None = None

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Diagnosed):
            self._newest = seen
            for node in seen.blamed:
                self._outages.setdefault(node, set()).add(seen.outage)
        elif (
            isinstance(seen, ActionDecided)
            and seen.action in ("drain", "shrink")
            and not seen.dry_run
        ):
            for node in seen.nodes:
                confidence = 0.0 if self._newest is None else self._newest.blamed.get(node, -1.0)
                if confidence < 0:
                    yield f"node {node} is drained, but the newest verdict does not blame it"
                elif confidence < SURE and len(self._outages.get(node, ())) < TWICE:
                    yield (
                        f"node {node} is drained with confidence {confidence:g} for its first"
                        " outage"
                    )


class WithinBudget(Checker):
    """A policy keeps its budgets in every window of time, even if coordinators change."""

    of = (ActionDecided,)

    def __init__(self) -> None:
        self._done: dict[str, list[float]] = {}

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, ActionDecided) or seen.dry_run or seen.budget is None:
            return
        times, within_s = seen.budget
        done = self._done.setdefault(seen.action, [])
        done += [seen.at_s] * (len(seen.nodes) or 1)
        if (count := sum(seen.at_s - at_s < within_s for at_s in done)) > times:
            yield f"{seen.action} {count} times within {within_s:g} s, but {times} are allowed"


class DrainUndoesNoStep(Checker):
    """A drain takes no rank back to a step before one that is committed."""

    of = (DrainPlanned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if (
            isinstance(seen, DrainPlanned)
            and seen.undisturbed
            and seen.steps
            and min(seen.steps) < seen.committed
        ):
            yield (
                f"a node is drained, but generation {seen.generation} goes back from step"
                f" {seen.committed} to {min(seen.steps)}"
            )


class DrainEmptiesNode(Checker):
    """A drain that nothing disturbs leaves no rank on the node."""

    of = (DrainPlanned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, DrainPlanned) and seen.undisturbed and seen.left:
            yield (
                f"a node is drained, but in generation {seen.generation} ranks {list(seen.left)}"
                " live there"
            )


class DrainFinishesStep(Checker):
    """A drain that nothing disturbs lets each rank commit the step that the others commit.

    Otherwise a rank would leave out the work of `step.on_commit`.
    """

    of = (DrainPlanned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, DrainPlanned) and seen.undisturbed and seen.cut_short:
            yield (
                f"a node is drained, but generation {seen.generation} goes on from step"
                f" {min(seen.steps)}, which ranks {list(seen.cut_short)} never committed"
            )


class NoWorkOnBarredNode(Checker):
    """Nothing is started on a node that was barred."""

    of = (StartedOnBarredNode,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, StartedOnBarredNode):
            yield f"a start of worker {seen.worker} is ordered on node {seen.node}, which is barred"


class NoActionOnOwnInterruption(Checker):
    """The policy does not act on an interruption that it caused, even after a takeover."""

    of = (ActionDecided,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, ActionDecided) and seen.own:
            yield f"{seen.action} is decided for an interruption that the policy caused"


class DrainsSoon(Checker):
    """A node that has to be drained is drained within some committed steps.

    This holds as long as nothing strikes any node. No node is drained before all ranks have
    reported that they have joined, so no rank may be mute.
    """

    of = (ActionDecided, EventWritten, Planned, StepDone, Stretch, RunEnded)

    def __init__(self) -> None:
        self._moved: set[str] = set()  # nodes that have to be drained
        self._due: set[str] = set()  # those of them that are barred
        # the newest step when that was decided, or when a plan was made after it
        self._since: int | None = None
        self._newest = 0

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, (StepDone, Stretch)):
            self._newest = seen.step
            self._since = seen.step if self._since is None else self._since
        elif isinstance(seen, Planned):
            self._since = None
        elif (
            isinstance(seen, ActionDecided)
            and seen.action in MOVE
            and seen.moves
            and not seen.dry_run
        ):
            self._moved.update(seen.nodes)
        elif isinstance(seen, EventWritten):
            node = str(seen.data.get("node", ""))
            if seen.kind == "node_barred" and node in self._moved:
                self._due.add(node)
                self._since = None
            elif seen.kind in ("node_draining", "node_departed"):
                self._due.discard(node)
        elif (
            isinstance(seen, RunEnded)
            and self._since is not None
            and not (seen.stop_asked or NODES & set(seen.kinds) or "mute" in seen.kinds)
        ):
            steps = self._newest - self._since
            if self._due and steps > LEAVES_WITHIN:
                yield (
                    f"nodes {', '.join(sorted(self._due))} had to be drained, but were not within"
                    f" {steps} steps"
                )


POLICY_LIMITS: tuple[type[Checker], ...] = (
    DrainNeedsReason,
    WithinBudget,
    DrainUndoesNoStep,
    DrainEmptiesNode,
    DrainFinishesStep,
    NoWorkOnBarredNode,
    NoActionOnOwnInterruption,
    DrainsSoon,
)
