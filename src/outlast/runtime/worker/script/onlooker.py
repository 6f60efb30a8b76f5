"""Observe a script before its first outlast call, or a script without outlast calls.

steps   torch calls a hook after every `optimizer.step()`. Several optimizers that take turns make
        one step together (iterations.py). If the optimizer keeps a count (Adam's `step`), and no
        other one has done steps of the run, the count says which step that was, even after the
        script has loaded the state of the optimizer from a checkpoint of its own. Otherwise, or if
        the count begins anew, steps are counted from the step after which this run saved the file
        that the script has loaded, and from 0 if the script has loaded nothing (own_saves.py). If
        that is not known either, they are counted from the process's start, and it is not known
        which steps of the run they are.
spawns  the line at which the script starts ranks of its own, by torch.multiprocessing.
group   the line at which the script makes its process group, and whether several ranks train
        without one. Then each rank trains a model of its own. Before the script destroys the group,
        its threads are waited for (run_loops.py).

The hooks are set when the script imports torch, so that a script without torch pays nothing.
`retire` ends the observation: from `outlast.join` on, the transaction counts the steps.

Not seen: steps of a process that the script starts itself, and updates that call no torch
optimizer.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from outlast.engine.protocol.outputs import Output
from outlast.engine.protocol.worker import WorkerMachine
from outlast.errors import UsageError
from outlast.model.beacon import Beacon
from outlast.model.terms import Cause, Phase
from outlast.runtime import clock
from outlast.runtime.child import ChildSpec
from outlast.runtime.worker.script import run_loops
from outlast.runtime.worker.script.iterations import Iterations
from outlast.runtime.worker.script.own_saves import OwnSaves

_OPTIMIZER = "torch.optim.optimizer"
_GROUPS = "torch.distributed.distributed_c10d"
_FILES = "torch.serialization"
_SAFETENSORS = "safetensors.torch"
_MODULES = "torch.nn.modules.module"
_SPAWN = "torch.multiprocessing.spawn"
GROUP_HINT = (
    "delete that line: outlast.join() makes the process group, and again after each failure"
)


_STEPS_TO_BE_SURE = 2  # a step may come before the group, as a trial


def ungrouped_hint() -> str:
    """Return what lets ranks train together, for the libraries that the script has imported."""
    for library, given in (
        ("transformers.trainer", "TrainingArguments(use_cpu=True)"),
        ("accelerate", "Accelerator(cpu=True)"),
    ):
        if library in sys.modules:
            return f"give {given} where there is no GPU"
    return "wrap it in DistributedDataParallel, or in run.replicate after outlast.join()"


class WatchedRank(Protocol):
    """The rank's session (session.py), as far as the onlooker uses it.

    The session owns the onlooker.
    """

    spec: ChildSpec
    machine: WorkerMachine

    @property
    def beacon(self) -> Beacon: ...

    def do(self, act: Callable[[WorkerMachine], list[Output] | None]) -> None: ...

    def enter(self, phase: Phase, *, cause: Cause | None = None) -> float: ...

    def mark(self, name: str, step: int) -> None: ...

    def warn(self, text: str) -> None: ...

    def refuse(self, error: BaseException, exit_code: int) -> None: ...


class Onlooker:
    """Watch one process from its start until `retire`.

    made_at    the line that made the process group; "" while there is none
    joined     outlast.join was called
    ticks      calls of outlast.tick
    """

    def __init__(self, session: WatchedRank) -> None:
        self.made_at = ""
        self.joined = False
        self._session = session
        self._pid = os.getpid()
        self.ticks = 0
        self._iterations = Iterations()
        self._base: int | None = None  # the step before the first one; None: it is not known
        self._handle: Any = None
        self._saves = OwnSaves(session.spec.run_folder)

    def begin(self) -> None:
        """Set the hooks, now or when the script imports torch."""
        for name, act in (
            (_OPTIMIZER, self._on_optimizers),
            (_GROUPS, self._on_groups),
            (_FILES, self._on_files),
            (_SAFETENSORS, self._on_safetensors),
            (_MODULES, self._on_modules),
            (_SPAWN, self._on_spawn),
        ):
            if name in sys.modules:
                act(sys.modules[name])
            else:
                sys.meta_path.insert(0, _Arrival(name, act))

    def retire(self) -> None:
        """Stop: the script calls outlast, and the transaction counts its steps from here on."""
        self.joined = True
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._session.beacon.step = 0
        self._saves.forget_parts()

    # --- steps ------------------------------------------------------------------------------------

    def _on_optimizers(self, module: types.ModuleType) -> None:
        if not self.joined and not self.ticks:
            self._handle = module.register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: Any, args: object, kwargs: object) -> None:
        """Count one call. Several optimizers that take turns (a GAN's) make one step."""
        if os.getpid() != self._pid or self.joined:
            return
        iterations = self._iterations
        if optimizer not in iterations and _makes_room_for_state():
            # this is torch's own call, before it loads or reads the state of an optimizer that has
            # none
            return
        before = iterations.count
        if not before:
            self._base = self._behind(_own_number(optimizer))
            self._saves.forget_parts()
            if not self._begun:
                self._saves.on_first_step()
        iterations.stepped(optimizer)
        if not iterations.by_own:
            self._saves.on_other_count()
        count = iterations.count
        if before < count == _STEPS_TO_BE_SURE:
            self._warn_if_ungrouped()
        self._count((self._base or 0) + count, known=self._base is not None, count=count)

    def _behind(self, number: int | None) -> int | None:
        """Return the step of the run from which this process goes on; None: not known.

        number   the optimizer's own count after its first call in this process; None: it keeps none
        """
        if number is None:
            return self._saves.behind()
        if number > 1:
            return self._saves.behind_by_count(number)
        # The optimizer is new, but the script may have loaded its weights all the same.
        return self._saves.behind_by_weights(begun=self._begun)

    @property
    def _begun(self) -> bool:
        """Return whether the run has done steps before this process."""
        plan = self._session.machine.plan
        return plan is not None and plan.high_water > 0

    def _warn_if_ungrouped(self) -> None:
        """Warn if several ranks train, and none can know of another."""
        plan, groups = self._session.machine.plan, sys.modules.get(_GROUPS)
        if plan is None or plan.world_size == 1 or self._session.beacon.rank != 0:
            return
        if self.made_at or (groups is not None and groups.is_initialized()):
            return
        self._session.warn(
            f"the script has made no process group, so each of the {plan.world_size} ranks trains a"
            f" model of its own. If they are to train one model, {ungrouped_hint()}"
        )

    def tick(self, step: int | None) -> None:
        """Count one iteration that the script reports. From here on optimizer calls do not count.

        `step` is its number from 1, or None if the script does not give it.
        """
        if os.getpid() != self._pid or self.joined:
            return
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self.ticks += 1
        if self.ticks == 1:
            self._base = None if step is None else step - 1
        number = self.ticks if step is None else step
        self._count(number, known=step is not None, count=self.ticks)

    def _count(self, step: int, *, known: bool, count: int) -> None:
        """Note that `step` is done. `known`: the script's own checkpoints carry that number on."""
        session, now_s = self._session, clock.now_s()
        session.do(lambda machine: machine.note_stepped(step=step if known else 0, now_s=now_s))
        session.beacon.step = step
        session.enter(Phase.BOOT, cause=self._cause_after(step))
        session.mark("stepped", count)
        if (trial := sys.modules.get("outlast.runtime.worker.trials.trial")) is not None:
            trial.stepped(session.beacon.rank, step, known=known, count=count)

    def _cause_after(self, step: int) -> Cause:
        """Return what the next step is: new, done before, or not known."""
        plan = self._session.machine.plan
        done_before = 0 if plan is None else plan.high_water
        if done_before and self._base is None:
            return Cause.OTHER
        return Cause.PRODUCTIVE if step >= done_before else Cause.REPEATED

    # --- files of the script's own ----------------------------------------------------------------

    def _on_files(self, module: types.ModuleType) -> None:
        self._note_files(module, "save", "load", file="f", found_in="torch")

    def _on_safetensors(self, module: types.ModuleType) -> None:
        # save_model and load_model of safetensors call these two
        self._note_files(module, "save_file", "load_file", file="filename", found_in=_SAFETENSORS)

    def _note_files(
        self, module: types.ModuleType, saves: str, loads: str, *, file: str, found_in: str
    ) -> None:
        """Note the files that two functions of a library save and load.

        file   the name of the parameter for the file. It is the second one of the function that
               saves, and the first one of the function that loads
        """
        save, load = getattr(module, saves), getattr(module, loads)

        @functools.wraps(save)
        def noting_save(*args: Any, **kwargs: Any) -> None:
            step = self._session.beacon.step  # a thread may save while the script trains on
            save(*args, **kwargs)
            self._saved(args[1] if len(args) > 1 else kwargs.get(file), step)

        @functools.wraps(load)
        def noting_load(*args: Any, **kwargs: Any) -> Any:
            loaded = load(*args, **kwargs)
            self._loaded(args[0] if args else kwargs.get(file), loaded)
            return loaded

        _replace(module, saves, noting_save, found_in)
        _replace(module, loads, noting_load, found_in)

    def _saved(self, where: Any, step: int) -> None:
        """Note that the script has saved a file. Before its first step there is nothing to note.

        step   the newest step when the save began
        """
        if not self.joined and os.getpid() == self._pid and self._iterations.count:
            self._saves.on_save(where, step=step)

    def _loaded(self, where: Any, loaded: Any) -> None:
        """Note that the script has loaded a file. After its first step, that does not matter."""
        if not self.joined and os.getpid() == self._pid and not self._iterations.count:
            self._saves.on_load(where, loaded)

    def _on_modules(self, module: types.ModuleType) -> None:
        give, load = module.Module.state_dict, module.Module.load_state_dict

        # torch itself calls them with self as a keyword, too
        @functools.wraps(give)
        def noting_give(self: Any, *args: Any, **kwargs: Any) -> Any:
            given = give(self, *args, **kwargs)
            if looks() and not args and kwargs.get("destination") is None:
                saves.on_own_weights(given)  # of a whole module, and not of one of its children
            return given

        @functools.wraps(load)
        def noting_load(self: Any, *args: Any, **kwargs: Any) -> Any:
            if looks():
                saves.on_weights(args[0] if args else kwargs.get("state_dict"))
            return load(self, *args, **kwargs)

        def looks() -> bool:
            return not self.joined and not self._iterations.count and os.getpid() == self._pid

        saves = self._saves
        module.Module.state_dict = noting_give
        module.Module.load_state_dict = noting_load

    # --- ranks that the script starts itself ------------------------------------------------------

    def _on_spawn(self, module: types.ModuleType) -> None:
        original = module.start_processes

        @functools.wraps(original)
        def start_processes(fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **kw: Any) -> Any:
            if not self.joined and nprocs > 1 and os.getpid() == self._pid:
                self._session.warn(
                    f"{_user_line()}: the script starts {nprocs} processes by itself, in each rank"
                    " of this run. Their steps are not seen. Call the function in the script, with"
                    " RANK and WORLD_SIZE, and leave the number of ranks to `outlast run"
                    " --nproc-per-node`"
                )
            return original(fn, args, nprocs, *more, **kw)

        _replace(module, "start_processes", start_processes, "torch.multiprocessing")

    # --- the process group ------------------------------------------------------------------------

    def _on_groups(self, module: types.ModuleType) -> None:
        original = module.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            line = _user_line()
            if self.joined and module.is_initialized() and not _is_ours():
                error = UsageError(
                    f"{line}: init_process_group is called after outlast.join()", hint=GROUP_HINT
                )
                self._session.refuse(error, error.exit_code)
                raise error
            original(*args, **kwargs)
            self.made_at = self.made_at or line

        _replace(module, "init_process_group", init_process_group)
        _replace(module, "destroy_process_group", _destroying_quietly(module.destroy_process_group))


def _destroying_quietly(original: Callable[..., None]) -> Callable[..., None]:
    """Return torch's `destroy_process_group`, which first waits for the group's threads.

    After it, a DDP module may hold the last reference to the group (see run_loops.py).
    """

    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        run_loops.wait_until_quiet()
        original(*args, **kwargs)

    return destroy_process_group


def _replace(
    module: types.ModuleType,
    name: str,
    function: Callable[..., Any],
    found_in: str = "torch.distributed",
) -> None:
    """Replace a function where it is defined, and in the package in which scripts find it."""
    original = getattr(module, name)
    setattr(module, name, function)
    package = sys.modules.get(found_in)
    if package is not None and getattr(package, name, None) is original:
        setattr(package, name, function)


def _own_number(optimizer: Any) -> int | None:
    """Return the step that an optimizer has just done, by its own count.

    None: it does not count.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            count = optimizer.state.get(parameter, {}).get("step")
            if count is not None:
                return int(count)
    return None


def _makes_room_for_state() -> bool:
    """Return True inside `get_state_dict` and similar functions of torch.distributed.checkpoint.

    They call `optimizer.step()` once, with a learning rate of 0, so that it creates its state.
    """
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "_init_optim_state":
            return True
        frame = frame.f_back
    return False


def _user_line() -> str:
    # torch is imported by now, and hooks needs it
    from outlast.runtime.worker.script import hooks  # tidy: a worker without torch never comes here

    return hooks.user_line() or "the script"


def _is_ours() -> bool:
    """Return True if outlast's own code creates the group."""
    ours = os.path.dirname(os.path.dirname(__file__)) + os.sep
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and "/torch/" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(ours)


class _Arrival(importlib.abc.MetaPathFinder):
    """Call `act` with the module `name` once it has been imported."""

    def __init__(self, name: str, act: Callable[[types.ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            load(module)
            self._act(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
