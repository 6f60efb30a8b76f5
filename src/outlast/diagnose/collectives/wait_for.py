"""From dumps to blame: find the rank that others wait for and that waits for nobody.

    mismatch          a rank that called another collective than its group; nothing else is asked
                      then, because all that follows is confusion
    stuck             a rank that has not finished what others of the group have finished: because
                      of its device, its stream, or the thread that looks; with gloo also a rank
                      whose dump is older than its peers' (silence.py), because a stopped process
                      saves none
    ends of the graph a rank with a dump that others wait for and that waits for nobody: it has not
    come ("missing", "p2p"); ranks in a ring: "order_inversion"
                      a rank without a dump: a suspect, never more; and so are those without one for
                      whom it may wait (unseen.py)
    a ring            the one that called its groups in another order than before (order.py), or
                      else all of it
    nobody missing    all have come and none makes progress: "all_joined", which names nobody

It cannot see waiting outside of recorded collectives (gloo's send and receive, the store, files).
Nor can it see that dumps of NCCL were taken long after each other, or that a ring ran over before
its head was finished. Dumps from after the failure (`is_afterwards`) show the order of arrival
only, and weigh less.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from outlast.diagnose.collectives.blame import (
    CONFIDENCE,
    CONFIDENCE_AFTERWARDS,
    CONFIDENCE_HIDDEN,
    CONFIDENCE_IDLE,
    CONFIDENCE_ODD,
    CONFIDENCE_TIE,
    Blame,
    named,
)
from outlast.diagnose.collectives.explain import (
    FINDINGS_MAX,
    capital,
    finding_of,
    findings_of_suspects,
    joined_finding,
    late_says,
    notes_of,
    ring_says,
    sentence_of,
    silent_sentence,
    stuck_says,
)
from outlast.diagnose.collectives.graph import (
    Graph,
    Wait,
    add_collectives,
    add_queued,
    add_traffic,
    ends_of,
    operation_of,
)
from outlast.diagnose.collectives.groups import DumpedJob, put_together
from outlast.diagnose.collectives.mismatch import Mismatch, difference, mismatches
from outlast.diagnose.collectives.order import came_alone, few_of, odd_ones
from outlast.diagnose.collectives.silence import SilenceFacts, situation_of
from outlast.diagnose.collectives.state import Dump, GroupState
from outlast.diagnose.collectives.unseen import unseen_waits
from outlast.diagnose.collectives.waiting_ranks import find_waiting_ranks
from outlast.diagnose.findings import Finding
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Blamed, Evidence, Role, Suspect

EDGES_MAX = 2_000


def find_blame(
    dumps: Sequence[Dump], *, unreadable: Mapping[str, str] | None = None, world_size: int = 0
) -> Blame:
    """Return who is at fault, according to the flight recorder dumps of a job that hangs.

    unreadable  names of dumps that could not be read, and why: their ranks count as silent
    world_size  number of ranks, if known from elsewhere; else 0. Dumps of gloo do not say how many
                there should be
    """
    unreadable = unreadable or {}
    job = put_together(dumps, unreadable, world_size)
    if not job.ranks:
        return Blame(findings=tuple(notes_of(job, unreadable)))
    now = situation_of(job)
    graph = _graph(job, now)
    odd = mismatches(job, now.heads)
    blame = _of_mismatch(job, odd) if odd else _of_graph(graph, now)
    suspects = blame.suspects or _suspects(graph, unreadable, anything=bool(blame.ranks))
    if suspects and not blame.ranks and not blame.suspects:
        blame = (
            _of_order(graph, now)
            or (None if now.is_afterwards or not graph.waits else _of_idle(graph, now))
            or blame
        )
    ended = {*(one.rank for one in blame.ranks), *(one.rank for one in suspects)}
    kind, sentence = (
        (blame.kind, blame.sentence)
        if blame.ranks or blame.suspects or not suspects
        else ("missing", silent_sentence(suspects, blame))
    )
    return Blame(
        kind=kind,
        sentence=sentence,
        ranks=blame.ranks,
        suspects=suspects,
        either=blame.either,
        is_afterwards=now.is_afterwards,
        findings=(
            *blame.findings,
            *findings_of_suspects(graph, suspects),
            *notes_of(job, unreadable),
        ),
        edges=tuple(itertools.islice(_edges(graph, ended), EDGES_MAX)),
        dumped=frozenset(job.dumps),
        waiting_ranks=find_waiting_ranks(graph, now, blame.ranks),
    )


# --- the graph ------------------------------------------------------------------------------------


def _graph(job: DumpedJob, now: SilenceFacts) -> Graph:
    graph = Graph(job)
    for at in range(len(job.groups)):
        add_collectives(graph, at, now.heads[at], now.finished[at])
        if not now.is_afterwards:
            add_traffic(graph, at)
    stuck = {}
    for rank, (at, seq) in now.fell_silent.items():
        group = job.groups[at]
        said = next(
            (name for state in group.states.values() if (name := state.signature(seq))),
            "collective",
        )
        stuck[rank] = Wait(group, seq, said.partition(" ")[0], [rank], [])
    graph.set_stuck(stuck)
    for rank, (at, seq) in now.maybe.items() if not now.is_afterwards else ():
        group = job.groups[at]
        behind = sorted(job.silent.intersection(group.members or group.possible))
        graph.waits.append(Wait(group, seq, operation_of(group.states[rank], seq), [rank], behind))
    if not now.is_afterwards:
        add_queued(graph)
    return graph


def _edges(graph: Graph, ended: set[int]) -> Iterable[tuple[int, int, str]]:
    for wanted in (True, False):
        for wait in graph.waits:
            says = wait.says()
            for rank in wait.behind:
                if (rank in ended) is wanted:
                    yield from ((waiter, rank, says) for waiter in wait.waiters)


# --- what it ends in ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Guilty:
    """The result so far, while the ends of the graph are looked at."""

    ranks: dict[int, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    either: bool = False


def _of_graph(graph: Graph, now: SilenceFacts) -> Blame:
    silent = graph.job.silent
    ends = [end for end in ends_of(graph) if not silent.issuperset(end)]
    awaited: dict[int, list[Wait]] = defaultdict(list)
    for wait in graph.waits:
        for rank in wait.behind:
            awaited[rank].append(wait)
    late, hidden = _late_ranks(graph, now, ends, awaited)
    # What the late ones wait for may not be recorded: the order of calls tells more then.
    if late and hidden.issuperset(late) and (blame := _of_order(graph, now)) is not None:
        return blame
    found = _Guilty()
    _blame_late_and_stuck(graph, now, awaited, late, hidden, found)
    if not found.ranks:
        _blame_rings(graph, now, [end for end in ends if len(end) > 1], found)
    kind = _kind(graph, found.ranks, awaited, found.findings)
    blamed = tuple(Blamed(rank, found.ranks[rank]) for rank in sorted(found.ranks))
    if kind == "all_joined":
        found.findings += [joined_finding(graph)]
    return Blame(
        kind=kind,
        sentence=sentence_of(kind, graph, blamed, awaited),
        ranks=blamed,
        either=found.either,
        findings=tuple(found.findings[:FINDINGS_MAX]),
    )


def _late_ranks(
    graph: Graph,
    now: SilenceFacts,
    ends: Sequence[Sequence[int]],
    awaited: Mapping[int, Sequence[Wait]],
) -> tuple[list[int], set[int]]:
    """Return ranks that others wait for and that wait for none.

    The second part are those of them that may wait in a send or receive which their backend does
    not record.
    """
    late = [
        end[0]
        for end in ends
        if len(end) == 1
        and end[0] in awaited
        and end[0] not in graph.joined
        and end[0] not in graph.stuck
        and not graph.out.get(end[0])
    ]
    hidden = {rank for rank in late if any(state.hides_p2p for state in _states(graph.job, rank))}
    # the late ranks may wait for the stuck ones, in operations that are not recorded
    if len(late) > len(hidden) or (graph.stuck and not now.is_afterwards):
        late = [rank for rank in late if rank not in hidden]
    return late, hidden


def _blame_late_and_stuck(
    graph: Graph,
    now: SilenceFacts,
    awaited: Mapping[int, Sequence[Wait]],
    late: Sequence[int],
    hidden: set[int],
    found: _Guilty,
) -> None:
    """Blame ranks that have not come, and ranks that have not finished what their peers have."""
    silent = graph.job.silent
    is_silence = any(not silent.isdisjoint(wait.behind) for wait in graph.waits)
    is_hidden = hidden.issuperset(late) and bool(len(late) > 1 or silent)
    is_unsure = now.maybe.keys() >= set(late) and (len(late) > 1 or is_silence)
    is_closing = len(late) + len(graph.stuck) > 1 or is_silence
    found.either = (bool(late) and (is_hidden or is_unsure)) or (
        now.is_afterwards and len(late) + len(graph.stuck) > 1
    )
    closes_gloo = is_closing and not graph.stuck.keys().isdisjoint(_of_gloo(graph))
    for rank in late:
        kind = "p2p" if all(wait.is_p2p for wait in awaited[rank]) else "missing"
        usual = CONFIDENCE["silent" if graph.stuck and closes_gloo else kind]
        found.ranks[rank] = _less(
            CONFIDENCE_HIDDEN if found.either else usual, now, either=found.either
        )
        says = late_says(rank, list(awaited[rank]))
        found.findings.append(finding_of(graph.job, rank, kind, says, FailureClass.UNKNOWN))
    for rank, wait in graph.stuck.items():
        is_sure = wait.group.backend != "gloo" or not is_closing
        found.ranks[rank] = _less(
            CONFIDENCE["self_stuck" if is_sure else "silent"], now, either=found.either
        )
        says = stuck_says(rank, wait)
        found.findings.append(finding_of(graph.job, rank, "self_stuck", says, FailureClass.UNKNOWN))


def _blame_rings(
    graph: Graph, now: SilenceFacts, rings: Sequence[Sequence[int]], found: _Guilty
) -> None:
    """Blame one rank for a ring of waits, or all of its ranks.

    It is the rank that called its collectives in another order, or else the one that is alone.
    """
    for ring in rings:
        odd = odd_ones(graph.job, ring, now.heads)
        few = [] if odd else few_of(ring, now.heads)
        is_doubtful = not odd and _may_be_past(graph, set(ring))
        found.either = found.either or is_doubtful
        for rank in odd or few or (rank for rank in ring if rank not in graph.job.silent):
            found.ranks[rank] = (
                CONFIDENCE_ODD
                if odd
                else CONFIDENCE_TIE
                if is_doubtful
                else CONFIDENCE["order_inversion"]
            )
            says = ring_says(rank, graph)
            found.findings.append(
                finding_of(graph.job, rank, "order_inversion", says, FailureClass.SOFTWARE_BUG)
            )


def _may_be_past(graph: Graph, ring: set[int]) -> bool:
    """Return True if the rank that is waited for may have finished the send or receive of a ring.

    Not all that it did is in its dump.
    """
    awaited = {
        rank
        for wait in graph.waits
        if wait.is_p2p and not ring.isdisjoint(wait.waiters)
        for rank in wait.behind
        if rank in ring
    }
    return any(rank in graph.job.dumps and not graph.job.dumps[rank].is_whole for rank in awaited)


def _of_gloo(graph: Graph) -> set[int]:
    return {rank for rank, wait in graph.stuck.items() if wait.group.backend == "gloo"}


def _less(confidence: float, now: SilenceFacts, *, either: bool) -> float:
    """Reduce the confidence: dumps from after the failure show only the order of arrival."""
    return (
        min(confidence, CONFIDENCE_TIE if either else CONFIDENCE_AFTERWARDS)
        if now.is_afterwards
        else confidence
    )


def _of_order(graph: Graph, now: SilenceFacts) -> Blame | None:
    """Blame ranks by the order of calls if those that would close the ring left no dump."""
    awaited = {rank for wait in graph.waits for rank in wait.behind}
    heads = [{seq: list(ranks) for seq, ranks in waited.items()} for waited in now.heads]
    for rank, (at, seq) in now.maybe.items():
        heads[at].setdefault(seq, []).append(rank)
    waiting = [
        rank
        for rank, dump in graph.job.dumps.items()
        if graph.out.get(rank) and dump.groups[0].backend == "gloo"
    ]
    odd = odd_ones(graph.job, waiting, heads)
    if graph.job.silent:  # more than one kind of step may be new where not all is known
        odd = sorted(
            {
                *(
                    rank
                    for rank in came_alone(graph.job, heads)
                    if graph.job.dumps[rank].groups[0].backend == "gloo"
                ),
                *awaited.intersection(odd),
            }
        )
    if not odd:
        return None
    findings = tuple(
        finding_of(
            graph.job, rank, "order_inversion", ring_says(rank, graph), FailureClass.SOFTWARE_BUG
        )
        for rank in odd
    )
    says = (
        f"{capital(named(odd))} came to what {'it waits' if len(odd) == 1 else 'they wait'} in by"
        " calls in another order than the others', and than before."
    )
    return Blame(
        "order_inversion",
        says,
        tuple(Blamed(rank, CONFIDENCE["order_inversion"]) for rank in odd),
        findings=findings[:FINDINGS_MAX],
    )


def _of_idle(graph: Graph, now: SilenceFacts) -> Blame | None:
    """Blame ranks that are in no operation at all while others wait.

    The ranks that wait for them may be those that left no dump.
    """
    job, silent = graph.job, graph.job.silent
    beside = {
        rank
        for group in job.groups
        if not silent.isdisjoint(group.members) or group.possible
        for rank in group.states
    }
    busy = (
        {rank for rank, nexts in graph.out.items() if nexts}
        | graph.joined.keys()
        | graph.stuck.keys()
    )
    idle = [
        rank
        for rank in sorted(beside - busy - silent)
        if not any(state.hides_p2p for state in job.dumps[rank].groups)
    ]
    if not idle:
        return None
    verb = "is" if len(idle) == 1 else "are"
    says = (
        f"{named(idle)} {verb} in no collective, while others wait; those who would wait for"
        f" {'it' if len(idle) == 1 else 'them'} left no dump"
    )
    findings = tuple(
        finding_of(
            job,
            rank,
            "missing",
            f"rank {rank} is in no collective, while others wait",
            FailureClass.UNKNOWN,
        )
        for rank in idle
    )
    is_doubtful = now.maybe.keys() >= set(idle)
    confidence = CONFIDENCE_TIE if is_doubtful else CONFIDENCE_IDLE
    return Blame(
        "missing",
        f"{capital(says)}.",
        tuple(Blamed(rank, confidence) for rank in idle),
        either=is_doubtful,
        findings=findings[:FINDINGS_MAX],
    )


def _kind(
    graph: Graph,
    ranks: Mapping[int, float],
    awaited: Mapping[int, list[Wait]],
    findings: Sequence[Finding],
) -> str:
    if not ranks:
        return "all_joined" if graph.joined else "nothing"
    if any(rank in graph.stuck for rank in ranks):
        return "self_stuck"
    if any(one.rule == "graph.order_inversion" for one in findings):
        return "order_inversion"
    return "p2p" if all(wait.is_p2p for rank in ranks for wait in awaited[rank]) else "missing"


def _of_mismatch(job: DumpedJob, odd: Sequence[Mismatch]) -> Blame:
    """Blame the ranks of a mismatch.

    An odd dump of an unknown rank makes suspects of all ranks that it may be of, if no other rank
    is shown.
    """
    ranks: dict[int, float] = {}
    suspects: dict[int, Suspect] = {}
    findings = []
    for mismatch in odd:
        for rank in mismatch.blamed:
            ranks[rank] = CONFIDENCE_TIE if mismatch.is_tie else CONFIDENCE["mismatch"]
            text = (
                f"rank {rank} called {mismatch.said[rank]} as collective {mismatch.seq} of"
                f" {mismatch.group.label}"
            )
            text += f"; the others called {mismatch.usual}" if mismatch.usual else ""
            findings.append(finding_of(job, rank, "mismatch", text, FailureClass.SOFTWARE_BUG))
        for dump, signature in mismatch.strangers:
            called = f"called {signature} as collective {mismatch.seq} of {mismatch.group.label}"
            text = (
                f"the rank of {dump.name}, which cannot be told, {called}; the others called"
                f" {mismatch.usual}"
            )
            findings.append(
                Finding(
                    Evidence(dump.name, None, text, Role.ROOT),
                    "graph.mismatch",
                    FailureClass.SOFTWARE_BUG,
                    Mechanism.HANG,
                )
            )
            why = f"the dump {dump.name}, which may be its own, shows another call than the others'"
            suspects |= {
                rank: Suspect(rank, why) for rank in dump.possible if rank not in job.dumps
            }
    first, either = odd[0], odd[0].is_tie
    if not ranks:
        sentence = f"{capital(findings[0].evidence.text)}."
        return Blame(
            "mismatch",
            sentence,
            (),
            tuple(suspects[rank] for rank in sorted(suspects)),
            findings=tuple(findings[:FINDINGS_MAX]),
        )
    who = (
        f"{named(ranks)} called different things"
        if either
        else f"{named(ranks)} called {difference(first)},"
    )
    sentence = (
        f"{who[:1].upper()}{who[1:]} as collective {first.seq} of"
        f" {first.group.label}{': ' + difference(first) if either else ''}."
    )
    return Blame(
        "mismatch",
        sentence,
        tuple(Blamed(rank, ranks[rank]) for rank in sorted(ranks)),
        (),
        either,
        tuple(findings[:FINDINGS_MAX]),
    )


def _suspects(
    graph: Graph, unreadable: Mapping[str, str], *, anything: bool
) -> tuple[Suspect, ...]:
    """Return silent ranks that others wait for.

    If nothing else is found and most of the job left dumps, all silent ranks are suspects. If no
    rank is shown guilty, silent ranks that these may wait for in their turn are suspects too.
    """
    silent = graph.job.silent
    waiters: dict[int, set[int]] = {}
    for wait in graph.waits:
        for rank in wait.behind:
            if rank in silent:
                waiters.setdefault(rank, set()).update(wait.waiters)
    if not anything and not waiters and 2 * len(silent) <= len(graph.job.ranks):
        return tuple(
            Suspect(rank, f"{_lacks(graph.job, rank, unreadable)}, unlike the others")
            for rank in sorted(silent)
        )
    found = [
        Suspect(
            rank,
            f"{_lacks(graph.job, rank, unreadable)}, and {named(waiting)}"
            f" wait{'s' if len(waiting) == 1 else ''} for it",
        )
        for rank, waiting in sorted(waiters.items())
    ]
    behind = {} if anything else unseen_waits(graph.job, waiters)
    found += [
        Suspect(
            rank,
            f"{_lacks(graph.job, rank, unreadable)}, and rank {other}, whose dump is missing too,"
            " may wait for it",
        )
        for rank, other in behind.items()
    ]
    return tuple(found)


def _lacks(job: DumpedJob, rank: int, unreadable: Mapping[str, str]) -> str:
    if rank in job.broken:
        return f"its dump could not be read ({unreadable[job.broken[rank]]})"
    return "it left no dump" if rank not in job.dumps else "its recorder was off"


def _states(job: DumpedJob, rank: int) -> Iterable[GroupState]:
    return job.dumps[rank].groups if rank in job.dumps else ()
