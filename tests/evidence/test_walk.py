"""The walk: everything that may lie in a folder, each read once or said to be left out."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import socket
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.errors import UsageError
from outlast.model import limits
from outlast.model.pieces import Piece
from outlast.runtime.evidence.reading import diagnose
from outlast.runtime.evidence.walk import Gathered, gather
from tests.evidence import made


@pytest.fixture
def scratch(tmp_path: Path) -> str:
    (tmp_path / "scratch").mkdir()
    return str(tmp_path / "scratch")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "evidence").mkdir()
    return tmp_path / "evidence"


def names(pieces: list[Piece]) -> list[str]:
    return [piece.name for piece in pieces]


def content(piece: Piece) -> bytes:
    assert piece.path is not None
    return Path(piece.path).read_bytes()


def said(gathered: Gathered) -> str:
    return "\n".join((*gathered.said, *gathered.skipped))


def tar_of(members: dict[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zip_of(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


# --- folders --------------------------------------------------------------------------------------


def test_a_folder_gives_each_file_by_what_it_holds_whatever_its_name(
    folder: Path, scratch: str
) -> None:
    """Dumps in pickle and JSON under three kinds of names, logs, an error file, a SQLite file;
    names below the folder, rank 2 before rank 10.
    """
    import json
    import sqlite3

    (folder / "node1").mkdir()
    for name in ("node1/trace_rank_10", "node1/trace_rank_2", "hello.bin"):
        (folder / name).write_bytes(made.pickled(0))
    (folder / "fr.txt").write_text(json.dumps(made.dump(1)))
    (folder / "node1" / "rank0.log").write_bytes(made.LOG)
    (folder / "error.json").write_bytes(
        made.error_file("Traceback (most recent call last):\nValueError: x")
    )
    with sqlite3.connect(folder / "ledger.db") as database:
        database.execute("CREATE TABLE a (b)")
    database.close()
    got = gather([str(folder)], scratch)
    assert names(got.dumps) == ["fr.txt", "hello.bin", "node1/trace_rank_2", "node1/trace_rank_10"]
    assert (names(got.texts), names(got.error_files), names(got.databases)) == (
        ["node1/rank0.log"],
        ["error.json"],
        ["ledger.db"],
    )
    assert said(got) == ""


@pytest.mark.parametrize(
    "make",
    [lambda path: None, lambda path: (path / "a" / "b").mkdir(parents=True)],
    ids=["empty", "only folders"],
)
def test_an_empty_folder_is_an_error_that_says_what_to_name(
    folder: Path, scratch: str, make: Callable[[Path], None]
) -> None:
    make(folder)
    with pytest.raises(UsageError, match=r"nothing in .*: there are no files") as error:
        gather([str(folder)], scratch)
    assert (error.value.exit_code, "flight-recorder dumps" in error.value.hint) == (2, True)


def test_a_path_that_does_not_exist_is_an_error(tmp_path: Path, scratch: str) -> None:
    with pytest.raises(UsageError, match="nowhere cannot be read: No such file"):
        gather([str(tmp_path / "nowhere")], scratch)


def test_fifos_sockets_and_devices_are_never_opened(folder: Path, scratch: str) -> None:
    """Opening a FIFO would wait for its writer for ever; the test's own time-out is the witness."""
    os.mkfifo(folder / "rank0.pipe")
    (folder / "a.log").write_bytes(made.LOG)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "s"))
        got = gather([str(folder), "/dev/zero"], scratch)
    assert names(got.texts) == ["evidence/a.log"]
    assert all(
        f"not read, {what}" in said(got)
        for what in ("a FIFO: evidence/rank0.pipe", "a socket: evidence/s", "a device: zero")
    )


def test_a_fifo_alone_is_an_error_that_names_it(tmp_path: Path, scratch: str) -> None:
    os.mkfifo(tmp_path / "p")
    with pytest.raises(UsageError, match="not read, a FIFO: p"):
        gather([str(tmp_path / "p")], scratch)


