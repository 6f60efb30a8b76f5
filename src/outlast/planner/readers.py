"""Read and write one value of a cluster file: quantities, durations that vary, words, waves.

Every reader takes a value of TOML, or the text of a flag. It also writes the value, in a form that
it reads as the same value.

This module is pure: data in, data out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, TypeAlias

from outlast.errors import UsageError
from outlast.model import quantities
from outlast.model.quantities import QuantityKind
from outlast.model.strict import known, one_of
from outlast.planner.scenario import Wave
from outlast.planner.spread import Shape, Spread, constant, exponential, lognormal, measured

Value: TypeAlias = float | int | str | bool | Spread | tuple[Wave, ...]


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Read and write one kind of value.

    `read(given, name)` raises UsageError, which names the input. `say(value)` returns TOML that is
    read as the same value.
    """

    what: str
    read: Callable[[object, str], Value]
    say: Callable[[Any], str]


def quantity(kind: QuantityKind, *, zero: bool = False, endless: bool = False) -> ValueReader:
    """Return a reader of a quantity. `zero`: 0 is allowed; `endless`: infinity is allowed."""
    if kind is QuantityKind.COUNT:
        return ValueReader(
            kind.value,
            lambda given, name: quantities.parse_count(given, name=name, zero=zero),
            lambda value: str(int(value)),
        )
    return ValueReader(
        kind.value,
        lambda given, name: quantities.parse(given, kind, name=name, zero=zero, endless=endless),
        lambda value: json.dumps(quantities.echo(value, kind)),
    )


def number(*, least: float, above: bool = False) -> ValueReader:
    """Return a reader of a number without a unit, such as a factor or a shape."""

    def read(given: object, name: str) -> float:
        try:
            value = float(Decimal(str(given))) if not isinstance(given, bool) else math.nan
        except InvalidOperation:
            value = math.nan
        if not least <= value < math.inf or (above and value <= least):
            raise UsageError(
                f"{name} is {given!r}; it is a number {'above' if above else 'from'} {least:g}"
            )
        return value

    return ValueReader("a number", read, lambda value: repr(value).removesuffix(".0"))


def word(choices: type[Enum]) -> ValueReader:
    """Return a reader of a word of an enumeration.

    The words are the values of its members, or their names in lower case if the values are numbers.
    The reader returns the word.
    """
    names = tuple(
        str(one.value) if isinstance(one.value, str) else one.name.lower() for one in choices
    )

    def read(given: object, name: str) -> str:
        return one_of(given, names, name)

    return ValueReader(f"one of {', '.join(names)}", read, json.dumps)


def _read_flag(given: object, name: str) -> bool:
    if given in ("true", "false"):
        return given == "true"
    if not isinstance(given, bool):
        raise UsageError(f"{name} is {given!r}; it is true or false")
    return given


def _read_text(given: object, name: str) -> str:
    if not isinstance(given, str) or not given or not all(letter.isprintable() for letter in given):
        raise UsageError(f"{name} is {given!r}; it is a text of one line")
    return given


FLAG = ValueReader("true or false", _read_flag, lambda value: "true" if value else "false")
TEXT = ValueReader("a text", _read_text, json.dumps)


# --- durations that vary --------------------------------------------------------------------------

SPREAD_KEYS = ("mean", "median", "p95", "measured")


def _read_spread(given: object, name: str) -> Spread:
    if isinstance(given, str) and "=" in given:
        # the form on a command line: median=5min,p95=20min
        given = dict(part.strip().split("=", 1) for part in given.split(",") if "=" in part)
    if not isinstance(given, dict):
        return constant(quantities.parse(given, QuantityKind.DURATION, name=name, zero=True))
    table: dict[str, object] = {str(key).strip(): value for key, value in given.items()}
    known(table, SPREAD_KEYS, name)
    if set(table) == {"measured"}:
        samples = table["measured"]
        if not isinstance(samples, list) or not samples:
            raise UsageError(
                f"{name}: measured is {samples!r}; it is a list of durations",
                hint='as in { measured = ["1.2s", "3s"] }',
            )
        return measured(
            [
                quantities.parse(one, QuantityKind.DURATION, name=f"{name}: measured", zero=True)
                for one in samples
            ]
        )
    parsed = {
        key: quantities.parse(
            value, QuantityKind.DURATION, name=f"{name}: {key}", zero=key == "mean"
        )
        for key, value in table.items()
    }
    if set(parsed) == {"mean"}:
        return exponential(parsed["mean"])
    if set(parsed) == {"median", "p95"}:
        return lognormal(parsed["median"], parsed["p95"])
    raise UsageError(
        f"{name} has {', '.join(table) or 'nothing'}",
        hint=(
            'write "30s", { mean = "30s" }, { median = "30s", p95 = "2min" }, or { measured ='
            " [...] }"
        ),
    )


