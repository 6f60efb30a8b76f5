"""Rebuild a lost image of this rank from images and rows of parity on other nodes, into the vault.

    a row        its head says of which images it is made: the seal of each, the lost one's included
    each part    is the sum of the same part's stripe: parts of other ranks' images, and rows, each
                 multiplied by a constant (tiers/parity.py)

The bytes of each source are added to the rebuilt part as they arrive, so none is ever held as a
whole. A connection that breaks is made again, and goes on where it broke off. If there are more
rows than lost parts of a stripe, another row is tried if one is damaged.

Promises   Sources are only mixed if the heads of all rows name the same images, and each node
           serves exactly these. Rows are compared with their checksums. The rebuilt image is
           verified when it is read, like any other.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import xxhash

from outlast.errors import CorruptError
from outlast.model import limits
from outlast.model.manifest import Seal, unpack_seal
from outlast.model.messages import AskImage, PartSource, Regroup, TurnedAway
from outlast.runtime.network import trust
from outlast.runtime.tiers.held_parity import head_bytes, read_head
from outlast.runtime.tiers.parity import fold, part_of, rows_to_try, weights_to_rebuild
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.worker.transfer import image_dialogue
from outlast.runtime.worker.transfer.image_dialogue import Server
from outlast.runtime.worker.transfer.image_receiver import ImageReceiver

Seals = tuple[Seal | None, ...]  # the seals of the images of a stripe, by place
Take = Callable[[memoryview], None]


def rebuild(vault: Vault, plan: Regroup, key: bytes, cancelled: Callable[[], bool]) -> None:
    """Rebuild the image that `plan` names from its sources, and store it as this rank's own.

    Raises CorruptError if the sources are not enough, ImageUnreached (also as soon as `cancelled()`
    returns True), and CapacityError if there is no room.
    """
    one = _Rebuild(plan, key, cancelled)
    seal = one.seal()
    vault.receive_image(plan.rank, seal, one.fill)


class _Rebuild:
    """One image that is being rebuilt."""

    def __init__(self, plan: Regroup, key: bytes, cancelled: Callable[[], bool]) -> None:
        self._plan = plan
        self._key = key
        self._cancelled = cancelled
        self._parts = 1 + max((source.part for source in plan.sources), default=-1)

    def seal(self) -> Seal:
        """Return the seal that the lost image had."""
        rows = self._rows(0)
        error = CorruptError(f"no parity of the image of rank {self._plan.rank} is left")
        for source in rows.values():
            try:
                seals = self._seals(source)
            except CorruptError as damaged:
                error = damaged
                continue
            if (seal := seals[0]) is not None and seal.rank == self._plan.rank:
                return seal
        raise error

    def fill(self, image: memoryview) -> None:
        """Write the bytes of the image."""
        for part in range(self._parts):
            begin, end = part_of(len(image), data=self._parts, place=part)
            self._rebuild_part(image[begin:end], part, len(image))

    def _rebuild_part(self, target: memoryview, part: int, length: int) -> None:
        rows = self._rows(part)
        members = {
            source.place: source
            for source in self._plan.sources
            if source.part == part and source.rank >= 0
        }
        error = CorruptError(f"too little is left of part {part} of a lost image")
        for seals, which in self._choices(rows, members, part):
            if (mine := seals[part]) is None or mine.length != length:
                continue
            try:
                self._sum(target, part, seals, members, {row: rows[row] for row in which})
                return
            except CorruptError as damaged:
                error = damaged
        raise error

    def _choices(
        self, rows: dict[int, PartSource], members: dict[int, PartSource], part: int
    ) -> list[tuple[Seals, tuple[int, ...]]]:
        """Return the rows that restore a part together, and the images that they are made of."""
        heads: dict[Seals, list[int]] = {}
        for row, source in rows.items():
            try:
                heads.setdefault(self._seals(source), []).append(row)
            except CorruptError:
                continue  # the other rows may be enough
        return [
            (seals, which)
            for seals, same in heads.items()
            for which in rows_to_try(same, lost=len(_lost(seals, members)))
        ]

    def _sum(
        self,
        target: memoryview,
        part: int,
        seals: Seals,
        members: dict[int, PartSource],
        rows: dict[int, PartSource],
    ) -> None:
        """Sum up the sources of one part. Raises CorruptError if a source is not as expected."""
        left = {place: one for place, one in members.items() if seals[place] is not None}
        of_part, of_row = weights_to_rebuild(
            part, lost=_lost(seals, members), left=left, rows=sorted(rows)
        )
        target[:] = bytes(len(target))
        for place, source in left.items():
            seal = seals[place]
            assert seal is not None
            begin, end = part_of(seal.length, data=len(seals), place=place)
            end = min(end, begin + len(target))
            adding = _Adding(target, of_part[place])
            _Stream(source, self._asks(source), seal, self._key, self._cancelled).run(
                begin, end, adding.take
            )
        for row, source in rows.items():
            self._add_row(_Adding(target, of_row[row]), source, len(seals))

    def _add_row(self, adding: _Adding, source: PartSource, places: int) -> None:
        digest, left = xxhash.xxh3_64(), head_bytes(places)

        def take(data: memoryview) -> None:
            nonlocal left
            digest.update(data)
            skipped = min(left, len(data))
            left -= skipped
            adding.take(data[skipped:])

        stream = _Stream(source, self._asks(source), None, self._key, self._cancelled)
        seal = stream.run(0, None, take)
        if digest.intdigest() != seal.checksum:
            raise CorruptError(f"row {source.row} of parity at {source.at} is damaged")

    def _seals(self, source: PartSource) -> Seals:
        """Return the seals of the images of which a row is made."""
        head = bytearray()
        stream = _Stream(source, self._asks(source), None, self._key, self._cancelled)
        stream.run(0, head_bytes(self._parts), head.extend)
        row, seals = read_head(bytes(head))
        if row != source.row or len(seals) != self._parts:
            raise CorruptError(f"another row of parity lies at {source.at}")
        return seals

    def _rows(self, part: int) -> dict[int, PartSource]:
        sources = self._plan.sources
        return {one.row: one for one in sources if one.part == part and one.row >= 0}

    def _asks(self, source: PartSource) -> AskImage:
        stripe = source.stripe if source.row >= 0 else -1
        rank, row = max(source.rank, 0), max(source.row, 0)
        return AskImage("", None, self._plan.step, 0, "", rank, stripe=stripe, row=row)


@dataclass(slots=True)
class _Adding:
    """Add what arrives to a part, from its beginning. Bytes beyond its end are left out."""

    target: memoryview
    weight: int
    at: int = 0

    def take(self, data: memoryview) -> None:
        data = data[: len(self.target) - self.at]
        fold(self.target[self.at : self.at + len(data)], data, self.weight)
        self.at += len(data)


class _Stream:
    """The bytes of one source, over one connection after the other.

    seal   the seal of the image or row; None: any
    """

    def __init__(
        self,
        source: PartSource,
        asks: AskImage,
        seal: Seal | None,
        key: bytes,
        cancelled: Callable[[], bool],
    ) -> None:
        self._receiver = ImageReceiver(Server(source.at, key), cancelled)
        self._asks = asks
        self._seal = seal
        self._piece = memoryview(bytearray(limits.IMAGE_PIECE_BYTES))

    def run(self, begin: int, end: int | None, take: Take) -> Seal:
        """Pass all bytes from `begin` to `end` to `take`. None: to the end of the source.

        Return the seal.
        """
        at = begin
        while True:
            try:
                with self._receiver.connected() as sock:
                    seal = self._ask(sock, at)
                    last = seal.length if end is None else min(end, seal.length)
                    while at < last:
                        count = self._receiver.some(sock, self._piece[: last - at])
                        self._receiver.moved()
                        take(self._piece[:count])
                        at += count
                    return seal
            except (OSError, EOFError) as error:
                self._receiver.pause(error, "part of an image")

    def _ask(self, sock: socket.socket, at: int) -> Seal:
        """Ask for the bytes from `at` on. Raises CorruptError if they are of another image."""
        text = "" if self._seal is None else self._seal.pack().hex()
        one = self._asks
        asked = AskImage(
            trust.nonce(), None, one.step, at, text, one.rank, stripe=one.stripe, row=one.row
        )
        answer = image_dialogue.ask(
            sock,
            asked,
            key=self._receiver.server.key,
            receive=lambda target: self._receiver.some(sock, target),
        )
        if isinstance(answer, TurnedAway):
            raise CorruptError(answer.reason)
        seal = unpack_seal(bytes.fromhex(answer.seal))
        if seal is None or answer.offset != at or (self._seal is not None and seal != self._seal):
            where, what = self._receiver.server.address, f"what lies there of step {one.step}"
            raise CorruptError(f"{where}: {what} is not what the parity was made of")
        self._seal = seal
        return seal


def _lost(seals: Seals, members: dict[int, PartSource]) -> Sequence[int]:
    """Return the places of a stripe whose images are lost."""
    return [at for at, seal in enumerate(seals) if seal is not None and at not in members]