def test_symbolic_links_out_of_the_folder_are_not_followed_and_said(
    folder: Path, tmp_path: Path, scratch: str
) -> None:
    """Nor are those to a folder above (a circle).

    One to a neighbour needs no word: the neighbour is read.
    """
    secret = tmp_path / "secret.txt"
    secret.write_text("somebody else's")
    (folder / "a.log").write_bytes(made.LOG)
    (folder / "same.log").symlink_to("a.log")
    (folder / "out.log").symlink_to(secret)
    (folder / "up").symlink_to("..")
    (folder / "gone.log").symlink_to("not-there")
    got = gather([str(folder)], scratch)
    assert names(got.texts) == ["a.log"]
    assert "not read, a symbolic link out of the folder: out.log, up" in (*got.said, *got.skipped)
    assert "not read, a symbolic link that leads nowhere: gone.log" in (*got.said, *got.skipped)
    assert "same.log" not in said(got)


def test_a_link_that_was_named_itself_is_followed(
    folder: Path, tmp_path: Path, scratch: str
) -> None:
    (folder / "a.log").write_bytes(made.LOG)
    (tmp_path / "latest").symlink_to(folder)
    assert names(gather([str(tmp_path / "latest")], scratch).texts) == ["a.log"]


def test_a_file_is_read_once_however_often_it_is_named(folder: Path, scratch: str) -> None:
    (folder / "a.log").write_bytes(made.LOG)
    (folder / "b.log").hardlink_to(folder / "a.log")
    got = gather([str(folder), str(folder / "a.log"), str(folder)], scratch)
    assert len(got.texts) == 1


def test_two_folders_of_one_name_are_told_apart(tmp_path: Path, scratch: str) -> None:
    for node in ("n1", "n2"):
        (tmp_path / node / "logs").mkdir(parents=True)
        (tmp_path / node / "logs" / "a.log").write_bytes(made.LOG)
    got = gather([str(tmp_path / node / "logs") for node in ("n1", "n2")], scratch)
    assert [
        name.endswith(f"{node}/logs/a.log")
        for name, node in zip(names(got.texts), ("n1", "n2"), strict=True)
    ] == [True, True]


def test_files_that_are_no_evidence_are_named_with_a_reason(folder: Path, scratch: str) -> None:
    """Binary junk, empty files, foreign pickles and source code."""
    import pickle

    (folder / "a.log").write_bytes(made.LOG)
    (folder / "noise").write_bytes(os.urandom(100_000))
    (folder / "optimizer.state").write_bytes(pickle.dumps({"lr": 1.0}))
    (folder / "empty.err").touch()
    (folder / "train.py").write_text("raise RuntimeError('CUDA error: out of memory')\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD.log").write_bytes(made.LOG)
    got = gather([str(folder)], scratch)
    assert names(got.texts) == ["a.log"]
    for what in (
        "binary: noise",
        "a pickle that is no flight-recorder dump: optimizer.state",
        "empty: empty.err",
        "source code or documentation: train.py",
    ):
        assert f"not read, {what}" in (*got.said, *got.skipped)


def test_source_code_that_was_named_itself_is_read(folder: Path, scratch: str) -> None:
    (folder / "notes.md").write_bytes(made.LOG)
    assert names(gather([str(folder / "notes.md")], scratch).texts) == ["notes.md"]


def test_an_empty_or_overwritten_file_among_dumps_is_an_unreadable_dump(
    folder: Path, scratch: str
) -> None:
    """A missing dump makes a suspect; so must one of nothing, and one of noise."""
    made.hung_job(folder)
    (folder / "nccl_trace_rank_1").write_bytes(b"")
    (folder / "nccl_trace_rank_3").write_bytes(os.urandom(500))
    got = gather([str(folder)], scratch)
    assert names(got.dumps) == [f"nccl_trace_rank_{rank}" for rank in range(4)]


