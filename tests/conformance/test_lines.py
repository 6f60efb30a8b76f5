"""What a line between an agent and the coordinator does, simulated as with sockets: in order,
nothing made up, and a cut loses an end and no middle.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import CorruptError
from outlast.model.limits import MESSAGE_MAX_BYTES
from outlast.model.messages import (
    Beat,
    Enrol,
    FromNode,
    Grant,
    Message,
    StoreUp,
    ToNode,
    ToWorkers,
    Warned,
)
from outlast.model.messages import Leave as LeaveOrder
from outlast.model.wire import FrameReader, encode
from outlast.sim.simulated_run import simulate_seed
from outlast.sim.world.agent_link import SimulatedAgentLink
from outlast.sim.world.node import Node
from tests.conformance.lines import BROKEN, CONNECTED, RealWire, SimulatedWire, Wire

Make = Callable[[], Wire]
LARGE = 60_000  # characters: several reads of a socket


@pytest.fixture(params=[SimulatedWire, RealWire], ids=["simulated", "real"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def saying(number: int, *, large: bool) -> FromNode | Beat:
    return FromNode(number, 0, 0.0, Warned(number, "x" * LARGE)) if large else Beat(number, 0, 0.0)


def telling(number: int, *, large: bool) -> ToNode | Grant:
    return (
        ToNode(number, 0, 0.0, ToWorkers((number,), (), LeaveOrder(1, "y" * LARGE)))
        if large
        else Grant(number, 0, 0.0)
    )


def per_connection(happenings: list[Any], begins: Callable[[Any], bool]) -> list[list[Any]]:
    out: list[list[Any]] = []
    for one in happenings:
        if begins(one):
            out.append([])
        if one != BROKEN and one != CONNECTED and not isinstance(one, Enrol):
            out[-1].append(one)
    return out


ACTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["up", "down"]), st.booleans()),
        st.tuples(st.sampled_from(["little", "settle", "dial"]), st.none()),
        st.tuples(st.just("cut"), st.floats(0.0, 1.0)),
    ),
    max_size=30,
)


@pytest.mark.parametrize("make", [SimulatedWire, RealWire], ids=["simulated", "real"])
@settings(max_examples=40)
@given(acts=ACTS)
def test_what_arrives_on_a_connection_is_a_beginning_of_what_was_said(
    make: Make, acts: list[tuple[str, Any]]
) -> None:
    """Of one that still stands at the end, all of it.

    Method: any course of words both ways, cuts and new connections.
    """
    with closing(make()) as wire:
        wire.dial()
        wire.settle()
        ups: list[list[Message]] = [[]]
        downs: list[list[Message]] = [[]]
        stands = True
        for number, (what, value) in enumerate(acts):
            if what == "up":
                wire.up(saying(number, large=value))
                if stands:
                    ups[-1].append(saying(number, large=value))
            elif what == "down":
                wire.down(telling(number, large=value))
                if stands:
                    downs[-1].append(telling(number, large=value))
            elif what == "cut":
                wire.cut(value)
                stands = False
                # both ends have learnt of it: what is said from here on is of no connection
                wire.settle()
            elif what == "dial":
                wire.dial()
                wire.settle()
                if not stands:
                    ups.append([])
                    downs.append([])
                    stands = True
            else:
                {"little": wire.a_little, "settle": wire.settle}[what]()
        wire.settle()
        said = per_connection(wire.coordinator, lambda one: isinstance(one, Enrol))
        told = per_connection(wire.agent, lambda one: one == CONNECTED)
    for arrived, sent in ((said, ups), (told, downs)):
        assert len(arrived) == len(sent)
        for index, (came, gone) in enumerate(zip(arrived, sent, strict=True)):
            assert came == gone[: len(came)]
            if index == len(sent) - 1 and stands:
                assert came == gone


def test_both_ends_learn_of_a_cut_once(make: Make) -> None:
    with closing(make()) as wire:
        wire.dial()
        wire.settle()
        wire.cut(0.0)
        wire.settle()
        assert wire.agent == [CONNECTED, BROKEN]
        assert [type(one) for one in wire.coordinator[:1]] == [Enrol]
        assert wire.coordinator[1:] == [BROKEN]


def test_words_for_a_connection_that_is_broken_are_dropped_and_hurt_nobody(make: Make) -> None:
    with closing(make()) as wire:
        wire.up(saying(1, large=False))
        wire.down(telling(2, large=False))
        wire.dial()
        wire.settle()
        wire.cut(0.0)
        wire.settle()
        wire.up(saying(3, large=False))
        wire.down(telling(4, large=True))
        wire.dial()
        wire.up(saying(5, large=False))
        wire.settle()
        assert wire.agent == [CONNECTED, BROKEN, CONNECTED]
        assert [one for one in wire.coordinator if not isinstance(one, Enrol)] == [
            BROKEN,
            saying(5, large=False),
        ]


def test_one_that_is_connected_does_not_connect_again(make: Make) -> None:
    with closing(make()) as wire:
        for _ in range(3):
            wire.dial()
            wire.settle()
        assert wire.agent == [CONNECTED]
        assert len(wire.coordinator) == 1


def test_what_was_on_its_way_when_it_broke_never_comes_on_the_next(make: Make) -> None:
    with closing(make()) as wire:
        wire.dial()
        wire.settle()
        for number in range(10):
            wire.up(saying(number, large=True))
            wire.down(telling(number, large=True))
        wire.cut(0.3)
        wire.settle()
        before = len(wire.agent), len(wire.coordinator)
        wire.dial()
        wire.settle()
        assert wire.agent[before[0] :] == [CONNECTED]
        assert [type(one) for one in wire.coordinator[before[1] :]] == [Enrol]


# --- what is said in simulated lives, the wire can carry ------------------------------------------


def test_a_message_over_the_limit_is_refused_where_it_is_said() -> None:
    """The simulated cable does not look at sizes, which would cost every life: those that lives say
    are held against the wire below.
    """
    with pytest.raises(CorruptError, match="over the limit"):
        encode(StoreUp("x" * MESSAGE_MAX_BYTES, 1))  # a name, which is never cut


def test_all_that_simulated_lives_say_comes_through_the_wire_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: lives of every kind, in which each message is made into bytes and back; they keep
    their course.
    """
    carried = 0

    def through(message: Any) -> Any:
        nonlocal carried
        carried += 1
        (out,) = FrameReader().feed(encode(message))
        assert out == message
        return out

    seeds = range(6)
    before = [simulate_seed(seed=seed, given={}).trace_digest for seed in seeds]
    up, down, tell, deliver = (
        SimulatedAgentLink.up,
        SimulatedAgentLink.down,
        Node.tell,
        Node._deliver,
    )
    monkeypatch.setattr(SimulatedAgentLink, "up", lambda self, message: up(self, through(message)))
    monkeypatch.setattr(
        SimulatedAgentLink, "down", lambda self, message: down(self, through(message))
    )
    monkeypatch.setattr(
        Node, "tell", lambda self, process, message: tell(self, process, through(message))
    )
    monkeypatch.setattr(
        Node,
        "_deliver",
        lambda self, process, *orders: deliver(
            self, process, *(replace(order, message=through(order.message)) for order in orders)
        ),
    )
    assert [simulate_seed(seed=seed, given={}).trace_digest for seed in seeds] == before
    assert carried > 1_000
