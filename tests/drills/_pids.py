"""Processes as the kernel lists them: which are below which, alive, or zombies."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def table() -> dict[int, tuple[int, str, int]]:
    """Return a dict from pid to (parent, state letter, session)."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (
                    Path(f"/proc/{name}/stat")
                    .read_text(errors="replace")
                    .rpartition(")")[2]
                    .split()
                )
                found[int(name)] = (int(fields[1]), fields[0], int(fields[3]))
    return found


def below(pid: int) -> list[int]:
    """Return all living processes below `pid`, and all that share a session with one of them."""
    known = table()
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        children = [one for one, (of, _, _) in known.items() if of == parent and one not in found]
        found.update(children)
        waiting += children
    sessions = {known[one][2] for one in found} - {known[pid][2]}
    return sorted(found | {one for one, (_, _, session) in known.items() if session in sessions})


def alive(pids: Iterable[int]) -> list[int]:
    """Return those that have not ended; a zombie has."""
    known = table()
    return [pid for pid in pids if pid in known and known[pid][1] != "Z"]


def zombies_of(parent: int) -> list[int]:
    return [pid for pid, (of, state, _) in table().items() if of == parent and state == "Z"]


def until(what: str, condition: Callable[[], object], *, within_s: float) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)
