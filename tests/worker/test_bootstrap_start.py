"""A worker whose session cannot be started ends by itself, so that it is started again later."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NoReturn

import pytest

from outlast.errors import CapacityError
from outlast.runtime.child import ChildSpec
from outlast.runtime.worker.start import bootstrap


@pytest.fixture
def spec(tmp_path: Path) -> ChildSpec:
    here = str(tmp_path)
    return ChildSpec(
        worker=3, kind="rank", rank=1, world_size=2, local_world_size=2, generation=1, env={},
        script="train.py", entry="script", args=(), cwd=here, run_folder=here, vault_folder=here,
        run_id="run", attempt=0, launcher_pid=os.getpid(),
    )  # fmt: skip  # one argument a line would hide the test


def test_the_channel_stays_open_until_the_process_has_ended(
    spec: ChildSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent kills a worker whose channel is closed, and then does not start it again."""

    def start(given: ChildSpec, sock: socket.socket) -> NoReturn:
        raise CapacityError("no beacon can be made", hint="make room in /dev/shm")

    ours, theirs = socket.socketpair()
    fd = theirs.detach()
    with ours:
        code = bootstrap.child_main(spec, fd, start)
        os.fstat(fd)  # the descriptor is open
        os.close(fd)
    assert code == CapacityError.exit_code
    said = capsys.readouterr().err
    assert said == "error: no beacon can be made; make room in /dev/shm\n"
