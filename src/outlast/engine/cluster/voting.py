"""How a run survives its coordinator: who may lead, and how long agents may go on without one.

The voters are up to five agents, the coordinator's own among them. Three rules keep two
coordinators from deciding at the same time.

    Records    A decision counts once a majority of the voters holds its record
               (`Authority.counted`).
    Authority  A coordinator prolongs leases only while it has heard from a majority of the voters
               within the last lease (`Authority.holds`). A voter that has given its vote to another
               coordinator never acknowledges this one again. A voter that has told an agent that
               the coordinator is missing does not acknowledge it until that agent's lease is over.
    Votes      A voter gives at most one vote in an epoch. It does so only while it does not hear
               from the coordinator, and only for a candidate that holds all records that it holds
               (`Voter.on_claim`). A candidate that gives up takes its own vote back
               (`Voter.withdraw`); no other vote is ever taken back.

Any two majorities have a voter in common. So a new coordinator holds every decision that counted.
One lease after its election, the coordinator before it has no authority any more.

An agent whose lease is not prolonged asks all voters. If a majority does not hear from the
coordinator either, the agent's processes go on for one more lease from the moment of asking
(`VoterInquiry`). Otherwise only this agent is cut off. It kills its processes, and its ranks are
given away.

This module is pure. Times are in seconds, by the clock of the calling node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from outlast.engine.cluster.lease import void_after_s
from outlast.model import limits
from outlast.model.messages import Answer, Ask, Claim, Kept


class Position(NamedTuple):
    """The newest record that a voter holds. Records of a later epoch are newer than all others."""

    epoch: int
    number: int


def majority(count: int) -> int:
    """Return how many of `count` voters are a majority."""
    return count // 2 + 1


def choose_voters(leader: str, others: Iterable[str]) -> tuple[str, ...]:
    """Return the voters of a run: an odd number, up to VOTERS_COUNT, the coordinator's node first.

    With fewer than three nodes there are none, because the rest would be no majority.
    """
    nodes = [leader, *(node for node in others if node != leader)]
    if len(nodes) < limits.VOTERS_LEAST:
        return ()
    count = min(len(nodes), limits.VOTERS_COUNT)
    return tuple(nodes[: count - (count % 2 == 0)])


def takes_over_after_s(lease_s: float) -> float:
    """Return for how long a new coordinator waits for nodes before it counts them out.

    Until then their processes may still go on. The coordinator before had authority for one lease.
    And for CLAIM_LEASES its voters may have told agents that the coordinator is missing.
    """
    unled_s = limits.CLAIM_LEASES * lease_s * (1 + limits.CLOCK_DRIFT_MAX)
    return unled_s + void_after_s(lease_s)


def elected_s(claimed_s: float, lease_s: float) -> float:
    """Return when a coordinator that was elected counts as having heard its voters.

    It asked for their votes at `claimed_s`. For CLAIM_LEASES after that they do not vote for
    another candidate.
    """
    return claimed_s + (limits.CLAIM_LEASES * (1 - limits.CLOCK_DRIFT_MAX) - 1) * lease_s


def named_s(now_s: float, lease_s: float) -> float:
    """Return when a coordinator that names its voters now counts as having heard them.

    They get one more lease, to copy the ledger. That is safe: no voter votes for another
    coordinator before it has lost contact with this one, and the other one waits longer
    (`takes_over_after_s`).
    """
    return now_s + lease_s


class Authority:
    """Decide whether a coordinator may still prolong leases, and which of its records count.

    own      the name of the coordinator's own node, which is always heard
    loyal    the voters that count as heard at `heard_s`
    heard_s  `named_s` for the first coordinator, `elected_s` for a later one
    """

    def __init__(
        self,
        voters: tuple[str, ...],
        *,
        own: str,
        loyal: Iterable[str],
        lease_s: float,
        heard_s: float,
    ) -> None:
        self.voters = voters
        self._own = own
        self._lease_s = lease_s
        self._seen_s = {node: heard_s for node in loyal if node in voters}
        self._kept: dict[str, int] = {}

    def hear(self, node: str, kept: Kept) -> None:
        """Note that a voter has heard the coordinator, and which records it holds."""
        if node in self.voters:
            self._seen_s[node] = max(self._seen_s.get(node, -math.inf), kept.seen_s)
            self._kept[node] = max(self._kept.get(node, 0), kept.number)

    def until_s(self, now_s: float) -> float:
        """Return until when the coordinator may prolong leases."""
        seen = [
            now_s if node == self._own else self._seen_s.get(node, -math.inf)
            for node in self.voters
        ]
        return sorted(seen, reverse=True)[majority(len(self.voters)) - 1] + self._lease_s

    def holds(self, now_s: float) -> bool:
        """Return whether the coordinator may prolong leases now."""
        return now_s < self.until_s(now_s)

    def counted(self, newest: int) -> int:
        """Return the newest record that counts: a majority holds it and all records before it.

        newest   the newest record of the coordinator itself
        """
        kept = [newest if node == self._own else self._kept.get(node, 0) for node in self.voters]
        return sorted(kept, reverse=True)[majority(len(self.voters)) - 1]


class Voter:
    """One voter: to whom it has given its vote, and which records it holds.

    promised   the newest epoch in which it has voted, or whose coordinator it follows
    leader     where the coordinator of that epoch listens; "" for the first coordinator
    position   the newest record that it holds

    A voter may be a candidate itself. Then it votes for itself (`stand`).
    """

    def __init__(self, *, lease_s: float, now_s: float) -> None:
        self.promised = 0
        self.leader = ""
        self.position = Position(0, 0)
        self._lease_s = lease_s
        self._heard_s = now_s
        self._silent_until_s = -math.inf
        self._voted_until_s = -math.inf  # until then, no other candidate gets this vote
        self._stood = 0  # the newest epoch in which this node was a candidate
        self._before = (0, "")  # `promised` and `leader` before that
        self._named = (0, "")  # an epoch and its leader, as another node has told

    def hear(self, epoch: int, *, now_s: float) -> None:
        """Note that the coordinator of `epoch` has prolonged this node's lease."""
        if epoch >= self.promised:
            self._heard_s = now_s
            if self._named[0] == epoch:
                self.promised, self.leader = self._named
            elif epoch > self.promised:
                self.promised, self.leader = epoch, ""

    def note_leader(self, epoch: int, leader: str) -> None:
        """Note where the coordinator of `epoch` listens. A node that hears it has told that."""
        self._named = (epoch, leader)

    def misses(self, *, now_s: float) -> bool:
        """Return True if this voter has not heard from the coordinator for too long."""
        return now_s >= self._heard_s + limits.MISSED_SHARE * self._lease_s

    def is_loyal(self, epoch: int, *, now_s: float) -> bool:
        """Return True if this voter may acknowledge the coordinator of `epoch`."""
        return epoch >= self.promised and now_s >= self._silent_until_s

    def on_ask(self, ask: Ask, *, now_s: float) -> Answer:
        """Answer an agent that does not hear from the coordinator."""
        missing = self.misses(now_s=now_s)
        if missing and now_s >= self._voted_until_s:
            # The agent may go on for one lease. Until that is over, this voter acknowledges no
            # coordinator, which might give that agent's ranks away. A candidate that it has just
            # voted for is excepted, because it gives no rank away so early (`takes_over_after_s`).
            self._silent_until_s = now_s + void_after_s(self._lease_s)
        return Answer(ask.number, missing, self.promised, self.leader, *self.position)

    def on_claim(self, claim: Claim, *, now_s: float) -> bool:
        """Return whether the candidate gets this voter's vote."""
        if claim.epoch <= self.promised or not self.misses(now_s=now_s):
            return False
        if now_s < self._voted_until_s:
            return False  # the candidate that has this vote may be about to lead
        if Position(claim.at_epoch, claim.at_number) < self.position:
            return False  # the candidate may lack a decision that counted
        self.promised, self.leader = claim.epoch, claim.leader
        self._voted_until_s = now_s + limits.CLAIM_LEASES * self._lease_s
        self._silent_until_s = -math.inf
        return True

    def stand(self, leader: str, *, above: int, now_s: float) -> Claim | None:
        """Make this node a candidate. Return the message that asks the others for their votes.

        leader  where this node listens, as HOST:PORT
        above   the epoch of the coordinator that is missing

        It returns None if this node may not vote for itself now; see `on_claim`.
        """
        before = (self.promised, self.leader)
        epoch = max(self.promised, self._stood, above) + 1
        claim = Claim(epoch, leader, *self.position)
        if not self.on_claim(claim, now_s=now_s):
            return None
        self._stood, self._before = epoch, before
        return claim

    def withdraw(self, *, now_s: float) -> None:
        """Take back this node's vote for itself, because it will not lead in that epoch.

        Another node may have been elected in that epoch or an earlier one. Without this, the voter
        would never follow it. While this node was a candidate it may have told agents that they may
        go on, so it acknowledges no coordinator until their leases are over.
        """
        if self.promised == self._stood:
            self.promised, self.leader = self._before
            self._voted_until_s = -math.inf
            self._silent_until_s = now_s + void_after_s(self._lease_s)


class VoterInquiry:
    """Ask the voters whether they hear from the coordinator, and count their answers.

    newest   the newest record that any of them holds, as far as they have answered
    """

    def __init__(self, voters: tuple[str, ...]) -> None:
        self.voters = voters
        self.newest = Position(0, 0)
        self._number = 0
        self._asked_s = 0.0
        self._missing: set[str] = set()

    def ask(self, *, now_s: float) -> Ask:
        """Return the next question, for all voters."""
        self._number, self._asked_s = self._number + 1, now_s
        self._missing.clear()
        return Ask(self._number)

    def hear(self, node: str, answer: Answer) -> float | None:
        """Count an answer.

        If a majority does not hear from the coordinator either, return when the newest question was
        asked: the agent may go on for one lease from then. Otherwise return None.
        """
        if node not in self.voters:
            return None
        self.newest = max(self.newest, Position(answer.at_epoch, answer.at_number))
        if answer.number != self._number or not answer.missing:
            return None  # it answers an older question, or hears from the coordinator
        self._missing.add(node)
        return self._asked_s if len(self._missing) >= majority(len(self.voters)) else None
