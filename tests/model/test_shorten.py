"""Every message fits the wire, whatever workers have reported. Texts that are cut keep their most
important parts.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.model import limits
from outlast.model.gauges import GAUGES_MAX_COUNT
from outlast.model.messages import (
    Broke,
    Enrol,
    FromNode,
    Housed,
    Message,
    Pong,
    ProgressReport,
    ReportedMember,
    Warned,
)
from outlast.model.shorten import KEEP_BEGINNING, KEEP_END, Some, Text, end_of
from outlast.model.wire import decode, encode

# Fields that are no words for people. They are never cut: whoever fills them keeps them short.
NAMES = {
    *(
        "node",
        "store_host",
        "host",
        "nonce",
        "digest",
        "checkpoint",
        "file",
        "checksum",
        "software",
    ),
    *(
        "recovery_mode",
        "kind",
        "mechanism",
        "phase",
        "settle",
        "state",
        "then",
        "what",
        "replicated",
        "private",
        "script",
    ),
    "outcome",
    *("run", "release", "folder", "checkpoints", "seal", "source", "serves", "state", "cause"),
    *("votes", "leader", "part", "record", "twin_source", "keepers", "at", "domain"),
    *("log_node", "log", "name", "data"),
}
# numeric, with a port
ADDRESSES = {"source", "serves", "votes", "leader", "twin_source", "keepers", "at"}
# the own words of outlast, which are short
WORDS = {
    *("settle", "then", "replicated", "private"),
    *("kind", "phase", "mechanism", "recovery_mode"),
}
NAME_CHARACTERS = 255  # of a path or a host, at most
PROCESSES = 2 * limits.WORKERS_MAX_COUNT  # on one node: as many as may live, and as many that died
RANKS = 20_000
RANKS_SEEN = 2_000  # that have ever lived on one node

# --- the largest things that a message may carry ------------------------------------------------

numbers = st.sampled_from([0, 1, -1, 10**9, 2**31])
seconds = st.sampled_from([0.0, 123456789.12345678, 1e-9])
LETTERS = ["x", "\n", "\0", "é", "\u20ac", "\U0001f525", "\ud800", '"', "\\"]


def texts(*lengths: int) -> st.SearchStrategy[str]:
    ends = st.sampled_from(["", "ValueError: the end"])
    letters, counts = st.sampled_from(LETTERS), st.sampled_from(lengths)
    return st.builds(lambda letter, count, end: letter * count + end, letters, counts, ends)


one_text, one_of_many = texts(0, 10, 70_000, 1_100_000), texts(0, 10, 20_000)
names = st.sampled_from(["", "in_place", "n" * NAME_CHARACTERS])
words = st.sampled_from(["", "in_place", "w" * 20])
addresses = st.sampled_from(["", "[" + 39 * "f" + "]:65535"])
rows = st.sampled_from([(), (1, 2), (10**6,) * limits.WORKERS_MAX_COUNT])
some = st.sampled_from([(), (-1, 7), tuple(range(RANKS))])
MANY = {
    "housed": PROCESSES,
    "members": limits.WORKERS_MAX_COUNT,
    "images": RANKS_SEEN,
    "copies": RANKS_SEEN,
    "parity": limits.PARITY_ROWS_MAX_COUNT * limits.WORKERS_MAX_COUNT,
    "rows": limits.SLOTS_COUNT,
    "keepers": limits.PEER_COPIES_MAX_COUNT,
    "shares": limits.PARITY_ROWS_MAX_COUNT * limits.PARITY_PARTS_MAX_COUNT,
    "sources": limits.PARITY_PARTS_MAX_COUNT
    * (limits.PARITY_PARTS_MAX_COUNT - 1 + limits.PARITY_ROWS_MAX_COUNT),
    "said": 10,
    "causes": 12,
    "tiers": 6,
    "stalls": 6,
    "values": GAUGES_MAX_COUNT,
    "seconds": 12,
    "nodes": limits.VOTERS_COUNT,
    "addresses": limits.VOTERS_COUNT,
    "names": max(GAUGES_MAX_COUNT, limits.EVIDENCE_NODE_FILES_COUNT),
    "folders": limits.LOG_FOLDERS_COUNT,
}
FEW = {"prepared", "sealed", "steps", "transfer", "alike", "ended"}  # rows of two, or so


def largest(kind: Any, *, many: bool = False) -> st.SearchStrategy[Any]:
    """Draw messages of this kind with as much contents as possible, alone or with `many` others."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: _of(name, hint, many) for name, hint in hints.items()})


