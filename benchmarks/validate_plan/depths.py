"""The same lives at three depths: message by message (`outlast sim`), by the engine's decisions,
and by Monte Carlo. How many steps were committed in each.

    python benchmarks/validate_plan/depths.py                     1,024 ranks on 128 nodes; exit
                                                                  code 1 where messages and
                                                                  decisions do not agree
    python benchmarks/validate_plan/depths.py --ranks 32 --nodes 8
    python benchmarks/validate_plan/depths.py --json

Agree      The same rungs answer the same failures, the engine ends both runs or neither, and the
           steps differ by one for each interruption and one at most. Whether the step in flight was
           voted for when a failure struck is a matter of milliseconds; recoveries vary by a tenth
           of a second or so; steps around a failure take some hundredths longer than others; and
           the step in flight is finished when the run is asked to stop.
Measured   Detection and regroup, in one short life for each kind of failure and another seed; what
           is compared is predicted from these.
Monte Carlo  knows no budgets and no crash loops: where the engine ends a run it goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from outlast.planner.messages import Compared, Measured, compare, measure, spread_faults
from outlast.sim.options import Options

STEPS_S = {2.0: 300.0, 8.0: 600.0}  # the body of a step, and how long each life is
KINDS = (("kill",), ("kill", "lose_node"), ("kill", "hang"))
COUNTS = (3, 6, 12)  # failures in a life
SPARES = 4
MODES = ("in_place", "sharded")
# steps between two failures where some hang: so that one is found before the next one comes, which
# `decisions.py` does not promise to follow
HANG_APART = 7.0


@dataclass(frozen=True)
class Point:
    """A life of the grid."""

    mode: str
    step_s: float
    kinds: tuple[str, ...]
    count: int
    compared: Compared
    cpu_s: float

    def line(self) -> str:
        one = self.compared
        ends = "" if one.decided.ended_s is None else f"  ended: {one.decided.why_ended[:60]}"
        life = (
            f"{self.mode:9} {self.step_s:5g} {'+'.join(self.kinds):15} {self.count:5}"
            f" {len(one.life.interruptions):6}"
        )
        steps = (
            f"{one.message_steps:8} {one.decision_steps:9} {one.course_steps:11}"
            f" {one.message_steps - one.decision_steps:+5} {one.may_differ_steps:4}"
        )
        return (
            f"{life} {steps}  {'yes' if one.agree else 'NO':3}  {one.decided.per_interruption:5.2f}"
            f" {self.cpu_s:6.1f}{ends}"
        )

    def as_dict(self) -> dict[str, object]:
        one = self.compared
        return {
            "way": self.mode,
            "step_s": self.step_s,
            "kinds": self.kinds,
            "failures": self.count,
            "interruptions": len(one.life.interruptions),
            "message_steps": one.message_steps,
            "decision_steps": one.decision_steps,
            "monte_carlo_steps": one.course_steps,
            "may_differ_steps": one.may_differ_steps,
            "same_rungs": one.same_rungs,
            "agree": one.agree,
            "ended": one.decided.why_ended,
            "decisions_per_interruption": one.decided.per_interruption,
            # interruptions whose cost the decisions do not model
            "beside": {kind.value: count for kind, count in one.decided.unmodelled.items()},
        }


def grid(
    *,
    ranks: int,
    nodes: int,
    seed: int,
    modes: Sequence[str] = MODES,
    steps_s: Mapping[float, float] = STEPS_S,
    counts: Sequence[int] = COUNTS,
) -> Iterator[Point]:
    """Compare the depths on runs of so many ranks. A lost node is back after a minute."""
    for mode in modes:
        for step_s, for_s in steps_s.items():
            options = Options(
                recovery_mode=mode,
                ranks=ranks,
                nodes=nodes + SPARES,
                spare_nodes=SPARES,
                beat_s=0.2,
                latency_s=0.001,
                step_s=step_s,
                for_s=for_s,
                failures=1,
                steps=10**6,
            )
            known: dict[tuple[str, ...], Measured] = {}
            for kinds in KINDS:
                for count in counts:
                    apart_s = HANG_APART * step_s + 5.0 if "hang" in kinds else 0.0
                    if apart_s * count > 0.85 * for_s:
                        continue
                    began_s = time.process_time()
                    known.setdefault(kinds, measure(options, seed=seed + 1, kinds=kinds))
                    faults = spread_faults(
                        options, kinds, count=count, seed=seed + count, apart_s=apart_s
                    )
                    yield Point(
                        mode,
                        step_s,
                        kinds,
                        count,
                        compare(options, faults, seed=seed, measured_s=known[kinds]),
                        time.process_time() - began_s,
                    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    points = []
    if not given.json:
        print(
            f"{given.ranks} ranks on {given.nodes} nodes and {SPARES} spare ones, seed"
            f" {given.seed}: steps committed when the run was over"
        )
        print(
            "way        step kinds           faults struck  message  decision Monte Carlo  diff "
            " may  agree  dec/i  cpu s"
        )
    for point in grid(ranks=given.ranks, nodes=given.nodes, seed=given.seed):
        points.append(point)
        if not given.json:
            print(point.line(), flush=True)
    wrong = sum(not point.compared.agree for point in points)
    print(
        json.dumps([point.as_dict() for point in points], indent=1)
        if given.json
        else f"{len(points) - wrong} of {len(points)} lives agree"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
