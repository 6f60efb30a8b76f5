"""Dumps in torch's own bytes, of which most is cut away before they are unpickled: what is said of
them is what the whole of them says.
"""

from __future__ import annotations

import os
import pickle
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from outlast.diagnose.collectives import Dump, UnreadableDump, find_blame, read_dump
from outlast.diagnose.collectives.dumps import _dump
from outlast.diagnose.collectives.pickles import unpickled
from outlast.diagnose.collectives.shortening import shortened
from tests.diagnose.collectives.limits import little_memory
from tests.diagnose.collectives.simulator import Job, Layout, Op
from tests.diagnose.collectives.test_real_incidents import SHARED
from tests.diagnose.collectives.torch_pickle import torch_pickle

SHAPES = [(2, 1, 2), (4, 1, 2), (3, 1, 3), (2, 2, 2)]
STEPS = 30


def whole(raw: bytes) -> Dump | None:
    """Of all of its bytes."""
    try:
        with little_memory():
            return _dump(unpickled(raw), "trace_1")
    except (UnreadableDump, MemoryError):
        return None


def read(raw: bytes) -> Dump | None:
    try:
        with little_memory():
            return read_dump(raw, name="trace_1")
    except UnreadableDump:
        return None


def cut(raw: bytes) -> int:
    """Entries that are not unpickled."""
    short = shortened(raw, last_count=32, each_count=4)
    return short.entries_count - short.kept_count if short else 0


LIBRARY = {
    "name": "all_reduce",
    "filename": "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
    "line": 3021,
}


def with_stacks(top: dict[str, Any], *, every: int) -> dict[str, Any]:
    """With two frames each; a function that was not there before every so many entries."""
    frames = [
        [
            LIBRARY,
            {"name": f"step{place // every}", "filename": "/src/train.py", "line": place % 400},
        ]
        for place in range(len(top["entries"]))
    ]
    return top | {
        "entries": [
            entry | {"frames": stack} for entry, stack in zip(top["entries"], frames, strict=True)
        ]
    }


@pytest.mark.skipif(
    not SHARED.is_dir(), reason="the dumps of two real incidents are not on this machine"
)
def test_these_tests_write_as_torch_does() -> None:
    paths = sorted(SHARED.glob("*/_dump_*"))
    assert len(paths) == 32
    for path in paths:
        assert torch_pickle(pickle.loads(path.read_bytes())) == path.read_bytes()


