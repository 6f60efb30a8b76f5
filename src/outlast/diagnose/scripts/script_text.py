"""Read the text of a training script before anything runs.

The text shows what outlast would refuse, and what it could not keep. For a script without outlast
calls, it shows what a failure costs. Nothing is executed or imported. So what a script does by
names that are made at run time is not seen, nor what other libraries do for it.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from outlast.diagnose.scripts.assignments import last_set
from outlast.diagnose.scripts.carried import carried
from outlast.diagnose.scripts.script_calls import COLLECTIVES, Calls, Module, Remark, last_name
from outlast.diagnose.scripts.script_habits import habits
from outlast.diagnose.scripts.script_loops import training_loop
from outlast.diagnose.scripts.script_plain import (
    REFUSED_OPTIMIZERS,
    adoption,
    communicating_optimizers,
    own_ranks,
    starts_ranks,
)
from outlast.diagnose.scripts.script_saves import after_failure, asked_for

_STARTS = frozenset(
    {"mp.spawn", "multiprocessing.spawn", "multiprocessing.start_processes", "os.fork"}
)
_PROCESSES = frozenset({"Process", "Pool", "ProcessPoolExecutor"})
_OWN_GROUPS = frozenset({"new_group", "new_subgroups", "init_device_mesh"})
_JOIN = frozenset({"outlast.join", "outlast.main", "outlast.lightning.Strategy"})
_WRAPPERS = frozenset({"replicate", "DistributedDataParallel", "DDP"})
_SPLITS = frozenset({"random_split", "train_test_split"})
_SEEDS = frozenset({"manual_seed", "seed_everything", "set_seed", "seed", "manual_seed_all"})
_KEPT = ("optim.", "lr_scheduler.", "GradScaler")  # made by calls whose names hold one of these


@dataclass(frozen=True, slots=True)
class ScriptText:
    """This is what the text of a script shows.

    calls_outlast  the script takes part in the run by itself
    remarks        in the order of lines

    For a script that does not call outlast:

    after_failure  what is done again after a failure
    adoption       the lines that change if it is to call outlast
    starts_ranks   it starts its ranks by itself, whatever its options
    """

    calls_outlast: bool
    remarks: tuple[Remark, ...]
    after_failure: str = ""
    adoption: tuple[Remark, ...] = ()
    starts_ranks: bool = False


def read_script(source: str, others: Mapping[str, str] | None = None) -> ScriptText:
    """Return what the text shows. `others`: texts of modules of the script's own, by file.

    Raises SyntaxError if the script is not valid Python. Other modules that are not are left out.
    """
    script = Module.parsed(source)
    modules = [script, *_parsed(others or {})]
    tree, calls = script.tree, script.calls
    joins = [call for name, call in calls if name in ("outlast.join", "outlast.main")]
    if not joins:
        elsewhere = any(name in _JOIN for one in modules for name, _ in one.calls)
        return ScriptText(True, ()) if elsewhere else _plain(modules)
    alive = _without_dead(modules)
    remarks = [
        *_groups(alive),
        *_old_sharding(alive),
        *_wrapped_twice(tree, calls),
        *_too_early(tree, calls, joins[0].lineno),
        *_before_steps(modules),
        *_unseeded_splits(modules),
        *_refused_optimizers(alive),
        *_forgotten(tree, calls),
        *(remark for module in modules for remark in communicating_optimizers(module)),
        *_carried(source, tree, calls),
        *(Remark(*one) for one in habits(tree, calls, joins[0].lineno)),
    ]
    return ScriptText(True, tuple(sorted(remarks, key=lambda one: one.line)))


def _parsed(others: Mapping[str, str]) -> Iterator[Module]:
    for file, source in others.items():
        with contextlib.suppress(SyntaxError, ValueError):
            yield Module.parsed(source, file)


def _plain(modules: Sequence[Module]) -> ScriptText:
    """Return what a failure costs, and the lines that adopting outlast would change."""
    loop = training_loop(modules)
    after, remarks = after_failure(modules, loop)
    changes = sorted(adoption(modules, loop), key=lambda one: (one.file, one.line))
    starts = False
    for place in starts_ranks(modules):
        # Under `outlast run` such a setting is left out, as under torchrun.
        if asked := asked_for(modules, place):
            after += f" It starts ranks by itself at {place} if {asked}: leave that to outlast run."
        else:
            remarks.insert(0, own_ranks(place))
            starts = True
    return ScriptText(False, tuple(remarks), after, tuple(changes), starts)


# --- scripts that call outlast --------------------------------------------------------------------


def _without_dead(modules: Sequence[Module]) -> Calls:
    """Return the calls of the script, without those in functions that nothing names.

    Such a function is often left over (`def ddp_setup()`). Calls in methods are kept. So are those
    in functions with a decorator, because the decorator may register them elsewhere.
    """
    script = modules[0]
    named = {
        name
        for module in modules
        for node in ast.walk(module.tree)
        for name in (
            [node.id]
            if isinstance(node, ast.Name)
            else [node.attr]
            if isinstance(node, ast.Attribute)
            else [one.name for one in node.names]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    dead = {
        id(inner)
        for node in script.tree.body
        if isinstance(node, ast.FunctionDef) and not node.decorator_list and node.name not in named
        for inner in ast.walk(node)
    }
    return [(name, call) for name, call in script.calls if id(call) not in dead]


def _groups(calls: Calls) -> Iterator[Remark]:
    for name, call in calls:
        if last_name(name) == "init_process_group":
            yield Remark(
                call.lineno,
                "the script makes its process group by itself, which is refused",
                "delete that line: outlast.join() makes the process group",
                used=False,
            )


def _old_sharding(calls: Calls) -> Iterator[Remark]:
    for name, call in calls:
        if last_name(name) == "FullyShardedDataParallel":
            yield Remark(
                call.lineno,
                "FullyShardedDataParallel (FSDP1) is refused",
                "use fully_shard(model, mesh=run.mesh), which is FSDP2, in a function that is given"
                " to outlast.main",
                used=False,
            )


def _wrapped_twice(tree: ast.AST, calls: Calls) -> Iterator[Remark]:
    wraps = [call for name, call in calls if last_name(name) in _WRAPPERS]
    again = {id(one) for call in wraps for one in call.args}
    inner = {id(call) for call in wraps} & again
    outer = [call for call in wraps if inner & {id(one) for one in call.args}]
    for call in [*outer, *_wrapped_by_name(tree, {id(call) for call in wraps})]:
        yield Remark(
            call.lineno,
            "the model is wrapped in DistributedDataParallel twice, which is refused",
            "wrap it once",
        )


def _wrapped_by_name(tree: ast.AST, wraps: set[int]) -> Iterator[ast.Call]:
    """Find calls that wrap a variable which a statement of the same block has wrapped before.

    Statements of two branches, of which one runs, are in two blocks.
    """
    for node in ast.walk(tree):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            wrapped: set[str] = set()
            for statement in block if isinstance(block, list) else ():
                yield from (one for one in _wraps_in(statement, wraps) if wrapped & _given(one))
                if isinstance(statement, ast.Assign):
                    targets = {one.id for one in statement.targets if isinstance(one, ast.Name)}
                    wrapped = (
                        wrapped | targets if id(statement.value) in wraps else wrapped - targets
                    )


def _wraps_in(statement: ast.AST, wraps: set[int]) -> Iterator[ast.Call]:
    """Walk a statement, but not the functions in it, whose names are their own."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    yield from (
        node for node in ast.walk(statement) if isinstance(node, ast.Call) and id(node) in wraps
    )


