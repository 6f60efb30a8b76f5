"""The training of gpt.py as one replica of torchft, of one process, over gloo.

torchft recovers by replicas: survivors go on with fewer of them, and one that comes back takes the
state of a peer. A step then has the batches of those that took part. This follows torchft's own
train_ddp.py.
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # re-exported from C
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

from outlast.runtime.worker.adapters.against.gpt import GPT, Corpus, optimizer_of, say
from outlast.runtime.worker.run_state.digest import digest

# torchft's default is a minute; this is the same time as for torchrun
TIMEOUT = timedelta(seconds=10)
REPLICAS_LEAST = 2


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT under torchft.")
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()

    replica = int(os.environ["OUTLAST_DRILL_RANK"])
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.manual_seed(0)
    bare = GPT()
    inner = optimizer_of(bare)

    def load(state: dict[str, Any]) -> None:
        bare.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=REPLICAS_LEAST,
        load_state_dict=load,
        state_dict=lambda: {"model": bare.state_dict(), "optimizer": inner.state_dict()},
        hostname="127.0.0.1",
        timeout=TIMEOUT,
        replica_id=f"replica_{replica}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
    )
    model, optimizer = DistributedDataParallel(manager, bare), Optimizer(manager, inner)
    corpus = Corpus()
    while (done := manager.current_step()) < args.steps:
        optimizer.zero_grad()
        model(corpus.batch(done + 1, replica)).backward()
        optimizer.step()
        if manager.current_step() > done and manager.participating_rank() == 0:
            say(f"step {done + 1} members {manager.num_participants()}")
    say(f"digest {digest(bare)}")
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
