"""Let the run outlive its coordinator: a node keeps a copy of the ledger, votes, and takes over.

    HEARS ──no message for MISSED_SHARE of a lease──> MISSES: asks all voters at each heartbeat
      ^                                           │
      │                     a majority misses it too: the workers go on
      │                                           │
      │          this node votes, its turn has come ──> CLAIMS ──a majority votes for it──> leads
      └──── a coordinator welcomes the agent ─────┴──────────────────────────────────────────┘

In a run on three or more nodes, every node has a standby beside its agent. On a node that is no
voter, the standby only asks the voters, and answers who leads. engine/cluster/voting.py decides.
Everything runs on one thread, the loop's.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from outlast.engine.cluster.voting import Position, Voter, VoterInquiry, majority
from outlast.errors import OutlastError
from outlast.model import limits
from outlast.model.messages import (
    Admitted,
    Answer,
    Ask,
    Claim,
    Claimed,
    Grant,
    Keep,
    Kept,
    Message,
    Voters,
)
from outlast.runtime import clock
from outlast.runtime.agent.dialler import Caller
from outlast.runtime.agent.voter_calls import VoterCalls
from outlast.runtime.agent.voter_port import VoterPort
from outlast.runtime.ledger.kept_copy import KeptCopy
from outlast.runtime.ledger.store import Ledger
from outlast.runtime.loop import Loop
from outlast.runtime.network.address import split_address
from outlast.runtime.network.listener import listen_in


@dataclass(frozen=True, slots=True)
class Election:
    """The facts that an elected node needs to lead the run.

    epoch      the number of its leadership
    named      the voters, this node first
    loyal      the voters that voted for this node
    claimed_s  when this node asked for their votes
    listening  the socket to which agents will connect; it listens already
    ledger     this node's copy of the run's ledger
    """

    epoch: int
    named: Voters
    loyal: tuple[str, ...]
    claimed_s: float
    listening: socket.socket
    ledger: Ledger


@dataclass(frozen=True)
class StandbyPlace:
    """The surroundings of a standby: its loop, its addresses and its folder.

    caller   how this node introduces itself
    token    the run's secret; None: there is none
    facts    what this node learned when it was admitted
    address  the host name or IP address at which other nodes reach this node
    copy     the file with the copy of the ledger
    ports    --port-range; None: any free port
    """

    loop: Loop
    caller: Caller
    token: bytes | None
    facts: Admitted
    address: str
    copy: Path
    ports: tuple[int, int] | None = None


class AgentPort(Protocol):
    """Let a standby use the agent beside it."""

    @property
    def epoch(self) -> int: ...

    def say(self, message: Message) -> None: ...

    def prolong_lease(self, asked_s: float) -> None: ...

    def follow(self, address: tuple[str, int]) -> None: ...


@dataclass
class _Attempt:
    """An attempt to take over. `votes`: the nodes that have voted for this node in `epoch`."""

    epoch: int
    claimed_s: float
    listening: socket.socket
    votes: set[str] = field(default_factory=set)


@dataclass
class _Absence:
    """The facts that are known while this node does not hear from the coordinator.

    inquiry   the questions to the voters, and their answers
    since_s   since when a majority of the voters has not heard from it either; None: no majority
    attempt   this node's attempt to take over; None: there is none now
    """

    inquiry: VoterInquiry
    since_s: float | None = None
    attempt: _Attempt | None = None


class Standby:
    """Keep a copy of the ledger, ask the voters when the coordinator is missing, and take over.

    Call `listen`, then `set_agent`, and then `ask_if_missing` with each heartbeat and `flush` once
    a second. Pass each message of the coordinator to `on_link` first.

    lead   takes the run over; raises OutlastError if it cannot
    tell   shows people a line
    """

    def __init__(
        self, place: StandbyPlace, *, lead: Callable[[Election], None], tell: Callable[[str], None]
    ) -> None:
        now_s = clock.now_s()
        self.voter = Voter(lease_s=place.facts.lease_s, now_s=now_s)
        self._place = place
        self._lead = lead
        self._tell = tell
        self._named = Voters(0, (), ())
        self._absence: _Absence | None = None
        self._kept = KeptCopy(place.copy)
        self._port = VoterPort(
            place.loop, place.caller.run, place.facts, token=place.token, answer=self._answer
        )
        self._calls = VoterCalls(place.loop, place.caller, token=place.token, hear=self._hear)
        self._agent: AgentPort | None = None

    def listen(self) -> str:
        """Answer the questions of other nodes from now on. Return the address, as HOST:PORT."""
        return self._port.listen(self._place.address, self._place.ports)

    def set_agent(self, agent: AgentPort) -> None:
        """Set the agent of this node."""
        self._agent = agent

    def close(self) -> None:
        """Close all connections, and remove the copy."""
        self._end_absence()
        self._port.close()
        self._kept.remove()

    @property
    def votes(self) -> bool:
        """Return whether this launcher is a voter.

        A launcher that was started again on a voter's node does not know what the launcher before
        it had promised. So it is not a voter, and it has another port, which shows this.
        """
        return self._port.address in self._named.addresses

    # --- from the coordinator ---------------------------------------------------------------------

    def on_link(self, message: Message) -> bool:
        """Handle a message of the coordinator. Return True if it concerns the standby only."""
        now_s = clock.now_s()
        if isinstance(message, Voters):
            if message.epoch >= max(self._named.epoch, self.voter.promised):
                self._named, self._kept.ends_voting = message, None
            return True
        if isinstance(message, Keep):
            if self.votes and message.epoch >= self.voter.promised:
                self._keep(message)
            return True
        if isinstance(message, Grant) and self._agent is not None:
            self.voter.hear(self._agent.epoch, now_s=now_s)
            self._acknowledge(self._agent.epoch, message.sent_s)
        return False

    def _keep(self, message: Keep) -> None:
        """Add a record to the copy of the ledger, and acknowledge it."""
        kept, before = self._kept, self._kept.position
        try:
            kept.take(message, now_s=clock.now_s())
        except OutlastError as error:
            # supervision boundary: a record that is not kept is not acknowledged
            self._tell(f"warning: this node cannot keep a copy of the ledger: {error}")
            return
        self.voter.position = max(self.voter.position, kept.position)
        if kept.position != before:
            self._acknowledge(message.epoch, message.sent_s)

    def _acknowledge(self, epoch: int, seen_s: float) -> None:
        """Tell the coordinator which record this voter has, unless a newer candidate has its vote.

        `seen_s`: when the coordinator sent the message that is answered, by its own clock.
        """
        agent, position = self._agent, self.voter.position
        if agent is None or not self.votes:
            return
        if not self.voter.is_loyal(epoch, now_s=clock.now_s()):
            return  # it is acknowledged with a later grant; this node stays a voter until then
        number = position.number if position.epoch == epoch else 0
        agent.say(Kept(epoch, number, seen_s))
        if self._kept.ends_voting is not None and position.epoch == epoch:
            # The coordinator knows now that this voter has the record that ends the voting.
            self._named, self._kept.ends_voting = Voters(epoch, (), ()), None

    def note_position(self, position: Position) -> None:
        """Note the newest record of the ledger, on the node that leads."""
        self.voter.position = position

    # --- while it is missing ----------------------------------------------------------------------

    def flush(self) -> None:
        """Write the copy to the disk. It is called once a second (supervision boundary)."""
        try:
            self._kept.flush()
        except OutlastError as error:
            self._tell(f"warning: the copy of the ledger on this node cannot be written: {error}")

    def ask_if_missing(self) -> None:
        """Ask the voters, if the coordinator is missing. It is called with each heartbeat."""
        now_s = clock.now_s()
        if not self._named.nodes or not self.voter.misses(now_s=now_s):
            self._end_absence()
            return
        if self._absence is None:
            self._absence = _Absence(VoterInquiry(self._named.nodes))
        ask = self._absence.inquiry.ask(now_s=now_s)
        self._calls.ask(self._named, ask)
        if self.votes:
            self._hear(self._place.caller.node, self.voter.on_ask(ask, now_s=now_s))
            self._take_a_turn(self._absence, now_s)

    def _end_absence(self) -> None:
        """Stop asking, and give up an attempt to take over: the coordinator is heard again."""
        absence, self._absence = self._absence, None
        if absence is not None:
            self._calls.close()
            self._give_up(absence)

    def _give_up(self, absence: _Absence) -> None:
        """Give up an attempt to take over, if there is one: no vote for it counts any more."""
        attempt, absence.attempt = absence.attempt, None
        if attempt is not None:
            attempt.listening.close()
            self.voter.withdraw(now_s=clock.now_s())

    def _answer(self, message: Message) -> Message | None:
        """Return the answer to another node's question. Return None if it gets no answer."""
        now_s = clock.now_s()
        if isinstance(message, Ask):
            return self.voter.on_ask(message, now_s=now_s) if self.votes else self._name(message)
        if isinstance(message, Claim) and self.votes:
            granted = self.voter.on_claim(message, now_s=now_s)
            if granted:
                self._follow(message.leader)
            return Claimed(message.epoch, granted)
        return None

    def _name(self, ask: Ask) -> Answer:
        """Answer an agent that asks which node leads. This node is not a voter.

        A new coordinator of two nodes names no voters. The old coordinator still asks the voters
        that it had named. Without this answer it would never learn which node leads now.
        """
        promised, leader = self.voter.promised, self.voter.leader
        return Answer(ask.number, False, promised, leader, at_epoch=0, at_number=0)

    def _hear(self, node: str, message: Message) -> None:
        """Handle a voter's answer to this node's question."""
        absence, agent = self._absence, self._agent
        if absence is None or agent is None:
            return  # the coordinator is back, so the answer does not matter any more
        if isinstance(message, Claimed):
            self._on_vote(absence, node, message)
        elif isinstance(message, Answer):
            asked_s = absence.inquiry.hear(node, message)
            if asked_s is not None:
                absence.since_s = asked_s if absence.since_s is None else absence.since_s
                agent.prolong_lease(asked_s)
            if message.leader and message.epoch > agent.epoch:
                self._hear_of_leader(message)

    def _hear_of_leader(self, answer: Answer) -> None:
        """Follow the coordinator that a node names, unless a newer one has got this node's vote.

        If the node that answers hears this coordinator, the coordinator was elected, and is
        followed whatever this node has promised. Otherwise it may still be a candidate, which lets
        no agent in before a majority has voted for it.
        """
        if not answer.missing:
            self.voter.note_leader(answer.epoch, answer.leader)
            self._follow(answer.leader)
        elif answer.epoch > self.voter.promised:
            self._follow(answer.leader)

    def _follow(self, leader: str) -> None:
        """Let the agent connect to the node that leads, at HOST:PORT."""
        if self._agent is not None:
            self._agent.follow(split_address(leader))

    # --- taking over ------------------------------------------------------------------------------

    def _take_a_turn(self, absence: _Absence, now_s: float) -> None:
        """Ask for votes, if it is this node's turn."""
        attempt = absence.attempt
        begins_s = limits.CLAIM_LEASES * self._place.facts.lease_s  # a candidate leads by then
        if attempt is not None:
            if now_s < attempt.claimed_s + begins_s:
                return  # votes may still come
            self._give_up(absence)
            absence.since_s = now_s
        if absence.since_s is None or self._kept.ledger is None:
            return  # others still hear the coordinator, or this node has nothing to go on from
        turn = self._named.nodes.index(self._place.caller.node) - 1
        waits_s = turn * limits.CLAIM_STAGGER_S
        if absence.inquiry.newest > self.voter.position:
            # a voter with newer records would refuse its vote, so that voter tries first
            waits_s += begins_s
        if now_s >= absence.since_s + waits_s:
            self._claim(absence, now_s)

    def _claim(self, absence: _Absence, now_s: float) -> None:
        """Ask all voters for their votes."""
        place = self._place
        try:
            listening = listen_in(place.address, place.ports)
        except OSError as error:
            # another voter may take the run over; this one tries again at its next turn
            self._tell(f"warning: this node cannot take the run over: {error.strerror}")
            return
        leader = f"{place.address}:{listening.getsockname()[1]}"
        claim = self.voter.stand(leader, above=self._named.epoch, now_s=now_s)
        if claim is None:
            listening.close()
            return  # this node has promised its vote to another node
        absence.attempt = _Attempt(claim.epoch, now_s, listening, {place.caller.node})
        self._calls.ask(self._named, claim)

    def _on_vote(self, absence: _Absence, node: str, claimed: Claimed) -> None:
        """Count a vote, and lead the run once a majority has voted for this node."""
        attempt, nodes = absence.attempt, self._named.nodes
        if attempt is None or claimed.epoch != attempt.epoch or not claimed.granted:
            return  # the answer is about an older attempt, or a refusal
        if self.voter.promised != attempt.epoch:
            return  # this node itself has voted for a newer candidate since
        attempt.votes.add(node)
        if len(attempt.votes & set(nodes)) < majority(len(nodes)):
            return  # more votes are needed
        ledger = self._kept.hand_over()
        if ledger is None:
            # the copy was lost since the attempt began; other voters can still take the run over
            return
        own = nodes.index(self._place.caller.node)
        order = (own, *(place for place in range(len(nodes)) if place != own))
        named = Voters(
            attempt.epoch,
            tuple(nodes[place] for place in order),
            tuple(self._named.addresses[place] for place in order),
        )
        self._named, absence.attempt = named, None
        leader, votes = self.voter.leader, tuple(attempt.votes)
        listening = attempt.listening
        try:
            self._lead(Election(attempt.epoch, named, votes, attempt.claimed_s, listening, ledger))
        except OutlastError as error:
            # Supervision boundary: the other nodes no longer hear this node, and elect another one.
            self._tell(f"warning: this node was elected to lead the run, and cannot: {error}")
            listening.close()
            self.voter.withdraw(now_s=clock.now_s())
        else:
            self._follow(leader)
