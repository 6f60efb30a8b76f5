"""Read scripts that make no outlast call: which lines adoption changes.

A script is read with the modules of its own that it imports. A loop is found through the functions
that it calls: the training loop of a class often calls a method that calls `backward`. Functions
are told apart by their last name alone.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from outlast.diagnose.script_calls import (
    COLLECTIVES,
    Calls,
    Remark,
    calls_of,
    dotted,
    last_name,
    ranks_of_its_own,
)
from outlast.model.texts import some

# Libraries with a training loop or checkpoints of their own, and how to have them go on. A script
# that uses several of them has the loop of the first.
LIBRARIES = {
    "accelerate": "load by accelerator.load_state(...) what accelerator.save_state(...) has saved",
    "lightning": 'call trainer.fit(..., ckpt_path="last") and let it save',
    "pytorch_lightning": 'call trainer.fit(..., ckpt_path="last") and let it save',
    "transformers": "give trainer.train(resume_from_checkpoint=...) its newest checkpoint",
}
_MAKERS = {
    "accelerate": ("Accelerator",),
    "lightning": ("Trainer", "LightningCLI"),
    "pytorch_lightning": ("Trainer", "LightningCLI"),
    "transformers": ("Trainer",),
}
# What changes in a loop of the script's own
_START = "run = outlast.join() and model = run.replicate(model)"
_LOOP = (
    "state = run.state(model=model, optimizer=optimizer, ...) in front of it; for step in"
    " run.steps(state, until=...):  with step: ..."
)
_ACCUMULATE = (
    "run.steps(..., accumulate=n), and for batch in step.batches; until= counts calls of the"
    " optimizer"
)
_NEXT = (
    "x, y = step.batch, with the loader in run.state(...) or a function of your own in"
    " run.draw(...): a rank that is replaced begins an iterator anew"
)
_IN_MAIN = "in a function that is given to outlast.main"
# What changes where the loop is a library's, by the end of the name that is called.
_JOIN = "run = outlast.join() in front of it"
_IN_LIBRARY = {
    "accelerate": {"Accelerator": _JOIN},
    "lightning": {
        "Trainer": "Trainer(strategy=outlast.lightning.Strategy(), ...)",
        "LightningCLI": "on the command line: --trainer.strategy.class_path"
        " outlast.lightning.Strategy",
    },
    "pytorch_lightning": {
        "Trainer": "import Trainer from lightning.pytorch, and give it"
        " strategy=outlast.lightning.Strategy()",
    },
    "transformers": {
        "TrainingArguments": _JOIN,
        "HfArgumentParser": _JOIN,
        "Trainer": "outlast.hf.Trainer(...)",
    },
}
_APPLIERS = ("opt", "scaler", "adam", "sgd", "muon")  # parts of the names of what is stepped
_FAR = 1_000  # calls deep: it is not reached


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed file. `file` is "" for the script itself."""

    file: str
    tree: ast.Module
    calls: Calls

    @classmethod
    def parsed(cls, source: str, file: str = "") -> Module:
        tree = ast.parse(source)
        return cls(file, tree, sorted(calls_of(tree), key=lambda one: one[1].lineno))


@dataclass(frozen=True, slots=True)
class Place:
    """A call or a loop, and the file that it is in."""

    file: str
    node: ast.Call | ast.For | ast.While

    def remark(self, what: str, do: str) -> Remark:
        return Remark(self.node.lineno, what, do, file=self.file)

    def __str__(self) -> str:
        return (
            f"{self.file.rpartition('/')[2]}:{self.node.lineno}"
            if self.file
            else (f"line {self.node.lineno}")
        )


def starts_ranks(modules: Sequence[Module]) -> Iterator[Remark]:
    """Find the line at which the script starts its ranks by itself."""
    for module in modules:
        for name, call in module.calls:
            if ranks_of_its_own(name):
                yield Place(module.file, call).remark(
                    "the script starts its ranks by itself, and each process of `outlast run` would"
                    " start them again",
                    "call the function with rank and world size from outlast.join(), or RANK and"
                    " WORLD_SIZE, and leave the number of ranks to `outlast run --nproc-per-node`",
                )


def adoption(modules: Sequence[Module], loop: Place | None) -> Iterator[Remark]:
    """Return the lines that change if the script is to call outlast, file by file."""
    library = library_of(modules)
    for module in modules:
        yield from _changes(module)
        yield from _library_changes(module, _IN_LIBRARY.get(library, {}))
        yield from communicating_optimizers(module)
    if loop is None:
        return
    yield from _epochs(modules, loop)
    yield from _own_order(modules)
    yield from _within(loop)
    names = {last_name(name) for module in modules for name, _ in module.calls}
    # A script without a process group has no other line at which these two could be named.
    start = "" if "init_process_group" in names else f"{_START} at the start; "
    yield loop.remark("the loop", start + _LOOP)


