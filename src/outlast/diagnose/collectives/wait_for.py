"""From dumps to blame: who is waited for, and waits for nobody.

    mismatch          who called another collective than its group: no more is asked, since all that follows is confusion
    stuck             who has not finished what others of the group have finished: its device, its stream, or the thread that looks; of gloo also whose dump is
                      older than its peers' (silence.py), since a process that is stopped saves none
    ends of the graph a rank with a dump that others wait for and that waits for nobody: it has not come ("missing", "p2p"); ranks in a ring: "order_inversion"
                      a rank without a dump: a suspect, never more; and so are those without one for whom it may wait (unseen.py)
    a ring            the one that called its groups in another order than before (order.py), or else all of it
    nobody missing    all have come and nobody gets on: "all_joined", which names nobody

What it cannot see: waiting outside of recorded collectives (gloo's send and receive, the store, files); dumps of NCCL that were taken long after each other;
a ring that ran over before its head was finished. Dumps from after the failure (`is_afterwards`) show the order of arrival only, and weigh less.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

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
from outlast.diagnose.collectives.graph import Graph, Wait, add_collectives, add_queued, add_traffic, ends_of, operation_of
from outlast.diagnose.collectives.groups import Job, put_together
from outlast.diagnose.collectives.mismatch import Mismatch, difference, mismatches
from outlast.diagnose.collectives.naming import rank_of_name
from outlast.diagnose.collectives.order import came_alone, odd_ones
from outlast.diagnose.collectives.silence import Situation, situation_of
from outlast.diagnose.collectives.state import Dump, GroupState
from outlast.diagnose.collectives.unseen import unseen_waits
from outlast.diagnose.findings import Finding
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Blamed, Evidence, Role, Suspect

EDGES_MAX = 2_000
FINDINGS_MAX = 32


def find_blame(dumps: Sequence[Dump], *, unreadable: Mapping[str, str] | None = None, world_size: int = 0) -> Blame:
    """Who is at fault by the dumps of a job that hangs.

    unreadable  names of dumps that could not be read, and why: their ranks count as silent
    world_size  number of ranks, where something else tells it: dumps of gloo do not say how many there should be
    """
    unreadable = unreadable or {}
    job = put_together(dumps, unreadable, world_size)
    if not job.ranks:
        return Blame(findings=tuple(_notes(job, unreadable)))
    now = situation_of(job)
    graph = _graph(job, now)
    odd = mismatches(job.groups, job.unknown)
    blame = _of_mismatch(job, odd) if odd else _of_graph(graph, now)
    suspects = _suspects(graph, unreadable, anything=bool(blame.ranks))
    if suspects and not blame.ranks:
        blame = _of_order(graph, now) or (None if now.is_afterwards or not graph.waits else _of_idle(graph, now)) or blame
    ended = {*(one.rank for one in blame.ranks), *(one.rank for one in suspects)}
    kind, sentence = (blame.kind, blame.sentence) if blame.ranks or not suspects else ("missing", _silent_sentence(suspects, blame))
    return Blame(
        kind=kind, sentence=sentence, ranks=blame.ranks, suspects=suspects, either=blame.either, is_afterwards=now.is_afterwards,
        findings=(*blame.findings, *_of_suspects(graph, suspects), *_notes(job, unreadable)), edges=tuple(itertools.islice(_edges(graph, ended), EDGES_MAX)),
        dumped=frozenset(job.dumps), waits=frozenset(_waiting(job, now)), through=frozenset(_through(graph, now)),
        older=frozenset(_of_gloo(graph).intersection(one.rank for one in blame.ranks)), awaits=frozenset(wait.what for wait in graph.waits if wait.waiters),
    )  # fmt: skip


# --- the graph --------------------------------------------------------------------------------------------


def _graph(job: Job, now: Situation) -> Graph:
    graph = Graph(job)
    for at in range(len(job.groups)):
        add_collectives(graph, at, now.heads[at], now.finished[at])
        if not now.is_afterwards:
            add_traffic(graph, at)
    stuck = {}
    for rank, (at, seq) in now.fell_silent.items():
        group = job.groups[at]
        said = next((name for state in group.states.values() if (name := state.signature(seq))), "collective")
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


def _waiting(job: Job, now: Situation) -> set[int]:
    """Ranks of gloo that stand in a collective: whoever calls it does nothing else meanwhile."""
    return {
        rank
        for group in job.groups
        if group.backend == "gloo"
        for rank, state in group.states.items()
        if state.head is not None and rank not in now.fell_silent and rank not in job.silent
    }


def _through(graph: Graph, now: Situation) -> Iterable[int]:
    """Ranks of gloo that are in none of their collectives, by dumps that are not older than their peers' and say so for certain."""
    unsure = graph.job.silent | now.fell_silent.keys() | now.maybe.keys() | {rank for waited in now.heads for ranks in waited.values() for rank in ranks}
    for rank, dump in graph.job.dumps.items():
        if rank not in unsure and dump.groups and all(state.backend == "gloo" for state in dump.groups):
            yield rank


