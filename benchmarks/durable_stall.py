"""What one checkpoint on the disk costs training that goes on meanwhile.

    python benchmarks/durable_stall.py [--bytes N] [--repeats N] [--steps N] [--folder DIR]
    [--only NAME ...] [--json FILE]

Workload   As in stall.py: matrix products on all cores stand in for training, and a transformer's
           weights with its AdamW moments for the state. Each row is `--steps` steps with one save
           at its beginning, and long enough that the save ends within it.
Measured   stall  seconds until the call of the save returns
           lost   seconds of a row with a save - of the same row without
Variants   outlast        what `outlast run --checkpoint-every` does on one rank: a copy, and a
                          process of the lowest priority that writes and syncs it
           outlast-thread the same without that process: a thread writes
           writer         dcp.async_save with outlast.checkpoint.Writer, as in a torchrun script
           dcp            dcp.async_save with torch's FileSystemWriter, as documented
           dcp-cached     the same with a stager that keeps its buffers (torch >= 2.9)
           dcp-threads    the same with a writer of two threads
           dcp-process    the same in a process of its own
           torch          torch.save and fsync; training waits
           safetensors    save_file and fsync; training waits
           torchsnapshot  Snapshot.async_take, if it is installed; it syncs nothing
Method     All variants in one process, alternating, each round beginning with another one. No save
           of an earlier row is in progress when a row begins. Medians with 95 % intervals.
Goal       `outlast` loses at least 3x less than the best of the others, `writer` aside. Reached or
           missed when the whole interval says so, else undetermined. Exit code 0, 1 or 3.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemWriter, staging
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save

sys.path.insert(0, str(Path(__file__).parent))
from _timing import Summary, alternate, paired_ratio, summarise
from durable import synced
from stall import Training, make_state

from outlast.checkpoint import Writer
from outlast.runtime.coordinator.side_process import LOWEST_PRIORITY
from outlast.runtime.image_writer.write_orders import PROGRAM, SOCKET_NAME
from outlast.runtime.worker.saving.checkpoints import Checkpoints
from outlast.runtime.worker.tensors.tensors import Pieces

GOAL = 3.0
State = dict[str, torch.Tensor]
# Begins a save into a folder that does not exist. Returns what waits until it has ended.
Save = Callable[[State, Path], Callable[[], object]]


def nothing(state: State, folder: Path) -> Callable[[], object]:
    return lambda: None


def as_in_a_run(folder: Path) -> Save:
    """Return a save by the code of a run, with as much of a session as it asks for.

    `folder` is where a writer listens, if one was started there.
    """
    pieces, failed = Pieces(), []
    session = types.SimpleNamespace(
        spec=types.SimpleNamespace(
            worker=0,
            options={"checkpoint_every": 1, "checkpoint_root": str(folder)},
            vault_folder=str(folder),
        ),
        machine=types.SimpleNamespace(generation=1, broken=False),
        beacon=types.SimpleNamespace(rank=0),
        say=lambda message: failed.append(message.error) if message.error else None,
    )
    kept: list[Checkpoints] = []

    def save(state: State, folder: Path) -> Callable[[], object]:
        if not kept:
            kept.append(Checkpoints(session, lambda: (pieces.of(state.items()), {})))  # type: ignore[arg-type]
        kept[0].root = folder
        kept[0].save(1)

        def wait() -> None:
            kept[0].wait()
            assert not failed, failed

        return wait

    return save


def by_dcp(options: Callable[[Path], dict[str, Any]]) -> Save:
    def save(state: State, folder: Path) -> Callable[[], object]:
        pending = async_save(state, **options(folder))
        return pending.result

    return save


def torch_save(state: State, folder: Path) -> Callable[[], object]:
    folder.mkdir()
    torch.save(state, folder / "state.pt")
    synced(folder / "state.pt")
    return lambda: None


def safetensors_save(state: State, folder: Path) -> Callable[[], object]:
    folder.mkdir()
    save_file(state, folder / "state.safetensors")
    synced(folder / "state.safetensors")
    return lambda: None


def snapshot_save(state: State, folder: Path) -> Callable[[], object]:
    from torchsnapshot import Snapshot, StateDict

    app_state = {"state": StateDict(**{name.replace(".", "_"): one for name, one in state.items()})}
    return Snapshot.async_take(path=str(folder), app_state=app_state).wait


def variants(work: Path) -> dict[str, Save]:
    found: dict[str, Save] = {
        "none": nothing,
        "outlast": as_in_a_run(work / "with"),
        "outlast-thread": as_in_a_run(work / "without"),
        "writer": by_dcp(lambda folder: {"storage_writer": Writer(folder, step=1)}),
        "dcp": by_dcp(lambda folder: {"checkpoint_id": folder}),
        "dcp-threads": by_dcp(
            lambda folder: {"storage_writer": FileSystemWriter(folder, thread_count=2)}
        ),
        "dcp-process": by_dcp(
            lambda folder: {
                "checkpoint_id": folder,
                "async_checkpointer_type": AsyncCheckpointerType.PROCESS,
            }
        ),
        "torch": torch_save,
        "safetensors": safetensors_save,
    }
    if hasattr(staging, "DefaultStager"):
        plain = staging.StagingOptions(
            use_pinned_memory=False,
            use_shared_memory=False,
            use_async_staging=False,
            use_non_blocking_copy=False,
        )
        stager = staging.DefaultStager(plain)
        found["dcp-cached"] = by_dcp(
            lambda folder: {"checkpoint_id": folder, "async_stager": stager}
        )
    if importlib.util.find_spec("torchsnapshot"):
        found["torchsnapshot"] = snapshot_save
    return found


class Rows:
    """Rows of steps of one variant, each with one save at its beginning."""

    def __init__(self, training: Training, steps: int, state: State, save: Save, work: Path):
        self.stalls: list[float] = []
        self.seconds: list[float] = []
        self.late = 0  # saves that had not ended when their row had
        self._training, self._steps, self._state = training, steps, state
        self._save, self._work = save, work

    def __call__(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=self._work)) / "save"
        began = time.perf_counter()
        wait = self._save(self._state, folder)
        self.stalls.append(time.perf_counter() - began)
        for _ in range(self._steps):
            self._training.step()
        ended = time.perf_counter()
        self.seconds.append(ended - began)
        wait()
        self.late += time.perf_counter() - ended > 0.05
        shutil.rmtree(folder.parent)


def measure(options: argparse.Namespace, work: Path) -> tuple[dict[str, Rows], int]:
    """Return the rows of each variant, and the bytes of the state."""
    state, training = make_state(options.bytes), Training(options.step_s)
    rows = {
        name: Rows(training, options.steps, state, save, work)
        for name, save in variants(work).items()
        if name == "none" or name in options.only
    }
    for one in rows.values():
        one()  # buffers and processes are made
        one.stalls.clear()
        one.seconds.clear()
        one.late = 0
    alternate(options.repeats, list(rows.values()))
    return rows, sum(one.nbytes for one in state.values())


def report(rows: dict[str, Rows], nbytes: int, options: argparse.Namespace) -> dict[str, Any]:
    base = rows["none"].seconds
    names = [name for name in rows if name != "none"]
    lost = {name: [a - b for a, b in zip(rows[name].seconds, base, strict=True)] for name in names}
    print(
        f"{nbytes / 1e6:,.0f} MB, rows of {options.steps} steps,"
        f" {summarise(base).text(unit=' s')} without a save, {options.repeats} rounds,"
        f" {os.cpu_count()} cores, torch {torch.__version__}"
    )
    print(f"{'per checkpoint':<16} {'stall':>28} {'lost':>30}")
    for name in names:
        late = f"  {rows[name].late} saves ended later" if rows[name].late else ""
        print(
            f"{name:<16} {summarise(rows[name].stalls).text(scale=1e3, unit=' ms'):>28}"
            f" {summarise(lost[name]).text(scale=1e3, unit=' ms'):>30}{late}"
        )
    figures: dict[str, Any] = {
        "bytes": nbytes,
        "row_s": summarise(base).as_dict(),
        "stall_s": {name: summarise(rows[name].stalls).as_dict() for name in names},
        "lost_s": {name: summarise(lost[name]).as_dict() for name in names},
    }
    others = [name for name in names if name not in ("outlast", "outlast-thread", "writer")]
    if "outlast" in names and others:
        best = min(others, key=lambda name: summarise(lost[name]).median)
        # A row's noise can make a loss come out below the stall that is part of it.
        ours = [max(pair) for pair in zip(lost["outlast"], rows["outlast"].stalls, strict=True)]
        ratio = paired_ratio(lost[best], ours)
        figures |= {"best": best, "ratio": ratio.as_dict(), "goal": verdict(ratio)}
        print(f"lost {best}/outlast {ratio.text(unit='x')}; goal {GOAL:g}: {verdict(ratio)}")
    return figures


def verdict(ratio: Summary) -> str:
    if ratio.low >= GOAL:
        return "reached"
    return "missed" if ratio.high < GOAL else "undetermined"


@contextlib.contextmanager
def writer_at(folder: Path) -> Iterator[None]:
    """Run the process that writes images while the block lasts, as a launcher does."""
    folder.mkdir()
    path = folder / SOCKET_NAME
    command = (*PROGRAM, str(path), str(os.getpid()))
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    os.setpriority(os.PRIO_PROCESS, process.pid, LOWEST_PRIORITY)
    while not path.exists():
        time.sleep(0.01)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def begin_group() -> None:
    """Make a group of this process alone: DCP wants one for a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=0, world_size=1)


def main() -> int:
    names = [name for name in variants(Path()) if name != "none"]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bytes", type=int, default=256 << 20)
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--steps", type=int, default=12, help="steps of a row")
    parser.add_argument("--step-s", type=float, default=0.2, help="seconds of a step")
    parser.add_argument(
        "--folder", type=Path, default=Path("."), help="where everything is written"
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch")
    begin_group()
    work = Path(tempfile.mkdtemp(prefix="outlast-durable-", dir=options.folder))
    try:
        with writer_at(work / "with"):
            figures = report(*measure(options, work), options)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        dist.destroy_process_group()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return {"reached": 0, "missed": 1}.get(figures.get("goal", ""), 3)


if __name__ == "__main__":
    sys.exit(main())
