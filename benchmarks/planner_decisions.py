"""The planner's decision mode: processor time for a run of 16,384 GPUs and 54 days.

The engine is asked at every interruption, with all ranks.

    python benchmarks/planner_decisions.py                 five replicas each: replicated state,
                                                           storage only, hangs found by the engine's
                                                           deadlines
    python benchmarks/planner_decisions.py --gpus 1024 --replicas 20

Target: a second for each replica. Times are of the process; on cores that others use they swell.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

from outlast.model.terms import FailureClass
from outlast.model.time_units import DAY_S
from outlast.planner.deciding.decided import Rules
from outlast.planner.decisions import live
from outlast.planner.histories import draw
from outlast.planner.scenario import (
    Extent,
    FailureRate,
    Job,
    Recovery,
    Repair,
    Scenario,
    ScenarioTier,
    Unit,
)
from outlast.planner.spread import constant, exponential, lognormal

TARGET_S = 1.0
# Of 419 interruptions in 54 days on 16,384 GPUs, arXiv 2407.21783, table 5: rows of more than ten,
# and the rest.
ROWS = (
    (FailureClass.GPU, Unit.GPU, Extent.NODE, 148),
    (FailureClass.HBM, Unit.GPU, Extent.NODE, 72),
    (FailureClass.SOFTWARE_BUG, Unit.RUN, Extent.PROCESS, 54),
    (FailureClass.NETWORK, Unit.RACK, Extent.RACK, 35),
    (FailureClass.HOST_MAINTENANCE, Unit.NODE, Extent.NODE, 32),
    (FailureClass.SRAM, Unit.GPU, Extent.NODE, 19),
    (FailureClass.GPU_SYSTEM_PROCESSOR, Unit.GPU, Extent.NODE, 17),
    (FailureClass.UNKNOWN, Unit.NODE, Extent.NODE, 42),
)
STORAGE = ScenarioTier("storage", 240.0, 2.5, 30.0, Extent.RUN, lognormal(120.0, 300.0))
REPLICAS = ScenarioTier("replicas", 6.2, 0.0, 0.0, Extent.RACK, constant(20.0))


def scenario(gpus: int, tiers: tuple[ScenarioTier, ...]) -> Scenario:
    """Return a run of so many GPUs, each failing as often as those of ROWS."""
    measured = Job(16_384, 54 * DAY_S, nodes_per_rack=2, step_s=6.2)
    rates = tuple(
        FailureRate(kind, unit, extent, measured.units(unit) * measured.duration_s / count)
        for kind, unit, extent, count in ROWS
    )
    recovery = Recovery(lognormal(30.0, 120.0), lognormal(120.0, 600.0), constant(30.0))
    job = Job(gpus, measured.duration_s, nodes_per_rack=2, step_s=6.2)
    return Scenario(
        f"{gpus} GPUs",
        job,
        rates,
        tiers,
        recovery,
        Repair(min(32, job.nodes), exponential(DAY_S), wrong=0.1),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", type=int, default=16_384)
    parser.add_argument("--replicas", type=int, default=5)
    given = parser.parse_args()
    print(
        f"{given.gpus} GPUs, 54 days, {given.replicas} replicas: processor seconds of one, median"
        " [smallest, largest]"
    )
    late = False
    for name, tiers, rules in (
        ("replicated state, and storage", (REPLICAS, STORAGE), Rules()),
        ("storage only", (STORAGE,), Rules()),
        (
            "replicated; software hangs",
            (REPLICAS, STORAGE),
            Rules(hangs=frozenset({FailureClass.SOFTWARE_BUG})),
        ),
    ):
        planned = scenario(given.gpus, tiers)
        histories = draw(planned, seed=1, replicas=given.replicas)
        took_s, interruptions, decisions, ettr = [], 0, 0, []
        for replica in range(given.replicas):
            history = histories.one(replica)
            began_s = time.process_time()
            run = live(planned, history, rules)
            took_s.append(time.process_time() - began_s)
            interruptions, decisions = interruptions + len(run.answers), decisions + run.decisions
            ettr.append(run.position_s / planned.job.duration_s)
        middle_s = statistics.median(took_s)
        late = late or middle_s > TARGET_S
        print(
            f"{name:30} {middle_s:.2f} [{min(took_s):.2f}, {max(took_s):.2f}] s  "
            f" {interruptions / given.replicas:.0f} interruptions, {decisions / interruptions:.2f}"
            f" decisions of the engine for each, ETTR {statistics.fmean(ettr):.3f}"
        )
    print(f"target {TARGET_S:g} s: {'MISSED' if late else 'reached'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
