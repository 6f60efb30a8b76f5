"""A recovery of a simulated run, and the rung that it takes: see `replica.py`.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.engine.budget import default_budgets
from outlast.engine.recovery import RecoveryVerdict, Situation, decide_rung
from outlast.model.terms import Cause, Mechanism
from outlast.planner.deciding.decided import Answer, Rules
from outlast.planner.deciding.membership import Strike
from outlast.planner.deciding.restoring import Point
from outlast.planner.scenario import Extent

NONE = Strike((), ())


@dataclass(frozen=True, slots=True)
class Hit:
    """The processes that a failure takes, and how it shows.

    It takes processes, some with their nodes. Ranks whose script raised live on.
    """

    dead: Strike
    raised: frozenset[int]
    nodes: tuple[str, ...]
    mechanism: Mechanism


@dataclass(frozen=True, slots=True)
class Loss:
    """The losses since training stopped.

    dead     ranks, and seats whose node is lost, that nobody has replaced
    without  ranks that hold nothing, replaced or not
    raised   ranks whose script raised
    extent   the largest of all failures
    nodes    how many were lost
    """

    dead: Strike = NONE
    without: Strike = NONE
    raised: frozenset[int] = frozenset()
    extent: Extent = Extent.PROCESS
    nodes: int = 0

    def and_also(self, hit: Hit, extent: Extent) -> Loss:
        dead = hit.dead.and_also(self.dead)
        raised = (hit.raised | self.raised).difference(dead.ranks)
        return Loss(
            dead,
            hit.dead.and_also(self.without),
            raised,
            max(extent, self.extent),
            self.nodes + len(hit.dead.seats),
        )


@dataclass(frozen=True, slots=True)
class Unseen:
    """A rank that hangs and is not found yet.

    It is found at `until_s`. If something else fails meanwhile, it is found `leaves_s` after that
    was seen.

    alone   nothing else has failed: all stand in a collective, and nobody was told to leave it
    """

    until_s: float
    leaves_s: float
    alone: bool = False


@dataclass(slots=True)
class Recovery:
    """A recovery. The run has stood still for it since `since_s`.

    `phases`: causes and their ends. The rung is due at `decides_s`, or the run ends at
    `gives_up_s`.

    answers  interruptions that it is about; none: the policy moves a node's ranks away
    unseen   a rank that hangs
    decided  the rung is chosen and followed
    alike    no process had to be started for it
    """

    since_s: float
    phases: tuple[tuple[Cause, float], ...]
    decides_s: float
    gives_up_s: float
    loss: Loss
    point: Point
    answers: tuple[Answer, ...]
    unseen: Unseen | None = None
    decided: bool = False
    alike: bool = False

    @property
    def resumes_s(self) -> float:
        return self.phases[-1][1]

    def spend(self, upto_s: float, seconds: dict[Cause, float]) -> None:
        """Book the time that the run stood still up to then. The recovery is over then."""
        since_s = self.since_s
        for cause, ends_s in self.phases:
            reached_s = max(since_s, min(ends_s, upto_s))
            for book in (seconds, *(answer.spent_s for answer in self.answers[-1:])):
                book[cause] = book.get(cause, 0.0) + reached_s - since_s
            since_s = reached_s


class Ladder:
    """The budgets of recovery, and what the coordinator knows of progress.

    It knows the newest committed step, and whether there ever was one.
    """

    def __init__(self, rules: Rules, *, world_size: int) -> None:
        self._budgets = default_budgets(rules.max_restarts)
        self._world_size = world_size
        self._step, self._trained = 0, False
        self.reached = 0  # in steps: how far training had come when it was interrupted last

    def has_committed(self, step: int) -> None:
        self._step, self._trained = max(self._step, step), self._trained or step > 0

    def rung(self, recovery: Recovery, spares: list[int]) -> RecoveryVerdict:
        point = recovery.point
        situation = Situation(
            lost=recovery.loss.dead.ranks,
            raised=tuple(sorted(recovery.loss.raised)),
            recovery_mode=point.recovery_mode,
            state=point.state,
            committed=self._step,
            reached=self.reached,
            error="",
            trained=self._trained,
            free=not recovery.answers,
        )
        verdict = decide_rung(
            situation=situation, spares=spares, budgets=self._budgets, world_size=self._world_size
        )
        assert verdict.budgets is not None, "the ladder says what it leaves of the budgets"
        self._budgets = verdict.budgets
        if verdict.survivors == "exit" and not point.state:
            # all start from a checkpoint, or from the beginning: later steps do not count any more
            self._step = point.step
        return verdict
