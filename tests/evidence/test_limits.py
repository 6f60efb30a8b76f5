"""Archives made to harm: what they may cost is bounded, and said."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model import limits
from outlast.runtime.evidence import tar, unpack
from outlast.runtime.evidence.decompress import Damaged
from outlast.runtime.evidence.kinds import FileKind, kind_of
from outlast.runtime.evidence.opening import Peeked
from outlast.runtime.evidence.walk import gather
from tests.evidence import made


@pytest.fixture
def scratch(tmp_path: Path) -> str:
    (tmp_path / "scratch").mkdir()
    return str(tmp_path / "scratch")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of the same relations, small enough to be met quickly."""
    monkeypatch.setattr(limits, "EVIDENCE_RATIO_FREE_BYTES", 4 << 20)
    monkeypatch.setattr(limits, "EVIDENCE_UNPACKED_MAX_BYTES", 16 << 20)


def used(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).iterdir())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("form", ["zip", "gz", "bz2", "xz", "nested"])
def test_a_bomb_stops_at_the_ratio_and_the_rest_is_read(
    tmp_path: Path, scratch: str, form: str
) -> None:
    """Megabytes of one letter: nowhere near that is written, the note says why, and the next file
    counts as ever.
    """
    chunk = b"a" * (1 << 20)
    packers: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "xz": lzma.compress,
    }
    if form == "zip":
        bomb = made.zip_bomb(64 << 20)
    elif form in packers:
        bomb = packers[form](chunk * 64)
    else:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for number in range(16):
                archive.writestr(f"{number}.gz", gzip.compress(chunk * 8, 9))
        bomb = out.getvalue()
    (tmp_path / "bomb").write_bytes(bomb)
    (tmp_path / "z.log").write_bytes(made.LOG)
    got = gather([str(tmp_path / "bomb"), str(tmp_path / "z.log")], scratch)
    assert "z.log" in [piece.name for piece in got.texts]
    assert any(
        "bomb: it unfolds to more than 200 times its size" in note
        for note in (*got.said, *got.skipped)
    )
    assert used(scratch) < 16 << 20


@pytest.mark.usefixtures("small")
def test_all_archives_together_have_one_budget(tmp_path: Path, scratch: str) -> None:
    noise = bytes(range(32, 127)) * (1 << 14)  # 1.5 MB of text
    for number in range(20):
        with zipfile.ZipFile(tmp_path / f"{number:02d}.zip", "w") as archive:
            archive.writestr("a.log", noise)
    got = gather([str(tmp_path / f"{number:02d}.zip") for number in range(20)], scratch)
    assert 8 << 20 < used(scratch) <= 17 << 20
    assert any(
        "no more room for what archives unfold to" in note for note in (*got.said, *got.skipped)
    )


def test_members_that_overlap_count_each_time(
    tmp_path: Path, scratch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory whose hundred entries all point to one member: the bomb that needs no nesting."""
    monkeypatch.setattr(limits, "EVIDENCE_RATIO_FREE_BYTES", 4 << 20)
    one = made.zip_bomb(1 << 20)
    at = one.index(b"PK\x01\x02")
    central, end = one[at : one.index(b"PK\x05\x06")], one[one.index(b"PK\x05\x06") :]
    end = end[:8] + struct.pack("<HHII", 100, 100, len(central) * 100, at) + end[20:]
    (tmp_path / "a.zip").write_bytes(one[:at] + central * 100 + end)
    (tmp_path / "z.log").write_bytes(made.LOG)
    gather([str(tmp_path / "a.zip"), str(tmp_path / "z.log")], scratch)
    assert used(scratch) < 8 << 20


def test_a_directory_of_gigabytes_is_refused(tmp_path: Path, scratch: str) -> None:
    path = tmp_path / "a.zip"
    with path.open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(1 << 30)
        file.seek(1 << 30)
        file.write(
            struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 65_535, 65_535, (1 << 30) - 1_000, 4, 0)
        )
    with pytest.raises(UsageError, match="its directory has 1,073,740,824 bytes"):
        gather([str(path)], scratch)


def test_an_xz_that_wants_gigabytes_of_memory_is_refused(tmp_path: Path, scratch: str) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 64 << 20}]
    packed = bytearray(lzma.compress(made.LOG, filters=filters))
    # the dictionary's size, in one byte; the header's checksum behind it
    at = packed.index(bytes([0x21, 1]), 12) + 2
    packed[at] = 40  # 4 GB
    header = packed[12 : 12 + (packed[12] + 1) * 4 - 4]
    packed[12 + len(header) : 16 + len(header)] = zlib.crc32(bytes(header)).to_bytes(4, "little")
    (tmp_path / "a.xz").write_bytes(bytes(packed))
    with pytest.raises(UsageError, match=r"damaged .*[Mm]emory"):
        gather([str(tmp_path / "a.xz")], scratch)


@pytest.mark.parametrize("claim", [1 << 20, 1 << 33])
def test_a_tar_header_decides_nothing_about_memory(claim: int) -> None:
    """A name of a megabyte, one of eight gigabytes: refused before a byte of it is read."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, claim
    with pytest.raises(Damaged, match="a member's name of"):
        list(tar.members(Peeked(io.BytesIO(info.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20)))))


