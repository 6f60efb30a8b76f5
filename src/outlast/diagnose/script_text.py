"""Read the text of a training script before anything runs.

The text shows what outlast would refuse, and what it could not keep. For a script without outlast
calls, it shows what a failure costs. Nothing is executed or imported. So what a script does in
other files, or by names that are made at run time, is not seen.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from outlast.diagnose.assignments import last_set
from outlast.diagnose.carried import carried
from outlast.diagnose.script_habits import habits

COLLECTIVES = frozenset({
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "barrier",
    "broadcast", "broadcast_object_list", "reduce", "reduce_scatter", "scatter", "all_to_all",
})  # fmt: skip
_STARTS = frozenset({"mp.spawn", "multiprocessing.Process", "mp.Process", "os.fork"})
_KEPT = ("optim.", "lr_scheduler.", "GradScaler")  # made by calls whose names hold one of these


@dataclass(frozen=True, slots=True)
class Remark:
    """A line of the script, what is the matter there, and what to do.

    file   another file than the script; "": the script itself
    about  the variable that it is about, if it is about one
    """

    line: int
    what: str
    do: str
    file: str = ""
    about: str = ""


@dataclass(frozen=True, slots=True)
class ScriptText:
    """What the text of a script tells.

    calls_outlast  the script takes part in the run by itself
    remarks        in the order of lines

    For a script that does not call outlast:

    after_failure  what is done again after a failure
    adoption       the lines that change if it is to call outlast
    """

    calls_outlast: bool
    remarks: tuple[Remark, ...]
    after_failure: str = ""
    adoption: tuple[Remark, ...] = ()


def read_script(source: str) -> ScriptText:
    """Return what the text tells. Raises SyntaxError where it is no Python."""
    tree = ast.parse(source)
    calls = sorted(_calls(tree), key=lambda one: one[1].lineno)
    joins = [call for name, call in calls if name in ("outlast.join", "outlast.main")]
    if not joins:
        return _plain(calls, tree)
    remarks = [
        *_groups(calls), *_wrapped_twice(calls), *_too_early(calls, joins[0].lineno),
        *_before_steps(tree, calls), *_closures(calls), *_forgotten(tree, calls),
        *_carried(source, tree, calls),
        *(Remark(*one) for one in habits(tree, calls, joins[0].lineno)),
    ]  # fmt: skip
    return ScriptText(True, tuple(sorted(remarks, key=lambda one: one.line)))


Calls = list[tuple[str, ast.Call]]


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call with its dotted name. Imports under other names are resolved if possible."""
    renamed: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                renamed[one.asname or one.name] = f"{node.module}.{one.name}"
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.asname:
                    renamed[one.asname] = one.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := _dotted(node.func)):
            first, dot, rest = name.partition(".")
            yield renamed.get(first, first) + dot + rest, node


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            inner = _dotted(value)
            return f"{inner}.{attribute}" if inner else attribute
        case _:
            return ""


def _last(name: str) -> str:
    return name.rpartition(".")[2]


# --- scripts that call outlast --------------------------------------------------------------------


def _groups(calls: Calls) -> Iterator[Remark]:
    for name, call in calls:
        if _last(name) == "init_process_group":
            yield Remark(
                call.lineno,
                "the script makes its process group by itself, which is refused",
                "delete that line: outlast.join() makes the process group",
            )


def _wrapped_twice(calls: Calls) -> Iterator[Remark]:
    for name, call in calls:
        inner = [_last(_dotted(one.func)) for one in call.args if isinstance(one, ast.Call)]
        if _last(name) in ("replicate", "DistributedDataParallel") and (
            {"replicate", "DistributedDataParallel", "DDP"} & set(inner)
        ):
            yield Remark(
                call.lineno,
                "the model is wrapped in DistributedDataParallel twice, which is refused",
                "wrap it once",
            )


def _too_early(calls: Calls, joined_at: int) -> Iterator[Remark]:
    for name, call in calls:
        short = ".".join(name.split(".")[-2:])
        if call.lineno < joined_at and (short in _STARTS or name.endswith("multiprocessing.spawn")):
            yield Remark(
                call.lineno,
                "processes are started before outlast.join(), and outlast does not know them",
                "leave the number of processes to `outlast run --nproc-per-node`",
            )


