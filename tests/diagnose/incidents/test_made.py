"""Made incidents, end to end: real torchrun, real gloo, one fault each.

What they leave, what they do not, and that nothing stays behind.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.incidents import evidence, make
from benchmarks.incidents.plan import KINDS, Plan, draw

pytestmark = pytest.mark.timeout(110)

# Words that would tell a reader that something was done on purpose, or what; as whole words, or as
# parts of names
TELLING = re.compile(
    (
        rb"inject|(?<!de)fault_|faulty|culprit|guilty|incident|benchmark|outlast|drill"
        rb"|sabotage|chaos|truth|victim|hold_gil|wrong_|bad_rank|crash_|kill_|simulat"
    ),
    re.IGNORECASE,
)
NO_NAMES = {
    *(
        "inject",
        "fault",
        "faulty",
        "culprit",
        "guilty",
        "incident",
        "bench",
        "outlast",
        "drill",
        "sabotage",
        "chaos",
        "truth",
        "sleep",
        "victim",
    ),
    *("stop", "stopped", "gil", "wrong", "bad", "crash", "kill", "hang"),
}
WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[make.Stand, Path]]:
    with make.Stand() as stand:
        yield stand, tmp_path_factory.mktemp("made")


def one(made: tuple[make.Stand, Path], kind: str, **wanted: Any) -> tuple[Plan, Path]:
    """The first of this kind that has what is wanted, and a small world; torchrun itself sometimes
    falls over what it closed, and then the next.
    """
    plans = (
        plan
        for seed in range(3000)
        if (plan := draw(seed, kind)).world <= 4
        and all(getattr(plan, name) == value for name, value in wanted.items())
    )
    for plan in itertools.islice(plans, 4):
        with contextlib.suppress(make.NotMadeError):
            return plan, make.make(made[0], plan, made[1])
    raise AssertionError(f"no incident of kind {kind} could be made")


def telling(folder: Path) -> list[str]:
    """What speaks of the injector; that the checkout, or its environment, lies in a folder with
    such a name tells nobody anything.
    """
    found, own = (
        [],
        [str(place).encode() for place in (Path(__file__).parents[3], Path(sys.prefix))],
    )
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        text = path.read_bytes()
        for place in own:
            text = text.replace(place, b"")
        words = TELLING.findall(text) + TELLING.findall(str(path.relative_to(folder)).encode())
        found += [f"{path.relative_to(folder)}: {word!r}" for word in words]
    return found


def alive_below(folder: Path) -> list[int]:
    """Processes that run in this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if Path(os.readlink(path)).is_relative_to(folder):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def check(plan: Plan, folder: Path, stand: make.Stand) -> None:
    kept = folder / "evidence"
    told = json.loads((folder / "truth.json").read_text())
    assert told["truth"]["ranks"] == list(plan.ranks)
    assert all(evidence.dump_of(kept, plan, rank) for rank in range(plan.world)), (
        "every rank has a dump"
    )
    assert len(list(kept.glob("logs/*/attempt_0/*/stdout.log"))) == plan.world
    assert not telling(kept), telling(kept)
    assert alive_below(stand.folder) == [stand.process.pid], "only who starts jobs is left"
    assert [path.name for path in stand.folder.iterdir() if path.is_dir()] == [], (
        "no job's folder is left"
    )


@pytest.mark.parametrize("kind", ["killed", "exception", "disk"])
def test_a_failed_job_leaves_its_evidence_and_nothing_else(
    made: tuple[make.Stand, Path], kind: str
) -> None:
    plan, folder = one(made, kind)
    check(plan, folder, made[0])
    assert f"rank      : {plan.ranks[0]} " in (folder / "evidence" / "torchrun.log").read_text()


@pytest.mark.parametrize("kind", ["sleep", "stopped"])
def test_a_hanging_job_is_looked_at_while_it_hangs(
    made: tuple[make.Stand, Path], kind: str
) -> None:
    """Its launcher has printed nothing; the waiting ranks wrote their dumps while they waited."""
    plan, folder = one(made, kind, timeout_s=None)
    check(plan, folder, made[0])
    assert (folder / "evidence" / "torchrun.log").read_text().count("FAILED") == 0
    saved = evidence.marks_of_life(folder / "evidence", plan)
    newest = max(saved.values())
    late = {rank for rank, at_s in saved.items() if at_s < newest - 0.4}
    assert late == (set(plan.ranks) if kind == "stopped" else set())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_made(made: tuple[make.Stand, Path], kind: str) -> None:
    plan, folder = one(made, kind)
    check(plan, folder, made[0])


def test_a_sleeping_process_keeps_its_words_and_a_running_one_does_not() -> None:
    """The words change each time it has run; a poll every 50 ms is such a time."""
    codes = [
        "import time; time.sleep(60)",
        "while True: pass",
        "import time\nwhile True: time.sleep(0.05)",
    ]
    processes = [subprocess.Popen([sys.executable, "-S", "-c", code]) for code in codes]
    still, busy, polls = (process.pid for process in processes)
    try:
        seen, until_s = {make._stands(polls)}, time.monotonic() + 60.0
        while (
            len(seen - {""}) < 3 or not make._stands(still) or make._stands(busy)
        ) and time.monotonic() < until_s:
            time.sleep(0.02)
            seen.add(make._stands(polls))
        assert len(seen - {""}) >= 3
        assert make._stands(still) == make._stands(still) != ""
        assert make._stands(busy) == ""
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert make._stands(still) == "", "it is gone"


def test_what_is_lost_is_lost_for_the_ranks_that_are_named(made: tuple[make.Stand, Path]) -> None:
    plan, folder = one(made, "exception")
    told = json.loads((folder / "truth.json").read_text())
    for rank in range(plan.world):
        whole, way = (
            evidence.dump_of(folder / "evidence", plan, rank),
            told["hidden"].get(str(rank)),
        )
        left = evidence.dump_of(folder / "damaged", plan, rank)
        assert whole
        assert (left is None) == (way in ("removed", "anonymous", "renamed"))
        if left is not None:
            assert (left.read_bytes() == whole.read_bytes()) == (way is None)


@pytest.mark.slow
def test_an_ended_stand_takes_its_processes_with_it(tmp_path: Path) -> None:
    """It is left in the middle of a job: with a rank that is stopped."""
    plan = next(
        plan
        for seed in range(3000)
        if (plan := draw(seed, "stopped")).world <= 4 and plan.timeout_s is None
    )
    with make.Stand() as stand:
        incident = make.Incident(stand, plan)
        incident.run()
        pids = {place["pid"] for place in incident.places().values()}
        assert pids <= set(alive_below(stand.folder))
    assert not alive_below(stand.folder)
    assert not stand.folder.exists()


def test_no_name_in_the_jobs_own_code_tells_what_is_done() -> None:
    """Stacks show functions and files, tracebacks show lines.

    `time.sleep` and `faulthandler` are everybody's.
    """
    everybodys = {"sleep", "faulthandler", "SIGKILL", "kill"}
    for path in make.JOB.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} | {
            node.id for node in ast.walk(tree) if isinstance(node, ast.Name)
        }
        assert not [
            name
            for name in names - everybodys | {path.stem}
            if NO_NAMES & {word.lower() for word in WORDS.findall(name)}
        ], path.name
