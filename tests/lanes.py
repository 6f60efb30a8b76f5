"""Run the tests in lanes: several pytests at once, each with its part of the tests.

    python tests/lanes.py                what `make test` runs
    python tests/lanes.py --drills       what `make drill` runs

A lane that waits for processes leaves its core to the others, so there are more lanes than a small
machine has cores. Every test is in exactly one lane. The first lane writes to the terminal. What
the others write is shown once the first is over.

All other arguments go to each pytest. If they choose tests (a path, `-k ...`, `-m ...`), there are
no lanes: one pytest runs them. The exit code is the first that is not 0.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence

_RUNS = ("tests/test_broken_example.py", "tests/test_examples.py", "tests/test_readme.py")

# The paths of each lane but the last, which runs all others. A lane ends about when the others do.
TESTS = (
    ("tests/drills", "tests/processes", *_RUNS, "tests/test_tidy.py"),
    (
        "tests/app",
        "tests/conformance",
        "tests/evidence",
        "tests/ledger",
        "tests/tiers",
        "tests/worker",
        "tests/test_layers.py",
    ),
)
DRILLS = (
    (
        "tests/drills/checked",
        "tests/drills/foreign",
        "tests/drills/test_ddp.py",
        "tests/drills/test_features.py",
        "tests/drills/test_fsdp.py",
        "tests/drills/test_random_faults.py",
    ),
    (
        "tests/drills/test_drill_against.py",
        "tests/drills/test_drill_command.py",
        "tests/drills/test_drill_hosts.py",
        "tests/drills/test_hang.py",
        "tests/drills/test_hosts.py",
        "tests/drills/test_hosts_copies.py",
        "tests/drills/test_hosts_evidence.py",
        "tests/drills/test_hosts_hsdp.py",
        "tests/drills/test_hosts_leave.py",
        "tests/drills/test_hosts_parity.py",
        "tests/drills/test_hosts_refused.py",
        "tests/drills/test_needs.py",
        "tests/drills/test_surroundings.py",
    ),
)
_CHOOSES_DRILLS = ("-m", "slow or drill")


def lanes(arguments: Sequence[str]) -> list[list[str]]:
    """Return the arguments of each pytest."""
    drills = list(arguments[:1]) == ["--drills"]
    own = list(arguments[1:] if drills else arguments)
    given = [*_CHOOSES_DRILLS, *own] if drills else own
    if not all(one.startswith("-") for one in own):
        return [given]
    parts = DRILLS if drills else TESTS
    others = [f"--ignore={path}" for part in parts for path in part]
    chosen = [list(part) for part in parts] + [[*others, "tests"]]
    # Each lane remembers its own failures, and makes its own temporary folders.
    return [
        [*given, *(["-o", f"cache_dir=.pytest_cache/lane{number}"] if number else []), *part]
        for number, part in enumerate(chosen)
    ]


def main(arguments: Sequence[str]) -> int:
    """Run the lanes. Return the first exit code that is not 0, or 0."""
    # Hundreds of processes are started, and each would compile all modules that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    first, *rest = [[sys.executable, "-m", "pytest", *given] for given in lanes(arguments)]
    if not rest:
        os.execv(first[0], first)
    with contextlib.ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile("w+")) for _ in rest]
        started = [subprocess.Popen(first)]
        started += [
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            for command, output in zip(rest, outputs, strict=True)
        ]
        # Ctrl-C reaches all lanes by itself, and each ends what it has started.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: _terminate(started))
        codes = [one.wait() for one in started]
        for output in outputs:
            output.seek(0)
            shutil.copyfileobj(output, sys.stdout)
    return next((code for code in codes if code), 0)


def _terminate(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Hand a SIGTERM on, because it comes to this process alone."""
    for one in started:
        one.terminate()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
