"""What a coordinator may do only with a majority of the voters, and what it does without one.

    no voters ──the first generation is written──> leads ──not heard by a majority──> RESIGNED

While it leads, nothing that follows from a decisive record is carried out before a majority of the
voters holds that record. Without a majority it prolongs no lease. A coordinator that has lost its
majority for more than a lease resigns: another one may lead the run by then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outlast.engine.cluster.voting import Position, choose_voters
from outlast.model.messages import Enrol, Kept, Message, Voters
from outlast.model.records import LEADS, Event, Records
from outlast.runtime import clock
from outlast.runtime.coordinator.agent_listener import AgentListener
from outlast.runtime.coordinator.voter_copies import Copies
from outlast.runtime.loop import Loop, Timer

LOOKS_PER_LEASE = 5


@dataclass(frozen=True, slots=True)
class QuorumPlace:
    """Where a coordinator leads, and what it needs of the node there.

    node      its own
    records   returns what the ledger holds
    wrote     is told how much the coordinator has written
    resigned  is called once the coordinator has resigned
    """

    loop: Loop
    node: str
    lease_s: float
    records: Callable[[], Records]
    wrote: Callable[[Position], None]
    resigned: Callable[[], object]


class Quorum:
    """Lead with a majority of the voters. The listener comes with `stand_before`."""

    def __init__(self, place: QuorumPlace, *, epoch: int, note: Callable[[Event], None]) -> None:
        self._place = place
        self._epoch = epoch
        self._note = note
        self._votes_at: dict[str, str] = {}  # where each node answers as a voter
        self._listener: AgentListener | None = None
        self._awaited = 0  # the record that a majority has to hold before anything goes on; 0: none
        self._timer: Timer | None = None
        self.is_over = False
        self.copies = Copies(
            epoch=epoch, own=place.node, lease_s=place.lease_s, send=self._send, wrote=place.wrote
        )

    def stand_before(self, listener: AgentListener) -> None:
        """Hold this listener's outputs back until what was decided counts."""
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

    # --- who votes --------------------------------------------------------------------------------

    def let_in(self, enrol: Enrol) -> None:
        """Take in that a node has enrolled: it is told who the voters are."""
        if enrol.votes:
            self._votes_at[enrol.node] = enrol.votes
        self.copies.introduce(enrol.node)

    def begin(self, nodes: list[str]) -> tuple[str, ...]:
        """Name the voters of a run that begins, of these nodes. Return them."""
        able = [node for node in nodes if node in self._votes_at]
        voters = choose_voters(self._place.node, able) if self._place.node in able else ()
        if voters:
            addresses = tuple(self._votes_at[node] for node in voters)
            named = Voters(self._epoch, voters, addresses)
            if self._listener is not None:
                self._listener.tell_all(named)
            self.copies.begin(named, self._place.records(), loyal=voters, heard_s=clock.now_s())
            self._watch()
        self._note_voters(voters)
        return voters

    def succeed(
        self, named: Voters, records: Records, *, loyal: tuple[str, ...], heard_s: float
    ) -> None:
        """Lead after another coordinator, with the same voters."""
        self.copies.begin(named, records, loyal=loyal, heard_s=heard_s)
        self._note_voters(named.nodes)
        self._watch()

    def _note_voters(self, voters: tuple[str, ...]) -> None:
        data = {"node": self._place.node, "epoch": self._epoch, "voters": list(voters)}
        self._note(Event(clock.now_s(), clock.wall_s(), LEADS, data))

    # --- with a majority --------------------------------------------------------------------------

    def wrote_at_once(self) -> None:
        """Let nothing follow from the newest record before a majority of the voters holds it."""
        if not self.copies.counts(self.copies.newest) and self._listener is not None:
            self._awaited = self.copies.newest
            self._listener.hold()

    def hear(self, node: str, kept: Kept) -> None:
        """Take in what a voter holds."""
        self.copies.hear(node, kept)
        if self._awaited and self.copies.counts(self._awaited) and self._listener is not None:
            self._awaited = 0
            self._listener.release()

    def _watch(self, lost: bool = False) -> None:
        """Resign if the majority is lost, also after what has arrived meanwhile was read."""
        now_lost = not self.copies.holds()
        if lost and now_lost:
            self._timer = None
            self._place.resigned()
            return
        self._timer = self._place.loop.call_at(
            clock.now_s() + self._place.lease_s / LOOKS_PER_LEASE, lambda: self._watch(now_lost)
        )
