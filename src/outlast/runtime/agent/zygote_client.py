"""The launcher's end of a zygote: start it, let it read the command line, then ask it for forks.

Calls made before `attach` block, because there is no loop yet. After it, answers arrive by
callback.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import Any

from outlast.errors import CapacityError, CorruptError
from outlast.model.limits import STARVING_LOOK_S, ZYGOTE_BOOT_DEADLINE_S
from outlast.runtime.agent.oom import FOR_MEMORY, OomWatch
from outlast.runtime.agent.starving import Patience
from outlast.runtime.child import ChildSpec
from outlast.runtime.clock import now_s
from outlast.runtime.interpreter import module_command
from outlast.runtime.loop import Loop
from outlast.runtime.network.packets import receive_packet, send_packet

_TITLE_ROOM = " " * 256
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
# What the kernel says where no more processes or threads may be started, or Python instead of it.
_LIMITED = (os.strerror(errno.EAGAIN), os.strerror(errno.ENOMEM), "can't start new thread")
LIMIT_HINT = (
    "a limit of the machine, of its user (`ulimit -u`) or of its control group (pids.max, memory)"
    " is reached: raise it, or end other processes"
)
_MORE_MEMORY = (
    "allow more memory (`docker run --memory`, or that of the job), or end other processes"
)
_END_S = 1.0  # from the end of its socket to the end of the process
_TORCH = "its own words are above; is torch installed? `python -c 'import torch'`"


class ZygoteClient:
    """One zygote process. `ready` is True once it has said that it may be forked."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.process = process
        self.pid = process.pid
        self.ready = False
        self.imports_s = 0.0
        self._sock = sock
        self._loop: Loop | None = None
        self._on_answer: Callable[[dict[str, Any]], None] = _nobody

    @classmethod
    def start(cls) -> ZygoteClient:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [
            *module_command("outlast.runtime.worker.start.zygote"),
            str(theirs.fileno()),
            str(os.getpid()),
            _TITLE_ROOM,
        ]
        with theirs:
            process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **_ONE_THREAD},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        return cls(process, ours)

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """Let the zygote read a command line. It blocks for torch's import.

        The answer is that of `parse` in runtime/worker/script/arguments.py.
        """
        self._send({"do": "parse", "argv": argv})
        patience = Patience(self.pid, ZYGOTE_BOOT_DEADLINE_S, now_s=now_s())
        with contextlib.closing(OomWatch()) as oom:
            return self._await(patience, oom)

    def prepare(self, preload: tuple[str, ...], first_path: str) -> None:
        """Let the zygote import modules. Its answer goes to `attach`'s callback."""
        self._send({"do": "prepare", "preload": list(preload), "first_path": first_path})

    def fork(self, spec: ChildSpec, fds: tuple[int, int, int, int]) -> None:
        """Ask for a fork.

        `fds` are the channel, the gate, stdout and stderr. The answer names the worker.
        """
        self._send({"do": "fork", "spec": spec.to_json()}, fds)

    def ping(self) -> None:
        """Ask whether the zygote still answers."""
        self._send({"do": "ping"})

    def attach(self, loop: Loop, on_answer: Callable[[dict[str, Any]], None]) -> None:
        """Hand answers to `on_answer` from now on.

        The zygote's death is seen by its pid, not here.
        """
        self._loop = loop
        self._on_answer = on_answer
        self._sock.setblocking(False)
        loop.add_reader(self._sock.fileno(), self._read)

    def drain(self) -> None:
        """Take the answers that a dead zygote has left."""
        while self._sock.fileno() >= 0 and self._read():
            pass

    def _read(self) -> bool:
        try:
            packet = receive_packet(self._sock)
        except BlockingIOError:
            return False
        except (OSError, CorruptError):
            packet = None
        if packet is None:
            if self._loop is not None:
                self._loop.remove_reader(self._sock.fileno())
            return False
        self._on_answer(packet[0])
        return True

    def close(self) -> None:
        """Close the socket. The zygote sees that, and ends by itself.

        A caller that has to be sure of its end kills it and waits.
        """
        if self._sock.fileno() >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    def kill(self) -> None:
        """Kill and reap the zygote, at once."""
        self.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def _send(self, request: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        try:
            send_packet(self._sock, request, fds)
        except OSError:
            pass  # it is dead; the exit of its pid shows that

    def _await(self, patience: Patience, oom: OomWatch) -> dict[str, Any]:
        """Wait for the zygote's answer. Raises CapacityError, with what ended it, if none comes."""
        oom.look(now_s())
        readable: list[socket.socket] = []
        while not readable and (left_s := patience.left_s(now_s=now_s())) > 0:
            readable, _, _ = select.select([self._sock], [], [], min(left_s, STARVING_LOOK_S))
        packet = None
        # it is reset if the zygote has died without reading the request
        with contextlib.suppress(OSError):
            packet = receive_packet(self._sock) if readable else None
        if packet is None or "last_words" in packet[0]:
            why = (
                f"ended: {packet[0]['last_words']}"
                if packet is not None
                else self._how_it_ended(oom)
                if readable
                else f"gave no answer within {patience}"
            )
            raise CapacityError(
                f"the process that imports torch {why}",
                hint=_MORE_MEMORY
                if FOR_MEMORY in why
                else LIMIT_HINT
                if any(one in why for one in _LIMITED)
                else _TORCH,
            )
        return packet[0]

    def _how_it_ended(self, oom: OomWatch) -> str:
        try:
            code = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return "ended"
        if code >= 0:
            return "ended"
        killed_for_memory = (
            code == -signal.SIGKILL and oom.judge(now_s(), self.process.pid).is_possible
        )
        return f"was ended by signal {-code}" + (f", {FOR_MEMORY}" if killed_for_memory else "")


def _nobody(_answer: dict[str, Any]) -> None:
    raise AssertionError("an answer before `attach`")
