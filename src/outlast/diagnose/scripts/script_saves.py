"""What a failure costs a script that makes no outlast call, by the lines that save and load.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from outlast.diagnose.scripts.script_calls import Module, Remark, SourcePlace, last_name
from outlast.diagnose.scripts.script_plain import LIBRARIES, library_of

_AGAIN = "After a failure all ranks start the script again"
_NO_LOOP = "No training loop was found in its text."
_SAVES = ("save", "save_checkpoint")
_LOADS = ("load", "load_checkpoint")
_SURELY = ("torch.", "dcp.")  # what these save and load is a checkpoint, or weights
# What these load and save is a configuration, data, a picture or memory.
_OTHERS = (
    "json",
    "yaml",
    "numpy",
    "np",
    "tomllib",
    "toml",
    "OmegaConf",
    "omegaconf",
    "hub",
    "plt",
    "image",
    "img",
    "fig",
    "triton",  # a kernel loads from memory
)

_WORDS = ("resume", "load", "ckpt", "checkpoint", "restore", "continue")  # of a setting


def after_failure(modules: Sequence[Module], loop: SourcePlace | None) -> tuple[str, list[Remark]]:
    """Return what is done again after a failure, and what should be changed about that."""
    library = library_of(modules)
    if library:
        return f"{_AGAIN}; from which step it goes on is up to {library}: {LIBRARIES[library]}.", []
    saves, loads = _called(modules, _SAVES), _called(modules, _LOADS)
    training = _that_train(modules, loop)
    late = [one for one in loads if _is_behind(modules, loop, training, one)]
    loads = [one for one in loads if one not in late]
    if saves and loads:
        asked = asked_for(modules, loads[0])
        only = f" if {asked}" if asked else ""
        found = f"{_AGAIN}; it loads its own file at {loads[0]}{only}, saved at {saves[0]}."
        return found if loop else f"{found} {_NO_LOOP}", []
    if loop is None:
        return f"{_AGAIN}; no training loop is in its text.", []
    if not saves:
        what = "no line that saves anything was found, so a failure costs all steps"
        do = "save a checkpoint now and then and load it at the start, or adopt outlast"
        return f"{_AGAIN}.", [Remark(1, what, do)]
    if late:
        what = "this is loaded only after the training, so a failure may cost all steps"
        return f"{_AGAIN}.", [
            late[0].remark(what, "load it before the training if it is there, or adopt outlast")
        ]
    what = "no load of what is saved here was found, so a failure may cost all steps"
    return f"{_AGAIN}.", [
        saves[0].remark(what, "load it at the start if it is there, or adopt outlast")
    ]


def _called(modules: Sequence[Module], names: Sequence[str]) -> list[SourcePlace]:
    """Return the calls by one of these names.

    If some are torch's own calls, return only those. If some are in functions that the script
    calls, return only those: a module of helpers has others for other scripts.
    """
    found = [
        (name, SourcePlace(module.file, call))
        for module in modules
        for name, call in module.calls
        if last_name(name) in names and not _is_of_others(name)
    ]
    own = [one for one in found if one[0].startswith(_SURELY)] or found
    names_called = {last_name(name) for module in modules for name, _ in module.calls}
    trees = {module.file: module.tree for module in modules}
    used = [
        one
        for one in own
        if _function_of(trees[one[1].file], one[1].node) in names_called | {"", "__init__"}
    ]
    return [place for _, place in used or own]


def _that_train(modules: Sequence[Module], loop: SourcePlace | None) -> set[str]:
    """Return the names of the functions in which the loop runs, directly or through others."""
    if loop is None:
        return set()
    tree = next(one.tree for one in modules if one.file == loop.file)
    found = {_function_of(tree, loop.node)} - {""}
    while True:
        callers = {
            _function_of(module.tree, call)
            for module in modules
            for name, call in module.calls
            if _is_call_of(found, name, call)
        } - {""}
        if callers <= found:
            return found
        found |= callers


def _is_call_of(functions: set[str], name: str, call: ast.Call) -> bool:
    """Return True for a call of one of the functions, and not of `model.train()`."""
    sets_mode = (
        name != "train" and not name.startswith("self.") and not (call.args or call.keywords)
    )
    return last_name(name) in functions and not (last_name(name) == "train" and sets_mode)


def _is_behind(
    modules: Sequence[Module], loop: SourcePlace | None, training: set[str], load: SourcePlace
) -> bool:
    """Return True if the function that loads has trained before, and does not train afterwards.

    Such a load is for an evaluation, and no restart goes on from it.
    """
    if loop is None:
        return False
    module = next(one for one in modules if one.file == load.file)
    scope = _function_of(module.tree, load.node)
    trains: list[ast.AST] = [
        call
        for name, call in module.calls
        if _is_call_of(training, name, call) and _function_of(module.tree, call) == scope
    ]
    if loop.file == load.file and _function_of(module.tree, loop.node) == scope:
        trains.append(loop.node)
    ends = [_end_of_loops(module.tree, one) for one in trains]
    return bool(ends) and max(ends) < load.node.lineno


def _end_of_loops(tree: ast.AST, inner: ast.AST) -> int:
    """Return the last line of the outermost loop around a node; without a loop, of the node."""
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For | ast.While) and any(one is inner for one in ast.walk(node))
    ]
    return max(getattr(one, "end_lineno", None) or 0 for one in (*around, inner))


def _is_of_others(name: str) -> bool:
    return any(part in _OTHERS for part in name.split(".")[:-1])


def asked_for(modules: Sequence[Module], call: SourcePlace) -> str:
    """Return what the command line must say for the call to happen; "" if nothing is seen."""
    tree = next(one.tree for one in modules if one.file == call.file)
    if asked := _condition(tree, call.node):
        return asked
    # A function for another purpose, such as `inference()`, is called under a condition as well.
    function = _function_of(tree, call.node)
    calls = [
        (module.tree, one)
        for module in modules
        for name, one in module.calls
        if function and last_name(name) == function
    ]
    conditions = [_condition(where, one) for where, one in calls]
    return conditions[0] if conditions and all(conditions) else ""


def _condition(tree: ast.AST, call: ast.AST) -> str:
    """Return the setting under which a call stands; "" if none is seen."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and any(
            inner is call for part in node.body for inner in ast.walk(part)
        ):
            for test in _parts(node.test):
                if asked := _setting(test):
                    return asked
    return ""


