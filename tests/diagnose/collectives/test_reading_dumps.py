"""Dumps in all their forms, and files that are none: what can be read is, everything else is
refused with its reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outlast.diagnose.collectives import (
    Dump,
    OversizedDump,
    Packer,
    Unpacker,
    UnreadableDump,
    clock_offsets,
    find_blame,
    looks_like_dump,
    packed,
    rank_of_dump,
    read_dump,
)
from outlast.diagnose.collectives.entries import signature_of
from tests.diagnose.collectives.limits import little_memory
from tests.diagnose.collectives.simulator import Job, Layout

JOB = Job(Layout(2, 2, 2), ahead=3, sleeps={5: 9})
WHOLE = JOB.dump(3)
WHOLE_RAW = pickle.dumps(WHOLE, protocol=2)


def read(top: object, name: str = "trace_3") -> Dump:
    return read_dump(pickle.dumps(top, protocol=2), name=name)


# --- forms ----------------------------------------------------------------------------------------


def test_pickle_and_json_of_one_dump_say_the_same() -> None:
    """In JSON the counters are text, tuples are lists, and what is not known is 0."""
    plain = json.loads(json.dumps(WHOLE))
    for row in plain["pg_status"].values():
        row.update({key: str(value) for key, value in row.items()})
    for entry in plain["entries"]:
        entry["time_discovered_completed_ns"] = entry["time_discovered_completed_ns"] or 0
    assert read_dump(json.dumps(plain).encode(), name="trace_3") == read(WHOLE)


@pytest.mark.parametrize("version", ["1.0", "1.5", "2.0", "2.4", "2.7", "2.9", "2.10", "2.11"])
def test_every_version_names_the_culprit(version: str) -> None:
    """Method: dumps stripped of what that version did not have; before 2.0 that is nearly all but
    the entries.
    """
    dumps = []
    layout = Layout(4, 1, 1)
    job = Job(layout, sleeps={2: 5})
    for rank in range(4):
        dump = job.dump(rank) | {"version": version}
        dump["nccl_version"] = dump.pop("comm_lib_version")
        if version < "2.0":
            del dump["pg_config"], dump["pg_status"]
            for entry in dump["entries"]:
                entry["seq_id"] = entry.pop("collective_seq_id")
                for key in (
                    "p2p_seq_id",
                    "is_p2p",
                    "op_id",
                    "thread_id",
                    "thread_name",
                    "timeout_ms",
                    "input_dtypes",
                    "output_dtypes",
                ):
                    del entry[key]
        dumps.append(read(dump, f"nccl_trace_rank_{rank}"))
    assert [one.rank for one in find_blame(dumps).ranks] == [2]


@pytest.mark.parametrize("version", ["3.0", "0.9", "two", "", None, 2.1, "2.1.1", "2.10\n"])
def test_versions_that_nobody_knows_are_refused(version: object) -> None:
    with pytest.raises(UnreadableDump, match="version"):
        read(WHOLE | {"version": version})


def test_a_group_that_finished_everything_is_known_from_its_counters() -> None:
    """In a dump of active entries only it has none: names that are numbers and numbers of the
    process go together in order.
    """
    dump = read(JOB.dump(5, only_active=True), "x_5")
    by_name = {state.name: state for state in dump.groups}
    told = {state.name: state for state in read(JOB.dump(5), "x_5").groups if not state.traffic}
    assert len(told) == 3
    assert {name: by_name[name].enqueued for name in told} == {
        name: state.enqueued for name, state in told.items()
    }
    assert {name: by_name[name].head for name in told} == {
        name: state.head for name, state in told.items()
    }


def test_of_one_launch_of_several_the_last_entry_has_the_state() -> None:
    """Coalesced operations: those before the last never leave "scheduled"."""
    entries = [
        dict(entry)
        for entry in Job(Layout(2, 1, 1)).dump(0)["entries"]
        if entry["process_group"][0] == "0"
    ]
    parts = [
        entries[-1]
        | {
            "state": "scheduled",
            "retired": False,
            "profiling_name": "nccl:_broadcast_oop",
            "record_id": 90 + place,
        }
        for place in range(3)
    ]
    closing = entries[-1] | {"profiling_name": "nccl:ALLGATHER_coalesced", "record_id": 93}
    done = read(
        WHOLE | {"pg_config": {}, "pg_status": {}, "entries": [*entries[:-1], *parts, closing]}
    )
    open_ = read(
        WHOLE
        | {
            "pg_config": {},
            "pg_status": {},
            "entries": [*entries[:-1], *parts, closing | {"state": "scheduled", "retired": False}],
        }
    )
    assert (done.groups[0].head, open_.groups[0].head) == (None, entries[-1]["collective_seq_id"])


def test_retired_without_completion_is_a_failure_over_nccl() -> None:
    entries = [dict(entry) for entry in Job(Layout(2, 1, 1)).dump(0)["entries"]]
    entries[-1] |= {"state": "scheduled", "retired": True}
    state = next(
        state
        for state in read(WHOLE | {"pg_config": {}, "entries": entries}).groups
        if state.name == entries[-1]["process_group"][0]
    )
    assert state.head == entries[-1]["collective_seq_id"]


def test_the_line_of_the_users_program_is_kept() -> None:
    top = json.loads(json.dumps(WHOLE))
    library = {
        "name": "all_reduce",
        "filename": "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
        "line": 3,
    }
    for entry in top["entries"]:
        entry["frames"] = [
            library,
            {"name": "step", "filename": "/src/train.py", "line": 41},
            {"name": "main", "filename": "/src/train.py", "line": 99},
        ]
    assert {state.where for state in read(top).groups if state.recent} == {"train.py:41 in step"}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({}, {}, True),
        ({"input_sizes": [[8, 4]]}, {"input_sizes": [[32]]}, True),
        ({"input_sizes": [[8, 4]]}, {"input_sizes": [[8, 5]]}, False),
        ({"input_dtypes": ["BFloat16"]}, {}, False),
        ({"profiling_name": "nccl:broadcast"}, {}, False),
        (
            {"profiling_name": "nccl:all_to_all", "input_sizes": [[1]]},
            {"profiling_name": "nccl:all_to_all", "input_sizes": [[2]]},
            True,
        ),
        (
            {"profiling_name": "gloo:gather", "output_sizes": []},
            {"profiling_name": "gloo:gather", "output_sizes": [[2, 32]]},
            True,
        ),
        (
            {"profiling_name": "gloo:scatter", "input_sizes": []},
            {"profiling_name": "gloo:scatter", "input_sizes": [[2, 32]]},
            True,
        ),
    ],
)
def test_ranks_must_agree_on_operation_type_and_count_and_on_no_more(
    one: dict, other: dict, is_same: bool
) -> None:
    usual = {
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[32]],
        "output_sizes": [[32]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
    }
    assert (signature_of(usual | one) == signature_of(usual | other)) is is_same


# --- whose it is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_17", 17),
        ("_dump_3", 3),
        ("comm_lib_trace_rank_0", 0),
        ("trace_rank_host12_7", 7),
        ("rank3_host5", 3),
        ("RANK-12.json", 12),
        ("fr.7.json.gz", 7),
        ("a/b/rank_04/trace.pickle", 4),
        ("12/trace.json", 12),
        ("3_of_16.json", 3),
        ("dump_5 (copy)", 5),
        ("host9.zip!/trace_2", 2),
        ("trace_20251122093011", None),
        ("trace", None),
        ("", None),
        ("rank=8.pkl", 8),
        ("C:\\runs\\trace_6", 6),
        ("rank_3_20251122093011", 3),
    ],
)
def test_a_rank_is_told_from_any_naming(name: str, rank: int | None) -> None:
    assert rank_of_dump(name) == rank


@given(st.text(max_size=60))
def test_no_name_is_too_odd(name: str) -> None:
    assert rank_of_dump(name) is None or rank_of_dump(name) >= 0


def test_content_that_tells_goes_before_the_name() -> None:
    """TP and DP groups have one rank in common."""
    for name in ("trace_0", "trace", "trace_7_of_8"):
        assert read(JOB.dump(3), name).rank == 3


def test_a_dump_that_is_nobodys_is_left_out_and_said_to_be() -> None:
    """Of four ranks in one group only, two dumps have names that tell nothing, and two ranks are
    left: which is whose cannot be known.
    """
    job = Job(Layout(4, 1, 1))
    assert read(job.dump(3), "trace_3").rank == 3
    blame = find_blame(
        [
            read(job.dump(rank), name)
            for rank, name in enumerate(["trace_0", "trace_1", "trace_9", "trace"])
        ]
    )
    assert [one.evidence.file for one in blame.findings if one.rule == "dump.unknown"] == [
        "trace_9",
        "trace",
    ]


# --- what is no dump ------------------------------------------------------------------------------


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/outlast-was-here",)


ATTACKS = [
    pickle.dumps(Evil(), protocol=2),
    pickle.dumps(Evil(), protocol=0),
    pickle.dumps(WHOLE | {"entries": [Evil()]}, protocol=4),
    b"cos\nsystem\n(S'true'\ntR.",
    b"(S'true'\nios\nsystem\n.",
    b"\x80\x02cbuiltins\neval\nX\x04\x00\x00\x001+1\x85R.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    b"\x80\x02Q.",
    b"Pid\n.",
    b"\x80\x02\x82\x01.",
    b"\x80\x02cos\nsystem\nq\x00.",
]


@pytest.mark.parametrize("raw", ATTACKS)
def test_a_pickle_that_asks_for_anything_is_refused_and_said_so(raw: bytes) -> None:
    with pytest.raises(UnreadableDump) as caught:
        read_dump(raw, name="trace_0")
    assert caught.value.refused or raw[2:3] in (b"Q", b"\x82")
    assert not os.path.exists("/tmp/outlast-was-here")


def test_a_dump_cut_at_any_place_is_cut_short_or_whole() -> None:
    """Method: every length, in both forms.

    Nothing but UnreadableDump is raised, and nothing that was cut passes for whole.
    """
    for raw in (WHOLE_RAW, json.dumps(WHOLE).encode()):
        for length in [*range(200), *range(200, len(raw), 97), len(raw) - 1]:
            with pytest.raises(UnreadableDump):
                read_dump(raw[:length], name="trace_3")
    with pytest.raises(UnreadableDump, match="cut short"):
        read_dump(WHOLE_RAW[:87], name="trace_3")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0" * 50,
        b"hello",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"version":"2.10","entries":{}}',
        b"{" + b'"a":{' * 50_000,
        random.Random(8).randbytes(500),
    ],
)
def test_junk_is_refused(raw: bytes) -> None:
    with pytest.raises(UnreadableDump):
        read_dump(raw, name="trace_0")


def sized(opcode: bytes, size: int) -> bytes:
    """Return an opcode that says `size` as an index into the memo, or as the bytes that follow."""
    if opcode == b"p":
        return b"p%d\n" % size
    wide = opcode in (b"\x8d", b"\x8e", b"\x95", b"\x96")
    return opcode + (size if wide else size & 0x7FFFFFFF).to_bytes(8 if wide else 4, "little")


@pytest.mark.parametrize("opcode", [b"p", b"r", b"B", b"\x8e", b"\x96"])
def test_a_few_bytes_that_ask_for_gigabytes_are_refused(opcode: bytes) -> None:
    """They are an index into the memo, and the lengths of bytes and of a bytearray."""
    with little_memory(), pytest.raises(OversizedDump, match="more memory than there is"):
        read_dump(b"\x80\x05]" + sized(opcode, (1 << 31) - 2) + b".", name="trace_0")


@given(
    st.sampled_from(
        [b"p", b"r", b"B", b"C", b"T", b"X", b"\x8b", b"\x8d", b"\x8e", b"\x95", b"\x96"]
    ),
    st.integers(1 << 26, (1 << 63) - 1),
    st.sampled_from([b"", WHOLE_RAW[2:-1]]),
    st.sampled_from([b"", b".", WHOLE_RAW[2:]]),
)
def test_a_pickle_that_lies_about_sizes_is_refused(
    opcode: bytes, size: int, before: bytes, after: bytes
) -> None:
    """Method: every opcode that gives a size or a place, in front of a dump and behind it."""
    raw = b"\x80\x05" + (before or b"N") + sized(opcode, size) + after
    with little_memory(), pytest.raises(UnreadableDump):
        read_dump(raw, name="trace_3")


@pytest.mark.parametrize(
    "change",
    [
        {"entries": [5]},
        {"entries": ["x"]},
        {"entries": [{}]},
        {"entries": [[]]},
        {"entries": None},
        {"pg_config": []},
        {"pg_config": {"0": {"ranks": "[0, x]"}}},
        {"pg_config": {"0": {"ranks": "[0, 0]"}}},
        {"pg_config": {"0": {"ranks": "[0, 3,]"}}},
        {"pg_config": {5: {}}},
        {"pg_config": {"0": {"ranks": "__import__('os')"}}},
        {"pg_status": {"0": 3}},
        {"pg_status": {"x": {}}},
        {"pg_status": {"0": {"last_enqueued_collective": None}}},
        {"pg_config": {"0": {"ranks": "[9999999]"}}},
    ],
)
def test_a_field_of_another_kind_is_refused(change: dict) -> None:
    with pytest.raises(UnreadableDump):
        read(WHOLE | change)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=5,
)


@settings(max_examples=300)
@given(st.data())
def test_any_value_in_any_field_is_read_or_refused(data: st.DataObject) -> None:
    """Method: one field of a real dump, of its entries or its tables, gets any value.

    Whatever comes of it, blame can be asked for.
    """
    top = json.loads(json.dumps(WHOLE))
    where = data.draw(st.sampled_from(["top", "entry", "entry", "config", "status"]))
    table = {
        "top": top,
        "entry": top["entries"][data.draw(st.integers(0, len(top["entries"]) - 1))],
        "config": top["pg_config"]["0"],
        "status": top["pg_status"]["0"],
    }[where]
    key = data.draw(st.sampled_from(sorted(table)))
    table[key] = data.draw(values)
    try:
        dump = read(top)
    except UnreadableDump:
        return
    find_blame([dump])


@settings(max_examples=300)
@given(st.data())
def test_any_bytes_are_read_or_refused(data: st.DataObject) -> None:
    """Method: bytes of a dump changed, cut out and put in; under a limit of memory, since one byte
    can ask for gigabytes.
    """
    raw = bytearray(data.draw(st.sampled_from([WHOLE_RAW, json.dumps(WHOLE).encode()])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    with little_memory(), contextlib.suppress(UnreadableDump):
        find_blame([read_dump(bytes(raw), name="trace_3")])


@example(WHOLE_RAW[:4096], True)
@example(json.dumps(WHOLE).encode()[:4096], True)
@example(b"[rank0]: Traceback (most recent call last):", False)
@example(b'{"event": "step", "loss": 2.1}', False)
@given(st.binary(max_size=50), st.none())
def test_heads_of_files_are_told_apart(head: bytes, expected: bool | None) -> None:
    assert looks_like_dump(head) in ((True, False) if expected is None else (expected,))


# --- between processes, and clocks ----------------------------------------------------------------


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_what_is_packed_comes_out_as_it_went_in(backend: str) -> None:
    """And what ranks share is one object again, over several packets of one process, and of
    several.
    """
    dumps = [read_dump(JOB.raw(rank, backend=backend), name=f"trace_{rank}") for rank in range(8)]
    shared: dict[object, object] = {}
    came = []
    for mine in (dumps[:4], dumps[4:]):
        packer, unpacker = Packer(), Unpacker(shared)
        for part in (mine[:1], mine[1:3], mine[3:]):
            came += unpacker.unpack(json.loads(json.dumps(packer.pack(part))))
    assert came == dumps
    worlds = [state.members for dump in came for state in dump.groups if state.name == "0"]
    assert len({id(world) for world in worlds}) == 1


def test_members_are_packed_once_unless_the_packer_holds_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The packer remembers a bounded number of member lists. It repeats one only past the bound."""
    dumps = [read_dump(JOB.raw(rank), name=f"trace_{rank}") for rank in range(8)]
    for most, is_anew in ((1_000, False), (10, True)):
        monkeypatch.setattr(packed, "MEMBERS_MAX_COUNT", most)
        packer, unpacker = Packer(), Unpacker()
        packets = [packer.pack([dump]) for dump in (*dumps, *dumps)]
        assert [dump for packet in packets for dump in unpacker.unpack(packet)] == [*dumps, *dumps]
        assert bool(packets[-1]["members"]) is is_anew


def test_clocks_that_lie_hours_apart_are_set_right() -> None:
    """Method: ranks 4 to 7 are on a host whose clock is two hours behind."""
    job, dumps = Job(Layout(2, 2, 2), sleeps={5: 9}), []
    for rank in range(8):
        dump = job.dump(rank)
        for entry in dump["entries"]:
            entry["time_created_ns"] -= 7_200 * 10**9 if rank >= 4 else 0
        dumps.append(read(dump, f"trace_{rank}"))
    offsets = clock_offsets(dumps)
    assert set(offsets) == set(range(8))
    assert all(
        abs(offset - (-7200.0 if rank >= 4 else 0.0)) < 1.0 for rank, offset in offsets.items()
    )
