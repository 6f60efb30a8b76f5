"""The signals that end a run in good order, and their exit codes: 128 plus the signal's number.

SIGUSR1, SIGUSR2 and SIGXCPU mean the same as SIGTERM, and have its exit code. Schedulers send them
as a notice: the machine is about to be taken away, or the time of a job is nearly over.

SIGHUP comes when a terminal is closed, SIGQUIT from Ctrl-\\. Where a process was started with one
of these two ignored (nohup, a shell's background job), it stays ignored, and the run goes on.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

NOTICES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
ALWAYS = (signal.SIGINT, *NOTICES)
UNLESS_IGNORED = (signal.SIGHUP, signal.SIGQUIT)


def heeded() -> tuple[signal.Signals, ...]:
    """Return those that this process obeys."""
    return (
        *ALWAYS,
        *(one for one in UNLESS_IGNORED if signal.getsignal(one) is not signal.SIG_IGN),
    )


def exit_code(number: int) -> int:
    return 128 + (signal.SIGTERM if number in NOTICES else number)


def reason(number: int) -> str:
    """Return the reason with which the signal stops a run, or removes a node from it."""
    return f"the launcher received {signal.Signals(number).name}"


EXIT_CODES = frozenset(map(exit_code, (*ALWAYS, *UNLESS_IGNORED)))


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Let each of these signals raise SystemExit with its exit code; SIGINT raises
    KeyboardInterrupt.

    A signal that the parent process has left blocked is let through. It would never be heard.
    """

    def leave(number: int, _frame: object) -> None:
        sys.exit(exit_code(number))

    before = {one: signal.signal(one, leave) for one in heeded() if one is not signal.SIGINT}
    try:
        with masked(signal.SIG_UNBLOCK):
            yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextlib.contextmanager
def masked(how: int) -> Iterator[None]:
    """Block these signals (signal.SIG_BLOCK), or let them through (SIG_UNBLOCK), in the block.

    After the block they are as before.
    """
    before = signal.pthread_sigmask(how, heeded())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
