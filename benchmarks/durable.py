"""How fast a state is durable on disk, and how fast it is loaded again.

    python benchmarks/durable.py [--bytes N] [--repeats N] [--folder DIR] [--only NAME ...]
    [--json FILE]

Workload   One process holds weights and AdamW moments of a transformer, and nothing else runs. Each
           contestant saves all of it into a new folder and syncs it, and loads it into tensors that
           are there already.
Measured   save   seconds from the call until the bytes are synced
           warm   seconds of a load of what was saved just before: its pages are in memory
           cold   the same, after the kernel was told to drop the pages (posix_fadvise)
           Of each also the processor seconds of this process, which other work disturbs less.
Variants   outlast      dcp.save and dcp.load with outlast.checkpoint's Writer and Reader: checksums
                        of every byte, a manifest, sync of files and folders
           dcp          FileSystemWriter and FileSystemReader as they come; it syncs each file
           dcp-threads  the same with two threads, as many as there are cores
           torch        torch.save and torch.load, with fsync behind it
           safetensors  save_file and load_file, with fsync behind it; loads into new tensors, then
                        copies them into those that are there
           torchsnapshot  Snapshot.take and restore, with fsync behind it, if it is installed
           dd           dd with oflag=direct, blocks of 4 MiB, conv=fsync; of the same bytes; save
                        only
Method     All variants in one process, alternating, each round beginning with another one; each
           round in a folder of its own, removed afterwards. Medians with 95 % intervals.
Goals      Save at least at 85 % of dd's rate, and ahead of all others. Load at least 2x ahead of
           DCP as it comes. Reached or missed when the whole interval says so, else undetermined.
           Exit code 0, 1 or 3.
Limits     Checksums are verified by outlast alone. With one process nothing is resharded.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent))
from _timing import Summary, paired_ratio, summarise
from stall import make_state

from outlast.checkpoint import Reader, Writer

GOAL_DD = 0.85
GOAL_DCP = 2.0
State = dict[str, torch.Tensor]


class Contestant(NamedTuple):
    """The functions by which a contestant saves into a folder, and loads from it into tensors."""

    save: Callable[[State, Path], object]
    load: Callable[[State, Path], object] | None


def synced(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def torch_save(state: State, folder: Path) -> None:
    torch.save(state, folder / "state.pt")
    synced(folder / "state.pt")
    synced(folder)


def torch_load(state: State, folder: Path) -> None:
    for name, one in torch.load(folder / "state.pt", weights_only=True).items():
        state[name].copy_(one)


def safetensors_save(state: State, folder: Path) -> None:
    save_file(state, folder / "state.safetensors")
    synced(folder / "state.safetensors")
    synced(folder)


def safetensors_load(state: State, folder: Path) -> None:
    for name, one in load_file(folder / "state.safetensors").items():
        state[name].copy_(one)


def snapshot_save(state: State, folder: Path) -> None:
    from torchsnapshot import Snapshot, StateDict

    Snapshot.take(path=str(folder / "snapshot"), app_state={"state": StateDict(**flat(state))})
    for path in folder.rglob("*"):
        synced(path)


def snapshot_load(state: State, folder: Path) -> None:
    from torchsnapshot import Snapshot, StateDict

    Snapshot(path=str(folder / "snapshot")).restore({"state": StateDict(**flat(state))})


def flat(state: State) -> State:
    """Return the same tensors under names that are identifiers."""
    return {f"t_{name.replace('.', '_')}": one for name, one in state.items()}


def dcp_save(threads: int) -> Callable[[State, Path], object]:
    return lambda state, folder: dcp.save(
        state, storage_writer=dcp.FileSystemWriter(folder, thread_count=threads), no_dist=True
    )


def dcp_load(state: State, folder: Path) -> None:
    dcp.load(state, storage_reader=dcp.FileSystemReader(folder), no_dist=True)


def dd(source: Path) -> Callable[[State, Path], object]:
    def save(state: State, folder: Path) -> None:
        subprocess.run(
            ["dd", f"if={source}", f"of={folder}/bytes", "bs=4M", "oflag=direct", "conv=fsync"],
            check=True,
            capture_output=True,
        )

    return save


def all_contestants(source: Path) -> dict[str, Contestant]:
    snapshot = importlib.util.find_spec("torchsnapshot") is not None
    return {
        "outlast": Contestant(
            lambda state, folder: dcp.save(
                state, storage_writer=Writer(folder, step=1), no_dist=True
            ),
            lambda state, folder: dcp.load(state, storage_reader=Reader(folder), no_dist=True),
        ),
        "dcp": Contestant(dcp_save(1), dcp_load),
        "dcp-threads": Contestant(dcp_save(2), dcp_load),
        "torch": Contestant(torch_save, torch_load),
        "safetensors": Contestant(safetensors_save, safetensors_load),
        **({"torchsnapshot": Contestant(snapshot_save, snapshot_load)} if snapshot else {}),
        "dd": Contestant(dd(source), None),
    }


def forget(folder: Path) -> None:
    """Ask the kernel to drop the pages of all files."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


