"""Accept the connections of several nodes.

There is one listening socket, and one `Channel` for each agent that has enrolled.

    accepted ──Knock──> (Challenge ──Proof──>) Admitted ──Enrol──> linked ──> gone, if it is
        │                    │                                    broken, replaced or hung up on
        │                    └──RemoteRequest──> a person's, and handed to `asked`
        ├──anything else, or nothing for LISTENER_WAIT_S──> closed, and told why
        └──Enrol under the name of another session that is in──> answered and closed

It decides nothing. What arrives goes to the `CoordinatorSessions`, and the messages and hang-ups
that these return are carried out here. All other outputs go to the owner. The owner also calls the
sessions itself (`start`, `rebuild`, `on_timer`, `pass_on`), and hands the outputs of those calls in
through `carry_out`.

Not promised: that a sent message arrives. It is sent again to a node that comes back. Everything
runs on one thread, the loop's.
"""

from __future__ import annotations

import gc
import ipaddress
import socket
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from outlast.engine.cluster.coordinator_sessions import CoordinatorSessions
from outlast.engine.protocol.outputs import HangUp, Output, SendOverLink, Tell, TurnAway
from outlast.errors import UsageError
from outlast.model import limits
from outlast.model.messages import (
    Admitted,
    Beat,
    Challenge,
    Enrol,
    EvidenceFiles,
    EvidencePiece,
    FromNode,
    Grant,
    Kept,
    Knock,
    LogsAt,
    Message,
    Proof,
    RemoteRequest,
    Request,
    TurnedAway,
)
from outlast.model.texts import cut_at_word
from outlast.model.wire import encode
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop, LoopTimer
from outlast.runtime.network import trust
from outlast.runtime.network.channel import Channel
from outlast.runtime.network.listener import listen_at
from outlast.runtime.open_files import make_room

# The answer to an agent that has knocked: the facts of the run, or why the agent is refused
Admit = Callable[[Knock], "Admitted | str"]
# Who gets a person's request: the channel, its address, and the request. The result is called with
# each further message of the channel, and with None at its end
Asked = Callable[[Channel, str, Request], "Callable[[Message | None], object]"]


@dataclass(frozen=True, slots=True)
class _Options:
    """The options of the listener: which agents are admitted, and who gets their messages."""

    token: bytes | None
    admit: Admit | None
    heard: Callable[[str, Message], object]
    may_speak: Callable[[], bool]
    asked: Asked | None


@dataclass(slots=True)
class _Queue:
    """Outputs that are to be carried out.

    `busy`: they are being carried out. `held`: they have to wait.
    """

    outputs: deque[Output] = field(default_factory=deque)
    busy: bool = False
    held: bool = False


@dataclass(eq=False, slots=True)
class _Connection:
    """One connection.

    node     the name that its node gave; "" until it has given one
    knocks   True until it has named its run
    facts    the answer that it gets once its node is known
    person   gets its further messages, because a person asks; None: an agent is at the other end
    """

    address: str
    channel: Channel
    patience: LoopTimer
    question: Challenge | None = None  # the question that it has not answered yet
    knocks: bool = False
    facts: Admitted | None = None
    node: str = ""
    enrolled: bool = False
    person: Callable[[Message | None], object] | None = None


