"""A command's end of the control socket (runtime/coordinator/control_socket.py)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from outlast.errors import OutlastError, UsageError
from outlast.model import limits
from outlast.model.messages import Request, RequestAnswer
from outlast.model.wire import FrameReader, encode
from outlast.runtime import clock, run_folder
from outlast.runtime.coordinator.control_socket import NAME

_LOOK_S = 0.02  # the time between two checks whether the launcher has gone


class ControlCall:
    """A request to the run in `folder`, and its answers.

        with ControlCall(folder, request) as call:
            for answer in call.answers(within_s=60.0):
                ...

    Raises UsageError if no launcher of the run is there, and OutlastError if it does not answer.
    """

    def __init__(self, folder: Path, request: Request) -> None:
        self._folder = folder
        self._request = request
        self._sock: socket.socket | None = None

    def __enter__(self) -> ControlCall:
        self._sock = _connect(self._folder)
        try:
            self._sock.settimeout(limits.CONTROL_WAIT_S)
            self._sock.sendall(encode(self._request))
        except OSError:
            self._sock.close()
            raise _silent(self._folder) from None
        return self

    def __exit__(self, *_: object) -> None:
        assert self._sock is not None
        self._sock.close()

    def answers(self, *, within_s: float | None) -> Iterator[RequestAnswer]:
        """Yield answers up to the last one, or until the time is over. None: wait without limit."""
        until_s = None if within_s is None else clock.now_s() + within_s
        reader, any_came = FrameReader(), False
        while True:
            # The launcher answers at once that it has received a request.
            wait_s = limits.CONTROL_WAIT_S if not any_came else None
            if any_came and until_s is not None:
                wait_s = max(0.0, until_s - clock.now_s())
            data = self._receive(wait_s)
            if data is None:
                if not any_came:
                    raise _silent(self._folder)
                return
            if not data:
                raise OutlastError(
                    f"the launcher of {self._folder} has hung up without a last answer",
                    hint=f"`outlast status {self._folder}` shows how the run stands",
                )
            for message in reader.feed(data):
                any_came = True
                if isinstance(message, RequestAnswer):
                    yield message
                    if message.state != "waits":
                        return

    def wait_until_gone(self) -> bool:
        """Wait until the launcher has ended, and its folder is free.

        Return False if the time was over before.
        """
        until_s = clock.now_s() + limits.CONTROL_GONE_S
        while self._receive(until_s - clock.now_s()):
            pass
        while run_folder.holder(self._folder) is not None:
            if clock.now_s() > until_s:
                return False
            time.sleep(_LOOK_S)
        return True

    def _receive(self, wait_s: float | None) -> bytes | None:
        """Return the bytes that came, b"" if the launcher hung up, or None if none came in time."""
        assert self._sock is not None
        self._sock.settimeout(None if wait_s is None else max(wait_s, 0.001))
        try:
            return self._sock.recv(1 << 16)
        except TimeoutError:
            return None
        except ConnectionError:
            return b""


def _connect(folder: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(limits.CONTROL_WAIT_S)
    try:
        at = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock.connect(f"/proc/self/fd/{at}/{NAME}")
        finally:
            os.close(at)
    except OSError as error:
        sock.close()
        raise _unreached(folder, error) from None
    return sock


def _unreached(folder: Path, error: OSError) -> OutlastError:
    pid = run_folder.holder(folder)
    if isinstance(error, TimeoutError | BlockingIOError):
        return _silent(folder)
    if isinstance(error, PermissionError):
        return UsageError(
            f"the run in {folder} belongs to somebody else", hint="only its owner can ask for this"
        )
    if pid is None:
        return UsageError(
            f"the run in {folder} is not running here",
            hint="a run on several nodes is asked on the node that leads it;"
            f" `outlast status {folder}` shows how it stands",
        )
    return UsageError(
        f"the launcher of {folder} (process {pid}) takes no requests: {error.strerror}",
        hint="it has not begun yet, or is about to end; if it does neither,"
        f" `kill {pid}` stops the run as `outlast stop` does",
    )


def _silent(folder: Path) -> OutlastError:
    pid = run_folder.holder(folder)
    who = f"the launcher of {folder}" + (f" (process {pid})" if pid else "")
    return OutlastError(
        f"{who} did not answer within {limits.CONTROL_WAIT_S:g} s",
        hint=f"`outlast status {folder}` shows how the run stands",
    )
