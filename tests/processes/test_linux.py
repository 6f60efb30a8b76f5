"""What the kernel reports about processes."""

from __future__ import annotations

import signal
import subprocess
import sys

from outlast.runtime import linux
from tests.drills._pids import table, until
from tests.drills.surroundings.acts import DEBUGGER


def test_a_process_that_a_debugger_holds_is_not_taken_for_stopped() -> None:
    """A tool that reads stacks lets the process continue by itself, while SIGSTOP may last for
    ever.
    """
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            command = [sys.executable, "-c", DEBUGGER, str(child.pid), "60"]
            with subprocess.Popen(command) as debugger:
                until("it is held", lambda: table()[child.pid][1] == "t", within_s=20.0)
                assert not linux.is_stopped(child.pid)
                debugger.kill()
            until("it is let go", lambda: table()[child.pid][1] == "S", within_s=5.0)
            child.send_signal(signal.SIGSTOP)
            until("it is stopped", lambda: linux.is_stopped(child.pid), within_s=5.0)
        finally:
            child.kill()
    assert not linux.is_stopped(child.pid)
