"""The socket that `outlast serve` listens on."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from outlast.errors import UsageError, message_of
from outlast.runtime.network.listener import listen_at

LOCAL = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class Listening:
    """An open socket, and the address to open in a browser on this machine."""

    socket: socket.socket
    url: str


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[Listening]:
    """Listen for browsers; port 0 takes any free one. Raises UsageError if that is not possible."""
    try:
        made = listen_at(host.strip("[]"), port)
    except (OSError, UnicodeError, OverflowError) as error:
        raise UsageError(
            f"port {port} of {host} cannot be used: {message_of(error)}",
            hint="give another one with --port, or --port 0 for any that is free",
        ) from None
    with made:
        name = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        shown = f"[{name}]" if ":" in name else name
        yield Listening(made, f"http://{shown}:{made.getsockname()[1]}/")
