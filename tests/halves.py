"""`make test`: the tests in two halves at once.

One half starts processes and waits for them. The other computes on one core, and starts processes
where that would else take the first one longer.

What is said after `make test ARGS=` goes to pytest. If it narrows the tests (a path, `-k ...`, `-m
...`), there are no halves: one pytest runs them. The second half writes into a file; what it says
comes once the first is over. The end code is the first that is not 0.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence

# The tests of the first half. All others are the second half's.
FIRST = (
    "tests/app",
    "tests/drills",
    "tests/processes",
    "tests/test_broken_example.py",
    "tests/test_examples.py",
    "tests/test_readme.py",
)


def halves(arguments: Sequence[str]) -> list[list[str]]:
    """What each pytest is given. Every test is in one of them."""
    if not all(one.startswith("-") for one in arguments):
        return [list(arguments)]
    others = [f"--ignore={path}" for path in FIRST]
    return [
        [*arguments, *FIRST],
        [*arguments, "-o", "cache_dir=.pytest_cache/second", *others, "tests"],
    ]


def main(arguments: Sequence[str]) -> int:
    # hundreds of processes are started, and each would compile all modules that it imports
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    first, *rest = [[sys.executable, "-m", "pytest", *given] for given in halves(arguments)]
    if not rest:
        os.execv(first[0], first)
    with tempfile.TemporaryFile("w+") as said:
        both = [
            subprocess.Popen(first),
            subprocess.Popen(
                rest[0], stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
            ),
        ]
        # both hear it themselves, and end what they have started
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: _terminate(both))
        codes = [one.wait() for one in both]
        said.seek(0)
        shutil.copyfileobj(said, sys.stdout)
    return next((code for code in codes if code), 0)


def _terminate(both: Sequence[subprocess.Popen[bytes]]) -> None:
    """Hand a SIGTERM to this process on, for it comes to this one alone."""
    for one in both:
        one.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
