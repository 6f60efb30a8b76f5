"""The training of gpt.py under torchrun: plain DDP, with a checkpoint at a fixed interval.

It is saved by torch.save on rank 0 (`own`), or by DCP's async_save (`dcp`), which writes while
training goes on. The script prints how long each save stalls the training, and how long DCP writes.

One setting favours torchrun: a collective that does not end is given up after TIMEOUT_S, and not
after torch's 30 minutes.
"""

from __future__ import annotations

import argparse
import shutil
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.nn.parallel import DistributedDataParallel

from outlast.runtime import clock
from outlast.runtime.worker.adapters.against.gpt import GPT, Corpus, optimizer_of, say
from outlast.runtime.worker.run_state.digest import digest

TIMEOUT_S = 10


class PeerCheckpoints(Protocol):
    """This says where the state is saved, and where a restarted script finds it."""

    def load(self) -> int:
        """Load the newest checkpoint. Return its step, or 0 if there is none."""

    def save(self, step: int) -> None:
        """Save the state of a step."""

    def close(self) -> None:
        """Wait for what is still being written."""


class OwnCheckpoints:
    """One file, written by rank 0, and replaced by the next one."""

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._path = folder / "checkpoint.pt"
        self._model, self._optimizer = model, optimizer

    def load(self) -> int:
        if not self._path.exists():
            return 0
        saved = torch.load(self._path)
        self._model.load_state_dict(saved["model"])
        self._optimizer.load_state_dict(saved["optimizer"])
        return int(saved["step"])

    def save(self, step: int) -> None:
        if dist.get_rank() != 0:
            return
        began_s, new = clock.now_s(), self._path.with_suffix(".new")
        state = {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": step,
        }
        torch.save(state, new)
        new.replace(self._path)
        say(f"stalled {clock.now_s() - began_s:.6f} s to save")

    def close(self) -> None:
        pass


class DcpCheckpoints:
    """A folder for each checkpoint. The file `newest` names the last complete one.

    If a save has not ended when the next one is due, this waits for it.
    """

    def __init__(self, folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._newest = folder / "newest"
        self._model, self._optimizer = model, optimizer
        self._group = dist.new_group(backend="gloo")  # for the thread that writes
        self._saving: Future[Any] | None = None
        self._step = 0  # the step of the newest save, whether it has ended or not

    def load(self) -> int:
        if not self._newest.exists():
            return 0
        self._step = int(self._newest.read_text())
        state = self._state()
        load(state, checkpoint_id=self._folder(self._step))
        set_state_dict(
            self._model,
            self._optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        return self._step

    def save(self, step: int) -> None:
        began_s = clock.now_s()
        self.close()
        before, self._step = self._step, step
        saving = async_save(
            self._state(), checkpoint_id=self._folder(step), process_group=self._group
        )
        assert isinstance(saving, Future)
        self._saving = saving
        if dist.get_rank() == 0:
            saving.add_done_callback(partial(self._written, step, before, clock.now_s()))
            say(f"stalled {clock.now_s() - began_s:.6f} s to save")

    def close(self) -> None:
        if self._saving is not None:
            self._saving.result()

    def _written(self, step: int, before: int, began_s: float, saving: Future[Any]) -> None:
        if saving.exception() is not None:
            return  # `close` raises the error
        new = self._newest.with_suffix(".new")
        new.write_text(str(step))
        new.replace(self._newest)
        shutil.rmtree(self._folder(before), ignore_errors=True)
        say(f"wrote for {clock.now_s() - began_s:.6f} s")

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self._model, self._optimizer)
        return {"model": model, "optimizer": optimizer}

    def _folder(self, step: int) -> Path:
        return self._newest.with_name(f"step-{step}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small GPT under torchrun.")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("folder", type=Path, help="for checkpoints; it exists")
    parser.add_argument("by", choices=("own", "dcp"))
    parser.add_argument("--every", type=int, required=True, help="steps between two checkpoints")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT(), process_group=group)
    optimizer = optimizer_of(model)
    kind = DcpCheckpoints if args.by == "dcp" else OwnCheckpoints
    checkpoints: PeerCheckpoints = kind(args.folder, model, optimizer)
    done = checkpoints.load()
    corpus = Corpus()
    for step in range(done + 1, args.steps + 1):
        model(corpus.batch(step, rank)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            say(f"step {step}")
        if step % args.every == 0:
            checkpoints.save(step)
    checkpoints.close()
    if rank == 0:
        say(f"digest {digest(model.module)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
