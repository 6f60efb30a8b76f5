"""The control socket of a launcher: who may connect, and hostile, silent and vanished callers."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from outlast.app import control
from outlast.engine.coordinator.requests import RunRequest
from outlast.errors import OutlastError, UsageError
from outlast.model import limits
from outlast.model.messages import Hello, Request, RequestAnswer
from outlast.model.records import LED_ELSEWHERE
from outlast.model.wire import WIRE_VERSION, encode
from outlast.runtime import control_call
from outlast.runtime.control_call import ControlCall, FolderLauncher
from outlast.runtime.coordinator.control_socket import NAME, ControlSocket
from outlast.runtime.loop import Loop
from tests.ledger import a_run

STOP = Request(WIRE_VERSION, "stop", "", "enough")


class Launcher:
    """A loop with a control socket that records what it was asked, and answers nothing by
    itself.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[RunRequest] = []
        self.told: list[str] = []
        self.loop = Loop()
        self.control = ControlSocket(self.loop, folder, tell=self.told.append)
        self.control.open(self.asked.append)

    def until(self, condition: object, *, within_s: float = 5.0) -> None:
        assert callable(condition)
        assert self.loop.run_until(condition, within_s=within_s)

    def caller(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(5.0)
        at = os.open(self.folder, os.O_PATH)
        sock.connect(f"/proc/self/fd/{at}/{NAME}")
        os.close(at)
        return sock

    def is_hung_up_on(self, sock: socket.socket) -> bool:
        """Return whether the launcher closed this connection, after its loop has run for a
        moment.
        """
        self.loop.run_until(lambda: False, within_s=0.05)
        sock.setblocking(False)
        try:
            return not sock.recv(1 << 16)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path)
    yield made
    made.control.close()
    made.loop.close()


def test_only_the_owner_may_connect_and_the_kernel_says_who_it_is(launcher: Launcher) -> None:
    mode = (launcher.folder / NAME).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    caller = launcher.caller()
    caller.sendall(encode(STOP))
    launcher.until(lambda: launcher.asked)
    (asked,) = launcher.asked
    assert (asked.what, asked.reason) == ("stop", "enough")
    assert asked.by.endswith(f"(process {os.getpid()})")
    caller.close()


def test_a_folder_with_a_long_name_has_a_socket_too(tmp_path: Path) -> None:
    """The name of a Unix socket has at most 108 bytes."""
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    launcher = Launcher(folder)
    answered: list[RequestAnswer] = []

    def call() -> None:
        with ControlCall(FolderLauncher(folder), STOP) as made:
            answered.extend(made.answers(within_s=5.0))

    thread = threading.Thread(target=call)
    thread.start()
    launcher.until(lambda: launcher.asked)
    launcher.control.answer(1, "waits", "the step")
    launcher.control.answer(1, "done", "it has stopped")
    launcher.until(lambda: not thread.is_alive())
    assert [one.state for one in answered] == ["waits", "done"]
    launcher.control.close()
    launcher.loop.close()
    assert not (folder / NAME).exists()


def test_a_socket_that_a_killed_launcher_left_is_replaced(launcher: Launcher) -> None:
    again = Launcher(launcher.folder)
    assert not again.told
    with again.caller() as caller:
        caller.sendall(encode(STOP))
        again.until(lambda: again.asked)
    again.control.close()
    again.loop.close()


def test_a_file_system_without_sockets_costs_a_warning_only(tmp_path: Path) -> None:
    """Method: a folder stands in the socket's place and refuses it, as such a file system does."""
    (tmp_path / NAME).mkdir()
    launcher = Launcher(tmp_path)
    (told,) = launcher.told
    assert told.startswith("warning: no control socket")
    launcher.control.answer(1, "done", "")
    launcher.control.close()
    launcher.loop.close()


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"\xff" * 64, id="an endless frame"),
        pytest.param(b"\x00\x00\x00\x04nope", id="no JSON"),
        pytest.param(encode(Hello(1, 1)), id="another message"),
        pytest.param(encode(STOP) * 2, id="two requests"),
    ],
)
def test_a_caller_that_sends_something_else_is_disconnected(
    launcher: Launcher, said: bytes
) -> None:
    caller = launcher.caller()
    caller.sendall(said)
    launcher.loop.run_until(lambda: False, within_s=0.05)
    assert launcher.is_hung_up_on(caller)
    assert len(launcher.asked) <= 1
    caller.close()


