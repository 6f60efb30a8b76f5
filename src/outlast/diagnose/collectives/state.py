"""What is kept of one rank's dump: a small state for each of its process groups.

Sequence numbers are those of collectives (`collective_seq_id`): they grow by one with each
collective of a group and mean the same collective on all of its ranks. Those of send and receive
are each rank's own and are never compared.

Memory is linear in ranks x groups. Of hundreds of entries, only those around a group's head and end
are kept, as interned strings.

This module is pure.
"""

from __future__ import annotations

from dataclasses import dataclass

NOBODY = -1  # the rank of a dump that does not say which rank wrote it


@dataclass(frozen=True, slots=True)
class Traffic:
    """Sends to, or receives from, one peer of a group.

    `peer` is the place in the group, as recorded, not the global rank.

    pending  those not finished; oldest is the record number of the first of them, of no meaning if
             there is none
    total    all that are in the dump
    """

    peer: int
    is_send: bool
    pending: int
    total: int
    oldest: int


@dataclass(frozen=True, slots=True)
class GroupState:
    """This is what one rank has done in one group.

    members      global ranks in the order of the group; None where the dump does not say (gloo)
    head         the lowest collective that is not finished, None if none is; `head_record` its
                 place in the rank's order of all operations
    enqueued     the highest collective that the rank has reached; None if neither entries nor
                 counters show it
    recent       (seq, signature) around the head and at the end, ascending. Equal signatures go
                 together, see `signature_of`
    created_ns   (seq, wall clock of that host) of the last few, ascending
    traffic      send and receive, for backends that record them
    where        the line of the user's program that the head, or else the last collective, came
                 from, if the dump has stacks
    hides_p2p    the group's own count of operations ran ahead of what was recorded: send and
                 receive that the backend does not record
    """

    name: str
    desc: str
    backend: str
    members: tuple[int, ...] | None
    head: int | None
    head_record: int
    enqueued: int | None
    recent: tuple[tuple[int, str], ...] = ()
    created_ns: tuple[tuple[int, int], ...] = ()
    traffic: tuple[Traffic, ...] = ()
    where: str = ""
    hides_p2p: bool = False

    def has_finished(self, seq: int) -> bool:
        """Return whether this rank has finished operation number `seq` of the group."""
        return self.enqueued is not None and (
            seq < self.head if self.head is not None else seq <= self.enqueued
        )

    def signature(self, seq: int) -> str | None:
        """Return the name and sizes of operation `seq`; None if its entry was not kept."""
        return next((signature for at, signature in self.recent if at == seq), None)

    def label(self) -> str:
        """Return the group in words: its name, and its description if it has one."""
        return f"group {self.name}" + (
            f" ({self.desc})" if self.desc and self.desc != "undefined" else ""
        )


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's recorder, as far as it is needed to find out which rank waits for which.

    name       of the piece that it was read from
    is_blank   neither entries nor counters: the recorder was off, so that the dump says nothing
               about its rank
    is_whole   the ring had never run over, and finished operations were dumped too: all that the
               rank ever did is in it
    newest_ns  wall clock of its last entry; 0 without entries
    is_sure    the content names the rank; else it is the claim of a name, or NOBODY
    possible   of a rank that is not sure: those that its groups allow, () for any
    issued     (place in `groups`, seq, operation) of the last collectives of all groups, in the
               order in which the rank called them
    """

    rank: int
    name: str
    version: str
    groups: tuple[GroupState, ...]
    entry_count: int
    is_blank: bool
    is_whole: bool
    newest_ns: int
    is_sure: bool = True
    possible: tuple[int, ...] = ()
    issued: tuple[tuple[int, int, str], ...] = ()