def _changes(module: Module) -> Iterator[Remark]:
    collectives: list[int] = []
    yield from _meshes(module)
    for name, call in module.calls:
        here, short = Place(module.file, call), last_name(name)
        if short == "init_process_group":
            yield here.remark("the process group", "run = outlast.join()")
        elif short == "destroy_process_group":
            yield here.remark("the end of the process group", "delete it")
        elif short == "DistributedDataParallel":
            yield here.remark("the model", "model = run.replicate(model)")
        elif short == "FullyShardedDataParallel":
            yield here.remark(
                "the model (FSDP1)",
                f"fully_shard(model, mesh=run.mesh), which is FSDP2, {_IN_MAIN}",
            )
        elif short == "DistributedSampler" and not _in_order(call):
            yield here.remark(
                "the order of the samples",
                "DataLoader(data, batch_sampler=outlast.StepSampler(data, batch_size=...)), with"
                " the batch of all ranks together",
            )
        elif name.startswith("torch.distributed.") and short in COLLECTIVES:
            collectives.append(call.lineno)
    if collectives:
        lines = some([str(line) for line in sorted(set(collectives))])
        yield Remark(
            collectives[0],
            f"collectives of the script's own (lines {lines})",
            "they may stand inside `with step:` in front of the optimizer, in `for attempt in"
            f" run.phase(...)`, or in front of the loop, with both {_IN_MAIN}",
            file=module.file,
        )


def _meshes(module: Module) -> Iterator[Remark]:
    """Find where the script shards its model or makes a mesh. Of several calls the first counts."""
    changes = {
        "fully_shard": ("the model (FSDP2)", f"fully_shard(..., mesh=run.mesh), {_IN_MAIN}"),
        "init_device_mesh": ("the device mesh", f"run.device_mesh(...), {_IN_MAIN}"),
    }
    for name, call in module.calls:
        change = changes.pop(last_name(name), None)
        if change is not None:
            yield Place(module.file, call).remark(*change)


def _library_changes(module: Module, changes: Mapping[str, str]) -> Iterator[Remark]:
    for name, call in module.calls:
        for made, do in changes.items():
            if last_name(name) == made:
                yield Place(module.file, call).remark(f"the call of {made}", do)


def communicating_optimizers(module: Module) -> Iterator[Remark]:
    """Find optimizers of the script's own whose step communicates."""
    for kind in ast.walk(module.tree):
        if not isinstance(kind, ast.ClassDef) or not any(
            last_name(dotted(base)) == "Optimizer" for base in kind.bases
        ):
            continue
        steps = [
            one for one in kind.body if isinstance(one, ast.FunctionDef) and one.name == "step"
        ]
        inside = {id(one) for step in steps for one in ast.walk(step)}
        for name, call in module.calls:
            if id(call) in inside and last_name(name) in (*COLLECTIVES, *_TENSORS):
                yield Place(module.file, call).remark(
                    f"{kind.name}.step communicates ({last_name(name)}), which outlast refuses: if"
                    " a rank is lost there, the others are left with half an update",
                    "use an optimizer whose step() is local, such as torch.optim.Muon or AdamW",
                )
                break


_TENSORS = ("reduce_scatter_tensor", "all_gather_object", "all_to_all_single")


def _in_order(call: ast.Call) -> bool:
    """Return whether a sampler does not shuffle: that of an evaluation, which may stay."""
    return any(
        one.arg == "shuffle" and isinstance(one.value, ast.Constant) and not one.value.value
        for one in call.keywords
    )


def library_of(modules: Sequence[Module]) -> str:
    """Return the library whose loop the script uses; "" for a loop of its own.

    Who imports transformers for a model alone has a loop of its own.
    """
    imported = {name for module in modules for name in _imported(module.tree)}
    made = {last_name(name) for module in modules for name, _ in module.calls}
    for library in LIBRARIES:
        if library in imported and any(one.endswith(_MAKERS[library]) for one in made):
            return library
    return ""


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)


# --- the training loop ----------------------------------------------------------------------------


