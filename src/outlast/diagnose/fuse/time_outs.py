"""Where ranks stood in the program when they timed out, by the tracebacks that they left.

Ranks that wait for each other in one collective raise at one line of the program. If every rank
reports that it waited, and one of them at another line, that one took another path: no rank is left
for which they could all have waited.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.accounts import PEER, Accounts
from outlast.diagnose.logs.tracebacks import RaisedAt
from outlast.diagnose.rules import RULES

RULE = "desync.places"
TIMED_OUT = ("c10d.timeout", "c10d.barrier")


def compare_places(findings: Sequence[Finding], accounts: Accounts) -> tuple[Finding, ...]:
    """Return a finding at the traceback of the rank that stood elsewhere; empty if none did.

    Of two ranks either may be the odd one, so the finding names none.
    """
    if accounts.by_itself or accounts.closed or accounts.silent or len(accounts.lost) < 2:
        return ()
    first: dict[int, RaisedAt] = {}
    for one in findings:
        if isinstance(one, RaisedAt) and one.rank is not None and one.rule.startswith(PEER):
            first.setdefault(one.rank, one)
    by_place: dict[str, list[int]] = defaultdict(list)
    for rank, one in first.items():
        by_place[one.place].append(rank)
    if first.keys() != accounts.lost or accounts.seen != accounts.lost or len(by_place) != 2:
        return ()
    if not any(one.rule in TIMED_OUT for one in findings):
        return ()  # a connection that breaks may find ranks anywhere
    few, many = sorted(by_place.values(), key=len)
    if len(few) > 1:
        return ()
    at, row = first[few[0]], RULES[RULE]
    shown = replace(at.evidence, role=row.role)
    odd = replace(
        at,
        evidence=shown,
        rule=RULE,
        failure_class=row.failure_class,
        mechanism=row.mechanism,
        rank=few[0] if len(many) > 1 else None,
    )
    return (odd,)
