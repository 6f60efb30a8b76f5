"""Build a wheel, install it where nothing else is, and train with it: `make wheel`.

It makes a wheel in build/wheel/, and a fresh environment in a temporary folder. There it installs
`outlast[torch]` from that wheel and runs a small script, killing one of its two ranks. It ends with
1 if any of that fails. It needs an index of packages, and downloads torch.
"""

from __future__ import annotations

import json
import os
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
    call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", WHEELS, HOME)
    (wheel,) = WHEELS.glob("*.whl")
    print(f"built {wheel.name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        call(sys.executable, "-m", "venv", place / "venv")
        python = place / "venv" / "bin" / "python"
        limits = HOME / "constraints.txt"
        call(python, "-m", "pip", "install", "--quiet", "-c", limits, f"{wheel}[torch]")
        (place / "train.py").write_text(SCRIPT)
        call(python, "-m", "outlast", "--version", cwd=place)
        call(
            *(python, "-m", "outlast", "run", "--nproc-per-node", "2", "--run-dir", "out"),
            "train.py",
            cwd=place,
        )
        shown = call(python, "-m", "outlast", "report", "out", "--json", cwd=place)
        facts = json.loads(shown)
        assert facts["steps"] == 20, facts["steps"]
        assert [one["steps_lost"] for one in facts["interruptions"]] == [0], shown
    print("installed, trained, and survived a SIGKILL")
    return 0


def call(*command: object, cwd: Path | None = None) -> str:
    """Run a command without this checkout on its path and return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
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
