"""Pack dumps as plain JSON, to send them between processes.

What many ranks share (members, signatures, names) is written once for all of them. Members are
written once for all packets of one `Packer`, because those of 16,384 ranks are most of a packet. So
its packets have to be unpacked in order, by one `Unpacker`. Equal values become the same object,
over all unpackers that share a table. Thousands of ranks then hold one tuple of members, and not
one each.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast.diagnose.collectives.state import Dump, GroupState, Traffic

MEMBERS_MAX_COUNT = 1 << 20  # ranks in all groups that a packer keeps in mind; then it forgets them


class _Table:
    """A table of values and their places.

    An object that came before is found by its identity, without a look at its content.
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[Any, int] = {}
        self._by_identity: dict[int, int] = {}

    def place(self, value: Any) -> int:
        place = self._by_identity.get(id(value))
        if place is None:
            place = self._places.get(value)
            if place is None:
                place = self._places[value] = len(self.values)
                self.values.append(value)
            if self.values[place] is value:  # kept alive, so that its identity stays its own
                self._by_identity[id(value)] = place
        return place


class Packer:
    """Pack dumps into packets, which one `Unpacker` has to unpack in order."""

    def __init__(self) -> None:
        self._members = _Table()
        self._count = 0  # of ranks in all members said so far

    def pack(self, dumps: Sequence[Dump]) -> dict[str, Any]:
        """Return a packet of plain data. It refers to what earlier packets of this packer said."""
        if self._count > MEMBERS_MAX_COUNT:
            self._members, self._count = _Table(), 0
        members, recent, issued, words = self._members, _Table(), _Table(), _Table()
        said, packed = len(members.values), []
        for dump in dumps:
            groups = [
                (
                    words.place(at.name),
                    words.place(at.desc),
                    words.place(at.backend),
                    members.place(at.members),
                    at.head,
                    at.head_record,
                    at.enqueued,
                    recent.place(at.recent),
                    at.created_ns,
                    [(t.peer, t.is_send, t.pending, t.total, t.oldest) for t in at.traffic],
                    words.place(at.where),
                    at.hides_p2p,
                )
                for at in dump.groups
            ]
            own = (
                dump.rank,
                dump.name,
                dump.entry_count,
                dump.is_blank,
                dump.is_whole,
                dump.newest_ns,
                dump.is_sure,
            )
            packed.append(
                (
                    own,
                    words.place(dump.version),
                    groups,
                    members.place(dump.possible),
                    issued.place(dump.issued),
                )
            )
        more = members.values[said:]
        self._count += sum(len(row or ()) for row in more)
        return {
            "said": said,
            "members": more,
            "recent": recent.values,
            "issued": issued.values,
            "words": words.values,
            "dumps": packed,
        }


class Unpacker:
    """Unpack packets. `shared` is the table of equal values, for all unpackers of one reading."""

    def __init__(self, shared: dict[Any, Any] | None = None) -> None:
        self._shared: dict[Any, Any] = {} if shared is None else shared
        self._members: list[Any] = []

    def unpack(self, packed: dict[str, Any]) -> list[Dump]:
        """Return what `Packer` was given, whether it went through JSON or not. Anything else is a
        bug.
        """
        share = self._shared.setdefault
        words = [share(word, word) for word in packed["words"]]
        del self._members[packed["said"] :]
        for row in packed["members"]:
            members = None if row is None else tuple(row)
            self._members.append(share(members, members))
        recent = []
        for row in packed["recent"]:
            pairs = tuple((seq, share(signature, signature)) for seq, signature in row)
            recent.append(share(pairs, pairs))
        issued = [
            tuple((place, seq, share(said, said)) for place, seq, said in row)
            for row in packed["issued"]
        ]
        dumps = []
        for (
            rank,
            name,
            count,
            is_blank,
            is_whole,
            newest_ns,
            is_sure,
        ), version, groups, possible, order in packed["dumps"]:
            states = tuple(self._state(row, words, self._members, recent) for row in groups)
            calls = share(issued[order], issued[order])
            dumps.append(
                Dump(
                    rank,
                    name,
                    words[version],
                    states,
                    count,
                    is_blank,
                    is_whole,
                    newest_ns,
                    is_sure,
                    self._members[possible] or (),
                    calls,
                )
            )
        return dumps

    def _state(
        self, row: Sequence[Any], words: list[str], members: list[Any], recent: list[Any]
    ) -> GroupState:
        (
            name,
            desc,
            backend,
            place,
            head,
            head_record,
            enqueued,
            recents,
            created,
            traffic,
            where,
            hides,
        ) = row
        return GroupState(
            words[name],
            words[desc],
            words[backend],
            members[place],
            head,
            head_record,
            enqueued,
            recent[recents],
            tuple((seq, ns) for seq, ns in created),
            tuple(Traffic(*one) for one in traffic),
            words[where],
            hides,
        )