@settings(max_examples=60)
@given(st.data())
def test_what_is_cut_away_would_have_told_nothing(data: st.DataObject) -> None:
    """Method: jobs that hang in four ways, rings that have run over or not, stacks or none; each
    dump read as it is and by all of its bytes.
    """
    layout = Layout(*data.draw(st.sampled_from(SHAPES)))
    rank, ahead = data.draw(st.integers(0, layout.size - 1)), data.draw(st.sampled_from([0, 3]))
    program = layout.program(rank, STEPS, with_p2p=False)
    place = data.draw(st.integers(len(program) // 3, len(program) - 2))
    kind = data.draw(st.sampled_from(["sleep", "blind", "other", "rare group"]))
    if kind == "rare group":  # once, long ago: it is nowhere near the end
        layout.add("rare", "once", range(layout.size))
    programs = {
        one: [
            *([Op("rare")] if kind == "rare group" else []),
            *layout.program(one, STEPS, with_p2p=False),
        ]
        for one in range(layout.size)
    }
    if kind == "other":
        programs[rank][place] = Op(programs[rank][place].group, "broadcast", 5)
    job = Job(
        layout,
        ahead=ahead + 5 * (kind == "blind"),
        programs=programs,
        **({"sleep": {"sleeps": {rank: place}}, "blind": {"blind": {rank: place}}}.get(kind, {})),
    )
    top = job.dump(data.draw(st.integers(0, layout.size - 1)))
    top["entries"] = top["entries"][-data.draw(st.sampled_from([60, 90, 10_000])) :]
    if data.draw(st.booleans()):
        top = with_stacks(top, every=data.draw(st.sampled_from([1, 7, 1_000])))
    raw = torch_pickle(top)
    assert read(raw) == whole(raw) is not None


LONG = Job(Layout(4, 1, 2), steps=40, sleeps={2: 190}, with_p2p=False).dump(1)
COUNT = len(LONG["entries"])
RAW = torch_pickle(LONG)


def test_of_a_long_dump_nearly_all_is_cut_away() -> None:
    for raw in (RAW, torch_pickle(with_stacks(LONG, every=1_000))):
        assert cut(raw) > COUNT - 60
        assert read(raw).entry_count == COUNT > 180


def test_sends_older_versions_and_other_writers_are_read_whole() -> None:
    """Dumps with point-to-point calls, of older versions or of other writers are not shortened."""
    with_p2p = Job(Layout(2, 2, 2), steps=40).dump(1)
    old = LONG | {
        "entries": [
            {
                "seq_id" if key == "collective_seq_id" else key: value
                for key, value in entry.items()
                if key != "is_p2p"
            }
            for entry in LONG["entries"]
        ]
    }
    for raw in (
        torch_pickle(with_p2p),
        torch_pickle(old),
        *(pickle.dumps(LONG, protocol=protocol) for protocol in range(6)),
    ):
        assert cut(raw) == 0
        assert read(raw) == whole(raw) is not None


def test_nothing_behind_an_unfinished_entry_is_cut() -> None:
    """Where nothing finishes on a rank's device, all that follows may still matter."""
    job = Job(Layout(4, 1, 2), steps=40, ahead=120, blind={1: 70}, with_p2p=False)
    raw = torch_pickle(job.dump(1))
    assert read(raw) == whole(raw)
    assert read(raw).groups[0].head is not None or read(raw).groups[1].head is not None


def test_a_long_dump_cut_at_any_place_is_refused() -> None:
    assert cut(RAW)
    for length in [*range(0, len(RAW), 251), len(RAW) - 1]:
        assert read(RAW[:length]) is None


@example(0.5, 4096, 0)
@given(st.floats(0, 1), st.sampled_from([1, 2, 4096]), st.integers(0, 255))
def test_a_hole_in_a_long_dump_is_refused_or_changes_nothing(
    at: float, length: int, filled: int
) -> None:
    """Method: pages that never came to the disk, or one byte that is another.

    What is cut away is not looked at, and may be damaged.
    """
    begin = int(at * len(RAW))
    damaged = (
        RAW[:begin] + bytes([filled]) * len(RAW[begin : begin + length]) + RAW[begin + length :]
    )
    if (found := read(damaged)) is not None:
        assert found in (whole(damaged), whole(RAW))


def test_what_is_cut_away_is_never_carried_out(tmp_path: Any) -> None:
    """Method: in each entry of a dump in turn, a call of a name in the place of a number.

    What is looked at is refused, and nowhere anything is done.
    """
    target = tmp_path / "was-here"
    attack = b"cos\nsystem\n(S'touch " + str(target).encode() + b"'\ntR"
    timeouts = [at for at in range(len(RAW)) if RAW.startswith(b"J\xc0'\t\x00", at)]
    assert len(timeouts) == COUNT
    refused = 0
    for at in timeouts:
        try:
            read_dump(RAW[:at] + attack + RAW[at + 5 :], name="trace_1")
        except UnreadableDump as error:
            refused += error.refused
    assert refused >= 32
    assert not os.path.exists(target)


@given(st.randoms(use_true_random=False), st.integers(1, 3))
def test_any_bytes_of_a_long_dump_are_read_or_refused(draw: random.Random, count: int) -> None:
    raw = bytearray(RAW)
    for _ in range(count):
        raw[draw.randrange(len(raw))] = draw.randrange(256)
    if (found := read(bytes(raw))) is not None:
        find_blame([found])
