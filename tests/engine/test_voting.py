"""Voters, the authority of a coordinator, and agents that go on without a coordinator."""

from __future__ import annotations

import itertools

import pytest

from outlast.engine.cluster.voting import (
    Authority,
    Position,
    Voter,
    VoterInquiry,
    choose_voters,
    majority,
    named_s,
    takes_over_after_s,
)
from outlast.model import limits
from outlast.model.messages import Answer, Ask, Claim, Kept

LEASE_S = 0.5
VOTERS = ("a", "b", "c")


def authority(loyal: tuple[str, ...] = VOTERS) -> Authority:
    return Authority(VOTERS, own="a", loyal=loyal, lease_s=LEASE_S, heard_s=10.0)


def test_voters_are_an_odd_number_with_the_leader_first() -> None:
    """The number of voters follows from the number of nodes. With two nodes there is no
    takeover.
    """
    names = "abcdefgh"
    counts = [len(choose_voters("c", names[:count])) for count in range(1, 9)]
    assert counts[2:] == [3, 3, 5, 5, 5, 5]
    assert choose_voters("a", ["a", "b"]) == ()
    assert choose_voters("c", names) == ("c", "a", "b", "d", "e")


def test_a_coordinator_keeps_its_authority_while_a_majority_hears_it() -> None:
    """One of the two other voters is enough. Without both, the authority ends one lease later."""
    one = authority()
    one.hear("b", Kept(1, 0, 12.0))
    assert one.holds(12.4)
    assert not one.holds(12.5)
    one.hear("c", Kept(1, 0, 12.6))
    assert one.holds(13.0)


def test_a_coordinator_that_was_elected_by_two_counts_on_those_two() -> None:
    assert authority(("a", "b")).holds(10.4)
    assert not authority(("a",)).holds(10.0)


def test_voters_that_make_their_copies_are_waited_for() -> None:
    """The test holds for a coordinator that names its voters and is cut off at once: its authority
    ends before the next coordinator begins.

    A voter votes for another coordinator once it misses this one. It can miss it since one
    heartbeat earlier at most.
    """
    named_at_s = 100.0
    heard_s = named_s(named_at_s, LEASE_S)
    one = Authority(VOTERS, own="a", loyal=VOTERS, lease_s=LEASE_S, heard_s=heard_s)
    assert one.holds(named_at_s + 1.9 * LEASE_S)
    first_vote_s = named_at_s - LEASE_S / 5 + limits.MISSED_SHARE * LEASE_S
    assert one.until_s(999.0) + LEASE_S <= first_vote_s + takes_over_after_s(LEASE_S)


def test_a_record_counts_once_a_majority_holds_it() -> None:
    one = authority()
    assert one.counted(7) == 0
    one.hear("c", Kept(1, 5, 10.1))
    assert one.counted(7) == 5
    one.hear("b", Kept(1, 7, 10.1))
    assert one.counted(7) == 7


def test_a_node_that_is_no_voter_counts_for_nothing() -> None:
    one = authority()
    one.hear("z", Kept(1, 9, 99.0))
    assert one.counted(9) == 0
    assert not one.holds(11.0)


def test_a_voter_votes_only_while_it_misses_the_coordinator() -> None:
    voter = Voter(lease_s=LEASE_S, now_s=0.0)
    voter.hear(1, now_s=1.0)
    claim = Claim(2, "b:1", 1, 5)
    assert not voter.on_claim(claim, now_s=1.2)
    assert voter.on_claim(claim, now_s=1.4)
    assert (voter.promised, voter.leader) == (2, "b:1")
    assert not voter.on_claim(Claim(2, "c:1", 1, 9), now_s=1.5), "one vote in an epoch"
    assert not voter.on_claim(Claim(3, "c:1", 1, 9), now_s=1.5), "the first may be about to begin"
    assert voter.on_claim(Claim(3, "c:1", 1, 9), now_s=2.5)


def test_a_voter_does_not_follow_a_candidate_that_lacks_a_record() -> None:
    voter = Voter(lease_s=LEASE_S, now_s=0.0)
    voter.position = Position(2, 4)
    assert not voter.on_claim(Claim(5, "b:1", 1, 900), now_s=9.0)
    assert not voter.on_claim(Claim(5, "b:1", 2, 3), now_s=9.0)
    assert voter.on_claim(Claim(5, "b:1", 2, 4), now_s=9.0)


def test_a_voter_that_let_an_agent_go_on_is_silent_until_that_is_over() -> None:
    """The voter stays silent longer than the lease that the agent took from its answer."""
    voter = Voter(lease_s=LEASE_S, now_s=0.0)
    voter.hear(1, now_s=1.0)
    assert not voter.on_ask(Ask(1), now_s=1.2).missing
    assert voter.is_loyal(1, now_s=1.2)
    assert voter.on_ask(Ask(2), now_s=1.4).missing
    voter.hear(1, now_s=1.5)  # the coordinator comes back
    assert not voter.is_loyal(1, now_s=1.4 + LEASE_S)
    assert voter.is_loyal(1, now_s=1.4 + 2 * LEASE_S)


