"""Convert lives of workers between messages, which agents send, and records of the ledger.

This module is pure.
"""

from __future__ import annotations

from outlast.model.messages import Lived
from outlast.model.records import Life
from outlast.model.terms import Cause, Tier


def message_of(life: Life) -> Lived:
    """Return the message about `life`."""
    spent = {Cause(cause).value: seconds for cause, seconds in life.seconds.items()}
    stalled = {Tier(tier).value: seconds for tier, seconds in life.stalls.items()}
    return Lived(
        life.worker,
        life.pid,
        life.node,
        life.rank,
        life.kind,
        life.assigned_s,
        life.opened_s,
        life.ended_s,
        tuple(spent),
        tuple(spent.values()),
        Cause(life.cause).value,
        life.end,
        tuple(stalled),
        tuple(stalled.values()),
    )


def life_of(message: Lived) -> Life:
    """Return the life that `message` is about. Unknown causes count as other.

    Stalls of an unknown tier are left out.
    """
    known = {cause.value: cause for cause in Cause}
    seconds: dict[Cause, float] = {}
    for name, spent_s in zip(message.causes, message.seconds, strict=False):
        cause = known.get(name, Cause.OTHER)
        seconds[cause] = seconds.get(cause, 0.0) + spent_s
    tiers = {tier.value: tier for tier in Tier}
    stalls = {
        tiers[name]: stalled_s
        for name, stalled_s in zip(message.tiers, message.stalls, strict=False)
        if name in tiers
    }
    return Life(
        message.worker,
        message.pid,
        message.node,
        message.rank,
        message.kind,
        message.assigned_s,
        message.opened_s,
        message.ended_s,
        seconds,
        known.get(message.cause, Cause.OTHER),
        message.end,
        stalls,
    )
