"""model/messages/: a message arrives as it was sent. All other bytes raise a CorruptError and no
other exception.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import CorruptError
from outlast.model import messages
from outlast.model.limits import MESSAGE_MAX_BYTES
from outlast.model.messages import Committed, Message, Ping, StoreUp, ToWorkers
from outlast.model.wire import FrameReader, decode, encode

st.register_type_strategy(float, st.floats(allow_nan=False))
anything = st.one_of([st.from_type(kind) for kind in typing.get_args(Message)])
names = st.sampled_from([kind.__name__ for kind in typing.get_args(Message)])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | names,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=6) | st.just("type"), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(message=anything)
def test_every_message_comes_back_as_it_was_sent(message: Message) -> None:
    frame = encode(message)
    assert decode(frame[4:]) == message
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4


@given(sent=st.lists(anything, max_size=5), cuts=st.lists(st.integers(0, 4000), max_size=8))
def test_frames_survive_any_cutting(sent: list[Message], cuts: list[int]) -> None:
    stream = b"".join(encode(message) for message in sent)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = FrameReader()
    assert [
        message
        for start, end in itertools.pairwise(edges)
        for message in reader.feed(stream[start:end])
    ] == sent


@given(body=st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_bytes_that_are_no_message_raise_corrupt_error_only(body: bytes) -> None:
    with contextlib.suppress(CorruptError):
        decode(body)


@given(message=anything, data=st.data())
def test_a_message_with_one_field_changed_decodes_or_is_corrupt(
    message: Message, data: st.DataObject
) -> None:
    """Method: take a real message, and put any JSON value in place of one field, add a field, or
    leave one out.
    """
    value = json.loads(encode(message)[4:])
    place = data.draw(st.integers(0, len(value) - 1))
    change = data.draw(st.sampled_from(["replace", "add", "remove"]))
    if change != "add":
        del value[place]
    if change != "remove":
        value.insert(place, data.draw(json_values))
    try:
        again = decode(json.dumps(value).encode())
    except CorruptError:
        return
    assert change == "replace" or not place, "a name in front may make another message of it"
    assert type(again).__name__ in dir(messages)


@given(data=st.binary(max_size=100))
def test_a_stream_of_noise_raises_nothing(data: bytes) -> None:
    FrameReader().feed(data)


@pytest.mark.parametrize(
    "bad", [(MESSAGE_MAX_BYTES + 1).to_bytes(4, "big"), b"\0\0\0\2{]"], ids=["too long", "not JSON"]
)
def test_what_came_before_a_corrupt_frame_is_given_and_nothing_after_it(bad: bytes) -> None:
    reader = FrameReader()
    assert reader.feed(encode(Ping(1)) + encode(Ping(2)) + bad + encode(Ping(3))) == [
        Ping(1),
        Ping(2),
    ]
    assert reader.error
    assert reader.feed(encode(Ping(4))) == []


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'["ToWorkers",[1],[],' * 5_000 + b"1" + b"]" * 5_000,
        b'["ToWorkers",[1],[],' * 300 + b"1" + b"]" * 300,
        b'["Committed",1,1,1,1' + b"0" * 400 + b",true]",
        b'[["Ping"],1]',
        b'["Ping",true]',
        b'["Ping",1.0]',
        b'["Ping",null]',
        b'["Ping",1,1]',
        b'["Ping"]',
        b'["ToWorkers",[1],[],["Hello",1,1]]',
        b'["ToWorkers",[true],[],["Ping",1]]',
        b'["ToWorkers",[1],[],{"0":"Ping"}]',
        b'{"type":"Ping","nonce":1}',
        b'"Ping"',
        b"[]",
        b"\xff\xfe",
        b"",
    ],
    ids=lambda body: body[:24].decode(errors="replace"),
)
def test_hostile_bodies_are_corrupt(body: bytes) -> None:
    with pytest.raises(CorruptError):
        decode(body)


def test_whole_numbers_are_good_seconds() -> None:
    assert decode(b'["Committed",1,1,1,3,true]') == Committed(1, 1, 1, 3.0)


def test_a_message_over_the_limit_is_refused_on_both_sides() -> None:
    with pytest.raises(CorruptError, match="over the limit"):
        encode(StoreUp("x" * MESSAGE_MAX_BYTES, 1))
    reader = FrameReader()
    assert reader.feed((MESSAGE_MAX_BYTES + 1).to_bytes(4, "big")) == []
    assert "over the limit" in reader.error


def test_equal_inner_messages_are_one_object() -> None:
    """Method: also try values that are equal in Python and have another type, and an equal message
    that comes after a different one.
    """
    first, again, other, third = (
        decode(encode(ToWorkers((worker,), (), Ping(nonce)))[4:])
        for worker, nonce in ((1, 1), (2, 1), (2, 2), (3, 1))
    )
    assert isinstance(first, ToWorkers)
    assert isinstance(again, ToWorkers)
    assert again.message is first.message
    assert other == ToWorkers((2,), (), Ping(2))
    assert third == ToWorkers((3,), (), Ping(1))
    with pytest.raises(CorruptError):
        decode(b'["ToWorkers",[1],[],["Ping",true]]')


def test_a_message_inside_a_message_keeps_its_type() -> None:
    assert decode(encode(ToWorkers((4,), (), Ping(9)))[4:]) == ToWorkers((4,), (), Ping(9))
