"""Records that make bytes valid: the seal of an image in memory, and the manifest of a checkpoint.

A seal has SEAL_BYTES little-endian bytes. It has a checksum of its own, so that a torn seal is
noticed. It names its run by a hash, so a seal that another run left behind is not valid here. A
manifest is JSON, with a checksum over its other fields. A checkpoint exists once its manifest does.

Units      `length` is in bytes. `checksum` is the xxh3_64 of the image or file, as an unsigned
           integer.
Limits     Checksums find accidental changes, but not forged ones.

This module is pure: it packs and unpacks bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlast.errors import CorruptError
from outlast.model.texts import cut_at_word

SEAL_BYTES = 64
SEAL_MAGIC = 0x4C41_4553  # "SEAL"
SEAL_VERSION = 1
MANIFEST_VERSION = 1
# version, still, magic, run, generation, rank, step, length, checksum, own checksum
_SEAL = struct.Struct("<HHIQqqqQQQ")
assert _SEAL.size == SEAL_BYTES

NO_RANK = -1  # in the seal of an image that belongs to no rank, such as the transfer image


@dataclass(frozen=True, slots=True)
class Seal:
    """The image of `rank` at `step` is complete: `length` bytes with this `checksum`.

    `run` is `run_hash` of the run's id. `still` is True if the script has meanwhile reached the
    beginning of the next step or phase, and the rank's state is still that of the image.
    """

    run: int
    generation: int
    rank: int
    step: int
    length: int
    checksum: int
    still: bool = False

    def pack(self) -> bytes:
        body = _SEAL.pack(
            SEAL_VERSION,
            int(self.still),
            SEAL_MAGIC,
            self.run,
            self.generation,
            self.rank,
            self.step,
            self.length,
            self.checksum,
            0,
        )[:-8]
        return body + _digest(body)


def unpack_seal(data: bytes | memoryview) -> Seal | None:
    """Read the seal at the start of `data`. Return None if there is none, or if it is torn."""
    body = bytes(data[: SEAL_BYTES - 8])
    if len(data) < SEAL_BYTES or _digest(body) != bytes(data[SEAL_BYTES - 8 : SEAL_BYTES]):
        return None
    version, still, magic, *fields, _ = _SEAL.unpack(bytes(data[:SEAL_BYTES]))
    run, generation, rank, step, length, checksum = fields
    seal = Seal(run, generation, rank, step, length, checksum, bool(still))
    return seal if (version, magic) == (SEAL_VERSION, SEAL_MAGIC) else None


def run_hash(run_id: str) -> int:
    """Return 64 bits that stand for a run in its seals."""
    return int.from_bytes(
        hashlib.blake2b(run_id.encode(), digest_size=8, person=b"outlast-run").digest(), "little"
    )


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint. `name` is a plain file name in the manifest's own folder."""

    name: str
    length: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record of the files of a checkpoint.

    `kind` is one of KINDS. `metadata` belongs to the code that saves.
    """

    run: str
    generation: int
    step: int
    world_size: int
    kind: str
    files: tuple[FileEntry, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Return the manifest as the bytes of its file."""
        body = {
            "schema": MANIFEST_VERSION,
            "run": self.run,
            "generation": self.generation,
            "step": self.step,
            "world_size": self.world_size,
            "kind": self.kind,
            "files": [
                {"name": entry.name, "length": entry.length, "xxh3_64": f"{entry.checksum:016x}"}
                for entry in self.files
            ],
            "metadata": dict(self.metadata),
        }
        return (
            json.dumps(body | {"checksum": _digest(_canonical(body)).hex()}, indent=1).encode()
            + b"\n"
        )


SPLIT = "split"
OF_RUNS = (  # the kinds that `outlast run` writes
    SPLIT,  # the file of each rank has a share of the state that all ranks hold
    "replicated",  # the file of rank 0 has the state that all ranks hold
    "sharded",  # the file of each rank has its part of the state
)
KINDS = (
    *OF_RUNS,
    # a checkpoint of torch's DCP, with a record of tensors (runtime/tiers/tensor_record)
    "dcp",
)
_FIELDS: Mapping[str, type] = {
    "schema": int,
    "run": str,
    "generation": int,
    "step": int,
    "world_size": int,
    "kind": str,
    "files": list,
    "metadata": dict,
    "checksum": str,
}


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest strictly.

    Raises CorruptError for anything that `Manifest.encode` of this version could not have written.
    """
    try:
        body = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"a manifest is not JSON: {error}") from error
    if type(body) is not dict:
        raise CorruptError("a manifest is not a JSON object")
    if body.get("schema") != MANIFEST_VERSION:
        schema = cut_at_word(str(body.get("schema")), 20)
        reads = f"this version of outlast reads {MANIFEST_VERSION}"
        raise CorruptError(f"a manifest has schema {schema}, {reads}")
    if set(body) != set(_FIELDS) or any(
        type(body[name]) is not kind for name, kind in _FIELDS.items()
    ):
        raise CorruptError("a manifest has missing, extra or ill-typed fields")
    if (
        _digest(
            _canonical({name: value for name, value in body.items() if name != "checksum"})
        ).hex()
        != body["checksum"]
    ):
        raise CorruptError("a manifest does not match its own checksum")
    if body["kind"] not in KINDS or not all(
        type(value) is str for value in body["metadata"].values()
    ):
        raise CorruptError(
            f"a manifest has the unknown kind {body['kind']!r}, or its metadata is not a map of"
            " strings"
        )
    files = tuple(_file_entry(entry) for entry in body["files"])
    return Manifest(
        body["run"],
        body["generation"],
        body["step"],
        body["world_size"],
        body["kind"],
        files,
        body["metadata"],
    )


def _file_entry(entry: Any) -> FileEntry:
    try:
        name, length, checksum = entry["name"], entry["length"], int(entry["xxh3_64"], 16)
    except (TypeError, KeyError, ValueError) as error:
        raise CorruptError(f"a manifest names a file by {cut_at_word(str(entry), 80)}") from error
    if (
        type(name) is not str
        or type(length) is not int
        or length < 0
        or name in ("", ".", "..")
        or "/" in name
        or "\0" in name
        or len(entry) != 3
    ):
        raise CorruptError(f"a manifest names a file by {cut_at_word(str(entry), 80)}")
    return FileEntry(name, length, checksum)


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=8).digest()
