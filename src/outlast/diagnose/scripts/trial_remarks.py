"""What `outlast check` says of a script that it has tried: from differences to lines and advice.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from outlast.diagnose.scripts import trial_comparison
from outlast.diagnose.scripts.assignments import last_set
from outlast.diagnose.scripts.script_calls import Remark, dotted, last_name
from outlast.diagnose.scripts.script_loops import is_backward
from outlast.diagnose.scripts.trial_comparison import (
    Comparison,
    ScriptLoop,
    UnseenCarrier,
    Variable,
)
from outlast.model.texts import some

_PLAIN = {"int", "float", "bool", "str", "NoneType", "list", "dict", "tuple", "deque", "set"}
_ITERATORS = ("Iter", "iterator", "enumerate", "zip", "map", "generator")  # parts of types' names
_CHAINED = {"cycle", "count", "islice", "chain"}
_METERS = re.compile(
    r"Meter|Metric|Average|SmoothedValue|Timer|Progress|Bar(?![a-z])|EventStorage|Logger|Writer"
)
_PLACE = re.compile(r"(?P<file>/\S+?\.py):(?P<line>\d+)(?: in \S+)?: ")
_WITHIN = re.compile(r" at (?P<file>/\S+?\.py):(?P<line>\d+) in ")  # named in a sentence
_CALLED = re.compile(r" was called at (?P<file>/\S+?\.py):(?P<line>\d+) in ")  # the one to move
_RANK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # what torch puts in front of a traceback
_FRAME = re.compile(r'^\s+File "([^"]+)", line (\d+)', re.MULTILINE)


def variable_remark(one: Variable, source: str, *, changes: int) -> Remark:
    """Return the remark about a variable that was not kept.

    source    the text of the file that it lives in
    changes   the step after which the state differs; 0: the state is the same
    """
    what = (
        f"{one.name} is not kept: rank {one.rank}, which was replaced in step {one.step}, began"
        " that step without the value that its predecessor had"
        if one.replaced
        else f"{one.name} is changed twice by a step that is repeated: rank {one.rank} began step"
        f" {one.step} again with what the interrupted attempt had left"
    )
    if changes:
        what += f"; the state differs after step {changes}"
    line = last_set(source, one.function, one.name)
    return Remark(line, what, _advice(one), file=one.file, about=one.name)


def _advice(one: Variable) -> str:
    owner, _, short = one.name.rpartition(".")
    if one.kept:
        return f"read the attribute of run.values(...) in the loop, and not {one.name}"
    if one.kind in _CHAINED or any(word in one.kind for word in _ITERATORS):
        return (
            "its position is lost: give the DataLoader to run.state(..., loader=loader) and read"
            " step.batch, or draw batches by their number: run.draw(read, numbered=True)"
        )
    if owner not in ("", "self"):
        name = owner.rpartition(".")[2]
        return (
            f"give {owner} a state_dict() and a load_state_dict(...), and name it:"
            f" run.state(..., {name}={owner})"
        )
    keep = f"keep it: kept = run.values({short}=...), run.state(..., kept=kept), kept.{short}"
    if one.kind in ("Tensor", "ndarray"):
        return f"draw it inside `with step:` or by run.draw(...), or {keep}"
    if one.kind in _PLAIN or one.kind == "":
        return keep
    return f"name it: run.state(..., {short}={one.name})"


def is_of_a_meter(one: Variable, source: str) -> bool:
    """Return whether a variable is an attribute of an object that keeps averages or logs.

    Such an object is known by the name of what makes it, as in `top1 = AverageMeter("Acc@1")`. It
    may be one of several: `losses, top1 = AverageMeter(), AverageMeter()`. A logger may be made on
    one rank only: `logger = FileLogger() if rank == 0 else None`.
    """
    owner = one.name.rpartition(".")[0]
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return bool(owner) and any(
        ast.unparse(target) == owner and _METERS.search(last_name(dotted(made.func)))
        for node in ast.walk(tree)
        for target, made in _made(node)
    )


def is_of_the_start(one: Variable, source: str, loop: ScriptLoop) -> bool:
    """Return whether a variable is a text or a path that is last set before the loop.

    A rank that is replaced runs that line again. So a folder with a number or a time in its name
    has another name there.
    """
    place = last_set(source, one.function, one.name)
    return (
        one.replaced
        and one.kind in ("str", "PosixPath")
        and "." not in one.name
        and (one.file, one.function) == (loop.file, loop.function)
        and 1 < place < loop.line
    )


def start_note(found: Sequence[tuple[Variable, int]]) -> str:
    """Return a note on texts and paths that differ on a replaced rank. `found`: with their lines.

    It says what to do if that matters.
    """
    named = some([f"{one.name} (line {line})" for one, line in found])
    return (
        f"A rank that is replaced sets these again, to another value: {named}. What it writes"
        " afterwards goes there. Use a name that does not change from one start to the next, or"
        " keep it by run.values."
    )


def _made(node: ast.AST) -> Iterator[tuple[ast.expr, ast.Call]]:
    """Yield what a statement assigns the result of a call to, and the call."""
    match node:
        case ast.Assign(targets=targets, value=value):
            pairs = [pair for target in targets for pair in _pairs(target, value)]
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            pairs = [(target, value)]
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            pairs = [(target, value)]
        case _:
            return
    yield from ((target, made) for target, made in pairs if isinstance(made, ast.Call))


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    match target, value:
        case (ast.Tuple(elts=names), ast.Tuple(elts=values) | ast.List(elts=values)):
            yield from zip(names, values, strict=False)
        case (ast.Tuple(elts=names), ast.ListComp(elt=same) | ast.GeneratorExp(elt=same)):
            yield from ((name, same) for name in names)
        case (_, ast.IfExp(body=first, orelse=second)):
            yield from ((target, first), (target, second))
        case _:
            yield target, value


def meters_note(found: Sequence[tuple[Variable, int]]) -> str:
    """Return the note about averages that start over. `found`: variables with their lines."""
    named = some([f"{one.name} (line {line})" for one, line in found])
    return (
        f"What is only shown starts over on a rank that is replaced: {named}. Keep it by run.state"
        " if something depends on it."
    )


def state_remark(found: Comparison, loop: ScriptLoop) -> Remark:
    """Return the remark that the state differs, and that no variable explains it."""
    ranks = some([f"rank {rank}" for rank in sorted(found.state)])
    parts = some(sorted({part for parts in found.state.values() for part in parts}))
    return Remark(
        loop.line,
        f"the state differs after step {found.differs_from} from that of a run without a failure"
        f" ({ranks}: {parts}), and no variable that can be seen explains it",
        "look for what is kept outside run.state(...): iterators, generators, closures, files, and"
        " state of libraries",
        file=loop.file,
    )


def unseen_remark(found: Comparison, one: UnseenCarrier, source: str) -> Remark | None:
    """Suspect what cannot be compared, where nothing else explains the state. None: it is sound."""
    step = f"the state differs after step {found.differs_from} from that of a run without a failure"
    match one.kind:
        case trial_comparison.GRADIENTS:
            line = _cleared_at_times(source)
            what = f"gradients are carried from one step to the next, and not kept; {step}"
            do = "let each step clear them; to accumulate, use run.steps(..., accumulate=n)"
        case trial_comparison.CACHE:
            line = _defined(source, one.name)
            what = f"what {one.name} has cached is not kept, and {step}"
            do = "let what it returns depend on its arguments alone, or keep it by run.values(...)"
        case _:
            line = last_set(source, one.function, one.name)
            what = f"{one.name} is an iterator whose position is not kept, and {step}"
            do = (
                "draw batches by run.draw(read, numbered=True), or give the DataLoader to run.state"
                " and read step.batch"
            )
    return Remark(line, what, do, file=one.file, about=one.name) if line else None


def _cleared_at_times(source: str) -> int:
    """Return the line of a `zero_grad()` under a condition; 0 if one has none, or there is none.

    A loop that clears its gradients in each step carries none, wherever in the step it does so. A
    condition under which gradients are also computed (`if train:`) is that of the whole step.
    """
    tree = ast.parse(source)
    under = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and not _goes_backward(node)
        for inner in ast.walk(node)
    }
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and last_name(dotted(node.func)) == "zero_grad"
    ]
    if not calls or any(id(call) not in under for call in calls):
        return 0
    return max(call.lineno for call in calls)


def _goes_backward(branch: ast.If) -> bool:
    return any(
        isinstance(node, ast.Call) and is_backward(dotted(node.func) or "")
        for node in ast.walk(branch)
    )


def _defined(source: str, name: str) -> int:
    """Return the line of the function's `def`, or where the name is set."""
    wanted = last_name(name)
    lines = [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == wanted
    ]
    return lines[-1] if lines else last_set(source, "<module>", wanted)


