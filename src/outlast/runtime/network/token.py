"""The secret that all nodes of a run share. It comes from OUTLAST_TOKEN, or from a file.

It is removed from the environment at once, so that no worker and no program that outlast starts
inherits it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from outlast.errors import UsageError

VARIABLE = "OUTLAST_TOKEN"
LEAST_BYTES = 16
_MAKE = "head -c 32 /dev/urandom | base64"


def take_from_environment() -> str:
    """Return the value of OUTLAST_TOKEN, or "", and remove it from the environment."""
    return os.environ.pop(VARIABLE, "").strip()


def read_token(given: str, file: str) -> bytes | None:
    """Read the token, or return None if none was given. If `file` is "", the variable counts.

    Raises UsageError for a token that is too short, or for a file that other users may read.
    """
    where = f"--token-file {file}" if file else VARIABLE
    text = _read_file(Path(file)) if file else given
    if not text and not file:
        return None
    token = text.encode(errors="surrogateescape")
    if len(token) < LEAST_BYTES:
        raise UsageError(
            f"{where}: a token of {len(token)} bytes can be guessed",
            hint=f"make one of at least {LEAST_BYTES} bytes: `{_MAKE}`",
        )
    return token


def _read_file(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        text = path.read_text(errors="surrogateescape").strip()
    except OSError as error:
        raise UsageError(f"--token-file {path} cannot be read: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(
            f"--token-file {path} can be read by others (mode {stat.S_IMODE(mode):o})",
            hint=f"chmod 600 {path}",
        )
    return text


def how_to_make(endpoint: str) -> UsageError:
    """Return the error for an endpoint that other machines can reach, and no token."""
    return UsageError(
        f"--rdzv-endpoint {endpoint}: other machines reach it, and the run has no token, so anybody"
        " could join",
        hint=(
            f"make one with `{_MAKE}`, and set {VARIABLE} to it on all nodes, or write it to a file"
            " of mode 600 and give --token-file"
        ),
    )
