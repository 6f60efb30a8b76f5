"""Send the request of a command, such as `outlast stop`, to the launcher of a run.

The other end is runtime/coordinator/control_socket.py.

There are two ways to a launcher. `FolderLauncher` goes through the Unix socket in the run's folder,
which only the owner of the run can open. `RemoteLauncher` goes to the address at which the agents
of a run on several nodes connect. There both ends prove that they know the run's token before the
launcher reads the request (runtime/network/trust.py).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from outlast.errors import OutlastError, UsageError
from outlast.model import limits
from outlast.model.messages import Challenge, Knock, Message, Request, RequestAnswer, TurnedAway
from outlast.model.texts import cut_at_word, escaped
from outlast.model.wire import WIRE_VERSION, FrameReader, encode
from outlast.runtime import clock
from outlast.runtime.coordinator.control_socket import NAME
from outlast.runtime.folders import run_folder
from outlast.runtime.network import trust

_LOOK_S = 0.02  # the time between two checks whether the launcher has gone


class LauncherAddress(Protocol):
    """A way to the launcher of a run.

    words   the launcher, in words for people
    hint    what to do if it does not answer as it should
    """

    @property
    def words(self) -> str: ...

    @property
    def hint(self) -> str: ...

    def ask(self, request: Request) -> socket.socket:
        """Connect, and send the request. Raises OutlastError, and OSError if the peer vanishes."""
        ...

    def is_gone(self) -> bool:
        """Return True if the launcher has ended, once it has closed the connection."""
        ...


class ControlCall:
    """A request to a launcher, and its answers.

        with ControlCall(FolderLauncher(folder), request) as call:
            for answer in call.answers(within_s=60.0):
                ...

    Raises UsageError if no launcher of the run is there, and OutlastError if it does not answer.
    """

    def __init__(self, launcher: LauncherAddress, request: Request) -> None:
        self._launcher = launcher
        self._request = request
        self._sock: socket.socket | None = None

    def __enter__(self) -> ControlCall:
        try:
            self._sock = self._launcher.ask(self._request)
        except OSError:
            raise _silent(self._launcher) from None
        return self

    def __exit__(self, *_: object) -> None:
        assert self._sock is not None
        self._sock.close()

    def answers(self, *, within_s: float | None) -> Iterator[RequestAnswer]:
        """Yield answers up to the last one, or until the time is over. None: wait without limit.

        Raises OutlastError if the launcher does not answer, turns the request away, or hangs up
        before its last answer.
        """
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
                    raise _silent(self._launcher)
                return
            if not data:
                raise OutlastError(
                    f"{self._launcher.words} has hung up without a last answer",
                    hint=self._launcher.hint,
                )
            for message in reader.feed(data):
                any_came = True
                if isinstance(message, RequestAnswer):
                    yield message
                    if message.state != "waits":
                        return
                elif isinstance(message, TurnedAway):
                    raise _turned_away(self._launcher, message)

    def wait_until_gone(self) -> bool:
        """Wait until the launcher has ended, and its folder is free.

        Return False if the time was over before.
        """
        until_s = clock.now_s() + limits.CONTROL_GONE_S
        while self._receive(until_s - clock.now_s()):
            pass
        while not self._launcher.is_gone():
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


def _silent(launcher: LauncherAddress) -> OutlastError:
    return OutlastError(
        f"{launcher.words} did not answer within {limits.CONTROL_WAIT_S:g} s", hint=launcher.hint
    )


def _turned_away(launcher: LauncherAddress, message: TurnedAway) -> UsageError:
    why = cut_at_word(escaped(message.reason), limits.CONTROL_REASON_CHARS)
    return UsageError(f"{launcher.words} refuses to listen: {why}", hint=launcher.hint)


# --- through the folder of the run ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FolderLauncher:
    """The launcher that holds a run's folder on this machine."""

    folder: Path

    @property
    def words(self) -> str:
        pid = run_folder.holder(self.folder)
        return f"the launcher of {self.folder}" + (f" (process {pid})" if pid else "")

    @property
    def hint(self) -> str:
        return f"`outlast status {self.folder}` shows how the run stands"

    def ask(self, request: Request) -> socket.socket:
        sock = self._connect()
        try:
            sock.sendall(encode(request))
        except OSError:
            sock.close()
            raise
        return sock

    def is_gone(self) -> bool:
        return run_folder.holder(self.folder) is None

    def wait_until_listens(self, *, within_s: float) -> None:
        """Wait until a launcher takes requests in this folder, for `within_s` seconds at most."""
        until_s = clock.now_s() + within_s
        while clock.now_s() < until_s:
            try:
                self._connect().close()
            except OutlastError:
                time.sleep(_LOOK_S)
            else:
                return

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(limits.CONTROL_WAIT_S)
        try:
            at = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                sock.connect(f"/proc/self/fd/{at}/{NAME}")
            finally:
                os.close(at)
        except OSError as error:
            sock.close()
            raise self._unreached(error) from None
        return sock

    def _unreached(self, error: OSError) -> OutlastError:
        folder = self.folder
        pid = run_folder.holder(folder)
        if isinstance(error, TimeoutError | BlockingIOError):
            return _silent(self)
        if isinstance(error, PermissionError):
            return UsageError(
                f"the run in {folder} belongs to somebody else",
                hint="only its owner can ask for this",
            )
        if pid is None:
            return UsageError(
                f"the run in {folder} is not running here",
                hint="a run on several nodes is asked on the node that leads it, or from anywhere"
                f" with --endpoint and the run's token; `outlast status {folder}` shows how it"
                " stands",
            )
        return UsageError(
            f"the launcher of {folder} (process {pid}) takes no requests: {error.strerror}",
            hint="it has not begun yet, or is about to end; if it does neither,"
            f" `kill {pid}` stops the run as `outlast stop` does",
        )


