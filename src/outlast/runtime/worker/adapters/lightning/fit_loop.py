"""The loop around the updates of a fit, in place of Lightning's fit loop and epoch loop.

`run.steps` yields the updates. In the block of each step are its batches, the optimizer, the
schedulers, and the hooks after a batch. A validation, the end of an epoch and a checkpoint that is
due after a batch communicate. So they are in a phase after the step. Everything inside is
Lightning's own: hooks, precision, clipping, logs, callbacks, validation loop, checkpoints.

Lightning's counters follow from the number of the update (updates.py), and are set from it at each
beginning. So a process that replaces another has them at once.

Limits     It was tried with lightning 2.6. Private names of it are used here.
           refusals.py lists what is refused, and checks these names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_warn
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, WeightAveraging
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.data_connector import _request_dataloader
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.seed import isolate_rng

from outlast.errors import UsageError
from outlast.runtime.worker.adapters.lightning import kept
from outlast.runtime.worker.adapters.lightning.refusals import (
    refuse_data,
    refuse_no_end,
    refuse_optimizers,
)
from outlast.runtime.worker.adapters.lightning.updates import UpdateCalendar, Updates, refuse_loader
from outlast.runtime.worker.member.session import current
from outlast.runtime.worker.run import Run
from outlast.runtime.worker.run_state.kept_part import KeptPart
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.steps.step import Step


class Done(NamedTuple):
    """The results of a batch: the arguments of on_train_batch_end."""

    output: Any
    batch: Any
    batch_idx: int


class Loader(CombinedLoader):  # type: ignore[misc]
    """The one loader of a fit. Lightning opens it before training, which has no effect here:
    batches come with the steps.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader, "max_size_cycle")

    def __iter__(self) -> Loader:
        return self

    def __len__(self) -> int:
        (loader,) = self.flattened
        return min(len(loader), *(self.limits or (len(loader),)))


