"""How long things take in the simulated world, in seconds: the least and the most.

In a stretch, everything takes the least.
"""

from __future__ import annotations

from outlast.model import limits
from outlast.sim.options import Options

LEAST_S = 0.0001  # a message
BODY_SPREAD_S = 0.02  # the body of a step takes options.step_s, and up to so much longer
# from the last to enter a collective to its end, on each rank
SETTLE_S, SETTLE_MOST_S = 0.0005, 0.006
SEAL_S, SEAL_MOST_S = 0.0005, 0.005
APPLY_S, APPLY_MOST_S = 0.001, 0.005


def steady_step_s(options: Options) -> float:
    """Return how long a step of a stretch takes: its body, two collectives, a sealed image, and the
    update.
    """
    return options.step_s + 2 * SETTLE_S + SEAL_S + APPLY_S


def pause_s(options: Options) -> float:
    """Return how long a pause is.

    By then each agent has looked at its ranks, and their messages have arrived.
    """
    return 2 * limits.TICK_S + 4 * options.latency_s
