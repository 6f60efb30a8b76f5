"""The control socket: how a person's command reaches the launcher of a run.

On several nodes a command may also come over the network, to the socket of the agents. The listener
there (agent_listener.py) hands the connection over once the command has proven that it knows the
run's token.

The socket is a Unix socket in the run's folder, `control`, which only the owner of the run may
open. The kernel says which user connects. The name of the socket is resolved below a descriptor of
the folder, because the name of a Unix socket has 108 bytes at most, and the path of a folder may
have more.

A caller may be silent, hostile or gone. So the number of callers is bounded, each has a deadline,
and the launcher never waits for one.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outlast.engine.coordinator.requests import RunRequest
from outlast.model import limits
from outlast.model.messages import Message, Request, RequestAnswer
from outlast.model.texts import cut_at_word, escaped
from outlast.model.wire import WIRE_VERSION
from outlast.runtime import clock
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.network.acceptor import Acceptor
from outlast.runtime.network.channel import Channel

NAME = "control"
WHATS = ("stop", "checkpoint", "drain", "drain_all", "cordon", "uncordon")
_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid of a peer


@dataclass(eq=False, slots=True)
class _Caller:
    """One connection.

    by        who is at the other end, in words for people: a user of this machine, or an address
    remote    the connection came over the network
    patience  the timer after which the connection is closed; None: it has no limit now
    number    the number of its request; 0 before it has sent one
    stays     the connection is kept open after the last answer
    """

    by: str
    channel: Channel
    patience: LoopTimer | None = None
    number: int = 0
    stays: bool = False
    remote: bool = False

    def named(self, name: str) -> str:
        """Return who asks, if the caller gives this name; "": it gives none."""
        if not name:
            return self.by
        return f"{name} at {self.by}" if self.remote else f"{name}, through {self.by}"

    def end_patience(self) -> None:
        """Remove the time limit of this connection."""
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None


class ControlSocket:
    """Receive requests of people, one on each connection, and send back the answers.

    After `open`, `on_request` is called for each request while the loop runs. Call `answer` with
    the number of the request, once or several times. `close` removes the socket and closes the
    connections. If the file system has no sockets, a warning is shown, and the run goes on without
    one.
    """

    def __init__(self, loop: Loop, folder: Path, *, tell: Callable[[str], None]) -> None:
        self._loop = loop
        self._folder = folder
        self._tell = tell
        self._on_request: Callable[[RunRequest], None] | None = None
        self._acceptor: Acceptor | None = None
        self._callers: set[_Caller] = set()
        self._count = 0

    def open(self, on_request: Callable[[RunRequest], None]) -> None:
        """Listen. `on_request` is called for each request."""
        self._on_request = on_request
        try:
            listener = _listen(self._folder)
        except OSError as error:
            self._tell(
                f"warning: no control socket in {self._folder} ({error.strerror}): `outlast stop`"
                " and commands like it do not reach this run; signals do"
            )
            return
        self._acceptor = Acceptor(self._loop, listener, self._on_socket)

    def take_over(
        self, channel: Channel, address: str, request: Request
    ) -> Callable[[Message | None], object]:
        """Take a request that came over the network, from a command that knows the run's token.

        Return a function for further messages on that connection. Call it with None at the end.
        """
        caller = _Caller(address, channel, remote=True)
        if len(self._callers) >= limits.CONTROL_CALLERS_COUNT:
            channel.close()
        else:
            self._callers.add(caller)
            self._on_message(caller, request)

        def heard(message: Message | None) -> None:
            if message is None:
                self._gone(caller)
            else:
                self._on_message(caller, message)

        return heard

    def stop_listening(self) -> None:
        """Remove the socket. Requests that have arrived already are still answered."""
        self._on_request = None
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None
            with contextlib.suppress(OSError):
                os.unlink(self._folder / NAME)

    def close(self) -> None:
        """Remove the socket, and close all connections."""
        self.stop_listening()
        for caller in self._callers:
            caller.end_patience()
            caller.channel.close()
        self._callers.clear()

    def answer(self, number: int, state: str, text: str) -> None:
        """Send an answer to the caller with this request, if its connection still exists.

        The other end closes the connection once it knows enough. A caller that asked for a stop
        sees from the end of the connection that the launcher has ended.
        """
        for caller in self._callers:
            if caller.number == number:
                caller.channel.send(RequestAnswer(state, text))
                if state != "waits" and not caller.stays:
                    self._limit(caller)
                return

    # --- callers that connect ---------------------------------------------------------------------

    def _on_socket(self, sock: socket.socket) -> None:
        if len(self._callers) >= limits.CONTROL_CALLERS_COUNT:
            sock.close()
            return
        channel = Channel(
            self._loop,
            sock,
            on_message=lambda message: self._on_message(caller, message),
            on_close=lambda reason: self._gone(caller),
        )
        caller = _Caller(_who(sock), channel)
        self._callers.add(caller)
        self._limit(caller)

    def _limit(self, caller: _Caller) -> None:
        """Close the connection after a while, unless a request comes before that."""
        caller.end_patience()
        due_s = clock.now_s() + limits.CONTROL_WAIT_S
        caller.patience = self._loop.call_at(due_s, lambda: self._hang_up(caller))

    def _on_message(self, caller: _Caller, message: Message) -> None:
        if not isinstance(message, Request) or caller.number:
            self._hang_up(caller)
            return
        caller.end_patience()
        self._count += 1
        caller.number, caller.stays = self._count, message.what == "stop"
        if message.wire != WIRE_VERSION or message.what not in WHATS:
            why = "another version of outlast runs this training, which does not know this request"
            self.answer(caller.number, "refused", why)
            return
        if self._on_request is None:
            self.answer(caller.number, "refused", "the run has not begun yet, or is about to end")
            return
        node, reason, name = (
            cut_at_word(escaped(text), limits.CONTROL_REASON_CHARS)
            for text in (message.node, message.reason, message.by)
        )
        asked = RunRequest(caller.number, message.what, node, caller.named(name), reason)
        self._on_request(asked)

    def _hang_up(self, caller: _Caller) -> None:
        caller.channel.close()
        self._gone(caller)

    def _gone(self, caller: _Caller) -> None:
        caller.end_patience()
        self._callers.discard(caller)


def _listen(folder: Path) -> socket.socket:
    """Return a listening socket. One that a killed launcher has left is removed first."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # no other user may connect, from the first moment on
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(NAME, dir_fd=at)
        listener.bind(f"/proc/self/fd/{at}/{NAME}")
        listener.listen(limits.CONTROL_CALLERS_COUNT)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    finally:
        os.umask(before)
        os.close(at)
    return listener


def _who(sock: socket.socket) -> str:
    """Return who is at the other end, as the kernel knows it."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"user {uid}"
    return f"{name} (process {pid})" if pid else name  # 0: the process is in another container
