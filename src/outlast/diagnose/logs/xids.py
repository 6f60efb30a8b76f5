"""Xid and SXid lines, in all spellings of the driver: which code, on which device, fatal or not.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re

from outlast.diagnose.rules.table import Rule
from outlast.diagnose.rules.xid import (
    CORRECTED_SXIDS,
    MILD_SXIDS,
    NOISY_SXIDS,
    SXID_CORRECTED,
    SXID_FATAL,
    SXID_HEAT,
    SXID_NOISE,
    SXID_NONFATAL,
    XID_DRAM,
    XID_NONFATAL,
    XID_SRAM,
    XID_UNKNOWN,
    XIDS,
)

NEEDLES = (
    b"xid (",
    b"xid(",
    b"xid error",
    b"xid: ",
    b"xid=",
    b"xid_error",
    b"xid 1",
    b"xid 3",
    b"xid 4",
    b"xid 6",
    b"xid 7",
    b"xid 9",
)
_XID = re.compile(
    r"\bxid ?\((?:pci:)?(?P<device>[^()\s]{1,40})\)[^:]{0,80}: {1,3}(?P<code>\d{1,3})\b"
)
_SXID = re.compile(
    r"sxid ?\((?:pci:)?(?P<device>[^()\s]{1,40})\)[^:]{0,80}: {1,3}(?P<code>\d{5})\b"
)
_SAID = re.compile(
    r"\bxid(?: error(?:s)?| code)?(?:_errors?\S{0,120})?\s?[:=(]?\s?(?P<code>\d{1,3})\b"
)
_ADDRESS = re.compile(r"[0-9a-f:.]{4,24}")
_SRAM = re.compile(
    r"\bsram\b|l2 cache|l1 cache|\bl1tex\b|register file|shared memory bank|\bgpc\d|in the"
    r" (?:sm|gpc|l2)\b"
)
_DRAM = re.compile(r"frame ?buffer|\bdram\b|\bfbpa\b|\bfbhub\b|partition \d|\bhbm\b")
_EARLIER = re.compile(r"caused by previous xid (\d{1,3})")
_CODED = range(144, 151)


def read_xid(low: str) -> tuple[Rule, str | None] | None:
    """Return the rule for a line in lower case, and the device that it names; else None."""
    found = _SXID.search(low)
    if found:
        return _switch(int(found["code"]), low), _address(found["device"])
    found = _XID.search(low)
    if found:
        return _card(int(found["code"]), low[found.end() :]), _address(found["device"])
    said = _SAID.search(low)
    if said and 0 < int(said["code"]) < 200 and "sxid" not in low:
        return _card(int(said["code"]), low[said.end() :]), None
    return None


def _address(said: str) -> str | None:
    """Return the PCI address, or None if it was blanked out before the log was shown."""
    return said if _ADDRESS.fullmatch(said) else None


def _card(code: int, rest: str) -> Rule:
    earlier = _EARLIER.search(rest) if code == 45 else None
    if earlier:  # newer drivers name what they clean up after
        code = int(earlier[1])
    if code in (48, 94, 95) and _SRAM.search(rest):
        return XID_SRAM
    if code in (48, 94, 95) and _DRAM.search(rest):
        return XID_DRAM
    if code in _CODED and "nonfatal" in rest:
        return XID_NONFATAL
    return XIDS.get(code, XID_UNKNOWN)


def _switch(code: int, low: str) -> Rule:
    if code in CORRECTED_SXIDS:
        return SXID_CORRECTED
    if code == 10004:
        return SXID_HEAT
    if code in NOISY_SXIDS:
        return SXID_NOISE
    if code in MILD_SXIDS or "non-fatal" in low:
        return SXID_NONFATAL
    return SXID_FATAL
