"""The reason of an interruption in which ranks are moved off a node on purpose.

The coordinator writes it, and reports read it: such an interruption is not a failure, and its
reason says who wanted it and why.

This module is pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from outlast.model.terms import Mechanism

_DRAINED = re.compile(r"node (\S+) is drained: ([^;]+)")


class Drain(NamedTuple):
    """A drain, as it is read from the reason of an interruption.

    why   who asked for it and why, or the rule by which the policy decided it
    """

    node: str
    why: str


def drain_reason(node: str, why: str) -> str:
    """Return the reason of the interruption in which the ranks of `node` move away.

    Reasons are joined by semicolons, so `why` has none.
    """
    return f"node {node} is drained: {why.replace(';', ',')}"


def drain_of(mechanism: str, reason: str) -> Drain | None:
    """Return the drain that was booked as this interruption, or None if it was not a drain."""
    found = _DRAINED.match(reason)
    if found is None or mechanism != Mechanism.LOST_NODE.value:
        return None
    return Drain(found[1], found[2].strip())
