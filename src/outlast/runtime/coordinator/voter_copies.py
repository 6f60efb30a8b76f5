"""The coordinator's copies of the ledger: it sends them to the voters, and counts who has them.

    begin ──Voters, and a Keep for each record that the ledger holds──> each voter
    add   ──Keep──> each voter ──Kept──> hear

If a voter comes back, everything that it has not acknowledged is sent again. A voter that lags too
far behind gets nothing more, and acknowledges nothing. Everything runs on one thread, which is that
of the loop.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from outlast.engine.cluster.voting import Authority, Position
from outlast.model import limits
from outlast.model.messages import Keep, Kept, Message, Voters
from outlast.model.records import Record, Records
from outlast.runtime import clock
from outlast.runtime.ledger import record_text

# the most characters of a record; a longer one is not copied
_LONGEST = limits.MESSAGE_MAX_BYTES // 2


@dataclass
class _Waiting:
    """The records that one voter has not acknowledged. `lags`: there were too many to keep them."""

    copies: deque[Keep] = field(default_factory=deque)
    lags: bool = False


class VoterCopies:
    """Send copies of the ledger to the voters. Until `begin`, there are no voters.

    send   hands a message to a node, if it is connected
    wrote  is called with each new record
    """

    def __init__(
        self,
        *,
        epoch: int,
        own: str,
        lease_s: float,
        send: Callable[[str, Message], None],
        wrote: Callable[[Position], None],
    ) -> None:
        self.authority: Authority | None = None
        self.newest = 0  # the newest record that was sent
        self._epoch = epoch
        self._own = own
        self._lease_s = lease_s
        self._send = send
        self._wrote = wrote
        self._named: Voters | None = None
        self._waiting: dict[str, _Waiting] = {}

    @property
    def voters(self) -> tuple[str, ...]:
        """Return the voters. There are none if no node can take over."""
        return () if self._named is None else self._named.nodes

    def begin(
        self, named: Voters, records: Records, *, loyal: Iterable[str], heard_s: float
    ) -> None:
        """Name the voters, and send them what the ledger contains so far.

        loyal    those that count as heard at `heard_s`: for a first coordinator all voters,
                 otherwise those that voted for it
        """
        self._named = named
        self.authority = Authority(
            named.nodes, own=self._own, loyal=loyal, lease_s=self._lease_s, heard_s=heard_s
        )
        self._waiting = {node: _Waiting() for node in named.nodes if node != self._own}
        texts = list(record_text.write_all(records))  # at least two, for the run and a session
        for place, text in enumerate(texts, start=1):
            self._keep("first" if place == 1 else "last" if place == len(texts) else "more", text)

    def end(self) -> None:
        """Forget all voters."""
        self._named, self.authority = None, None
        self._waiting.clear()

    def introduce(self, node: str) -> None:
        """Tell a node that was admitted who the voters are.

        If it is a voter, it also gets the records that it lacks.
        """
        if self._named is None:
            return
        self._send(node, self._named)
        if node in self._waiting:
            for copy in self._waiting[node].copies:
                self._send(node, copy)

    def add(self, record: Record) -> None:
        """Send a record that was written in the ledger."""
        if self._named is not None:
            self._keep("", record_text.write(record))

    def _keep(self, part: str, text: str) -> None:
        if len(text) > _LONGEST:
            text = json.dumps("a record that is too long")
        self.newest += 1
        self._wrote(Position(self._epoch, self.newest))
        copy = Keep(self._epoch, self.newest, part, clock.now_s(), text)
        for node, waiting in self._waiting.items():
            if waiting.lags:
                continue
            waiting.copies.append(copy)
            if len(waiting.copies) > limits.COPIES_QUEUE_MAX_COUNT:
                waiting.copies.clear()
                waiting.lags = True
                continue
            self._send(node, copy)

    def hear(self, node: str, kept: Kept) -> None:
        """Note which records a voter has acknowledged."""
        if self.authority is None or kept.epoch != self._epoch or node not in self._waiting:
            return
        self.authority.hear(node, kept)
        copies = self._waiting[node].copies
        while copies and copies[0].number <= kept.number:
            copies.popleft()

    def holds(self) -> bool:
        """Return whether this coordinator may still prolong leases."""
        return self.authority is None or self.authority.holds(clock.now_s())

    def counts(self, number: int) -> bool:
        """Return whether a majority of the voters holds record `number`."""
        return self.authority is None or self.authority.counted(self.newest) >= number
