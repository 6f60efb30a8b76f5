"""How a run outlives its coordinator: who may lead, and for how long agents go on without one.

The voters are up to five agents, the coordinator's own among them. Three rules keep two
coordinators from deciding at the same time.

    Records    A decision counts once a majority of the voters holds its record
               (`Authority.counted`).
    Authority  A coordinator prolongs leases only while it has heard from a majority of the voters
               within the last lease (`Authority.holds`). A voter that has promised its vote to
               another coordinator is silent for ever; one that has told an agent that the
               coordinator is missing is silent until that agent's lease is over.
    Votes      A voter gives its vote in an epoch once, while it misses the coordinator itself, and
               only to a candidate that holds all that it holds (`Voter.on_claim`). A candidate
               that gives up takes its own vote back (`Voter.withdraw`). Nobody else does that.

Two majorities have a voter in common. So a new coordinator holds every decision that counted, and
the one before it has no authority left a lease after its successor was elected.

An agent whose lease is not prolonged asks all voters. If a majority misses the coordinator too, its
processes go on for one more lease from the moment of asking (`Inquiry`). If not, only this agent is
cut off, and its ranks may be given away.

This module is pure. Times are of the clock of the node that calls, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from outlast.engine.cluster.lease import void_after_s
from outlast.model import limits
from outlast.model.messages import Answer, Ask, Claim, Kept


class Position(NamedTuple):
    """The newest record that a voter holds. Those of a later epoch come after all earlier ones."""

    epoch: int
    number: int


def majority(count: int) -> int:
    """Return how many of `count` voters are a majority."""
    return count // 2 + 1


def choose_voters(leader: str, others: Iterable[str]) -> tuple[str, ...]:
    """Return the voters of a run: an odd number, up to VOTERS_COUNT, the coordinator's node first.

    With fewer than three nodes there are none, because nobody could take over.
    """
    nodes = [leader, *(node for node in others if node != leader)]
    if len(nodes) < limits.VOTERS_LEAST:
        return ()
    count = min(len(nodes), limits.VOTERS_COUNT)
    return tuple(nodes[: count - (count % 2 == 0)])


def takes_over_after_s(lease_s: float) -> float:
    """Return how long a new coordinator waits for nodes that do not come.

    Until then they may go on: the coordinator before it had authority for a lease, and its voters
    may tell agents for CLAIM_LEASES that nobody leads.
    """
    unled_s = limits.CLAIM_LEASES * lease_s * (1 + limits.CLOCK_DRIFT_MAX)
    return unled_s + void_after_s(lease_s)


def elected_s(claimed_s: float, lease_s: float) -> float:
    """Return when those that voted for a coordinator count as heard, if it claimed at `claimed_s`.

    They give their votes to nobody else for CLAIM_LEASES.
    """
    return claimed_s + (limits.CLAIM_LEASES * (1 - limits.CLOCK_DRIFT_MAX) - 1) * lease_s


def named_s(now_s: float, lease_s: float) -> float:
    """Return when the voters of a coordinator that names them now count as heard.

    They are given a lease more, to make their copies. None of them votes for another coordinator
    before it has missed this one, and that one waits for longer (`takes_over_after_s`).
    """
    return now_s + lease_s


class Authority:
    """Decide whether a coordinator may still prolong leases, and which of its records count.

    loyal    the voters that count as heard at `heard_s`; the coordinator's own is one of them
    heard_s  see `named_s`, and `elected_s` of a coordinator after the first
    """

    def __init__(
        self, voters: tuple[str, ...], *, own: str, loyal: Iterable[str], lease_s: float,
        heard_s: float,
    ) -> None:  # fmt: skip
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
        """Return up to which record a majority holds all. `newest`: what the coordinator holds."""
        kept = [newest if node == self._own else self._kept.get(node, 0) for node in self.voters]
        return sorted(kept, reverse=True)[majority(len(self.voters)) - 1]


class Voter:
    """The memory of one voter: whom it has promised its vote, and what it holds.

    promised   the newest epoch that it has given its vote in, or whose coordinator it follows
    leader     where the coordinator of that epoch listens; "" for the first
    position   the newest record that it holds

    While its node is a candidate, the promise is its own (`stand`).
    """

    def __init__(self, *, lease_s: float, now_s: float) -> None:
        self.promised = 0
        self.leader = ""
        self.position = Position(0, 0)
        self._lease_s = lease_s
        self._heard_s = now_s
        self._silent_until_s = -math.inf
        self._voted_until_s = -math.inf  # by then a candidate that got this vote must have led
        self._stood = 0  # the newest epoch that this node wanted to lead in
        self._before = (0, "")  # what it had promised before that
        self._named = (0, "")  # an epoch, and who leads in it, as a node says that hears this one

    def hear(self, epoch: int, *, now_s: float) -> None:
        """Note that the coordinator of `epoch` has prolonged this node's lease."""
        if epoch >= self.promised:
            self._heard_s = now_s
            if self._named[0] == epoch:
                self.promised, self.leader = self._named
            elif epoch > self.promised:
                self.promised, self.leader = epoch, ""

    def note_leader(self, epoch: int, leader: str) -> None:
        """Note where the coordinator of `epoch` listens, as a node says that hears it."""
        self._named = (epoch, leader)

    def misses(self, *, now_s: float) -> bool:
        """Return whether the coordinator has not been heard of for too long."""
        return now_s >= self._heard_s + limits.MISSED_SHARE * self._lease_s

    def is_loyal(self, epoch: int, *, now_s: float) -> bool:
        """Return whether the coordinator of `epoch` may count on this voter."""
        return epoch >= self.promised and now_s >= self._silent_until_s

    def on_ask(self, ask: Ask, *, now_s: float) -> Answer:
        """Answer an agent that misses the coordinator."""
        missing = self.misses(now_s=now_s)
        if missing and now_s >= self._voted_until_s:
            # The agent may go on for a lease. Until it is over, this voter supports no decision
            # that might give that agent's ranks away. A candidate that it has just voted for makes
            # none so early (`takes_over_after_s`).
            self._silent_until_s = now_s + void_after_s(self._lease_s)
        return Answer(ask.number, missing, self.promised, self.leader, *self.position)

    def on_claim(self, claim: Claim, *, now_s: float) -> bool:
        """Return whether the candidate gets this voter's vote."""
        if claim.epoch <= self.promised or not self.misses(now_s=now_s):
            return False
        if now_s < self._voted_until_s:
            return False  # the one that it has voted for may be about to begin
        if Position(claim.at_epoch, claim.at_number) < self.position:
            return False  # a decision that counted may be unknown to it
        self.promised, self.leader = claim.epoch, claim.leader
        self._voted_until_s = now_s + limits.CLAIM_LEASES * self._lease_s
        self._silent_until_s = -math.inf
        return True

    def stand(self, leader: str, *, above: int, now_s: float) -> Claim | None:
        """Vote for this node itself. Return the question that it asks for the others' votes.

        leader  where it listens, as HOST:PORT
        above   the epoch of the coordinator that is missing

        Returns None if this node may not vote for itself now, as `on_claim` says.
        """
        before = (self.promised, self.leader)
        epoch = max(self.promised, self._stood, above) + 1
        claim = Claim(epoch, leader, *self.position)
        if not self.on_claim(claim, now_s=now_s):
            return None
        self._stood, self._before = epoch, before
        return claim

    def withdraw(self, *, now_s: float) -> None:
        """Take back this node's vote for itself: it will never lead in the epoch that it stood for.

        Another node may have been elected in that epoch, or in one before it. This voter would
        neither obey nor support it, and would ask for ever. While it stood, agents were told that
        they may go on, so it is silent until their leases are over.
        """
        if self.promised == self._stood:
            self.promised, self.leader = self._before
            self._voted_until_s = -math.inf
            self._silent_until_s = now_s + void_after_s(self._lease_s)


class Inquiry:
    """Ask the voters, for an agent that misses the coordinator, and count their answers.

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

        Return when the newest question was asked, if a majority misses the coordinator too.
        """
        if node not in self.voters:
            return None
        self.newest = max(self.newest, Position(answer.at_epoch, answer.at_number))
        if answer.number != self._number or not answer.missing:
            return None  # of an older question, or no vote that the coordinator is missing
        self._missing.add(node)
        return self._asked_s if len(self._missing) >= majority(len(self.voters)) else None
