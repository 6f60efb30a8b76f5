"""`outlast.lightning.Strategy`: DDPStrategy of Lightning on the process group of the run.

The strategy takes rank, device and process group from `outlast.join()`, and uses a loop of outlast
in place of Lightning's (fit_loop.py). Lightning communicates through its strategy, and what may be
communicated depends on where the script is:

    before run.steps     nothing: a process that replaces another is here alone. Barriers are left
                         out, broadcasts go over the board (board.py), the rest is refused
    in a step or phase   everything, up to the optimizer of a step
    after the optimizer  nothing: it is refused, and the error says what to do
    after run.steps      everything
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.rank_zero import rank_zero_only as fabric_rank_zero_only
from lightning.fabric.utilities.seed import reset_seed
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.data import has_len_all_ranks
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.nn.parallel import DistributedDataParallel

from outlast.errors import UsageError
from outlast.runtime.worker.adapters.lightning.board import Board
from outlast.runtime.worker.adapters.lightning.fit_loop import FitLoop
from outlast.runtime.worker.adapters.lightning.refusals import refuse, refuse_version
from outlast.runtime.worker.member import session
from outlast.runtime.worker.run import Run, join, joined


class Where(Enum):
    """The places of the script that decide whether it may communicate."""

    ELSEWHERE = "elsewhere"  # no fit, or after its steps
    SETUP = "setup"  # of a fit, before its steps
    STEPS = "steps"
    TAIL = "tail"  # of a step: after its optimizer


class Environment(ClusterEnvironment):  # type: ignore[misc]
    """The launcher's ranks, as Lightning asks for them."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        return 0  # the process group is made by outlast

    @staticmethod
    def detect() -> bool:
        return joined()

    def world_size(self) -> int:
        return self._run.world_size

    def set_world_size(self, size: int) -> None:
        """Ignore the number, because the launcher says how many ranks there are."""

    def global_rank(self) -> int:
        return self._run.rank

    def set_global_rank(self, rank: int) -> None:
        """Ignore the number, because the launcher gives ranks."""

    def local_rank(self) -> int:
        return self._run.local_rank

    def node_rank(self) -> int:
        return 0


