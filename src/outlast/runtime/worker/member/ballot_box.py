"""The place where the ranks of one generation vote: in shared memory, between nodes, or both."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.distributed import (  # type: ignore[attr-defined]  # re-exported from C
    DebugLevel,
    get_debug_level,
)

from outlast.model.limits import GROUP_TIMEOUT_S
from outlast.model.messages import Regroup
from outlast.runtime import linux
from outlast.runtime.worker.communication import groups, node_votes, shared_pages, shared_vote
from outlast.runtime.worker.communication.node_votes import NodeVotes, Rows
from outlast.runtime.worker.communication.shared_pages import SharedPages
from outlast.runtime.worker.communication.shared_rows import Participant
from outlast.runtime.worker.member.session import WorkerSession


@dataclass(frozen=True, slots=True)
class BallotBox:
    """One rank's side of the votes of one generation.

    pages   memory that all ranks share, where they also compare what their scripts do; None: the
            ranks are on several nodes
    nodes   votes of ranks on several nodes, or of ranks that share no memory; None: `pages` has
            them
    """

    pages: SharedPages | None = None
    nodes: NodeVotes | None = None

    def exchange(self, ballot: list[float], tally: Callable[[Rows], list[float]]) -> list[float]:
        """Put `ballot` in, and return the tally of all ranks' ballots.

        Raises Cut, or what torch raises if a peer is lost.
        """
        if self.pages is None:
            assert self.nodes is not None, "this rank has no peers to vote with"
            return self.nodes.exchange(ballot, tally)
        ballots = self.pages.vote.exchange(struct.pack(f"<{len(ballot)}d", *ballot))
        return tally([list(struct.unpack(f"<{len(one) // 8}d", one)) for one in ballots])

    def flush(self) -> None:
        """Let what was sent in the last vote leave this process, which may end now.

        Raises what torch raises if a peer is lost.
        """
        if self.nodes is not None:
            self.nodes.flush()

    def collectives(self) -> int:
        """Return how many collectives this rank has entered in this generation, votes included.

        It is -1 if the backend does not count. Any thread may call this.
        """
        if self.nodes is not None:
            return self.nodes.collectives()
        count = groups.collectives()
        return count if self.pages is None or count < 0 else count + self.pages.entered

    def wake(self) -> None:
        """Let a rank that waits in shared memory see that the generation is over.

        Any thread may call this.
        """
        for one in (self.pages, self.nodes):
            if one is not None:
                one.wake()


def node_key(serves: str) -> int:
    """Return the key of the node whose agent serves images at `serves` (NodeKeys.mine).

    It is 0 if the ranks of this node cannot vote through shared memory. With
    TORCH_DISTRIBUTED_DEBUG=DETAIL torch compares how many messages ranks have sent, so all ranks
    have to send the same number.
    """
    detailed = get_debug_level() == DebugLevel.DETAIL
    if not serves or detailed or not linux.has_futex():
        return 0
    return int.from_bytes(hashlib.sha256(serves.encode()).digest()[:7], "big") + 1


def nodes_of(keys: Sequence[int]) -> list[list[int]]:
    """Return the ranks of each node, by the keys that the ranks have sent (NodeKeys.heard).

    Nodes come in the order of their lowest ranks, so that all ranks have them in the same order. A
    rank that has sent 0 counts as a node of its own.
    """
    nodes: dict[tuple[int, int], list[int]] = {}
    for rank, key in enumerate(keys):
        nodes.setdefault((key, 0 if key else rank), []).append(rank)
    return list(nodes.values())


def open_box(
    session: WorkerSession, plan: Regroup, *, local_world_size: int, keys: Sequence[int]
) -> BallotBox:
    """Return where the ranks of `plan` vote. Its group is built, so no rank votes in an older one.

    Raises CapacityError if there is no room in shared memory.
    """
    machine, world = session.machine, plan.world_size

    def participant(ranks: Sequence[int]) -> Participant:
        return Participant(
            plan.generation,
            ranks.index(plan.rank),
            len(ranks),
            timeout_s=GROUP_TIMEOUT_S,
            cancelled=lambda: not machine.in_time(plan.generation),
            names=tuple(ranks),
        )

    if shared_vote.is_offered(world_size=world, local_world_size=local_world_size):
        memory = session.vault.vote_memory(shared_pages.size(world))
        return BallotBox(SharedPages(memory, participant(range(world))))
    nodes, rows = nodes_of(keys), None
    here = next(ranks for ranks in nodes if plan.rank in ranks)
    if len(here) > 1:
        memory = session.vault.vote_memory(shared_vote.LAYOUT.size(len(here)))
        rows = node_votes.shared_rows(memory, participant(here))
    return BallotBox(None, NodeVotes(nodes, plan.rank, timeout_s=GROUP_TIMEOUT_S, rows=rows))


def without_launcher(rank: int, world_size: int) -> BallotBox:
    """Return where the ranks of a group vote, if outlast has not started them."""
    return BallotBox(None, NodeVotes([[one] for one in range(world_size)], rank))
