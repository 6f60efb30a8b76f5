"""Findings about a file as a whole, such as the beacon of one rank. No line of it is quoted.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.findings import Finding
from outlast.diagnose.rules import RULES
from outlast.model.verdict import Evidence


def file_finding(rule: str, name: str, text: str, rank: int | None) -> Finding:
    """Return the finding of a rule about the file `name`; `text` says what was found."""
    row = RULES[rule]
    return Finding(
        Evidence(name, None, text, row.role), rule, row.failure_class, row.mechanism, rank=rank
    )