# --- what it ends in -----------------------------------------------------------------------------------------


def _of_graph(graph: Graph, now: Situation) -> Blame:
    silent = graph.job.silent
    ends = [end for end in ends_of(graph) if not silent.issuperset(end)]
    awaited = defaultdict(list)
    for wait in graph.waits:
        for rank in wait.behind:
            awaited[rank].append(wait)
    rings = [end for end in ends if len(end) > 1]
    late = [
        end[0] for end in ends if len(end) == 1 and end[0] in awaited and end[0] not in graph.joined and end[0] not in graph.stuck and not graph.out.get(end[0])
    ]
    hidden = {rank for rank in late if any(state.hides_p2p for state in _states(graph.job, rank))}
    if len(late) > len(hidden) or (graph.stuck and not now.is_afterwards):  # these may well wait for those, in what is not recorded
        late = [rank for rank in late if rank not in hidden]
    if late and hidden.issuperset(late) and (blame := _of_order(graph, now)) is not None:
        return blame
    is_silence = any(not silent.isdisjoint(wait.behind) for wait in graph.waits)
    if is_silence and hidden.issuperset(late):  # these may well wait for who left no dump
        late = []
    is_hidden = hidden.issuperset(late) and bool(len(late) > 1 or silent)
    is_unsure = now.maybe.keys() >= set(late) and (len(late) > 1 or is_silence)
    is_closing = len(late) + len(graph.stuck) > 1 or is_silence
    either = (bool(late) and (is_hidden or is_unsure)) or (now.is_afterwards and len(late) + len(graph.stuck) > 1)
    ranks: dict[int, float] = {}
    findings: list[Finding] = []
    for rank in late:
        kind = "p2p" if all(wait.is_p2p for wait in awaited[rank]) else "missing"
        usual = CONFIDENCE["silent" if graph.stuck and is_closing and not graph.stuck.keys().isdisjoint(_of_gloo(graph)) else kind]
        ranks[rank] = _less(CONFIDENCE_HIDDEN if either else usual, now, either=either)
        findings.append(_finding(graph.job, rank, kind, _late_says(rank, awaited[rank]), FailureClass.UNKNOWN))
    for rank, wait in graph.stuck.items():
        is_sure = wait.group.backend != "gloo" or not is_closing
        ranks[rank] = _less(CONFIDENCE["self_stuck" if is_sure else "silent"], now, either=either)
        findings.append(_finding(graph.job, rank, "self_stuck", _stuck_says(rank, wait), FailureClass.UNKNOWN))
    if not ranks:
        for ring in rings:
            odd = odd_ones(graph.job, ring, now.heads)
            is_doubtful = not odd and _may_be_past(graph, set(ring))
            either = either or is_doubtful
            for rank in odd or (rank for rank in ring if rank not in silent):
                ranks[rank] = CONFIDENCE_ODD if odd else CONFIDENCE_TIE if is_doubtful else CONFIDENCE["order_inversion"]
                findings.append(_finding(graph.job, rank, "order_inversion", _ring_says(rank, graph), FailureClass.SOFTWARE_BUG))
    kind = _kind(graph, ranks, awaited, findings)
    blamed = tuple(Blamed(rank, ranks[rank]) for rank in sorted(ranks))
    if kind == "all_joined":
        findings += [_joined_finding(graph)]
    return Blame(kind=kind, sentence=_sentence(kind, graph, blamed, awaited), ranks=blamed, either=either, findings=tuple(findings[:FINDINGS_MAX]))


