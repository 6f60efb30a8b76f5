"""Words for what failed, and for how the run came back, on the page of a run.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from outlast.app import words
from outlast.app.words import Facts
from outlast.diagnose.interrupted import RECOVERED
from outlast.model.terms import Mechanism, Rung

FAILED: Mapping[Mechanism, str] = {
    Mechanism.EXIT: "exited",
    Mechanism.SIGNAL: "ended by a signal",
    Mechanism.EXCEPTION: "raised an exception",
    Mechanism.HANG: "hung",
    Mechanism.SLOW: "slower than its peers",
    Mechanism.CORRUPT: "corrupt data",
    Mechanism.LOST_CONTACT: "lost contact",
    Mechanism.LOST_NODE: "lost with its node",
}


def how(one: Facts) -> str:
    """Return how an interruption showed itself: `ended by a signal`."""
    if drain := words.drain(one):
        return f"moved off {drain.node}, which was drained"
    return FAILED[Mechanism(one["mechanism"])]


def failed(one: Facts) -> str:
    """Return which ranks failed, and how: `rank 2: ended by a signal`."""
    return f"{words.ranks(one)}: {how(one)}"


def back_words(one: Facts) -> str:
    """Return `back after 92 ms with a spare`: how an interruption that is over ended."""
    done = f"back after {words.recovery_words(one)}" if one["steps_seen"] else "all run again"
    how = RECOVERED[Rung(one["rung"])] if one["rung"] else ""
    return f"{done} {how}".rstrip()
