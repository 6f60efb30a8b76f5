"""Read files that people write, strictly.

Unknown keys are errors, and say what was probably meant. Each error names its place.

This module is pure: data in, data out.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

from outlast.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

E = TypeVar("E", bound=Enum)


def toml(text: str, *, source: str, schema: int) -> dict[str, Any]:
    """Read a TOML file that begins with `schema = N`.

    Raises UsageError if it is not TOML, or if it has another schema.
    """
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source} is not TOML: {error}") from None
    check_schema(given, source=source, schema=schema)
    return given


def check_schema(given: Mapping[str, Any], *, source: str, schema: int) -> None:
    """Raise UsageError if the file is of another schema than this version reads."""
    if type(given.get("schema")) is not int or given["schema"] != schema:
        raise UsageError(
            f"{source}: schema is {given.get('schema')!r}; this version reads {schema}",
            hint=f"begin the file with `schema = {schema}`",
        )


def known(given: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    """Raise UsageError if there is a key that is not in `keys`."""
    for key in given:
        if key not in keys:
            raise UsageError(f"{where}: there is no key {key!r}", hint=meant(key, keys))


def meant(word: str, choices: Mapping[str, Any] | tuple[str, ...]) -> str:
    """Return a hint: the choice that the word is nearest to, or else all choices."""
    close = difflib.get_close_matches(word, list(choices), n=1)
    return f"did you mean {close[0]!r}?" if close else f"one of {', '.join(choices)}"


def one_of(value: object, choices: tuple[str, ...], where: str) -> str:
    """Return the value if it is one of these texts. Raises UsageError otherwise."""
    if not isinstance(value, str) or value not in choices:
        raise UsageError(
            f"{where} is {value!r}, which is not known", hint=meant(str(value), choices)
        )
    return value


def choice(kind: type[E], value: object, where: str) -> E:
    """Return the member of the enum `kind` with this value. Raises UsageError if there is none."""
    return kind(one_of(value, tuple(str(one.value) for one in kind), where))


def share(value: object, where: str) -> float:
    """Return a number from 0 to 1. Raises UsageError for anything else."""
    if type(value) not in (int, float) or not 0 <= value <= 1:  # type: ignore[operator]
        raise UsageError(f"{where} is {value!r}; it is a number from 0 to 1")
    return float(value)  # type: ignore[arg-type]


def seconds(value: object, where: str) -> float:
    """Return a finite number of seconds, 0 or more. Raises UsageError for anything else."""
    if type(value) not in (int, float) or not 0 <= value < float("inf"):  # type: ignore[operator]
        raise UsageError(f"{where} is {value!r}; it is a number of seconds, not below 0")
    return float(value)  # type: ignore[arg-type]


def whole(value: object, where: str, *, least: int = 1) -> int:
    """Return a whole number of at least `least`. Raises UsageError for anything else."""
    if type(value) is not int or value < least:
        raise UsageError(f"{where} is {value!r}; it is a whole number from {least}")
    return value
