"""How fast a checkpoint of two ranks is loaded by one, warm and cold: outlast.checkpoint and DCP.

    python benchmarks/resharded_load.py [--bytes N] [--repeats N] [--folder DIR]

Workload   Two processes hold weights and AdamW moments of a transformer as DTensors, each half of
           every tensor, and save them. One process loads them into whole tensors that are there.
Measured   warm   seconds of a load whose files are in memory
           cold   the same, after the kernel was told to drop the pages (posix_fadvise)
           Of each also the processor seconds of this process, which other work disturbs less.
Variants   outlast   dcp.load with outlast.checkpoint's Reader: every byte is verified
           dcp       dcp.load with FileSystemReader as it comes: nothing is verified
Method     Both in one process, alternating. Medians with 95 % intervals.
Goal       At least 2x ahead of DCP. Reached or missed when the whole interval says so, else
           undetermined. Exit code 0, 1 or 3.
"""

from __future__ import annotations

import argparse
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

sys.path.insert(0, str(Path(__file__).parent))
from _timing import paired_ratio, summarise
from durable import Seconds, State, forget, timed
from stall import make_state

from outlast.checkpoint import Reader, Writer

GOAL = 2.0
RANKS = 2
SEED = 5


def state_of(nbytes: int) -> State:
    """Return the whole tensors, the same in every process. Counters cannot be cut, so none."""
    torch.manual_seed(SEED)
    return {name: one for name, one in make_state(nbytes).items() if one.dim()}


def save(rank: int, port: int, nbytes: int, folder: Path) -> None:
    """Save this rank's halves in both ways."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    cut = {name: distribute_tensor(one, mesh, [Shard(0)]) for name, one in state_of(nbytes).items()}
    dcp.save(cut, checkpoint_id=folder / "dcp")
    dcp.save(cut, storage_writer=Writer(folder / "outlast", step=1))
    dist.destroy_process_group()


def load_times(
    nbytes: int, repeats: int, folder: Path
) -> tuple[int, dict[str, dict[str, list[Seconds]]]]:
    """Return the bytes of the state, and the seconds of each way by what was timed."""
    state = state_of(nbytes)
    target = {name: torch.zeros_like(one) for name, one in state.items()}
    loads: dict[str, Callable[[], object]] = {
        "outlast": lambda: dcp.load(
            target, storage_reader=Reader(folder / "outlast"), no_dist=True
        ),
        "dcp": lambda: dcp.load(
            target, storage_reader=dcp.FileSystemReader(folder / "dcp"), no_dist=True
        ),
    }
    found: dict[str, dict[str, list[Seconds]]] = {name: {} for name in loads}
    for number in range(repeats + 1):
        for name in sorted(loads, reverse=bool(number % 2)):
            for kind in ("warm", "cold"):
                if kind == "cold":
                    forget(folder)
                elif not number:
                    loads[name]()
                for one in target.values():
                    one.zero_()
                seconds = timed(loads[name])
                wrong = [one for one in state if not torch.equal(state[one], target[one])]
                assert not wrong, f"{wrong} came back with other values"
                if number:  # the first round warms up
                    found[name].setdefault(kind, []).append(seconds)
            loads[name]()  # its pages are in memory again
    return sum(one.nbytes for one in state.values()), found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("."))
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="resharded-") as name:
        mp.spawn(save, (port, args.bytes, Path(name)), nprocs=RANKS)
        size, found = load_times(args.bytes, args.repeats, Path(name))
    print(f"{size:,} bytes of {RANKS} ranks, loaded by one; {args.repeats} rounds")
    verdicts = []
    for kind in ("warm", "cold"):
        for name, kinds in found.items():
            seconds = summarise([one for one, _ in kinds[kind]])
            cpu = summarise([one for _, one in kinds[kind]])
            print(
                f"{kind} {name:8} {size / seconds.median / 1e9:.2f} GB/s,"
                f" {seconds.text(unit=' s')}, processor {cpu.text(unit=' s')}"
            )
        ratio, cpu = (
            paired_ratio(*([one[which] for one in found[who][kind]] for who in ("dcp", "outlast")))
            for which in (0, 1)
        )
        verdicts.append(
            "reached" if ratio.low >= GOAL else "missed" if ratio.high < GOAL else "undetermined"
        )
        print(
            f"{kind}: outlast is {ratio.text()} times as fast as dcp, with {cpu.text()} times less"
            f" processor time; goal {GOAL:g}: {verdicts[-1]}"
        )
    return 1 if "missed" in verdicts else 3 if "undetermined" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