def _given(call: ast.Call) -> set[str]:
    return {one.id for one in call.args if isinstance(one, ast.Name)}


def _too_early(tree: ast.AST, calls: Calls, joined_at: int) -> Iterator[Remark]:
    """Find processes that are started before outlast.join(), but for pools that are closed again.

    A context of multiprocessing has no name here: `mp.get_context("fork").Process` is `Process`.
    """
    closed = {
        id(item.context_expr)
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for item in node.items
    }
    for name, call in calls:
        short = ".".join(name.split(".")[-2:])
        owner = name.rpartition(".")[0]
        of_processes = last_name(name) in _PROCESSES and (
            not owner
            or owner.startswith(("multiprocessing", "mp", "torch.multiprocessing"))
            or owner == "concurrent.futures"
        )
        started = short in _STARTS or (of_processes and id(call) not in closed)
        if call.lineno < joined_at and started:
            yield Remark(
                call.lineno,
                "processes are started before outlast.join(), and outlast does not know them",
                "leave the number of ranks to `outlast run --nproc-per-node`, and start helpers"
                " behind outlast.join(), where rank 0 alone may do it",
            )


def _before_steps(modules: Sequence[Module]) -> Iterator[Remark]:
    """Find collectives before the loop over run.steps that outlast.main cannot enter again."""
    tree, calls = modules[0].tree, modules[0].calls
    if any(name.endswith(".steps") for one in modules[1:] for name, _ in one.calls):
        return  # the loop is in another module, and what comes before it is not known
    steps = [call.lineno for name, call in calls if name.endswith(".steps")]
    if not steps and any(_uses_an_adapter(one.tree) for one in modules):
        return  # the library's loop is the adapter's
    if not steps:
        yield Remark(
            1,
            "run.steps(...) is never called, so no step is kept",
            "loop by `for step in run.steps(state, until=...)`, with the step in `with step:`",
        )
        return
    if any(name == "outlast.main" for name, _ in calls):
        return
    here = _function_at(tree, steps[0])
    for name, call in calls:
        if (
            name.startswith("torch.distributed.")
            and last_name(name) in COLLECTIVES
            and call.lineno < steps[0]
            # a function that stands above may well be called after
            and _function_at(tree, call.lineno) in (here, None)
        ):
            yield Remark(
                call.lineno,
                f"{last_name(name)} runs before run.steps: a rank that is replaced cannot do it"
                " alone, so after a failure all ranks start the script again",
                "put the training into a function and give it to outlast.main(function)",
            )
        elif (
            name.startswith("torch.distributed.")
            and last_name(name) in _OWN_GROUPS
            and call.lineno < steps[0]
        ):
            yield Remark(
                call.lineno,
                f"{last_name(name)} makes a group that lasts until the ranks next regroup, so after"
                " a failure all ranks start the script again",
                "put it into a function with the training, and give that to outlast.main(function)",
            )


