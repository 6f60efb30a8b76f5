"""Read a simulated run that `outlast sim --json` wrote, so that it can be run again.

This module is pure: text in, data out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from outlast.errors import UsageError
from outlast.model import fault_plan
from outlast.sim.options import RECORDED_AS, Options, check

_RESULTS_OF_FAULT = ("fired", "in_recovery")  # keys of a fault that say what became of it


@dataclass(frozen=True, slots=True)
class RunRecording:
    """The options and faults by which a recorded run takes the same course, and its digest."""

    seed: int
    options: Options
    faults: tuple[fault_plan.PlannedFault, ...]
    trace_digest: str


def read(text: str, *, source: str, version: str) -> RunRecording:
    """Read a record. Raises UsageError, which names `source`, for any other text.

    A record of another version is refused too, because the same seed may take another course.
    """
    try:
        said = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{source} is not JSON: {error}") from None
    if not isinstance(said, dict) or not {
        "version",
        "seed",
        "options",
        "faults",
        "trace_digest",
    } <= set(said):
        raise UsageError(
            f"{source} is not a simulated run",
            hint="write one with `outlast sim --seed N --json > run.json`",
        )
    if said["version"] != version:
        hint = (
            f"replay it with outlast {said['version']}, or draw the seed again: `outlast sim --seed"
            f" {said['seed']}`"
        )
        raise UsageError(
            f"{source} was written by outlast {said['version']}; in this version, {version}, the"
            " same seed may take another course",
            hint=hint,
        )
    if (
        type(said["seed"]) is not int
        or not isinstance(said["faults"], list)
        or not all(isinstance(one, dict) for one in said["faults"])
    ):
        raise UsageError(f"{source}: seed has to be a whole number, and faults have to be tables")
    faults = [
        {key: value for key, value in one.items() if key not in _RESULTS_OF_FAULT}
        for one in said["faults"]
    ]
    planned = fault_plan.read({"schema": fault_plan.SCHEMA, "fault": faults}, source=source)
    return RunRecording(
        said["seed"], _options(said["options"], source), planned, str(said["trace_digest"])
    )


def _options(said: Any, source: str) -> Options:
    recorded = {RECORDED_AS.get(field.name, field.name): field for field in fields(Options)}
    if not isinstance(said, dict) or set(said) != set(recorded):
        raise UsageError(f"{source}: options are {', '.join(sorted(recorded))}")
    types = {
        name: type(field.default) for name, field in recorded.items() if field.default is not None
    }
    for name, kind in types.items():
        if not isinstance(said[name], (int, float) if kind is float else kind) or isinstance(
            said[name], bool
        ) is not (kind is bool):
            raise UsageError(f"{source}: {name} is {said[name]!r}")
    options = Options.from_dict(said)
    check(options)
    return options
