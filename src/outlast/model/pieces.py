"""A piece of evidence: one file that was found, with the name that is shown to people.

This module is pure: it names files and opens none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """One readable file.

    name        its name within the evidence: relative to the given folder, and for a member of an
                archive, below the name of the archive
    path        a regular file on this machine that holds it, or None. For a member of an archive it
                is a copy that exists as long as the diagnosis
    size_bytes  the bytes that count: its size when it was found, even if it has grown since
    is_original True: it is the file itself and not a copy, so its times are those of the evidence
    """

    name: str
    path: str | None
    size_bytes: int
    is_original: bool = True
