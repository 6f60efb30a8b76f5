"""SIGINT and SIGTERM to a launcher that is not in its loop yet: it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.runtime.folders.run_folder import read_card
from outlast.runtime.ledger.view import look
from outlast.runtime.tiers.vault_owner import vault_folder

LAUNCH = """
import os, sys
from outlast.app import cli
from outlast.app.launch import run
from outlast.runtime.tiers.vault import Vault

owner, name = {
    "make": (Vault, "create"),
    "prepare": (run, "make_logs"),
    "listen": (run.Launcher, "listen"),
}[sys.argv[1]]
real, number = getattr(owner, name), int(sys.argv[2])

def struck(*args, **keywords):
    made = real(*args, **keywords)
    os.kill(os.getpid(), number)
    return made

setattr(owner, name, struck)
sys.exit(cli.main(["run", "--nproc-per-node", "1", "--run-dir", *sys.argv[3:]]))
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("place", "number", "code"),
    [
        ("make", signal.SIGINT, 130),
        ("prepare", signal.SIGTERM, 143),
        pytest.param("make", signal.SIGUSR2, 143, marks=pytest.mark.drill),
        pytest.param("listen", signal.SIGXCPU, 143, marks=pytest.mark.drill),
        *(
            pytest.param(place, number, 128 + number, marks=pytest.mark.drill)
            for place, number in (
                ("prepare", signal.SIGINT),
                ("listen", signal.SIGTERM),
                ("make", signal.SIGHUP),
                ("prepare", signal.SIGQUIT),
            )
        ),
    ],
)
def test_a_signal_before_the_loop_leaves_no_vault_and_a_stopped_run(
    tmp_path: Path, place: str, number: signal.Signals, code: int
) -> None:
    """Method: the launcher signals itself at three places: when the vault was just made, when
    everything is being prepared, and when the loop has just taken over the signals.
    """
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text("print('ran')")
    command = [sys.executable, "-c", LAUNCH, place, str(int(number)), str(folder), str(script)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert ended.returncode == code, ended
    assert "ran" not in ended.stdout
    assert "Traceback" not in ended.stderr
    assert not os.path.exists(vault_folder(str(read_card(folder)["run"])))
    view = look(str(folder))
    assert view.state == "stopped"
    assert view.records.sessions[-1].session.exit_code == code
