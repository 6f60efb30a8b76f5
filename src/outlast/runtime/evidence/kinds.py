"""Find out what a file is from its first bytes. Its name counts only if the bytes do not decide.

Not promised: that a text is a log. Source code and settings are recognised by their suffix, because
they hold the same sentences as a log.
"""

from __future__ import annotations

import re
import tarfile
from enum import Enum

from outlast.diagnose.self_output import is_own_file
from outlast.diagnose.standing import HEAD
from outlast.model.beacon import BEACON_MAGIC


class FileKind(str, Enum):
    """The kind of a file. People see the values: "not read, {value}: a, b"."""

    DUMP = "a flight-recorder dump"
    TEXT = "text"
    ERROR_FILE = "an error file of torchelastic"
    DATABASE = "a SQLite file"
    STANDING = "a record of where processes stood"
    BEACON = "a beacon"
    GZIP, BZIP2, XZ, ZSTD = "gzip", "bzip2", "xz", "zstd"
    TAR, ZIP = "tar", "zip"
    EMPTY = "empty"
    PICKLE = "a pickle that is no flight-recorder dump"
    OURS = "written by outlast itself"
    SOURCE = "source code or documentation"
    SETTINGS = "settings of a program"
    JUNK = "binary"


COMPRESSED = {FileKind.GZIP, FileKind.BZIP2, FileKind.XZ, FileKind.ZSTD}
ARCHIVES = {*COMPRESSED, FileKind.TAR, FileKind.ZIP}

_MAGIC = (
    (b"\x1f\x8b\x08", FileKind.GZIP),
    (b"BZh", FileKind.BZIP2),
    (b"\xfd7zXZ\x00", FileKind.XZ),
    (b"\x28\xb5\x2f\xfd", FileKind.ZSTD),
    (b"PK\x03\x04", FileKind.ZIP),
    (b"PK\x05\x06", FileKind.ZIP),
    (b"SQLite format 3\x00", FileKind.DATABASE),
    (BEACON_MAGIC.to_bytes(4, "little"), FileKind.BEACON),
)
_BZIP2_BLOCK = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")
_TAR_BLOCK_BYTES = 512

# names that the recorder writes (torch/csrc/distributed/c10d/FlightRecorder.hpp); two of them do
# not occur by chance
_RECORDER_KEYS = (
    b"pg_config",
    b"pg_status",
    b"entries",
    b"nccl_comm_state",
    b"comm_lib_version",
    b"nccl_version",
    b"collective_seq_id",
    b"profiling_name",
    b"record_id",
    b"last_enqueued_collective",
)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
# protocols 0 and 1
_OLD_PICKLE = re.compile(
    rb"\(?[ci][A-Za-z_][\w.]*\n[A-Za-z_][\w.]*\n|\(dp?[0-9]*\n|\(lp?[0-9]*\n|[}\]]q\x00"
)
_DUMP_NAME = re.compile(
    r"(?:dump|trace|flight|recorder|(?:^|[._-])fr[._-]|nccl|gloo)"
    r".*\d(?:\.(?:pickle|pkl|json|bin|pt))?$|^_?dump_",
    re.IGNORECASE,
)
_SOURCE_NAME = re.compile(
    r"\.(?:py|pyi|c|cc|cpp|cxx|cu|cuh|h|hpp|js|ts|css|rs|go|java|rb|ipynb|md|rst|tex|diff|patch)$",
    re.IGNORECASE,
)
_SETTINGS_NAME = re.compile(r"\.(?:ya?ml|toml|ini|cfg)$", re.IGNORECASE)
# in YAML clusters and clouds also report what happened
_REPORTS = re.compile(
    rb"apiVersion|\b(?:kind|status|reason|message|nodeName)\b\"?:|[a-z]Payload|insertId"
    rb"|Traceback \("
)

# a log that was preallocated, or cut off by a crash of its host, contains runs of zeros
_LONG_ZEROS = re.compile(rb"\x00{16,}")
# except those that are sent to terminals: \b \t \n \v \f \r ESC
_CONTROL = bytes([*range(8), *range(14, 27), *range(28, 32), 127])
_CONTROL_SHARE, _CONTROL_SHARE_UTF8 = 0.03, 0.3  # noise has 0.1


def kind_of(head: bytes, name: str) -> FileKind:
    """Return what kind a file is.

    `head` is its first EVIDENCE_HEAD_BYTES, or all of a shorter file. `name` may have folders.
    """
    if not head:
        return FileKind.EMPTY
    known = next((kind for magic, kind in _MAGIC if head.startswith(magic)), None)
    if known is not None and (known is not FileKind.BZIP2 or _BZIP2_BLOCK.match(head)):
        return known
    if is_tar_header(head):
        return FileKind.TAR
    if HEAD in head[:200]:
        return FileKind.STANDING
    if is_own_file(head):
        return FileKind.OURS
    structured = _kind_of_structured(head, name)
    if structured is not None:
        return structured
    if not is_text(head):
        return FileKind.JUNK
    if _SETTINGS_NAME.search(name) and not _REPORTS.search(head):
        return FileKind.SETTINGS
    return FileKind.SOURCE if _SOURCE_NAME.search(name) else FileKind.TEXT


def named_like_a_dump(name: str) -> bool:
    return _DUMP_NAME.search(name.rpartition("/")[2]) is not None


def is_tar_header(head: bytes) -> bool:
    """Return True for a first block whose checksum is right, in any version or dialect of tar."""
    if len(head) < _TAR_BLOCK_BYTES or not head[0]:
        return False
    try:
        tarfile.TarInfo.frombuf(head[:_TAR_BLOCK_BYTES], "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def is_text(head: bytes) -> bool:
    """Return True for text in UTF-8, in UTF-16 with its mark, or with one byte per character."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return len(head) >= 4 and 0 in head[2:4]
    body = _LONG_ZEROS.sub(b"", head)
    if not body:
        return False
    controls = len(body) - len(body.translate(None, _CONTROL))
    return controls <= len(body) * (_CONTROL_SHARE_UTF8 if _is_utf8(body) else _CONTROL_SHARE)


def _kind_of_structured(head: bytes, name: str) -> FileKind | None:
    recorded = sum(key in head for key in _RECORDER_KEYS) >= 2
    if _PICKLE.match(head) or (
        _OLD_PICKLE.match(head) and (recorded or head.rstrip(b"\n").endswith(b"."))
    ):
        return FileKind.DUMP if recorded or named_like_a_dump(name) else FileKind.PICKLE
    if head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] != b"{":
        return None
    if recorded:
        return FileKind.DUMP
    return (
        FileKind.ERROR_FILE
        if b'"message"' in head and (b'"extraInfo"' in head or b'"py_callstack"' in head)
        else None
    )


def _is_utf8(body: bytes) -> bool:
    for missing in range(4):  # the first bytes may end within a character
        try:
            body[: len(body) - missing].decode()
        except UnicodeDecodeError as error:
            if error.start < len(body) - 4:
                return False
        else:
            return True
    return False