class FitLoop(_FitLoop):  # type: ignore[misc]
    """Lightning's fit loop, with each update as a step of outlast.

    It takes over what the trainer's own loop was given so far: the loader, the limits, and later
    the counters of a checkpoint.
    """

    trainer: Any
    epoch_loop: Any

    def __init__(self, trainer: Any, run: Run, strategy: Any) -> None:
        super().__init__(trainer)
        self.__dict__.update(trainer.fit_loop.__dict__)
        self._run, self._strategy = run, strategy
        self._calendar = UpdateCalendar(1, 1)
        self._mode = kept.Mode(trainer.lightning_module)
        self._number = 0  # the newest update that this process knows to be done
        self._sanity_steps, trainer.num_sanity_val_steps = trainer.num_sanity_val_steps, 0

    # --- the loop ---------------------------------------------------------------------------------

    def setup_data(self) -> None:
        """Make the loader, without opening it."""
        source = self._data_source
        if self._combined_loader is None and source.is_defined():
            loader = _request_dataloader(source)
            with self._run._membership.refusing():
                refuse_data(loader)
            source.instance = Loader(loader)
        super().setup_data()

    def run(self) -> None:
        """Train: what `trainer.fit` calls in the end."""
        self.setup_data()
        if self.skip:
            return
        torch.set_grad_enabled(True)
        with self._run._membership.refusing():
            refuse_optimizers(self.trainer.optimizers)
            loader = self._the_loader()
            self._calendar = UpdateCalendar(
                int(self.max_batches), self.trainer.accumulate_grad_batches
            )
            first, until = 1 + self._resumed(), self._until()
        self._warn_of_validation()
        self.on_run_start()
        state = self._state(Updates(loader, self._calendar))
        self._strategy.begin_steps()
        for step in self._run.steps(state, first=first, until=until, log_every=0):
            over = self._one_update(step, until, sanity=step.number == first == 1)
            if over and self.trainer.should_stop and self._can_stop_early:
                break
        self._strategy.end_steps()
        _ = self.done  # it gives the reason why the fit ends
        self.on_run_end()

    def _the_loader(self) -> Any:
        assert self._combined_loader is not None
        (loader,) = self._combined_loader.flattened
        refuse_loader(loader, rank=self._run.rank, world_size=self._run.world_size)
        return loader

    def _until(self) -> int:
        """Return the number of the last update."""
        refuse_no_end(self.max_epochs, self.max_steps)
        limits: list[int] = []
        if self.max_epochs != -1:
            limits.append(self.max_epochs * self._calendar.updates)
        if self.max_steps != -1:
            limits.append(self.max_steps)
        return min(limits)

    def _warn_of_validation(self) -> None:
        every, calendar = self.trainer.val_check_batch, self._calendar
        aligned = every is None or every >= calendar.batches or every % calendar.accumulate == 0
        if self.trainer.enable_validation and not aligned:
            rank_zero_warn(
                f"a validation each {every} batches falls between the {calendar.accumulate} batches"
                " of an update: outlast validates at the end of that update"
            )

    def _resumed(self) -> int:
        """Return how many updates were done when Lightning's own checkpoint was saved."""
        resumed, done = self.restarting or self.is_resuming, self.epoch_loop.global_step
        if not resumed and not done:
            return 0
        batches = self.epoch_loop.batch_progress.total.ready
        if batches != self._calendar.batches_behind(done):
            raise UsageError(
                f"the checkpoint was saved after {batches} batches and {done} updates, which are"
                f" {self._calendar.batches_behind(done)} batches here",
                hint="resume with the loader, the accumulation and the number of ranks of before",
            )
        for loop in (self, self.epoch_loop, self.epoch_loop.val_loop):
            loop.on_iteration_done()
        self._count(done, ended=True)
        return int(done)

    # --- an update --------------------------------------------------------------------------------

    def _one_update(self, step: Step, until: int, *, sanity: bool) -> bool:
        """Execute one update, and what is due after it. Return False if it is yielded again."""
        number, saves = step.number, self._saves_behind(step.number)
        self._begin(number)
        place = self._calendar.place(number - 1)
        over, last = False, Done({}, step.batch[-1], place.batch + place.count - 1)
        with step:
            if sanity:
                self._sanity_check()
            last = self._batches(step.batch, saves=saves)
            over = True
        self._strategy.end_tail()
        if not over:
            # The step was interrupted, and then no phase follows. Or this process replaces another.
            # Then its peers may wait in a phase after the step, and it has to go there.
            self._mode.put_back_forward()
            self._count_block(number)
        validates = self._validates_behind(number)
        if self._is_due(number, until, together=saves or validates):
            over = self._behind(number, last if saves else None, validates=validates)
        elif over:
            self._batch_is_over()
        return over

    def _begin(self, number: int) -> None:
        """Set everything that is not kept to its state before an update."""
        self._strategy.end_tail()
        self._mode.put_back_forward()
        self.trainer.training = True
        self._count(number - 1, ended=True)

    def _batches(self, batches: list[Any], *, saves: bool) -> Done:
        """Process the batches of an update, and return what the last one has left."""
        place = self._calendar.place(self._number)
        if place.update == 0:
            self._begin_epoch()
        # A process that replaces another repeats its step with the batches of the first process.
        *others, newest = enumerate(batches[: place.count], place.batch)
        for index, batch in others:
            self._end_batch(self._batch(batch, index), saves=False)
            self._batch_is_over()
        index, batch = newest
        last = self._batch(batch, index)
        self._end_batch(last, saves=saves)
        self._number += 1
        return last

    def _begin_epoch(self) -> None:
        self.epoch_loop.val_loop.batch_progress.total.reset()
        self.epoch_loop.scheduler_progress.reset_on_run()
        self.epoch_progress.increment_ready()
        call._call_callback_hooks(self.trainer, "on_train_epoch_start")
        call._call_lightning_module_hook(self.trainer, "on_train_epoch_start")
        self.epoch_progress.increment_started()

    def _batch(self, batch: Any, index: int) -> Done:
        """Process one batch, with the optimizer if it is the last of its update."""
        trainer, loop = self.trainer, self.epoch_loop
        progress, module = loop.batch_progress, trainer.lightning_module
        progress.is_last_batch = index == self._calendar.batches - 1
        batch = trainer.precision_plugin.convert_input(batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = call._call_strategy_hook(trainer, "batch_to_device", batch, dataloader_idx=0)
        progress.increment_ready()
        trainer._logger_connector.on_batch_start(batch)
        call._call_callback_hooks(trainer, "on_train_batch_start", batch, index)
        answer = call._call_lightning_module_hook(trainer, "on_train_batch_start", batch, index)
        if answer == -1:
            self._run._membership.refuse(
                UsageError(
                    "on_train_batch_start returned -1, to skip the rest of the epoch",
                    hint="shorten the epoch by Trainer(limit_train_batches=...)",
                )
            )
        call._call_strategy_hook(trainer, "on_train_batch_start", batch, index)
        progress.increment_started()
        arguments = loop._build_kwargs({}, batch, index)
        with trainer.profiler.profile("run_training_batch"):
            output = loop.automatic_optimization.run(trainer.optimizers[0], index, arguments)
        progress.increment_processed()
        loop.update_lr_schedulers("step", update_plateau_schedulers=False)
        if loop._num_ready_batches_reached():
            loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        return Done(output, batch, index)

    def _end_batch(self, done: Done, *, saves: bool) -> None:
        """Call the hooks after a batch, and log its values.

        Those of checkpoints are left out if one of them saves: ranks have to do that together.
        """
        trainer = self.trainer
        self._call_behind_batch(done, monitoring=False)
        if not saves:
            self._call_behind_batch(done, monitoring=True)
        call._call_lightning_module_hook(trainer, "on_train_batch_end", *done)
        trainer._logger_connector.on_batch_end()
        self.epoch_loop.batch_progress.increment_completed()
        trainer._logger_connector.update_train_step_metrics()
        self._show_logged()

    def _show_logged(self) -> None:
        """Show what Lightning has just logged to those who watch the run.

        Only numbers that it has computed already are shown, because computing one may need all
        ranks.
        """
        connector, session = self.trainer._logger_connector, current()
        if session is None or not connector.should_update_logs:
            return
        known = {**connector._progress_bar_metrics, **connector._logged_metrics}
        session.show_logged(
            self.trainer.global_step, {str(name): float(value) for name, value in known.items()}
        )

    def _call_behind_batch(self, done: Done, *, monitoring: bool) -> None:
        """Call the hooks of callbacks after a batch: those that watch a metric, or the others."""
        call._call_callback_hooks(
            self.trainer, "on_train_batch_end", *done, monitoring_callbacks=monitoring
        )

    def _batch_is_over(self) -> None:
        """Execute what Lightning executes after a batch without a validation."""
        loop = self.epoch_loop
        loop.update_lr_schedulers("step", update_plateau_schedulers=True)
        if not loop._should_accumulate():
            loop._batches_that_stepped += 1
        loop._save_loggers_on_train_batch_end()

    def _sanity_check(self) -> None:
        """Execute the sanity check of the validation, with all ranks, before the first update."""
        trainer = self.trainer
        trainer.num_sanity_val_steps = self._sanity_steps
        self._mode.capture()
        try:
            with isolate_rng():
                trainer._run_sanity_check()
        finally:
            trainer.num_sanity_val_steps = 0
            trainer.training = True
            self._mode.put_back_training()

    # --- after an update --------------------------------------------------------------------------

    def _saves_behind(self, number: int) -> bool:
        """Return whether a checkpoint may be due after the last batch of an update."""
        return any(_saves(one, number) for one in self.trainer.callbacks)

    def _validates_behind(self, number: int) -> bool:
        """Return whether Lightning validates after a batch of an update.

        Within an update, the validation is deferred to its end. The counters are those of that end
        afterwards.
        """
        place, loop = self._calendar.place(number - 1), self.epoch_loop
        progress, validates = loop.batch_progress, False
        for index in range(place.batch, place.batch + place.count):
            progress.current.ready = index + 1
            progress.total.ready = self._calendar.batches * place.epoch + index + 1
            progress.is_last_batch = index == self._calendar.batches - 1
            validates = validates or loop._should_check_val_fx(self._data_fetcher)
        self._count_block(number)
        return validates

    def _is_due(self, number: int, until: int, *, together: bool) -> bool:
        """Return whether anything after an update has to be done by all ranks together.

        It follows from the number of the update, and from `should_stop`, which is kept. `together`:
        a checkpoint or a validation is due.
        """
        plateau = any(
            config.reduce_on_plateau and config.interval == "step"
            for config in self.trainer.lr_scheduler_configs
        )
        stops = self.trainer.should_stop and self._can_stop_early
        ends = number == until or number % self._calendar.updates == 0
        return together or plateau or stops or ends

    def _behind(self, number: int, saved: Done | None, *, validates: bool) -> bool:
        """Execute what is due after an update. Return True if all ranks have done it."""
        done, first = False, True
        self._mode.capture()
        for attempt in self._run.phase(self._phase_name(number)):
            with attempt:
                if not first:
                    self._mode.put_back_training()
                first = False
                self._begin_phase(number)
                if saved is not None:
                    self._save(saved)
                if validates:
                    self._validate()
                self._batch_is_over()
                if self.epoch_loop.done:
                    self.on_advance_end()
            done = done or attempt.done
        return done

    def _begin_phase(self, number: int) -> None:
        """Set everything that is not kept to its state after the block of an update."""
        self._mode.put_back_forward()
        self.trainer.training = True
        self._count_block(number)
        # A validation that was interrupted may have left values here.
        self.epoch_loop.val_loop._results.clear()

    def _save(self, done: Done) -> None:
        """Call the checkpoints after a batch. For them, the batch is not completed yet."""
        progress = self.epoch_loop.batch_progress
        for counter in (progress.current, progress.total):
            counter.completed -= 1
        self._call_behind_batch(done, monitoring=True)
        progress.increment_completed()

    def _validate(self) -> None:
        trainer = self.trainer
        trainer.validating = True
        first = trainer._logger_connector._first_loop_iter
        call._call_lightning_module_hook(trainer, "on_validation_model_zero_grad")
        self.epoch_loop.val_loop.run()
        trainer.training = True
        trainer._logger_connector._first_loop_iter = first

    def _phase_name(self, number: int) -> str:
        """Return the name of the phase after an update.

        A phase has a name of its own if a callback puts other weights into the model for it. The
        callback writes through `.data`, and what a phase of a new name changes is always restored.
        """
        name = "validate, end epoch, save"
        swaps = any(isinstance(one, WeightAveraging) for one in self.trainer.callbacks)
        return f"{name} after update {number}" if swaps else name

    # --- counters ---------------------------------------------------------------------------------

    def _count(self, updates: int, *, ended: bool) -> None:
        """Set Lightning's counters to their values after this many updates.

        `ended`: an epoch that ends with the last of them is over, and the next one has not begun.
        """
        place, loop = self._calendar.place(updates), self.epoch_loop
        epoch, update, batch = place.epoch, place.update, place.batch
        if update == 0 and updates and not ended:
            epoch, update, batch = epoch - 1, self._calendar.updates, self._calendar.batches
        begun = epoch + (update > 0)
        for counter in (self.epoch_progress.total, self.epoch_progress.current):
            counter.ready = counter.started = begun
            counter.processed = counter.completed = epoch
        total = self._calendar.batches_behind(updates)
        for counter, count in (
            (loop.batch_progress.total, total),
            (loop.batch_progress.current, batch),
        ):
            counter.ready = counter.started = counter.processed = counter.completed = count
        loop.batch_progress.is_last_batch = batch == self._calendar.batches
        progress = loop.automatic_optimization.optim_progress.optimizer
        for tracked in (progress.step, progress.zero_grad):
            tracked.total.ready = tracked.total.completed = updates
            tracked.current.ready = tracked.current.completed = update
        for counter, count in (
            (progress.zero_grad.total, updates),
            (progress.zero_grad.current, update),
        ):
            counter.started = count
        loop._batches_that_stepped = updates
        self._number = updates

    def _count_block(self, number: int) -> None:
        """Set the counters to their values after the block of an update."""
        self._count(number, ended=False)
        self.epoch_loop._batches_that_stepped = number - 1

    # --- what is kept -----------------------------------------------------------------------------

    def _state(self, updates: Updates) -> State:
        trainer = self.trainer
        averages = [
            one._average_model for one in trainer.callbacks if isinstance(one, WeightAveraging)
        ]
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        return self._run.state(
            model=trainer.strategy.model,
            optimizer=trainer.optimizers[0],
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            batches=updates,
            progress=KeptPart(self._progress, self._load_progress),
            logged=KeptPart(
                lambda: kept.logged(trainer), lambda saved: kept.load_logged(trainer, saved)
            ),
            metrics=KeptPart(
                lambda: kept.metrics(trainer.lightning_module),
                lambda saved: kept.load_metrics(trainer.lightning_module, saved),
            ),
            callbacks=KeptPart(
                lambda: kept.callbacks(trainer), lambda saved: kept.load_callbacks(trainer, saved)
            ),
            **{f"average{number}": one for number, one in enumerate(averages)},
            **{f"scheduler{number}": one for number, one in enumerate(schedulers)},
        )

    def _progress(self) -> dict[str, Any]:
        """Return the values that change after the optimizer. They are the same on all ranks."""
        return {
            "number": self._number,
            "schedulers": self.epoch_loop.scheduler_progress.state_dict(),
            "validation": self.epoch_loop.val_loop.batch_progress.state_dict(),
            "should_stop": self.trainer.should_stop,
        }

    def _load_progress(self, saved: dict[str, Any]) -> None:
        self._count(saved["number"], ended=True)
        self.epoch_loop.scheduler_progress.load_state_dict(saved["schedulers"])
        self.epoch_loop.val_loop.batch_progress.load_state_dict(saved["validation"])
        self.trainer.should_stop = saved["should_stop"]


def _saves(callback: Any, number: int) -> bool:
    """Return whether a callback may save after the last batch of an update."""
    if not isinstance(callback, Checkpoint):
        return False
    hook = type(callback).on_train_batch_end
    if hook is ModelCheckpoint.on_train_batch_end:
        every = callback._every_n_train_steps
        return bool(every >= 1 and number % every == 0)
    return hook is not Checkpoint.on_train_batch_end
