"""The JSON API of `outlast serve` answers as its OpenAPI description says, whatever is asked.

This needs outlast[web], and `pip install schemathesis`, which brings thirty other packages along.
So it is no part of the extra `dev`, and the test is skipped without it.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.app.test_serve import broken_runs, hostile_run
from tests.drills._served import served
from tests.ledger import a_run

pytest.importorskip("fastapi")
ST = shutil.which("schemathesis")

pytestmark = [
    pytest.mark.drill,
    pytest.mark.timeout(600),
    pytest.mark.skipif(ST is None, reason="schemathesis is not installed"),
]
EXAMPLES = 10  # drawn for each path, beside those that cover the description


def test_the_api_answers_as_it_is_described(tmp_path: Path) -> None:
    """Method: runs that have ended, that go on, that are hostile, and that cannot be read. The tool
    reads the description, and sends what it allows and what it does not: first to runs that it
    makes up, then to three that are there. It counts the answer 503 of a run that cannot be read
    as a fault, although it is described, so no such run is named.
    """
    runs = tmp_path / "runs"
    broken_runs(runs)
    hostile_run(tmp_path / "hostile").rename(runs / "hostile")
    folder, ledger = a_run.live_run(tmp_path / "live")
    (runs / "live").symlink_to(folder.path)
    with contextlib.closing(folder), contextlib.closing(ledger), served(runs) as url:
        for named in ("", "toy", "live", "hostile"):
            settings = f'[parameters]\n"path.run" = "{named}"\n' if named else ""
            (tmp_path / "schemathesis.toml").write_text(settings)
            done = tried(tmp_path, f"{url}api/openapi.json")
            assert done.returncode == 0, named + done.stdout[-20_000:] + done.stderr[-2_000:]


def tried(folder: Path, description: str) -> subprocess.CompletedProcess[str]:
    """Run the tool with the settings in `folder`."""
    words = ("--checks", "all", "--max-examples", str(EXAMPLES), "--seed", "1", "--no-color")
    return subprocess.run(
        [str(ST), "run", description, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
