"""Read quantities with their units, and write them so that they are read back as the same number.

These forms are read:
  count        16384, 16_384, 1e5, 16k (16,000, not 16,384), 16Ki (16,384). k M G T are powers of
               1000, and Ki Mi Gi Ti powers of 1024. Only whole numbers are counts
  parameters   405B, 405e9, 70M, 1.8T: like counts, and B is 1e9 (so is G)
  bytes        5TB (5e12), 5TiB (5 x 2^40), 512 bytes. `512B` is refused, because 405B means
               parameters
  bandwidth    2TB/s, 2TiB/s, 400Gb/s (bits; also Gbit/s, Gbps); the result is bytes per second
  duration     3h, 54d, 30 min, 2.5s, 500ms, 1h30m, 2 days; the result is seconds. `m` means minutes
               after hours, and is refused alone
  money        2500000, 2.5M, in any currency
  price        2.5/h: money per hour (of one GPU)
  share        5%, 0.05: from 0 to 1. A bare 5 is refused
  range        LOW:HIGH of any of these, such as 1e3:1e8

A missing unit is an error, and so is a unit of another kind. Each error names the input, what is
expected, and what was probably meant. NaN and infinity are never read. Zero, and the word `never`
for a duration, are read only if the caller allows them. The arithmetic is exact until the last
step, so the result is the float that is nearest to the text.

Not promised: commas as separators (16,384 means sixteen thousand in some countries, and sixteen in
others), months and years, currencies.

This module is pure: text in, numbers out.
"""

from __future__ import annotations

import difflib
import math
import re
from decimal import Decimal
from enum import Enum
from fractions import Fraction

from outlast.errors import UsageError
from outlast.model.texts import cut_at_word

NEVER = "never"
TEXT_MAX_COUNT = 80  # characters of a quantity, so that the exact arithmetic below stays small
COUNT_MAX = 10**18

_SI = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SI_BYTES = {**_SI, "P": 10**15, "E": 10**18}
_BINARY_BYTES = {**_BINARY, "Pi": 2**50, "Ei": 2**60}
_BYTES = {f"{prefix}B": size for prefix, size in {**_SI_BYTES, **_BINARY_BYTES}.items()}
_BITS = {
    f"{prefix}{bit}": Fraction(size, 8)
    for prefix, size in _SI_BYTES.items()
    for bit in ("b/s", "bit/s", "bps")
}
_DURATION_WORDS = {
    Fraction(1, 10**9): ("ns",),
    Fraction(1, 10**6): ("us", "µs"),
    Fraction(1, 1000): ("ms",),
    Fraction(1): ("s", "sec", "second", "seconds"),
    Fraction(60): ("min", "mins", "minute", "minutes"),
    Fraction(3600): ("h", "hr", "hour", "hours"),
    Fraction(86_400): ("d", "day", "days"),
    Fraction(604_800): ("w", "week", "weeks"),
}


class QuantityKind(Enum):
    """The kind of quantity. Errors use the value."""

    COUNT = "a count"
    PARAMETERS = "a number of parameters"
    BYTES = "a number of bytes"
    BANDWIDTH = "a bandwidth"
    DURATION = "a duration"
    MONEY = "an amount of money"
    PRICE = "a price per hour"
    SHARE = "a share"


UNITS: dict[QuantityKind, dict[str, Fraction]] = {
    QuantityKind.COUNT: {unit: Fraction(size) for unit, size in {"": 1, **_SI, **_BINARY}.items()},
    QuantityKind.PARAMETERS: {
        unit: Fraction(size) for unit, size in {"": 1, **_SI, "B": 10**9}.items()
    },
    QuantityKind.BYTES: {
        unit: Fraction(size) for unit, size in {"bytes": 1, "byte": 1, **_BYTES}.items()
    },
    QuantityKind.BANDWIDTH: {
        **{f"{unit}/s": Fraction(size) for unit, size in {"bytes": 1, **_BYTES}.items()},
        **_BITS,
    },
    QuantityKind.DURATION: {
        word: size for size, words in _DURATION_WORDS.items() for word in words
    },
    QuantityKind.MONEY: {unit: Fraction(size) for unit, size in {"": 1, **_SI}.items()},
    QuantityKind.PRICE: {"/h": Fraction(1), "/hour": Fraction(1)},
    QuantityKind.SHARE: {"": Fraction(1), "%": Fraction(1, 100)},
}
EXAMPLES = {
    QuantityKind.COUNT: "16384 or 16k (16,000)",
    QuantityKind.PARAMETERS: "405B or 405e9",
    QuantityKind.BYTES: "5TB or 5TiB",
    QuantityKind.BANDWIDTH: "2TB/s, 2TiB/s or 400Gb/s (bits)",
    QuantityKind.DURATION: "3h, 54d, 30min, 2.5s, 500ms or 1h30m",
    QuantityKind.MONEY: "2500000 or 2.5M",
    QuantityKind.PRICE: "2.5/h",
    QuantityKind.SHARE: "5% or 0.05",
}

