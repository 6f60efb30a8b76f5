"""Which rank is at the other end of a connection, and what it does not acknowledge.

tests/drills/test_hosts_cut_links.py shows a link that carries nothing.
"""

from __future__ import annotations

import socket

from outlast.runtime.worker.communication.peer_ends import (
    PeerEnds,
    PeerWords,
    key_of_address,
    unacknowledged_bytes,
)

A, B = key_of_address("10.0.0.1"), key_of_address("10.0.0.2")


def test_a_rank_is_known_by_its_port_or_else_by_its_address() -> None:
    """Ranks 0 and 1 share a node. If one of them dials, its connection comes from another port."""
    ends = PeerEnds()
    ends.learn([PeerWords(40, 7, A, 1), PeerWords(41, 7, A, 0), PeerWords(40, 8, B, 2)])
    assert ends.ports == {40, 41}
    for fd, end in enumerate((("10.0.0.1", 40), ("10.0.0.1", 41), ("10.0.0.2", 40))):
        ends.note(fd, 100 + fd, end)
    ends.note(3, 103, ("10.0.0.1", 55_555))
    ends.note(4, 104, ("10.0.0.2", 55_555))
    ends.note(5, 105, ("10.0.0.9", 40))
    ends.note(6, 106, ("", 0))
    assert [ends.rank_at(fd, 100 + fd) for fd in range(7)] == [1, 0, 2, 0, 2, -1, -1]
    assert ends.rank_at(0, 999) == -1, "another socket has that descriptor by now"
    ends.forget()
    assert (ends.ports, ends.rank_at(0, 100)) == (set(), -1)


def test_a_member_that_names_no_address_or_no_rank_is_not_known() -> None:
    ends = PeerEnds()
    ends.learn([PeerWords(0, 0, 0, 0), PeerWords(40, 0, A, -1)])
    ends.note(1, 1, ("10.0.0.1", 40))
    assert (ends.ports, ends.rank_at(1, 1)) == ({40}, -1)


def test_a_peer_that_reads_nothing_is_not_cut_off() -> None:
    """Method: this side sends until the buffers of both ends are full."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        near.setblocking(False)
        try:
            while near.send(b"x" * 65_536):
                pass
        except BlockingIOError:
            pass
        assert unacknowledged_bytes(near) == 0
        far.close()
        near.close()
    assert unacknowledged_bytes(near) == 0, "it is closed"
    one, other = socket.socketpair()
    assert unacknowledged_bytes(one) == 0, "it is no TCP socket"
    one.close()
    other.close()
