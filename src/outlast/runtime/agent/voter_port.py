"""Answer the questions of other nodes while the coordinator is missing.

    accepted ──Knock──> (Challenge ──Proof──>) Admitted ──Ask, Claim──> Answer, Claimed

Any node of the run may come, as it does to the coordinator (runtime/network/trust.py). It carries
messages, and decides nothing. Everything runs on one thread, the loop's.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass

from outlast.model import limits
from outlast.model.messages import Admitted, Challenge, Knock, Message, Proof, TurnedAway
from outlast.model.wire import WIRE_VERSION
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.network import trust
from outlast.runtime.network.acceptor import Acceptor
from outlast.runtime.network.channel import Channel
from outlast.runtime.network.listener import listen_in

_STRANGERS_COUNT = 64  # connections that have not yet proven that they belong to the run


@dataclass(eq=False)
class _Caller:
    """One connection. `question` is what it has to answer; `admitted`: it may ask."""

    channel: Channel
    patience: LoopTimer
    question: Challenge | None = None
    admitted: bool = False


class VoterPort:
    """Listen for other nodes. `listen`, then let the loop run, then `close`.

    run      the run, as --rdzv-id names it
    answer   returns the answer to a message, or None for one that gets none
    """

    def __init__(
        self,
        loop: Loop,
        run: str,
        facts: Admitted,
        *,
        token: bytes | None,
        answer: Callable[[Message], Message | None],
    ) -> None:
        self._loop = loop
        self._run = run
        self._facts = facts
        self._token = token
        self._answer = answer
        self.address = ""  # where it listens, as HOST:PORT
        self._acceptor: Acceptor | None = None
        self._callers: set[_Caller] = set()

    def listen(self, host: str, ports: tuple[int, int] | None = None) -> str:
        """Listen at a free port, of a range if one is given, and return `address`."""
        listener = listen_in(host, ports)
        address = listener.getsockname()
        self._acceptor = Acceptor(self._loop, listener, self._on_socket)
        self.address = f"{address[0]}:{address[1]}"
        return self.address

    def close(self) -> None:
        """Close all connections."""
        if self._acceptor is not None:
            self._acceptor.close()
        for caller in tuple(self._callers):
            self._end(caller)

    def _on_socket(self, sock: socket.socket) -> None:
        if sum(not one.admitted for one in self._callers) >= _STRANGERS_COUNT:
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel = Channel(
            self._loop,
            sock,
            on_message=lambda message: self._on_message(caller, message),
            on_close=lambda reason: self._end(caller),
        )
        patience = self._loop.call_at(
            now_s() + limits.LISTENER_WAIT_S, lambda: self._end(caller, unless_admitted=True)
        )
        caller = _Caller(channel, patience)
        self._callers.add(caller)

    def _end(self, caller: _Caller, *, unless_admitted: bool = False) -> None:
        if not (unless_admitted and caller.admitted):
            caller.patience.cancel()
            caller.channel.close()
            self._callers.discard(caller)

    def _on_message(self, caller: _Caller, message: Message) -> None:
        if caller.admitted:
            answer = self._answer(message)
            if answer is not None:
                caller.channel.send(answer)
        elif caller.question is not None:
            self._on_proof(caller, caller.question, message)
        elif not isinstance(message, Knock) or message.wire != WIRE_VERSION:
            self._end(caller)
        elif message.run != self._run:
            caller.channel.send(TurnedAway(f"this node is in the run {self._run!r}"))
            self._end(caller)
        elif self._token is None:
            self._admit(caller)
        else:
            caller.question = trust.challenge(message.nonce, token=self._token)
            caller.channel.send(caller.question)

    def _on_proof(self, caller: _Caller, question: Challenge, message: Message) -> None:
        assert self._token is not None
        if isinstance(message, Proof) and trust.proves(message, question, token=self._token):
            self._admit(caller)
        else:
            self._end(caller)

    def _admit(self, caller: _Caller) -> None:
        caller.admitted = True
        caller.patience.cancel()
        caller.channel.send(self._facts)
