"""Find a smaller run that still breaks the same rule: fewer faults, then fewer ranks and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from outlast.errors import UsageError
from outlast.model.fault_plan import PlannedFault
from outlast.sim.options import Options
from outlast.sim.simulated_run import SimulatedRun, simulate

Tried = Callable[[SimulatedRun], None]


def shrink(run: SimulatedRun, *, tried: Tried = lambda _: None) -> SimulatedRun:
    """Return a smaller run that breaks the same rule as `run`, whose result is "bad".

    The search is greedy, so there may be smaller ones. `tried` is called for each attempt.
    """
    rules = {one.rule for one in run.violations}
    smaller = True
    while smaller:
        smaller = False
        for options, faults in _smaller(run):
            try:
                attempt = simulate(seed=run.seed, options=options, faults=faults)
            except UsageError:
                continue
            tried(attempt)
            if rules & {one.rule for one in attempt.violations}:
                run, smaller = attempt, True
                break
    return run


def _smaller(run: SimulatedRun) -> Iterator[tuple[Options, tuple[PlannedFault, ...]]]:
    options, faults = run.options, run.faults
    for index in range(len(faults)):
        yield options, (*faults[:index], *faults[index + 1 :])
    for name, least in (("ranks", 2), ("spares", 0), ("steps", 1)):
        value = getattr(options, name)
        for fewer in sorted({least, value // 2, value - 1}):
            if least <= fewer < value:
                yield replace(options, **{name: fewer}), faults
    if options.phase_after >= 0:
        yield replace(options, phase_after=-1), faults
    for index, fault in enumerate(faults):
        for plainer in (replace(fault, after_s=0.0), replace(fault, times=1)):
            if plainer != fault:
                yield options, (*faults[:index], plainer, *faults[index + 1 :])
