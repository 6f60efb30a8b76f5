"""What a process and another node's agent say when an image is fetched from there.

The process asks. Where the run has a token, both prove that they have the key that comes from it,
with a Challenge and a Proof. An ImageHead follows, and then the bytes of the image.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AskImage:
    """Ask for the transfer image of `step`, or for the image that one rank has sealed of it.

    nonce       a hexadecimal number that was never used before
    generation  in which it was written; None: any
    offset      bytes that were received before, over a connection that broke
    seal        the seal that they belong to, hexadecimal; "" at first
    rank        the rank whose image is wanted; -1: the transfer image
    copy        the copy is wanted that this node keeps of it, and not what was sealed here
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

    An ImageHead answers: the node is ready for the bytes. Once they all are there, another
    ImageHead says so, with their number as its offset. TurnedAway says why there is no copy.

    generation  that the rank is in; a copy of an older one is refused from then on
    seal        of the image, hexadecimal
    """

    nonce: str
    rank: int
    generation: int
    seal: str


@dataclass(frozen=True, slots=True)
class ImageHead:
    """The image is there, and its bytes follow, from `offset` on.

    seal    hexadecimal; it says how long the image is, and its checksum
    offset  as asked, or 0 if the image is another one by now
    """

    seal: str
    offset: int