def own_differences(found: Comparison) -> str:
    """Return why the comparison says nothing: the script gives other results each time."""
    return (
        "the script itself gives other results each time, before any rank is killed"
        f" ({some([one.removeprefix('state:') for one in found.own])}): whether a failure changes"
        " them cannot be told; look for clocks, threads and unordered sets"
    )


_UNSET = re.compile(r"(?:NameError|UnboundLocalError): .*?'(\w+)'")


def failure_remark(stderr: str, script: str, *, replaced: bool = False) -> Remark:
    """Return the remark about the end of a run: a refusal, or the script's error, with its line.

    replaced   only a run whose ranks were replaced has ended so. A name that has no value then is
               one that an earlier step had set
    """
    stderr = _RANK.sub("", stderr)
    errors = re.findall(r"^error: (.*)$", stderr, re.MULTILINE)
    hints = re.findall(r"^hint: (.*)$", stderr, re.MULTILINE)
    what = (
        errors[-1] if errors else (stderr.strip().splitlines() or ["it ended without a word"])[-1]
    )
    what = what.rpartition("last error: ")[2]  # how often it was tried says nothing here
    unset = _UNSET.search(what) if replaced else None
    do = (
        f"{unset[1]} is set in some steps only: give it a value in front of the loop as well, or"
        f" keep it: kept = run.values({unset[1]}=...), run.state(..., kept=kept)"
        if unset
        else hints[-1]
        if hints and "outlast report" not in hints[-1]
        else "mend this first; arguments of the script go after `--`"
    )
    if called := _CALLED.search(what):
        return Remark(int(called["line"]), _PLACE.sub("", what), do, file=called["file"])
    if placed := _PLACE.search(what):
        line, what = int(placed["line"]), what[: placed.start()] + what[placed.end() :]
        return Remark(line, what, do, file=placed["file"])
    if placed := _WITHIN.search(what):
        return Remark(int(placed["line"]), what, do, file=placed["file"])
    return Remark(_line_of(what, stderr, script), what, do)


