"""The agent's end of the connection to the coordinator: connect, authenticate, and connect again.

    OUT ──dial──> CONNECTING ──> KNOCKING ──Challenge, Proof──> Admitted ──> LINKED
     ^                │              └──TurnedAway, or no proof──> refused for good
     └──after a while─┴──────────── broken, or hung up on ─────────────────────┘

It carries messages, and decides nothing. A connection that breaks is made again: first after
RECONNECT_FIRST_S, then after twice as long each time, up to RECONNECT_S. Everything runs on one
thread, which is that of the loop.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass
from typing import Protocol

from outlast.model import limits
from outlast.model.messages import Admitted, Challenge, Knock, Message, TurnedAway
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.network import trust
from outlast.runtime.network.channel import Channel


class LinkEvents(Protocol):
    """The dialler's calls to its owner. They come from the loop."""

    def on_admitted(self, facts: Admitted) -> None: ...
    def on_link(self, message: Message) -> None: ...
    def on_broken(self) -> None: ...
    def on_refused(self, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Caller:
    """The agent that dials, and the facts that it sends first. The fields are those of `Knock`."""

    wire: int
    release: str
    run: str
    node: str
    script: str

    def knock(self) -> Knock:
        """Return the first message of a new connection."""
        return Knock(self.wire, self.release, self.run, self.node, self.script, trust.nonce())


@dataclass(slots=True)
class _Tries:
    """The attempts since the last one that was admitted. The fields are those of `Dialler`."""

    tries: int = 0
    strange: int = 0
    error: str = ""


class Dialler:
    """Connect to the coordinator, and connect again whenever the connection breaks.

    `dial`, then let the loop run. `tries` counts attempts since the last one that was admitted, and
    `error` says why the newest one has failed. `strange` counts those attempts at which something
    answered that is no coordinator.
    """

    def __init__(
        self,
        loop: Loop,
        address: tuple[str, int],
        caller: Caller,
        events: LinkEvents,
        *,
        token: bytes | None,
    ) -> None:
        self._since = _Tries()
        self._loop = loop
        self._address = address
        self._caller = caller
        self._events = events
        self._token = token
        self._wait_s = limits.RECONNECT_FIRST_S
        self._timer: LoopTimer | None = (
            None  # of the next attempt, or of the time limit for this one
        )
        self._attempt: _Attempt | None = None

    @property
    def tries(self) -> int:
        return self._since.tries

    @property
    def strange(self) -> int:
        return self._since.strange

    @property
    def error(self) -> str:
        return self._since.error

    def dial(self) -> None:
        """Begin to connect."""
        self._stop_timer()
        self._since.tries += 1
        self._attempt = attempt = _Attempt(self, self._loop, self._caller.knock(), self._token)
        self._timer = self._loop.call_at(
            now_s() + limits.CONNECT_TRY_S, lambda: attempt.fail("no answer")
        )
        attempt.begin(self._address)

    def hand_over(self, events: LinkEvents) -> None:
        """Report to `events` from now on."""
        self._events = events

    def send(self, message: Message) -> None:
        """Send a message. It is dropped if there is no connection."""
        if self._attempt is not None and self._attempt.admitted:
            self._attempt.send(message)

    def redirect(self, address: tuple[str, int]) -> None:
        """Dial another address from now on, because the coordinator is there."""
        if address == self._address:
            return
        self._address, self._wait_s = address, limits.RECONNECT_FIRST_S
        if self._attempt is not None:
            self._attempt.fail("")
        else:
            self.dial()

    def hang_up(self) -> None:
        """Close the connection, and dial again."""
        if self._attempt is not None:
            self._attempt.fail("")

    def close(self) -> None:
        """Close the connection for good. Nothing is called from now on."""
        self._stop_timer()
        if self._attempt is not None:
            self._attempt.close()
            self._attempt = None

    # --- what an attempt reports ------------------------------------------------------------------

    def admitted(self, facts: Admitted) -> None:
        self._stop_timer()
        self._since, self._wait_s = _Tries(), limits.RECONNECT_FIRST_S
        self._events.on_admitted(facts)

    def heard(self, message: Message) -> None:
        self._events.on_link(message)

    def refused(self, reason: str) -> None:
        self.close()
        self._events.on_refused(reason)

    def failed(self, reason: str, *, was_in: bool, strange: bool) -> None:
        """Dial again after a while. `strange`: something answered that is not a coordinator."""
        self._stop_timer()
        self._since.strange += strange
        self._attempt, self._since.error = None, reason
        self._timer = self._loop.call_at(now_s() + self._wait_s, self.dial)
        self._wait_s = min(2 * self._wait_s, limits.RECONNECT_S)
        if was_in:
            self._events.on_broken()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Attempt:
    """One connection, from the first packet to its end."""

    def __init__(self, dialler: Dialler, loop: Loop, knock: Knock, token: bytes | None) -> None:
        self.admitted = False
        self._dialler = dialler
        self._loop = loop
        self._knock = knock
        self._token = token
        self._sock: socket.socket | None = None  # set while it connects
        self._channel: Channel | None = None
        self._proven = False  # the coordinator has proven that it knows the token
        self._over = False

    def begin(self, address: tuple[str, int]) -> None:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self._sock = sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            reason = f"no descriptor for a connection: {error.strerror}"
            self._loop.call_soon(lambda: self.fail(reason))
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            self._loop.call_soon(lambda: self.fail(os.strerror(code)))
            return
        self._loop.add_writer(sock.fileno(), self._connected)

    def _connected(self) -> None:
        sock = self._sock
        assert sock is not None
        self._loop.remove_writer(sock.fileno())
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.fail(os.strerror(code))
            return
        self._sock = None
        self._channel = Channel(
            self._loop, sock, on_message=self._on_message, on_close=self._on_close
        )
        self._channel.send(self._knock)

    def send(self, message: Message) -> None:
        if self._channel is not None:
            self._channel.send(message)

    def fail(self, reason: str, *, strange: bool = False) -> None:
        """End this connection, and let the dialler dial again."""
        if not self._over:
            was_in = self.admitted
            self.close()
            self._dialler.failed(reason, was_in=was_in, strange=strange and not was_in)

    def close(self) -> None:
        self._over, self.admitted = True, False
        if self._sock is not None:
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
            self._sock = None
        if self._channel is not None:
            self._channel.close()

    def _on_close(self, reason: str) -> None:
        if reason and not self.admitted:
            # The channel says why it could not read an answer. A peer that hung up gives no reason.
            self.fail(f"the answer is none of outlast's: {reason}", strange=True)
        else:
            self.fail(reason or "the connection was closed")

    def _on_message(self, message: Message) -> None:
        if self._over:
            return
        if self.admitted:
            self._dialler.heard(message)
        elif isinstance(message, TurnedAway):
            self._refuse(message.reason)
        elif isinstance(message, Challenge):
            self._on_challenge(message)
        elif not isinstance(message, Admitted):
            self.fail(f"it answers {type(message).__name__} to a Knock")
        elif self._token is not None and not self._proven:
            self._refuse(
                "the run there has no token, and this node was given one (OUTLAST_TOKEN or"
                " --token-file)"
            )
        else:
            self.admitted = True
            self._dialler.admitted(message)

    def _on_challenge(self, question: Challenge) -> None:
        if self._token is None:
            self._refuse("the run there has a token: set OUTLAST_TOKEN, or give --token-file")
        elif not trust.answers(question, self._knock.nonce, token=self._token):
            self._refuse(
                "the program that listens there does not know this run's token: give all nodes the"
                " same, by OUTLAST_TOKEN or --token-file"
            )
        else:
            self._proven = True
            self.send(trust.prove(question, node=self._knock.node, token=self._token))

    def _refuse(self, reason: str) -> None:
        self._over = True
        self._dialler.refused(reason)
