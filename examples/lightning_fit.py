"""PyTorch Lightning under outlast: a small network, with what real scripts have around it.

    pip install 'outlast[torch,lightning]'
    outlast run --nproc-per-node 2 --preload outlast.lightning examples/lightning_fit.py

Two lines differ from the same script for torchrun: `import outlast.lightning`, and the strategy.
Kill a worker: no update is lost, and the weights at the end are those of a run that was left
alone. They are also those of Lightning's own DDP: give `--plain`, and start it by torchrun.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torchmetrics
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import outlast
import outlast.lightning


class Net(LightningModule):
    """A network that tells on which side of a curve a point lies."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)
        )
        self.pause_s = pause_s
        self.train_accuracy = torchmetrics.Accuracy("multiclass", num_classes=2)
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=2)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        time.sleep(self.pause_s)
        scores = self.layers(x)
        loss = nn.functional.cross_entropy(scores, y)
        self.train_accuracy(scores, y)
        self.log("train_accuracy", self.train_accuracy, on_step=True, on_epoch=True)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        scores = self.layers(x)
        self.accuracy(scores, y)
        self.log("accuracy", self.accuracy)
        self.log("val_loss", nn.functional.cross_entropy(scores, y), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=200)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def points(count: int, seed: int) -> TensorDataset:
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", default="runs/lightning", help="Lightning's logs and checkpoints")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds for each batch")
    parser.add_argument("--resume", help="a checkpoint of Lightning's, to go on from")
    parser.add_argument("--plain", action="store_true", help="Lightning's own DDP strategy")
    given = parser.parse_args()

    seed_everything(0, verbose=False)
    model = Net(given.pause)
    trainer = Trainer(
        strategy="ddp" if given.plain else outlast.lightning.Strategy(),
        accelerator="cpu",
        devices=2,
        max_epochs=given.epochs,
        accumulate_grad_batches=4,
        gradient_clip_val=0.5,
        precision="bf16-mixed",
        val_check_interval=8,
        log_every_n_steps=1,
        logger=CSVLogger(given.out),
        callbacks=[
            EMAWeightAveraging(decay=0.9),
            EarlyStopping("val_loss", patience=20),
            ModelCheckpoint(monitor="val_loss", save_last=True, every_n_train_steps=4),
        ],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    train = DataLoader(points(672, seed=1), batch_size=16, shuffle=True)
    check = DataLoader(points(96, seed=2), batch_size=16)
    trainer.fit(model, train, check, ckpt_path=given.resume)
    shown = {name: round(float(value), 6) for name, value in trainer.callback_metrics.items()}
    print(f"metrics {trainer.global_rank} {trainer.global_step} {shown}", flush=True)
    print(f"digest {trainer.global_rank} {outlast.digest(model)}", flush=True)


if __name__ == "__main__":
    main()
