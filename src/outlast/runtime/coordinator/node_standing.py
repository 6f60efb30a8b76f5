"""Put together where the processes of all nodes stood: `standing.json` of an interruption.

Each node has told of its own processes (`processes.json`). What another node sends may be cut or
changed, so each value is checked before it counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outlast.model import limits
from outlast.model.records import Interruption
from outlast.model.texts import cut_at_word
from outlast.runtime.agent.evidence import PROCESSES

_SCHEMA = 1
_INTEGERS = ("worker", "rank", "pid", "step", "generation")
_FLAGS = ("killed", "oom", "oom_near", "oom_read")
_OUTCOMES = ("exit_code", "signal")
_KERNEL = ("stat", "wchan", "syscall")
_PHASE_CHARS, _KERNEL_CHARS = 40, 4_096
_NUMBER_MAX = 2**53
_MISSING_COUNT, _NAME_CHARS = 100, 160  # nodes without evidence that are named
# `outlast diagnose` reads GIVEN_FILE_MAX_BYTES of standing.json at most. The rest is for the
# interruption and its traceback.
_ROOM_BYTES = limits.GIVEN_FILE_MAX_BYTES - 4 * limits.TRACEBACK_MAX_BYTES


def read_processes(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the name of a node and its processes. Raises OSError, and ValueError.

    A ValueError means that the file was cut or changed.
    """
    with path.open("rb") as file:
        raw = file.read(limits.GIVEN_FILE_MAX_BYTES + 1)
    if len(raw) > limits.GIVEN_FILE_MAX_BYTES:
        raise ValueError("its list of processes is too long")
    try:
        told = json.loads(raw)
        node, processes = told["node"], told["processes"]
        if told["schema"] != _SCHEMA or not isinstance(node, str):
            raise ValueError("its list of processes has another form")
        if not isinstance(processes, list) or len(processes) > 2 * limits.WORKERS_MAX_COUNT:
            raise ValueError("its list of processes is none")
        return node, [_process(one) for one in processes]
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError("its list of processes was cut or changed") from error


def _process(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known facts about one process. Raises ValueError if one is of another kind."""
    out: dict[str, Any] = {name: _integer(told[name]) for name in _INTEGERS}
    out |= {name: None if told[name] is None else _integer(told[name]) for name in _OUTCOMES}
    for name in _FLAGS:
        out[name] = told[name] is True
    age_s, phase, kernel = told["age_s"], told["phase"], told["kernel"]
    if not isinstance(age_s, int | float) or not math.isfinite(age_s):
        raise ValueError("a process that has moved at no time")
    if not _is_short(phase, _PHASE_CHARS) or not isinstance(kernel, Mapping):
        raise ValueError("a process in no phase")
    out["age_s"], out["phase"] = age_s, phase
    out["kernel"] = {name: kernel[name] for name in _KERNEL if name in kernel}
    if not all(_is_short(text, _KERNEL_CHARS) for text in kernel.values()):
        raise ValueError("what the kernel says of a process is no text")
    return out


def _is_short(value: object, most_chars: int) -> bool:
    return isinstance(value, str) and len(value) <= most_chars


def _integer(value: object) -> int:
    if type(value) is not int or abs(value) > _NUMBER_MAX:
        raise ValueError("a process with a number that is none")
    return value


def write_standing(
    folder: Path,
    interruption: Interruption,
    processes: Iterable[tuple[str, Sequence[Mapping[str, Any]]]],
    missing: Mapping[str, str],
) -> None:
    """Write standing.json. Raises OSError.

    processes  of each node
    missing    nodes that have sent no evidence, or not all of it, and why
    """
    rows = [{**one, "node": node} for node, some in processes for one in some]
    # If there are too many, those that failed are kept.
    rows.sort(key=lambda one: (not _failed(one), one["rank"]))
    kept: list[Mapping[str, Any]] = []
    left = _ROOM_BYTES
    for row in rows:
        left -= len(json.dumps(row, indent=1)) + 2 * len(row) + 16  # as much as it takes below
        if left >= 0:
            kept.append(row)
    some = sorted(missing.items(), key=lambda one: (one[0] not in interruption.nodes, one[0]))
    record = {
        "schema": _SCHEMA,
        "outlast": "standing",
        "interruption": interruption.public(began_s=0.0),
        "processes": kept,
        "missing": {cut_at_word(node, _NAME_CHARS): why for node, why in some[:_MISSING_COUNT]},
    }
    (folder / "standing.json").write_text(json.dumps(record, indent=1) + "\n")


def _failed(process: Mapping[str, Any]) -> bool:
    return bool(process["killed"]) or any(process[name] is not None for name in _OUTCOMES)


def processes_in(folder: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the nodes whose evidence is in a folder, each with its processes."""
    out = []
    for path in sorted(folder.glob(f"nodes/*/{PROCESSES}")):
        try:
            out.append(read_processes(path))
        except (OSError, ValueError):
            continue  # it has been refused already
    return out
