"""Which peers do not acknowledge what was sent to them, by the kernel's TCP_INFO of a group.

When a group is built, each rank says at which address and port it listens. So the rank at the other
end of a connection is known by the port, if this rank has dialled, and by the address if it was
dialled. Of several ranks at one address, the lowest stands for all: they are on one node.

A peer that is stopped, or that reads nothing, still acknowledges: its kernel does. Only a link that
carries nothing, or a machine without power, makes this kernel send the same data more than once.

Limits   Linux only. A connection over which nothing was sent shows nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import socket
import sys
from collections.abc import Sequence
from typing import NamedTuple

from outlast.model.limits import CUT_RETRIES_COUNT

_RETRIES_AT, _LENGTH = 2, 8  # of struct tcp_info in linux/tcp.h
_SIOCOUTQ = 0x5411  # of linux/sockios.h: the bytes in the queue of a socket that sends


class PeerWords(NamedTuple):
    """What a rank says of itself when a group is built. All are numbers.

    port     at which it listens for this group; 0: none is known
    node     NodeKeys.mine
    address  `key_of_address` of where it listens; 0: not known
    rank     its rank in the run; -1: it has none
    """

    port: int
    node: int
    address: int
    rank: int


class PeerEnds:
    """The connections of this rank's groups, and the rank at the other end of each.

    ports         at which members of the groups listen
    cut_at_wake   bytes that were not acknowledged when the connections were shut, by rank
    """

    def __init__(self) -> None:
        self.ports: set[int] = set()
        self.cut_at_wake: dict[int, int] = {}
        self._at: dict[tuple[int, int], int] = {}  # address and port -> rank
        self._on: dict[int, int] = {}  # address -> the lowest rank there
        self._ranks: dict[tuple[int, int], int] = {}  # descriptor and inode -> rank

    def learn(self, words: Sequence[PeerWords]) -> None:
        """Note what the members of a group have said."""
        for one in words:
            self.ports |= {one.port} - {0}
            if one.address and one.rank >= 0:
                self._at[one.address, one.port] = one.rank
                self._on[one.address] = min(one.rank, self._on.get(one.address, one.rank))

    def note(self, fd: int, inode: int, end: tuple[str, int]) -> None:
        """Note that a connection of a group leads to the address and port `end`."""
        address = key_of_address(end[0])
        rank = self._at.get((address, end[1]), self._on.get(address, -1))
        if rank >= 0:
            self._ranks[fd, inode] = rank

    def rank_at(self, fd: int, inode: int) -> int:
        """Return the rank at the other end of a connection; -1: not known."""
        return self._ranks.get((fd, inode), -1)

    def forget(self) -> None:
        """Forget the connections: the groups are gone."""
        self.ports.clear()
        self._at.clear()
        self._on.clear()
        self._ranks.clear()


def key_of_address(address: str) -> int:
    """Return a number for an address, which other addresses hardly have; 0 for none."""
    if not address:
        return 0
    return int.from_bytes(hashlib.sha256(address.encode()).digest()[:7], "big") + 1


def unacknowledged_bytes(connection: socket.socket) -> int:
    """Return how many bytes wait here for an end that does not acknowledge any.

    It is 0 unless the oldest of them was sent again, CUT_RETRIES_COUNT times at least. What was
    written after it and could not be sent yet counts as well.
    """
    try:
        facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
        if len(facts) < _LENGTH or facts[_RETRIES_AT] < CUT_RETRIES_COUNT:
            return 0
        waiting = fcntl.ioctl(connection.fileno(), _SIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(waiting, sys.byteorder)
