"""The examples train, with and without a launcher, and say the same digest in the end however they
were started.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.runtime.drill.drill_hosts import may_be_made

HOME = Path(__file__).parents[1]
OUTLAST = str(Path(sys.executable).with_name("outlast"))


def last_line(command: list[str], tmp_path: Path) -> str:
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


def is_a_digest(line: str) -> None:
    assert line.startswith("digest ")
    assert len(line.split()[1]) == 32


def under_outlast(*words: str) -> list[str]:
    return [OUTLAST, "run", "--nproc-per-node", "2", "--run-dir", "run", *words]


@pytest.mark.drill
@pytest.mark.timeout(120)
def test_the_gpt_trains_alone(tmp_path: Path) -> None:
    line = last_line(
        [sys.executable, str(HOME / "examples" / "train_gpt.py"), "--steps", "2", "--seed", "3"],
        tmp_path,
    )
    assert line.startswith("digest ")


@pytest.mark.drill
@pytest.mark.timeout(120)
def test_fsdp_trains_alone(tmp_path: Path) -> None:
    line = last_line(
        [sys.executable, str(HOME / "examples" / "train_fsdp.py"), "--steps", "2", "--seed", "3"],
        tmp_path,
    )
    assert line.startswith("digest ")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("example", ["train_gpt.py", "train_fsdp.py"])
def test_each_trains_with_two_workers_and_its_last_line_is_the_digest(
    example: str, tmp_path: Path
) -> None:
    is_a_digest(
        last_line(
            under_outlast(str(HOME / "examples" / example), "--steps", "3", "--seed", "3"), tmp_path
        )
    )


@pytest.mark.drill
@pytest.mark.timeout(200)
def test_plain_training_gives_the_same_digest_under_both_launchers(tmp_path: Path) -> None:
    """outlast changes nothing of a script that does not know it."""
    script = [str(HOME / "examples" / "plain.py"), "--steps", "3", "--seed", "3"]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *script,
    ]
    line = last_line(under_outlast(*script), tmp_path)
    is_a_digest(line)
    assert line == last_line(torchrun, tmp_path)


def test_where_no_hosts_can_be_made_the_drill_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make run ARGS="--hosts 3"` without the right to make network namespaces."""
    monkeypatch.syspath_prepend(str(HOME / "examples"))
    lost_host = importlib.import_module("lost_host")
    monkeypatch.setattr(lost_host, "may_be_made", lambda: "network namespaces need root")
    assert lost_host.main(["--hosts", "3"]) == 2
    assert "no hosts can be made here: network namespaces need root" in capsys.readouterr().err


@pytest.mark.drill
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}")
def test_a_lost_host_costs_nothing_of_the_model(tmp_path: Path) -> None:
    words = ["--hosts", "3", "--steps", "80", "--seed", "3"]
    assert last_line(
        [sys.executable, str(HOME / "examples" / "lost_host.py"), *words], tmp_path
    ) == ("nothing was lost")
