"""Which ranks are on nodes that do not answer, once a process group could not be connected in time.

Gloo's error does not say which peer it waited for. So each rank writes into the store, before its
group is connected, where the agent of its node serves images. If connecting takes too long, the
rank knocks there, once for each other node. An address that answers, or refuses, has a kernel that
is reached. One that stays silent is out of reach: the link is cut, or the machine has no power. Of
several ranks on one node, the lowest stands for all.

All ranks of the group wait about equally long for it. One that reaches all nodes waits a little
longer here than one that does not, so that the report which names a node comes first: the first
report ends the generation for all.

Limits   A link that carries some ports only may answer here, and then no node is named.
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
    LINK_PROBE_MARGIN_S,
    LINK_PROBE_NODES_COUNT,
    LINK_PROBE_RANKS_COUNT,
    LINK_PROBE_S,
)

if TYPE_CHECKING:
    from torch.distributed import Store

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
    store: Store, rank: int, world_size: int, serves: str, cancelled: Callable[[], bool]
) -> tuple[int, ...]:
    """Return the lowest rank on each node that does not answer. All ranks have announced theirs.

    It takes LINK_PROBE_S, or a little longer if all answer. As soon as `cancelled()` returns True,
    it returns nothing: the generation is over.
    """
    if not serves or world_size > LINK_PROBE_RANKS_COUNT:
        return ()
    keys = [f"at/{other}" for other in range(world_size)]
    try:
        if not store.check(keys):
            return ()  # an agent serves no images
        said = store.multi_get(keys)
    except RuntimeError:  # boundary: the store is lost as well, and its host reports that
        return ()
    lowest = lowest_ranks(one.decode(errors="replace") for one in said)
    lowest.pop(serves, None)
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
    found += waiting.values()
    longest_s = LINK_PROBE_S if found else LINK_PROBE_S + LINK_PROBE_MARGIN_S
    while time.monotonic() < began_s + longest_s:
        if cancelled():
            return ()
        time.sleep(LINK_PROBE_LOOK_S)
    return tuple(sorted(found))


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
