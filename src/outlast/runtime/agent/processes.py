"""One child of the launcher: how it is started, watched and ended.

`host.ProcessHost` holds many.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from dataclasses import dataclass, field

from outlast.runtime.agent.oom import OomKill
from outlast.runtime.child import ChildSpec
from outlast.runtime.interpreter import module_command
from outlast.runtime.linux import session_members
from outlast.runtime.network.channel import Channel

_TITLE_ROOM = " " * 256


@dataclass(frozen=True)
class Exited:
    """The kernel's report of a process that has ended.

    exit_code  None if a signal ended it
    oom        after a SIGKILL that the launcher did not send: whose OOM kill the kernel reports at
               that time. NONE after any other end
    at_s       when the launcher saw the end
    killed     the launcher sent it SIGKILL
    """

    worker: int
    pid: int
    exit_code: int | None
    signal: int | None
    oom: OomKill
    at_s: float
    killed: bool = False


def ending_words(exit_code: int | None, number: int | None) -> str:
    """Return how a process ended: `was ended by signal 9 (SIGKILL)`, `ended with exit code 1`."""
    if number is None:
        return f"ended with exit code {exit_code}"
    return f"was ended by signal {number} ({_signal_name(number)})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # it is a real-time signal
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"


@dataclass
class Handover:
    """Both sides of a child's four descriptors: channel, gate, stdout, stderr."""

    sock: socket.socket
    gate: int
    stdout: int
    stderr: int
    theirs: tuple[int, int, int, int]

    @classmethod
    def make(cls) -> Handover:
        """Make the descriptors. Raises OSError, and leaves nothing open then."""
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            channel = theirs.detach()
            undo.callback(os.close, channel)
            pipes = []
            for _ in range(3):
                pipes.append(os.pipe())
                for fd in pipes[-1]:
                    undo.callback(os.close, fd)
            undo.pop_all()
        (gate_reader, gate), (stdout, stdout_writer), (stderr, stderr_writer) = pipes
        return cls(ours, gate, stdout, stderr, (channel, gate_reader, stdout_writer, stderr_writer))

    def close_theirs(self) -> None:
        """Close the child's sides, once, after the child has its copies."""
        for fd in self.theirs:
            os.close(fd)
        self.theirs = ()  # type: ignore[assignment]  # they are closed

    def open_gate(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self.gate, b".")
        self.shut_gate()

    def shut_gate(self) -> None:
        """Shut the gate. If it was not opened, the child ends before its script begins."""
        if self.gate >= 0:
            os.close(self.gate)
            self.gate = -1


@dataclass
class Child:
    """One child and its state.

    It is asked for (pid 0), running, exited (a zombie that keeps its pid from being given to
    another process), or reaped (removed from the process table).
    """

    spec: ChildSpec
    handover: Handover
    channel: Channel
    pid: int = 0
    pidfd: int = -1
    killed: bool = False  # by the launcher
    exited: bool = False
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def watch(self, pid: int) -> None:
        """Watch this process. Raises ProcessLookupError if it is gone already."""
        self.pidfd = os.pidfd_open(pid)
        self.pid = pid

    def peek(self) -> tuple[int | None, int | None] | None:
        """Return exit code and signal once it has ended, without reaping it.

        Return None until then.
        """
        found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is None:
            return None
        if found.si_code == os.CLD_EXITED:
            return found.si_status, None
        return None, found.si_status

    def kill(self) -> None:
        """Send SIGKILL to the child and to its process group.

        This is safe until it is reaped: its pid, which is the group's number, cannot be given to
        another process before that.
        """
        if not self.exited:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.kill_group(signal.SIGKILL)

    def kill_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def reap(self) -> None:
        """End the processes of its session that are in other process groups.

        Then release its pid.
        """
        for pid in session_members(self.pid):
            if pid != self.pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        os.close(self.pidfd)
        if self.process is not None:
            self.process.returncode = 0  # it was reaped here; this keeps Popen from waiting for it


def spawn(spec: ChildSpec, handover: Handover) -> subprocess.Popen[bytes]:
    """Start a fresh interpreter in place of a fork. Raises OSError."""
    channel, gate, stdout, stderr = handover.theirs
    memory = os.memfd_create("spec", os.MFD_CLOEXEC)
    try:
        os.write(memory, json.dumps(spec.to_json()).encode())
        command = [
            *module_command("outlast.runtime.worker.start.bootstrap", "-u"),
            str(memory),
            str(channel),
            str(gate),
            _TITLE_ROOM,
        ]
        return subprocess.Popen(
            command,
            pass_fds=(memory, channel, gate),
            env=spec.env,
            cwd=spec.cwd if os.path.isdir(spec.cwd) else None,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    finally:
        os.close(memory)