def _before_steps(tree: ast.AST, calls: Calls) -> Iterator[Remark]:
    """Find collectives in front of the loop over run.steps that outlast.main cannot enter again."""
    steps = [call.lineno for name, call in calls if name.endswith(".steps")]
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
            and _last(name) in COLLECTIVES
            and call.lineno < steps[0]
            # a function that stands above may well be called behind
            and _function_at(tree, call.lineno) in (here, None)
        ):
            yield Remark(
                call.lineno,
                f"{_last(name)} runs before run.steps: a rank that is replaced cannot do it alone,"
                " so after a failure all ranks start the script again",
                "put the training into a function and give it to outlast.main(function)",
            )


def _function_at(tree: ast.AST, line: int) -> str | None:
    """Return the name of the innermost function that holds the line; None at the top level."""
    names = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return names[-1] if names else None


def _closures(calls: Calls) -> Iterator[Remark]:
    for name, call in calls:
        if _last(name) == "LBFGS":
            yield Remark(
                call.lineno,
                "LBFGS evaluates the model inside its step, which is refused",
                "use an optimizer whose step() takes no closure, such as AdamW",
            )


def _forgotten(tree: ast.AST, calls: Calls) -> Iterator[Remark]:
    """Find optimizers, schedulers and scalers that run.state is not given."""
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
        made = next((name for name, call in calls if call is node.value), "")
        for target in node.targets:
            known = not isinstance(target, ast.Name) or target.id in kept
            if not known and any(part in made for part in _KEPT):
                yield Remark(
                    node.lineno,
                    f"{ast.unparse(target)} is not in run.state(...): a rank that is replaced"
                    " begins with a new one",
                    f"name it there: run.state(..., {ast.unparse(target)}={ast.unparse(target)})",
                    about=ast.unparse(target),
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


# --- scripts that do not --------------------------------------------------------------------------


# Libraries with a training loop or checkpoints of their own, and how to have them go on.
LIBRARIES = {
    "transformers": "give trainer.train(resume_from_checkpoint=...) its newest checkpoint",
    "lightning": 'call trainer.fit(..., ckpt_path="last") and let it save',
    "pytorch_lightning": 'call trainer.fit(..., ckpt_path="last") and let it save',
    "accelerate": "load by accelerator.load_state(...) what accelerator.save_state(...) has saved",
}
_AGAIN = "After a failure all ranks start the script again"


def _plain(calls: Calls, tree: ast.AST) -> ScriptText:
    """Return what a failure costs, and the lines that adopting outlast would change."""
    saves = [call.lineno for name, call in calls if _last(name) in ("save", "save_checkpoint")]
    loads = [call.lineno for name, call in calls if _last(name) in ("load", "load_checkpoint")]
    adoption = tuple(_adoption(calls, tree))
    library = _library(tree)
    if library:
        where = f"{_AGAIN}; from which step it goes on is up to {library}: {LIBRARIES[library]}."
        return ScriptText(False, (), where, adoption)
    if _training_loop(tree) is None:
        return ScriptText(False, (), f"{_AGAIN}; no training loop is in its text.", adoption)
    if not saves:
        what = "the script saves nothing, so a failure costs all steps"
        do = "save a checkpoint now and then and load it at the start, or adopt outlast"
        remark = Remark(1, what, do)
    elif not loads:
        what = "no load of what is saved here was found, so a failure may cost all steps"
        remark = Remark(saves[0], what, "load it at the start if it is there, or adopt outlast")
    else:
        after = f"{_AGAIN}; it loads its own file at line {loads[0]}, saved at line {saves[0]}."
        return ScriptText(False, (), after, adoption)
    return ScriptText(False, (remark,), f"{_AGAIN}.", adoption)


def _library(tree: ast.AST) -> str:
    """Return the library whose loop the script uses; "" for a loop of its own."""
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [one.name for one in node.names]
        )
    }
    return next((name for name in LIBRARIES if name in imported), "")


def _adoption(calls: Calls, tree: ast.AST) -> Iterator[Remark]:
    for name, call in calls:
        if _last(name) == "init_process_group":
            yield Remark(call.lineno, "the process group", "run = outlast.join()")
        elif _last(name) == "DistributedDataParallel":
            yield Remark(call.lineno, "the model", "model = run.replicate(model)")
    loop = _training_loop(tree)
    if loop is not None:
        yield Remark(loop, "the loop", "for step in run.steps(state, until=...):  with step: ...")


def _training_loop(tree: ast.AST) -> int | None:
    """Return the outermost loop in which backward is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While) and any(
            isinstance(one, ast.Call) and _last(_dotted(one.func)) == "backward"
            for one in ast.walk(node)
        ):
            return node.lineno
    return None