Seconds = tuple[float, float]  # on the clock, of the processor


def timed(call: Callable[[], object]) -> Seconds:
    """Call the function, and return how long that took."""
    began, cpu_began = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began, time.process_time() - cpu_began


def save_and_load(
    contestant: Contestant, state: State, target: State, folder: Path
) -> dict[str, Seconds]:
    """Save, load warm and cold, and make sure that what was loaded is what was saved."""
    folder.mkdir()
    seconds = {"save": timed(lambda: contestant.save(state, folder))}
    load = contestant.load
    if load is not None:
        for kind in ("warm", "cold"):
            if kind == "cold":
                forget(folder)
            for one in target.values():
                one.zero_()
            seconds[kind] = timed(lambda: load(target, folder))
            wrong = [name for name, one in state.items() if not torch.equal(one, target[name])]
            assert not wrong, f"{wrong} came back with other values"
    shutil.rmtree(folder)
    return seconds


def rounds(args: argparse.Namespace, root: Path) -> tuple[int, dict[str, dict[str, list[Seconds]]]]:
    """Return the bytes of the state, and the seconds of each contestant by what was timed."""
    state = make_state(args.bytes)
    target = {name: torch.zeros_like(one) for name, one in state.items()}
    size = sum(one.nbytes for one in state.values())
    source = Path(tempfile.mkstemp(dir="/dev/shm", prefix="durable-")[1])
    try:
        with source.open("wb") as file:
            for one in state.values():
                file.write(one.reshape(-1).view(torch.uint8).numpy().data)
        contestants = {
            name: contestant
            for name, contestant in all_contestants(source).items()
            if name in args.only
        }
        found: dict[str, dict[str, list[Seconds]]] = {name: {} for name in contestants}
        names = list(contestants)
        for number in range(args.repeats + 1):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                seconds = save_and_load(contestants[name], state, target, root / f"{name}-{number}")
                for kind, value in seconds.items():
                    if number:  # the first round warms up
                        found[name].setdefault(kind, []).append(value)
    finally:
        source.unlink()
    return size, found


def verdict(ratio: Summary, goal: float) -> str:
    if ratio.low >= goal:
        return "reached"
    return "missed" if ratio.high < goal else "undetermined"


def main() -> int:
    names = list(all_contestants(Path()))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="durable-") as folder:
        size, found = rounds(args, Path(folder))
    print(f"{size:,} bytes, {args.repeats} rounds; GB/s of the median")
    for name, kinds in found.items():
        for kind, values in kinds.items():
            seconds = summarise([one for one, _ in values])
            cpu = summarise([one for _, one in values])
            print(
                f"{name:12} {kind:5} {size / seconds.median / 1e9:.2f} GB/s, "
                f"{seconds.text(unit=' s')}, processor {cpu.text(unit=' s')}"
            )
    verdicts = judged(found)
    if args.json:
        args.json.write_text(json.dumps({"bytes": size, "seconds": found}, indent=1))
    return 1 if "missed" in verdicts else 3 if "undetermined" in verdicts else 0


def judged(found: dict[str, dict[str, list[Seconds]]]) -> list[str]:
    """Print the ratios that have goals, and what they say."""
    verdicts = []
    ours = found.get("outlast", {})
    for name, kinds in found.items():
        for kind, values in kinds.items():
            if name == "outlast" or not ours:
                continue
            times = [[one[which] for one in values] for which in (0, 1)]
            mine = [[one[which] for one in ours[kind]] for which in (0, 1)]
            ratio, cpu = (paired_ratio(*both) for both in zip(times, mine, strict=True))
            goal = GOAL_DCP if name == "dcp" else None
            if kind == "save":
                goal = GOAL_DD if name == "dd" else 1.0
            said = "" if goal is None else f"; goal {goal}: {verdict(ratio, goal)}"
            if goal is not None:
                verdicts.append(verdict(ratio, goal))
            work = "" if name == "dd" else f", with {cpu.text()} times less processor time"
            print(f"{kind}: outlast is {ratio.text()} times as fast as {name}{work}{said}")
    return verdicts


if __name__ == "__main__":
    sys.exit(main())
