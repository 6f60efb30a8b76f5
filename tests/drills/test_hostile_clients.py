"""`outlast serve` beside clients that take as much of it as they can: others get their answers.

benchmarks/hostile_clients.py measures what the same clients cost a run that trains beside them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.ledger import a_run

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

CLIENTS = Path(__file__).parents[2] / "benchmarks" / "_hostile.py"


@pytest.mark.drill
def test_ten_hostile_clients_keep_nobody_from_the_page(tmp_path: Path) -> None:
    """Method: each kind of client is at work; meanwhile, and afterwards, the page is loaded."""
    path = a_run.ended_run(tmp_path)
    serve = [sys.executable, "-m", "outlast.app.cli", "serve", str(path), "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r":(\d+)/", server.stdout.readline())
            assert found is not None
            clients = subprocess.Popen(
                [sys.executable, str(CLIENTS), found[1], path.name, path.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            with clients:
                over_s, loaded = time.monotonic() + 5, 0
                while time.monotonic() < over_s:
                    assert "toy" in page_at(found[1])
                    loaded += 1
                said, _ = clients.communicate(timeout=30)
            seen = json.loads(said)
            assert loaded > 0
            assert len({what.partition(":")[0] for what in seen}) == 5, seen
            assert seen["ask_on: answered"] > 0
            assert "toy" in page_at(found[1])
            assert server.poll() is None
        finally:
            server.kill()


def page_at(port: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/runs/toy/", timeout=30) as answer:
        text: str = answer.read().decode()
        return text
