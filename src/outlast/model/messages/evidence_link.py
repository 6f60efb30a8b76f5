"""Messages by which the coordinator gets the evidence of an interruption from the other nodes.

The coordinator asks for a list of files first, and then for one piece after the other. A node that
is asked for the list writes what it knows to its own disk. These messages need no number: what gets
lost is asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model.shorten import Text


@dataclass(frozen=True, slots=True)
class AskEvidence:
    """The coordinator asks a node for what it knows of an interruption that is over.

    interruption  its number in the ledger
    since         the generation that was interrupted
    before        the generation in which training went on. What a process did in that generation,
                  or in a later one, belongs to a later interruption
    name          the file of which a piece is wanted; "": the list of all files is wanted
    offset        where that piece begins
    """

    interruption: int
    since: int
    before: int
    name: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class EvidenceFiles:
    """A node lists the files that it has about an interruption, the most important ones first.

    names, sizes  go together
    error         why the node could write none; "" otherwise
    """

    interruption: int
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    error: Text = ""


@dataclass(frozen=True, slots=True)
class EvidencePiece:
    """A piece of one of these files, which begins at `offset`.

    data  the bytes, in base64; "" if there are none
    """

    interruption: int
    name: str
    offset: int
    data: str


EvidenceMessage = AskEvidence | EvidenceFiles | EvidencePiece
