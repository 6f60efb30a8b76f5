"""Lateness: events that seem late only because the observing process was late itself.

A process that checks others at regular times may be stopped, or get no processor. `late_by_s`
returns by how much a check is late. The process moves its deadlines by that, so that it does not
take its own absence for a hang.

The kernel reports that a process has ended, but not when. Usually the launcher sees the death at
once. A launcher that was stopped, or had no processor, sees it when it goes on, which is later than
the fault. The rank's own beacon shows when the rank moved last, and a rank in training moves many
times a step.

This module is pure: times are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model import limits


@dataclass(frozen=True, slots=True)
class HeldUp:
    """The newest stretch of time in which the launcher did not run.

    It looked at its processes at `since_s`, and then not before `until_s`.
    """

    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class FaultTime:
    """The estimated time of a fault, and the reason for that estimate."""

    fault_s: float
    reason: str


def late_by_s(*, looked_s: float, now_s: float, period_s: float) -> float:
    """Return by how much a look at `now_s` is late; 0 if that is within what is usual.

    period_s   the time between two looks
    """
    late_s = now_s - looked_s - period_s
    return late_s if late_s > limits.LATE_TICK_S - limits.TICK_S else 0.0


def held_up_by(*, looked_s: float, now_s: float) -> HeldUp | None:
    """Return the stretch between two looks if the later one is late; None if it is in time."""
    late = late_by_s(looked_s=looked_s, now_s=now_s, period_s=limits.TICK_S)
    return HeldUp(looked_s, now_s) if late else None


def estimate_fault(
    *, seen_s: float, moved_s: float | None, looked_s: float, held_up: HeldUp | None
) -> FaultTime:
    """Estimate when a process died whose death was seen at `seen_s`.

    moved_s    when its beacon moved last; None: it has none
    looked_s   when the launcher looked last. A launcher that goes on may see the death before it
               looks, and then this tells that it was held up
    """
    held_up = held_up_by(looked_s=looked_s, now_s=seen_s) or held_up
    if held_up is None or seen_s - held_up.until_s > limits.TICK_S:
        return FaultTime(seen_s, "the kernel told of the death at once")
    if moved_s is None:
        why = "the launcher was held up, and the process has no beacon"
        return FaultTime(held_up.since_s, why)
    fault_s = min(max(moved_s, held_up.since_s), seen_s)
    return FaultTime(fault_s, "the launcher was held up, and the rank's beacon moved until then")
