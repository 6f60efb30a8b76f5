"""What a verdict says if no log, stack or record tells of a failure: how the job ended.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.desync import LEFT_OPEN
from outlast.diagnose.fuse.weigh import rule_of
from outlast.diagnose.fuse.words import (
    QUIET,
    QUIET_BEHIND,
    QUIET_ENDED,
    QUIET_LEVEL,
    QUIET_STILL,
    Words,
)
from outlast.diagnose.ledger import RECORDED_END
from outlast.diagnose.log_ends import ENDED_OR_HANGS, FINISHED, LogsEnd
from outlast.diagnose.logs.process_table import ALL_STILL
from outlast.diagnose.rules import Grade
from outlast.model.verdict import Evidence, Role


def is_quiet(findings: Sequence[Finding]) -> bool:
    """Return True if nothing that was read reports a failure that ended something.

    A job that has finished closes down as one that has failed does. So effects, and lines that a
    healthy machine may write, do not count there.
    """
    finished = any(one.rule == FINISHED for one in findings)
    return all(
        one.evidence.role is Role.ADVICE
        or one.doubt in ("handled", "stranger", "older", "remark")
        or one.rule == LEFT_OPEN
        or (one.rule == "kernel.pids" and one.doubt == "untied")
        or _is_corrected(one)
        or (finished and (one.evidence.role is Role.EFFECT or _is_weak(one)))
        for one in findings
    )


def _is_corrected(one: Finding) -> bool:
    """Return True for a hint of a part that may fail one day: it ended nothing by itself."""
    rule = rule_of(one)
    return rule is not None and rule.role is Role.ROOT and _is_graded(one, Grade.HINT)


def _is_weak(one: Finding) -> bool:
    """Return True for a line that may stand in the logs of a healthy machine, and ended nothing."""
    return _is_graded(one, Grade.POSSIBLE, Grade.HINT)


def _is_graded(one: Finding, *grades: Grade) -> bool:
    """Return True if the line's rule has one of these grades, and it tells of no rank's end."""
    rule = rule_of(one)
    return rule is not None and rule.grade in grades and one.mechanism is None and one.rank is None


def ends_of(findings: Sequence[Finding]) -> LogsEnd:
    """Return what the ends of the logs tell. The result is empty if they tell nothing."""
    none = Evidence("", None, "", Role.ADVICE)
    return next((one for one in findings if isinstance(one, LogsEnd)), LogsEnd(none, "log.ends"))


def _recorded_end(findings: Sequence[Finding]) -> str:
    """Return how the run ended, if its ledger says so and has no interruption; else ""."""
    return next((one.evidence.text for one in findings if one.rule == RECORDED_END), "")


def _still(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that no process moved between two looks, or None."""
    return next((one for one in findings if one.rule == ALL_STILL), None)


def quiet_ends(findings: Sequence[Finding]) -> list[str]:
    """Return how the job ended, by its ledger or the ends of its logs, and whether it moved."""
    recorded, ends, still = _recorded_end(findings), ends_of(findings).sentence, _still(findings)
    if recorded or still is None:
        return [recorded or ends]
    said = still.evidence.text
    return [ends.replace(ENDED_OR_HANGS, "the job hangs"), f"{said[0].upper()}{said[1:]}."]


def quiet_words(findings: Sequence[Finding]) -> Words:
    """Return what is said about such a job, and what to do."""
    if _recorded_end(findings):
        return QUIET_ENDED
    ends = ends_of(findings)
    if not ends.behind:
        if _still(findings) is not None:
            return QUIET_STILL
        return QUIET_LEVEL if ends.sentence else QUIET
    return replace(
        QUIET_BEHIND,
        action=QUIET_BEHIND.action.format(who=ends.behind),
        next_test=QUIET_BEHIND.next_test.format(who=ends.behind),
    )
