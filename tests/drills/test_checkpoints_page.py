"""The commands and the script of docs/how-to/checkpoints.md work as the page says."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.command import outlast
from tests.worker._ranks import Rank, run_ranks

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "checkpoints.md"


def script() -> str:
    found = re.search(r"<!-- train\.py -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def commands() -> list[list[str]]:
    found = re.search(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return [line.partition("#")[0].split() for line in found[1].splitlines()]


def run(*words: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_three_lines_of_the_page_are_those_of_its_script() -> None:
    (first, *_) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    whole = script()
    assert "import outlast.checkpoint\n" in first
    for call in ("outlast.checkpoint.load(state, ", "outlast.checkpoint.Writer("):
        assert call in first
        assert call in whole


@pytest.mark.timeout(240)
@pytest.mark.drill
def test_the_script_of_the_page_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Method: run the page's commands in their order, with torchrun. The second one has
    more ranks.
    """
    (tmp_path / "train.py").write_text(script())
    said = []
    for program, *words in commands():
        if program == "torchrun":
            said.append(run("-m", "torch.distributed.run", *words, cwd=tmp_path))
        else:
            done = outlast(*words, cwd=tmp_path)
            assert done.returncode == 0, done
            said.append(done.stdout)
    assert "begins at step 0" in said[0]
    assert "begins at step 10" in said[1]
    assert "3 checkpoints" in said[2]
    rows = [line.split() for line in said[3].splitlines() if line.startswith("disk")]
    assert [(row[1], row[-3], row[-1]) for row in rows] == [
        ("20", "3", "good"),
        ("15", "3", "good"),
        ("10", "2", "good"),
    ]


def in_this_rank(rank: Rank, folder: str) -> str:
    """Run the script as torchrun would, in a fork that has already imported torch."""
    os.chdir(folder)
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path("train.py", run_name="__main__")
    return said.getvalue()


def test_the_script_of_the_page_runs_on_one_rank(tmp_path: Path) -> None:
    """This is the drill in a cheaper form: one rank, without torchrun."""
    (tmp_path / "train.py").write_text(script())
    assert run_ranks(1, in_this_rank, str(tmp_path)) == ["begins at step 0\n"]
    said = outlast("ckpt", "verify", "checkpoints", cwd=tmp_path)
    assert said.returncode == 0, said
    assert said.stdout.count("good") == 2
