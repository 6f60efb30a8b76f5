"""What an exception tells, by the line that names it and the place that raised it.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re

from outlast.diagnose.logs.harmless import BY_TYPE
from outlast.diagnose.logs.tracebacks import Raised, raised_by_user
from outlast.diagnose.rules import RULES
from outlast.diagnose.rules.table import Rule

GENERIC = frozenset(
    {
        "python.attribute",
        "python.runtime",
        "python.other",
        "python.os",
        "python.timeout",
        "files.missing",
    }
)
# what Python's own sockets raise: torch's store and gloo have errors of their own
_OF_PYTHON = re.compile(r"\b(?:connection(?:refused|reset|aborted)|brokenpipe)error\b")


def rule_of_raised(rule: Rule | None, raised: Raised, low: str) -> Rule | None:
    """Return the rule for an exception whose traceback was read.

    `rule` is the one for its line alone, and `low` is that line in lower case.
    """
    name = "" if rule is None else rule.name
    if raised.by_outlast:
        return RULES["outlast.bug"]
    if raised.by_launcher and (rule is None or name.startswith(BY_TYPE)):
        return RULES["elastic.stumbled"]
    if raised.in_pipe and name in ("", "store.broken"):
        return RULES["loader.pipe" if raised.in_loader else "python.group_down"]
    if name == "store.broken" and not raised.in_distributed and _OF_PYTHON.search(low):
        return RULES["python.os"]
    if raised.in_load and _says_little(rule, low):
        return RULES["torch.stream_reader"]
    # Where outlast called what raised, the type of the exception says nothing of the script.
    if (
        raised.below_outlast
        and not raised.in_collectives
        and (rule is None or name.startswith("python."))
    ):
        return RULES["outlast.called"]
    if rule is None or name in GENERIC:
        return _by_place(rule, raised)
    return rule


def _by_place(rule: Rule | None, raised: Raised) -> Rule:
    """Return the rule for the place that raised, where the type alone says little."""
    by_type = rule is not None and rule.name == "python.attribute"
    if raised.in_collectives:
        return RULES["c10d.backend_error"]
    if rule is not None and rule.name == "files.missing":
        return rule
    if raised_by_user(raised.path):
        return RULES["python.user_frame" if by_type else "python.user_runtime"]
    return RULES["python.library_frame"] if by_type else rule or RULES["python.other"]


def _says_little(rule: Rule | None, low: str) -> bool:
    """Return True if an exception of torch.load says only that the file was not as expected."""
    if rule is None or rule.name == "python.group_down":
        return "keyboardinterrupt" not in low
    return rule.name in ("python.attribute", "python.runtime", "python.other") or (
        rule.name == "python.os" and "[errno 22]" in low
    )
