"""Where ranks stand, by dumps of a backend whose calls wait (gloo).

A rank that calls a collective there does nothing else until it has ended. A rank's stack is
compared with that (`fuse/moments.py`). This says nothing of NCCL, whose calls only queue work, and
nothing of a rank whose dump is older than its peers'.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from outlast.diagnose.collectives.blame import WaitingRanks
from outlast.diagnose.collectives.graph import Graph
from outlast.diagnose.collectives.silence import SilenceFacts
from outlast.model.verdict import Blamed


def find_waiting_ranks(graph: Graph, now: SilenceFacts, blamed: Iterable[Blamed]) -> WaitingRanks:
    """Return which ranks wait, in what, and which have gone through."""
    older = {rank for rank, wait in graph.stuck.items() if wait.group.backend == "gloo"}
    waits = frozenset(_waiting(graph, now))
    return WaitingRanks(
        waits=waits,
        joined=waits & graph.joined.keys(),
        through=frozenset(_through(graph, now)),
        older=frozenset(older.intersection(one.rank for one in blamed)),
        awaited=frozenset(wait.what for wait in graph.waits if wait.waiters),
    )


def _waiting(graph: Graph, now: SilenceFacts) -> Iterator[int]:
    """Yield the ranks that wait, and those whose wait has failed.

    A rank whose wait has failed was waiting too. What it did afterwards does not count.
    """
    for group, heads in zip(graph.job.groups, now.heads, strict=True):
        if group.backend == "gloo":
            yield from (rank for ranks in heads.values() for rank in ranks if rank not in now.maybe)


def _through(graph: Graph, now: SilenceFacts) -> Iterator[int]:
    """Yield ranks that others wait for and that have finished all that they called.

    A dump speaks only for its own backend. A job may also wait in collectives that are not recorded
    there.
    """
    unsure = (
        graph.job.silent
        | now.fell_silent.keys()
        | now.maybe.keys()
        | {rank for heads in now.heads for ranks in heads.values() for rank in ranks}
    )
    for rank in {rank for wait in graph.waits for rank in wait.behind} - unsure:
        dump = graph.job.dumps[rank]
        if dump.groups and all(state.backend == "gloo" for state in dump.groups):
            yield rank
