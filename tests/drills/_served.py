"""`outlast serve` as a process of its own, for the tests that use a browser or another client."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def served(folder: Path, **environment: str) -> Iterator[str]:
    """Serve a run, and yield the address of its page."""
    command = [sys.executable, "-m", "outlast.app.cli", "serve", str(folder), "--port", "0"]
    env = {**os.environ, **environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as server:
        try:
            assert server.stdout is not None
            url = re.search(r"http://\S+", server.stdout.readline())
            assert url is not None
            yield url[0]
        finally:
            server.kill()
