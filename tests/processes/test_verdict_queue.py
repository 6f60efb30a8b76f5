"""Verdicts are computed one after another, and one that cannot be computed does not delay the
others.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from outlast.runtime.agent.verdict_queue import VerdictQueue
from outlast.runtime.loop import Loop
from tests.drills._pids import alive, until

COMMAND = (sys.executable, "-S", "-c", "import sys; print('{\"folder\": \"' + sys.argv[1] + '\"}')")


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def test_a_folder_that_is_gone_holds_up_no_other_verdict(loop: Loop, tmp_path: Path) -> None:
    """Method: three verdicts are requested at once, and the folder of the second one was
    removed.
    """
    found: dict[int, Mapping[str, object]] = {}
    queue = VerdictQueue(loop, COMMAND, found.__setitem__)
    folders = {number: tmp_path / str(number) for number in range(3)}
    for number, folder in folders.items():
        if number != 1:
            folder.mkdir()
        queue.ask(number, folder)
    assert loop.run_until(lambda: len(found) == 2, within_s=30)
    assert found == {number: {"folder": str(folders[number])} for number in (0, 2)}
    assert (folders[2] / "verdict.json").exists()


def test_a_queue_that_is_stopped_says_nothing_more(loop: Loop, tmp_path: Path) -> None:
    """Its node leads no longer: the search at work is ended, and the other one does not begin."""
    found: dict[int, Mapping[str, object]] = {}
    script = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"
    command = (sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r}); {script}")
    queue = VerdictQueue(loop, command, found.__setitem__)
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        queue.ask(number, tmp_path / str(number))

    def has_begun() -> bool:
        return (tmp_path / "pid").exists() and bool((tmp_path / "pid").read_text())

    assert loop.run_until(has_begun, within_s=30)
    queue.stop()
    assert not alive([int((tmp_path / "pid").read_text())])
    assert not loop.run_until(lambda: bool(found), within_s=0.2)
    assert not (tmp_path / "1" / "verdict.part").exists()


OWNER = """
import sys, time
from pathlib import Path
from outlast.runtime.agent.verdict_queue import VerdictQueue
from outlast.runtime.loop import Loop
loop = Loop()
script = "import os, time; open('pid.part', 'w').write(str(os.getpid()));"
script += "os.rename('pid.part', 'pid'); time.sleep(600)"
queue = VerdictQueue(loop, (sys.executable, "-c", script), lambda number, verdict: None)
queue.ask(1, Path("."))
loop.run_until(lambda: False, within_s=0.5)
while not Path("pid").exists():
    time.sleep(0.01)
if sys.argv[1] == "waits":
    time.sleep(600)
"""


@pytest.mark.parametrize("end", ["waits", "ends"])
def test_a_search_ends_with_its_launcher(tmp_path: Path, end: str) -> None:
    """Method: one launcher is killed by SIGKILL. The other one ends well, like one that no longer
    leads.
    """
    with subprocess.Popen([sys.executable, "-c", OWNER, end], cwd=tmp_path) as owner:
        until_s = time.monotonic() + 60
        while not (tmp_path / "pid").exists():
            assert time.monotonic() < until_s
            time.sleep(0.01)
        if end == "waits":
            owner.kill()
    search = int((tmp_path / "pid").read_text())
    until("the search has ended with its launcher", lambda: not alive([search]), within_s=20.0)
