"""A plan on one screen: the answer, its assumptions, what it depends on most, and its interval."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from outlast.app.charts import drawn
from outlast.app.planning.plan_answer import PlanFindings
from outlast.app.planning.plan_charts import NOTHING, SWING_LEAST, charts, gpus_words, share_words
from outlast.app.words import count, escaped, listed, long_duration, percent
from outlast.planner.cluster_file import Input, Origin
from outlast.planner.node_losses import NodeLosses
from outlast.planner.optimise import Option
from outlast.planner.plan import Plan
from outlast.planner.power import Power
from outlast.planner.sensitivity import EttrSwing

LABEL_COLUMNS = 16
ASSUMED_MOST, SWINGS_MOST, NAMED_MOST = 8, 5, 6
WATTS = ((1e6, "MW"), (1e3, "kW"), (1.0, "W"))


def show(found: PlanFindings, *, inputs: bool, blocks: bool) -> list[str]:
    """Return the lines of a plan. `inputs`: list all inputs; `blocks`: with block characters."""
    lines = answer_lines(found)
    for chart in charts(found):
        lines += ["", *drawn(chart, blocks=blocks)]
    if inputs:
        lines += ["", *_inputs(found.plan)]
    return [escaped(line) for line in lines]


def answer_lines(found: PlanFindings) -> list[str]:
    """Return the lines of the whole answer, without the charts and the list of inputs."""
    lines = [*_answer(found.plan), *_assumed(found.plan), *_sensitive(found)]
    if found.optimum is not None:
        lines += ["", *_options(found)]
    if found.scale is not None:
        lines += ["", *_caps(found)]
    if found.power is not None:
        lines += ["", *_power(found.power)]
    if found.losses is not None:
        lines += ["", *_losses(found.losses)]
    return lines


# --- the answer -----------------------------------------------------------------------------------


def _answer(plan: Plan) -> Iterator[str]:
    scenario, ettr = plan.scenario, plan.ettr
    job = scenario.job
    yield f"{scenario.name}: {job.gpus:,} GPUs for {long_duration(job.duration_s)}"
    yield ""
    error = f"+- {_fine(ettr.mean_se)}" if ettr.mean_se >= NOTHING else "below 0.01 %"
    yield _row(
        "ETTR",
        f"{percent(ettr.mean)}   90 of 100 such runs: {_between(ettr.low, ettr.high)}; standard"
        f" error of the simulated mean {error}",
    )
    yield _row("limited by", _binding(plan))
    yield _row(
        "fails",
        (
            "never"
            if math.isinf(plan.mttf_s)
            else f"every {long_duration(plan.mttf_s)}, {_times(plan.interruptions)} in this run"
        ),
    )
    for tier in scenario.tiers:
        yield _row(f"save to {tier.name}", _tier_words(plan, tier.name))
    yield _row("spares", _spares(plan))
    for name, one in plan.redundancy.items():
        yield _row(
            f"copies, {name}",
            f"{one['scheme']}: {one['memory']:.3g}x the memory, survives the loss of a"
            f" {one['survives']}; chance {one['lost_with_next']:.1e} that a lost node's group loses"
            " too much before it is whole again",
        )
    yield _row("costs", _costs(plan))
    for note in plan.notes:
        yield _row("note", note)


def _row(label: str, text: str) -> str:
    return f"  {label.ljust(LABEL_COLUMNS)} {text}"


def _between(low: float, high: float) -> str:
    return f"{percent(low).replace(' %', '')} to {percent(high)}"


def _times(number: float) -> str:
    return f"{number:,.0f} times" if 10 <= number < 1e9 else f"{number:.2g} times"


def _binding(plan: Plan) -> str:
    """Name the losses of the run, the largest first."""
    terms = sorted(
        ((share, term.value) for term, share in plan.lost.items() if share >= NOTHING), reverse=True
    )
    return ", ".join(f"{name} {_fine(share)}" for share, name in terms) if terms else "nothing"


def _fine(share: float) -> str:
    return f"{share * 100:.2f} %" if share < 0.1 else percent(share)


def _tier_words(plan: Plan, name: str) -> str:
    scenario = plan.scenario
    (tier,) = [one for one in scenario.tiers if one.name == name]
    interval_s = scenario.interval_s(tier)
    survives = (
        "survives the loss of"
        f" {'the whole run' if tier.survives.name == 'RUN' else 'a ' + tier.survives.name.lower()}"
    )
    if math.isinf(interval_s):
        return f"never: {plan.resolved.inputs[f'tier.{name}.interval'].source}"
    if scenario.is_live(tier):
        return f"every step, without a stall; {survives}"
    stall = (
        f"training pauses for {long_duration(tier.stall_s)}" if tier.stall_s else "without a stall"
    )
    write = f", safe {long_duration(tier.write_s)} later" if tier.write_s else ""
    return f"every {long_duration(interval_s)}, {stall}{write}; {survives}"


def _spares(plan: Plan) -> str:
    job, spares = plan.scenario.job, plan.scenario.repair.spare_nodes
    share = spares * job.gpus_per_node / job.gpus
    return (
        f"{count(spares, 'node')} of {job.gpus_per_node} GPUs, {_fine(share)} of the run;"
        f" {plan.resolved.inputs['repair.spares'].source}"
    )


def _costs(plan: Plan) -> str:
    facts = plan.facts()
    hours, money, samples = facts["gpu_hours"], facts["money"], facts["samples_per_day"]
    words = [
        f"{hours['training'] + hours['spares']:,.0f} GPU-hours",
        f"{hours['training'] * (1 - plan.ettr.mean) + hours['spares']:,.0f} of them not productive",
    ]
    if money is not None:
        words.append(f"{money['total']:,.0f} in money, {money['lost']:,.0f} of it lost")
    if samples is not None:
        words.append(f"{samples:,.0f} samples a day")
    return ", ".join(words)


# --- the assumptions ------------------------------------------------------------------------------


def _assumed(plan: Plan) -> Iterator[str]:
    """Yield the inputs that are assumed, those that make the largest difference first."""
    inputs = plan.resolved.inputs
    widths = {one.path: one.width for one in plan.sensitivity}
    assumed = [one for one in inputs.values() if one.is_assumed and not _is_idle(one)]
    assumed.sort(key=lambda one: -widths.get(one.path, 0.0))
    if not assumed:
        return
    yield ""
    yield "It rests on these assumptions (--inputs lists all inputs):"
    for one in assumed[:ASSUMED_MOST]:
        yield f"  {one.path} = {one.said}: {one.source}"
    if len(assumed) > ASSUMED_MOST:
        yield f"  and {len(assumed) - ASSUMED_MOST} more"


def _is_idle(one: Input) -> bool:
    """Return True for a default which says that the run has none of this."""
    return one.origin is Origin.DEFAULT and (
        not one.source.startswith("assumption") or one.path.startswith("power.")
    )


def _sensitive(found: PlanFindings) -> Iterator[str]:
    swings = [one for one in found.plan.sensitivity if one.width >= SWING_LEAST]
    if not swings:
        return
    yield ""
    yield "It depends most on:"
    yield from (f"  {_swing(one)}" for one in swings[:SWINGS_MOST])


def _swing(one: EttrSwing) -> str:
    return (
        f"{one.path} = {one.value}: ETTR {percent(one.ettr_low)} at {one.low},"
        f" {percent(one.ettr_high)} at {one.high} ({one.why})"
    )


def _inputs(plan: Plan) -> Iterator[str]:
    inputs = plan.resolved.inputs.values()
    width = max(len(one.path) for one in inputs)
    said = max(min(24, len(one.said)) for one in inputs)
    yield "Inputs:"
    yield from (
        f"  {one.path.ljust(width)}  {one.said.ljust(said)}  {one.origin.value}: {one.source}"
        for one in inputs
    )


# --- other results that were asked for ------------------------------------------------------------


def _options(found: PlanFindings) -> Iterator[str]:
    assert found.optimum is not None
    yield (
        "Found by search in simulation. All rows are compared over failures that were not used"
        " for the search:"
    )
    rows = [_option_row(one, best=at == 0) for at, one in enumerate(found.optimum.options)]
    yield from _table(
        ("policy", "productive", "behind the best", "ETTR", "intervals", "spares"), rows
    )
    yield "  productive: share of all GPUs, spares included"


def _option_row(one: Option, *, best: bool) -> tuple[str, ...]:
    behind = (
        ""
        if best
        else f"{one.behind * 100 + 0.0:.2f} +- {one.behind_se * 100:.2f} %".replace(
            "-0.00 +-", "0.00 +-"
        )
    )
    intervals = ", ".join(
        f"{name} {'never' if math.isinf(seconds) else long_duration(seconds)}"
        for name, seconds in one.interval_s.items()
    )
    redundancy = "".join(f", {name} {scheme}" for name, scheme in one.redundancy.items())
    return (
        one.name,
        f"{one.value * 100:.2f} %",
        behind,
        f"{one.ettr * 100:.2f} %",
        intervals + redundancy,
        f"{one.spares:,}",
    )


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    for row in [heads, *rows]:
        yield (
            "  "
            + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _caps(found: PlanFindings) -> Iterator[str]:
    assert found.scale is not None
    rows = [
        (
            gpus_words(row.gpus),
            long_duration(row.mttf_s),
            long_duration(row.save_s),
            *map(share_words, (row.ettr, row.ettr_formula, row.ettr_growing)),
            f"{row.spares:,}",
            row.binding,
        )
        for row in found.scale.rows
    ]
    yield "How it scales:"
    yield from _table(
        (
            "GPUs",
            "fails every",
            "a save takes",
            "ETTR",
            "by formula",
            "model grows too",
            "spare nodes",
            "limited by",
        ),
        rows,
    )
    yield ""
    yield "Most GPUs under each assumption (progress is 0 where only a size is given):"
    for name, gpus in found.scale.max_gpus.items():
        yield f"  {name}: {'no cap below 1e40' if math.isinf(gpus) else gpus_words(gpus)}"


def _power(power: Power) -> Iterator[str]:
    yield (
        f"Power while training: {_watts(power.training_w)}. In one simulated run all GPUs stop"
        " and start together:"
    )
    for one in power.swings:
        if one.kind == "step":
            band = (
                "inside the risky band of 0.1 to 20 Hz"
                if one.in_band
                else "outside the risky band of 0.1 to 20 Hz"
            )
            yield f"  each step: {one.frequency_hz:.3g} Hz, {band}"
        elif one.count and one.ramp_w_per_s is not None and one.longest_s is not None:
            ramp = f"{_watts(one.amplitude_w)} at {_watts(one.ramp_w_per_s)}/s"
            yield (
                f"  each {one.kind}: {ramp}, {one.per_day:.3g} a day, down for"
                f" {long_duration(one.longest_s)} at most"
            )
    for remedy in power.remedies:
        cost = (
            f"costs {_fine(remedy.ettr_cost)} of the time"
            if remedy.ettr_cost
            else f"costs {_fine(remedy.energy_cost)} more energy"
        )
        yield (
            f"  {remedy.what}: {_watts(remedy.amplitude_w)} at {_watts(remedy.ramp_w_per_s)}/s;"
            f" {cost}"
        )


def _losses(losses: NodeLosses) -> Iterator[str]:
    """Say how many losses of each kind are survived, and name the first ones that are not."""
    nodes, domains = losses.nodes, count(len(losses.sizes), "domain")
    yield f"Losses that --keep {losses.scheme} survives, of {count(nodes, 'node')} in {domains}:"
    if nodes < losses.nodes_least:
        yield f"  none: it takes {losses.nodes_least} nodes with ranks, and there are {nodes}"
        return
    yield _row("one node", _survived(nodes, losses.single))
    pairs = [f"{one} and {other}" for one, other in losses.double]
    yield _row("two at once", _survived(losses.pairs, pairs))
    yield _row("a whole domain", _survived(len(losses.sizes), losses.domain))
    if losses.told:
        yield "  A domain is a rack, or what --domains says. A run has to be told (--node-domain)."
    else:
        yield "  The run is not told of domains, so they do not decide where copies and parity lie."


def _survived(of: int, fatal: Sequence[object]) -> str:
    if not fatal:
        return f"all {of:,}"
    if len(fatal) == of:
        return f"none of {of:,}"
    more = f" and {len(fatal) - NAMED_MOST:,} more" if len(fatal) > NAMED_MOST else ""
    return f"{of - len(fatal):,} of {of:,}; not {listed(fatal[:NAMED_MOST])}{more}"


def _watts(watts: float) -> str:
    return next(
        (f"{watts / size:.3g} {unit}" for size, unit in WATTS if watts >= size), f"{watts:.3g} W"
    )
