"""`Run` is the object that a training script works with. Two functions provide it.

    join()   asks the launcher for a rank, builds the process group, and returns the Run
    main(f)  calls f(run), and calls it again if a recovery needs that

`outlast run` starts the script once for each rank, and recovers the run from failures. The same
script started by `python` runs alone, and started by torchrun it runs on torchrun's process group.
In these two cases nothing is recovered, and a step is an ordinary training step.
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

from outlast.diagnose.scripts.carried import carried
from outlast.errors import OutlastError, Reenter, UsageError
from outlast.model.texts import some
from outlast.runtime import linux
from outlast.runtime.worker.communication import ddp
from outlast.runtime.worker.data.drawn_batches import DrawnBatches
from outlast.runtime.worker.instructions import run_ends_folder
from outlast.runtime.worker.member import session
from outlast.runtime.worker.member.membership import Membership
from outlast.runtime.worker.process import devices
from outlast.runtime.worker.process.phase import Attempt, attempts
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.run_state.values import Values
from outlast.runtime.worker.steps.step import Step
from outlast.runtime.worker.steps.transaction import Transaction
from outlast.runtime.worker.trials import run_ends, trial

T = TypeVar("T")


class Run:
    """One rank's view of the run: its rank and device, the state it keeps, and its steps.

    `outlast.join()` returns it, and `outlast.main(f)` passes it to `f`. Scripts do not construct
    it.

        run = outlast.join()
        model = run.replicate(Net())
        optimizer = torch.optim.AdamW(model.parameters())
        state = run.state(model=model, optimizer=optimizer, loader=loader)
        for step in run.steps(state, until=1_000):
            with step:
                loss = model(step.batch).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    A Run lives as long as its process. A regroup changes `generation`, and a process that survives
    keeps its rank. A hot spare has no rank yet. It waits for one when the script reads `rank`,
    `local_rank`, `mesh`, or a `device` that depends on the rank. It also waits before any
    collective, process group or mesh that the script makes before `steps`.

    State that is not named in `state` is lost with its process, except the random state of Python,
    NumPy and torch. Without `outlast run` nothing is recovered.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._mesh: DeviceMesh | None = None
        self._transaction: Transaction | None = None

    @property
    def rank(self) -> int:
        """Return this process's index in the world, from 0. A spare waits here for its rank."""
        return self._membership.rank()

    @property
    def local_rank(self) -> int:
        """Return this process's index on its node, from 0. A spare waits here for its rank."""
        return self._membership.local_rank()

    @property
    def world_size(self) -> int:
        """Return the number of ranks in the current generation, an int."""
        return self._membership.world_size

    @property
    def generation(self) -> int:
        """Return the number of the current membership. It grows by one at each regroup.

        It is 0 without `outlast run`.
        """
        return self._membership.generation

    @property
    def device(self) -> torch.device:
        """Return this rank's `torch.device`: its GPU if the node has any, else the CPU.

        `join` makes it the current device of this process before any group is built. With fewer
        GPUs than ranks on a node, local rank r gets GPU r modulo their number.
        """
        return devices.of(self.local_rank if torch.cuda.is_available() else 0)

    @property
    def mesh(self) -> DeviceMesh:
        """Return a mesh of all ranks in one dimension, named "world".

        Use it as in `fully_shard(model, mesh=run.mesh)`. Read it inside the function given to
        `main`, because each generation has a mesh of its own.
        """
        if self._mesh is None:
            self._mesh = self.device_mesh((self.world_size,), ("world",))
        return self._mesh

    def device_mesh(self, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
        """Return a mesh over all ranks.

            mesh = run.device_mesh((2, 2), ("data", "tensor"))
            fully_shard(model, mesh=mesh["data"])
            sampler = outlast.StepSampler(dataset, batch_size=64, mesh=mesh["data"])

        `shape` has the size of each dimension, and their product is the world size. `names` has a
        name for each dimension. Make the mesh inside the function given to `main`, because each
        generation has meshes of its own.
        """
        self._membership.ensure_group()
        with self._membership.guards.ours():
            return init_device_mesh(self.device.type, shape, mesh_dim_names=names)

    def replicate(self, model: torch.nn.Module, **ddp_kwargs: Any) -> DistributedDataParallel:
        """Move `model` to this rank's device, and wrap it in DistributedDataParallel.

        The wrapper uses the run's process group. `ddp_kwargs` are the keyword arguments of
        DistributedDataParallel itself.

        In a spare, and in a process that replaces another, this call does not communicate. Such a
        process receives its weights when `steps` is called.
        """
        return ddp.wrap(model.to(self.device), **ddp_kwargs)

    def state(self, **named: Any) -> State:
        """Name everything that must survive a failure, and return it as a `State`.

            state = run.state(model=model, optimizer=optimizer, loader=loader)

        The arguments are modules, optimizers, schedulers, grad scalers, one DataLoader (or what
        `draw` returned), random generators, and objects with `state_dict` and `load_state_dict`. An
        argument that is None is left out. The random state of Python, NumPy and torch is always
        kept and needs no name.

        It raises StateError for anything that cannot be saved. That also ends the run, because
        every rank runs the same script.
        """
        with self._membership.refusing():
            return State(**named)

    def values(self, **values: Any) -> Values:
        """Return an object for plain values that the loop carries from step to step.

            kept = run.values(best=1e9, patience=0)
            state = run.state(model=model, optimizer=optimizer, kept=kept)

        Each argument becomes an attribute with its first value. Values are numbers, texts, None,
        tensors, arrays, and lists, tuples, sets or dicts of these. A tensor must not carry a graph:
        keep `hidden.detach()`. The values are kept only if the object is given to `run.state`.
        Setting an attribute that was not named here raises StateError.
        """
        return Values(**values)

    def draw(
        self,
        function: Callable[..., Any],
        *,
        numbered: bool = False,
        mesh: DeviceMesh | None = None,
    ) -> DrawnBatches:
        """Return an object that draws batches by calling `function`. Give it to `run.state`.

            batches = run.draw(lambda: get_batch("train"))
            state = run.state(model=model, optimizer=optimizer, batches=batches)
            for step in run.steps(state, until=1_000):
                with step:
                    x, y = step.batch

        Each rank draws batches of its own. They depend on the seed given to `torch.manual_seed`, on
        the rank and on the number of the batch. So a rank that is replaced draws the same batches.
        That is promised only for random numbers of Python, NumPy and torch's CPU generator; see
        `DrawnBatches`.

        numbered   True: call `function(number)`, with numbers from 0, instead of `function()`
        mesh       the dimensions of a mesh that split the data, as for `StepSampler`; ranks that
                   differ only in other dimensions draw the same batches

        `batches.prefetch()`, inside a step, draws the next batch while the device computes.
        """
        return DrawnBatches(function, numbered=numbered, mesh=mesh)

    def steps(
        self,
        state: State,
        *,
        until: int,
        first: int = 1,
        accumulate: int = 1,
        log_every: int = 10,
    ) -> Iterator[Step]:
        """Yield a `Step` for each optimizer update up to and including step `until`.

        A step that is interrupted is yielded again.

        state        what `run.state(...)` returned; always the same object
        until        the number of the last step; steps count from 1, also over restarts
        first        the number of the first step, for a script that has loaded the state of step
                     `first - 1` from a file of its own. It is ignored once the run has state of its
                     own
        accumulate   the number of micro-batches in a step: `step.batches` has that many
        log_every    rank 0 prints the values of `step.log` once in this many steps; 0 means never

        `steps` may be called again with the same state. Step numbers go on: a call with `until=100`
        after one with `until=40` yields the steps 41 to 100. A process that replaces another runs
        the script from its beginning, and skips the calls that the run has finished. What the
        script does between two calls must therefore have the same result each time.

        A script that resumes from its own file gives the next step as `first`:

            for step in run.steps(state, first=saved["step"] + 1, until=1_000):

        A loader over `StepSampler` or `run.draw` then begins with the batches of that step. Every
        other loader, and the random state, stay as the script has left them.

        A rank may `break` out of the loop if all ranks do so at the same step. It is not promised
        that a rank which is lost after its `break` comes back to that place.

        It raises UsageError if it is called with another state, or if ranks give different `first`.
        It raises TransactionError if the block of a step was not entered.
        """
        if first < 1:
            with self._membership.refusing():
                raise UsageError(f"run.steps(first={first})", hint="steps count from 1")
        before = self._transaction
        if before is not None and before.state is not state:
            with self._membership.refusing():
                raise UsageError(
                    "run.steps(...) was called again with another state",
                    hint=(
                        "name everything that is trained in one run.state(...), and go through"
                        " all stages in one loop: step.number says which one it is"
                    ),
                )
        if before is None:
            before = self._transaction = Transaction(
                self._membership, state, accumulate=accumulate, log_every=log_every, first=first
            )
            self._warn_of_carried(sys._getframe(1))
        else:
            before.call_again(accumulate=accumulate, log_every=log_every)
        if (tried := trial.current()) is not None and self._membership.session is not None:
            return tried.watch(before, before.steps(tried.last_step(until)), until=until)
        if (folder := run_ends_folder.asked()) and self._membership.session is not None:
            return run_ends.watched(before, before.steps(until), folder)
        return before.steps(until)

    def phase(self, name: str) -> Iterator[Attempt]:
        """Yield attempts at a piece of work between two steps, such as an evaluation, until one
        succeeds.

            for attempt in run.phase("evaluate"):
                with attempt:
                    accuracy = evaluate(model)

        All ranks vote at the end of the block, and an interrupted attempt is repeated as a whole. A
        phase has a deadline of its own for hangs. It raises UsageError if it is called before
        `steps`.
        """
        if self._transaction is None:
            raise UsageError(
                "run.phase(...) before run.steps(...)",
                hint="a phase lies between steps; work before the first step needs none",
            )
        return attempts(self._transaction, name)

    def _warn_of_carried(self, loop: FrameType) -> None:
        """Warn of variables that carry a value from one step to the next and are not kept.

        A rank that is replaced would not have their values.
        """
        if self._membership.session is None:
            return
        path = loop.f_code.co_filename
        source = "".join(linecache.getlines(path, loop.f_globals))
        if found := carried(source, loop.f_lineno):
            self._membership.script.carried = frozenset(one.name for one in found)
            names = some([f"{one.name} (line {one.line})" for one in found])
            are = "is" if len(found) == 1 else "are"
            self._membership.session.warn(
                f"{path}:{loop.f_lineno}: {names} {are} carried from one step to the next, and not"
                " kept: a rank that is replaced starts over there, so its results may differ. Draw"
                " batches by run.draw(...) or inside `with step:`, and keep other values by"
                " run.values(...)"
            )

    def _forget(self) -> None:
        """Drop the old model's state before main's function is entered again (trap 16)."""
        if self._transaction is not None:
            self._transaction.drop()
        self._transaction = None
        self._mesh = None


def join() -> Run:
    """Take part in the run, and return this process's `Run`.

        run = outlast.join()

    Rank, world size, device and process group are known afterwards. Call it before anything that
    communicates. Later calls return the same object.

    Without `outlast run` the process runs alone, or on torchrun's process group. Under `outlast
    run`, it raises UsageError if the script has called `init_process_group` itself. Remove that
    call.
    """
    global _run
    if _run is None:
        _run = Run(Membership.of(session.current(), reenters=_in_main))
    return _run


def joined() -> bool:
    """Return whether `join` was called in this process."""
    return _run is not None


def main(function: Callable[[Run], T]) -> T:
    """Call `function(run)`, and return what it returns.

        def train(run: outlast.Run) -> None:
            model = run.replicate(Net())
            ...

        outlast.main(train)

    After some failures the survivors must rebuild their model, for example under `fully_shard`. The
    function is then called again in the same process, which is faster than starting a new process.
    So create everything that belongs to the training inside the function: model, optimizer, loader
    and meshes.

    If the function raises, the launcher decides whether to recover. If the launcher does not
    recover, `main` raises that error. Effects of the function outside of `run.state(...)`, such as
    files, are not undone.
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
    """Clear the frames of the error's traceback, which keep the old model alive."""
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
