"""Verdicts are found one after the other, and one that cannot be found holds up no other."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from outlast.runtime.agent.verdict_queue import VerdictQueue
from outlast.runtime.loop import Loop

COMMAND = (sys.executable, "-S", "-c", "import sys; print('{\"folder\": \"' + sys.argv[1] + '\"}')")


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def test_a_folder_that_is_gone_holds_up_no_other_verdict(loop: Loop, tmp_path: Path) -> None:
    """Three are asked for at once; the second one's folder was removed."""
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