def _say_spread(value: Spread) -> str:
    def said(seconds: float) -> str:
        return json.dumps(quantities.echo(seconds, QuantityKind.DURATION))

    if value.shape is Shape.LOGNORMAL:
        # p95 was given, and comes back except for the last digits
        p95_s = max(value.numbers[0], float(format(float(value.quantile(0.95)), ".12g")))
        return f"{{ median = {said(value.numbers[0])}, p95 = {said(p95_s)} }}"
    if value.shape is Shape.EXPONENTIAL:
        return f"{{ mean = {said(value.numbers[0])} }}"
    if value.shape is Shape.MEASURED:
        return f"{{ measured = [{', '.join(map(said, value.numbers))}] }}"
    return said(value.numbers[0])


SPREAD = ValueReader("a duration that may vary", _read_spread, _say_spread)


# --- waves, watts, intervals ----------------------------------------------------------------------


def _read_waves(given: object, name: str) -> tuple[Wave, ...]:
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise UsageError(
            f"{name} is {given!r}; it is a list of tables",
            hint='as in waves = [{ begins = "100d", ends = "200d", factor = 6 }]',
        )
    return tuple(_wave(one, f"{name} {at}") for at, one in enumerate(given, 1))


def _wave(given: Mapping[str, object], name: str) -> Wave:
    known(given, ("begins", "ends", "factor"), name)
    if "ends" not in given or "factor" not in given:
        raise UsageError(
            f"{name} needs an end and a factor",
            hint='as in { begins = "100d", ends = "200d", factor = 6 }',
        )
    begins_s = quantities.parse(
        given.get("begins", "0s"), QuantityKind.DURATION, name=f"{name}: begins", zero=True
    )
    ends_s = quantities.parse(
        given["ends"], QuantityKind.DURATION, name=f"{name}: ends", endless=True
    )
    if ends_s <= begins_s:
        raise UsageError(f"{name} ends before it begins")
    factor = number(least=0.0).read(given["factor"], f"{name}: factor")
    return Wave(begins_s, ends_s, float(factor))  # type: ignore[arg-type]


def _say_waves(waves: tuple[Wave, ...]) -> str:
    def said(seconds: float) -> str:
        return json.dumps(quantities.echo(seconds, QuantityKind.DURATION))

    tables = (
        f"{{ begins = {said(one.begins_s)}, ends = {said(one.ends_s)}, factor = {one.factor!r} }}"
        for one in waves
    )
    return f"[{', '.join(tables)}]"


WAVES = ValueReader("waves", _read_waves, _say_waves)

_WATTS = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(W|kW|MW)")
_WATT_SIZES = {"MW": 1e6, "kW": 1e3, "W": 1.0}


def _read_watts(given: object, name: str) -> float:
    found = _WATTS.fullmatch(given.strip()) if isinstance(given, str) else None
    value = float(found[1]) * _WATT_SIZES[found[2]] if found else 0.0
    if not 0 < value < math.inf:
        raise UsageError(f"{name} is {given!r}; expected a power, such as 700W", hint="W, kW or MW")
    return value


WATTS = ValueReader(
    "a power",
    _read_watts,
    lambda value: json.dumps(f"{value:.15g}W" if value < 1e15 else f"{value / 1e6:.15g}MW"),
)

AUTO = "auto"


def or_auto(reader: ValueReader) -> ValueReader:
    """Return a reader of what `reader` reads, or of `auto`, by which the plan chooses the value."""
    return ValueReader(
        f"{reader.what}, or auto",
        lambda given, name: AUTO if given == AUTO else reader.read(given, name),
        lambda value: json.dumps(AUTO) if value == AUTO else reader.say(value),
    )


_REDUNDANCY = re.compile(r"none|copies=([1-9])|parity=([1-9][0-9]?)\+([1-9])")


def _read_redundancy(given: object, name: str) -> str:
    if not isinstance(given, str) or not _REDUNDANCY.fullmatch(given):
        raise UsageError(
            f"{name} is {given!r}, which is not known",
            hint=(
                "none, copies=1 (on so many other nodes), or parity=8+2 (eight shares, two of"
                " parity)"
            ),
        )
    return given


REDUNDANCY = ValueReader("none, copies=N or parity=K+M", _read_redundancy, json.dumps)


def redundancy_numbers(text: str) -> tuple[int, int, int]:
    """Return (copies, k, m) of what `REDUNDANCY` has read.

    It is (1, 0, 0) for copies=1, and (0, 8, 2) for parity=8+2.
    """
    found = _REDUNDANCY.fullmatch(text)
    assert found is not None, text
    return int(found[1] or 0), int(found[2] or 0), int(found[3] or 0)
