"""The real command line, in a process of its own, with an environment that says nothing about
terminals.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def outlast(
    *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM", "TTY_COMPATIBLE")
    }
    return subprocess.run(
        [sys.executable, "-m", "outlast.app.cli", *map(str, arguments)],
        cwd=cwd,
        env=clean | {"PYTHONIOENCODING": "utf-8"} | environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=30,
    )


def same_as_golden(name: str, text: str) -> None:
    """Compare with tests/app/golden/NAME; OUTLAST_GOLDEN=write writes it instead (then read the
    difference).
    """
    path = GOLDEN / name
    if os.environ.get("OUTLAST_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
