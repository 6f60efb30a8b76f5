"""Files that outlast and torchelastic wrote, damaged: refused with a word, or read; never more than
that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlast.diagnose.findings import Finding
from outlast.diagnose.ledger import LedgerContents
from outlast.model.beacon import BEACON_BYTES, Beacon, pack_into
from outlast.model.pieces import Piece
from outlast.runtime.evidence import recorded
from tests.evidence import made
from tests.ledger import a_run


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """All of a run's ledger in one file."""
    return (a_run.ended_run(tmp_path_factory.mktemp("run")) / "ledger.db").read_bytes()


def piece(folder: Path, data: bytes) -> Piece:
    path = folder / "evidence"
    path.write_bytes(data)
    return Piece("evidence", str(path), len(data))


@st.composite
def damage(draw: st.DrawFn) -> list[tuple[float, bytes, bool]]:
    """Places (as a share of the file), bytes to put there, and whether the file ends there."""
    return draw(
        st.lists(
            st.tuples(st.floats(0, 1), st.binary(max_size=40), st.booleans()),
            min_size=1,
            max_size=4,
        )
    )


def damaged(data: bytes, done: list[tuple[float, bytes, bool]]) -> bytes:
    for share, junk, ends in done:
        at = int(share * len(data))
        data = data[:at] + junk + (b"" if ends else data[at + len(junk) :])
    return data


def test_the_ledger_is_read_whole(ledger: bytes, tmp_path: Path) -> None:
    assert recorded.read(piece(tmp_path, ledger)).findings


def read_or_refused(read: Callable[[Piece], object], evidence: Piece) -> tuple[object, str]:
    """What was read, or the words with which it was refused."""
    try:
        return read(evidence), ""
    except ValueError as error:
        return None, str(error)


DAMAGED = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@DAMAGED
@given(done=damage())
def test_a_damaged_ledger_is_refused_or_read(
    ledger: bytes, tmp_path: Path, done: list[tuple[float, bytes, bool]]
) -> None:
    got, refused = read_or_refused(recorded.read, piece(tmp_path, damaged(ledger, done)))
    assert refused or (
        isinstance(got, LedgerContents) and all(isinstance(one, Finding) for one in got.findings)
    )


TRACE = (
    'Traceback (most recent call last):\n  File "/srv/train.py", line 3, in <module>\n   '
    " main()\nIndexError: list index out of range\n"
)


@DAMAGED
@given(done=damage())
def test_a_damaged_error_file_is_refused_or_gives_lines(
    tmp_path: Path, done: list[tuple[float, bytes, bool]]
) -> None:
    whole = made.error_file(TRACE)
    assert b"IndexError: list index out of range" in recorded.error_lines(piece(tmp_path, whole))
    got, refused = read_or_refused(recorded.error_lines, piece(tmp_path, damaged(whole, done)))
    assert "torchelastic" in refused or (
        isinstance(got, list) and all(b"\n" not in line for line in got)
    )


@DAMAGED
@given(done=damage())
def test_a_damaged_beacon_is_refused_or_read(
    tmp_path: Path, done: list[tuple[float, bytes, bool]]
) -> None:
    page = bytearray(BEACON_BYTES)
    pack_into(memoryview(page), Beacon(rank=3, generation=1, step=7))
    assert recorded.read_beacon(piece(tmp_path, bytes(page))).rank == 3
    got, refused = read_or_refused(
        recorded.read_beacon, piece(tmp_path, damaged(bytes(page), done))
    )
    assert "beacon" in refused or isinstance(got, Beacon)