_NUMBER = r"[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?"
_ONE = re.compile(rf"([+-]?)({_NUMBER}) ?([A-Za-zµ/%][A-Za-z/%]*)?")
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+) ?")


def parse(
    given: object, kind: QuantityKind, *, name: str, zero: bool = False, endless: bool = False
) -> float:
    """Read a quantity, and return it in the base unit.

    Base units are pieces, parameters, bytes, bytes per second, seconds, money, money per hour, and
    a share (0 to 1).

    given    text, or a bare number as a configuration file may have it
    name     the name of the input, for the error
    zero     whether 0 is allowed
    endless  whether a duration may be `never`, which is inf

    Raises UsageError.
    """
    if endless and given == NEVER:
        return math.inf
    exact = _exact(given, kind, name=name, zero=zero)
    try:
        value = float(exact)
    except OverflowError:
        raise _refusal(name, given, "is too large", kind) from None
    if value == 0 and exact != 0:
        raise _refusal(name, given, "is too small", kind)
    return value


def parse_count(given: object, *, name: str, zero: bool = False) -> int:
    """Read a COUNT exactly, up to 1e18. Raises UsageError."""
    value = _exact(given, QuantityKind.COUNT, name=name, zero=zero)
    if value > COUNT_MAX:
        raise _refusal(name, given, "is too large", QuantityKind.COUNT)
    return int(value)


def parse_range(
    given: object, kind: QuantityKind = QuantityKind.COUNT, *, name: str
) -> tuple[float, float]:
    """Read LOW:HIGH, both as `parse` reads them. Raises UsageError if LOW is not below HIGH."""
    low_text, colon, high_text = given.partition(":") if isinstance(given, str) else ("", "", "")
    if not colon or ":" in high_text:
        raise UsageError(
            f"{name} is {given!r}; expected a range LOW:HIGH, such as 1e3:1e8",
            hint="write both ends with a colon between them",
        )
    low, high = (
        parse(low_text, kind, name=f"the low end of {name}"),
        parse(high_text, kind, name=f"the high end of {name}"),
    )
    if low >= high:
        raise UsageError(
            f"{name} is {given!r}; its low end is not less than its high end",
            hint=f"did you mean {high_text.strip()}:{low_text.strip()}?",
        )
    return low, high


def need(
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    endless: bool = False,
    **named: float,
) -> None:
    """Raise UsageError for the first of these numbers that is not allowed.

    It may be NaN, outside its bounds, or infinite although `endless` is False.
    """
    for name, value in named.items():
        if (
            math.isnan(value)
            or not (least <= value <= most and (value > above or above == -math.inf))
            or (math.isinf(value) and not endless)
        ):
            bounds = (
                [f"above {above:g}"] * (above > -math.inf)
                + [f"at least {least:g}"] * (least > -math.inf)
                + [f"at most {most:g}"] * (most < math.inf)
            )
            raise UsageError(
                f"{name} is {value!r}; expected a number that is"
                f" {' and '.join([*bounds, *(['finite'] if not endless else [])])}",
                hint=f"change {name}",
            )