def _of(name: str, hint: Any, many: bool) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint == Text:
        return one_of_many if many else one_text
    if hint == Some:
        return some
    if hint is str:
        return addresses if name in ADDRESSES else words if name in WORDS else names
    if dataclasses.is_dataclass(hint):
        return largest(hint, many=many)
    if many and name in ("keepers", "shares", "sources"):
        return st.just(())  # an agent leaves them out where it tells many plans
    if many and name == "ranks":
        return st.sampled_from([(), (10**6,) * limits.PARITY_PARTS_MAX_COUNT])
    if origin is tuple and arguments[0] is int:
        few = (10**9,) * (limits.TWINS_COUNT + 1 if name == "alike" else 2)
        return st.sampled_from([(), few]) if name in FEW else rows
    if origin is tuple:
        return _many(name, _of("", arguments[0], True))
    if arguments:
        return st.one_of(*(_of(name, one, many) for one in arguments))
    return {int: numbers, float: seconds, bool: st.booleans(), type(None): st.none()}[hint]


def _many(name: str, one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Draw a few different values and repeat them, because hypothesis is slow for many values."""
    counts = st.sampled_from([0, 1, 16, MANY[name]])
    few = st.lists(one, min_size=1, max_size=3)
    return st.builds(lambda ones, count: tuple((ones * count)[:count]), few, counts)


@pytest.mark.parametrize("kind", typing.get_args(Message), ids=lambda kind: kind.__name__)
@settings(max_examples=5)
@given(data=st.data())
def test_the_largest_messages_fit_the_wire(kind: type, data: st.DataObject) -> None:
    """A message arrives as it was sent, except for texts that had to be cut."""
    message = data.draw(largest(kind))
    frame = encode(message)
    assert len(frame) - 4 <= limits.MESSAGE_MAX_BYTES
    came = decode(frame[4:])
    sent_parts, came_parts = list(parts(message)), list(parts(came))
    assert blank(came) == blank(message)
    longest = max(map(size, came_parts), default=0)
    for sent, left in zip(sent_parts, came_parts, strict=True):
        if sent != left:
            assert is_cut(sent, left)
            assert size(sent) > longest - len(',"..."'), "a shorter one was cut"


def size(part: Any) -> int:
    """Return the length of a message on the wire, in bytes."""
    return len(json.dumps(part, separators=(",", ":")))


def is_cut(sent: Any, left: Any) -> bool:
    if isinstance(sent, tuple):
        return bool(sent[: len(left)] == left)
    return left == "" or (left.startswith("...\n") and sent.endswith(left.removeprefix("...\n")))


def parts(message: Any) -> Iterator[Any]:
    """Return all texts that may be cut, in the order of fields."""
    hints = typing.get_type_hints(type(message), include_extras=True)
    for name, hint in hints.items():
        value = getattr(message, name)
        if hint in (Text, Some):
            yield value
            continue
        for one in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(one):
                yield from parts(one)


def blank(message: Any) -> Any:
    """Return the same message with empty texts."""
    hints = typing.get_type_hints(type(message), include_extras=True)
    out = {}
    for name, hint in hints.items():
        value = getattr(message, name)
        if hint in (Text, Some):
            out[name] = "" if hint == Text else ()
        elif isinstance(value, tuple):
            out[name] = tuple(blank(one) if dataclasses.is_dataclass(one) else one for one in value)
        else:
            out[name] = blank(value) if dataclasses.is_dataclass(value) else value
    return type(message)(**out)


# --- what is cut, and how -----------------------------------------------------------------------


def test_every_text_is_marked_as_words_or_known_as_a_name() -> None:
    """A new field with a text for people has to be marked `Text`. A new field with a name has to be
    listed in NAMES.
    """
    for kind in typing.get_args(Message):
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            mark = getattr(hint, "__metadata__", ())
            assert mark in ((), (KEEP_END,), (KEEP_BEGINNING,)), (kind, name)
            assert hint is not str or name in NAMES, f"{kind.__name__}.{name}"
    used = {one.name for kind in typing.get_args(Message) for one in dataclasses.fields(kind)}
    assert used >= NAMES


def enrols_with(*said: Broke) -> Enrol:
    """Return an enrolment with a worker for each report."""
    housed = tuple(Housed(one.worker, 0, "rank", 1, None, (one,), False, None) for one in said)
    return Enrol("a", 1, 16, 1, 0, 5, None, housed, (), (), "replicated", 1.0)


def raised(worker: int, traceback: str) -> Broke:
    return Broke(worker, 1, 5, "exception", "ValueError: no", traceback, 1.0)


def test_the_longest_tracebacks_are_cut_to_one_length_and_no_other() -> None:
    """Sixteen workers raised, and one of them has a short traceback. The other fifteen share the
    remaining room equally.
    """
    long = "".join(f"  line {number}\n" for number in range(10_000))
    enrol = enrols_with(raised(0, "short"), *(raised(worker, long) for worker in range(1, 17)))
    frame = encode(enrol)
    came = decode(frame[4:])
    assert isinstance(came, Enrol)
    first, *others = [said for one in came.housed for said in one.said if isinstance(said, Broke)]
    assert first == raised(0, "short")
    assert {one.error for one in others} == {"ValueError: no"}
    (left,) = {one.traceback for one in others}
    assert left.startswith("...\n")
    assert long.endswith(left.removeprefix("...\n"))
    assert len(frame) > limits.MESSAGE_MAX_BYTES - 100, "no more is cut than has to be"


def test_a_message_that_fits_is_not_touched() -> None:
    enrol = enrols_with(*(raised(worker, "x" * 60_000) for worker in range(16)))
    assert decode(encode(enrol)[4:]) == enrol


def test_what_lies_within_another_message_is_cut_too() -> None:
    warned = Warned(1, "x" * 2_000_000 + "the end")
    came = decode(encode(FromNode(1, 0, 1.0, warned))[4:])
    assert isinstance(came, FromNode)
    assert isinstance(came.message, Warned)
    assert came.message.text.endswith("the end")


def test_ranks_that_are_cut_off_are_named_as_far_as_there_is_room() -> None:
    """Each of 256 ranks reaches none of 20,000 others. Readers of the message need to know one of
    them.
    """
    cut_off = tuple(range(20_000))
    stood = ReportedMember(1, 0, "vote", 5, 1.0, 2.0, False, 3, "train.py:1", cut_off, cut_off)
    came = decode(encode(ProgressReport(0, (stood,) * 256, None, 0.0, False))[4:])
    assert isinstance(came, ProgressReport)
    (left,) = {one.cut_off for one in came.members}
    assert len(left) > 100
    assert left == cut_off[: len(left)]
    for one in came.members:
        assert one.cut_off_bytes == cut_off[: len(one.cut_off_bytes)] != ()
    pong = Pong(1, 1, 1, "", cut_off, cut_off)
    assert decode(encode(pong)[4:]) == pong


@given(st.text(max_size=60), st.integers(-5, 200))
def test_the_end_of_a_text_is_as_long_as_it_may_be(text: str, most_bytes: int) -> None:
    left = end_of(text, most_bytes)
    assert len(json.dumps(left)) <= max(most_bytes, 2)
    if left != text:
        assert len(json.dumps(text)) > most_bytes
        assert is_cut(text, left)
        kept = len(left.removeprefix("...\n")) if left else 0
        assert len(json.dumps("...\n" + text[len(text) - kept - 1 :])) > most_bytes
