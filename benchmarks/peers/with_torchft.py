"""The same training with torchft over gloo: four replica groups of one process each, a lighthouse,
and whoever dies is started again.

    python with_torchft.py --steps N                     the whole: lighthouse, replicas, restarts
    python with_torchft.py --steps N --replica 2         one replica, started by the above

torchft heals by replica group: the survivors go on with three, and a fourth that comes back is
healed by a peer. Its quorum's number is the generation. Follows torchft's own train_ddp.py; needs
an interpreter with torchft and the same torch.

Set in its favour: a join time-out of 1 s. A survivor that is no neighbour of the dead one in gloo's
ring stays in its all-reduce until the others have regrouped, and these wait for it that long (10.5
s with the 10 s of torchft's README). With 0.1 s, four replicas on two busy cores never stay
together. torchft 0.2.0 does not get that far under DDP: an assertion in its hook ends the
survivors; torchft-nightly 2026.10.26 does.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

REPLICAS = 4


def replica(args: argparse.Namespace) -> None:
    import torch
    from commits import batch_of, committed
    from torch.distributed import TCPStore
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    from train_gpt import GPT, Corpus

    timeout = timedelta(seconds=args.timeout)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(0)
    bare = GPT()
    inner = torch.optim.AdamW(bare.parameters(), lr=1e-3)

    def load(state: dict) -> None:
        bare.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        min_replica_size=2,
        load_state_dict=load,
        hostname="127.0.0.1",
        timeout=timeout,
        state_dict=lambda: {"model": bare.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"replica_{args.replica}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    model, optimizer, corpus = (
        DistributedDataParallel(manager, bare),
        Optimizer(manager, inner),
        Corpus(),
    )
    while (step := manager.current_step()) < args.steps:
        optimizer.zero_grad()
        model(*batch_of(corpus, step, args.replica, REPLICAS)).backward()
        optimizer.step()
        if manager.current_step() > step:
            committed(
                rank=args.replica,
                step=manager.current_step(),
                generation=manager._quorum_id,
                members=manager.num_participants(),
            )
    manager.shutdown(wait=False)


def supervise(args: argparse.Namespace) -> None:
    """Start all, start again whoever ends badly, stop when all have ended well."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    port = 20_000 + os.getpid() % 10_000
    lighthouse = str(Path(sys.executable).with_name("torchft_lighthouse"))
    flags = [
        "--min_replicas",
        "2",
        "--quorum_tick_ms",
        "100",
        "--join_timeout_ms",
        str(args.join_ms),
        "--heartbeat_timeout_ms",
        str(args.heartbeat_ms),
    ]
    children = {-1: subprocess.Popen([lighthouse, "--bind", f"127.0.0.1:{port}", *flags])}
    environment = os.environ | {
        "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
        "OMP_NUM_THREADS": "1",
    }

    def start(number: int) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--replica", str(number)], env=environment
        )

    try:
        children |= {number: start(number) for number in range(REPLICAS)}
        while any(children[number].poll() != 0 for number in range(REPLICAS)):
            for number in range(REPLICAS):
                if children[number].poll() not in (None, 0):
                    children[number] = start(number)
            time.sleep(0.05)
    finally:
        for child in children.values():
            child.kill()
            child.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the example's model under torchft.")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument(
        "--heartbeat-ms",
        type=int,
        default=5000,
        help="the lighthouse's time-out (torchft's default: 5000)",
    )
    parser.add_argument(
        "--join-ms",
        type=int,
        default=1000,
        help="how long the lighthouse waits for the living to join (torchft's default: 60000)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60,
        help="the manager's and the process group's, in seconds (torchft's default: 60)",
    )
    parser.add_argument("--replica", type=int)
    arguments = parser.parse_args()
    supervise(arguments) if arguments.replica is None else replica(arguments)
