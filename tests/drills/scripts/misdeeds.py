"""What a rank's own code, or a library in it, may do to its process, for strikes
(`strikes.also`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

_kept: list[object] = []


def use_up_descriptors() -> None:
    """Open files until no more can be opened, and keep them."""
    try:
        while True:
            _kept.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return


def take_output_away() -> None:
    """Let this process write to no pipe any more, as a daemon's code does."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def close_descriptors() -> None:
    """Close all descriptors that other code has opened, as a daemon's code does."""
    os.closerange(3, 256)


def change_folder_and_mask() -> None:
    """Change the folder, and let no new file be read; then die."""
    os.chdir("/")
    os.umask(0o777)
    os.kill(os.getpid(), signal.SIGKILL)


def run_another_program() -> None:
    os.execv("/bin/true", ["true"])


def leave_a_daemon() -> None:
    """Start a process in a session of its own that holds this one's pipes; then die.

    That process ends before the drill looks for leftovers of the run, however fast the run is over.
    """
    _kept.append(subprocess.Popen(["sleep", "4"], start_new_session=True))
    os.kill(os.getpid(), signal.SIGKILL)


def leave_a_zombie() -> None:
    _kept.append(subprocess.Popen(["true"]))


def print_much() -> None:
    """Print one line of 30 MB, and bytes that are no text."""
    sys.stdout.write("x" * 30_000_000 + "\n")
    os.write(1, bytes(range(256)) * 64)


def lock_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def raise_in_thread() -> None:
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()


def ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def ring() -> None:
    """Raise the alarm signal as a library might, without a handler."""
    signal.alarm(1)
    time.sleep(5)


ALL: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        use_up_descriptors,
        take_output_away,
        close_descriptors,
        change_folder_and_mask,
        run_another_program,
        leave_a_daemon,
        leave_a_zombie,
        print_much,
        lock_twice,
        raise_in_thread,
        ignore_sigterm,
        ring,
    )
}
