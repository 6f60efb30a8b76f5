"""`Quorum`: holds a coordinator back until a majority of the voters has its records.

    LEADS ALONE ──voters are named──> LEADS WITH A MAJORITY ──not heard by one──> RESIGNED
         ^                                  │
         └──a voter is lost, and a majority holds that nobody votes any more

When a voter is lost, there are no voters for a moment. Then they are named again, if there are
enough nodes.

While there are voters, the outputs that follow a decisive record wait until a majority of the
voters holds that record. Without a majority, the coordinator prolongs no lease. After one lease
without a majority it resigns, because another coordinator may lead the run by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outlast.engine.cluster.voting import Position, choose_voters, named_s
from outlast.errors import OutlastError
from outlast.model import limits
from outlast.model.messages import Enrol, Kept, Message, Voters
from outlast.model.records import LEADS, Event, Records
from outlast.runtime import clock
from outlast.runtime.coordinator.agent_listener import AgentListener
from outlast.runtime.coordinator.voter_copies import VoterCopies
from outlast.runtime.loop import Loop, LoopTimer

LOOKS_PER_LEASE = 5


@dataclass(frozen=True, slots=True)
class QuorumPlace:
    """The node on which a coordinator leads, and the services that it uses there.

    node      the name of that node
    epoch     the number of the coordinator
    records   returns what the ledger contains
    nodes     returns the nodes that take part
    wrote     is called with how much the coordinator has written
    resigned  is called once the coordinator has resigned
    tell      shows people a line
    note      writes an event in the ledger
    """

    loop: Loop
    node: str
    epoch: int
    lease_s: float
    records: Callable[[], Records]
    nodes: Callable[[], list[str]]
    wrote: Callable[[Position], None]
    resigned: Callable[[], object]
    tell: Callable[[str], None]
    note: Callable[[Event], None]


class Quorum:
    """Lead only with a majority of the voters: they keep copies of the ledger.

    Call `stand_before` with the listener first. Then call `begin` to name voters, or `succeed` if
    this node was elected. After a record on which something depends, call `wrote_at_once`: messages
    to agents are then held back until a majority of the voters has that record.
    """

    def __init__(self, place: QuorumPlace) -> None:
        self._place = place
        self._votes_at: dict[str, str] = {}  # the address at which each node answers as a voter
        self._listener: AgentListener | None = None
        # the record that a majority has to hold before messages are sent again; 0: none
        self._awaited = 0
        self._ends_with = 0  # the record that ends the voting, once a majority holds it; 0: none
        self._timer: LoopTimer | None = None
        self.is_over = False
        self.named = False  # voters were named, or it was said that there are none
        self.copies = VoterCopies(
            epoch=place.epoch,
            own=place.node,
            lease_s=place.lease_s,
            send=self._send,
            wrote=place.wrote,
        )

    def stand_before(self, listener: AgentListener) -> None:
        """Set the listener whose messages are held back until a majority holds what was decided."""
        self._listener = listener

    def _send(self, node: str, message: Message) -> None:
        if self._listener is not None:
            self._listener.tell(node, message)

    def close(self) -> None:
        """Stop watching: this coordinator is over."""
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def successors(self) -> tuple[str, ...]:
        """Return the nodes of which one takes the run over if this one leaves; () if none can."""
        if self._ends_with or self.is_over:
            return ()
        return tuple(node for node in self.copies.voters if node != self._place.node)

    # --- the voters -------------------------------------------------------------------------------

    def let_in(self, enrol: Enrol) -> None:
        """Tell a node that has enrolled who the voters are."""
        if enrol.votes:
            self._votes_at[enrol.node] = enrol.votes
        self.copies.introduce(enrol.node)
        if self.named and not self.copies.voters:
            self._send(enrol.node, self._nobody())
            self._name_later()

    def begin(self) -> tuple[str, ...]:
        """Name voters among the connected nodes, and return them.

        Return () if there are too few.
        """
        self.named, able = True, self._able()
        voters = choose_voters(self._place.node, able) if self._place.node in able else ()
        try:
            records = self._place.records()
        except OutlastError as error:
            # supervision boundary: the ledger is tried again each second, but naming the voters is
            # not
            self._place.tell(f"warning: nobody can take the run over: {error}")
            return ()
        if voters:
            addresses = tuple(self._votes_at[node] for node in voters)
            named = Voters(self._place.epoch, voters, addresses)
            if self._listener is not None:
                self._listener.tell_all(named)
            heard_s = named_s(clock.now_s(), self._place.lease_s)
            self.copies.begin(named, records, loyal=voters, heard_s=heard_s)
            if self._timer is None:
                self._watch()
        self._note_voters(voters)
        return voters

    def _able(self) -> list[str]:
        """Return the connected nodes that can vote."""
        return [node for node in self._place.nodes() if node in self._votes_at]

    def lose(self, node: str) -> None:
        """Handle the loss of a node. If it was a voter, new voters will be named."""
        self._votes_at.pop(node, None)
        if node in self.copies.voters and not self._ends_with:
            self._note_voters(())
            self._ends_with = self.copies.newest

    def _end(self) -> None:
        """Lead without voters for a while, because a voter was lost.

        A majority of the old voters has the record that ends the voting. New voters are named after
        VOTERS_RENEW_S.
        """
        self._ends_with = 0
        self.copies.end()
        if self._listener is not None:
            self._listener.tell_all(self._nobody())
        self._release()
        self._name_later()
        if len(self._able()) < limits.VOTERS_LEAST:
            self._place.tell("fewer than three nodes are left: nobody can take the run over now")

    def _nobody(self) -> Voters:
        return Voters(self._place.epoch, (), ())

    def _name_later(self) -> None:
        self._place.loop.call_at(clock.now_s() + limits.VOTERS_RENEW_S, self._name_again)

    def _name_again(self) -> None:
        few = len(self._able()) < limits.VOTERS_LEAST
        if not self.is_over and not self.copies.voters and not few:
            voters = self.begin()
            self._place.tell(f"if this node is lost, one of {', '.join(voters[1:])} takes over")

    def succeed(
        self, named: Voters, records: Records, *, loyal: tuple[str, ...], heard_s: float
    ) -> None:
        """Lead after another coordinator, with the same voters."""
        self.copies.begin(named, records, loyal=loyal, heard_s=heard_s)
        self.named = True
        self._note_voters(named.nodes)
        self._watch()

    def _note_voters(self, voters: tuple[str, ...]) -> None:
        data = {"node": self._place.node, "epoch": self._place.epoch, "voters": list(voters)}
        self._place.note(Event(clock.now_s(), clock.wall_s(), LEADS, data))

    # --- leading with a majority ------------------------------------------------------------------

    def wrote_at_once(self) -> None:
        """Hold all messages to agents back until a majority of the voters has the newest record."""
        if self.is_over or self._listener is None:
            return  # this coordinator is closed, and no decision follows any more
        if not self.copies.counts(self.copies.newest):
            self._awaited = self.copies.newest
            self._listener.hold()

    def hear(self, node: str, kept: Kept) -> None:
        """Note which records a voter holds, and release messages that waited for that."""
        self.copies.hear(node, kept)
        if self._ends_with and self.copies.counts(self._ends_with):
            self._end()
        elif self._awaited and self.copies.counts(self._awaited):
            self._release()

    def _release(self) -> None:
        if self._awaited and self._listener is not None:
            self._awaited = 0
            self._listener.release()

    def _watch(self, lost: bool = False) -> None:
        """Resign if the majority is lost, and is still lost after all messages were read."""
        now_lost = not self.copies.holds()
        if lost and now_lost:
            self._timer = None
            self._place.resigned()
            return
        self._timer = self._place.loop.call_at(
            clock.now_s() + self._place.lease_s / LOOKS_PER_LEASE, lambda: self._watch(now_lost)
        )
