"""model/quantities.py: a value with its unit is read exactly, mixed-up units are refused, and a
printed value is read again as the same number.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.quantities import QuantityKind, echo, parse, parse_count, parse_range

READ = [
    ("16384", QuantityKind.COUNT, 16_384),
    ("16_384", QuantityKind.COUNT, 16_384),
    ("16k", QuantityKind.COUNT, 16_000),
    ("16Ki", QuantityKind.COUNT, 16_384),
    ("1e5", QuantityKind.COUNT, 100_000),
    ("1.5k", QuantityKind.COUNT, 1500),
    (16_384, QuantityKind.COUNT, 16_384),
    ("405B", QuantityKind.PARAMETERS, 405e9),
    ("405e9", QuantityKind.PARAMETERS, 405e9),
    ("1.8T", QuantityKind.PARAMETERS, 1.8e12),
    (405e9, QuantityKind.PARAMETERS, 405e9),
    ("5TB", QuantityKind.BYTES, 5e12),
    ("5 TB", QuantityKind.BYTES, 5e12),
    ("5TiB", QuantityKind.BYTES, 5 * 2**40),
    ("512 bytes", QuantityKind.BYTES, 512),
    ("2TB/s", QuantityKind.BANDWIDTH, 2e12),
    ("2TiB/s", QuantityKind.BANDWIDTH, 2**41),
    ("400Gb/s", QuantityKind.BANDWIDTH, 50e9),
    ("400Gbit/s", QuantityKind.BANDWIDTH, 50e9),
    ("400Gbps", QuantityKind.BANDWIDTH, 50e9),
    ("3h", QuantityKind.DURATION, 10_800),
    ("54d", QuantityKind.DURATION, 54 * 86_400),
    ("30 min", QuantityKind.DURATION, 1800),
    ("2.5s", QuantityKind.DURATION, 2.5),
    ("500ms", QuantityKind.DURATION, 0.5),
    ("1h30m", QuantityKind.DURATION, 5400),
    ("1d 2h 3min 4.5s", QuantityKind.DURATION, 93_784.5),
    ("2 days", QuantityKind.DURATION, 172_800),
    ("2.5/h", QuantityKind.PRICE, 2.5),
    ("2.5M", QuantityKind.MONEY, 2.5e6),
    ("5%", QuantityKind.SHARE, 0.05),
    ("0.05", QuantityKind.SHARE, 0.05),
    ("100%", QuantityKind.SHARE, 1.0),
]


@pytest.mark.parametrize(("text", "kind", "value"), READ)
def test_a_number_with_its_unit_is_read_exactly(
    text: object, kind: QuantityKind, value: float
) -> None:
    assert parse(text, kind, name="input") == value


MIXED_UP = [
    ("405B", QuantityKind.BYTES, "a number of parameters", "405GB"),
    ("5T", QuantityKind.BYTES, "a count", "5TB"),
    ("2TB/s", QuantityKind.BYTES, "a bandwidth", "2TB"),
    ("5Tb", QuantityKind.BYTES, "bits", "5TB"),
    ("5tb", QuantityKind.BYTES, "unknown unit", "5TB"),
    ("5KB", QuantityKind.BYTES, "unknown unit", "5kB"),
    ("5", QuantityKind.BYTES, "no unit", "5bytes"),
    (5e12, QuantityKind.BYTES, "no unit", "5000000000000.0bytes"),
    ("405GB", QuantityKind.PARAMETERS, "a number of bytes", "405B"),
    ("405b", QuantityKind.PARAMETERS, "unknown unit", "405B"),
    ("2TB", QuantityKind.BANDWIDTH, "a number of bytes", "2TB/s"),
    ("2TBps", QuantityKind.BANDWIDTH, "unknown unit", "2TB/s"),
    ("2TB/h", QuantityKind.BANDWIDTH, "unknown unit", "2TB/s"),
    ("2", QuantityKind.BANDWIDTH, "no unit", "2GB/s"),
    ("3", QuantityKind.DURATION, "no unit", "3s, 3min or 3h"),
    ("30m", QuantityKind.DURATION, "unknown unit", "30min"),
    ("3H", QuantityKind.DURATION, "unknown unit", "3h"),
    ("16B", QuantityKind.COUNT, "a number of parameters", "16G"),
    ("16K", QuantityKind.COUNT, "unknown unit", "16k"),
    ("2TB", QuantityKind.COUNT, "a number of bytes", "2T"),
    ("2.5", QuantityKind.PRICE, "no unit", "2.5/h"),
    ("5", QuantityKind.SHARE, "more than the whole", "5%"),
]


@pytest.mark.parametrize(("text", "kind", "complaint", "meant"), MIXED_UP)
def test_mixed_up_units_are_refused_with_what_was_probably_meant(
    text: object, kind: QuantityKind, complaint: str, meant: str
) -> None:
    """Each value that the hint proposes can itself be read."""
    with pytest.raises(UsageError) as caught:
        parse(text, kind, name="--input")
    message = caught.value.args[0]
    assert all(part in message for part in ("--input", repr(str(text)), complaint, kind.value)), (
        message
    )
    assert caught.value.hint == f"did you mean {meant}?"
    for one in meant.replace(" or ", ", ").split(", "):
        parse(one, kind, name="what was meant")


NEVER_READ = (
    "nan",
    "inf",
    "-inf",
    math.nan,
    math.inf,
    "",
    " ",
    "x",
    "1e",
    "0x10",
    "\u0661",
    "--5",
    "1e9999",
    None,
    True,
    [1],
    "9" * 200,
)
REFUSED: list[tuple[Any, QuantityKind]] = [
    *((text, kind) for kind in QuantityKind for text in NEVER_READ),
    *((text, QuantityKind.COUNT) for text in ("1.5", "-3", "16,384", "1__0")),
    *((text, QuantityKind.BYTES) for text in ("5 T B", "3h", "1e300TB")),
    *(
        (text, QuantityKind.DURATION)
        for text in (
            "1,5h",
            "1h90m",
            "30m1h",
            "1.5h30min",
            "1h1h",
            "1h30",
            "6y",
            "-5s",
            "never",
            "1e-400s",
            "5TB",
        )
    ),
    *((text, QuantityKind.SHARE) for text in ("101%", "-1%")),
    ("$2.5/h", QuantityKind.PRICE),
]


@pytest.mark.parametrize(
    ("given", "kind"),
    REFUSED,
    ids=lambda one: one.name if isinstance(one, QuantityKind) else repr(one)[:12],
)
def test_what_is_not_a_quantity_of_the_kind_is_refused_by_name(
    given: Any, kind: QuantityKind
) -> None:
    with pytest.raises(UsageError, match="--input") as caught:
        parse(given, kind, name="--input")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0", QuantityKind.COUNT),
        ("0TB", QuantityKind.BYTES),
        ("0s", QuantityKind.DURATION),
        ("0%", QuantityKind.SHARE),
        ("0/h", QuantityKind.PRICE),
    ],
)
def test_zero_is_read_only_where_the_caller_allows_it(text: str, kind: QuantityKind) -> None:
    assert parse(text, kind, name="input", zero=True) == 0
    with pytest.raises(UsageError, match="not above 0"):
        parse(text, kind, name="input")


def test_never_is_read_only_where_the_caller_allows_it() -> None:
    assert parse("never", QuantityKind.DURATION, name="interval", endless=True) == math.inf
    assert echo(math.inf, QuantityKind.DURATION) == "never"


def test_a_count_is_a_whole_number_at_any_size() -> None:
    assert parse_count("123456789012345678", name="gpus") == 123_456_789_012_345_678
    assert isinstance(parse_count("1e3", name="gpus"), int)
    with pytest.raises(UsageError, match="too large"):
        parse_count("1e19", name="gpus")


def test_a_range_has_two_ends_the_lower_first() -> None:
    assert parse_range("1e3:1e8", name="--scale") == (1e3, 1e8)
    assert parse_range("1h:2d", QuantityKind.DURATION, name="--interval") == (3600, 172_800)
    for bad in ("1e3", "1:2:3", "1e8:1e3", "5:5", ":5", "5:", "1:1e400", "nan:5", None):
        with pytest.raises(UsageError, match="--scale"):
            parse_range(bad, name="--scale")
    with pytest.raises(UsageError) as caught:
        parse_range("1e8:1e3", name="--scale")
    assert caught.value.hint == "did you mean 1e3:1e8?"


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (5 * 2**40, QuantityKind.BYTES, "5TiB"),
        (5e12, QuantityKind.BYTES, "5TB"),
        (4.86e12, QuantityKind.BYTES, "4.86TB"),
        (512.0, QuantityKind.BYTES, "512 bytes"),
        (2e12, QuantityKind.BANDWIDTH, "2TB/s"),
        (405e9, QuantityKind.PARAMETERS, "405B"),
        (16_384, QuantityKind.COUNT, "16384"),
        (100_000, QuantityKind.COUNT, "100k"),
        (5400.0, QuantityKind.DURATION, "1h30min"),
        (0.5, QuantityKind.DURATION, "500ms"),
        (2.5, QuantityKind.DURATION, "2.5s"),
        (54 * 86_400.0, QuantityKind.DURATION, "54d"),
        (0.0, QuantityKind.DURATION, "0s"),
        (2.5, QuantityKind.PRICE, "2.5/h"),
        (0.05, QuantityKind.SHARE, "5%"),
        (2.5e6, QuantityKind.MONEY, "2.5M"),
    ],
)
def test_an_echo_is_short_and_in_the_usual_unit(
    value: float, kind: QuantityKind, text: str
) -> None:
    assert echo(value, kind) == text


NOT_SHARES = [kind for kind in QuantityKind if kind not in (QuantityKind.SHARE, QuantityKind.COUNT)]


@given(value=st.floats(min_value=0, allow_infinity=False), kind=st.sampled_from(NOT_SHARES))
@example(value=3600.0000000000005, kind=QuantityKind.DURATION)
@example(value=5e-324, kind=QuantityKind.BYTES)
@example(value=math.nextafter(math.inf, 0), kind=QuantityKind.BANDWIDTH)
@example(value=999_999_999_999_999.9, kind=QuantityKind.DURATION)
def test_an_echo_is_read_back_as_the_same_float(value: float, kind: QuantityKind) -> None:
    assert parse(echo(value, kind), kind, name="echo", zero=True) == value


@given(value=st.floats(0, 1))
def test_the_echo_of_a_share_is_read_back_as_the_same_float(value: float) -> None:
    assert (
        parse(echo(value, QuantityKind.SHARE), QuantityKind.SHARE, name="echo", zero=True) == value
    )


@given(value=st.integers(0, 10**18))
def test_the_echo_of_a_count_is_read_back_as_the_same_int(value: int) -> None:
    assert parse_count(echo(value, QuantityKind.COUNT), name="echo", zero=True) == value


@given(
    text=st.text("0123456789.eE+-_, kMGTBib/shmind%", max_size=90)
    | st.from_regex(r"[0-9.]{1,5}[eE]?[0-9]{0,4} ?[a-zA-Zµ/%]{0,6}", fullmatch=True),
    kind=st.sampled_from(QuantityKind),
)
def test_any_text_is_a_finite_number_in_its_bounds_or_a_usage_error(
    text: str, kind: QuantityKind
) -> None:
    """A number that is read can be printed and read again."""
    try:
        value = parse(text, kind, name="input", zero=True)
    except UsageError:
        return
    assert 0 <= value < math.inf
    assert kind is not QuantityKind.SHARE or value <= 1
    assert parse(echo(value, kind), kind, name="echo", zero=True) == value