def _may_be_past(graph: Graph, ring: set[int]) -> bool:
    """Of a send or receive that closes the ring, who is waited for may be through with it: not all that it did is in its dump."""
    awaited = {rank for wait in graph.waits if wait.is_p2p and not ring.isdisjoint(wait.waiters) for rank in wait.behind if rank in ring}
    return any(rank in graph.job.dumps and not graph.job.dumps[rank].is_whole for rank in awaited)


def _of_gloo(graph: Graph) -> set[int]:
    return {rank for rank, wait in graph.stuck.items() if wait.group.backend == "gloo"}


def _less(confidence: float, now: Situation, *, either: bool) -> float:
    """Of dumps from after the failure, the order of arrival is all that is left."""
    return min(confidence, CONFIDENCE_TIE if either else CONFIDENCE_AFTERWARDS) if now.is_afterwards else confidence


def _of_order(graph: Graph, now: Situation) -> Blame | None:
    """Where those who would close the ring left no dump."""
    awaited = {rank for wait in graph.waits for rank in wait.behind}
    heads = [{seq: list(ranks) for seq, ranks in waited.items()} for waited in now.heads]
    for rank, (at, seq) in now.maybe.items():
        heads[at].setdefault(seq, []).append(rank)
    waiting = [rank for rank, dump in graph.job.dumps.items() if graph.out.get(rank) and dump.groups[0].backend == "gloo"]
    odd = odd_ones(graph.job, waiting, heads)
    if graph.job.silent:  # more than one kind of step may be new where not all is known
        odd = sorted({*(rank for rank in came_alone(graph.job, heads) if graph.job.dumps[rank].groups[0].backend == "gloo"), *awaited.intersection(odd)})
    if not odd:
        return None
    findings = tuple(_finding(graph.job, rank, "order_inversion", _ring_says(rank, graph), FailureClass.SOFTWARE_BUG) for rank in odd)
    says = f"{_capital(named(odd))} came to what {'it waits' if len(odd) == 1 else 'they wait'} in by calls in another order than the others', and than before."
    return Blame("order_inversion", says, tuple(Blamed(rank, CONFIDENCE["order_inversion"]) for rank in odd), findings=findings[:FINDINGS_MAX])


def _of_idle(graph: Graph, now: Situation) -> Blame | None:
    """Ranks in no operation at all, while others wait: those who wait for them may be those that left no dump."""
    job, silent = graph.job, graph.job.silent
    beside = {rank for group in job.groups if not silent.isdisjoint(group.members) or group.possible for rank in group.states}
    busy = {rank for rank, nexts in graph.out.items() if nexts} | graph.joined.keys() | graph.stuck.keys()
    idle = [rank for rank in sorted(beside - busy - silent) if not any(state.hides_p2p for state in job.dumps[rank].groups)]
    if not idle:
        return None
    verb = "is" if len(idle) == 1 else "are"
    says = f"{named(idle)} {verb} in no collective, while others wait; those who would wait for {'it' if len(idle) == 1 else 'them'} left no dump"
    findings = tuple(_finding(job, rank, "missing", f"rank {rank} is in no collective, while others wait", FailureClass.UNKNOWN) for rank in idle)
    is_doubtful = now.maybe.keys() >= set(idle)
    confidence = CONFIDENCE_TIE if is_doubtful else CONFIDENCE_IDLE
    return Blame("missing", f"{_capital(says)}.", tuple(Blamed(rank, confidence) for rank in idle), either=is_doubtful, findings=findings[:FINDINGS_MAX])


def _kind(graph: Graph, ranks: Mapping[int, float], awaited: Mapping[int, list[Wait]], findings: Sequence[Finding]) -> str:
    if not ranks:
        return "all_joined" if graph.joined else "nothing"
    if any(rank in graph.stuck for rank in ranks):
        return "self_stuck"
    if any(one.rule == "graph.order_inversion" for one in findings):
        return "order_inversion"
    return "p2p" if all(wait.is_p2p for rank in ranks for wait in awaited[rank]) else "missing"


