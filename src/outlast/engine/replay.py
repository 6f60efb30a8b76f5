"""Work out what a policy would have done in recorded incidents, in order. This module is pure."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.engine.policy import ActionVerdict, Past, blame, decide_action, past_of
from outlast.model.policy import Policy
from outlast.model.recorded import Recorded
from outlast.model.verdict import Verdict


def replay(
    incidents: Sequence[Recorded], *, policy: Policy, apart_s: float
) -> list[tuple[Recorded, float, ActionVerdict]]:
    """Decide each incident, and return the decisions, each with the second of its decision.

    An incident without a time comes `apart_s` after the one before. One without an outage stands
    alone.
    """
    out: list[tuple[Recorded, float, ActionVerdict]] = []
    history: list[Past] = []
    now_s = -apart_s
    for number, incident in enumerate(incidents, 1):
        now_s = (
            now_s + apart_s
            if incident.at_s is None
            else max(now_s, incident.at_s)
            if out
            else incident.at_s
        )
        outage = -number if incident.outage is None else incident.outage
        decided = decide_action(
            now_s=now_s,
            verdict=incident.verdict,
            history=history,
            policy=policy,
            outage=outage,
            blamed=blamed_by(incident.verdict),
        )
        history.append(past_of(decided, at_s=now_s, outage=outage))
        out.append((incident, now_s, decided))
    return out


def blamed_by(verdict: Verdict) -> dict[str, float]:
    """Return the blamed nodes if it is not known any more where the ranks lived.

    These are the nodes that the verdict names; otherwise each rank counts as a node of its own.
    """
    sure = min((one.confidence for one in verdict.ranks), default=1.0)
    if verdict.nodes:
        return {
            node: min(sure, confidence)
            for node, confidence in blame(
                verdict, home_of=lambda _: "", node_of=lambda name: name
            ).items()
        }
    return blame(
        verdict, home_of=lambda rank: f"the node of rank {rank}", node_of=lambda name: name
    )
