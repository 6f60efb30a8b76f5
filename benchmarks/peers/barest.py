"""The barest model of a run, as one would write it with NumPy, numba and SimPy: for
`planner_speed.py`, which has outlast do the same.

The model    One class of failures, exponential. Training saves each `interval_s`, which stalls it
             for `stall_s`. A failure costs what was trained since the last save, and `restart_s`;
             one that strikes during a restart begins it again. What was trained at the very end
             counts.
All return   productive seconds of each replica, over the duration: (replicas,).
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Barest(NamedTuple):
    """A tuple, so that numba takes it as it is."""

    gpus: int
    gpu_mttf_s: float
    duration_s: float
    interval_s: float
    stall_s: float
    restart_s: float


def by_numpy(model: Barest, replicas: int, seed: int) -> Floats:
    """Simulate all failures of all replicas at once."""
    mttf_s = model.gpu_mttf_s / model.gpus
    most = model.duration_s / mttf_s
    gaps_s = np.random.default_rng(seed).exponential(
        mttf_s, (replicas, int(most + 8 * math.sqrt(most) + 8))
    )
    at_s = np.minimum(np.cumsum(gaps_s, axis=1), model.duration_s)
    assert bool((at_s[:, -1] == model.duration_s).all()), "too few failures were drawn"
    spans_s = np.diff(at_s, axis=1, prepend=0.0)
    trained_s = np.maximum(spans_s - model.restart_s, 0.0)
    trained_s[:, 0] = spans_s[:, 0]
    round_s = model.interval_s + model.stall_s
    saves = np.floor(trained_s / round_s)
    last = np.argmax(at_s == model.duration_s, axis=1)[:, None]  # spans after it are empty
    since_s = np.take_along_axis(
        np.minimum(trained_s - saves * round_s, model.interval_s), last, axis=1
    )[:, 0]
    productive: Floats = (saves.sum(axis=1) * model.interval_s + since_s) / model.duration_s
    return productive


def in_a_loop(model: Barest, replicas: int, seed: int) -> Floats:
    """Simulate one failure after another. `planner_speed.py` has numba compile this."""
    np.random.seed(seed)  # numba's own generator, which NumPy's does not touch
    mttf_s, round_s = model.gpu_mttf_s / model.gpus, model.interval_s + model.stall_s
    productive = np.empty(replicas)
    for replica in range(replicas):
        now_s, kept_s, restart_s = 0.0, 0.0, 0.0
        while True:
            fails_s = now_s + np.random.exponential(mttf_s)
            over = fails_s >= model.duration_s
            trained_s = max(min(fails_s, model.duration_s) - now_s - restart_s, 0.0)
            saves = math.floor(trained_s / round_s)
            kept_s += saves * model.interval_s
            if over:
                productive[replica] = (
                    kept_s + min(trained_s - saves * round_s, model.interval_s)
                ) / model.duration_s
                break
            now_s, restart_s = fails_s, model.restart_s
    return productive


class _Run:
    """Add up what a run keeps of its training. SimPy's processes report failures to it."""

    def __init__(self, model: Barest) -> None:
        self._model, self._since_s, self._restart_s, self.kept_s = model, 0.0, 0.0, 0.0

    def _trained(self, now_s: float) -> tuple[int, float]:
        trained_s, round_s = (
            max(now_s - self._since_s - self._restart_s, 0.0),
            self._model.interval_s + self._model.stall_s,
        )
        saves = math.floor(trained_s / round_s)
        return saves, min(trained_s - saves * round_s, self._model.interval_s)

    def fail(self, now_s: float) -> None:
        self.kept_s += self._trained(now_s)[0] * self._model.interval_s
        self._since_s, self._restart_s = now_s, self._model.restart_s

    def productive(self) -> float:
        saves, since_s = self._trained(self._model.duration_s)
        return (self.kept_s + saves * self._model.interval_s + since_s) / self._model.duration_s


def by_simpy(model: Barest, replicas: int, seed: int, *, processes: int) -> Floats:
    """Simulate by SimPy. `processes`: 1 for the failures of all GPUs, or one for each GPU."""
    import simpy

    luck = random.Random(seed)
    mttf_s = model.gpu_mttf_s / model.gpus * processes
    productive = np.empty(replicas)
    for replica in range(replicas):
        world, run = simpy.Environment(), _Run(model)

        def fails(world: simpy.Environment = world, run: _Run = run) -> Iterator[simpy.Event]:
            while True:
                yield world.timeout(luck.expovariate(1.0 / mttf_s))
                run.fail(world.now)

        for _ in range(processes):
            world.process(fails())
        world.run(until=model.duration_s)
        productive[replica] = run.productive()
    return productive