def _line_of(error: str, stderr: str, script: str) -> int:
    """Return the innermost line of the script in the traceback that ends with this error.

    A rank that has lost its peer may print another traceback below it. If no traceback ends with
    the error, return the last line of the script in any of them.
    """
    blocks = stderr.split("Traceback (most recent call last):")[1:]
    own = [block for block in blocks if f"\n{error}\n" in f"{block}\n"]
    for block in (*reversed(own), stderr):
        lines = [int(line) for file, line in _FRAME.findall(block) if file == script]
        if lines:
            return lines[-1]
    return 1


def resumption(steps: Sequence[Mapping[str, object]], *, killed_after: int) -> str:
    """Return with which step a script without outlast calls went on after a rank was killed."""
    pids = list(dict.fromkeys(one["pid"] for one in steps if one["rank"] == 0))
    if len(pids) < 2:
        return "it did not come back within the time"
    again = next(one for one in steps if one["pid"] == pids[-1])
    number = again["step"]
    if not isinstance(number, int):
        return (
            "it came back, and which step it went on with cannot be told: its optimizer keeps no"
            " count"
        )
    repeated = killed_after - number + 1
    return (
        f"it came back with step {number}, so {repeated} of {killed_after} steps were done again"
        if repeated > 0
        else f"it came back with step {number} and repeated none"
    )
