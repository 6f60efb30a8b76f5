"""Messages between a process and the agent of another node, to fetch an image or to leave a copy.

The process asks. If the run has a token, both sides prove with a Challenge and a Proof that they
have a key made from it. An ImageHead follows, and then the bytes of the image.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Share:
    """This says where a part of a rank's images goes, to be summed up with parts of other ranks.

    stripe   number of the sum, unique among those of one generation
    place    of this rank among the ranks whose parts are summed up; also which part of the image
             it is
    row      which of the sums of these parts the node keeps
    ranks    the rank at each place; -1: none
    at       where the node that keeps the row serves images, as HOST:PORT
    """

    stripe: int
    place: int
    row: int
    ranks: tuple[int, ...]
    at: str


@dataclass(frozen=True, slots=True)
class PartSource:
    """One of the sources from which a part of a lost image is rebuilt.

    part    which part of the lost image
    stripe  number of the sum that the part is in
    row     a row of parity of that sum; -1: it is the part of a rank that has its image
    rank    that rank; -1: it is a row
    place   of that rank; -1: it is a row
    at      where that node serves images, as HOST:PORT
    """

    part: int
    stripe: int
    row: int
    rank: int
    place: int
    at: str


@dataclass(frozen=True, slots=True)
class AskImage:
    """Ask for the transfer image of `step`, or for the image of that step that a rank has sealed.

    nonce       a hexadecimal number that was never used before
    generation  the generation in which the image was written; None for any
    offset      number of bytes that were received over an earlier connection
    seal        the seal of the image that they belong to, hexadecimal; "" if there are none
    rank        the rank whose image is wanted; -1 for the transfer image
    copy        True: return the copy that this node keeps, and not an image that was sealed here
    stripe      the stripe of which a row of parity is wanted; -1 if an image is wanted
    row         the number of this row
    """

    nonce: str
    generation: int | None
    step: int
    offset: int
    seal: str
    rank: int = -1
    copy: bool = False
    stripe: int = -1
    row: int = 0


@dataclass(frozen=True, slots=True)
class PutImage:
    """Ask a node to keep a copy of the image that one rank of another node has sealed.

    With `share` the node is asked to add one part of that image to a row of parity.

    The answer is an ImageHead, once the node is ready for the bytes. When all bytes have arrived,
    another ImageHead follows, with their number as its offset. If there can be no copy, the answer
    is TurnedAway, which says why.

    generation  the generation of the rank; later, copies of older ones are refused
    seal        the seal of the image, hexadecimal
    share       the part that is sent, and its row; None if the whole image is sent
    """

    nonce: str
    rank: int
    generation: int
    seal: str
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class ImageHead:
    """The image is there, and its bytes follow, from `offset` on.

    seal    the seal of the image, hexadecimal, with its length and checksum
    offset  the offset that was asked for, or 0 if there is another image meanwhile
    """

    seal: str
    offset: int
