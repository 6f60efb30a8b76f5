"""Rules for what a policy does: it drains only whom it may, within its budgets, and what it does undoes no commit."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.sim.checker import Checker
from outlast.sim.observations import Acted, Diagnosed, DrainPlanned, Observation, StartedThere

SURE, TWICE = 0.8, 2


class SureDrains(Checker):
    """A node is drained for a verdict that is sure, or for the second outage that it is blamed for."""

    of = (Diagnosed, Acted)

    def __init__(self) -> None:
        self._outages: dict[str, set[int]] = {}
        self._newest: Diagnosed | None = None

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, Diagnosed):
            self._newest = seen
            for node in seen.blamed:
                self._outages.setdefault(node, set()).add(seen.outage)
        elif isinstance(seen, Acted) and seen.action in ("drain", "shrink") and not seen.dry_run:
            for node in seen.nodes:
                confidence = 0.0 if self._newest is None else self._newest.blamed.get(node, -1.0)
                if confidence < 0:
                    yield f"node {node} is drained, and the newest verdict does not blame it"
                elif confidence < SURE and len(self._outages.get(node, ())) < TWICE:
                    yield f"node {node} is drained with confidence {confidence:g} for its first outage"


class WithinBudget(Checker):
    """In no window of time a policy does more of anything than it allows itself, whoever has coordinated meanwhile."""

    of = (Acted,)

    def __init__(self) -> None:
        self._done: dict[str, list[float]] = {}

    def see(self, seen: Observation) -> Iterator[str]:
        if not isinstance(seen, Acted) or seen.dry_run or seen.budget is None:
            return
        times, within_s = seen.budget
        done = self._done.setdefault(seen.action, [])
        done += [seen.at_s] * (len(seen.nodes) or 1)
        if (count := sum(seen.at_s - at_s < within_s for at_s in done)) > times:
            yield f"{count} times {seen.action} within {within_s:g} s, and {times} are allowed"


class UndoesNothing(Checker):
    """A drain takes nobody back behind what was committed."""

    of = (DrainPlanned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, DrainPlanned) and seen.undisturbed and seen.steps and min(seen.steps) < seen.committed:
            yield f"a node is drained, and generation {seen.generation} goes back from step {seen.committed} to {min(seen.steps)}"


class Empties(Checker):
    """A drain that nothing disturbs leaves nobody there."""

    of = (DrainPlanned,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, DrainPlanned) and seen.undisturbed and seen.left:
            yield f"a node is drained, and in generation {seen.generation} ranks {list(seen.left)} live there"


class NoWorkThere(Checker):
    """Nothing is started on a node that was barred."""

    of = (StartedThere,)

    def see(self, seen: Observation) -> Iterator[str]:
        if isinstance(seen, StartedThere):
            yield f"worker {seen.worker} is to be started on node {seen.node}, which is barred"


POLICING: tuple[type[Checker], ...] = (SureDrains, WithinBudget, UndoesNothing, Empties, NoWorkThere)
