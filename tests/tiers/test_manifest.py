"""Seals and manifests: every torn or changed record is seen."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import CorruptError
from outlast.model.manifest import (
    SEAL_BYTES,
    FileEntry,
    Manifest,
    Seal,
    decode_manifest,
    run_hash,
    unpack_seal,
)

SIGNED = st.integers(-(2**63), 2**63 - 1)
UNSIGNED = st.integers(0, 2**64 - 1)


@given(st.builds(Seal, UNSIGNED, SIGNED, SIGNED, SIGNED, UNSIGNED, UNSIGNED))
def test_a_seal_comes_back_as_it_was(seal: Seal) -> None:
    assert len(seal.pack()) == SEAL_BYTES
    assert unpack_seal(seal.pack()) == seal


def test_every_flipped_byte_of_a_seal_is_seen_and_so_is_every_torn_write() -> None:
    """Method: torn = the first n bytes of the new record over the rest of an older one, or over
    zeros.
    """
    old, new = (
        Seal(run_hash("run"), generation, 3, 40 + generation, 1000, 2**63 + generation).pack()
        for generation in (1, 2)
    )
    for at in range(SEAL_BYTES):
        broken = bytearray(new)
        broken[at] ^= 0x10
        assert unpack_seal(bytes(broken)) is None
        assert unpack_seal(new[:at]) is None
        assert unpack_seal(new[:at] + bytes(SEAL_BYTES - at)) is None
        assert unpack_seal(new[:at] + old[at:]) in (None, unpack_seal(old), unpack_seal(new))
    assert unpack_seal(bytes(SEAL_BYTES)) is None


MANIFEST = Manifest(
    "run-1",
    2,
    40,
    2,
    "replicated",
    (FileEntry("rank-0.safetensors", 10, 5), FileEntry("rank-1.safetensors", 0, 2**64 - 1)),
    {"k": "é"},
)


def test_a_manifest_comes_back_as_it_was() -> None:
    assert decode_manifest(MANIFEST.encode()) == MANIFEST


def test_every_changed_byte_of_a_manifest_is_refused_or_means_the_same() -> None:
    """Method: replace each byte by several others; white space between tokens may differ, meaning
    may not.
    """
    data = MANIFEST.encode()
    for at in range(len(data)):
        for other in (data[at] ^ 1, data[at] ^ 0x20, ord("9"), ord("}")):
            broken = data[:at] + bytes([other]) + data[at + 1 :]
            with contextlib.suppress(CorruptError):
                assert decode_manifest(broken) == MANIFEST
        with pytest.raises(CorruptError):
            decode_manifest(data.rstrip()[:at][:-1])


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/passwd", "a\0b"])
def test_a_manifest_names_files_of_its_own_folder_only(name: str) -> None:
    with pytest.raises(CorruptError):
        decode_manifest(Manifest("r", 0, 1, 1, "sharded", (FileEntry(name, 1, 1),)).encode())


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"[" * 5000, b"\xff", Manifest("r", 0, 1, 1, "other", ()).encode()]
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_manifest(data)