def _exact(given: object, kind: QuantityKind, *, name: str, zero: bool) -> Fraction:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise _refusal(name, given, "is neither text nor a number", kind)
    if isinstance(given, float) and not math.isfinite(given):
        raise _refusal(name, given, "is not a finite number", kind)
    text = given.strip() if isinstance(given, str) else repr(given)
    value = _read(text, kind)
    if value is None:
        raise _refusal(name, given, _complaint(text), kind, meant=_meant(text, kind))
    if value < 0 or (value == 0 and not zero):
        raise _refusal(name, given, "is not above 0" if not zero else "is below 0", kind)
    if kind is QuantityKind.SHARE and value > 1:
        raise _refusal(
            name,
            given,
            "is more than the whole",
            kind,
            meant=f"{text}%" if "%" not in text and value <= 100 else "",
        )
    if kind is QuantityKind.COUNT and value.denominator != 1:
        raise _refusal(name, given, "is not a whole number", kind)
    return value


def _read(text: str, kind: QuantityKind) -> Fraction | None:
    """Return the value if the text is a number and a unit of this kind.

    This does not check whether the kind allows the value.
    """
    if len(text) > TEXT_MAX_COUNT:
        return None
    one = _ONE.fullmatch(text)
    if one is None:
        return _read_parts(text) if kind is QuantityKind.DURATION else None
    sign, number, unit = one.groups()
    size = UNITS[kind].get(unit or "")
    return None if size is None else Fraction(sign + number) * size


def _read_parts(text: str) -> Fraction | None:
    """Read `1h30m` or `2d 4h`.

    Parts go from large to small. All but the last are whole, and each is less than one of the unit
    before it.
    """
    if re.fullmatch(f"(?:{_PART.pattern})+", text) is None:
        return None
    total, larger = Fraction(0), None
    parts = _PART.findall(text)
    for at, (number, unit) in enumerate(parts):
        minutes = unit == "m" and larger == 3600
        size = Fraction(60) if minutes else UNITS[QuantityKind.DURATION].get(unit)
        value = Fraction(number) * (size or 0)
        if (
            size is None
            or (larger is not None and value >= larger)
            or ("." in number and at < len(parts) - 1)
        ):
            return None
        total, larger = total + value, size
    return total


# --- errors ---------------------------------------------------------------------------------------


def _refusal(
    name: str, given: object, complaint: str, kind: QuantityKind, *, meant: str = ""
) -> UsageError:
    hint = f"did you mean {meant}?" if meant else f"write it as {EXAMPLES[kind]}"
    said = f"{name} is {cut_at_word(str(given), TEXT_MAX_COUNT)!r}, which {complaint}"
    return UsageError(f"{said}; expected {kind.value}, such as {EXAMPLES[kind]}", hint=hint)


def _complaint(text: str) -> str:
    if re.fullmatch(r"[+-]?(nan|inf|infinity)", text, re.IGNORECASE):
        return "is not a finite number"
    one = _ONE.fullmatch(text)
    if one is not None and one[3] and f"{one[3]}/s" in _BITS:
        return "is a number of bits"
    for kind in QuantityKind:
        if _read(text, kind) is not None:
            return "has no unit" if one is not None and one[3] is None else f"is {kind.value}"
    if "," in text:
        return "has a comma (write 16384 or 16_384, and 2.5)"
    return f"has the unknown unit {one[3]!r}" if one else "is not a number with a unit"


def _meant(text: str, kind: QuantityKind) -> str:
    """Return the input with the unit that was probably meant, or "". `parse` reads the result."""
    one = _ONE.fullmatch(text)
    if one is None:
        return ""
    number, unit = one[1] + one[2], one[3] or ""
    known = list(UNITS[kind])
    tries = [
        _other_kind(unit, kind),
        *(word for word in known if word.lower() == unit.lower()),
        *difflib.get_close_matches(unit, known, n=1),
    ]
    if kind is QuantityKind.DURATION and not unit:
        return f"{number}s, {number}min or {number}h"
    return next((f"{number}{word}" for word in tries if word in UNITS[kind] and word != unit), "")


