"""`outlast.hf.Trainer`: transformers' Trainer with each update as a step of outlast.

This module replaces the loop around an update: `run.steps` yields the steps, and logging,
evaluation and saving are in a phase. All that happens inside of an update is Trainer's own: loss,
clipping, optimizer, schedule, callbacks, logs, evaluation, checkpoints.

Limits     It was tried with transformers 5.24 and accelerate 1.15. Some methods of Trainer that are
           called here are private (`_NEEDS`). `_refuse` lists what is refused. The order of samples
           is that of StepSampler, so it is not the one of transformers' Trainer. Epochs are counted
           in batches: accumulation goes on over the end of an epoch.
           Of `state.log_history`, a replaced rank has the newest entries (LOG_ENTRIES_KEPT_COUNT).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader, IterableDataset

from outlast.errors import UsageError
from outlast.model.limits import LOG_ENTRIES_KEPT_COUNT
from outlast.runtime.worker.data.sampler import StepSampler
from outlast.runtime.worker.member.session import current
from outlast.runtime.worker.run import Run, join, joined
from outlast.runtime.worker.run_state.kept_part import KeptPart
from outlast.runtime.worker.steps.step import Step

_NEEDS = (
    "_clip_grad_norm",
    "_finalize_training",
    "_get_collator_with_removed_columns",
    "_get_grad_norm",
    "_get_learning_rate",
    "_init_training_state",
    "_inner_training_loop",
    "_maybe_log_save_evaluate",
    "_prepare_for_training",
    "_remove_unused_columns",
    "_track_num_input_tokens",
    "get_batch_samples",
)
_STATE = (
    "best_global_step",
    "best_metric",
    "best_model_checkpoint",
    "num_input_tokens_seen",
    "total_flos",
)
_CONTROL = (
    "should_training_stop",
    "should_epoch_stop",
    "should_save",
    "should_evaluate",
    "should_log",
)


@dataclass(slots=True)
class _Update:
    """The values of the newest update for the log, computed before the optimizer's step."""

    grad_norm: float | None = None
    learning_rate: float | None = None


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """transformers' Trainer, under which a lost process costs no step.

        run = outlast.join()  # before TrainingArguments
        trainer = outlast.hf.Trainer(model=model, args=args, train_dataset=data)
        trainer.train()

    It takes the arguments of transformers' Trainer, and gives the same events to callbacks. Under
    `outlast run`, a rank that is killed is replaced, and the update is repeated or finished.
    Trainer's own checkpoints are written as usual. They are read only if no rank is left, or by
    `trainer.train(resume_from_checkpoint=...)`.

    Callbacks and a custom compute_loss run again in a repeated update. What they keep themselves is
    kept only by callbacks with `state()` (transformers' ExportableState). They may communicate
    before the optimizer's step, and when a log, an evaluation or a save is due.

    `train` raises UsageError for what outlast cannot repeat: DeepSpeed, FSDP through accelerate, an
    IterableDataset, `auto_find_batch_size`, hyper-parameter search. A sampler of a subclass
    (`_get_train_sampler`) and grouping by length are not used.
    """

    control: Any
    state: Any
    _tr_loss: torch.Tensor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        missing = [name for name in _NEEDS if not hasattr(transformers.Trainer, name)]
        if missing:
            raise UsageError(
                f"transformers {transformers.__version__} has no Trainer.{missing[0]}",
                hint="outlast.hf was tried with transformers 5.24: pip install 'outlast[hf]'",
            )
        if not joined() and torch.distributed.is_initialized():
            raise UsageError(
                "outlast.hf.Trainer is made before outlast.join() was called",
                hint="write `run = outlast.join()` in front of TrainingArguments(...)",
            )
        super().__init__(*args, **kwargs)
        self._newest = _Update()
        self._shown: dict[str, float] = {}  # the newest number under each name

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Log as Trainer does, and show the numbers to those who watch the run."""
        super().log(logs, start_time)
        self._shown |= {
            str(name): float(value)
            for name, value in logs.items()
            if isinstance(value, int | float)
        }
        if (session := current()) is not None:
            session.show_logged(self.state.global_step, self._shown)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return a loader whose batches can be given again: one over `StepSampler`."""
        args, data, collate = self.args, self.train_dataset, self.data_collator
        if type(data).__module__.startswith("datasets."):
            data = self._remove_unused_columns(data, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        seed = args.seed if args.data_seed is None else args.data_seed
        batch_size = self._train_batch_size * args.world_size
        sampler = StepSampler(
            data, batch_size=batch_size, seed=seed, drop_last=args.dataloader_drop_last
        )
        return DataLoader(
            data,
            batch_sampler=sampler,
            collate_fn=collate,
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
        )

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train: what `transformers.Trainer.train` calls in the end."""
        run = join()
        _refuse(self, trial)
        if args.world_size != run.world_size:
            raise UsageError(
                f"TrainingArguments knows of {args.world_size} rank, and the run has"
                f" {run.world_size}: each would train a model of its own",
                hint="where there is no GPU, give TrainingArguments(use_cpu=True)",
            )
        self.accelerator.free_memory()
        loader = self.get_train_dataloader()
        accumulate, in_epoch = args.gradient_accumulation_steps, len(loader)
        max_steps = args.max_steps
        if max_steps <= 0:
            max_steps = math.ceil(args.num_train_epochs * in_epoch / accumulate)
        epochs = math.ceil(max_steps * accumulate / in_epoch)
        per_epoch = max(1, in_epoch // accumulate)
        self._init_training_state(max_steps, per_epoch, epochs, resume_from_checkpoint, trial)
        model, _ = self._prepare_for_training(max_steps, loader, resume_from_checkpoint)
        started_s = time.time()
        self._begin_counting()
        model.zero_grad()
        self.control = self.callback_handler.on_train_begin(args, self.state, self.control)
        state = run.state(
            model=model,
            optimizer=self.optimizer,
            scheduler=self.lr_scheduler,
            scaler=getattr(self.accelerator, "scaler", None),
            loader=loader,
            progress=KeptPart(self._progress, self._load_progress),
            books=KeptPart(self._books, self._load_books),
        )
        first = self.state.global_step + 1
        for step in run.steps(
            state, first=first, until=max_steps, accumulate=accumulate, log_every=0
        ):
            settled = self._one_step(
                run, step, model, in_epoch, trial, ignore_keys_for_eval, started_s
            )
            if settled and self.control.should_training_stop and step.number < max_steps:
                break
        samples = max_steps * self._train_batch_size * args.world_size * accumulate
        return self._finalize_training(trial, samples, started_s)

    def _one_step(
        self,
        run: Run,
        step: Step,
        model: Any,
        in_epoch: int,
        trial: Any,
        ignore_keys: list[str] | None,
        started_s: float,
    ) -> bool:
        """Execute one update, and what is due after it.

        Return True if something was due, and was done on all ranks. The update is committed then. A
        stop is due, too: no rank may leave the loop before the vote on its update has passed.
        """
        args, handler = self.args, self.callback_handler
        before = (step.number - 1) * args.gradient_accumulation_steps
        behind = before + args.gradient_accumulation_steps
        # A process that replaces another runs the script from its first line, and repeats the step
        # at which the other ranks are.
        self.state.global_step, self.state.epoch = step.number - 1, before / in_epoch
        self.control.should_training_stop = False
        if before == 0 or before // in_epoch != (before - 1) // in_epoch:
            self.control = handler.on_epoch_begin(args, self.state, self.control)
        done = settled = False
        with step:
            self._update(model, step.batches, behind / in_epoch)
            done = True
        if not done:
            # The step was interrupted, and then no phase follows. Or this process replaces another.
            # Then it has repeated the step alone, where accelerate cannot gather, and its peers may
            # wait in the phase after the step.
            self.control = handler.on_step_begin(args, self.state, self.control)
            self.state.global_step, self.state.epoch = step.number, behind / in_epoch
            self.control = handler.on_step_end(args, self.state, self.control)
        if behind // in_epoch != before // in_epoch:
            self.control = handler.on_epoch_end(args, self.state, self.control)
        due = self.control
        if due.should_log or due.should_evaluate or due.should_save or due.should_training_stop:
            asked = {name: getattr(due, name) for name in _CONTROL}
            for attempt in run.phase("log, evaluate, save"):
                with attempt:
                    # An attempt that was interrupted has answered some of these already, and every
                    # rank has to do the same again.
                    for name, value in asked.items():
                        setattr(self.control, name, value)
                    self._maybe_log_save_evaluate(
                        self._tr_loss,
                        self._newest.grad_norm,
                        model,
                        trial,
                        self.state.epoch,
                        ignore_keys,
                        started_s,
                        learning_rate=self._newest.learning_rate,
                    )
                settled = attempt.done
        return settled

    def _update(self, model: Any, batches: list[Any], epoch: float) -> None:
        """Execute the forward and backward passes of one update, and the optimizer's step."""
        args, handler = self.args, self.callback_handler
        inputs, items = self.get_batch_samples(iter(batches), len(batches), args.device)
        self.current_gradient_accumulation_steps = len(inputs)
        for number, one in enumerate(inputs):
            last = number == len(inputs) - 1
            self.accelerator.gradient_state._set_sync_gradients(last)
            if number == 0:
                self.control = handler.on_step_begin(args, self.state, self.control)
            if last:
                self._tr_loss += self._finite(self.training_step(model, one, items))
            else:
                with self.accelerator.no_sync(model=model):
                    self._tr_loss += self._finite(self.training_step(model, one, items))
                self.control = handler.on_substep_end(args, self.state, self.control)
            self.current_flos += float(self.floating_point_ops(one))
            self._track_num_input_tokens(one)
        norm = self._clip_grad_norm(model) if args.max_grad_norm > 0 else None
        norm = self._get_grad_norm(model, grad_norm=norm)
        norm = norm.item() if isinstance(norm, torch.Tensor) else norm
        self._newest = _Update(norm, self._get_learning_rate())
        self.control = handler.on_pre_optimizer_step(args, self.state, self.control)
        self.optimizer.step()
        self.control = handler.on_optimizer_step(args, self.state, self.control)
        plateau = isinstance(self.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if not self.accelerator.optimizer_step_was_skipped and not plateau:
            self.lr_scheduler.step()
        model.zero_grad()
        self.state.global_step += 1
        self.state.epoch = epoch
        self.control = handler.on_step_end(args, self.state, self.control)

    def _finite(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch. If it is not finite, return the mean since the last log."""
        if self.args.logging_nan_inf_filter and not bool(torch.isfinite(loss)):
            since = 1 + self.state.global_step - self._globalstep_last_logged
            return torch.div(self._tr_loss, since)
        return loss

    # --- what is kept of the trainer itself -------------------------------------------------------

    def _begin_counting(self) -> None:
        self._initial_num_input_tokens_seen = self.state.num_input_tokens_seen
        self._initial_global_step = self.state.global_step
        self._tr_loss = torch.tensor(0.0, device=self.args.device)
        self._total_loss_scalar = 0.0
        self._globalstep_last_logged = self.state.global_step

    def _progress(self) -> dict[str, Any]:
        """Return the values that change after the optimizer's step.

        They are the same on all ranks.
        """
        return {"global_step": self.state.global_step, "epoch": self.state.epoch}

    def _load_progress(self, saved: dict[str, Any]) -> None:
        self.state.global_step, self.state.epoch = saved["global_step"], saved["epoch"]

    def _books(self) -> dict[str, Any]:
        """Return the values that change before the vote, or in a phase.

        They may differ between ranks.
        """
        return {
            "state": {name: getattr(self.state, name, None) for name in _STATE},
            "log_history": list(self.state.log_history[-LOG_ENTRIES_KEPT_COUNT:]),
            "loss": float(self._tr_loss),
            "total_loss": self._total_loss_scalar,
            "last_logged": self._globalstep_last_logged,
            "flos": self.current_flos,
            "newest": [self._newest.grad_norm, self._newest.learning_rate],
            "stops": self.control.should_training_stop,
            "callbacks": [one.state() for one in self._stateful_callbacks()],
        }

    def _load_books(self, saved: dict[str, Any]) -> None:
        for name, value in saved["state"].items():
            setattr(self.state, name, value)
        self.state.log_history = list(saved["log_history"])
        self._tr_loss = torch.tensor(saved["loss"], device=self.args.device)
        self._total_loss_scalar = saved["total_loss"]
        self._globalstep_last_logged = saved["last_logged"]
        self.current_flos = saved["flos"]
        self._newest = _Update(*saved["newest"])
        self.control.should_training_stop = saved["stops"]
        for one, said in zip(self._stateful_callbacks(), saved["callbacks"], strict=True):
            for name, value in said["attributes"].items():
                setattr(one, name, value)

    def _stateful_callbacks(self) -> list[Any]:
        kind = transformers.trainer_callback.ExportableState
        return [one for one in self.callback_handler.callbacks if isinstance(one, kind)]


def _refuse(trainer: Any, trial: Any) -> None:
    """Raise UsageError for what cannot be repeated, or what this loop does not support."""
    args, data = trainer.args, trainer.train_dataset
    for wrong, what, hint in (
        (data is None, "a Trainer without train_dataset", "give it one"),
        (isinstance(data, IterableDataset), "an IterableDataset", "give a data set with a length"),
        (trainer.is_deepspeed_enabled, "DeepSpeed", "use DistributedDataParallel"),
        (
            trainer.is_fsdp_enabled,
            "FSDP through accelerate",
            "use fully_shard in a loop of your own",
        ),
        (trial is not None, "hyper-parameter search", "run one trial at a time"),
        (args.auto_find_batch_size, "auto_find_batch_size", "set the batch size"),
        (args.n_gpu > 1, "DataParallel over several GPUs", "use one process for each GPU"),
    ):
        if wrong:
            raise UsageError(f"outlast.hf.Trainer does not do {what}", hint=hint)
