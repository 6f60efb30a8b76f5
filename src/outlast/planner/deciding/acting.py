"""Let a policy act on the verdicts of a simulated run.

Some time after each interruption, a verdict names its class and its nodes. `engine.policy` decides
what to do. The decision is carried out as in `engine/coordinator/policy_actions.py`:

- A node is barred only if the other nodes have room for all ranks.
- Ranks leave a drained node after the next committed step. The regroup for this costs no budget and
  loses no work.
- Sharded state is not moved.
- A barred node is never given work again. So it does not come back as a spare when it is repaired.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

from outlast.engine.default_policy import default_policy
from outlast.engine.policy import ActionVerdict, Past, decide_action, past_of
from outlast.model.policy import DISRUPTIVE, MOVING, OF_NODES, Action, Policy
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Verdict
from outlast.planner.deciding.membership import SimulatedMembership

UNKNOWN_MOST = 0.5  # the highest confidence of a verdict with the class "unknown"


@dataclass(frozen=True, slots=True)
class PerfectDiagnosis:
    """A diagnosis that is always right.

    delay_s     seconds from detection to the verdict
    confidence  confidence of each verdict
    policy      the policy that acts on the verdicts
    """

    delay_s: float = 60.0
    confidence: float = 0.9
    policy: Policy = field(default_factory=default_policy)


@dataclass(frozen=True, slots=True, order=True)
class Incident:
    """An interruption whose verdict comes at `due_s`.

    `outage` is the number of the outage that it belongs to. Interruptions share one number until
    training goes on.
    """

    due_s: float
    outage: int
    failure_class: FailureClass = field(compare=False)
    mechanism: Mechanism = field(compare=False)
    nodes: tuple[str, ...] = field(compare=False)


@dataclass(slots=True)
class Acting:
    """Ask the policy about each verdict when it is due, and carry out its decisions on nodes.

    incidents  the interruptions whose verdicts are still to come, the next one first
    past       the decisions so far, for the policy's limits
    leaving    the nodes to bar as soon as the others have room for all ranks, each with the action
               that was decided for it
    """

    diagnosis: PerfectDiagnosis
    members: SimulatedMembership
    incidents: list[Incident] = field(default_factory=list)
    past: list[Past] = field(default_factory=list)
    leaving: dict[str, Action] = field(default_factory=dict)

    @property
    def next_s(self) -> float:
        """Return the time of the next verdict; infinity if none is to come."""
        return self.incidents[0].due_s if self.incidents else math.inf

    def add(self, incident: Incident) -> None:
        """Add an interruption whose verdict is due later."""
        heapq.heappush(self.incidents, incident)

    def decide(self, now_s: float) -> ActionVerdict:
        """Return what the policy decides about the verdict that is due."""
        one = heapq.heappop(self.incidents)
        sure = (
            min(self.diagnosis.confidence, UNKNOWN_MOST)
            if one.failure_class is FailureClass.UNKNOWN
            else self.diagnosis.confidence
        )
        verdict = Verdict(
            one.failure_class, one.mechanism, sure, "as the scenario says", "", nodes=one.nodes
        )
        policy = self.diagnosis.policy
        self.past = [
            past
            for past in self.past
            if past.at_s > now_s - policy.memory_s
            or (past.action in DISRUPTIVE and not past.dry_run)
        ]
        decided = decide_action(
            now_s=now_s,
            verdict=verdict,
            history=self.past,
            policy=policy,
            outage=one.outage,
            blamed=dict.fromkeys(one.nodes, sure),
        )
        self.past.append(past_of(decided, at_s=now_s, outage=one.outage))
        if decided.acts and decided.action in OF_NODES:
            self.leaving |= dict.fromkeys(decided.nodes, decided.action)
        return decided

    def bar_nodes(self, *, moves: bool) -> str:
        """Bar the nodes in `leaving` that the others have room for.

        Return the node to drain now, or "". Without `moves` no state can be moved off a node, so
        none is drained.
        """
        members = self.members
        for node, action in list(self.leaving.items()):
            if node not in members.barred:
                if node in members.nodes and not members.ready:
                    continue
                members.bar(node)
            if moves and action in MOVING and node in members.nodes:
                if members.ready:
                    return node
                continue
            del self.leaving[node]
        return ""
