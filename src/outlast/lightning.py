"""PyTorch Lightning on outlast. It needs lightning 2: `outlast[lightning]`.

import outlast.lightning

trainer = Trainer(strategy=outlast.lightning.Strategy(), devices=2, max_epochs=3)
trainer.fit(model, loader)
"""

from outlast.runtime.worker.adapters.lightning.strategy import Strategy

__all__ = ["Strategy"]