def _other_than_default(given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that were chosen.

    LightningCLI passes all of them, most with their defaults.
    """
    defaults = {
        name: one.default
        for maker in (DistributedDataParallel, DDPStrategy)
        for name, one in inspect.signature(maker.__init__).parameters.items()
    }
    return {
        name: value
        for name, value in given.items()
        if name not in defaults
        or type(value) is not type(defaults[name])
        or value != defaults[name]
    }


def _let_configs_be_written_again(trainer: Any) -> None:
    """Let LightningCLI write its configuration once more, in a process that replaces another.

    It refuses to overwrite the file, which the first process of this rank has written. Its option
    `overwrite` would skip a broadcast that the first process has made.
    """
    cli = sys.modules.get("lightning.pytorch.cli")  # importing it requires jsonargparse
    for one in trainer.callbacks:
        if cli is not None and isinstance(one, cli.SaveConfigCallback):
            one.parser = _Overwriting(one.parser)


class _Overwriting:
    """A parser of LightningCLI whose `save` overwrites."""

    def __init__(self, parser: Any) -> None:
        self._parser = parser

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def save(self, *args: Any, **kwargs: Any) -> None:
        self._parser.save(*args, **{**kwargs, "overwrite": True})


class Strategy(DDPStrategy):  # type: ignore[misc]
    """Lightning's DDP strategy, under which a lost process costs no step.

        import outlast.lightning

        trainer = Trainer(strategy=outlast.lightning.Strategy(), devices=2, max_epochs=3)
        trainer.fit(model, loader)

    It takes the keyword arguments of DistributedDataParallel, as DDPStrategy does. Under `outlast
    run`, a rank that is killed is replaced, and the update is repeated or finished. Samples come in
    the order of plain Lightning. Hooks, callbacks, precision, clipping, accumulation, logs,
    validation and Lightning's own checkpoints are unchanged.

    A hook runs again in an update that is repeated. Hooks up to `on_before_optimizer_step` may
    communicate, and so may those of a validation and of an epoch's end. `on_train_batch_end` of an
    update may not, unless a checkpoint is due there.

    `trainer.fit` raises UsageError for what outlast cannot repeat, before training. That is manual
    optimization, several loaders, an IterableDataset, a custom sampler, LBFGS, and everything that
    depends on the clock; the page "Train with Lightning" has the full list.
    """

    strategy_name = "outlast"
    parallel_devices: Any

    def __init__(self, **ddp_kwargs: Any) -> None:
        given = _other_than_default(ddp_kwargs)
        for name in ("model_averaging_period", "start_method", "cluster_environment"):
            if name in given:
                raise UsageError(
                    f"outlast.lightning.Strategy({name}=...)",
                    hint="leave it out: outlast starts the processes, and averages no models",
                )
        refuse_version()
        self._run = join()
        super().__init__(cluster_environment=Environment(self._run), **given)
        self._where = Where.ELSEWHERE
        self._board: Board | None = None
        self._fitted = False

    # --- processes and devices --------------------------------------------------------------------

    def _configure_launcher(self) -> None:
        """Start no processes, because the launcher has done that."""
        world_size, devices = self._run.world_size, len(self.parallel_devices or ())
        if devices not in (1, world_size):
            raise UsageError(
                f"Trainer(devices={devices}), but this run has {world_size} ranks",
                hint=f"outlast run --nproc-per-node {devices}, or Trainer(devices={world_size})",
            )
        self.parallel_devices = [self._run.device] * world_size
        # Lightning read the environment when it was imported, maybe before this process had a rank.
        rank_zero_only.rank = fabric_rank_zero_only.rank = self._run.rank

    @property
    def root_device(self) -> torch.device:
        return self._run.device

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self._run.world_size, "rank": self._run.rank}

    def setup_environment(self) -> None:
        """Prepare for a fit, or another function of the trainer, once the model is known."""
        assert self.accelerator is not None and self.lightning_module is not None
        self.accelerator.setup_device(self.root_device)
        self.setup_distributed()
        trainer = self.lightning_module.trainer
        if trainer.state.fn == TrainerFn.FITTING:
            self._begin_fit(trainer)

    def setup_distributed(self) -> None:
        """Do what Lightning does around init_process_group, which outlast has called."""
        reset_seed()
        self.set_world_ranks()
        self._process_group_backend = self._get_process_group_backend()

    def _begin_fit(self, trainer: Any) -> None:
        with self._run._membership.refusing():
            if self._fitted:
                raise UsageError(
                    "trainer.fit is called a second time",
                    hint="one script trains one model: start another run for the next fit",
                )
            refuse(trainer)
        self._fitted = True
        if self._run.generation > 1 or self._run._membership.is_spare:
            _let_configs_be_written_again(trainer)
        current = session.current()
        if current is not None:
            self._board = Board(current.spec.run_folder, self._run.rank)
            self._where = Where.SETUP
        trainer.fit_loop = FitLoop(trainer, self._run, self)
        # These create process groups of their own, and answer signals with a collective.
        trainer._data_connector.prepare_data = lambda: self._prepare_data(trainer)
        if current is not None:
            trainer._signal_connector.register_signal_handlers = lambda: None

    def _prepare_data(self, trainer: Any) -> None:
        """Let the first rank of the node prepare data, while the others wait."""
        if trainer.local_rank == 0:
            if trainer.datamodule is not None and is_overridden("prepare_data", trainer.datamodule):
                call._call_lightning_datamodule_hook(trainer, "prepare_data")
            if is_overridden("prepare_data", trainer.lightning_module):
                call._call_lightning_module_hook(trainer, "prepare_data")
        self.broadcast(True)

    # --- communication ----------------------------------------------------------------------------

    def begin_steps(self) -> None:
        """Let Lightning communicate from here on, because all ranks reach the same places."""
        self._where = Where.STEPS

    def end_steps(self) -> None:
        self._where = Where.ELSEWHERE

    def end_tail(self) -> None:
        """Note that the block of a step is over, or begins again."""
        if self._where is Where.TAIL:
            self._where = Where.STEPS

    def barrier(self, *args: Any, **kwargs: Any) -> None:
        if self._where is not Where.SETUP and self._communicates("a barrier"):
            super().barrier(*args, **kwargs)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if self._where is Where.SETUP:
            assert self._board is not None
            return self._board.share(obj)
        return super().broadcast(obj, src) if self._communicates("a broadcast") else obj

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        if self._where is Where.SETUP and sys._getframe(1).f_code is has_len_all_ranks.__code__:
            return tensor  # Lightning asks whether another rank has more batches than this one
        if self._communicates("a reduction"):
            return super().reduce(tensor, group, reduce_op)
        return tensor

    def all_gather(self, tensor: Any, group: Any = None, sync_grads: bool = False) -> Any:
        if self._communicates("a gather"):
            return super().all_gather(tensor, group, sync_grads)
        return tensor

    def reduce_boolean_decision(self, decision: bool, *args: Any, **kwargs: Any) -> bool:
        if self._communicates("a decision of all ranks"):
            return bool(super().reduce_boolean_decision(decision, *args, **kwargs))
        return decision

    def _communicates(self, what: str) -> bool:
        """Return whether there are peers to communicate with.

        Refuse it at places that not all ranks reach.
        """
        if self._where is Where.TAIL:
            self._run._membership.refuse(
                UsageError(
                    f"{what} after the optimizer's step, in on_train_batch_end: another rank may"
                    " have committed this update and will not come to it",
                    hint="communicate in training_step, on_before_optimizer_step or"
                    " on_train_epoch_end",
                )
            )
        if self._where is Where.SETUP:
            self._run._membership.refuse(
                UsageError(
                    f"{what} in front of the first update: a process that replaces another comes"
                    " there alone",
                    hint="communicate in on_train_epoch_start, or in front of trainer.fit",
                )
            )
        return torch.distributed.is_initialized()

    # --- the optimizer ----------------------------------------------------------------------------

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Run forward and backward, then the optimizer without a closure.

        Lightning passes them to the optimizer as one closure. The vote of a step comes before the
        optimizer, when gradients are complete.
        """
        plugin, model = self.precision_plugin, model or self.lightning_module
        if getattr(plugin, "scaler", None) is not None:
            output = plugin.optimizer_step(optimizer, model=model, closure=closure, **kwargs)
        else:
            output = Precision._wrap_closure(plugin, model, optimizer, closure)
            optimizer.step(**kwargs)
        if self._where is Where.STEPS:
            self._where = Where.TAIL
        return output
