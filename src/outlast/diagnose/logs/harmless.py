"""Lines with the words of a failure that tell of none: warnings, and what a program handled.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from outlast.diagnose.rules.table import Rule
from outlast.model.terms import Mechanism
from outlast.model.verdict import Role

BY_TYPE = ("python.", "data.", "files.")  # rules that go by an exception's type alone
# rules for what programs do without, or ask again when it does not answer
ASKED_AGAIN = ("dependency.", "object.store")
# trainers leave such a step out, and clients of HTTP ask again
SAID_ALSO_WHEN_HANDLED = ("data.nan", "store.broken", "python.group_down")
_HANDLED = re.compile(
    r"\b(?:retry|retrying|will retry|re-?attempt(?:ing)?|ignor(?:ed|ing)|skipp(?:ed|ing)"
    r"|recovered|resuming|falling back)\b"
    r"|\. setting [`'\"]?\w{1,40}[`'\"]? ?=|\busing .{1,60} instead\b"
)
# the next line of a program that does without what it did not get
_DOES_WITHOUT = re.compile(
    r"^\W{0,8}(?:will try|trying|using|loading|falling back|continuing|proceeding|retrying)\b"
    r".{0,80}\b(?:cached?|local|offline|without|again|default|anyway|instead)\b"
)
_GAVE_UP = re.compile(
    r"giv(?:e|en|ing) up|gave up|exceeded|exhausted|please (?:re)?try"
    r"|\b(?:not|cannot|can't|unable to) (?:be )?(?:retr|re-?attempt|ignor|skip|recover|resum|fall)"
    r"|(?:fail|abort)(?:s|ed|ing)?\b.{0,40}\b(?:after|all)\b"
    r"|(?:no|out of|all|last|maximum|max)\b.{0,12}\bretr(?:y|ies)"
)
_WARNING = re.compile(
    r"(?:user|future|deprecation|resource|runtime|import)warning: |\[w(?:\d{3,6})? [^\]]{1,80}\] ?"
    r"|^.{0,60}?(?<![\w.])warn(?:ing)?(?:[\]:|]| -)|^w\d{4} [\d:.]{8,15} "
)


_COUNT = re.compile(r": {0,40}\d{1,18}\s{0,8}$")


def is_of_lifetime(low: str, above: Sequence[str]) -> bool:
    """Return True for a count of nvidia-smi whose heading says that it is since the GPU was made.

    What happened since the driver was loaded stands under "Volatile". A threshold that is exceeded
    stands under "Aggregate", too. It is a state of today, and no count.
    """
    if not _COUNT.search(low):
        return False
    headings = (line.strip().lower() for line in reversed(above))
    return next((one for one in headings if one in ("volatile", "aggregate")), "") == "aggregate"


def does_without(rule: Rule, after: Sequence[str]) -> bool:
    """Return True if the next line says that the program does without what it did not get."""
    if not rule.name.startswith(ASKED_AGAIN) or not after:
        return False
    return _DOES_WITHOUT.search(after[0].lower()) is not None


def is_harmless(rule: Rule, low: str) -> bool:
    """Return True for a line that names an exception which did not end anything.

    Python and torch print warnings with the words of a failure, and programs log that they go on
    after an exception ("..., retrying"). Both are found in the logs of healthy runs.
    """
    if rule.name in SAID_ALSO_WHEN_HANDLED:
        return _HANDLED.search(low) is not None and _GAVE_UP.search(low) is None
    if rule.mechanism is not Mechanism.EXCEPTION or rule.role is not Role.ROOT:
        return False
    if _WARNING.search(low) is not None:
        return True
    handled = rule.name.startswith((*BY_TYPE, *ASKED_AGAIN))
    return handled and _HANDLED.search(low) is not None and _GAVE_UP.search(low) is None
