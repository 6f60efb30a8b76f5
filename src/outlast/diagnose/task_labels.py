"""Labels of `srun --label` that number nodes, and not ranks.

srun puts the number of its task before each line. Where it starts the ranks itself, that number is
the rank. Where it starts a launcher on each node, it is the node's, and lines of the launcher bear
such a label. In a file with such a line a label alone says nothing about the rank.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from outlast.diagnose.findings import Finding

_LABEL = re.compile(r"^\s{0,4}(\d{1,5}): (?! ?\[rank\d)")
# rows of a launcher's table say themselves which rank they are about
_ROWS = ("elastic.first_failure", "elastic.other_failure")


def without_node_labels(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings, without the ranks that were read from labels of nodes."""
    files = {
        one.evidence.file
        for one in findings
        if one.rule.startswith("elastic.") and _LABEL.match(one.evidence.text)
    }
    if not files:
        return list(findings)
    return [
        replace(one, rank=None)
        if one.evidence.file in files and one.rule not in _ROWS and _is_by_label(one)
        else one
        for one in findings
    ]


def _is_by_label(one: Finding) -> bool:
    found = _LABEL.match(one.evidence.text)
    return found is not None and one.rank == int(found[1])
