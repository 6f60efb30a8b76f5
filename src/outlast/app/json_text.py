"""The JSON that commands print for programs. It is strict JSON, so that any reader can parse it.

JSON has no word for a number that is not finite: such a number is printed as null.
"""

from __future__ import annotations

import json
import math
import typing


def json_text(facts: typing.Mapping[str, typing.Any]) -> str:
    """Return the facts as one JSON object, indented."""
    return json.dumps(without_infinities(facts), indent=2, allow_nan=False)


def without_infinities(value: typing.Any) -> typing.Any:
    """Return the same value with None in place of NaN and of the infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_infinities(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_infinities(one) for one in value]
    return value
