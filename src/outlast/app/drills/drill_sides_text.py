"""The words of a comparison: other launchers under the same faults, as a table and its notes."""

from __future__ import annotations

import typing
from collections.abc import Sequence

from outlast.app import words
from outlast.app.drills.drill_result import Beside
from outlast.model.drills.drill_sides import pace_for
from outlast.model.texts import count

Facts = dict[str, typing.Any]

HEADS = (
    "launcher",
    "survived",
    "ETTR",
    "MTTR median",
    "max",
    "steps lost",
    "state",
    "whole time",
    "usual step",
    "saves each",
)
MEASURE = (
    "All are measured alike, from outside. ETTR is the time that the same steps take undisturbed"
    " under outlast, over the time that they took from the third step on. So outlast's differs"
    " from the score's, which is booked by cause. MTTR is from a strike to the second new step"
    " after it, less one step. The usual step is that between the faults: where it differs much"
    " from row to row, the machine was not equally busy, or a launcher's steps cost more. What"
    " outlast has lost is in its ledger."
)
_FAVOUR = {
    "torchrun": "Set in torchrun's favour: restarts that do not run out, a store of its own, a"
    " time-out of 10 s for collectives, and checkpoints at the interval that loses least for this"
    " plan.",
    "dcp": "dcp is torchrun with DCP's async_save, and the same in its favour.",
    "torchft": "Set in torchft's favour: a heartbeat time-out of 1 s, a join time-out of 1 s, and"
    " 10 s for collectives. A replica that ends is started again at once.",
}
_OWN = "torchrun does not run out of restarts. The second script saves as it does by itself."


def cells(facts: Facts) -> tuple[str, ...]:
    """Return the row of one launcher, as HEADS has the columns."""
    every = facts["save_every_steps"]
    return (
        facts["name"],
        "yes" if facts["ended_well"] else f"no, ended at step {facts['steps']:,}",
        _percent(facts["ettr_training"]),
        _seconds(facts["mttr_s"]["median"]),
        _seconds(facts["mttr_s"]["max"]),
        "not known" if facts["steps_lost"] is None else f"{facts['steps_lost']:,}",
        _STATE[facts["digest_equal"]],
        words.duration(facts["seconds"]),
        _seconds(facts["step_s"]),
        "-" if every is None else count(every, "step"),
    )


_STATE = {True: "equal", False: "differs", None: "not compared"}


def table(beside: Beside) -> list[str]:
    """Return the lines of the table."""
    rows = [HEADS, *(cells(one) for one in beside.rows)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADS))]
    left = (0, 1, 6)
    return [
        "  ".join(
            cell.ljust(widths[at]) if at in left else cell.rjust(widths[at])
            for at, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def notes(
    rows: Sequence[Facts],
    *,
    shipped: bool,
    planned_count: int,
    mean_gap_s: float,
    time_scale: float,
) -> list[str]:
    """Say how all were measured, what was set in whose favour, and where the table is unfair.

    rows         outlast first
    mean_gap_s   between two faults
    """
    out = [MEASURE]
    for one in rows[1:]:
        name, down = one["name"], one["struck_while_down"]
        out.append(_FAVOUR[name] if shipped else _OWN)
        if one["save_every_steps"] is not None:
            out.append(
                f"{name} saves each {count(one['save_every_steps'], 'step')}: a save stalls it for"
                f" {one['save_stall_s'] * 1_000:.0f} ms."
            )
        scale = pace_for(one, mean_gap_s=mean_gap_s, time_scale=time_scale)
        if scale is not None:
            out.append(
                f"{name} was not back yet when {down} of {one['faults_fired']} faults were due:"
                f" they come faster than it restarts. Its row says more about this pace than about"
                f" {name}. Compare at --time-scale {_scale(scale)} or less."
            )
        elif down:
            out.append(
                f"{name} was not back yet when {down} of {one['faults_fired']} faults were due."
            )
        if missing := planned_count - one["faults_fired"]:
            out.append(
                f"{missing} of {planned_count} faults did not strike {name}: their rank was not"
                " there, or did no step, until the end."
            )
        if fewer := one["steps_with_fewer_ranks"]:
            out.append(
                f"{name} did {count(fewer, 'step')} with fewer ranks, on a smaller batch. Each"
                " counts by its share of the ranks."
            )
    return out


def _scale(value: float) -> str:
    return f"{value:.3g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else words.percent(share)


def _seconds(value: float | None) -> str:
    return "-" if value is None else words.duration(value)