def _of_mismatch(job: Job, odd: Sequence[Mismatch]) -> Blame:
    ranks: dict[int, float] = {}
    findings = []
    for mismatch in odd:
        for rank in mismatch.blamed:
            ranks[rank] = CONFIDENCE_TIE if mismatch.is_tie else CONFIDENCE["mismatch"]
            text = f"rank {rank} called {mismatch.said[rank]} as collective {mismatch.seq} of {mismatch.group.label}"
            text += f"; the others called {mismatch.usual}" if mismatch.usual else ""
            findings.append(_finding(job, rank, "mismatch", text, FailureClass.SOFTWARE_BUG))
    first, either = odd[0], odd[0].is_tie
    who = f"{named(ranks)} called different things" if either else f"{named(ranks)} called {difference(first)},"
    sentence = f"{who[:1].upper()}{who[1:]} as collective {first.seq} of {first.group.label}{': ' + difference(first) if either else ''}."
    return Blame("mismatch", sentence, tuple(Blamed(rank, ranks[rank]) for rank in sorted(ranks)), (), either, tuple(findings[:FINDINGS_MAX]))


def _suspects(graph: Graph, unreadable: Mapping[str, str], *, anything: bool) -> tuple[Suspect, ...]:
    """Silent ranks that others wait for; all of them if nothing else is found and most of the job did leave dumps.

    Behind those, where no rank is shown guilty: silent ranks that they may wait for in their turn.
    """
    silent = graph.job.silent
    waiters: dict[int, set[int]] = {}
    for wait in graph.waits:
        for rank in wait.behind:
            if rank in silent:
                waiters.setdefault(rank, set()).update(wait.waiters)
    if not anything and not waiters and 2 * len(silent) <= len(graph.job.ranks):
        return tuple(Suspect(rank, f"{_lacks(graph.job, rank, unreadable)}, unlike the others") for rank in sorted(silent))
    found = [
        Suspect(rank, f"{_lacks(graph.job, rank, unreadable)}, and {named(waiting)} wait{'s' if len(waiting) == 1 else ''} for it")
        for rank, waiting in sorted(waiters.items())
    ]
    behind = {} if anything else unseen_waits(graph.job, waiters)
    found += [
        Suspect(rank, f"{_lacks(graph.job, rank, unreadable)}, and rank {other}, whose dump is missing too, may wait for it") for rank, other in behind.items()
    ]
    return tuple(found)


def _lacks(job: Job, rank: int, unreadable: Mapping[str, str]) -> str:
    if rank in job.broken:
        return f"its dump could not be read ({unreadable[job.broken[rank]]})"
    return "it left no dump" if rank not in job.dumps else "its recorder was off"


# --- what is said --------------------------------------------------------------------------------------------------


def _states(job: Job, rank: int) -> Iterable[GroupState]:
    return job.dumps[rank].groups if rank in job.dumps else ()


def _finding(job: Job, rank: int, kind: str, text: str, failure_class: FailureClass) -> Finding:
    dump = job.dumps[rank]
    where = next((state.where for state in sorted(dump.groups, key=lambda at: -(at.created_ns[-1][1] if at.created_ns else 0)) if state.where), "")
    text += f" (last seen at {where})" if where else ""
    named_class = None if failure_class is FailureClass.UNKNOWN else failure_class
    at_s = dump.newest_ns / 1e9 or None
    return Finding(Evidence(dump.name, None, text, Role.ROOT), f"graph.{kind}", named_class, Mechanism.HANG, at_s=at_s, rank=rank)


def _late_says(rank: int, waits: Sequence[Wait]) -> str:
    wait = max(waits, key=lambda one: len(one.waiters))
    if wait.is_p2p:
        return f"{named(wait.waiters)} wait{'s' if len(wait.waiters) == 1 else ''} in {wait.says()}, and rank {rank} has not come to it"
    return f"rank {rank} has not come to {wait.says()}, in which {named(wait.waiters)} wait{'s' if len(wait.waiters) == 1 else ''}"


def _stuck_says(rank: int, wait: Wait) -> str:
    return f"rank {rank} has not finished {wait.says()}, which others of the group have, or its dump is from before"


def _ring_says(rank: int, graph: Graph) -> str:
    wait = next((wait for wait in graph.waits if rank in wait.waiters), None)
    return (
        f"rank {rank} waits in {wait.says()} for {named(wait.behind)}, which waits for it"
        if wait and wait.behind
        else f"rank {rank} calls its groups in another order"
    )


