"""A piece of evidence: one file that was found, under the name that people know it by.

This module is pure: it names files and opens none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """One readable thing.

    name        its name inside the evidence: relative to the folder that was given, members of
                archives below the archive's name
    path        a regular file on this machine that holds it; of an archive's member, a copy that
                lives as long as the diagnosis. None where there is none
    size_bytes  how much of it counts: its size when it was found, whatever it has grown to since
    is_original the file itself, and not a copy: its times are those of the evidence
    """

    name: str
    path: str | None
    size_bytes: int
    is_original: bool = True
