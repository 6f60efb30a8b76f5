"""Find out which peers do not acknowledge what was sent to them, by the kernel's TCP_INFO.

When a group is built, each rank tells the others at which address and port it listens. If this rank
dialled a connection, the address and port at the other end show which rank is there. If the other
end dialled, its address alone is known. Several ranks at one address are on one node, and the
lowest of them stands for all.

If a peer is stopped, or reads nothing, its kernel still acknowledges. This kernel sends the same
data more than once only if a link carries nothing, or if the other machine has no power.

Limits   Linux only. If nothing was sent over a connection, it shows nothing.
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
    """This is what a rank tells its peers when a group is built: numbers, sent as a tensor.

    port     the port at which it listens for this group; 0: not known
    node     NodeKeys.mine
    address  `key_of_address` of the address at which it listens; 0: not known
    rank     its rank in the run; -1: it has none
    """

    port: int
    node: int
    address: int
    rank: int


class PeerEnds:
    """The connections of this rank's groups, and the rank at the other end of each.

    ports         the ports at which members of the groups listen
    cut_at_wake   by rank: how many bytes it had not acknowledged when the connections were shut
    """

    def __init__(self) -> None:
        self.ports: set[int] = set()
        self.cut_at_wake: dict[int, int] = {}
        self._at: dict[tuple[int, int], int] = {}  # address and port -> rank
        self._on: dict[int, int] = {}  # address -> the lowest rank there
        self._ranks: dict[tuple[int, int], int] = {}  # descriptor and inode -> rank

    def learn(self, words: Sequence[PeerWords]) -> None:
        """Note what the members of a group have told about themselves."""
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
        """Forget all connections, because the groups are gone."""
        self.ports.clear()
        self._at.clear()
        self._on.clear()
        self._ranks.clear()


def key_of_address(address: str) -> int:
    """Return a number that stands for an address; 0 for none. Two addresses hardly share one."""
    if not address:
        return 0
    return int.from_bytes(hashlib.sha256(address.encode()).digest()[:7], "big") + 1


def unacknowledged_bytes(connection: socket.socket) -> int:
    """Return how many bytes of a connection the other end does not acknowledge.

    The result is 0 unless the kernel has sent the oldest of them again at least CUT_RETRIES_COUNT
    times. Bytes that were written later, and could not be sent yet, count as well.
    """
    try:
        facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
        if len(facts) < _LENGTH or facts[_RETRIES_AT] < CUT_RETRIES_COUNT:
            return 0
        waiting = fcntl.ioctl(connection.fileno(), _SIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(waiting, sys.byteorder)
