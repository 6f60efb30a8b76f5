"""The real command line, with an environment that says nothing about terminals: in a process of its
own, forked from one that has imported the commands (`outlast`), or started anew (`outlast_anew`).
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HOME = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden"
BOUND_S = 30.0  # of each command
_ONE_AT_A_TIME = threading.Lock()  # drills run in several threads


def outlast(
    *arguments: str | Path,
    cwd: Path | None = None,
    within_s: float = BOUND_S,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command line in a fork of a process that has its imports."""
    command = [str(one) for one in arguments]
    with tempfile.TemporaryDirectory() as folder:
        stdout, stderr = Path(folder) / "stdout", Path(folder) / "stderr"
        request = {
            "arguments": command,
            "cwd": None if cwd is None else str(cwd),
            "environment": _environment(environment),
            "stdout": str(stdout),
            "stderr": str(stderr),
            "within_s": within_s,
        }
        with _ONE_AT_A_TIME:
            server = _server()
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(json.dumps(request) + "\n")
            server.stdin.flush()
            answer = server.stdout.readline()
        assert answer, "the process that runs the commands has ended"
        code = json.loads(answer)
        said = [path.read_text(encoding="utf-8") for path in (stdout, stderr)]
    if code is None:
        raise subprocess.TimeoutExpired(["outlast", *command], within_s, *said)
    return subprocess.CompletedProcess(["outlast", *command], code, *said)


def outlast_anew(
    *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command line in a fresh interpreter, as a shell does."""
    return subprocess.run(
        [sys.executable, "-m", "outlast.app.cli", *map(str, arguments)],
        cwd=cwd,
        env=_environment(environment),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=BOUND_S,
    )


def _environment(more: dict[str, str]) -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM", "TTY_COMPATIBLE")
    }
    return clean | {"PYTHONIOENCODING": "utf-8"} | more


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start it at the first command. It ends when this process does, with its stdin."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.app.forked_commands"],
        cwd=HOME,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def same_as_golden(name: str, text: str) -> None:
    """Compare with tests/app/golden/NAME; OUTLAST_GOLDEN=write writes it instead (then read the
    difference).
    """
    path = GOLDEN / name
    if os.environ.get("OUTLAST_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
