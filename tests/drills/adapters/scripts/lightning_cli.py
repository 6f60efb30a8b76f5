"""LightningCLI, whose configuration names the strategy.

lightning_cli.py fit --trainer.strategy.class_path outlast.lightning.Strategy ...
"""

import time
from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import outlast


class Data(LightningDataModule):
    def __init__(self, batch_size: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self) -> Any:
        x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
        data = TensorDataset(x, x.sum(1, keepdim=True))
        return DataLoader(data, batch_size=self.hparams["batch_size"], shuffle=True)


class Net(LightningModule):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.Dropout(0.1), nn.Linear(width, 1))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        time.sleep(0.02)
        return nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


if __name__ == "__main__":
    cli = LightningCLI(Net, Data, seed_everything_default=7)
    print(f"metrics {cli.trainer.global_rank} {cli.trainer.global_step} {{}}", flush=True)
    print(f"digest {cli.trainer.global_rank} {outlast.digest(cli.model)}", flush=True)
