"""The signals that end a run in good order, and the exit codes that go with them (128 and the
signal's number).

SIGHUP comes when a terminal is closed, SIGQUIT from Ctrl-\\. Where a process was started with one
of these two ignored (nohup, a shell's background job), it stays ignored, and the run goes on.
"""

from __future__ import annotations

import signal

ALWAYS = (signal.SIGINT, signal.SIGTERM)
UNLESS_IGNORED = (signal.SIGHUP, signal.SIGQUIT)


def heeded() -> tuple[signal.Signals, ...]:
    """Return those that this process obeys."""
    return (
        *ALWAYS,
        *(one for one in UNLESS_IGNORED if signal.getsignal(one) is not signal.SIG_IGN),
    )


def exit_code(number: int) -> int:
    return 128 + number


EXIT_CODES = frozenset(map(exit_code, (*ALWAYS, *UNLESS_IGNORED)))
