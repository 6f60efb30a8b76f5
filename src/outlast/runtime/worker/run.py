"""What a script holds: `Run`, and the functions that give one.

    join()   ask the launcher for a place in the run (or run alone); builds the process group
    main(f)  run f(run), and again where a rung of the ladder asks for it

A script started by `outlast run` is fenced and healed. The same script started by `python` runs
alone; started by torchrun it runs on torchrun's process group. Neither is healed then: a step is
just a step.
"""

from __future__ import annotations

import gc
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeVar

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from outlast.diagnose.carried import carried
from outlast.errors import OutlastError, Reenter, UsageError
from outlast.model.texts import some
from outlast.runtime import linux
from outlast.runtime.worker import ddp, devices, session
from outlast.runtime.worker.membership import Membership
from outlast.runtime.worker.phase import Attempt, attempts
from outlast.runtime.worker.state import State
from outlast.runtime.worker.step import Step
from outlast.runtime.worker.transaction import Transaction
from outlast.runtime.worker.values import Values

T = TypeVar("T")


class Run:
    """One rank's view of the run.

    A hot spare parks, until it has a rank, where the script reads `rank`, `local_rank`, `device`
    (where it depends on the rank) or `mesh`, and in front of its collectives, process groups and
    meshes before `steps`.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._mesh: DeviceMesh | None = None
        self._transaction: Transaction | None = None

    @property
    def rank(self) -> int:
        return self._membership.rank()

    @property
    def local_rank(self) -> int:
        return self._membership.local_rank()

    @property
    def world_size(self) -> int:
        return self._membership.world_size

    @property
    def generation(self) -> int:
        """The membership this process is in; grows by one at each regroup. 0 without
        `outlast run`.
        """
        return self._membership.generation

    @property
    def device(self) -> torch.device:
        """This rank's device: its GPU where there are any, else the CPU.

        It is the current device of this process from `join` on, and before any group is built.
        Local ranks share GPUs in turn where there are fewer GPUs than ranks.
        """
        return devices.of(self.local_rank if torch.cuda.is_available() else 0)

    @property
    def mesh(self) -> DeviceMesh:
        """All ranks in one dimension, named "world"; for `fully_shard(model, mesh=run.mesh)`."""
        if self._mesh is None:
            self._mesh = self.device_mesh((self.world_size,), ("world",))
        return self._mesh

    def device_mesh(self, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
        """A mesh over all ranks, e.g.

        `((2, 2), ("replicate", "shard"))` for HSDP. Make it inside the function given to `main`:
        each generation has its own.
        """
        self._membership.ensure_group()
        with self._membership.guards.ours():
            return init_device_mesh(self.device.type, shape, mesh_dim_names=names)

    def replicate(self, model: torch.nn.Module, **ddp_kwargs: Any) -> DistributedDataParallel:
        """`model` under DistributedDataParallel, on the run's process group.

        The keyword arguments are DDP's own.

        In a spare, and in a process that replaces another, this does not communicate: weights come
        at run.steps.
        """
        return ddp.wrap(model.to(self.device), **ddp_kwargs)

    def state(self, **named: Any) -> State:
        """Name what must survive: modules, optimizers, schedulers, grad scalers, loaders, anything
        with state_dict and load_state_dict.

        Random state (Python, NumPy, torch) is taken along by itself. Raises StateError for what
        cannot be saved.
        """
        with self._membership.refusing():
            return State(**named)

    def values(self, **values: Any) -> Values:
        """Plain values that the loop carries from step to step, such as the best loss so far.

        Give what this returns to run.state, and set its attributes: see `Values`.
        """
        return Values(**values)

    def steps(
        self, state: State, *, until: int, accumulate: int = 1, log_every: int = 10
    ) -> Iterator[Step]:
        """Yield a `Step` for each optimizer update up to and including step `until`; a step that is
        interrupted is yielded again.

        until        the number of the last step; steps count from 1, also over restarts
        accumulate   micro-batches per step: `step.batches` has that many
        log_every    rank 0 prints what `step.log` was given, every so many steps; 0: never

        It may be called again with the same state, to train in legs: step numbers go on, so a leg
        `until=100` after one `until=40` is steps 41 to 100. A process that replaces another runs
        the script from its beginning, and passes over legs that are behind the run: what lies
        between two legs must be the same then as it was before. A rank may `break` out of the loop
        if all ranks do at the same step. Not promised: that a rank which is lost after a `break`
        comes back behind it.
        """
        before = self._transaction
        if before is not None and before.state is not state:
            with self._membership.refusing():
                raise UsageError(
                    "run.steps(...) was called again with another state",
                    hint="name everything that is trained in one run.state(...)",
                )
        if before is None:
            before = self._transaction = Transaction(
                self._membership, state, accumulate=accumulate, log_every=log_every
            )
            self._warn_of_carried(sys._getframe(1))
        else:
            before.call_again(accumulate=accumulate, log_every=log_every)
        return before.steps(until)

    def phase(self, name: str) -> Iterator[Attempt]:
        """`for attempt in run.phase("evaluate"): with attempt: ...`: work between steps that is
        repeated when interrupted, under its own deadline.
        """
        if self._transaction is None:
            raise UsageError(
                "run.phase(...) before run.steps(...)",
                hint="a phase lies between steps; work before the first step needs none",
            )
        return attempts(self._transaction, name)

    def _warn_of_carried(self, loop: FrameType) -> None:
        """Name the variables of the loop that a rank which is replaced would not have."""
        if self._membership.session is None:
            return
        path = loop.f_code.co_filename
        source = "".join(linecache.getlines(path, loop.f_globals))
        if found := carried(source, loop.f_lineno):
            names = some([f"{one.name} (line {one.line})" for one in found])
            are = "is" if len(found) == 1 else "are"
            self._membership.session.warn(
                f"{path}:{loop.f_lineno}: {names} {are} carried from one step to the next, and not"
                " kept: a rank that is replaced begins anew there, so its results may differ. Draw"
                " batches inside `with step:`, and keep plain values by run.values(...)"
            )

    def _forget(self) -> None:
        """Before the function is entered again: nothing of the old model may live on (trap 16)."""
        if self._transaction is not None:
            self._transaction.drop()
        self._transaction = None
        self._mesh = None


def join() -> Run:
    """Take part in the run: rank, world size, device and process group are known after this.

    May be called again; gives the same Run.
    """
    global _run
    if _run is None:
        _run = Run(Membership.of(session.current(), reenters=_in_main))
    return _run


def main(function: Callable[[Run], T]) -> T:
    """Run `function(run)`; enter it again, in the same process, where survivors of a failure must
    rebuild their model.

    Everything that the function makes (model, optimizer, loader) must be made inside it. What it
    returns is returned.
    """
    global _in_main
    _in_main = True
    run = join()
    while True:
        try:
            return function(run)
        except Reenter as left:
            _let_go(left)
        except OutlastError:
            raise
        except Exception as error:  # boundary: the user's function
            plan = run._membership.left_function(error)
            if plan is None:
                raise
            if run._transaction is not None:
                run._transaction.hand_over_and_leave(plan)
            _let_go(error)
        run._forget()
        gc.collect()
        linux.trim_heap()
        run._membership.reenter()


def _let_go(error: BaseException) -> None:
    """Free what the function's frames hold."""
    while error.__context__ is not None or error.__cause__ is not None:
        inner = error.__context__ or error.__cause__
        assert inner is not None
        traceback.clear_frames(inner.__traceback__)
        error.__context__, error.__cause__ = None, None
        error = inner
    traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None


_run: Run | None = None
_in_main = False