def test_silent_callers_are_limited_and_disconnected(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers beyond the limit are turned away at once, and the others after a while. Then a new
    caller is served.
    """
    monkeypatch.setattr(limits, "CONTROL_WAIT_S", 0.3)
    silent = [launcher.caller() for _ in range(limits.CONTROL_CALLERS_COUNT)]
    launcher.loop.run_until(lambda: False, within_s=0.05)
    with launcher.caller() as one_more:
        assert launcher.is_hung_up_on(one_more)
    assert not launcher.is_hung_up_on(silent[0])
    launcher.loop.run_until(lambda: False, within_s=0.4)
    assert all(launcher.is_hung_up_on(one) for one in silent)
    with launcher.caller() as caller:
        caller.sendall(encode(STOP))
        launcher.until(lambda: launcher.asked)
    for one in silent:
        one.close()


def test_a_caller_that_has_gone_is_forgotten_and_its_request_stays(launcher: Launcher) -> None:
    caller = launcher.caller()
    caller.sendall(encode(STOP))
    launcher.until(lambda: launcher.asked)
    caller.close()
    launcher.loop.run_until(lambda: False, within_s=0.05)
    launcher.control.answer(launcher.asked[0].number, "done", "")


def test_a_caller_of_another_version_is_told_so(launcher: Launcher) -> None:
    caller = launcher.caller()
    caller.sendall(encode(Request(WIRE_VERSION + 1, "stop", "", "")))
    launcher.loop.run_until(lambda: False, within_s=0.05)
    assert b"another version of outlast" in caller.recv(1 << 16)
    assert not launcher.asked
    caller.close()


def test_a_launcher_that_does_not_answer_is_an_error(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the loop of the launcher stands still. The command ends by itself, with an error."""
    monkeypatch.setattr(limits, "CONTROL_WAIT_S", 0.2)
    with (
        pytest.raises(OutlastError, match="did not answer within"),
        ControlCall(FolderLauncher(launcher.folder), STOP) as call,
    ):
        list(call.answers(within_s=None))


def test_calling_a_run_that_does_not_run_is_wrong_usage(tmp_path: Path) -> None:
    call = ControlCall(FolderLauncher(tmp_path), STOP)
    with pytest.raises(UsageError, match="is not running here"), call:
        pass


def test_a_request_waits_for_the_node_that_takes_the_run_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Method: a node has handed the run over. The new leader comes to the folder once the command
    has looked for it three times.
    """
    folder = a_run.ended_run(tmp_path, state="stopped", reason=LED_ELSEWHERE)
    looks = iter(range(3))
    leads: list[threading.Thread] = []

    def serve(leader: Launcher) -> None:
        leader.until(lambda: leader.asked)
        leader.control.answer(leader.asked[0].number, "done", "the run is stopped")
        leader.loop.run_until(lambda: False, within_s=0.05)
        leader.control.close()
        leader.loop.close()

    def look_again(_: float) -> None:
        if next(looks, None) is None and not leads:
            leads.append(threading.Thread(target=serve, args=(Launcher(folder),)))
            leads[0].start()

    monkeypatch.setattr(control_call, "time", SimpleNamespace(sleep=look_again))
    assert control.stop([str(folder)]) == 0
    assert "done: the run is stopped" in capsys.readouterr().out
    leads[0].join()


def test_a_request_waits_for_a_new_leader_only_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONTROL_LEADER_S", 0.1)
    folder = a_run.ended_run(tmp_path, state="stopped", reason=LED_ELSEWHERE)
    with pytest.raises(UsageError, match="is not running here"):
        control.stop([str(folder)])
