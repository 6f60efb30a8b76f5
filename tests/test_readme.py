"""README is run, not believed: its script trains, its commands exist, its links lead somewhere.

The options on their page are the parser's.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[1]
README = (HOME / "README.md").read_text()
PAGES = sorted(
    [
        *HOME.glob("*.md"),
        *(HOME / "docs").rglob("*.md"),
        *(HOME / "benchmarks").glob("*.md"),
        *(HOME / "benchmarks" / "results").glob("*.md"),
    ]
)
OUTLAST = str(Path(sys.executable).with_name("outlast"))
OPTIONS = (HOME / "docs/reference/options.md").read_text()
OURS = [line.split("`")[1].split()[0] for line in OPTIONS.splitlines() if line.startswith("| `--")]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def outlast(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([OUTLAST, *arguments], capture_output=True, text=True, timeout=50)


@pytest.fixture(scope="module")
def help_of_run() -> str:
    done = outlast("run", "--help")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_runs_alone(tmp_path: Path) -> None:
    """Method: the block as it stands, in a folder of its own, without `outlast run` around it."""
    [script] = blocks("python")
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout, "a newcomer sees the loss go down"


def test_the_script_is_short() -> None:
    [script] = blocks("python")
    assert len(script.splitlines()) <= 25


def test_every_command_exists() -> None:
    """Method: first words of each line of the sh blocks: a target of the Makefile, or a command of
    `outlast --help`.
    """
    targets = set(re.findall(r"^([a-z-]+):", (HOME / "Makefile").read_text(), re.MULTILINE))
    commands = outlast("--help").stdout
    for line in "\n".join(blocks("sh")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["make"]:
            assert words[1] in targets, line
        elif words[:1] == ["outlast"]:
            assert re.search(rf"^\s+{words[1]}\b", commands, re.MULTILINE), line


@pytest.mark.parametrize("option", OURS)
def test_every_option_of_the_table_is_the_parsers(option: str, help_of_run: str) -> None:
    assert re.search(rf"(?<![\w-]){option}(?![\w-])", help_of_run)


def test_the_table_has_every_option_that_torchrun_has_not(help_of_run: str) -> None:
    from torch.distributed.run import get_args_parser

    torchrun = get_args_parser().format_help()

    def options(text: str) -> set[str]:
        return set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", text.replace("_", "-")))

    assert options(help_of_run) - options(torchrun) == set(OURS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_links_lead_somewhere(page: Path) -> None:
    """Links to files, and files named in backticks that look like ours. The web is not asked."""
    text = page.read_text()
    linked = [
        target.split("#")[0]
        for target in re.findall(r"\]\(([^)\s]+)\)", text)
        if "://" not in target
    ]
    named = re.findall(r"`((?:tests|docs|examples|benchmarks)/[\w./-]+\.\w+)`", text)
    missing = [target for target in linked if target and not (page.parent / target).exists()] + [
        name for name in named if not (HOME / name).exists()
    ]
    assert not missing