def _function_of(tree: ast.AST, call: ast.AST) -> str:
    """Return the name of the innermost function that a call stands in; "" at the top level."""
    names = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(one is call for one in ast.walk(node))
    ]
    return names[-1] if names else ""


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    """Yield what must hold for the test to hold. `x is not None` counts as `x`."""
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            for one in values:
                yield from _parts(one)
        case ast.Compare(
            left=left, ops=[ast.IsNot() | ast.NotEq()], comparators=[ast.Constant(value=None | "")]
        ):
            yield left
        case _:
            yield test


def _setting(test: ast.expr) -> str:
    """Return "`args.resume` is set" for a test of a setting; "" for any other."""
    match test:
        case ast.Compare(left=ast.Name(id="__name__")):
            return ""  # it always holds for a script that is run
        case ast.Compare(
            left=ast.Name() | ast.Attribute(),
            ops=[ast.Eq()],
            comparators=[ast.Constant(value=str())],
        ):
            return f"`{ast.unparse(test)}`"
        case ast.Name(id=name) if not any(word in name.lower() for word in _WORDS):
            return ""
        case ast.Attribute(value=ast.Name(id="self"), attr=name) if not any(
            word in name.lower() for word in _WORDS
        ):
            return ""
        case ast.Name() | ast.Attribute():
            return f"`{ast.unparse(test)}` is set"
        case _:
            return ""
