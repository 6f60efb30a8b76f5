"""Each `outlast ...` command in README and docs has options that its parser knows. Those that only
read files are executed.
"""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from outlast.app.cli import COMMANDS
from tests.app.command import outlast
from tests.ledger import a_run
from tests.planner.test_imports import JOBS, WATCHED

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


# --- commands that read files are executed --------------------------------------------------------

# What is not executed here, by a word of the command, and why.
LEFT_OUT = {
    "run": "it trains",
    "drill": "it trains",
    "serve": "it goes on until it is stopped",
    "stop": "it needs a live run",
    "drain": "it needs a live run",
    "cordon": "it needs a live run",
    "uncordon": "it needs a live run",
    "ckpt now": "it needs a live run",
    "ckpt export": "it needs a checkpoint (test_weights among the drills)",
    "policy test default": "it needs verdicts in the ledger (test_policy)",
    "--port": "it goes on until it is stopped",
    "--textfile": "it goes on until it is stopped",
    "--watch": "it goes on until it is stopped",
    "--collect": "it needs a live job",
    "--ray": "it needs a Ray cluster",
    "--swarm": "it takes a minute",
    "titan.csv": "the data is not part of this project",
}
ALSO = {0, 3}  # 3: nothing failed, so the cause is not known
WITHIN_S = 240.0  # of each command: some compute for a minute
RUN_NAMES = ("20260102T030405Z-a", "20260103T030405Z-b", "20260102T030405Z-toy", "x")
READS_FILES = (
    "docs/how-to/calibrate.md",
    "docs/how-to/check-a-script.md",
    "docs/how-to/diagnose-a-hang.md",
    "docs/how-to/import-failures.md",
    "docs/how-to/monitor-a-run.md",
    "docs/how-to/rehearse.md",
    "docs/how-to/watch-a-run.md",
    "docs/how-to/when-outlast-says-hang.md",
    "docs/how-to/write-a-policy.md",
    "docs/reference/account.md",
    "docs/reference/run-folder.md",
)
FAILURES = "time,class,gpu\n2025-01-05,DBE,1\n2025-02-05,gpu,2\n2025-02-07,network,3\n"
COMPUTES = ("docs/how-to/plan-a-run.md", "docs/explanation/simulation.md")


def a_house(root: Path) -> Path:
    """Make the files that the pages name: runs, logs of torchrun, tables, a script."""
    for name in RUN_NAMES:
        a_run.ended_run(root / f"{name}-made").rename(_parent(root / "runs" / name))
    a_run.ended_run(root / "fired").rename(_parent(root / "runs" / "NAME" / "under-fire"))
    a_run.ended_run(root / "RUN-made").rename(root / "RUN")
    for folder in ("logs/job_1/attempt_0/0", "crash", "incident", "work"):
        log = _parent(root / folder / "stderr.log")
        log.write_text(
            'Traceback (most recent call last):\n  File "train.py", line 3\nKeyError: 1\n'
        )
    said = {"message": {"message": "KeyError: 1", "extraInfo": {"timestamp": "1767323045"}}}
    (root / "logs/job_1/attempt_0/0/error.json").write_text(json.dumps(said))
    (root / "dmesg.txt").write_text(
        "[1.0] Out of memory: Killed process 42 (python) total-vm:1kB\n"
    )
    (root / "jobs").write_text(JOBS)
    (root / "train.py").write_text("print('trained')\n")
    (root / "docs/how-to/plan-a-run").mkdir(parents=True)
    return root


def _parent(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def simple_commands(page: Path) -> Iterator[list[str]]:
    """Yield the commands of a page one by one, where a line has several."""
    for words in commands_of(page):
        one: list[str] = []
        for word in [*words, ";"]:
            if word in (";", "&&") or word.endswith(";"):
                yield [*one, word.rstrip(";&")] if word.strip(";&") else one
                one = []
            elif word != "outlast":
                one.append(word)


def is_left_out(words: list[str]) -> bool:
    return (
        any(word in LEFT_OUT for word in [*words, " ".join(words[:2]), " ".join(words[:3])])
        or any("://" in word or word == "s3:" for word in words)
        or (words[0] == "check" and "--static" not in words)
        or ("parquet" in words and find_spec("pyarrow") is None)
        or ("--chart" in words and find_spec("matplotlib") is None)
    )


def executed(root: Path, words: list[str]) -> None:
    """Execute a command in `root`, with what it prints in the file that `>` names.

    A file that it writes is new: each section of a page stands alone.
    """
    for option in ("--out", "--write", "--drill"):
        if option in words and words[0] != "drill":
            (root / words[words.index(option) + 1]).unlink(missing_ok=True)
    table = FAILURES if "--units" in words else WATCHED
    (root / "failures.csv").write_text(table)
    into = next((at for at, word in enumerate(words) if word in (">", ">>")), len(words))
    given = [word for word in words[:into] if word != "..."]
    done = outlast(*given, cwd=root, within_s=WITHIN_S)
    assert done.returncode in ALSO, (words, done)
    assert "Traceback" not in done.stderr, (words, done)
    if into < len(words) and not words[into + 1].startswith("/"):
        (root / words[into + 1]).write_text(done.stdout)


@pytest.mark.parametrize("page", READS_FILES)
def test_the_commands_of_a_page_work(page: str, tmp_path: Path) -> None:
    """In their order, in a folder with the files that the page names."""
    root = a_house(tmp_path)
    if page == "docs/reference/account.md":
        executed(root, ["calibrate", "RUN", "--out", "cluster.toml"])
    tried = [words for words in simple_commands(HOME / page) if not is_left_out(words)]
    for words in tried:
        executed(root, words)
    assert tried, "nothing was executed"


@pytest.mark.drill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", COMPUTES)
def test_the_commands_of_a_page_that_compute_work(page: str, tmp_path: Path) -> None:
    test_the_commands_of_a_page_work(page, tmp_path)
