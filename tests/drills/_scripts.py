"""Scripts written by a test, and what a run of them leaves. A script begins with a small model,
data and optimizer; the rest is what the test is about.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.drills._run import Drill, Outcome

HEAD = """
import os, signal, sys
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
import outlast

class Points(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        # each look at a point is another one
        return torch.full((8,), index / 64) + 0.1 * torch.randn(8), index % 2

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)
    def forward(self, x): return self.b(torch.relu(self.a(x)))

run = outlast.join()
torch.manual_seed(7)
model = run.replicate(Net())
opt = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Points(), batch_sampler=outlast.StepSampler(Points(), batch_size=8))
def named(**more): return run.state(**{"model": model, "opt": opt, "loader": loader, **more})
def loss_of(step):
    x, y = step.batch
    return F.cross_entropy(model(x), y)
def update(step):
    opt.zero_grad(); loss = loss_of(step); loss.backward(); opt.step()
    return loss.detach()
def end():
    print("digest", run.rank, outlast.digest(model), flush=True)
"""


@dataclass(frozen=True)
class Ran:
    """A run that is over.

    `left` holds processes and folders in shared memory that should be gone. `script` is the path of
    the script, and `line(text)` the place of a text in it.
    """

    outcome: Outcome
    left: list[str]
    script: Path

    @property
    def code(self) -> int:
        return self.outcome.code

    @property
    def err(self) -> str:
        return self.outcome.stderr

    @property
    def out(self) -> str:
        return self.outcome.stdout

    def line(self, text: str) -> str:
        """Return `script.py:N` for the first line that contains `text`."""
        lines = self.script.read_text().splitlines()
        number = next(number for number, line in enumerate(lines, 1) if text in line)
        return f"{self.script.name}:{number}"

    def ended_clean(self) -> None:
        assert not self.left, f"left behind: {self.left}\n{self.outcome}"
        assert self.outcome.report, f"the ledger cannot be read\n{self.outcome}"


def write(folder: Path, body: str, *, head: str = HEAD) -> Path:
    script = folder / "script.py"
    script.write_text(head + body)
    return script


def go(
    folder: Path,
    body: str,
    *flags: str,
    workers: int = 2,
    marks: Sequence[dict[str, Any]] = (),
    head: str = HEAD,
    within_s: float = 50.0,
) -> Ran:
    """Write the script, run it, and look for what it leaves: everything it starts carries a word in
    its environment.
    """
    word = uuid.uuid4().hex
    script = write(folder, body, head=head)
    with Drill(
        folder,
        str(script),
        workers=workers,
        flags=flags,
        marks=marks,
        env={"DRILL_WORD": word},
        within_s=within_s,
    ) as drill:
        outcome = drill.finish()
        left = left_behind(word, str(outcome.report.get("run", "-")), within_s=3.0)
    return Ran(outcome, left, script)


def left_behind(word: str, run: str = "\0", *, within_s: float) -> list[str]:
    """Wait a while, and return what is left: processes with this word in their environment, and the
    run's shared memory.
    """
    deadline_s = time.monotonic() + within_s
    while (left := _left(word, run)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return left


def _left(word: str, run: str) -> list[str]:
    left = [
        str(path) for path in Path("/dev/shm").glob(f"outlast-{os.getuid()}-*") if run in path.name
    ]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if word in (path / "environ").read_bytes().decode(errors="replace"):
                left.append(f"{path.name}: {(path / 'cmdline').read_bytes()!r}")
        except OSError:
            continue  # it is gone, or a zombie
    return left