def _other_kind(unit: str, kind: QuantityKind) -> str:
    """Return the unit of `kind` that corresponds to a unit of another kind.

    For example, 405B as bytes is 405GB, and 2TB as a bandwidth is 2TB/s.
    """
    if kind is QuantityKind.BYTES:
        return {"": "bytes", "B": "GB"}.get(
            unit, unit.removesuffix("/s") if "/" in unit else f"{unit.removesuffix('b')}B"
        )
    if kind is QuantityKind.BANDWIDTH:
        unit = f"{unit.removesuffix('Bps')}B" if unit.endswith("Bps") else unit
        return {"": "GB/s", "B": "GB/s"}.get(
            unit, f"{unit}/s" if unit.endswith(("B", "b")) else f"{unit}B/s"
        )
    if kind is QuantityKind.PARAMETERS:
        return {"b": "B", "GB": "B", "GiB": "B"}.get(
            unit, unit.removesuffix("/s").removesuffix("B").removesuffix("i")
        )
    if kind is QuantityKind.DURATION:
        return {"m": "min", "M": "min"}.get(unit, "")
    return {
        QuantityKind.COUNT: "G" if unit == "B" else unit[:1],
        QuantityKind.PRICE: "/h",
        QuantityKind.SHARE: "%",
    }.get(kind, "")


# --- writing --------------------------------------------------------------------------------------


def echo(value: float, kind: QuantityKind) -> str:
    """Return the value in the usual unit that makes it shortest. `parse` reads the same float.

    A COUNT is read back as the same int.
    """
    if value == math.inf and kind is QuantityKind.DURATION:
        return NEVER
    if kind is QuantityKind.DURATION:
        return _echo_duration(value)
    number = Decimal(repr(value))
    if kind is QuantityKind.SHARE:
        return f"{_plain(number * 100)}%"
    if kind is QuantityKind.PRICE:
        return f"{_plain(number)}/h"
    if kind in (QuantityKind.BYTES, QuantityKind.BANDWIDTH):
        return _echo_bytes(value, number) + ("/s" if kind is QuantityKind.BANDWIDTH else "")
    suffixes = (
        [*_SI.items()]
        if kind is not QuantityKind.PARAMETERS
        else [("k", 10**3), ("M", 10**6), ("B", 10**9), ("T", 10**12)]
    )
    return min(
        [
            _plain(number),
            *(_plain(number / size) + unit for unit, size in suffixes if number >= size),
        ],
        key=len,
    )


def finite_or_none(value: float) -> float | None:
    """Return the value, or None if it is infinite or NaN: JSON has neither."""
    return value if math.isfinite(value) else None


def _plain(number: Decimal) -> str:
    """Write a number exactly, without an exponent where that is readable."""
    short = number.normalize()
    if short == 0:
        return "0"
    return f"{short:f}" if -6 <= short.adjusted() < 18 else f"{short:e}".replace("E", "e")


def _echo_bytes(value: float, number: Decimal) -> str:
    prefix, size = _largest(_SI_BYTES, value)
    if not prefix:
        return f"{_plain(number)} bytes"
    forms = [f"{_plain(number / size)}{prefix}B"]
    prefix, size = _largest(_BINARY_BYTES, value)
    if prefix:
        forms.append(f"{_plain(Decimal(repr(value / size)))}{prefix}B")  # exact: a power of two
    return min(forms, key=len)


def _largest(prefixes: dict[str, int], value: float) -> tuple[str, int]:
    """Return the largest prefix that is not larger than the value, or ("", 1)."""
    return max(
        ((prefix, size) for prefix, size in prefixes.items() if value >= size),
        key=lambda one: one[1],
        default=("", 1),
    )


def _echo_duration(value_s: float) -> str:
    number = Decimal(repr(value_s))
    if 0 < number < 1:
        scale, unit = next(
            ((scale, unit) for scale, unit in ((3, "ms"), (6, "us")) if number.scaleb(scale) >= 1),
            (9, "ns"),
        )
        return f"{_plain(number.scaleb(scale))}{unit}"
    if number == 0 or number >= 10**15:
        return f"{_plain(number)}s"
    whole, rest = int(number), number - int(number)
    days, hours, minutes, seconds = (
        whole // 86_400,
        whole // 3600 % 24,
        whole // 60 % 60,
        whole % 60,
    )
    parts = [
        f"{count}{unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if count
    ]
    last = (seconds + rest).normalize()
    return "".join([*parts, *([f"{last:f}s"] if last else [])])
