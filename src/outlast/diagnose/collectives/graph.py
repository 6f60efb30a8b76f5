"""Who waits for whom: ranks, and the operations between them.

Every rank that is not finished with an operation waits for those that have not reached it. Between
them stands a node for the operation. Within a group, the node of a later operation leads to that of
an earlier one. A rank that is missing at the earlier one is missing at the later one too. So the
graph grows with ranks x groups, and not with their square.

Sources: the wait-for graphs of distributed databases and of MPI's deadlock detectors; strongly
connected components after Tarjan, SIAM J. Computing 1(2), 1972.

This module is pure.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from outlast.diagnose.collectives.groups import DumpedGroup, DumpedJob
from outlast.diagnose.collectives.silence import ROOTED, known_states
from outlast.diagnose.collectives.state import GroupState, Traffic

# kind of operation, place of its group, its number or its two ranks
_Key = tuple[str, int, tuple[int, ...]]


@dataclass(slots=True)
class Wait:
    """An operation that some ranks have reached and not finished.

    waiters   these ranks
    behind    the ranks that have not reached it
    """

    group: DumpedGroup
    seq: int
    what: str
    waiters: list[int]
    behind: list[int]
    is_p2p: bool = False

    def says(self) -> str:
        """Return the operation in words, with its number and its group."""
        return self.what if self.is_p2p else f"{self.what} {self.seq} of {self.group.label}"


@dataclass(slots=True)
class Graph:
    """Nodes are ranks (0 and up) and operations (below 0).

    joined    for each rank: the operation that it waits in although all ranks of that operation
              have come, so the rank waits for something else
    stuck     for each rank that has not finished what others of the group have finished: that
              operation
    lacking   operations that some rank has not reached: (place of the group, number); for a send or
              a receive (place of the group, rank that waits, its peer)
    """

    job: DumpedJob
    out: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    waits: list[Wait] = field(default_factory=list)
    stuck: dict[int, Wait] = field(default_factory=dict)
    joined: dict[int, Wait] = field(default_factory=dict)
    lacking: set[tuple[int, ...]] = field(default_factory=set)
    _operation_count: int = 0

    def operation(self) -> int:
        """Return a new node for an operation."""
        self._operation_count += 1
        return -self._operation_count

    def add(self, wait: Wait, node: int) -> None:
        """Add an edge from each rank that waits to `node`, the node of the operation."""
        self.waits.append(wait)
        for rank in wait.waiters:
            self.out[rank].append(node)

    def set_stuck(self, stuck: Mapping[int, Wait]) -> None:
        """Record the ranks that have not finished what their peers have.

        What they seem to wait in may have ended long ago, so no other rank is at fault for it.
        """
        if not stuck:
            return
        self.stuck |= stuck
        for rank in stuck:
            self.out[rank] = []
        for wait in self.waits:
            if not stuck.keys().isdisjoint(wait.waiters):
                wait.waiters = [rank for rank in wait.waiters if rank not in stuck]
        self.waits = [wait for wait in self.waits if wait.waiters]


def operation_of(state: GroupState, seq: int) -> str:
    """Return the name of a recorded operation, without its sizes and types."""
    return (state.signature(seq) or "collective").partition(" ")[0]


# --- collectives ----------------------------------------------------------------------------------


def add_collectives(graph: Graph, at: int, heads: dict[int, list[int]], finished: int) -> None:
    """Add the collectives of one group.

    `at` is the place of the group. `heads` has the operations that ranks wait in, by number, with
    these ranks. `finished` is the last one that all ranks have certainly called.
    """
    if not heads:
        return
    group = graph.job.groups[at]
    known = known_states(group, graph.job)
    come = sorted((state.enqueued or 0, rank) for rank, state in known.items())
    absent = [rank for rank in group.members if rank not in known]
    nobody = graph.operation()  # all of the absent, as one node
    graph.out[nobody] = absent
    earlier, begin = 0, 0
    for seq in sorted(heads):
        one = group.states[heads[seq][0]]
        is_rooted = (one.signature(seq) or "").startswith(ROOTED)
        end = bisect.bisect_left(come, (seq, -1))
        node = graph.operation()
        graph.out[node] = [rank for _, rank in come[begin:end]] + (
            [earlier] if earlier and graph.out[earlier] else []
        )
        behind = (
            [rank for _, rank in come[:end]] if end <= 64 else [rank for _, rank in come[begin:end]]
        )
        if absent and (finished < seq or is_rooted):
            graph.out[node].append(nobody)
            behind += absent
        elif not end and finished < seq and group.is_open and group.possible:
            graph.out[node].extend(group.possible)
            behind += group.possible
        wait = Wait(group, seq, operation_of(one, seq), heads[seq], behind)
        if graph.out[node]:
            graph.add(wait, node)
            graph.lacking.add((at, seq))
        else:
            graph.waits.append(wait)
        earlier, begin = node, end


# --- send and receive -----------------------------------------------------------------------------


def add_traffic(graph: Graph, at: int) -> None:
    """Let a pending send wait for a receive that is missing, and the other way round.

    Counts are compared, because sequence numbers of sends and receives are each rank's own.
    """
    group = graph.job.groups[at]
    places = group.places
    if places is None:
        return
    place_of = {rank: place for place, rank in enumerate(places)}
    for rank, state in group.states.items():
        for mine in state.traffic:
            if not mine.pending or mine.peer >= len(places) or rank not in place_of:
                continue
            peer = places[mine.peer]
            if _is_met(
                graph.job, group, place_of[rank], peer, mine.is_send, mine.pending, mine.total, rank
            ):
                continue
            wait = Wait(
                group,
                0,
                _traffic_says(rank, peer, mine.is_send, group),
                [rank],
                [peer],
                is_p2p=True,
            )
            node = graph.operation()
            graph.out[node] = [peer]
            graph.add(wait, node)
            graph.lacking.add((at, rank, peer))


def _is_met(
    job: DumpedJob,
    group: DumpedGroup,
    place: int,
    peer: int,
    is_send: bool,
    pending: int,
    total: int,
    rank: int,
) -> bool:
    if peer in job.silent:
        return False
    state = group.states.get(peer)
    theirs = (
        next(
            (one for one in state.traffic if one.peer == place and one.is_send is not is_send), None
        )
        if state
        else None
    )
    if theirs is None:
        return False
    if theirs.pending >= pending:
        return True
    # it came, and is through with it
    return job.dumps[rank].is_whole and job.dumps[peer].is_whole and theirs.total >= total


def _traffic_says(rank: int, peer: int, is_send: bool, group: DumpedGroup) -> str:
    return (
        f"{'send' if is_send else 'receive'} {'to' if is_send else 'from'} rank {peer} in"
        f" {group.label}"
    )


# --- all have come and none makes progress --------------------------------------------------------


def add_queued(graph: Graph) -> None:
    """Let ranks wait for a peer that has an older operation to finish before the one they are in.

    This is asked for ranks in whose oldest operation no rank is missing. They wait for a rank that
    has called that operation, but has an older one to finish first.

    That a later operation lacks a rank does not explain why ranks are still in the oldest:
    operations of one stream run in order. Those of several groups may not, so nothing is added if
    the oldest operation lacks a rank.
    """
    oldest = _oldest(graph)
    graph.set_stuck(_stuck_in_traffic(graph, oldest))
    nodes: dict[_Key, int] = {}
    waits: dict[_Key, Wait] = {}
    for rank, (key, members) in oldest.items():
        if rank in graph.stuck or _is_lacking(graph, rank, key):
            continue
        if (node := nodes.get(key)) is None:
            node = nodes[key] = graph.operation()
            graph.out[node] = [
                other
                for other in members
                if other in oldest
                and oldest[other][0] != key
                and not _is_through(graph, other, key)
            ]
            waits[key] = _joined_wait(graph, key, members)
            if graph.out[node]:
                graph.waits.append(waits[key])
        if not graph.out[node]:
            graph.joined[rank] = waits[key]
        # a node that leads nowhere: so that no ring, through what the rank has queued, seems the
        # end of the waiting
        if graph.out[node] or graph.out.get(rank):
            graph.out[rank].append(node)


def _is_lacking(graph: Graph, rank: int, key: _Key) -> bool:
    kind, at, which = key
    if kind == "collective":
        return (at, *which) in graph.lacking
    return any((at, rank, peer) in graph.lacking for peer in which)


def _is_through(graph: Graph, rank: int, key: _Key) -> bool:
    """Return True if a rank that has called the operation has also finished it."""
    kind, at, which = key
    group = graph.job.groups[at]
    state = group.states[rank]
    if kind == "collective":
        return state.has_finished(which[0])
    return not any(one.pending and _peer(group, one) in which for one in state.traffic)


def _stuck_in_traffic(
    graph: Graph, oldest: Mapping[int, tuple[_Key, tuple[int, ...]]]
) -> dict[int, Wait]:
    """Return the ranks whose oldest unfinished call is a send or receive that the peer finished."""
    stuck = {}
    for rank, (key, pair) in oldest.items():
        if key[0] == "traffic" and rank not in graph.stuck:
            group, peer = graph.job.groups[key[1]], pair[pair[0] == rank]
            if (
                peer not in graph.job.silent
                and peer not in graph.stuck
                and _has_finished_more(graph.job, group, peer, rank)
            ):
                stuck[rank] = Wait(
                    group,
                    0,
                    f"send or receive with rank {peer} in {group.label}",
                    [rank],
                    [],
                    is_p2p=True,
                )
    return stuck


def _has_finished_more(job: DumpedJob, group: DumpedGroup, peer: int, rank: int) -> bool:
    """Return True if the peer has finished more of what goes between the two than the rank has.

    It is known only if all that both ever did is in their dumps.
    """
    if peer not in group.states or not (job.dumps[rank].is_whole and job.dumps[peer].is_whole):
        return False
    mine = min(
        (one for one in group.states[rank].traffic if one.pending and _peer(group, one) == peer),
        key=lambda one: one.oldest,
    )
    theirs = (
        one
        for one in group.states[peer].traffic
        if _peer(group, one) == rank and one.is_send is not mine.is_send
    )
    return any(one.total - one.pending > mine.total - mine.pending for one in theirs)


def _peer(group: DumpedGroup, traffic: Traffic) -> int | None:
    places = group.places or ()
    return places[traffic.peer] if traffic.peer < len(places) else None


def _oldest(graph: Graph) -> dict[int, tuple[_Key, tuple[int, ...]]]:
    """Return the oldest unfinished operation of each rank, with the ranks that share it.

    Its name is the same for all of these ranks.
    """
    found: dict[int, tuple[int, _Key, tuple[int, ...]]] = {}
    for at, group in enumerate(graph.job.groups):
        for rank, state in group.states.items():
            if state.head is not None and (rank not in found or state.head_record < found[rank][0]):
                found[rank] = (state.head_record, ("collective", at, (state.head,)), group.members)
            for one in state.traffic:
                if (
                    one.pending
                    and (peer := _peer(group, one)) is not None
                    and (rank not in found or one.oldest < found[rank][0])
                ):
                    pair = (min(rank, peer), max(rank, peer))
                    found[rank] = (one.oldest, ("traffic", at, pair), pair)
    return {rank: (key, members) for rank, (_, key, members) in found.items()}


def _joined_wait(graph: Graph, key: _Key, members: Sequence[int]) -> Wait:
    kind, at, (seq, *_) = key
    group = graph.job.groups[at]
    if kind == "traffic":
        return Wait(
            group,
            0,
            f"send and receive between ranks {members[0]} and {members[-1]} in {group.label}",
            list(members),
            [],
            is_p2p=True,
        )
    waiters = [rank for rank, state in group.states.items() if state.head == seq]
    return Wait(group, seq, operation_of(group.states[waiters[0]], seq), waiters, [])


# --- ends -----------------------------------------------------------------------------------------


def ends_of(graph: Graph) -> Iterator[list[int]]:
    """Yield the ranks of each strongly connected component that nothing leads out of.

    Single ranks count as components. Only ranks that wait or are waited for are asked about.
    """
    components: dict[int, int] = {}
    members: list[list[int]] = []
    for component in _components(graph.out):
        for node in component:
            components[node] = len(members)
        members.append(component)
    leads_on = {
        components[node]
        for node, nexts in graph.out.items()
        for other in nexts
        if components[other] != components[node]
    }
    for at, component in enumerate(members):
        if at not in leads_on and (ranks := sorted(node for node in component if node >= 0)):
            yield ranks


def _components(out: dict[int, list[int]]) -> Iterator[list[int]]:
    """Yield the strongly connected components, by Tarjan's algorithm.

    It keeps a stack of its own, because chains of ranks are longer than Python's.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in list(out):
        if root in index:
            continue
        work = [(root, iter(out.get(root, ())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, nexts = work[-1]
            for other in nexts:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(out.get(other, ()))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    yield component
