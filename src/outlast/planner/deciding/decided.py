"""The options and the results of decision mode: see `decisions.py`.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from outlast.model import limits
from outlast.model.terms import Cause, FailureClass, Mechanism, Rung
from outlast.planner.deciding.acting import Diagnosis
from outlast.planner.scenario import Extent


class Beside(str, Enum):
    """The decisions and events of the engine that a scenario does not know.

    With one of ENDS the run is over.
    """

    # The run ended: too many interruptions came without a new step.
    CRASH_LOOP = "crash loop"
    # The run ended: replacements or restarts were spent, and too few steps were done since.
    BUDGET = "budget"
    # The run ended: no node came within Rules.node_wait_s.
    NO_NODE = "no node"
    # The run ended: the policy said so.
    POLICY_STOP = "policy stop"
    # The scenario goes on with fewer nodes, and the engine does not: it waited.
    WAITS = "waits"
    # Several tiers held the step, and the engine did not take the one that restores fastest.
    ANOTHER_TIER = "another tier"
    # A tier was said to survive, and no rank was left that held it.
    NOBODY_LEFT = "nobody left"
    # Memory held what had been restored to it, where the scenario lets it be empty until the next
    # save.
    SEALED_AT_ONCE = "sealed at once"
    # What hung was found by the product's deadlines, whatever the scenario says.
    DEADLINE = "deadline"
    # The policy interrupted the run to leave a node.
    DRAIN = "drain"
    # A node was repaired, and given no work, because the policy had barred it.
    NOT_BACK = "not back"
    # The scenario lost a node where all were lost already.
    NO_NODE_TO_LOSE = "no node to lose"
    # A save began while the one before it, to the same tier, was being written. The product waits
    # for that.
    OVERLAP = "overlap"


ENDS = (Beside.CRASH_LOOP, Beside.BUDGET, Beside.NO_NODE, Beside.POLICY_STOP)


@dataclass(frozen=True, slots=True)
class Rules:
    """The options with which outlast is run.

    recovery_mode  how survivors go on where state is replicated: one of RECOVERY_MODES of
                   engine/recovery.py, but not "plain"
    node_wait_s    the run ends if a lost rank finds no place for so long; math.inf: it waits, as
                   the scenario does
    max_restarts   whole restarts without progress; None: limits.RESTARTS_COUNT
    hangs          classes of failure that show themselves as a process that stands still, where
                   they strike a process or a node
    diagnosis      None: there are no verdicts, and no policy is asked
    parked         on each spare node a process stands ready for every rank that it may take; else
                   they are started when they are needed
    """

    recovery_mode: str = "in_place"
    node_wait_s: float = limits.NODE_WAIT_S
    max_restarts: int | None = None
    hangs: frozenset[FailureClass] = frozenset()
    diagnosis: Diagnosis | None = None
    parked: bool = True


@dataclass(frozen=True, slots=True)
class Fallback:
    """The step that a run goes back to after an interruption, and its source.

    step    that all go on from
    tier    name of the tier that holds it; None where the run starts over
    lost_s  productive seconds that are repeated
    why     the engine's reason
    """

    step: int
    tier: str | None
    lost_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """The rung for all that had failed by `decided_s`, and the engine's reason."""

    rung: Rung
    why: str
    decided_s: float


@dataclass(slots=True)
class Answer:
    """One interruption, and what the engine decided about it.

    at_s       wall-clock time of the failure
    extent     the larger one, where it struck during a recovery
    chosen     None where the run was over before a rung was due
    beside     what the scenario does not know of it: see Beside
    spent_s    seconds by cause until training went on, the next failure, or the end
    resumed_s  None where training did not go on before the next failure or the end
    """

    at_s: float
    failure_class: FailureClass
    mechanism: Mechanism
    extent: Extent
    fallback: Fallback
    beside: list[Beside] = field(default_factory=list)
    chosen: Chosen | None = None
    spent_s: dict[Cause, float] = field(default_factory=dict)
    resumed_s: float | None = None

    @property
    def rung(self) -> Rung | None:
        """Return the rung that was chosen, if any."""
        return None if self.chosen is None else self.chosen.rung


@dataclass(slots=True)
class Decided:
    """One run, as the engine's decisions made it.

    position_s  productive seconds kept
    seconds     by cause; their sum is the duration
    asked       how often which function of the engine was asked
    beside      how often it decided, or met, what a scenario does not know: see Beside
    ended_s     when the engine ended the run, and why_ended; None: it did not
    """

    position_s: float = 0.0
    seconds: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(Cause, 0.0))
    answers: list[Answer] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    beside: Counter[Beside] = field(default_factory=Counter)
    ended_s: float | None = None
    why_ended: str = ""

    @property
    def decisions(self) -> int:
        """Return how often the engine was asked."""
        return sum(self.asked.values())

    @property
    def per_interruption(self) -> float:
        """Return decisions for each interruption, at least 1; NaN where there was none."""
        return self.decisions / len(self.answers) if self.answers else math.nan
