"""Each `outlast ...` command in README and docs has options that its parser knows."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.app.cli import COMMANDS
from tests.app.command import outlast

HOME = Path(__file__).parents[2]
PAGES = [HOME / "README.md", *sorted((HOME / "docs").rglob("*.md"))]
TAKES_A_SCRIPT = ("run", "check", "drill")
HAS_COMMANDS = ("ckpt", "policy")


def commands_of(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command in the page's blocks, without `outlast` and comments."""
    fences = re.findall(
        r"^ *```(?:sh|text)\n(.*?)^ *```", page.read_text(), re.MULTILINE | re.DOTALL
    )
    for block in fences:
        for line in re.sub(r"\\\n", " ", block).splitlines():
            if re.match(r" *(?:srun )?outlast [a-z]", line):
                words = shlex.split(line.partition("  #")[0], comments=True)
                yield words[words.index("outlast") + 1 :]


@functools.cache
def known_options(*command: str) -> frozenset[str]:
    """Return the options that `--help` of a command names."""
    done = outlast(*command, "--help")
    assert done.returncode == 0, done
    return frozenset(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", done.stdout))


def own_words(words: list[str]) -> list[str]:
    """Leave out what belongs to the script of a command."""
    words = words[: words.index("--")] if "--" in words else words
    for at, word in enumerate(words):
        if words[0] in TAKES_A_SCRIPT and (word.endswith(".py") or words[at - 1] == "-m"):
            return words[:at]
    return words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_each_documented_command_and_option_exists(page: Path) -> None:
    for words in commands_of(page):
        assert words[0] in COMMANDS, words
        command = words[: 2 if words[0] in HAS_COMMANDS else 1]
        for word in own_words(words):
            if re.match(r"--?[a-z]", word):
                assert word.partition("=")[0] in known_options(*command), (word, words)


def test_commands_are_found_in_the_pages() -> None:
    found = {words[0] for page in PAGES for words in commands_of(page)}
    assert {"run", "check", "drill", "diagnose", "plan", "report", "ckpt"} <= found