def test_a_voter_supports_its_candidate_at_once_and_lets_agents_go_on() -> None:
    """What agents are told before the candidate has begun does not delay any of its decisions."""
    voter = Voter(lease_s=LEASE_S, now_s=0.0)
    assert voter.on_ask(Ask(1), now_s=1.0).missing
    assert not voter.is_loyal(1, now_s=1.1)
    assert voter.on_claim(Claim(2, "b:1", 0, 0), now_s=1.1)
    answer = voter.on_ask(Ask(2), now_s=1.2)
    assert (answer.missing, answer.epoch, answer.leader) == (True, 2, "b:1")
    assert voter.is_loyal(2, now_s=1.2)
    # the last answer without silence, if the voter hears from no coordinator until then
    told_until_s = 1.1 + 2 * LEASE_S
    assert told_until_s + LEASE_S <= 1.1 + takes_over_after_s(LEASE_S)
    assert voter.on_ask(Ask(3), now_s=2.2).missing
    assert not voter.is_loyal(2, now_s=2.3)


def test_a_voter_that_has_voted_never_supports_the_coordinator_before() -> None:
    voter = Voter(lease_s=LEASE_S, now_s=0.0)
    assert voter.on_claim(Claim(2, "b:1", 0, 0), now_s=9.0)
    voter.hear(1, now_s=9.1)
    assert not voter.is_loyal(1, now_s=99.0)
    assert voter.misses(now_s=9.1)


def test_a_candidate_that_gives_up_supports_another_of_the_same_epoch() -> None:
    """Method: the candidate did not get enough votes, and another node was elected in that
    epoch.
    """
    voter = Voter(lease_s=LEASE_S, now_s=0.0)
    claim = voter.stand("b:1", above=1, now_s=9.0)
    assert claim == Claim(2, "b:1", 0, 0)
    assert voter.on_ask(Ask(1), now_s=9.9).missing
    assert not voter.on_claim(Claim(2, "c:1", 0, 0), now_s=9.9), "its vote is its own so far"
    voter.withdraw(now_s=10.0)
    voter.note_leader(2, "c:1")
    voter.hear(2, now_s=10.1)
    assert (voter.promised, voter.leader) == (2, "c:1")
    assert not voter.misses(now_s=10.2)
    assert not voter.is_loyal(2, now_s=9.9 + LEASE_S), "an agent may go on for so long"
    assert voter.is_loyal(2, now_s=10.0 + 2 * LEASE_S)


def test_a_candidate_that_gives_up_stands_in_a_newer_epoch_the_next_time() -> None:
    """Voters that have voted for the candidate in the first epoch would not vote again in that
    epoch.
    """
    voter = Voter(lease_s=LEASE_S, now_s=0.0)
    assert voter.stand("b:1", above=1, now_s=9.0) == Claim(2, "b:1", 0, 0)
    voter.withdraw(now_s=10.0)
    assert (voter.promised, voter.leader) == (0, "")
    assert voter.stand("b:2", above=1, now_s=10.1) == Claim(3, "b:2", 0, 0)


def test_a_candidate_that_has_voted_for_a_newer_one_takes_no_vote_back() -> None:
    voter = Voter(lease_s=LEASE_S, now_s=0.0)
    assert voter.stand("b:1", above=1, now_s=9.0) is not None
    assert voter.on_claim(Claim(3, "c:1", 0, 0), now_s=10.0)
    voter.withdraw(now_s=10.1)
    assert (voter.promised, voter.leader) == (3, "c:1")
    assert not voter.on_claim(Claim(4, "d:1", 0, 0), now_s=10.2)


def test_an_agent_goes_on_from_when_it_asked_and_only_with_a_majority() -> None:
    inquiry = VoterInquiry(VOTERS)
    old = inquiry.ask(now_s=1.0)
    new = inquiry.ask(now_s=2.0)
    assert inquiry.hear("a", Answer(old.number, True, 1, "", 1, 5)) is None
    assert inquiry.hear("b", Answer(new.number, True, 1, "", 1, 5)) is None
    assert inquiry.hear("b", Answer(new.number, True, 1, "", 1, 5)) is None, "one voter, twice"
    assert inquiry.hear("c", Answer(new.number, False, 1, "", 1, 7)) is None
    assert inquiry.hear("a", Answer(new.number, True, 1, "", 1, 5)) == 2.0
    assert inquiry.newest == Position(1, 7), "of all voters that have answered"


@pytest.mark.parametrize("count", [3, 5])
def test_no_two_coordinators_prolong_a_lease_at_the_same_time(count: int) -> None:
    """Each set of voters that elects a new coordinator contains one voter that the old coordinator
    had to hear.

    Method: by its own clock, the old coordinator heard all voters at 0.0. A majority votes for
    another one at 0.4, and the old one goes on hearing all other voters. For every such majority,
    the authority of the old coordinator ends before the new one stops waiting for its nodes.
    """
    voters = tuple("abcde"[:count])
    for elected_by in itertools.combinations(voters[1:], majority(count)):
        old = Authority(voters, own="a", loyal=voters, lease_s=LEASE_S, heard_s=0.0)
        for loyal in set(voters) - set(elected_by):
            old.hear(loyal, Kept(1, 0, 50.0))
        last_grant_s = old.until_s(50.0)
        assert last_grant_s + LEASE_S <= 0.4 + takes_over_after_s(LEASE_S)
        assert old.counted(100) == 0
