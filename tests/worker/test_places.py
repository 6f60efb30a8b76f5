"""The place in the code at which a process reports to be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from outlast.runtime.agent.evidence import innermost_place
from outlast.runtime.worker.process.places import place_of_process

ENDS = """
import threading
from outlast.runtime.worker.process.places import place_of_process

over = threading.Event()

def waits():
    over.wait()

def looks():
    while not (place := place_of_process()).startswith("thread"):
        pass
    print(place, flush=True)
    over.set()

for name in "ab":
    threading.Thread(target=waits, name=name).start()
threading.Thread(target=looks, daemon=True).start()
"""


def test_the_place_of_a_process_is_that_of_its_main_thread() -> None:
    assert "test_places.py" in place_of_process()
    assert place_of_process().endswith("in test_the_place_of_a_process_is_that_of_its_main_thread")


def test_a_process_that_ends_names_the_threads_that_it_waits_for(tmp_path: Path) -> None:
    """Both threads wait in Python's own library, so the line of the script says more."""
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=True
    )
    expected = "; ".join(f"thread {name!r} at {script}:8 in waits" for name in "ab")
    assert run.stdout == f"{expected}\n", run.stderr


@pytest.mark.parametrize(
    ("stacks", "place"),
    [
        ("", ""),
        ("Thread 0x1 (most recent call first):\n  <no Python frame>\n", ""),
        (
            'Thread 0x1 (most recent call first):\n  File "a.py", line 1 in other\n\n'
            "Current thread 0x2 (most recent call first):\n"
            '  File "/site-packages/torch/x.py", line 9 in wait\n'
            '  File "b.py", line 5 in __del__\n',
            "b.py:5 in __del__",
        ),
        (
            "Current thread 0x2 (most recent call first):\n"
            '  File "/x/outlast/y.py", line 9 in wait\n',
            "/x/outlast/y.py:9 in wait",
        ),
    ],
    ids=["nothing", "no-frame", "current", "only-ours"],
)
def test_stacks_that_were_written_from_a_signal_name_a_place(stacks: str, place: str) -> None:
    assert innermost_place(stacks) == place
