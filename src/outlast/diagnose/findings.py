"""A finding: one thing that the evidence shows, as a reader hands it on.

The times of all findings are on one clock, as far as that can be known.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Evidence

Doubt = Literal["", "older", "stranger", "untied", "contradicted", "handled", "remark"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line, record or deduction that means something.

    rule           the name of the rule that recognised it, as in the tables of `diagnose/rules/`,
                   or of the deduction ("graph.self_stuck")
    failure_class  what it points to; None where it points to nothing by itself (effects,
                   messengers)
    at_s           Unix seconds, where the evidence carries a time; None otherwise
    order          its place in its file: earlier lines have smaller numbers, whatever their times
                   say
    doubt          why it may belong to another job (`diagnose/foreign_lines.py`), ended nothing
                   (`diagnose/logs/went_on.py`), or is a person's word (`diagnose/prose.py`); "" if
                   nothing says so
    rank           global rank, where the evidence names one; node and device likewise
                   ("0000:3b:00.0", "mlx5_4", "nvme0n1", "/dev/shm")
    """

    evidence: Evidence
    rule: str
    failure_class: FailureClass | None = None
    mechanism: Mechanism | None = None
    at_s: float | None = None
    order: int = 0
    rank: int | None = None
    node: str | None = None
    device: str | None = None
    doubt: Doubt = field(default="", kw_only=True)
