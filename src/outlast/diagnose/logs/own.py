"""Our own output, read again: it repeats evidence and concludes from it, so it counts for nothing.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re

from outlast.model.terms import FailureClass

NEEDLES = (b"outlast diagnose", b"outlast report", b"refuted_by", b"where the rank-seconds went", b"refuted by")
_HEADS = re.compile(
    r'^\W{0,8}(?:outlast (?:diagnose|report|status)\b|where the rank-seconds went|<!doctype html><!-- outlast)|"refuted_by"\s?:|^\W{0,4}refuted by\b',
    re.IGNORECASE,
)
_CLASS = re.compile(r'"class"\s?:\s?"(?:' + "|".join(one.value for one in FailureClass) + ')"')


def is_own(text: str) -> bool:
    return bool(_HEADS.search(text[:400]) or ('"refuted_by"' in text and _CLASS.search(text)))
