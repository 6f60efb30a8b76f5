"""Make one state for each group from the entries of one dump.

This is the inner loop. A job of 16,384 ranks brings millions of entries, and nearly all of them
finished long ago and tell nothing more (`worth_reading`). So entries are read column by column
rather than one by one. Each field that is used is checked for its type.

This module is pure.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from outlast.diagnose.collectives.pickles import UnreadableDump
from outlast.diagnose.collectives.state import GroupState, Traffic
from outlast.model.texts import cut_at_word

# process_group, pg_id, profiling_name, collective_seq_id, p2p_seq_id, is_p2p, state, retired,
# record_id
Entry = tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any]

FINISHED_KEPT_COUNT = 2  # before the head, for ranks that are still there
HEADS_KEPT_COUNT = 3  # from the head on
LAST_KEPT_COUNT = 2
TIMES_KEPT_COUNT = 4
ORDER_KEPT_COUNT = 32  # collectives of all groups, for the order in which they were called
_STATES = frozenset(("scheduled", "started", "completed"))
_P2P = re.compile(r"(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})")
_BY_RETIRED = frozenset(("gloo",))  # backends without device events

_STATE, _ID, _IS_P2P = (
    operator.itemgetter("state"),
    operator.itemgetter("pg_id"),
    operator.itemgetter("is_p2p"),
)
_is_unfinished = "completed".__ne__

# pg_id, is_p2p, collective_seq_id, p2p_seq_id: what one launch of several operations has in common
_Launch = tuple[int, bool, int, int]


class _Columns(NamedTuple):
    names: Sequence[Any]
    seqs: Sequence[int]
    records: Sequence[Any]
    launches: Sequence[_Launch]


class States(NamedTuple):
    """This is what the entries of one dump say.

    One state for each group, the process's own number of each group by name, and the order of the
    last calls, as in `Dump.issued`.
    """

    states: list[GroupState]
    numbers: dict[str, int]
    issued: tuple[tuple[int, int, str], ...]


def worth_reading(entries: list[Any]) -> list[Any]:
    """Return the entries that may tell something.

    They are those from the first unfinished one on, the last ORDER_KEPT_COUNT, and the last
    TIMES_KEPT_COUNT of each group. If sends are counted, all entries are kept.
    """
    begin = len(entries) - ORDER_KEPT_COUNT
    if begin <= 0 or any(map(_IS_P2P, entries)):
        return entries
    is_open = list(map(_is_unfinished, map(_STATE, entries)))
    if True in is_open:
        begin = min(begin, is_open.index(True))
    ids = list(map(_ID, entries))
    older: list[int] = []
    for number in set(ids):
        lacking = TIMES_KEPT_COUNT - ids[begin:].count(number)
        if lacking > 0:
            older += itertools.islice(
                (index for index in range(begin - 1, -1, -1) if ids[index] == number), lacking
            )
    return [*map(entries.__getitem__, sorted(older)), *entries[begin:]]


def group_states(
    rows: Iterable[Entry], entries: list[Any], members: Mapping[str, tuple[int, ...]]
) -> States:
    """Return the state of each group. The `rows` are the fields of `entries`, oldest first.

    Of one launch ("coalesced") only the newest entry has the state of all; the earlier ones never
    change theirs.
    """
    if not entries:
        return States([], {}, ())
    groups, *columns = zip(*rows, strict=True)
    ids, names, seqs, p2p_seqs, p2ps, states, retireds, records = columns
    for column, kind in ((ids, int), (seqs, int), (p2ps, bool), (retireds, bool)):
        if set(map(type, column)) != {kind}:
            _refuse()
    if not _STATES.issuperset(states):
        _refuse()
    places: dict[int, list[int]] = defaultdict(list)
    for index, number in enumerate(ids):
        places[number].append(index)
    by_retired = {
        number for number, indices in places.items() if _backend(names[indices[-1]]) in _BY_RETIRED
    }
    done = [
        retired if number in by_retired else state == "completed"
        for number, state, retired in zip(ids, states, retireds, strict=True)
    ]
    launches = list(zip(ids, p2ps, seqs, p2p_seqs, strict=True))
    # by group: launches that are not finished, with the place of their newest entry
    pending: dict[int, dict[_Launch, int]] = defaultdict(dict)
    newest = dict(zip(launches, range(len(launches)), strict=True))
    for launch, index in [item for item in newest.items() if not done[item[1]]]:
        pending[launch[0]][launch] = index
    read = _Columns(names, seqs, records, launches)
    found: dict[tuple[str, str], GroupState] = {}
    numbers: dict[str, int] = {}
    place_of: dict[int, int] = {}
    # of two with one name, the one used last
    for number, indices in sorted(places.items(), key=lambda item: -item[1][-1]):
        name, desc = _named(groups[indices[-1]])
        numbers.setdefault(name, number)
        key = (name, _backend(names[indices[-1]]))
        if key not in found:
            place_of[number] = len(found)
            found[key] = _state(
                name, desc, indices, pending[number], read, entries, members.get(name)
            )
    return States(list(found.values()), numbers, _issued(read, place_of))


def _issued(read: _Columns, place_of: Mapping[int, int]) -> tuple[tuple[int, int, str], ...]:
    """Return the order of the last calls. A launch of several operations counts once."""
    last = zip(read.launches[-ORDER_KEPT_COUNT:], read.names[-ORDER_KEPT_COUNT:], strict=True)
    calls = {
        launch: sys.intern(_text(said)[:80])
        for launch, said in last
        if not launch[1] and launch[0] in place_of
    }
    return tuple((place_of[launch[0]], launch[2], said) for launch, said in calls.items())


def _refuse() -> NoReturn:
    raise UnreadableDump("not a flight recorder's dump: an entry has a field of another kind")


def _whole(value: object) -> int:
    return value if type(value) is int else _refuse()


def _text(value: object) -> str:
    return value if type(value) is str else _refuse()


def _backend(said: object) -> str:
    return sys.intern(_text(said).partition(":")[0][:20])


def _named(group: object) -> tuple[str, str]:
    if (
        not isinstance(group, tuple | list)
        or len(group) != 2
        or type(group[0]) is not str
        or type(group[1]) is not str
    ):
        _refuse()
    return sys.intern(group[0][:200]), sys.intern(group[1][:200])


def _state(
    name: str,
    desc: str,
    indices: list[int],
    pending: Mapping[_Launch, int],
    read: _Columns,
    entries: list[Any],
    members: tuple[int, ...] | None,
) -> GroupState:
    p2ps = [index for index in indices if read.launches[index][1]]
    collectives = (
        indices if not p2ps else [index for index in indices if not read.launches[index][1]]
    )
    # older entries with higher numbers are of a recorder that was reset: they are of another life
    # of the group
    newest = read.seqs[collectives[-1]] if collectives else 0
    waiting = sorted(
        (launch[2], index)
        for launch, index in pending.items()
        if not launch[1] and launch[2] <= newest
    )
    finished = _finished(collectives, pending, read)
    head = waiting[0] if waiting else None
    kept = {
        *waiting[:HEADS_KEPT_COUNT],
        *waiting[-LAST_KEPT_COUNT:],
        *finished[-FINISHED_KEPT_COUNT:],
    }
    of_interest = head or (finished[-1] if finished else None)
    shown = entries[of_interest[1]] if of_interest else {}
    backend = _backend(read.names[indices[-1]])
    return GroupState(
        name=name,
        desc=desc,
        backend=backend,
        members=members,
        head=head[0] if head else None,
        head_record=_whole(read.records[head[1]]) if head else 0,
        enqueued=newest,  # 0 in a group that was used for send and receive only
        recent=tuple((seq, signature_of(entries[index])) for seq, index in sorted(kept)),
        created_ns=tuple(
            (seq, _number(entries[index], "time_created_ns"))
            for seq, index in sorted((*finished, *waiting))[-TIMES_KEPT_COUNT:]
        ),
        traffic=_traffic(p2ps, pending, read) if p2ps else (),
        where=_where(shown),
        hides_p2p=backend in _BY_RETIRED
        and _number(shown, "op_id") > _number(shown, "collective_seq_id"),
    )


def _finished(
    collectives: Sequence[int], pending: Mapping[_Launch, int], read: _Columns
) -> list[tuple[int, int]]:
    """Return (seq, place) of the last few that are finished, ascending."""
    finished: list[tuple[int, int]] = []
    before = sys.maxsize
    for index in reversed(collectives):
        seq = read.seqs[index]
        if seq < before:
            before = seq
            if read.launches[index] not in pending:
                finished.append((seq, index))
                if len(finished) == TIMES_KEPT_COUNT:
                    break
    return finished[::-1]


def _traffic(
    p2ps: Sequence[int], pending: Mapping[_Launch, int], read: _Columns
) -> tuple[Traffic, ...]:
    rows: dict[tuple[int, bool], list[int]] = {}
    for index in reversed(p2ps):
        if parsed := _P2P.search(_text(read.names[index])):
            way, _, peer = parsed.groups()
            row = rows.setdefault((int(peer), way == "send"), [0, 0, 0])
            row[1] += 1
            if read.launches[index] in pending:
                row[0] += 1
                row[2] = _whole(read.records[index])
    return tuple(Traffic(peer, is_send, *row) for (peer, is_send), row in sorted(rows.items()))


def _number(entry: Mapping[str, object], key: str) -> int:
    value = entry.get(key, 0)
    return value if type(value) is int and 0 <= value < 1 << 63 else 0


# --- what must agree ------------------------------------------------------------------------------

DIMENSIONS_MAX = 64


def signature_of(entry: Mapping[str, Any]) -> str:
    """Return what has to be the same on all ranks of a collective: "all_reduce Float 120>120".

    It is the operation, the types, and the elements in and out. What may rightly differ between
    ranks is left out. That is the sizes of an all-to-all, the output of a gather (only its root has
    one) and the input of a scatter. It is also both sizes of operations that are sparse, uneven, or
    several in one launch.
    """
    types = entry.get("input_dtypes") or entry.get("output_dtypes")
    return _signature(
        _text(entry["profiling_name"]),
        str(types),
        str(entry.get("input_sizes")),
        str(entry.get("output_sizes")),
    )


@functools.lru_cache(maxsize=4_096)
def _signature(said: str, types: str, into: str, out: str) -> str:
    """Return the signature of the fields as text, because most entries share theirs with many
    others.
    """
    name = said.partition(":")[2][:80]
    kinds = "+".join(sorted(set(re.findall(r"\w{1,20}", types[:4_000])))) if types != "None" else ""
    if "coalesced" in name or "sparse" in name:
        return sys.intern(name)
    if "all_to_all" in name or "alltoall" in name or name.endswith(("_v", "_oop")):
        return sys.intern(f"{name} {kinds}")
    if name in ("gather", "reduce"):
        return sys.intern(f"{name} {kinds} {_elements(into)}")
    if name == "scatter":
        return sys.intern(f"{name} {kinds} >{_elements(out)}")
    return sys.intern(f"{name} {kinds} {_elements(into)}>{_elements(out)}")


_SIZES = re.compile(r"\[([\d, ]*)\]")


def _elements(sizes: str) -> int:
    """Return the number of elements of a text such as "[[4096, 1, 5120], [8]]": 20971528.

    Tensors with more dimensions than torch allows count as none.
    """
    total = 0
    for tensor in _SIZES.findall(sizes[:1_000_000]):
        dimensions = [int(size) for size in tensor[:2_000].split(",") if size.strip()]
        total += math.prod(dimensions) if len(dimensions) <= DIMENSIONS_MAX else 0
    return total


def _where(entry: Mapping[str, Any]) -> str:
    """Return the innermost line that is not of a library: "train.py:41 in step"."""
    frames = entry.get("frames")
    for frame in frames[:128] if type(frames) is list else ():
        if (
            type(frame) is dict
            and type(file := frame.get("filename")) is str
            and not any(part in file for part in ("/torch/", "site-packages", "<"))
        ):
            file = cut_at_word(file.rpartition("/")[2], 80)
            line = cut_at_word(str(frame.get("line")), 8)
            return sys.intern(f"{file}:{line} in {cut_at_word(str(frame.get('name')), 80)}")
    return ""