def test_names_that_are_not_utf8_are_shown_and_still_open(folder: Path, scratch: str) -> None:
    path = os.path.join(os.fsencode(folder), b"r\xe9sum\x1b.log")
    with open(path, "wb") as file:
        file.write(made.LOG)
    [piece] = gather([str(folder)], scratch).texts
    assert (piece.name, content(piece)) == ("r\\xe9sum\x1b.log", made.LOG)


TEXTS = {
    "Latin-1": "Erreur: périphérique détaché à 3 h\n".encode("latin-1") * 9,
    "UTF-16": ("bonjour, é\n" * 9).encode("utf-16"),
    "zeros after a crash": b"text\n" + bytes(8_000),
    "terminal colours": b"\x1b[31mred\x1b[0m\n" * 50,
}


@pytest.mark.parametrize("log", TEXTS.values(), ids=TEXTS)
def test_a_text_in_any_encoding_is_a_text(folder: Path, scratch: str, log: bytes) -> None:
    (folder / "a").write_bytes(log)
    assert names(gather([str(folder)], scratch).texts) == ["a"]


# --- archives -------------------------------------------------------------------------------------

PACKED: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "a.tar": tar_of,
    "a.tar.gz": lambda members: gzip.compress(tar_of(members)),
    "a.tar.bz2": lambda members: bz2.compress(tar_of(members)),
    "a.tar.xz": lambda members: lzma.compress(tar_of(members)),
    "a.zip": zip_of,
}


@pytest.mark.parametrize("archive", sorted(PACKED))
def test_an_archive_is_a_folder_under_its_name(folder: Path, scratch: str, archive: str) -> None:
    """Whatever the file is called: the same archive without its suffix."""
    members = {
        "logs/rank0.log": made.LOG,
        "dumps/trace_rank_0": made.pickled(0),
        "d/noise.bin": os.urandom(9_000),
        "x" * 150 + "/long.log": made.LOG,
    }
    for name in (archive, "blob"):
        (folder / name).write_bytes(PACKED[archive](members))
        got = gather([str(folder / name)], scratch)
        assert names(got.texts) == [f"{name}/logs/rank0.log", f"{name}/{'x' * 150}/long.log"]
        assert names(got.dumps) == [f"{name}/dumps/trace_rank_0"]
        assert content(got.texts[0]) == made.LOG
        assert said(got) == f"not read, binary: {name}/d/noise.bin"
        (folder / name).unlink()
        for part in Path(scratch).iterdir():
            part.unlink()


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_log_is_read_under_its_own_name_all_members_of_it(
    folder: Path, scratch: str, pack: Callable[[bytes], bytes]
) -> None:
    """As logrotate and parallel packers write it: several members, and zeros behind the last."""
    (folder / "rank0.log.z").write_bytes(pack(made.LOG) + pack(made.LOG) + bytes(512))
    [piece] = gather([str(folder)], scratch).texts
    assert (piece.name, content(piece)) == ("rank0.log.z", made.LOG * 2)


def test_what_is_no_member_behind_a_compressed_log_is_not_read(folder: Path, scratch: str) -> None:
    (folder / "a.log.gz").write_bytes(gzip.compress(made.LOG) + b"trailing words")
    [piece] = gather([str(folder)], scratch).texts
    assert content(piece) == made.LOG


@pytest.mark.parametrize(
    ("pack", "why"),
    [
        (lambda data: data[:-40], "cut short"),
        (lambda data: data[:200] + bytes(300) + data[500:], "damaged"),
    ],
)
def test_of_a_broken_archive_what_can_be_read_is(
    folder: Path, scratch: str, pack: Callable[[bytes], bytes], why: str
) -> None:
    log = os.urandom(3_000).hex().encode()
    (folder / "a.log.gz").write_bytes(pack(gzip.compress(b"first words\n" + log)))
    (folder / "b.log").write_bytes(made.LOG)
    got = gather([str(folder)], scratch)
    assert names(got.texts) in (["a.log.gz", "b.log"], ["b.log"])
    assert f"a.log.gz {'was' if why == 'cut short' else 'is'} {why}" in said(got)


