"""What the checkpoints of a DDP run cost its training, beside those of another checkout.

    python benchmarks/split_checkpoint.py --before CHECKOUT [--ranks N ...] [--mb N] [--rounds N]
    [--steps N] [--every N] [--folder DIR] [--json FILE]

Workload   `outlast run` with a stack of linear layers under DDP and AdamW, gloo, one thread a rank.
           `--mb` is the size of parameters and moments together.
Variants   none     no checkpoints, by this checkout
           before   a checkpoint each `--every` steps, by the other checkout
           after    the same, by this checkout
Measured   pause    from the end of a step's block until the next step begins, the longest of all
                    ranks, less the same where there is no checkpoint; the median
           lost     seconds from the tenth step to the last - the same of `none`, for a checkpoint
           durable  from the end of the step's block until the manifest has its name; the median
           largest  the bytes of the largest file, as a share of all
Method     Each variant is started anew in each round, and each round begins with another one. The
           clock is that of the machine. Medians over rounds with 95 % intervals, and ratios of the
           same round. After each run all its checkpoints are verified.
Goal       `after` is less than `before` in each of the first three.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from _timing import paired_ratio, summarise

HERE = Path(__file__).resolve().parents[1]
FIRST = 10  # steps that are not counted
LIMIT_S = 400.0
SCRIPT = """
import json, sys, time
import torch
from torch import nn
import outlast

mb, steps, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
run = outlast.join()
torch.manual_seed(0)
width = int((mb * 1e6 / 12 / 8) ** 0.5)
model = run.replicate(nn.Sequential(*(nn.Linear(width, width) for _ in range(8))))
optimizer = torch.optim.AdamW(model.parameters())
state = run.state(model=model, optimizer=optimizer)
with open(f"{out}/rank-{run.rank}.jsonl", "a", buffering=1) as said:
    for step in run.steps(state, until=steps):
        began = time.time()
        with step:
            model(torch.randn(4, width)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        said.write(json.dumps([step.number, began, time.time()]) + "\\n")
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost of one run, in seconds. `largest` is a share of the bytes of a checkpoint."""

    pause_s: float
    wall_s: float
    durable_s: float
    largest: float


def measure(
    home: Path, work: Path, options: argparse.Namespace, *, ranks: int, every: int
) -> Measured:
    """Run once by the checkout in `home`. `every` 0: without checkpoints."""
    folder = Path(tempfile.mkdtemp(dir=work))
    (folder / "train.py").write_text(SCRIPT)
    saves = ("--checkpoint-every", str(every), "--keep-last", "1000") if every else ()
    command = (
        *(sys.executable, "-m", "outlast", "run", "--nproc-per-node", str(ranks)),
        *("--run-dir", str(folder / "run"), "--keep", "vault:never", *saves),
        *(str(folder / "train.py"), str(options.mb), str(options.steps), str(folder)),
    )
    env = {**os.environ, "PYTHONPATH": str(home / "src"), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}\n{ended.stdout}\n{ended.stderr}")
    found = _read(folder, every=every)
    if every:
        verify = (sys.executable, "-m", "outlast", "ckpt", "verify", str(folder / "run"))
        checked = subprocess.run(verify, env=env, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    shutil.rmtree(folder)
    return found


def _read(folder: Path, *, every: int) -> Measured:
    by_rank = []
    for path in sorted(folder.glob("rank-*.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        by_rank.append({step: (began, ended) for step, began, ended in lines})
    steps = range(FIRST, max(by_rank[0]))
    pauses: Mapping[int, float] = {
        step: max(one[step + 1][0] - one[step][1] for one in by_rank) for step in steps
    }
    plain = statistics.median(s for step, s in pauses.items() if not every or step % every)
    wall_s = max(one[max(one)][1] for one in by_rank) - by_rank[0][FIRST][0]
    if not every:
        return Measured(0.0, wall_s, 0.0, 0.0)
    durable, largest = [], []
    for manifest in sorted((folder / "run" / "checkpoints").glob("step-*/manifest.json")):
        step = int(manifest.parent.name[5:])
        if step < FIRST:
            continue
        durable.append(manifest.stat().st_mtime - max(one[step][1] for one in by_rank))
        sizes = [one["length"] for one in json.loads(manifest.read_text())["files"]]
        largest.append(max(sizes) / sum(sizes))
    assert durable, "no checkpoint was written"
    paused = statistics.median(s for step, s in pauses.items() if not step % every) - plain
    return Measured(paused, wall_s, statistics.median(durable), statistics.median(largest))


def report(ranks: int, found: Mapping[str, list[Measured]], saves: int) -> dict[str, object]:
    base = [one.wall_s for one in found["none"]]
    columns: dict[str, dict[str, list[float]]] = {
        name: {
            "pause_s": [one.pause_s for one in found[name]],
            "lost_s": [
                (one.wall_s - other) / saves for one, other in zip(found[name], base, strict=True)
            ],
            "durable_s": [one.durable_s for one in found[name]],
            "largest": [one.largest for one in found[name]],
        }
        for name in ("before", "after")
    }
    print(f"\n{ranks} ranks, {len(base)} rounds, {saves} checkpoints each")
    for column in ("pause_s", "lost_s", "durable_s", "largest"):
        before, after = columns["before"][column], columns["after"][column]
        ratio = paired_ratio(after, before).text(unit="x") if min(map(abs, before)) > 0 else "-"
        texts = [summarise(one).text(digits=3) for one in (before, after)]
        print(f"  {column:<10} before {texts[0]:<24} after {texts[1]:<24} after/before {ratio}")
    return {"ranks": ranks, "none_s": base, **columns}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="outlast-split-", dir=options.folder))
    homes = {"none": HERE, "before": options.before.resolve(), "after": HERE}
    saves = len([step for step in range(FIRST, options.steps + 1) if step % options.every == 0])
    figures = []
    try:
        for ranks in options.ranks:
            found: dict[str, list[Measured]] = {name: [] for name in homes}
            names = list(homes)
            for number in range(options.rounds):
                first = number % len(names)
                for name in names[first:] + names[:first]:
                    every = 0 if name == "none" else options.every
                    one = measure(homes[name], work, options, ranks=ranks, every=every)
                    found[name].append(one)
                    print(f"  {ranks} ranks, {name:<7} {one}", flush=True)
            figures.append(report(ranks, found, saves))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
