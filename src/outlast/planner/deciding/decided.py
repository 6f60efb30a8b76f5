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
from outlast.planner.deciding.acting import PerfectDiagnosis
from outlast.planner.scenario import Extent


class Unmodelled(str, Enum):
    """The decisions and events of the engine that a scenario cannot express.

    Where one of these occurs, decision mode and Monte Carlo (`runs.py`) may differ. The kinds in
    ENDS end the run. docs/explanation/depths.md explains each kind.
    """

    # The run ended: too many interruptions came without a new step.
    CRASH_LOOP = "crash loop"
    # The run ended: its budget of replacements or restarts was spent, with too few new steps since.
    BUDGET = "budget"
    # The run ended: no node came within Rules.node_wait_s.
    NO_NODE = "no node"
    # The run ended: the policy said so.
    POLICY_STOP = "policy stop"
    # The scenario would go on with fewer nodes. The engine cannot, and waited for a node.
    WAITS = "waits"
    # Several tiers held the step, and the engine did not take the one that restores fastest.
    ANOTHER_TIER = "another tier"
    # The scenario says that a tier survived, but every rank that held its state was lost.
    NOBODY_LEFT = "nobody left"
    # Memory held the state that had been restored to it. In the scenario, memory is empty until the
    # next save.
    SEALED_AT_ONCE = "sealed at once"
    # A hung rank was found by the deadlines of outlast, and not when the scenario says.
    DEADLINE = "deadline"
    # The policy interrupted the run to leave a node.
    DRAIN = "drain"
    # A repaired node was given no work, because the policy had barred it.
    NOT_BACK = "not back"
    # The scenario takes a node away, but all nodes are lost already.
    NO_NODE_TO_LOSE = "no node to lose"
    # A save began while the save before it, to the same tier, was still being written. outlast
    # would wait for the first one to end.
    OVERLAP = "overlap"


ENDS = (Unmodelled.CRASH_LOOP, Unmodelled.BUDGET, Unmodelled.NO_NODE, Unmodelled.POLICY_STOP)


@dataclass(frozen=True, slots=True)
class Rules:
    """The options with which outlast is run.

    recovery_mode  how survivors go on if state is replicated: one of RECOVERY_MODES of
                   engine/recovery.py, but not "plain"
    node_wait_s    the run ends if a lost rank finds no place for this many seconds. With math.inf
                   the run waits as long as it takes, as in a scenario
    max_restarts   the run ends after this many whole restarts without progress. None stands for
                   limits.RESTARTS_COUNT
    hangs          classes of failure in which a process hangs instead of ending, if they strike a
                   process or a node
    diagnosis      how interruptions are diagnosed. None: there are no verdicts, and no policy is
                   asked
    parked         True: each spare node has a started process for every rank that it may take.
                   False: processes are started when they are needed
    """

    recovery_mode: str = "in_place"
    node_wait_s: float = limits.NODE_WAIT_S
    max_restarts: int | None = None
    hangs: frozenset[FailureClass] = frozenset()
    diagnosis: PerfectDiagnosis | None = None
    parked: bool = True


@dataclass(frozen=True, slots=True)
class Fallback:
    """The step that a run goes back to after an interruption, and its source.

    step    the step that all ranks go on from
    tier    name of the tier that holds this step; None if the run starts over
    lost_s  productive seconds since this step, which have to be repeated
    why     the engine's reason
    """

    step: int
    tier: str | None
    lost_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """The rung that the engine chose for all that had failed by `decided_s`, and its reason."""

    rung: Rung
    why: str
    decided_s: float


@dataclass(slots=True)
class DecidedInterruption:
    """One interruption, and what the engine decided about it.

    at_s        wall-clock time of the failure
    extent      what was lost; if the failure struck during a recovery, the larger of both extents
    fallback    the step to go back to
    unmodelled  what the engine decided or met here that a scenario cannot express
    chosen      the rung and its reason; None if the run was over before a rung was due
    spent_s     seconds by cause until training went on, the next failure, or the end
    resumed_s   wall-clock time at which training went on; None if the next failure, or the end of
                the run, came first
    """

    at_s: float
    failure_class: FailureClass
    mechanism: Mechanism
    extent: Extent
    fallback: Fallback
    unmodelled: list[Unmodelled] = field(default_factory=list)
    chosen: Chosen | None = None
    spent_s: dict[Cause, float] = field(default_factory=dict)
    resumed_s: float | None = None

    @property
    def rung(self) -> Rung | None:
        """Return the rung that was chosen, if any."""
        return None if self.chosen is None else self.chosen.rung


@dataclass(slots=True)
class Decided:
    """The course of one run under the engine's decisions.

    position_s  productive seconds that were kept
    seconds     seconds by cause; their sum is the run's duration
    answers     the interruptions, in order of time
    asked       number of calls of each function of the engine, by its name
    unmodelled  number of cases of each kind that a scenario cannot express
    ended_s     wall-clock time at which the engine ended the run, for the reason `why_ended`; None
                if the engine did not end it
    """

    position_s: float = 0.0
    seconds: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(Cause, 0.0))
    answers: list[DecidedInterruption] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    unmodelled: Counter[Unmodelled] = field(default_factory=Counter)
    ended_s: float | None = None
    why_ended: str = ""

    @property
    def decisions(self) -> int:
        """Return how often the engine was asked."""
        return sum(self.asked.values())

    @property
    def per_interruption(self) -> float:
        """Return decisions for each interruption, at least 1; NaN if there was none."""
        return self.decisions / len(self.answers) if self.answers else math.nan