def test_an_archive_in_an_archive_is_read_up_to_a_depth(folder: Path, scratch: str) -> None:
    data = made.LOG
    for _ in range(limits.EVIDENCE_NESTING_MAX_COUNT - 1):
        data = zip_of({"in": data})
    (folder / "ok.zip").write_bytes(zip_of({"in": data}))
    (folder / "deep.tar").write_bytes(tar_of({"in": zip_of({"in": data})}))
    got = gather([str(folder)], scratch)
    assert names(got.texts) == ["ok.zip" + "/in" * limits.EVIDENCE_NESTING_MAX_COUNT]
    assert "deep in archives: deep.tar" in said(got)


def test_no_name_in_an_archive_leads_out_of_the_scratch_folder(
    folder: Path, scratch: str, tmp_path: Path
) -> None:
    wicked = {
        "../../evil.log": made.LOG,
        "/etc/evil.log": made.LOG,
        "a/../../../evil2.log": made.LOG,
    }
    (folder / "a.tar").write_bytes(tar_of(wicked))
    (folder / "b.zip").write_bytes(zip_of(wicked))
    got = gather([str(folder)], scratch)
    assert len(got.texts) == 6
    assert all(
        Path(piece.path or "").parent == Path(scratch) and ".." not in piece.name
        for piece in got.texts
    )
    assert not list(tmp_path.rglob("evil*"))


def test_links_and_devices_in_a_tar_are_said(folder: Path, scratch: str) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for kind, name in (
            (tarfile.SYMTYPE, "passwd"),
            (tarfile.LNKTYPE, "hard"),
            (tarfile.CHRTYPE, "null"),
            (tarfile.FIFOTYPE, "pipe"),
            (tarfile.DIRTYPE, "d"),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        info = tarfile.TarInfo("a.log")
        info.size = len(made.LOG)
        archive.addfile(info, io.BytesIO(made.LOG))
    (folder / "a.tar").write_bytes(out.getvalue())
    got = gather([str(folder)], scratch)
    assert names(got.texts) == ["a.tar/a.log"]
    for what in (
        "symbolic link in an archive: a.tar/passwd",
        "hard link in an archive: a.tar/hard",
        "special file in an archive: a.tar/null, a.tar/pipe",
    ):
        assert f"not read, {what}" in (*got.said, *got.skipped)


def test_an_encrypted_member_and_a_checkpoint_are_said(folder: Path, scratch: str) -> None:
    plain = bytearray(zip_of({"a.log": made.LOG}))
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        plain[plain.index(mark) + flags] |= 1
    (folder / "locked.zip").write_bytes(bytes(plain))
    (folder / "model.pt").write_bytes(
        zip_of(
            {"model/data.pkl": b"\x80\x02}.", "model/version": b"3\n", "model/data/0": bytes(99)}
        )
    )
    with pytest.raises(UsageError) as error:
        gather([str(folder)], scratch)
    assert "not read, encrypted: locked.zip/a.log" in str(error.value)
    assert "not read, a checkpoint of torch: model.pt" in str(error.value)


def test_what_a_collection_lacks_is_noted_and_is_no_evidence(tmp_path: Path) -> None:
    """Two nodes lack the same thing: it is said once, and not in the verdict's sentence."""
    for node in ("a", "b"):
        (tmp_path / node).mkdir()
        record = '{\n "collected_at_s": 1.5,\n "lacking": ["py-spy is not installed"]\n}\n'
        (tmp_path / node / "collected.json").write_text(record)
        (tmp_path / node / "train.log").write_text("step 1 loss 2.5\n")
    diagnosis = diagnose([str(tmp_path)])
    assert diagnosis.notes == ("not collected: py-spy is not installed",)
    assert "py-spy is not" not in diagnosis.verdict.reason
