"""How fast the planner is: a default `outlast plan`, and simulated runs in a second of one core.

    python benchmarks/planner_speed.py [--rounds N]        needs `pip install simpy numba`; without
                                                           them it says so, and measures the rest

Plan       `outlast plan` in a process of its own, for a run of 16,384 GPUs and 54 days and for the
           preset llama3-405b, from the start of Python to the answer, on all cores.
Barest     One class of 419 failures, one tier, fixed durations (`peers/barest.py`). All contestants
           run it and must agree on the mean within 4 standard errors. The time of outlast includes
           the drawing of failures, as that of the others does. The time that numba takes to compile
           is not in its time; it is printed separately.
Full       Preset llama3-405b (18 classes by their counts, rates drawn from what the counts leave
           open; network failures take a rack; maintenance), two tiers, spares with repair and
           misdiagnosis, lemons, all durations lognormal. Drawing is included.
Decision   The same model, and the engine is asked at every interruption (`planner_decisions.py`
           also has live replicas, and hangs).
Times      Processor seconds; each round takes every contestant once. Median [95 % interval of the
           median] of the rounds; ratios are of pairs. The processes of a plan are added up, so on
           the wall clock it takes less than that on an idle machine with several cores.
Goals      3 s for a default plan, 1 s for a replica in decision mode. The exit code is 1 where one
           is missed.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec

import numpy as np
from _timing import alternate, paired_ratio, summarise
from peers.barest import Barest, Floats, by_numpy, by_simpy, in_a_loop

from outlast.app.planning.plan_inputs import preset
from outlast.model.terms import FailureClass
from outlast.model.time_units import DAY_S, HOUR_S
from outlast.planner import decisions, histories
from outlast.planner.deciding.decided import Rules
from outlast.planner.resolve import resolve
from outlast.planner.runs import run
from outlast.planner.scenario import (
    Extent,
    FailureRate,
    Job,
    Lemons,
    Recovery,
    Scenario,
    ScenarioTier,
    Unit,
)
from outlast.planner.spread import constant, lognormal

GOAL_PLAN_S, GOAL_DECISION_S = 3.0, 1.0
GPUS, DAYS, FAILURES = 16_384, 54, 419
STEP_S = 6.2
PLANS = (
    ("--gpus", str(GPUS), "--days", str(DAYS), "--params", "405e9"),
    ("--preset", "llama3-405b"),
)
BAREST = Barest(
    GPUS,
    GPUS * DAYS * DAY_S / FAILURES,
    DAYS * DAY_S,
    interval_s=39 * STEP_S,
    stall_s=2.5,
    restart_s=390.0,
)
# a run that lacks a node waits, as the scenario does, and goes on to its end
RULES = Rules(node_wait_s=math.inf)


def barest() -> Scenario:
    """Return the barest model as a scenario of outlast."""
    rate = FailureRate(FailureClass.UNKNOWN, Unit.GPU, Extent.PROCESS, BAREST.gpu_mttf_s)
    storage = ScenarioTier(
        "storage", BAREST.interval_s, BAREST.stall_s, 0.0, Extent.RUN, constant(60.0)
    )
    recovery = Recovery(constant(30.0), constant(BAREST.restart_s - 90.0))
    return Scenario(
        "barest", Job(GPUS, BAREST.duration_s, step_s=STEP_S), (rate,), (storage,), recovery
    )


def full() -> Scenario:
    """Return the full model, as the head of this page describes it."""
    known = resolve(preset("llama3-405b")).scenario
    peers = ScenarioTier("peers", 120.0, 0.04, 10.0, Extent.NODE, lognormal(20.0, 60.0))
    storage = ScenarioTier("storage", 3_600.0, 2.5, 60.0, Extent.RUN, lognormal(120.0, 300.0))
    repair = replace(known.repair, time=lognormal(18 * HOUR_S, 72 * HOUR_S), wrong=0.1, missed=0.05)
    recovery = Recovery(lognormal(30.0, 120.0), known.recovery.regroup, lognormal(30.0, 90.0))
    return replace(
        known,
        tiers=(peers, storage),
        repair=repair,
        recovery=recovery,
        lemons=Lemons(0.01, 10.0, 0.5),
    )


def by_monte_carlo(scenario: Scenario, replicas: int, seed: int) -> Floats:
    drawn = histories.draw(scenario, seed=seed, replicas=replicas)
    return run(scenario, drawn).position_s / scenario.job.duration_s


@dataclass
class Contestant:
    """One way to simulate. `live(replicas, seed)` returns the productive share of each replica."""

    name: str
    live: Callable[[int, int], Floats]
    replicas: int
    each_s: list[float] = field(default_factory=list)
    shares: list[Floats] = field(default_factory=list)

    def turn(self) -> None:
        """Simulate once more, and keep how long each replica took."""
        began_s = time.process_time()
        self.shares.append(self.live(self.replicas, len(self.shares) + 1))
        self.each_s.append((time.process_time() - began_s) / self.replicas)
        print(f"  {self.name}: {self.each_s[-1] * 1e3:.3f} ms", file=sys.stderr, flush=True)

    @property
    def mean(self) -> tuple[float, float]:
        """Return the mean of the productive shares, and its standard error."""
        shares = np.concatenate(self.shares)
        return float(shares.mean()), (
            float(shares.std(ddof=1)) / math.sqrt(len(shares)) if len(shares) > 1 else math.inf
        )

    def line(self, beside: Contestant | None) -> str:
        """Say how fast this one is, and how much slower than `beside`."""
        took, rates = summarise(self.each_s), summarise([1 / each_s for each_s in self.each_s])
        mean, error = self.mean
        ratio = (
            ""
            if beside is None or beside is self
            else f"   {paired_ratio(self.each_s, beside.each_s).text(digits=1)} x outlast's time"
        )
        speed, each = (
            f"{rates.text(digits=1 if rates.median < 100 else 0)}/s",
            took.text(scale=1e3, unit=" ms", digits=3),
        )
        return f"{self.name:32}{speed:>32}{each:>32}   ETTR {mean:.4f} ± {error:.4f}{ratio}"


def compiled() -> tuple[Callable[[Barest, int, int], Floats], float]:
    """Return the loop compiled by numba, and how many processor seconds that took."""
    import numba

    fast = numba.njit(in_a_loop)
    began_s = time.process_time()
    fast(BAREST, 1, 1)
    return fast, time.process_time() - began_s


def on_the_barest() -> list[Contestant]:
    """Return the contestants on the barest model, outlast first."""
    contestants = [
        Contestant("outlast, Monte Carlo", partial(by_monte_carlo, barest()), 4_096),
        Contestant("NumPy", partial(by_numpy, BAREST), 1_024),
    ]
    if find_spec("numba"):
        fast, took_s = compiled()
        contestants.append(
            Contestant(f"numba ({took_s:.1f} s to compile)", partial(fast, BAREST), 4_096)
        )
    if find_spec("simpy"):
        contestants.append(
            Contestant("SimPy, one process", partial(by_simpy, BAREST, processes=1), 10)
        )
        contestants.append(
            Contestant(
                "SimPy, a process for each GPU", partial(by_simpy, BAREST, processes=GPUS), 1
            )
        )
    return contestants


def plan_s(arguments: Sequence[str]) -> float:
    """Return the processor seconds of `outlast plan` with these arguments, all its processes."""
    before = os.times()
    command = [sys.executable, "-m", "outlast.app.cli", "plan", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def by_decisions(replicas: int, seed: int, *, scenario: Scenario) -> Floats:
    drawn = histories.draw(scenario, seed=seed, replicas=replicas)
    lives = [decisions.live(scenario, drawn.one(replica), RULES) for replica in range(replicas)]
    assert all(one.ended_s is None for one in lives), "a run that the engine ends is soon simulated"
    return np.array([one.position_s / scenario.job.duration_s for one in lives])


def disagreements(contestants: list[Contestant]) -> list[str]:
    """Return the names of those whose mean is too far from that of outlast."""
    mean, error = contestants[0].mean
    return [
        one.name
        for one in contestants[1:]
        if abs(one.mean[0] - mean) > 4 * math.hypot(one.mean[1], error)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    missing = [name for name in ("simpy", "numba") if not find_spec(name)]
    if missing:
        print(f"left out, not installed: pip install {' '.join(missing)}")
    plans = {arguments: [plan_s(arguments) for _ in range(rounds)] for arguments in PLANS}
    rivals = on_the_barest()
    whole = Contestant("outlast, Monte Carlo, full", partial(by_monte_carlo, full()), 4_096)
    decided = Contestant("outlast, decision mode, full", partial(by_decisions, scenario=full()), 1)
    alternate(rounds, [one.turn for one in (*rivals, whole, decided)])
    machine = (
        f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} cores, load"
        f" {os.getloadavg()[0]:.1f}"
    )
    print(f"{GPUS:,} GPUs, {DAYS} days; {machine}; {rounds} rounds")
    print("-- a default plan")
    for arguments, took_s in plans.items():
        print(f"outlast plan {' '.join(arguments)}: {summarise(took_s).text(unit=' s', digits=2)}")
    print("replicas a second of one core, and what one takes\n-- the barest model")
    print("\n".join(one.line(rivals[0]) for one in rivals))
    print(f"-- the full model\n{whole.line(None)}\n{decided.line(None)}")
    return judge(plans, decided, rivals)


def judge(
    plans: Mapping[Sequence[str], list[float]], decided: Contestant, rivals: list[Contestant]
) -> int:
    """Say whether each goal is reached, and whether all contestants ran the same model."""
    slowest_s = max(summarise(took_s).median for took_s in plans.values())
    decision_s = summarise(decided.each_s).median
    goals = [
        (slowest_s <= GOAL_PLAN_S, f"default plan {slowest_s:.2f} s, goal {GOAL_PLAN_S:g} s"),
        (
            decision_s <= GOAL_DECISION_S,
            f"decision mode {decision_s:.2f} s a replica, goal {GOAL_DECISION_S:g} s",
        ),
    ]
    for reached, what in goals:
        print(f"{'reached' if reached else 'missed':8} {what}")
    wrong = disagreements(rivals)
    print(
        f"NOT the same model: {', '.join(wrong)}"
        if wrong
        else "all agree on the mean ETTR of the barest model"
    )
    return int(bool(wrong) or not all(reached for reached, _ in goals))


if __name__ == "__main__":
    sys.exit(main())
