"""Find the ranks whose nodes do not answer, before the process group is connected.

If a link is cut, gloo tries to connect for five times its time-out. Nothing ends that wait earlier,
and the error does not name the peer. A rank that does not leave its generation in time is killed.
So the ranks check first. Each rank writes into the store at which address the agent of its node
serves images. Once all ranks are there, the lowest rank of each node begins a TCP connection to
every other node. If the connection is accepted or refused, the kernel of that node can be reached.
If nothing answers, the link is cut, or the machine has no power. The lowest rank of a node asks for
all ranks there. The others go on, and wait for it in the store.

Limits   A link that carries only some ports may answer here. Then no node is named. A link that is
         cut after this check holds the group up, and its ranks may be killed. With more than
         LINK_PROBE_RANKS_COUNT ranks no node is asked, because each rank reads the addresses of all
         ranks from the store. A rank asks LINK_PROBE_NODES_COUNT nodes at most: those of the lowest
         ranks. A node whose queue of connections is full seems silent, too.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from outlast.model.limits import (
    LINK_PROBE_LOOK_S,
    LINK_PROBE_NODES_COUNT,
    LINK_PROBE_RANKS_COUNT,
    LINK_PROBE_S,
)

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from outlast.runtime.worker.communication.wake import SocketWatch

_OUT_OF_REACH = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT)


def is_silence(error: BaseException) -> bool:
    """Return True if a connection failed because nothing answered. A refusal is an answer."""
    return isinstance(error, OSError) and (
        isinstance(error, TimeoutError) or error.errno in _OUT_OF_REACH
    )


def announce(store: Store, rank: int, world_size: int, serves: str) -> None:
    """Write into the store at which address the node of this rank can be asked.

    Call it before `groups.assemble`, in which the rank reports that it is there.

    serves   the address, as HOST:PORT; "": there is one node, so no link can be cut
    """
    if serves and world_size <= LINK_PROBE_RANKS_COUNT:
        store.set(f"at/{rank}", serves)


def silent_ranks(
    store: Store,
    rank: int,
    world_size: int,
    serves: str,
    cancelled: Callable[[], bool],
    watch: SocketWatch | None = None,
) -> tuple[int, ...]:
    """Return the lowest rank of each node that does not answer. All ranks have to be announced.

    Only the lowest rank of a node asks. On the other ranks the result is empty. It is also empty as
    soon as `cancelled()` returns True, because the generation is over. `watch` then ends a wait for
    the store. The call takes as long as the slowest answer, and LINK_PROBE_S at most.
    """
    if not serves or world_size > LINK_PROBE_RANKS_COUNT:
        return ()
    keys = [f"at/{other}" for other in range(world_size)]
    with contextlib.nullcontext() if watch is None else watch.waiting_in_store():
        if cancelled():
            return ()
        try:
            if not store.check(keys):
                return ()  # an agent serves no images
            said = store.multi_get(keys)
        except RuntimeError:  # boundary: the store is lost; building the group reports that
            return ()
    lowest = lowest_ranks(one.decode(errors="replace") for one in said)
    if lowest.pop(serves, -1) != rank:
        return ()
    return silent(lowest, cancelled)


def lowest_ranks(serves: Iterable[str]) -> dict[str, int]:
    """Return the lowest rank at each address. `serves` has the address of each rank, by rank."""
    out: dict[str, int] = {}
    for rank, address in enumerate(serves):
        if address:
            out.setdefault(address, rank)
    return out


def silent(ranks: Mapping[str, int], cancelled: Callable[[], bool]) -> tuple[int, ...]:
    """Return the ranks whose addresses do not answer. `ranks` has a rank for each HOST:PORT.

    The kernel sends the first packet of a connection again after one second, and after two more. So
    three packets have to be lost before an address counts as silent.
    """
    began_s = time.monotonic()
    found: list[int] = []
    waiting: dict[socket.socket, int] = {}
    with contextlib.ExitStack() as held, selectors.DefaultSelector() as selector:
        for address, rank in list(ranks.items())[:LINK_PROBE_NODES_COUNT]:
            sock, code = _knock(address)
            if sock is not None:
                waiting[held.enter_context(sock)] = rank
                selector.register(sock, selectors.EVENT_WRITE, sock)
            elif code in _OUT_OF_REACH:
                found.append(rank)
        while waiting and time.monotonic() < began_s + LINK_PROBE_S:
            if cancelled():
                return ()
            for key, _ in selector.select(LINK_PROBE_LOOK_S):
                selector.unregister(key.data)
                rank = waiting.pop(key.data)
                if key.data.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _OUT_OF_REACH:
                    found.append(rank)
    return tuple(sorted([*found, *waiting.values()]))


def _knock(address: str) -> tuple[socket.socket | None, int]:
    """Begin to connect to HOST:PORT. Return the socket and an error code.

    The socket is None unless the connection is still being made. The code is that of `connect_ex`,
    or 0 if `address` is not an address.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    with contextlib.suppress(OSError, ValueError, OverflowError):  # boundary: not an address
        end = host, int(port)
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        sock.setblocking(False)
        code = sock.connect_ex(end)
        if code == errno.EINPROGRESS:
            return sock, code
        sock.close()
        return None, code
    return None, 0
