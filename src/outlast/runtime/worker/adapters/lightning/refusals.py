"""What `outlast.lightning` cannot repeat, and so refuses before training, with a sentence."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.core.optimizer import _MockOptimizer
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch.utils.data import IterableDataset

from outlast.errors import UsageError
from outlast.runtime.worker.adapters.lightning.not_done import not_done
from outlast.runtime.worker.communication.guards import check_optimizer

# Private names of Lightning that the adapter uses, by class
_NEEDS = (
    (_FitLoop, ("_can_stop_early", "on_advance_end", "on_run_end", "on_run_start", "setup_data")),
    (
        _TrainingEpochLoop,
        (
            "_build_kwargs",
            "_num_ready_batches_reached",
            "_save_loggers_on_train_batch_end",
            "_should_accumulate",
            "_should_check_val_fx",
            "on_advance_end",
            "update_lr_schedulers",
        ),
    ),
    (Precision, ("_after_closure", "_wrap_closure")),
)
_CALLBACKS = {
    "BackboneFinetuning": "freeze and unfreeze in configure_optimizers, by groups",
    "BaseFinetuning": "freeze and unfreeze in configure_optimizers, by groups",
    "BatchSizeFinder": "find the batch size in a run of its own",
    "GradientAccumulationScheduler": "give Trainer(accumulate_grad_batches=...)",
    "LearningRateFinder": "find the learning rate in a run of its own",
    "ModelPruning": "prune in a run of its own",
    "SpikeDetection": "watch the loss by EarlyStopping(divergence_threshold=...)",
    "StochasticWeightAveraging": "use WeightAveraging or EMAWeightAveraging",
    "Timer": "give Trainer(max_steps=...): a clock does not go back with a step",
}


def refuse_version() -> None:
    """Raise UsageError if this Lightning lacks something that the adapter uses."""
    for owner, names in _NEEDS:
        missing = [name for name in names if not hasattr(owner, name)]
        if missing:
            raise UsageError(
                f"lightning {lightning.__version__} has no {owner.__name__}.{missing[0]}",
                hint="outlast.lightning was tried with lightning 2.6: pip install"
                " 'outlast[lightning]'",
            )


def refuse(trainer: Any) -> None:
    """Raise UsageError for a trainer or a model whose fit cannot be repeated step by step."""
    module, plugin = trainer.lightning_module, trainer.precision_plugin
    known = (Precision.optimizer_step, MixedPrecision.optimizer_step)
    clocked = [
        one
        for one in trainer.callbacks
        if isinstance(one, ModelCheckpoint) and one._train_time_interval is not None
    ]
    for wrong, what, hint in (
        (
            not module.automatic_optimization,
            "manual optimization",
            "leave automatic_optimization=True, or write the loop with run.steps",
        ),
        (
            is_param_in_hook_signature(module.training_step, "dataloader_iter", explicit=True),
            "training_step(dataloader_iter)",
            "take batch and batch_idx",
        ),
        (
            type(plugin).optimizer_step not in known,
            f"the precision plugin {type(plugin).__name__}",
            "use precision='bf16-mixed', '16-mixed', or one of the true precisions",
        ),
        (
            trainer.strategy._layer_sync is not None,
            "sync_batchnorm=True",
            "use layers that need no statistics of the batch",
        ),
        (
            bool(trainer.reload_dataloaders_every_n_epochs),
            "reload_dataloaders_every_n_epochs",
            "let the data set depend on the index alone",
        ),
        (
            getattr(trainer, "_val_check_time_interval", None) is not None,
            "a val_check_interval of time",
            "give a number of batches, or a part of an epoch",
        ),
        (
            bool(clocked),
            "ModelCheckpoint(train_time_interval=...)",
            "give every_n_train_steps",
        ),
    ):
        if wrong:
            raise not_done(what, hint)
    for callback in trainer.callbacks:
        for name, hint in _CALLBACKS.items():
            if isinstance(callback, getattr(callbacks, name, ())):
                raise not_done(f"the callback {type(callback).__name__}", hint)


def refuse_optimizers(optimizers: list[Any]) -> None:
    """Raise UsageError unless there is one optimizer of torch, whose step can be repeated.

    Lightning itself refuses several optimizers.
    """
    if not isinstance(optimizers[0], torch.optim.Optimizer) or isinstance(
        optimizers[0], _MockOptimizer
    ):
        raise not_done(
            "a fit without an optimizer of torch", "return one from configure_optimizers"
        )
    check_optimizer(optimizers[0])


def refuse_data(loader: object) -> None:
    """Raise UsageError for more than one loader, and for a stream."""
    if isinstance(loader, (list, tuple, dict, CombinedLoader)):
        raise not_done("several loaders", "zip the data sets into one, and give one DataLoader")
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        raise not_done("an IterableDataset", "give a data set with a length")


def refuse_no_end(max_epochs: int, max_steps: int) -> None:
    if max_epochs == max_steps == -1:
        raise not_done(
            "a fit without an end", "give Trainer(max_epochs=...) or Trainer(max_steps=...)"
        )
