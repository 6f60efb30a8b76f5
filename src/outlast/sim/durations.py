"""The shortest and longest durations in the simulated world, in seconds.

In a stretch, everything takes its shortest duration.
"""

from __future__ import annotations

from outlast.model import limits
from outlast.sim.options import Options

LEAST_S = 0.0001  # of a message
BODY_SPREAD_S = 0.02  # the body of a step takes options.step_s, and up to this much longer
# from the time at which the last rank enters a collective to its end on each rank
SETTLE_S, SETTLE_MOST_S = 0.0005, 0.006
SEAL_S, SEAL_MOST_S = 0.0005, 0.005
APPLY_S, APPLY_MOST_S = 0.001, 0.005


def steady_step_s(options: Options) -> float:
    """Return the length of a step in a stretch.

    It consists of its body, two collectives, the sealing of an image, and the update.
    """
    return options.step_s + 2 * SETTLE_S + SEAL_S + APPLY_S


def pause_s(options: Options) -> float:
    """Return the length of the pause before or after a stretch.

    In this time each agent has looked at its ranks, and all messages have arrived.
    """
    return 2 * limits.TICK_S + 4 * options.latency_s
