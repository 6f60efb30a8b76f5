"""Build wheels, install them where nothing else is, and train with them: `make wheel`.

It makes two wheels in build/wheel/: one with the compiled parts, for this machine, and one without,
for any Python 3. In a fresh environment in a temporary folder it installs `outlast[torch]` from the
first, and runs a small script, killing one of its two ranks. Then it does the same with the second.
It ends with 1 if any of that fails. It needs an index of packages, and downloads torch. Where there
is no compiler, there is the second wheel only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).parents[1]
WHEELS = HOME / "build" / "wheel"
SCRIPT = """
import os, signal
import torch
import outlast

run = outlast.join()
model = run.replicate(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = run.state(model=model, optimizer=optimizer)
first_life = run.generation == 1
for step in run.steps(state, until=20):
    with step:
        if first_life and run.rank == 1 and step.number == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
print("trained", run.rank, flush=True)
"""


def main() -> int:
    """Build, install, train; return the exit code."""
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    plain = wheel_of(CC="/bin/false")
    assert plain.name.endswith("-py3-none-any.whl"), plain
    wheels = list(dict.fromkeys((wheel_of(), plain)))  # both are one where nothing compiles
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        call(sys.executable, "-m", "venv", place / "venv")
        python = place / "venv" / "bin" / "python"
        limits = HOME / "constraints.txt"
        (place / "train.py").write_text(SCRIPT)
        for number, wheel in enumerate(wheels):
            again = ("--force-reinstall", "--no-deps") if number else ()
            install = ("-m", "pip", "install", "--quiet", "-c", limits, *again, f"{wheel}[torch]")
            call(python, *install)
            train(python, place, place / f"out-{number}")
            print(f"{wheel.name}: installed, trained, and survived a SIGKILL", flush=True)
    return 0


def wheel_of(**environment: str) -> Path:
    """Build a wheel from the sources, and not from what an earlier build has left; return it."""
    for left in (*HOME.glob("build/lib*"), *HOME.glob("build/temp*"), *HOME.glob("build/bdist*")):
        shutil.rmtree(left)
    before = set(WHEELS.glob("*.whl"))
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", WHEELS, HOME)
    call(sys.executable, *build, **environment)
    (wheel,) = set(WHEELS.glob("*.whl")) - before or before
    print(f"built {wheel.name}", flush=True)
    return wheel


def train(python: Path, place: Path, out: Path) -> None:
    """Train on two ranks, of which one is killed, and look at the report."""
    call(python, "-m", "outlast", "--version", cwd=place)
    run = ("-m", "outlast", "run", "--nproc-per-node", "2", "--run-dir", out, "train.py")
    call(python, *run, cwd=place)
    shown = call(python, "-m", "outlast", "report", out, "--json", cwd=place)
    facts = json.loads(shown)
    assert facts["steps"] == 20, facts["steps"]
    assert [one["steps_lost"] for one in facts["interruptions"]] == [0], shown


def call(*command: object, cwd: Path | None = None, **more: str) -> str:
    """Run a command without this checkout on its path and return what it printed.

    `more`: environment variables for it.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= more
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=900,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} ended with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
