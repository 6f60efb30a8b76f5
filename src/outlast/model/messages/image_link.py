"""Messages between a process and the agent of another node, to fetch an image or to leave a copy.

The process asks. If the run has a token, both sides prove with a Challenge and a Proof that they
have a key made from it. An ImageHead follows, and then the bytes of the image.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AskImage:
    """Ask for the transfer image of `step`, or for the image of that step that a rank has sealed.

    nonce       a hexadecimal number that was never used before
    generation  the generation in which the image was written; None for any
    offset      number of bytes that were received over an earlier connection
    seal        the seal of the image that they belong to, hexadecimal; "" if there are none
    rank        the rank whose image is wanted; -1 for the transfer image
    copy        True: return the copy that this node keeps, and not an image that was sealed here
    """

    nonce: str
    generation: int | None
    step: int
    offset: int
    seal: str
    rank: int = -1
    copy: bool = False


@dataclass(frozen=True, slots=True)
class PutImage:
    """Ask a node to keep a copy of the image that one rank of another node has sealed.

    The answer is an ImageHead, once the node is ready for the bytes. When all bytes have arrived,
    another ImageHead follows, with their number as its offset. If there can be no copy, the answer
    is TurnedAway, which says why.

    generation  the generation of the rank; later, copies of older ones are refused
    seal        the seal of the image, hexadecimal
    """

    nonce: str
    rank: int
    generation: int
    seal: str


@dataclass(frozen=True, slots=True)
class ImageHead:
    """The image is there, and its bytes follow, from `offset` on.

    seal    the seal of the image, hexadecimal, with its length and checksum
    offset  the offset that was asked for, or 0 if there is another image meanwhile
    """

    seal: str
    offset: int
