"""What one snapshot for each step costs: the vault, a bare copy of the same bytes, and DCP.

    python benchmarks/stall.py [--bytes N] [--repeats N] [--steps N] [--step-s S] [--folder DIR]
    [--only NAME ...] [--json FILE]

Workload   Training is stood in for by matrix products on all cores, in lockstep, as ranks are:
           whatever takes a core from them costs a step. The state looks like a transformer's with
           its AdamW moments.
Measured   stall  seconds the training thread stands still in one snapshot, the median of a row of
           steps
           lost   (seconds of a row of steps with snapshots - of the same row without) / snapshots.
                  For the two copies it is the stall and what they push out of the caches; for DCP
                  it holds what its writer takes as well.
Variants   vault  pieces made from tensors, image, checksum and seal, in shared memory; one thread;
           past the caches where that could be compiled
           bare   one memcpy per tensor into memory of the same kind, touched before; one thread; no
                  checksum, no header
           dcp    async_save as documented; `dcp-cached` with a stager that keeps its buffers (torch
                  >= 2.9). Both write to --folder, by default shared memory: no disk is waited for.
                  A save begins when the one before is done.
Method     All variants in one process, alternating, each round beginning with another one. Medians
           with 95 % intervals.
           `--only` leaves variants out where the memory is too small for all of them: each takes
           twice the state.
Goals      The vault's stall is at most 1.2x the bare one; it loses at least 10x less than DCP, the
           kinder of the two. Reached or missed when the whole interval says so, else undetermined.
           Exit code 0, 1 or 3.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint import staging
from torch.distributed.checkpoint.state_dict_saver import async_save

sys.path.insert(0, str(Path(__file__).parent))
from _timing import Summary, alternate, paired_ratio, summarise

from outlast.runtime.tiers import streaming
from outlast.runtime.tiers.area import allocate, map_file
from outlast.runtime.tiers.image import image_bytes
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.worker.tensors.tensors import Pieces, spec_of

GOAL_BARE = 1.2
GOAL_DCP = 10.0
VARIANTS = ("bare", "vault", "dcp", "dcp-cached")
LAYERS = 12


def make_state(nbytes: int) -> dict[str, torch.Tensor]:
    """Return a state of about `nbytes` bytes: weights, two moments for each, step counters."""
    width = max(8, int(math.sqrt(nbytes / (12 * 3 * 4 * LAYERS))))
    shapes = {
        "qkv": (3 * width, width),
        "proj": (width, width),
        "up": (4 * width, width),
        "down": (width, 4 * width),
        "norm1": (width,),
        "norm2": (width,),
    }
    state = {}
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            for kind in ("weight", "exp_avg", "exp_avg_sq"):
                state[f"{layer}.{name}.{kind}"] = torch.randn(shape)
            state[f"{layer}.{name}.step"] = torch.tensor(1.0)
    return state


class Training:
    """Stand in for training: steps of at least `step_s` seconds on all cores.

    The fastest matrix products that were seen set their length.
    """

    def __init__(self, step_s: float) -> None:
        self._left, self._right = torch.randn(768, 768), torch.randn(768, 768)
        self._count = 4
        fastest_s = min(self.timed() for _ in range(30)) / self._count
        self._count = math.ceil(step_s / fastest_s)

    def timed(self) -> float:
        began = time.perf_counter()
        self.step()
        return time.perf_counter() - began

    def step(self) -> None:
        for _ in range(self._count):
            torch.mm(self._left, self._right)


class Row:
    """Do `steps` steps with a snapshot after each.

    Keep the median stall of each such row, and its seconds for a step.
    """

    def __init__(self, training: Training, steps: int, save: Callable[[], None]) -> None:
        self.stalls: list[float] = []
        self.seconds: list[float] = []
        self._training, self._steps, self._save = training, steps, save

    def __call__(self) -> None:
        # primes caches and, for DCP, the save that the first one of the row has to wait for
        self._save()
        stalls, began = [], time.perf_counter()
        for _ in range(self._steps):
            self._training.step()
            before = time.perf_counter()
            self._save()
            stalls.append(time.perf_counter() - before)
        self.seconds.append((time.perf_counter() - began) / self._steps)
        self.stalls.append(statistics.median(stalls))


class Dcp:
    """Call async_save as its documentation does: wait for the last save, then begin the next."""

    def __init__(self, state: dict[str, torch.Tensor], folder: Path, **options: Any) -> None:
        self._state, self._folder, self._options = state, folder, options
        self._pending: Any = None

    def save(self) -> None:
        self.finish()
        self._pending = async_save(
            self._state, checkpoint_id=self._folder, no_dist=True, **self._options
        )

    def finish(self) -> None:
        if self._pending is not None:
            self._pending.result()
        self._pending = None


def vault_saver(state: dict[str, torch.Tensor], vault: Vault) -> Callable[[], None]:
    vault.reserve(
        0, image_bytes([spec_of(name, tensor) for name, tensor in state.items()]), companions=1
    )
    step, pieces = 0, Pieces()

    def save() -> None:
        nonlocal step
        step += 1
        vault.write(
            0,
            generation=1,
            step=step,
            pieces=pieces.of(state.items()),
            metadata={"step": str(step)},
        )

    save()
    save()
    return save


def bare_saver(state: dict[str, torch.Tensor], folder: Path) -> Callable[[], None]:
    sources = [tensor.reshape(-1).numpy() for tensor in state.values()]
    buffers = []
    # two, as in the vault, so that neither side finds its target in the cache
    for slot in range(2):
        allocate(folder / f"bare-{slot}", sum(source.nbytes for source in sources))
        at, targets, memory = 0, [], np.frombuffer(map_file(folder / f"bare-{slot}"), np.uint8)
        for source in sources:
            targets.append(memory[at : at + source.nbytes].view(source.dtype))
            at += source.nbytes
        buffers.append(targets)
    count = 0

    def save() -> None:
        nonlocal count
        count += 1
        for target, source in zip(buffers[count % 2], sources, strict=True):
            np.copyto(target, source)

    save()
    save()
    return save


def settled(dcp_variants: dict[str, Dcp], row: Callable[[], None]) -> Callable[[], None]:
    """Return the same row, begun once no save of an earlier row is under way."""

    def run() -> None:
        for variant in dcp_variants.values():
            variant.finish()
        row()

    return run


def measure(options: argparse.Namespace, work: Path) -> tuple[dict[str, Row], int]:
    state = make_state(options.bytes)
    training = Training(options.step_s)
    vault = Vault.create(work / "vault", "stall")
    saves = {"dcp": Dcp(state, work / "dcp")} if "dcp" in options.only else {}
    # torch >= 2.9; the older stager keeps its buffers in pinned memory only
    if hasattr(staging, "DefaultStager") and "dcp-cached" in options.only:
        plain = staging.StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
        saves["dcp-cached"] = Dcp(
            state, work / "dcp-cached", async_stager=staging.DefaultStager(plain)
        )
    rows = {"none": Row(training, options.steps, lambda: None)}
    if "bare" in options.only:
        rows["bare"] = Row(training, options.steps, bare_saver(state, work))
    if "vault" in options.only:
        rows["vault"] = Row(training, options.steps, vault_saver(state, vault))
    for name, variant in saves.items():
        rows[name] = Row(training, options.steps, variant.save)
    for variant in saves.values():
        variant.save()  # the first save makes folders and buffers
    try:
        alternate(options.repeats, [settled(saves, row) for row in rows.values()])
    finally:
        for variant in saves.values():
            variant.finish()
        vault.remove()
    return rows, sum(tensor.nbytes for tensor in state.values())


def report(rows: dict[str, Row], nbytes: int, options: argparse.Namespace) -> dict[str, Any]:
    base = rows["none"].seconds
    names = [name for name in rows if name != "none"]
    lost = {
        name: [one - other for one, other in zip(rows[name].seconds, base, strict=True)]
        for name in names
    }
    ratios = {}
    if "vault" in names and "bare" in names:
        ratios["stall vault/bare"] = paired_ratio(rows["vault"].stalls, rows["bare"].stalls)
    if "vault" in names:
        # A step's noise can make a loss come out below the stall that is part of it.
        vault = [max(pair) for pair in zip(lost["vault"], rows["vault"].stalls, strict=True)]
        ratios |= {
            f"lost {name}/vault": paired_ratio(lost[name], vault)
            for name in names
            if name.startswith("dcp")
        }
    print(
        f"{nbytes / 1e6:,.0f} MB, step {summarise(base).text(scale=1e3, unit=' ms')},"
        f" {options.repeats} rounds of {options.steps} steps, {os.cpu_count()} cores, torch"
        f" {torch.__version__}, {'compiled copy' if streaming.PAST_CACHES else 'no compiled copy'}"
    )
    print(f"{'per snapshot':<12} {'stall':>28} {'lost':>30}")
    for name in names:
        print(
            f"{name:<12} {summarise(rows[name].stalls).text(scale=1e3, unit=' ms'):>28}"
            f" {summarise(lost[name]).text(scale=1e3, unit=' ms'):>30}"
        )
    for name, ratio in ratios.items():
        print(f"{name:<22} {ratio.text(unit='x')}")
    return {
        "bytes": nbytes,
        "repeats": options.repeats,
        "steps": options.steps,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiled_copy": streaming.PAST_CACHES,
        "step_s": summarise(base).as_dict(),
        "stall_s": {name: summarise(rows[name].stalls).as_dict() for name in names},
        "lost_s": {name: summarise(lost[name]).as_dict() for name in names},
        "ratios": {name: ratio.as_dict() for name, ratio in ratios.items()},
        "goals": goals(ratios),
    }


def goals(ratios: dict[str, Summary]) -> dict[str, str]:
    found = {}
    if (bare := ratios.get("stall vault/bare")) is not None:
        found[f"stall vault/bare <= {GOAL_BARE}"] = judged(
            reached=bare.high <= GOAL_BARE, missed=bare.low > GOAL_BARE
        )
    losses = [ratio for name, ratio in ratios.items() if name.startswith("lost")]
    if losses:
        kinder = min(losses, key=lambda ratio: ratio.median)
        found[f"lost dcp/vault >= {GOAL_DCP:g}"] = judged(
            reached=kinder.low >= GOAL_DCP, missed=kinder.high < GOAL_DCP
        )
    return found


def judged(*, reached: bool, missed: bool) -> str:
    return "reached" if reached else "missed" if missed else "undetermined"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--bytes", type=int, default=256 << 20, help="size of the state (default 256 MiB)"
    )
    parser.add_argument("--repeats", type=int, default=9, help="rounds")
    parser.add_argument("--steps", type=int, default=4, help="steps per row")
    parser.add_argument(
        "--step-s", type=float, default=0.2, help="seconds of a step without a snapshot"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("/dev/shm"), help="where everything is written"
    )
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch")
    work = Path(tempfile.mkdtemp(prefix="outlast-stall-", dir=options.folder))
    try:
        figures = report(*measure(options, work), options)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    for goal, verdict in figures["goals"].items():
        print(f"{verdict:<13} {goal}")
    verdicts = figures["goals"].values()
    return 1 if "missed" in verdicts else 3 if "undetermined" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