# --- over the network -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RemoteLauncher:
    """The launcher that leads a run on several nodes, at the address where its agents connect.

    run   the name of the run, as --rdzv-id gives it
    """

    host: str
    port: int
    run: str
    token: bytes

    @property
    def words(self) -> str:
        return f"the launcher at {self.host} port {self.port}"

    @property
    def hint(self) -> str:
        return "leader.json in the run's folder names the node that leads, and its endpoint"

    def ask(self, request: Request) -> socket.socket:
        knock = Knock(WIRE_VERSION, version("outlast"), self.run, request.by, "", trust.nonce())
        sock = self._connect()
        try:
            sock.sendall(encode(knock))
            question = self._question(sock)
            if not trust.answers(question, knock.nonce, token=self.token):
                raise UsageError(
                    f"{self.words} does not know this token", hint="give the token of this run"
                )
            sock.sendall(encode(trust.prove_request(question, request, token=self.token)))
        except BaseException:
            sock.close()
            raise
        return sock

    def is_gone(self) -> bool:
        return True  # the end of the connection is all that is seen from here

    def _connect(self) -> socket.socket:
        try:
            return socket.create_connection((self.host, self.port), limits.CONTROL_WAIT_S)
        except OSError as error:
            raise UsageError(
                f"nothing answers at {self.host} port {self.port}: {error.strerror or error}",
                hint=self.hint,
            ) from None

    def _question(self, sock: socket.socket) -> Challenge:
        """Return what the launcher asks first. Raises UsageError if it refuses this caller."""
        until_s = clock.now_s() + limits.CONTROL_WAIT_S
        reader = FrameReader()
        messages: list[Message] = []
        while not messages:
            sock.settimeout(max(until_s - clock.now_s(), 0.001))
            data = sock.recv(1 << 16)
            messages = reader.feed(data)
            if not messages and (reader.error or not data):
                raise UsageError(
                    f"what listens at {self.host} port {self.port} is no launcher of outlast",
                    hint=self.hint,
                )
        if isinstance(messages[0], TurnedAway):
            raise _turned_away(self, messages[0])
        if not isinstance(messages[0], Challenge):
            raise UsageError(
                f"{self.words} has no token, so it takes no requests over the network",
                hint="run the command on the node that leads the run, without --endpoint",
            )
        return messages[0]
