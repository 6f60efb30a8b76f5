"""Files that a person named on a command line."""

from __future__ import annotations

from pathlib import Path

from outlast.errors import UsageError
from outlast.model.limits import GIVEN_FILE_MAX_BYTES


def read_text(path: str) -> str:
    """The whole file, UTF-8. Raises UsageError where there is none, it is too long, or it is not text."""
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
