"""Which ranks are on nodes that do not answer, before the process group is connected.

If a link is cut, gloo tries to connect for five times its time-out. Nothing ends that wait, its
error does not name the peer, and a rank that does not leave in time is killed. So each rank writes
into the store where the agent of its node serves images. Once all are there, the lowest rank of
each node knocks at every other node. An address that answers, or refuses, has a kernel that is
reached. One that stays silent is out of reach: the link is cut, or the machine has no power. Of
several ranks on one node, the lowest stands for all, and the others wait for it in the store.

Limits   A link that carries some ports only may answer here, and then no node is named.
         A link that is cut after the knock holds the group up, and its ranks may be killed.
         Above LINK_PROBE_RANKS_COUNT ranks nothing is asked, because each would ask for all.
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
    """Return True if a connection has failed because nothing answered; a refusal is an answer."""
    return isinstance(error, OSError) and (
        isinstance(error, TimeoutError) or error.errno in _OUT_OF_REACH
    )


def announce(store: Store, rank: int, world_size: int, serves: str) -> None:
    """Write down where the node of this rank can be asked. Do it before the rank says it is here.

    serves   HOST:PORT; "": there is one node, so no link can be cut
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
    """Return the lowest rank on each node that does not answer. All ranks have announced theirs.

    Only the lowest rank of a node asks; the others return nothing. It takes no longer than the
    slowest answer, or LINK_PROBE_S if there is none. As soon as `cancelled()` returns True, it
    returns nothing: the generation is over. `watch` ends a wait for the store then.
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
        except RuntimeError:  # boundary: the store is cut or lost, and building the group says so
            return ()
    lowest = lowest_ranks(one.decode(errors="replace") for one in said)
    if lowest.pop(serves, -1) != rank:
        return ()
    return silent(lowest, cancelled)


def lowest_ranks(serves: Iterable[str]) -> dict[str, int]:
    """Return the lowest rank at each address. `serves`: the address of each rank, by rank."""
    out: dict[str, int] = {}
    for rank, address in enumerate(serves):
        if address:
            out.setdefault(address, rank)
    return out


def silent(ranks: Mapping[str, int], cancelled: Callable[[], bool]) -> tuple[int, ...]:
    """Return the ranks whose addresses do not answer. `ranks`: by HOST:PORT.

    The kernel sends its first packet again after one second, and after another two. So three
    packets are lost before an address counts as silent.
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
    """Begin to connect to HOST:PORT. Return the socket, or None and the error code; 0: answered."""
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
