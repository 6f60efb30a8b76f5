"""Framed messages over a socket: streams cut anywhere, slow peers, corrupt peers, and ends of
connections.
"""

from __future__ import annotations

import socket
import threading

from hypothesis import given
from hypothesis import strategies as st

from outlast.model.limits import CHANNEL_BUFFER_MAX_BYTES, MESSAGE_MAX_BYTES
from outlast.model.messages import Hello, Message, Ping, Warned
from outlast.model.wire import encode
from outlast.runtime.loop import Loop
from outlast.runtime.network.channel import BlockingChannel, Channel


class End:
    """A channel on one end of a socket pair. The test holds the other end."""

    def __init__(self) -> None:
        self.loop = Loop()
        ours, self.peer = socket.socketpair()
        self.came: list[Message] = []
        self.closed: list[str] = []
        self.channel = Channel(
            self.loop, ours, on_message=self.came.append, on_close=self.closed.append
        )

    def done(self) -> None:
        self.channel.close()
        self.peer.close()
        self.loop.close()


@given(
    st.lists(st.text(max_size=40), min_size=1, max_size=8),
    st.lists(st.integers(1, 60), min_size=1, max_size=30),
)
def test_messages_arrive_whole_and_in_order_however_the_stream_is_cut(
    texts: list[str], cuts: list[int]
) -> None:
    end = End()
    data = b"".join(encode(Warned(number, text)) for number, text in enumerate(texts))
    position = 0
    while position < len(data):
        cut = cuts[position % len(cuts)]
        end.peer.sendall(data[position : position + cut])
        position += cut
        end.loop.turn(0)
    assert end.loop.run_until(lambda: len(end.came) == len(texts), within_s=5)
    assert end.came == [Warned(number, text) for number, text in enumerate(texts)]
    end.done()


@given(st.binary(min_size=8, max_size=200))
def test_bytes_that_are_no_messages_close_the_channel_and_never_raise(data: bytes) -> None:
    """Method: random bytes, then the end of the stream. A random length may also be the beginning
    of an unfinished frame, which the end of the stream closes.
    """
    end = End()
    end.peer.sendall(data)
    end.peer.close()
    assert end.loop.run_until(lambda: bool(end.closed), within_s=5)
    assert not end.came
    assert end.channel.closed
    end.done()


def test_a_corrupt_frame_says_why_the_channel_closed() -> None:
    end = End()
    end.peer.sendall(encode(Ping(1)) + (MESSAGE_MAX_BYTES + 1).to_bytes(4, "big"))
    assert end.loop.run_until(lambda: bool(end.closed), within_s=5)
    assert end.came == [Ping(1)]
    assert "over the limit" in end.closed[0]
    end.done()


def test_a_slow_peer_gets_everything_later() -> None:
    """Method: more than the socket's buffer is sent while the peer does not read."""
    end = End()
    sent = [Warned(number, "x" * 10_000) for number in range(300)]
    for message in sent:
        end.channel.send(message)
    came: list[Message] = []
    reader = threading.Thread(target=lambda: came.extend(BlockingChannel(end.peer)))
    reader.start()
    assert end.loop.run_until(lambda: not end.channel._unsent, within_s=10)
    end.channel.close()
    reader.join(10)
    assert came == sent
    end.done()


def test_a_peer_that_never_reads_loses_the_channel_at_the_limit() -> None:
    end = End()
    for _ in range(CHANNEL_BUFFER_MAX_BYTES // 500_000 + 3):
        end.channel.send(Warned(0, "x" * 500_000))
    assert end.channel.closed
    assert end.loop.run_until(lambda: bool(end.closed), within_s=5)
    assert "unread" in end.closed[0]
    end.done()


def test_what_a_dead_peer_had_sent_is_delivered_by_drain() -> None:
    end = End()
    for number in range(50):
        end.peer.sendall(encode(Hello(number, 1)))
    end.peer.close()
    end.channel.drain()
    assert [message.worker for message in end.came if isinstance(message, Hello)] == list(range(50))
    end.done()


def test_the_blocking_channel_ends_at_end_of_file_and_drops_later_sends() -> None:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(ours)
    theirs.sendall(encode(Ping(7)))
    theirs.close()
    assert list(channel) == [Ping(7)]
    channel.send(Hello(0, 0))
    channel.close()


def test_the_blocking_channel_says_why_it_ends_at_a_corrupt_frame() -> None:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(ours)
    theirs.sendall(encode(Ping(7)) + b"\0\0\0\2{]" + encode(Ping(8)))
    assert list(channel) == [Ping(7)]
    assert "not JSON" in channel.error
    channel.close()
    theirs.close()


def test_closing_the_blocking_channel_wakes_its_reader() -> None:
    ours, theirs = socket.socketpair()
    channel = BlockingChannel(ours)
    reader = threading.Thread(target=lambda: list(channel))
    reader.start()
    channel.close()
    reader.join(5)
    assert not reader.is_alive()
    theirs.close()