def training_loop(modules: Sequence[Module]) -> Place | None:
    """Return the innermost loop that reaches both `backward` and the optimizer's step.

    A loop over micro-batches reaches only `backward`, and one over epochs is not the innermost. Of
    several, the one that comes to them by the fewest calls is taken; without a step in sight, the
    outermost loop in which `backward` is called.
    """
    reach = _Reach(modules)
    found: list[tuple[int, int, Place]] = []
    for order, place in enumerate(_loops(modules)):
        far = reach.depth(place.node, _is_backward) + reach.depth(place.node, _is_step)
        if far < _FAR:
            found.append((far, -order, place))  # inner loops are walked later
    if found:
        return min(found, key=lambda one: one[:2])[2]
    return next((one for one in _loops(modules) if reach.depth(one.node, _is_backward) == 0), None)


def _epochs(modules: Sequence[Module], loop: Place) -> Iterator[Remark]:
    """Find the loop around the training loop, in its own function or around a call of that."""
    reach = _Reach(modules)

    def holds(place: Place) -> bool:
        return place.node is not loop.node and (
            any(one is loop.node for one in ast.walk(place.node))
            or reach.comes_to(place.node, loop.node)
        )

    around = [one for one in _loops(modules) if isinstance(one.node, ast.For) and holds(one)]
    if around:
        yield around[-1].remark(
            "the loop over epochs",
            "leave it out: until=epochs * len(loader), epoch = (step.number - 1) // len(loader);"
            " what comes at an epoch's end goes into `for attempt in run.phase(...)`",
        )


def _own_order(modules: Sequence[Module]) -> Iterator[Remark]:
    """Find the order of a sampler of the script's own, which is told the epoch."""
    found = [
        (last_name(name), Place(module.file, call))
        for module in modules
        for name, call in module.calls
        if last_name(name) in ("DistributedSampler", "set_epoch")
    ]
    if found and all(name == "set_epoch" for name, _ in found):
        yield found[0][1].remark(
            "the order of the samples",
            "outlast.StepSampler in its place, or a function that returns the batch of a number, in"
            " run.draw(read, numbered=True)",
        )


def _within(loop: Place) -> Iterator[Remark]:
    """Find gradient accumulation in the training loop, and batches that an iterator gives."""
    called = {id(one): dotted(one.func) for one in _calls_in(loop.node)}
    for node in ast.walk(loop.node):
        if node is loop.node or not isinstance(node, ast.For | ast.While | ast.If):
            continue
        names = {called[id(one)] for one in _calls_in(node)}
        steps = any(map(_is_step, names))
        if isinstance(node, ast.If):
            counts = any(isinstance(one, ast.Mod) for one in ast.walk(node.test)) and steps
        else:
            counts = any(map(_is_backward, names)) and not steps
        if counts:
            yield Remark(node.lineno, "gradient accumulation", _ACCUMULATE, file=loop.file)
            break
    for one in _calls_in(loop.node):
        if called[id(one)] == "next":
            yield Place(loop.file, one).remark("a batch that an iterator gives", _NEXT)
            break


def _loops(modules: Sequence[Module]) -> Iterator[Place]:
    """Yield all loops, an outer one before those in it."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.For | ast.While):
                yield Place(module.file, node)


def _is_backward(name: str) -> bool:
    return last_name(name) in ("backward", "manual_backward")


def _is_step(name: str) -> bool:
    owner, _, method = name.rpartition(".")
    return method == "step" and any(part in last_name(owner).lower() for part in _APPLIERS)


class _Reach:
    """Find which calls a piece of the script comes to, through its own functions."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self._functions: dict[str, list[ast.AST]] = {}
        for module in modules:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._functions.setdefault(node.name, []).append(node)

    def depth(self, node: ast.AST, wanted: Callable[[str], bool]) -> int:
        """Return over how many calls `node` comes to one that is wanted; _FAR: it does not."""
        seen: set[str] = set()
        level, pieces = 0, [node]
        while pieces:
            names = {dotted(one.func) for piece in pieces for one in _calls_in(piece)}
            if any(wanted(name) for name in names):
                return level
            fresh = {last_name(name) for name in names} - seen
            seen |= fresh
            pieces = [one for name in sorted(fresh) for one in self._functions.get(name, ())]
            level += 1
        return _FAR

    def comes_to(self, node: ast.AST, wanted: ast.AST) -> bool:
        """Return whether a call in `node` leads to the function that holds `wanted`."""
        homes = {
            name
            for name, ones in self._functions.items()
            if any(inner is wanted for one in ones for inner in ast.walk(one))
        }
        return self.depth(node, lambda name: last_name(name) in homes) < _FAR


def _calls_in(node: ast.AST) -> Iterator[ast.Call]:
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))
