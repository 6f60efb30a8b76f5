"""The recoveries of a simulated run, and the choice of their rungs: see `decided_run.py`.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.engine.budget import default_budgets
from outlast.engine.recovery import RecoveryVerdict, Situation, decide_rung
from outlast.model.terms import Cause, Mechanism
from outlast.planner.deciding.decided import DecidedInterruption, Rules
from outlast.planner.deciding.membership import StruckRanks
from outlast.planner.deciding.restoring import RestorePoint
from outlast.planner.scenario import Extent

NONE = StruckRanks((), ())


@dataclass(frozen=True, slots=True)
class Hit:
    """The effects of one failure on the run.

    dead       the ranks whose processes end, and the seats whose nodes are lost
    raised     the ranks whose script raised an exception; their processes go on
    nodes      the nodes that a verdict would name
    mechanism  the mechanism of the failure, as in the ledger
    """

    dead: StruckRanks
    raised: frozenset[int]
    nodes: tuple[str, ...]
    mechanism: Mechanism


@dataclass(frozen=True, slots=True)
class Loss:
    """Everything that was lost since training stopped, by one failure or several.

    dead     the lost ranks that are not replaced yet, and the seats whose node is lost
    without  the ranks that hold no state, whether they are replaced or not
    raised   the ranks whose script raised an exception, and whose processes go on
    extent   the largest extent of these failures
    nodes    the number of lost nodes
    """

    dead: StruckRanks = NONE
    without: StruckRanks = NONE
    raised: frozenset[int] = frozenset()
    extent: Extent = Extent.PROCESS
    nodes: int = 0

    def and_also(self, hit: Hit, extent: Extent) -> Loss:
        """Return the loss with one more failure in it."""
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
    """A rank that hangs and has not been found yet.

    until_s   when the rank is found, if nothing else fails before
    leaves_s  if another failure comes before, the rank is found this many seconds after the
              detection of that failure
    alone     nothing else has failed, so the other ranks still wait in a collective
    """

    until_s: float
    leaves_s: float
    alone: bool = False


@dataclass(slots=True)
class RecoveryUnderway:
    """A recovery, from the failure to the moment at which training goes on.

    since_s     when the run stopped training
    phases      for each phase, the cause that its seconds are booked under, and its end
    decides_s   when the rung is chosen
    gives_up_s  when the run ends because no node comes, if that is earlier than `decides_s`
    loss        everything that was lost
    point       the step that all ranks go on from
    answers     the interruptions that led to this recovery; empty if the policy drains a node
    unseen      a rank that hangs and has not been found yet
    decided     whether the rung is chosen
    no_starts   no process had to be started, because survivors and parked spares took all ranks
    """

    since_s: float
    phases: tuple[tuple[Cause, float], ...]
    decides_s: float
    gives_up_s: float
    loss: Loss
    point: RestorePoint
    answers: tuple[DecidedInterruption, ...]
    unseen: Unseen | None = None
    decided: bool = False
    no_starts: bool = False

    @property
    def resumes_s(self) -> float:
        """Return when training goes on, if nothing else fails before."""
        return self.phases[-1][1]

    def spend(self, upto_s: float, seconds: dict[Cause, float]) -> None:
        """Add the seconds of each phase up to `upto_s` to `seconds`, by cause.

        The newest interruption's `spent_s` gets the same seconds.
        """
        since_s = self.since_s
        for cause, ends_s in self.phases:
            reached_s = max(since_s, min(ends_s, upto_s))
            for book in (seconds, *(answer.spent_s for answer in self.answers[-1:])):
                book[cause] = book.get(cause, 0.0) + reached_s - since_s
            since_s = reached_s


class Ladder:
    """Choose the rung of each recovery, and keep the facts that the choice depends on.

    These are the budgets of recovery, the newest committed step, and whether any was committed.
    """

    def __init__(self, rules: Rules, *, world_size: int) -> None:
        self._budgets = default_budgets(rules.max_restarts)
        self._world_size = world_size
        self._step, self._trained = 0, False
        self.reached = 0  # the step that training had reached when it was last interrupted

    def note_committed(self, step: int) -> None:
        """Note a step that all ranks have committed."""
        self._step, self._trained = max(self._step, step), self._trained or step > 0

    def rung(self, recovery: RecoveryUnderway, spares: list[int]) -> RecoveryVerdict:
        """Return the engine's choice for this recovery, and keep the budgets that it leaves.

        `spares`: worker numbers of the parked processes that take the lost ranks.
        """
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
            # All ranks start from a checkpoint, or from the beginning. Later steps are lost.
            self._step = point.step
        return verdict
