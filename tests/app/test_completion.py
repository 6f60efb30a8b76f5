"""`outlast completion`: what a shell that has read the script offers behind some words."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from outlast.app import cli, completion
from outlast.app.command_line import Parser
from tests.app.command import outlast_anew

# It is what each shell does around the function, once Tab was pressed.
ASK = {
    "bash": """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _outlast
printf '%s\\n' "${COMPREPLY[@]}"
""",
    "zsh": """
autoload -Uz compinit && compinit -u -D
source "$1"; shift
ask() {
    emulate -L ksh
    COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _outlast
    printf '%s\\n' "${COMPREPLY[@]}"
}
ask "$@"
""",
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    words = completion.words_of_all()
    made = {}
    for shell in completion.SHELLS:
        made[shell] = folder / f"outlast.{shell}"
        made[shell].write_text(completion.script(shell, words))
    return made


def offered(shell: str, script: Path, folder: Path, *words: str) -> list[str]:
    """What is offered for the last of these words. zsh itself keeps what begins like it."""
    flags = ["-f"] if shell == "zsh" else ["--norc"]
    done = subprocess.run(
        [shell, *flags, "-c", ASK[shell], shell, str(script), "outlast", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert not done.stderr, done.stderr
    return [line for line in done.stdout.splitlines() if line and line.startswith(words[-1])]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_a_shell_completes_commands_options_choices_and_runs(
    shell: str, scripts: dict[str, Path], tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    for name in ("20260102T030405Z-a", "20260102T030405Z-b"):
        (tmp_path / "runs" / name).mkdir(parents=True)

    def ask(*words: str) -> list[str]:
        return offered(shell, scripts[shell], tmp_path, *words)

    assert ask("") == list(cli.COMMANDS)
    assert ask("re") == ["report"]
    assert ask("run", "--spare") == ["--spare-kind", "--spare-nodes", "--spares"]
    assert ask("run", "--spare-kind", "") == ["hot", "warm"]
    assert ask("run", "--nproc") == ["--nproc-per-node"]
    assert ask("ckpt", "") == ["diff", "export", "ls", "now", "plan-restore", "prune", "verify"]
    assert ask("ckpt", "export", "x", "--st") == ["--step", "--step-b"]
    assert ask("policy", "te") == ["test"]
    assert ask("report", "") == ["20260102T030405Z-a", "20260102T030405Z-b"]
    assert ask("completion", "z") == ["zsh"]
    assert ask("run", "train") == [], "the shell completes files by itself"


def test_the_options_of_run_are_those_of_its_help() -> None:
    """Each long option of torchrun's parser and of ours, and no half of a name."""
    words = completion.words_of_all()["run"]
    assert {
        "--standalone",
        "--max-restarts",
        "--policy",
        "--duplicate-stdout-filters",
    } <= words.options
    assert "--duplicate" not in words.options


def test_hidden_options_are_not_offered() -> None:
    parser = Parser()
    parser.add_argument("--shown", choices=["a", "b"])
    parser.add_argument("--hidden", help=argparse.SUPPRESS)
    words = completion.words_of(parser)
    assert words.options == {"--help", "--shown"}
    assert words.choices == {"--shown": ["a", "b"]}


def test_another_shell_is_refused() -> None:
    done = outlast_anew("completion", "fish")
    assert done.returncode == 2
    assert "invalid choice: 'fish'" in done.stderr