def _joined_finding(graph: Graph) -> Finding:
    rank, wait = min(graph.joined.items())
    text = f"all of {named(wait.waiters)} have come to {wait.says()}, and none has finished it"
    return Finding(
        Evidence(graph.job.dumps[rank].name, None, text, Role.EFFECT),
        "graph.all_joined",
        None,
        Mechanism.HANG,
        at_s=graph.job.dumps[rank].newest_ns / 1e9 or None,
    )


def _sentence(kind: str, graph: Graph, blamed: Sequence[Blamed], awaited: Mapping[int, list[Wait]]) -> str:
    ranks = [one.rank for one in blamed]
    if kind == "self_stuck":
        first = next(rank for rank in ranks if rank in graph.stuck)
        verb = "has" if len(ranks) == 1 else "have"
        done = f"{_capital(named(ranks))} {verb} not finished what the others of the group finished, {graph.stuck[first].says()}"
        if graph.stuck[first].group.backend == "gloo":
            return f"{done}: stopped or busy inside that process, or its dump is older than theirs."
        return f"{done}: device, stream or watchdog of that process."
    if kind in ("missing", "p2p"):
        says = _late_says(ranks[0], awaited[ranks[0]])
        more = f"; likewise {named(ranks[1:])}" if len(ranks) > 1 else ""
        return f"{_capital(says)}{more}."
    if kind == "order_inversion":
        others = sorted({rank for wait in graph.waits if not set(ranks).isdisjoint(wait.behind) for rank in wait.waiters} - set(ranks))
        if ranks and all(one.confidence == CONFIDENCE_ODD for one in blamed) and others:
            return f"{_capital(named(ranks))} called collectives of several groups in another order than the others did; {named(others)} wait for it."
        return f"{_capital(named(ranks))} wait for each other in a ring: they call collectives of several groups in different orders."
    if kind == "all_joined":
        _, wait = min(graph.joined.items())
        return f"All of {named(wait.waiters)} have come to {wait.says()} and none has finished it: transport or a device, which dumps cannot tell apart."
    return "No rank is seen waiting for another."


def _silent_sentence(suspects: Sequence[Suspect], blame: Blame) -> str:
    ranks = [one.rank for one in suspects]
    return (
        f"{_capital(named(ranks))} left no evidence: {suspects[0].reason}."
        if len(ranks) == 1 or blame.kind == "nothing"
        else f"{_capital(named(ranks))} left no dump that can be read, and others wait for them."
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _of_suspects(graph: Graph, suspects: Sequence[Suspect]) -> list[Finding]:
    """Each points at the dump of a rank that waits."""
    waiter: dict[int, tuple[int, Wait]] = {}
    for wait in graph.waits:
        for rank in wait.behind:
            if wait.waiters:
                waiter.setdefault(rank, (wait.waiters[0], wait))
    findings = []
    for suspect in suspects[:FINDINGS_MAX]:
        if suspect.rank in waiter:
            rank, wait = waiter[suspect.rank]
            text = f"rank {rank} waits in {wait.says()}; rank {suspect.rank}: {suspect.reason}"
            findings.append(Finding(Evidence(graph.job.dumps[rank].name, None, text, Role.EFFECT), "graph.silent", None, Mechanism.HANG, rank=suspect.rank))
    return findings


def _notes(job: Job, unreadable: Mapping[str, str]) -> list[Finding]:
    """What is odd about the dumps themselves."""
    notes = []
    for name, why in itertools.islice(unreadable.items(), FINDINGS_MAX):
        rule = "dump.refused" if why.startswith("refused") else "dump.unreadable"
        notes.append(Finding(Evidence(name, None, why, Role.ADVICE), rule, rank=rank_of_name(name)))
    for dump in job.unknown[:FINDINGS_MAX]:
        text = "whose dump it is cannot be told, neither from its groups nor from the file's name, nor by elimination; it is left out"
        notes.append(Finding(Evidence(dump.name, None, text, Role.ADVICE), "dump.unknown"))
    for used, other in job.doubles[:FINDINGS_MAX]:
        text = f"a second dump of rank {other.rank}; {used.name} is later and was used"
        notes.append(Finding(Evidence(other.name, None, text, Role.ADVICE), "dump.double", rank=other.rank))
    return notes
