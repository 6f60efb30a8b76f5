"""Find in a verdict's evidence what a policy may ask for: Xids, exit codes, texts.

Patterns run in linear time. Evidence that is only advice is left out, because advice is printed
beside any failure. This module is pure.
"""

from __future__ import annotations

import re

from outlast.model.verdict import Role, Verdict

# "NVRM: Xid (PCI:0000:3b:00): 79, pid=..." of the driver, and "XID 79", "Xid error: 79" of what
# repeats it. SXids are the switch's, and count apart.
_XID = re.compile(
    r"\bxid(?: error)?(?: \(pci:[0-9a-f:.]{4,20}\))?[ :=]{1,3}(\d{1,3})\b", re.IGNORECASE
)
# "exitcode  : 1" of torchrun, "exit code 3" of outlast, "exited with code 137", "exit status 9"
_EXIT = re.compile(
    r"\bexit(?:ed with)?[ _-]?(?:code|status)[ \t]{0,8}[:=]?[ \t]{0,8}(-?\d{1,3})\b", re.IGNORECASE
)
_SIGNAL = re.compile(r"\bsignal[ :]{1,2}(\d{1,2})\b", re.IGNORECASE)
SIGNALS = range(1, 65)
SHELL = 128  # a shell, and a container, say 128 + the signal


def lines_of(verdict: Verdict) -> tuple[str, ...]:
    """Return the texts of a verdict's evidence, without advice."""
    return tuple(one.text for one in verdict.evidence if one.role is not Role.ADVICE)


def xids(lines: tuple[str, ...]) -> frozenset[int]:
    """Return the numbers of the Xids (errors of NVIDIA's driver) in the lines."""
    return frozenset(int(found) for line in lines for found in _XID.findall(line))


def exit_codes(lines: tuple[str, ...]) -> frozenset[int]:
    """Return the exit codes in the lines. A signal is minus its number."""
    codes = {as_signal(int(found)) for line in lines for found in _EXIT.findall(line)}
    return frozenset(
        codes
        | {
            -int(found)
            for line in lines
            for found in _SIGNAL.findall(line)
            if int(found) in SIGNALS
        }
    )


def as_signal(code: int) -> int:
    """Return an exit code with a signal as minus its number: -9 for 137, and other codes as is."""
    return SHELL - code if code - SHELL in SIGNALS else code


def has(line: str, pattern: str) -> bool:
    """Return whether the pieces of `pattern` between its *s follow one another in `line`.

    Upper and lower case are the same.
    """
    where, line = 0, line.casefold()
    for piece in pattern.casefold().split("*"):
        found = line.find(piece, where)
        if found < 0:
            return False
        where = found + len(piece)
    return True
