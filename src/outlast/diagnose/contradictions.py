"""Lines that say a rank failed whose own flight recorder shows it alive and waiting.

A folder of dumps may hold a line of another run: "[rank0]: RuntimeError" beside dumps in which rank
0 waits for others. A rank that had raised would wait for nobody. Such a line keeps a small weight,
and the rank is not taken for one that failed by itself.

The dump is believed only if it is of the moment of the failure: NCCL's recorders write together,
those of gloo each at its own time. It is not believed against a launcher that reports how the rank
ended, nor against a log that is the rank's own by its name.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outlast.diagnose.collectives import Blame, Dump
from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.accounts import PEER
from outlast.diagnose.logs.prefixes import rank_of_name
from outlast.model.terms import Mechanism
from outlast.model.verdict import Role

_FAILS = (Mechanism.EXCEPTION, Mechanism.SIGNAL, Mechanism.EXIT)


def with_contradicted_marked(
    findings: Sequence[Finding], blame: Blame | None, dumps: Sequence[Dump]
) -> tuple[list[Finding], str]:
    """Mark lines that say that a rank raised an exception if its dump refutes that.

    The second part is a sentence about it; "" for none.
    """
    if blame is None or blame.is_afterwards or not (blame.ranks or blame.suspects):
        return list(findings), ""
    accused = {one.rank for one in blame.ranks} | {one.rank for one in blame.suspects}
    told_by_launcher = {one.rank for one in findings if one.rule.startswith("elastic.")}
    nccl = {
        dump.rank
        for dump in dumps
        if dump.groups and all(state.backend != "gloo" for state in dump.groups)
    }
    waits = {waiter for waiter, _, _ in blame.edges}
    alive = (waits & nccl) - accused - told_by_launcher
    marked = [
        replace(
            one,
            doubt="contradicted",
            mechanism=None,
            evidence=replace(one.evidence, role=Role.MESSENGER),
        )
        if one.rank in alive and not one.doubt and _says_it_failed(one)
        else one
        for one in findings
    ]
    changed = [one for one in marked if one.doubt == "contradicted"]
    if not changed:
        return marked, ""
    first = changed[0]
    return marked, (
        f"{first.evidence.file} says that rank {first.rank} failed, and its flight recorder shows"
        " it alive and waiting: the line may be of another run, and weighs little"
    )


def _says_it_failed(one: Finding) -> bool:
    if rank_of_name(one.evidence.file) is not None:
        return False  # it is the rank's own log
    return one.mechanism in _FAILS and not one.rule.startswith((*PEER, "stack.", "graph."))