def _unseeded_splits(modules: Sequence[Module]) -> Iterator[Remark]:
    """Find data that is split at random, in a script that sets no seed.

    Then each rank splits it in another way, and a rank that is replaced splits it anew.
    """
    names = {last_name(name) for module in modules for name, _ in module.calls}
    if names & _SEEDS:
        return
    for module in modules:
        for name, call in module.calls:
            seeded = any(one.arg in ("generator", "random_state") for one in call.keywords)
            if last_name(name) in _SPLITS and not seeded:
                yield Remark(
                    call.lineno,
                    f"{last_name(name)} draws before any seed is set, so each rank gets other data,"
                    " and a rank that is replaced does not get the data of its predecessor",
                    "call torch.manual_seed(...) after outlast.join(), or give it a generator with"
                    " a seed",
                    file=module.file,
                )


def _uses_an_adapter(tree: ast.AST) -> bool:
    """Return whether the module imports outlast.hf or outlast.lightning."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = [one.name for one in names]
            case ast.ImportFrom(module="outlast", names=names):
                found = [f"outlast.{one.name}" for one in names]
            case ast.ImportFrom(module=str() as module):
                found = [module]
            case _:
                continue
        if any(one in ("outlast.hf", "outlast.lightning") for one in found):
            return True
    return False


def _function_at(tree: ast.AST, line: int) -> str | None:
    """Return the name of the innermost function that holds the line; None at the top level."""
    names = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return names[-1] if names else None


def _refused_optimizers(calls: Calls) -> Iterator[Remark]:
    for name, call in calls:
        if (short := last_name(name)) in REFUSED_OPTIMIZERS:
            yield Remark(call.lineno, *REFUSED_OPTIMIZERS[short], used=False)


def _forgotten(tree: ast.AST, calls: Calls) -> Iterator[Remark]:
    """Find optimizers, schedulers and scalers that run.state is not given.

    A function that does not call run.state may return what it makes, under whatever name.
    """
    places = {
        _function_at(tree, call.lineno) for name, call in calls if name.endswith(".state")
    } | {None}
    kept = {
        one.id
        for name, call in calls
        if name.endswith(".state")
        for given in [*call.args, *(keyword.value for keyword in call.keywords)]
        for one in ast.walk(given)
        if isinstance(one, ast.Name)
    }
    if any(
        keyword.arg is None
        for name, call in calls
        if name.endswith(".state")
        for keyword in call.keywords
    ):
        return  # run.state(**everything)
    kept |= {
        one.id
        for name, call in calls
        if "lr_scheduler." in name  # a scheduler keeps the schedulers that it is given
        for given in [*call.args, *(keyword.value for keyword in call.keywords)]
        if isinstance(given, ast.List | ast.Tuple)
        for one in given.elts
        if isinstance(one, ast.Name)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if _function_at(tree, node.lineno) not in places:
            continue
        made = next((name for name, call in calls if call is node.value), "")
        for target in node.targets:
            known = not isinstance(target, ast.Name) or target.id in kept or _is_off(node.value)
            if not known and any(part in made for part in _KEPT):
                yield Remark(
                    node.lineno,
                    f"{ast.unparse(target)} is not in run.state(...): a rank that is replaced"
                    " begins with a new one",
                    f"name it there: run.state(..., {ast.unparse(target)}={ast.unparse(target)})",
                    about=ast.unparse(target),
                )


def _is_off(made: ast.Call) -> bool:
    """Return whether this is a GradScaler that is off, which has no state."""
    return any(
        one.arg == "enabled" and isinstance(one.value, ast.Constant) and one.value.value is False
        for one in made.keywords
    )


def _carried(source: str, tree: ast.AST, calls: Calls) -> Iterator[Remark]:
    for name, call in calls:
        if name.endswith(".steps"):
            scope = _function_at(tree, call.lineno) or "<module>"
            for one in carried(source, call.lineno):
                yield Remark(
                    last_set(source, scope, one.name),
                    f"{one.name} is carried from one step to the next, and not kept: line"
                    f" {one.line} reads what an earlier step has set",
                    "draw batches inside `with step:`; keep other values by run.values(...)",
                    about=one.name,
                )
