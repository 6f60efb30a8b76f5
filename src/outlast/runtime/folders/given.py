"""Files that a person named on a command line."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from outlast.diagnose.self_output import is_own_file
from outlast.errors import UsageError
from outlast.model.limits import EVIDENCE_HEAD_BYTES, GIVEN_FILE_MAX_BYTES, GIVEN_LINE_MAX_BYTES


def read_text(path: str) -> str:
    """Return the content of a UTF-8 file.

    Raises UsageError if there is no such file, if it is too long, or if it is not text.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(GIVEN_FILE_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > GIVEN_FILE_MAX_BYTES:
        raise UsageError(f"{path} is longer than {GIVEN_FILE_MAX_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8") from None


def is_program(name: str) -> bool:
    """Return whether a name that is searched in PATH, or a path, can be executed."""
    return shutil.which(name) is not None


def read_small(path: Path, *, most_bytes: int) -> bytes:
    """Return the content of an ordinary file. This does not wait for a pipe or a device.

    Raises OSError, and ValueError if it is not an ordinary file or is too long.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is not an ordinary file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(most_bytes + 1)
    finally:
        os.close(fd)
    if len(data) > most_bytes:
        raise ValueError(f"it is longer than {most_bytes:,} bytes")
    return data


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without their ends. Only a line feed ends a line.

    Raises UsageError if there is no such file, or if a line is too long or not text.
    """
    try:
        with Path(path).open("rb") as file:
            number = 0
            while line := file.readline(GIVEN_LINE_MAX_BYTES + 1):
                number += 1
                if len(line) > GIVEN_LINE_MAX_BYTES:
                    raise UsageError(
                        f"{path}, line {number} is longer than {GIVEN_LINE_MAX_BYTES:,} bytes"
                    )
                try:
                    yield line.decode().rstrip("\r\n")
                except UnicodeDecodeError:
                    raise UsageError(f"{path}, line {number} is not text in UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def check_new(path: str) -> None:
    """Check that a file may be created there. Raises UsageError if not."""
    if not Path(path).parent.is_dir():
        raise UsageError(
            f"{Path(path).parent} is not a folder", hint="name a file in a folder that exists"
        )
    if os.path.lexists(path):
        raise UsageError(f"{path} exists", hint="name a new file, or remove that one")


def write_new(path: str, text: str) -> None:
    """Write a file that does not exist yet.

    A file is never overwritten, and no partial file is left if the disk refuses. Raises UsageError.
    """
    check_new(path)
    ours = False
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            ours = True
            file.write(text)
    except OSError as error:
        if ours:
            Path(path).unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def write_bytes(path: str, data: bytes) -> None:
    """Write a file completely or not at all, over a file of that name. Raises UsageError."""
    part = f"{path}.part-{os.getpid()}"
    try:
        Path(part).write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        Path(part).unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def folder_of(path: str | None) -> Path | None:
    """Return the folder that was named, or None if none was named."""
    return None if path is None else Path(path)


def write_folder(path: str, files: Mapping[str, bytes]) -> None:
    """Write a new folder with these files, completely or not at all. Raises UsageError."""
    check_new(path)
    part = Path(f"{path.rstrip('/')}.part-{os.getpid()}")
    try:
        part.mkdir()
        for name, data in files.items():
            (part / name).write_bytes(data)
        part.rename(path)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def check_page(path: str) -> None:
    """Check that a page may be written there: a new file, or one that outlast has written.

    Raises UsageError.
    """
    place = Path(path)
    if not place.parent.is_dir():
        raise UsageError(
            f"{place.parent} is not a folder", hint="name a file in a folder that exists"
        )
    if place.exists() and not place.is_file():
        raise UsageError(f"{path} is not a file", hint="name a file to be written")
    if place.is_file() and place.stat().st_size and not is_own_file(_head(place)):
        raise UsageError(
            f"{path} exists, and outlast has not written it",
            hint="name a new file: evidence is not overwritten",
        )


def write_page(path: str, text: str) -> None:
    """Write a page completely or not at all. Raises UsageError."""
    check_page(path)
    part = f"{path}.part-{os.getpid()}"
    try:
        Path(part).write_text(text, encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        Path(part).unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _head(place: Path) -> bytes:
    try:
        with place.open("rb") as file:
            return file.read(EVIDENCE_HEAD_BYTES)
    except OSError as error:
        raise UsageError(f"{place} cannot be read: {error.strerror}") from None
