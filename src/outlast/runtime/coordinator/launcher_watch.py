"""Notice quickly that a launcher has ended although its machine is still up.

    learn ──> one connection to a port at which only that launcher listens: can it be reached?
    look  ──> more of them
                ├─ refused, and again LAUNCHER_GONE_S later ──> ended
                └─ anything else: the next one after LAUNCHER_LOOK_S, until `until_s`

A machine refuses a connection to a port at which no process listens. The kernel sends SIGKILL to
the processes of a launcher once that has ended (`linux.die_with`). So the node's ranks are dead
soon after the launcher, and the run need not wait for the end of the node's lease. A machine that
has no power, or that cannot be reached, refuses nothing: there the lease decides. A firewall may
refuse connections, too. So a port that was never reached proves nothing.

Everything runs on one thread, the loop's.
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Callable

from outlast.model import limits
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.network.address import split_address

Address = tuple[str, int]


class LauncherWatch:
    """Look for launchers whose connections have closed.

    Call `learn` with the address at which each node listens. Then call `look` for a node, or
    `forget` once it has connected again. `ended` is called with the name of a node whose launcher
    has ended.
    """

    def __init__(self, loop: Loop, *, ended: Callable[[str], object]) -> None:
        self._loop = loop
        self._ended = ended
        # the addresses at which launchers listen, as they were found
        self._reached: dict[str, Address] = {}
        # addresses that are to be tried, one after the other
        self._learned: deque[tuple[str, Address]] = deque()
        self._attempt: _ConnectAttempt | None = None
        self._looks: dict[str, _Look] = {}

    def learn(self, node: str, address: str, *, reached: bool = False) -> None:
        """Note the address, HOST:PORT, at which only a node's launcher listens. "" means none.

        `reached` is True if other nodes have reached it there. Otherwise this node tries it.
        """
        listens_at = split_address(address) if address else None
        if self._reached.get(node) == listens_at:
            return  # it has connected again, and listens at the same address
        self._reached.pop(node, None)
        if listens_at is None:
            return
        if reached:
            self._reached[node] = listens_at
        else:
            self._learned.append((node, listens_at))
            self._try_next()

    def look(self, node: str, *, until_s: float) -> None:
        """Look for a node's launcher until that time, if it was reached before."""
        self.forget(node)
        if node in self._reached:
            self._looks[node] = _Look(
                self._loop, self._reached[node], until_s, ended=lambda: self._note_end(node)
            )

    def forget(self, node: str) -> None:
        """Stop looking for a node's launcher."""
        look = self._looks.pop(node, None)
        if look is not None:
            look.close()

    def close(self) -> None:
        """Stop looking for all launchers."""
        self._learned.clear()
        if self._attempt is not None:
            self._attempt.close()
        for node in tuple(self._looks):
            self.forget(node)

    def _try_next(self) -> None:
        """Try the next address that was learned, unless another one is being tried now."""
        if self._attempt is None and self._learned:
            node, address = self._learned.popleft()
            self._attempt = _ConnectAttempt(
                self._loop,
                address,
                limits.CONNECT_TRY_S,
                over=lambda code: self._tried(node, address, code),
            )

    def _tried(self, node: str, address: Address, code: int) -> None:
        self._attempt = None
        if code == 0:
            self._reached[node] = address
        self._try_next()

    def _note_end(self, node: str) -> None:
        self.forget(node)
        self._ended(node)


class _ConnectAttempt:
    """One connection.

    `over` is called later: with 0 if the connection was made, otherwise with the number of the
    error.
    """

    def __init__(
        self, loop: Loop, address: Address, within_s: float, *, over: Callable[[int], object]
    ) -> None:
        self._loop = loop
        self._over = over
        self._timer: LoopTimer = loop.call_at(
            now_s() + within_s, lambda: self._end(errno.ETIMEDOUT)
        )
        self._sock: socket.socket | None = None
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._sock = sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._end_soon(error.errno or errno.EMFILE)
            return
        sock.setblocking(False)
        code = sock.connect_ex(address)
        if code in (0, errno.EINPROGRESS):
            loop.add_writer(sock.fileno(), self._connected)
        else:
            self._end_soon(code)

    def close(self) -> None:
        """Stop. Nothing is called from now on."""
        self._timer.cancel()
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_writer(sock.fileno())
            sock.close()

    def _end_soon(self, code: int) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_at(now_s(), lambda: self._end(code))

    def _connected(self) -> None:
        assert self._sock is not None
        self._end(self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _end(self, code: int) -> None:
        self.close()
        self._over(code)


class _Look:
    """Try to reach one launcher again and again. `ended` is called once it has ended."""

    def __init__(
        self, loop: Loop, address: Address, until_s: float, *, ended: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._address = address
        self._until_s = until_s
        self._ended = ended
        self._attempt: _ConnectAttempt | None = None
        self._refused_s: float | None = None  # since when no process listens there
        self._timer: LoopTimer = loop.call_at(now_s() + limits.LAUNCHER_LOOK_S, self._try)

    def close(self) -> None:
        """Stop. Nothing is called from now on."""
        self._timer.cancel()
        if self._attempt is not None:
            self._attempt.close()

    def _try(self) -> None:
        if now_s() < self._until_s:  # otherwise its lease has run out
            within_s = limits.LAUNCHER_LOOK_S
            self._attempt = _ConnectAttempt(self._loop, self._address, within_s, over=self._tried)

    def _tried(self, code: int) -> None:
        """Note the result of an attempt to connect."""
        self._attempt = None
        if code != errno.ECONNREFUSED:
            self._refused_s = None  # a process listens there, or the machine cannot be reached
        elif self._refused_s is None:
            self._refused_s = now_s()
        elif now_s() >= self._refused_s + limits.LAUNCHER_GONE_S:
            self._ended()
            return
        self._timer = self._loop.call_at(now_s() + limits.LAUNCHER_LOOK_S, self._try)