def test_a_pax_header_of_digits_takes_no_more_than_linear_time() -> None:
    began_s = time.process_time()
    assert tar.pax_facts(b"1" * limits.EVIDENCE_TAR_NAME_MAX_BYTES) == {}
    assert time.process_time() - began_s < 0.1
    assert tar.pax_facts(b"12 path=abc\n13 size=12345\n3\n") == {"path": "abc"}, (
        "a record whose length is wrong ends them"
    )


@settings(max_examples=150)
@given(st.binary(max_size=2_048))
def test_a_tar_of_anything_ends_in_members_or_a_known_error(noise: bytes) -> None:
    info = tarfile.TarInfo("a")
    info.size = 600
    base = bytearray(info.tobuf() + bytes(1_024) + info.tobuf(tarfile.PAX_FORMAT) + noise)
    base[1_536 + len(noise) % 512 :] = noise or b"x"
    try:
        for member in tar.members(Peeked(io.BytesIO(bytes(base)))):
            while member.body is not None and member.body.read(100):
                pass
    except (Damaged, EOFError):
        pass


@settings(max_examples=200)
@given(
    st.sampled_from([FileKind.GZIP, FileKind.BZIP2, FileKind.XZ]),
    st.binary(max_size=300),
    st.integers(0, 200),
    st.booleans(),
)
def test_compressed_noise_ends_in_bytes_or_a_known_error(
    kind: FileKind, noise: bytes, at: int, cut: bool
) -> None:
    pack = {FileKind.GZIP: gzip.compress, FileKind.BZIP2: bz2.compress, FileKind.XZ: lzma.compress}[
        kind
    ]
    good = pack(made.LOG * 3)
    bad = good[:at] if cut else good[:at] + noise + good[at + len(noise) :]
    budget = unpack.UnpackBudget(1 << 20)
    budget.begin(len(bad))
    try:
        for one in unpack.inside(Peeked(io.BytesIO(bad)), kind, "a", budget):
            while one.body is not None and one.body.read(100):
                pass
    except (Damaged, EOFError, unpack.Enough):
        pass


@settings(max_examples=100)
@given(st.data())
def test_a_damaged_zip_ends_in_members_or_a_known_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(
        out,
        "w",
        data.draw(
            st.sampled_from(
                [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2]
            )
        ),
    ) as archive:
        archive.writestr("a.log", made.LOG)
        archive.writestr("b/c.log", made.LOG)
    packed = bytearray(out.getvalue())
    for at, value in data.draw(
        st.lists(st.tuples(st.integers(0, len(packed) - 1), st.integers(0, 255)), max_size=8)
    ):
        packed[at] = value
    path = tmp_path_factory.mktemp("zip") / "a.zip"
    path.write_bytes(bytes(packed[: data.draw(st.integers(1, len(packed)))]))
    budget = unpack.UnpackBudget(1 << 20)
    budget.begin(len(packed))
    try:
        for one in unpack.inside_zip(str(path), "a", budget):
            try:
                while one.body is not None and one.body.read(100):
                    pass
            except unpack.MemberDamaged:
                pass
    except (Damaged, EOFError, unpack.Enough):
        pass


@settings(max_examples=500)
@given(st.binary(max_size=600), st.text(max_size=20))
def test_what_a_file_is_can_be_asked_of_anything(head: bytes, name: str) -> None:
    assert isinstance(kind_of(head, name), FileKind)


def test_a_member_that_begins_before_the_zip_is_damaged(tmp_path: Path) -> None:
    """The directory's size is larger than it is, as after a cut: all offsets move back."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.log", made.LOG)
    packed = bytearray(out.getvalue())
    end = packed.rindex(b"PK\x05\x06")
    at = end + 16  # of the offset of the directory
    offset = int.from_bytes(packed[at : at + 4], "little")
    packed[at : at + 4] = (offset + 9).to_bytes(4, "little")
    path = tmp_path / "a.zip"
    path.write_bytes(packed)
    budget = unpack.UnpackBudget(1 << 20)
    budget.begin(len(packed))
    (one,) = unpack.inside_zip(str(path), "a", budget)
    assert one.body is None
    assert "damaged" in str(one)
