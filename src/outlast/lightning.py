"""Use PyTorch Lightning under outlast.

    import outlast.lightning

    trainer = Trainer(strategy=outlast.lightning.Strategy(), devices=2, max_epochs=3)
    trainer.fit(model, loader)

It needs version 2 of the package lightning, which `outlast[lightning]` installs. `Strategy` says
what it does not support.
"""

from outlast.runtime.worker.adapters.lightning.strategy import Strategy

__all__ = ["Strategy"]
