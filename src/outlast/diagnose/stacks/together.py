"""Functions of the user's own in which most ranks stand, and which are called as those that wait.

A script's `all_reduce_mean` waits for peers in native code, of which py-spy and faulthandler show
no frame. A script's `wait_for_shard` may sleep. The name alone does not tell them apart, but the
other ranks do: where most of them stand in one such function, they wait there for the rest.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.rules import RULES
from outlast.diagnose.stacks.reader import Stack, doing, own_wait

MOST = 0.5  # of the ranks, or processes, whose stack says anything


def with_shared_waits(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, with the stacks marked that wait by what their peers show."""
    inside: dict[str, set[object]] = defaultdict(set)
    owners: set[object] = set()
    for one in findings:
        if isinstance(one, Stack) and doing(one.frames) != "idle":
            owners.add(_owner(one))
            if function := own_wait(one.frames):
                inside[function].add(_owner(one))
    shared = {
        function
        for function, some in inside.items()
        if len(some) > 1 and len(some) > MOST * len(owners)
    }
    rule = RULES["stack.waiting"]
    return [
        replace(
            one,
            rule=rule.name,
            failure_class=rule.failure_class,
            mechanism=rule.mechanism,
            evidence=replace(one.evidence, role=rule.role),
            together=True,
        )
        if shared and isinstance(one, Stack) and own_wait(one.frames) in shared
        else one
        for one in findings
    ]


def _owner(stack: Stack) -> object:
    return (stack.evidence.file, stack.process) if stack.rank is None else stack.rank
