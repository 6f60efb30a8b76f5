"""The words for the wait-for graph: findings that point at dumps, and the sentence of a blame.

This module is pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from outlast.diagnose.collectives.blame import CONFIDENCE_ODD, Blame, named
from outlast.diagnose.collectives.graph import Graph, Wait
from outlast.diagnose.collectives.groups import DumpedJob
from outlast.diagnose.collectives.naming import rank_of_dump
from outlast.diagnose.findings import Finding
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Blamed, Evidence, Role, Suspect

FINDINGS_MAX = 32


def finding_of(
    job: DumpedJob, rank: int, kind: str, text: str, failure_class: FailureClass
) -> Finding:
    """Return a finding that points at the dump of a rank, with the last source line it shows."""
    dump = job.dumps[rank]
    where = next(
        (
            state.where
            for state in sorted(
                dump.groups, key=lambda at: -(at.created_ns[-1][1] if at.created_ns else 0)
            )
            if state.where
        ),
        "",
    )
    text += f" (last seen at {where})" if where else ""
    named_class = None if failure_class is FailureClass.UNKNOWN else failure_class
    at_s = dump.newest_ns / 1e9 or None
    return Finding(
        Evidence(dump.name, None, text, Role.ROOT),
        f"graph.{kind}",
        named_class,
        Mechanism.HANG,
        at_s=at_s,
        rank=rank,
    )


def late_says(rank: int, waits: Sequence[Wait]) -> str:
    """Return a clause: the rank has not come to an operation in which others wait."""
    wait = max(waits, key=lambda one: len(one.waiters))
    if wait.is_p2p:
        return (
            f"{named(wait.waiters)} wait{'s' if len(wait.waiters) == 1 else ''} in {wait.says()},"
            f" and rank {rank} has not come to it"
        )
    return (
        f"rank {rank} has not come to {wait.says()}, in which {named(wait.waiters)}"
        f" wait{'s' if len(wait.waiters) == 1 else ''}"
    )


def stuck_says(rank: int, wait: Wait) -> str:
    """Return a clause: the rank has not finished an operation that others have finished."""
    return (
        f"rank {rank} has not finished {wait.says()}, which others of the group have, or its dump"
        " is from before"
    )


def ring_says(rank: int, graph: Graph) -> str:
    """Return a clause: the rank waits for a rank that waits for it."""
    wait = next((wait for wait in graph.waits if rank in wait.waiters), None)
    return (
        f"rank {rank} waits in {wait.says()} for {named(wait.behind)}, which waits for it"
        if wait and wait.behind
        else f"rank {rank} calls its groups in another order"
    )


def joined_finding(graph: Graph) -> Finding:
    """Return the finding that all ranks of an operation have come and none has finished it."""
    rank, wait = min(graph.joined.items())
    text = f"all of {named(wait.waiters)} have come to {wait.says()}, and none has finished it"
    return Finding(
        Evidence(graph.job.dumps[rank].name, None, text, Role.EFFECT),
        "graph.all_joined",
        None,
        Mechanism.HANG,
        at_s=graph.job.dumps[rank].newest_ns / 1e9 or None,
    )


def sentence_of(
    kind: str, graph: Graph, blamed: Sequence[Blamed], awaited: Mapping[int, list[Wait]]
) -> str:
    """Return the sentence of a verdict. `kind` is one of those in `wait_for.py`."""
    ranks = [one.rank for one in blamed]
    if kind == "self_stuck":
        first = next(rank for rank in ranks if rank in graph.stuck)
        verb = "has" if len(ranks) == 1 else "have"
        done = (
            f"{capital(named(ranks))} {verb} not finished what the others of the group finished,"
            f" {graph.stuck[first].says()}"
        )
        if graph.stuck[first].group.backend == "gloo":
            return f"{done}: stopped or busy inside that process, or its dump is older than theirs."
        return f"{done}: device, stream or watchdog of that process."
    if kind in ("missing", "p2p"):
        says = late_says(ranks[0], awaited[ranks[0]])
        more = f"; likewise {named(ranks[1:])}" if len(ranks) > 1 else ""
        return f"{capital(says)}{more}."
    if kind == "order_inversion":
        others = sorted(
            {
                rank
                for wait in graph.waits
                if not set(ranks).isdisjoint(wait.behind)
                for rank in wait.waiters
            }
            - set(ranks)
        )
        if ranks and all(one.confidence == CONFIDENCE_ODD for one in blamed) and others:
            return (
                f"{capital(named(ranks))} called collectives of several groups in another order"
                f" than the others did; {named(others)} wait for it."
            )
        return (
            f"{capital(named(ranks))} wait for each other in a ring: they call collectives of"
            " several groups in different orders."
        )
    if kind == "all_joined":
        _, wait = min(graph.joined.items())
        return (
            f"All of {named(wait.waiters)} have come to {wait.says()} and none has finished it:"
            " transport or a device, which dumps cannot tell apart."
        )
    return "No rank is seen waiting for another."


def silent_sentence(suspects: Sequence[Suspect], blame: Blame) -> str:
    """Return the sentence about suspects that left no dump that can be read."""
    ranks = [one.rank for one in suspects]
    return (
        f"{capital(named(ranks))} left no evidence: {suspects[0].reason}."
        if len(ranks) == 1 or blame.kind == "nothing"
        else f"{capital(named(ranks))} left no dump that can be read, and others wait for them."
    )


def capital(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def findings_of_suspects(graph: Graph, suspects: Sequence[Suspect]) -> list[Finding]:
    """Return the findings about suspects. Each points at the dump of a rank that waits."""
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
            findings.append(
                Finding(
                    Evidence(graph.job.dumps[rank].name, None, text, Role.EFFECT),
                    "graph.silent",
                    None,
                    Mechanism.HANG,
                    rank=suspect.rank,
                )
            )
    return findings


def notes_of(job: DumpedJob, unreadable: Mapping[str, str]) -> list[Finding]:
    """Return what is odd about the dumps themselves, in sentences."""
    notes = []
    for name, why in itertools.islice(unreadable.items(), FINDINGS_MAX):
        rule = "dump.refused" if why.startswith("refused") else "dump.unreadable"
        notes.append(Finding(Evidence(name, None, why, Role.ADVICE), rule, rank=rank_of_dump(name)))
    for dump in job.unknown[:FINDINGS_MAX]:
        text = (
            "whose dump it is cannot be told, neither from its groups nor from the file's name, nor"
            " by elimination; it is left out"
        )
        notes.append(Finding(Evidence(dump.name, None, text, Role.ADVICE), "dump.unknown"))
    for used, other in job.doubles[:FINDINGS_MAX]:
        text = f"a second dump of rank {other.rank}; {used.name} is later and was used"
        notes.append(
            Finding(Evidence(other.name, None, text, Role.ADVICE), "dump.double", rank=other.rank)
        )
    return notes
