"""A Lightning script with many parts: a data module, loader workers, random data, dropout, a
plateau scheduler, an early stop, a gather at the end of an epoch, a callback that counts, and a
test of the best checkpoint.

    whole_lightning.py FOLDER
"""

import sys
import time
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
)
from torch import nn
from torch.utils.data import DataLoader, Dataset

import outlast
import outlast.lightning


class Noisy(Dataset[Any]):
    """A data set that adds new noise each time a point is read."""

    def __init__(self, count: int, seed: int) -> None:
        self.x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index] + 0.1 * torch.randn(8), self.x[index, :1] * 2


class Data(LightningDataModule):
    def prepare_data(self) -> None:
        print("prepared", flush=True)

    def train_dataloader(self) -> Any:
        return DataLoader(
            Noisy(256, 1), batch_size=8, shuffle=True, num_workers=2, persistent_workers=True
        )

    def val_dataloader(self) -> Any:
        return DataLoader(Noisy(64, 2), batch_size=8, num_workers=1)

    def test_dataloader(self) -> Any:
        return DataLoader(Noisy(64, 2), batch_size=8)


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 1))

    def loss(self, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        time.sleep(0.02)
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("ranks", self.all_gather(torch.ones(())).sum())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.loss(batch), sync_dist=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val"}}


class Counts(Callback):
    """A callback with a number that changes with each batch, and one that changes with each
    validation.
    """

    def __init__(self) -> None:
        self.batches, self.validations = 0, 0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self.batches += 1

    def on_validation_end(self, trainer: Any, *_: Any) -> None:
        self.validations += not trainer.sanity_checking

    def state_dict(self) -> dict[str, Any]:
        return {"batches": self.batches, "validations": self.validations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches, self.validations = state["batches"], state["validations"]


seed_everything(3, workers=True, verbose=False)
model, counts = Net(), Counts()
stop, best = EarlyStopping("val", patience=2), ModelCheckpoint(monitor="val")
trainer = Trainer(
    strategy=outlast.lightning.Strategy(find_unused_parameters=True),
    accelerator="cpu",
    devices=2,
    max_epochs=30,
    log_every_n_steps=5,
    default_root_dir=sys.argv[1],
    callbacks=[stop, best, counts, LearningRateMonitor("step")],
    enable_progress_bar=False,
)
trainer.fit(model, datamodule=Data())
rate, seen = trainer.optimizers[0].param_groups[0]["lr"], trainer.callback_metrics
shown = {name: float(seen[name]) for name in ("val", "ranks")}
shown |= {"batches": counts.batches, "validations": counts.validations}
shown |= {"waited": stop.wait_count, "best": float(best.best_model_score)}
shown |= {"epochs": trainer.fit_loop.epoch_progress.total.completed}
shown |= {"seen": trainer.fit_loop.epoch_loop.total_batch_idx}
print(f"metrics {trainer.global_rank} {trainer.global_step} {shown} {rate}", flush=True)
print(f"digest {trainer.global_rank} {outlast.digest(model)}", flush=True)
(tested,) = trainer.test(model, datamodule=Data(), ckpt_path="best", verbose=False)
print(f"tested {trainer.global_rank}", flush=True)
