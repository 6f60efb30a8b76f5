"""Read verdicts in the form that `outlast diagnose --json` prints and that the ledger holds.

Unknown keys are ignored, because a later version may write more. This module is pure: text in, data
out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast.errors import UsageError
from outlast.model.strict import choice, share
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Blamed, Evidence, Role, Suspect, Verdict


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded verdict.

    at_s    its time, on one clock for all verdicts; None if it was not recorded
    outage  a number that incidents share if they were over together; None if it was over alone
    """

    source: str
    verdict: Verdict
    at_s: float | None = None
    outage: int | None = None


def read_recorded(text: str, *, source: str) -> list[Recorded]:
    """Read one JSON object, or one on each line.

    Raises UsageError, which names `source` and the line.
    """
    try:
        return [recorded(json.loads(text), source=source)]
    except (ValueError, RecursionError):
        lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise UsageError(f"{source} is empty")
    return [
        recorded(_json(line, f"{source}, line {number}"), source=f"{source}, line {number}")
        for number, line in lines
    ]


def _json(line: str, where: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{where} is not JSON: {error}",
            hint="give the output of `outlast diagnose --json`: one object, or one on each line",
        ) from None


def recorded(said: object, *, source: str) -> Recorded:
    """Read a verdict, or a table with a verdict, "at_s", "interruption" and "outage".

    Raises UsageError.
    """
    if not isinstance(said, dict):
        raise UsageError(f"{source}: it is not a JSON object")
    inner = said.get("verdict", said)
    at_s, outage = said.get("at_s"), said.get("outage", said.get("interruption"))
    return Recorded(
        source,
        read_verdict(inner, source=source),
        None if at_s is None else _number(at_s, f"{source}: at_s"),
        None if outage is None else _whole(outage, f"{source}: outage"),
    )


def read_verdict(said: object, *, source: str) -> Verdict:
    """Read what `Verdict.public` wrote. Raises UsageError, which names `source` and the key."""
    if not isinstance(said, dict) or "class" not in said:
        raise UsageError(
            f"{source}: there is no verdict: it has no class",
            hint="a verdict is what `outlast diagnose --json` prints",
        )
    failure_class, confidence = _class(said, source), _confidence(said, source)
    if failure_class is FailureClass.UNKNOWN and confidence > 0.5:
        raise UsageError(
            f"{source}: confidence is {confidence:g}, but with the class unknown it is at most 0.5"
        )
    mechanism = said.get("mechanism")
    return Verdict(
        failure_class,
        None if mechanism is None else choice(Mechanism, mechanism, f"{source}: mechanism"),
        confidence,
        _text(said, "reason"),
        _text(said, "action"),
        ranks=tuple(
            Blamed(_whole(one.get("rank"), f"{source}: rank"), _confidence(one, source))
            for one in _tables(said, "ranks", source)
        ),
        suspects=tuple(
            Suspect(_whole(one.get("rank"), f"{source}: rank"), _text(one, "reason"))
            for one in _tables(said, "suspects", source)
        ),
        nodes=_texts(said, "nodes", source),
        devices=_texts(said, "devices", source),
        evidence=tuple(_evidence(one, source) for one in _tables(said, "evidence", source)),
        refuted_by=_text(said, "refuted_by"),
        next_test=_text(said, "next_test"),
        others=tuple(
            (_class(one, source), _confidence(one, source))
            for one in _tables(said, "others", source)
        ),
    )


def _class(said: Mapping[str, Any], source: str) -> FailureClass:
    return choice(FailureClass, said.get("class"), f"{source}: class")


def _confidence(said: Mapping[str, Any], source: str) -> float:
    return share(said.get("confidence"), f"{source}: confidence")


def _evidence(one: Mapping[str, Any], source: str) -> Evidence:
    line = one.get("line")
    role = choice(Role, one.get("role"), f"{source}: role")
    return Evidence(
        _text(one, "file"),
        None if line is None else _whole(line, f"{source}: line"),
        _text(one, "text"),
        role,
    )


def _tables(said: Mapping[str, Any], key: str, source: str) -> list[Mapping[str, Any]]:
    value = said.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise UsageError(f"{source}: {key} is not a list of tables")
    return value


def _texts(said: Mapping[str, Any], key: str, source: str) -> tuple[str, ...]:
    value = said.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError(f"{source}: {key} is not a list of names")
    return tuple(value)


def _text(said: Mapping[str, Any], key: str) -> str:
    value = said.get(key, "")
    return value if isinstance(value, str) else ""


def _number(value: object, where: str) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise UsageError(f"{where} is {value!r}; it is a number")
    return float(value)  # type: ignore[arg-type]


def _whole(value: object, where: str) -> int:
    if type(value) is not int or value < 0:
        raise UsageError(f"{where} is {value!r}; it is a whole number from 0")
    return value