class AgentListener:
    """Accept the connections of agents, and carry messages between them and the sessions.

    Call `open`, then let the loop run. Creating one raises UsageError if the process may not open
    enough files for all agents.

    peers       how many agents will be served
    owner       is called with every output that is not for a link
    token       the run's token; None: every process that can reach the address may enrol
    admit       is called with each agent that knocks; None: agents enrol without knocking
    heard       is called with each message of a node before the sessions are; for an Enrol, after
                them
    may_speak   while it returns False, messages are dropped. They are sent again to a node that
                comes back
    asked       gets the requests of people who know the token; None: they are refused
    """

    def __init__(
        self,
        loop: Loop,
        sessions: CoordinatorSessions,
        *,
        peers: int,
        owner: Callable[[Output], None],
        token: bytes | None = None,
        admit: Admit | None = None,
        heard: Callable[[str, Message], object] = lambda node, message: None,
        may_speak: Callable[[], bool] = lambda: True,
        asked: Asked | None = None,
    ) -> None:
        make_room_for(peers)
        collect_seldom(peers)
        self._loop = loop
        self._sessions = sessions
        self._peers = peers
        self._owner = owner
        self._options = _Options(token, admit, heard, may_speak, asked)
        self._listener: socket.socket | None = None
        self._strangers: set[_Connection] = set()
        self._links: dict[str, _Connection] = {}
        self._queue = _Queue()

    def open(self, *, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Listen, and return the address. `port` 0: any free port.

        Raises UsageError for an address that cannot be used. The kernel limits the queue to
        net.core.somaxconn. An agent that finds it full tries again by itself, a second later.
        """
        return self.open_at(_listening(host, port, self._peers))

    def open_at(self, listener: socket.socket) -> tuple[str, int]:
        """Take over a socket that listens already, and return its address."""
        listener.setblocking(False)
        self._listener = listener
        self._loop.add_reader(listener.fileno(), self._accept)
        address = listener.getsockname()
        return address[0], address[1]

    def close(self) -> None:
        """Close all connections. The sessions are not told."""
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        for connection in (*self._strangers, *self._links.values()):
            connection.patience.cancel()
            connection.channel.close()
        self._strangers.clear()
        self._links.clear()

    def tell(self, node: str, message: Message) -> None:
        """Send a message to a node if it is connected, outside its numbered messages."""
        if node in self._links:
            self._links[node].channel.send(message)

    def hold(self) -> None:
        """Carry out nothing more until `release`."""
        self._queue.held = True

    def release(self) -> None:
        """Carry out what was held."""
        if self._queue.held:
            self._queue.held = False
            self.carry_out(())

    def tell_all(self, message: Message) -> None:
        """Send a message to all nodes that are connected."""
        for connection in self._links.values():
            connection.channel.send(message)

    @property
    def nodes(self) -> int:
        """Return how many nodes are connected."""
        return len(self._links)

    @property
    def unsent_bytes(self) -> int:
        """Return the bytes that the kernel has not accepted yet, over all connections."""
        return sum(connection.channel.unsent_bytes for connection in self._links.values())

    # --- carrying out -----------------------------------------------------------------------------

    def carry_out(self, outputs: Iterable[Output]) -> None:
        """Carry out outputs in order. The outputs that these cause come after them."""
        if self._queue.held:
            # A lease is prolonged whether or not the newest decision counts already.
            outputs = [one for one in outputs if not self._granted(one)]
        self._queue.outputs.extend(outputs)
        if self._queue.busy:
            return
        self._queue.busy = True
        while self._queue.outputs and not self._queue.held:
            output = self._queue.outputs.popleft()
            if isinstance(output, SendOverLink):
                self._send(output)
            elif isinstance(output, HangUp):
                self._hang_up(output.node)
            else:
                self._owner(output)
        self._queue.busy = False

    def _granted(self, output: Output) -> bool:
        """Send a grant at once. Return whether the output was one."""
        if not isinstance(output, SendOverLink) or not isinstance(output.message, Grant):
            return False
        if self._options.may_speak():
            self.tell(output.node, output.message)
        return True

    def _send(self, first: SendOverLink) -> None:
        """Send a message, and all that follow for the same node, in one write.

        A regroup sends something to each of a node's ranks.
        """
        connection = self._links.get(first.node) if self._options.may_speak() else None
        frames = [encode(first.message)] if connection is not None else []
        while (
            self._queue.outputs
            and isinstance(after := self._queue.outputs[0], SendOverLink)
            and after.node == first.node
        ):
            self._queue.outputs.popleft()
            if connection is not None:
                frames.append(encode(after.message))
        if connection is not None:
            connection.channel.send_frames(b"".join(frames))

    def _hang_up(self, node: str) -> None:
        connection = self._links.get(node)
        if connection is not None:
            connection.channel.close()
            self._gone(connection)

    # --- new connections --------------------------------------------------------------------------

    def _accept(self) -> None:
        while self._listener is not None:
            if len(self._strangers) >= limits.LISTENER_STRANGERS_COUNT:
                # until one of them is known, or closed
                self._loop.remove_reader(self._listener.fileno())
                return
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError:
                # if there is no descriptor or no memory, the connection stays in the queue, and
                # would be offered again at once
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_at(now_s() + limits.RECONNECT_S, self._accept_again)
                return
            self._add_connection(sock, f"{address[0]} port {address[1]}")

    def _accept_again(self) -> None:
        if self._listener is not None and len(self._strangers) < limits.LISTENER_STRANGERS_COUNT:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _add_connection(self, sock: socket.socket, address: str) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, int(limits.LISTENER_KEEPALIVE_S))
        channel = Channel(
            self._loop,
            sock,
            on_message=lambda message: self._on_message(connection, message),
            on_close=lambda reason: self._on_close(connection, reason),
        )
        patience = self._loop.call_at(
            now_s() + limits.LISTENER_WAIT_S,
            lambda: self._refuse(
                connection, f"it did not enrol within {limits.LISTENER_WAIT_S:g} s"
            ),
        )
        connection = _Connection(address, channel, patience)
        self._strangers.add(connection)
        connection.knocks = self._options.admit is not None
        if not connection.knocks and self._options.token is not None:
            connection.question = trust.challenge()
            channel.send(connection.question)

    # --- their messages ---------------------------------------------------------------------------

    def _on_message(self, connection: _Connection, message: Message) -> None:
        if connection.person is not None:
            connection.person(message)
        elif connection.enrolled:
            if isinstance(message, Kept | EvidenceFiles | EvidencePiece | LogsAt):
                self._options.heard(connection.node, message)
            elif isinstance(message, (Beat, FromNode)):
                self._options.heard(connection.node, message)
                self.carry_out(self._sessions.on_link(connection.node, message, now_s=now_s()))
            else:
                self._refuse(connection, f"it has enrolled, and says {_name(message)}")
        elif connection.knocks:
            self._on_knock(connection, message)
        elif connection.question is not None:
            self._on_proof(connection, connection.question, message)
        elif isinstance(message, RemoteRequest):
            why = "this run has no token, so it takes no requests over the network"
            connection.channel.send(TurnedAway(why))
            self._refuse(connection, "it asks for something, and the run has no token")
        elif not isinstance(message, Enrol):
            self._refuse(connection, f"it has to enrol, and says {_name(message)}")
        elif not message.node or connection.node not in ("", message.node):
            proven = f", and has proven to be {cut_at_word(connection.node, 80)!r}"
            enrols = f"it enrols as {cut_at_word(message.node, 80)!r}"
            self._refuse(connection, enrols + (proven if connection.node else ""))
        else:
            self._on_enrol(connection, message)

    def _on_knock(self, connection: _Connection, message: Message) -> None:
        """Ask an agent that names this run for its proof, or admit it."""
        if not isinstance(message, Knock) or self._options.admit is None:
            self._refuse(connection, f"it has to knock, and says {_name(message)}")
            return
        found = self._options.admit(message)
        if isinstance(found, str):
            connection.channel.send(TurnedAway(found))
            self._refuse(connection, found)
            return
        connection.knocks, connection.facts = False, found
        if self._options.token is not None:
            connection.question = trust.challenge(message.nonce, token=self._options.token)
            connection.channel.send(connection.question)
        else:
            connection.channel.send(found)

    def _on_proof(self, connection: _Connection, question: Challenge, message: Message) -> None:
        if isinstance(message, RemoteRequest):
            self._on_request(connection, question, message)
        elif not isinstance(message, Proof):
            self._refuse(
                connection,
                f"it has to prove that it knows the run's token, and says {_name(message)}",
            )
        elif not message.node or not trust.proves(
            message, question, token=self._options.token or b""
        ):
            if self._options.admit is not None:
                connection.channel.send(TurnedAway("its token is not the run's"))
            self._refuse(connection, "it does not know the run's token")
        else:
            connection.question, connection.node = None, message.node
            if connection.facts is not None:
                connection.channel.send(connection.facts)

    def _on_request(
        self, connection: _Connection, question: Challenge, message: RemoteRequest
    ) -> None:
        """Hand over a connection on which a person asks for something and knows the token."""
        asked = self._options.asked
        if not trust.proves_request(message, question, token=self._options.token or b""):
            connection.channel.send(TurnedAway("the token is not the run's"))
            self._refuse(connection, "it asks for something, and does not know the run's token")
        elif asked is None:
            connection.channel.send(TurnedAway("this run takes no requests over the network"))
            self._refuse(connection, "it asks for something, and no requests are taken")
        else:
            connection.patience.cancel()
            self._is_no_stranger_now(connection)
            connection.person = asked(connection.channel, connection.address, message.request)

    def _on_enrol(self, connection: _Connection, message: Enrol) -> None:
        """Let a newer connection of an agent replace the older one, if there is one.

        The older one is dead, or will be soon. This holds for connections of one agent only.
        Another agent of the same name is turned away, and the older connection stays.
        """
        outputs = self._sessions.on_link(message.node, message, now_s=now_s())
        if outputs and isinstance(outputs[0], TurnAway):
            connection.channel.send(outputs[0].message)
            connection.channel.close()
            self._gone(connection)
            self.carry_out(outputs[1:])
            return
        connection.patience.cancel()
        self._is_no_stranger_now(connection)
        older = self._links.get(message.node)
        if older is not None:
            older.channel.close()
        connection.node, connection.enrolled = message.node, True
        self._links[message.node] = connection
        self.carry_out(outputs)
        self._options.heard(message.node, message)

    # --- the end of connections -------------------------------------------------------------------

    def _refuse(self, connection: _Connection, reason: str) -> None:
        connection.channel.close()
        self._lost(connection, reason)

    def _on_close(self, connection: _Connection, reason: str) -> None:
        if connection.person is not None:
            connection.person(None)
        elif reason:
            self._lost(connection, reason)
        else:
            self._gone(connection)

    def _lost(self, connection: _Connection, reason: str) -> None:
        whose = f"of node {connection.node}" if connection.enrolled else "of a stranger"
        self._gone(connection)
        self.carry_out([Tell(f"the connection {whose} ({connection.address}) is closed: {reason}")])

    def _gone(self, connection: _Connection) -> None:
        connection.patience.cancel()
        self._is_no_stranger_now(connection)
        if self._links.get(connection.node) is connection:
            del self._links[connection.node]
            self.carry_out(self._sessions.on_disconnected(connection.node))

    def _is_no_stranger_now(self, connection: _Connection) -> None:
        if connection in self._strangers:
            was_full = len(self._strangers) >= limits.LISTENER_STRANGERS_COUNT
            self._strangers.discard(connection)
            if was_full:
                self._accept_again()


def make_room_for(peers: int) -> None:
    """Raise this process's limit of open files as far as these agents need it.

    Raises UsageError if it may not be raised so far.
    """
    needed = peers + limits.LISTENER_STRANGERS_COUNT + limits.LISTENER_FILES_COUNT
    make_room(needed, f"{peers:,} agents need", start="the coordinator")


def collect_seldom(peers: int) -> None:
    """Let this process's garbage collector run about once in a regroup.

    By default it runs hundreds of times in a regroup, goes twice through every known rank, and
    finds nothing. Messages form no cycles, so their reference counts free them. A connection that
    closes does form a cycle. It is found as before, only later.
    """
    often, *rarer = gc.get_threshold()
    gc.set_threshold(max(often, limits.OBJECTS_PER_AGENT_COUNT * peers), *rarer)


def _listening(host: str, port: int, peers: int) -> socket.socket:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        hint = "give an IPv4 or IPv6 address of this machine, like 10.0.0.1 or ::1"
        raise UsageError(f"{host!r} is not an address to listen on", hint=hint) from None
    try:
        listener = listen_at(host, port, backlog=max(peers, 128))
    except (OSError, OverflowError) as error:
        hint = "give another address or port; port 0 takes one that is free"
        raise UsageError(f"cannot listen on {host} port {port}: {error}", hint=hint) from None
    return listener


def _name(message: Message) -> str:
    return type(message).__name__
