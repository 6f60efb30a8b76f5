"""Keys that are typed at a terminal, one at a time and without a newline."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator

_NAMES = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
}
_READ_BYTES = 64


class Keys:
    """Read the keys that are typed at stdin."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def wait(self, seconds: float) -> str:
        """Return the next key, "" if none comes in `seconds`, or "q" once stdin has ended."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return ""
        data = os.read(self._fd, _READ_BYTES)
        return _NAMES.get(data, data[:1].decode("ascii", "ignore")) if data else "q"


@contextlib.contextmanager
def typed_keys() -> Iterator[Keys]:
    """Read keys as they are typed. Afterwards, the terminal is restored. Stdin is a terminal."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield Keys(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
