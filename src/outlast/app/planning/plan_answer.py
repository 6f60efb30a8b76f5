"""Compute the answer of `outlast plan`: the plan, and the other results that were asked for."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outlast.errors import UsageError
from outlast.model import quantities
from outlast.model.keep import read_keep
from outlast.model.quantities import QuantityKind
from outlast.planner import histories
from outlast.planner.cluster_file import Cluster
from outlast.planner.node_losses import NodeLosses, node_losses
from outlast.planner.optimise import Optimum, Parameter, SpareBudget, optimise, replicas_for_search
from outlast.planner.plan import PLAN_FAILURES, REPLICAS_LEAST, Plan, plan
from outlast.planner.power import Draw, Power, power
from outlast.planner.resolve import resolve
from outlast.planner.scale import Scale, grid, scale
from outlast.planner.stops import run_with_stops
from outlast.planner.sweep import Mapper, window

GPUS_MOST = 10**9
REPLICAS_MOST = 10**6


@dataclass(frozen=True, slots=True)
class PlanFindings:
    """Everything that one call of `outlast plan` found.

    cluster   the inputs of the plan. If an optimum was searched, the best inputs found

    Of `optimum`, `scale`, `power` and `losses`, those are None that were not asked for.
    """

    cluster: Cluster
    plan: Plan
    optimum: Optimum | None
    scale: Scale | None
    power: Power | None
    losses: NodeLosses | None
    asked_sensitivity: bool

    def facts(self) -> dict[str, Any]:
        """Return the JSON of the command."""
        out = {"name": self.cluster.name, "about": self.cluster.about, **self.plan.facts()}
        if self.optimum is not None:
            out["optimise"] = self.optimum.facts()
        if self.scale is not None:
            out |= self.scale.facts()
        if self.power is not None:
            out["power"] = self.power.facts()
        if self.losses is not None:
            out["placement"] = self.losses.facts()
        return out


def answer(cluster: Cluster, args: argparse.Namespace) -> PlanFindings:
    """Answer everything that was asked. Raises UsageError."""
    sizes = _sizes(args.scale)
    budget = _budget(args.budget)
    mapper = _mapper(args)
    keep = None if args.placement is None else read_keep(args.placement)
    sizes_of_domains = _domains(args.domains, asked=keep is not None)
    losses = (
        None
        if keep is None
        else node_losses(
            resolve(cluster).scenario.job,
            keep,
            sizes=sizes_of_domains or (),
            told=sizes_of_domains is not None,
        )
    )
    if args.replicas is not None and not 2 <= args.replicas <= REPLICAS_MOST:
        raise UsageError(
            f"--replicas is {args.replicas}",
            hint=f"from 2, so that there is a spread, to {REPLICAS_MOST:,}",
        )
    optimum = None
    if args.optimise is not None:
        count = args.replicas or replicas_for_search(resolve(cluster).scenario)
        optimum = optimise(
            cluster,
            [Parameter(one) for one in args.optimise],
            seed=args.seed,
            replicas=count,
            budget=budget,
            mapper=mapper,
        )
        cluster = optimum.cluster
    made = plan(
        cluster, seed=args.seed, replicas=args.replicas, everything=args.sensitivity, mapper=mapper
    )
    scaled = (
        scale(
            cluster, sizes, seed=args.seed, replicas=args.replicas or REPLICAS_LEAST, mapper=mapper
        )
        if sizes
        else None
    )
    return PlanFindings(
        cluster,
        made,
        optimum,
        scaled,
        _power(made, args.seed) if args.power else None,
        losses,
        args.sensitivity,
    )


def _domains(text: str | None, *, asked: bool) -> Sequence[int] | None:
    """Return how many nodes each domain has; empty: as the racks; None: a run is told of none."""
    if text is None:
        return ()
    if not asked:
        raise UsageError(
            "--domains says where --placement may put copies and parity, and needs it",
            hint="for example --placement parity=4+2 --domains 4,4,2",
        )
    if text.strip() == "none":
        return None
    return [quantities.parse_count(one.strip(), name="--domains") for one in text.split(",")]


def _sizes(text: str | None) -> Sequence[int]:
    if text is None:
        return ()
    low, high = quantities.parse_range(text, name="--scale")
    if high > GPUS_MOST:
        raise UsageError(
            f"--scale is {text!r}; the largest is {GPUS_MOST:,} GPUs", hint="as in --scale 1e3:1e8"
        )
    return grid(low, high)


def _budget(text: str | None) -> SpareBudget:
    if text is None:
        return SpareBudget()
    if "%" in text:
        return SpareBudget(
            share=quantities.parse(text, QuantityKind.SHARE, name="--budget", zero=True)
        )
    return SpareBudget(money=quantities.parse(text, QuantityKind.MONEY, name="--budget", zero=True))


def _mapper(args: argparse.Namespace) -> Mapper:
    if args.ray is not None:
        from outlast.runtime.on_ray import on_ray

        return on_ray(args.ray)
    from outlast.runtime.pool import on_cores

    return on_cores(args.cores)


def _power(made: Plan, seed: int) -> Power:
    """Return how power swings in the first replica of this seed."""
    part = window(made.scenario, PLAN_FAILURES)
    outcomes, (stops,) = run_with_stops(part, histories.draw(part, seed=seed, replicas=1))
    inputs = made.resolved.inputs
    gpu_w, idle, edge_s = (inputs[f"power.{key}"].value for key in ("gpu", "idle", "edge"))
    assert isinstance(gpu_w, float)
    assert isinstance(idle, (int, float))
    assert isinstance(edge_s, float)
    ettr = float(outcomes.position_s[0]) / part.job.duration_s
    return power(
        part,
        stops,
        draw=Draw(gpu_w, float(idle), edge_s),
        ettr=0.0 if math.isnan(ettr) else ettr,
    )
