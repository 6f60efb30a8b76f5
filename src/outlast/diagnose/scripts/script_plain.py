"""Read scripts that make no outlast call: which lines adoption changes.

A script is read with the modules of its own that it imports.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import islice

from outlast.diagnose.scripts.script_calls import (
    COLLECTIVES,
    Module,
    Remark,
    SourcePlace,
    dotted,
    last_name,
    ranks_of_its_own,
)
from outlast.diagnose.scripts.script_loops import (
    FAR,
    Reach,
    accumulating,
    calls_in,
    is_backward,
    is_by_hand,
    loops,
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
# By these a script splits its model over ranks.
_SPLIT = frozenset(
    {"fully_shard", "parallelize_module", "init_device_mesh", "FullyShardedDataParallel"}
)
# What outlast refuses, or does not know, by the name that is called.
REFUSED_OPTIMIZERS = {
    "LBFGS": (
        "LBFGS evaluates the model inside its step, which outlast refuses",
        "use an optimizer whose step() takes no closure, such as AdamW",
    ),
    "ZeroRedundancyOptimizer": (
        "ZeroRedundancyOptimizer communicates inside its step, which outlast refuses",
        "use the optimizer inside it with run.replicate, or fully_shard (FSDP2) to shard its state",
    ),
}
_REFUSED = {
    **REFUSED_OPTIMIZERS,
    "init_rpc": (
        "torch.distributed.rpc: outlast does not know its processes, and cannot repeat a step of"
        " theirs",
        "leave the script as it is: `outlast run` starts all ranks again after a failure",
    ),
    "initialize_deepspeed": (
        "DeepSpeed shards the state and steps the optimizer by itself, which outlast cannot repeat",
        "leave the script as it is, with DeepSpeed's own checkpoints; or use fully_shard (FSDP2)",
    ),
}
_PLACES = ("device_ids", "output_device", "process_group")  # run.replicate knows them
# What changes in a loop of the script's own
_START = "run = outlast.join() and model = run.replicate(model)"
_IN_PLACE = (
    "leave it out: give the function that makes the mesh and the model, and trains, to"
    " outlast.main(train), which calls train(run)"
)
_START_SPLIT = _IN_PLACE.removeprefix("leave it out: ")
_SAMPLES = "batch_sampler=outlast.StepSampler(data, batch_size=...) for the loader of the training"
_LOOP = (
    "state = run.state(model=model, optimizer=optimizer, ...) in front of it; for step in"
    " run.steps(state, until=...):  with step: ..."
)
_ACCUMULATE = (
    "run.steps(..., accumulate=n), and for batch in step.batches; until= counts calls of the"
    " optimizer"
)
_UPDATE = (
    "it may stay inside `with step:`, where each step then begins with a copy of the parameters; an"
    " optimizer such as torch.optim.SGD needs no copy"
)
_EPOCHS = (
    "leave it out: until=epochs * len(loader), epoch = (step.number - 1) // len(loader); what comes"
    " at an epoch's end goes into `for attempt in run.phase(...)`"
)
_AROUND = (
    "leave them out: until= is the product of their lengths, and divmod(step.number - 1, ...) says"
    " where a step stands; what is prepared for several steps, such as a rollout, is made in front"
    " of the first of them and kept by run.values(...)"
)
_NEXT = (
    "x, y = step.batch, with the loader in run.state(...), or a function of the batch's number in"
    " run.draw(read, numbered=True): a rank that is replaced begins an iterator anew"
)
_IN_MAIN = "in a function that is given to outlast.main"
# What changes where the loop is a library's, by the end of the name that is called.
_JOIN = "run = outlast.join() in front of it"
_IN_PHASE = "in front of the optimizer, or in `for attempt in run.phase(...)`"
_IN_LIBRARY = {
    "accelerate": {
        "Accelerator": _JOIN,
        "prepare": "without the loader of the training, which gets"
        " batch_sampler=outlast.StepSampler(data, batch_size=...), with the batch of all ranks"
        " together; move its batches to accelerator.device",
        "accumulate": "run.steps(..., accumulate=n), accelerator.step = 0 at the beginning of the"
        " step, and for batch in step.batches",
        "gather": _IN_PHASE,
        "gather_for_metrics": _IN_PHASE,
    },
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


def starts_ranks(modules: Sequence[Module]) -> list[SourcePlace]:
    """Find the calls by which the script starts its ranks by itself.

    A process whose target trains is such a rank, as in Hogwild.
    """
    reach = Reach(modules)

    def trains(name: str, call: ast.Call) -> bool:
        targets = [dotted(one.value) for one in call.keywords if one.arg == "target"]
        return last_name(name) == "Process" and any(
            reach.function_reaches(last_name(target), is_backward) for target in targets
        )

    return [
        SourcePlace(module.file, call)
        for module in modules
        for name, call in module.calls
        if ranks_of_its_own(name) or trains(name, call)
    ]


def own_ranks(place: SourcePlace) -> Remark:
    """Return the remark that the script starts its ranks by itself."""
    return place.remark(
        "the script starts its ranks by itself, and each process of `outlast run` would start them"
        " again",
        "call the function with rank and world size from outlast.join(), or RANK and WORLD_SIZE,"
        " and leave the number of ranks to `outlast run --nproc-per-node`",
    )


def adoption(modules: Sequence[Module], loop: SourcePlace | None) -> Iterator[Remark]:
    """Yield the lines that change if the script is to call outlast, file by file."""
    library, owners = library_of(modules), _accelerators(modules)
    names = {last_name(name) for module in modules for name, _ in module.calls}
    group = _IN_PLACE if names & _SPLIT else "run = outlast.join()"
    for module in modules:
        yield from _changes(module, group)
        yield from _library_changes(module, _IN_LIBRARY.get(library, {}), owners)
        yield from communicating_optimizers(module)
    if loop is None:
        return
    yield from _epochs(modules, loop)
    yield from _own_order(modules)
    yield from _within(modules, loop)
    yield loop.remark("the loop", _start(names, library) + _LOOP)


def _start(names: Set[str], library: str) -> str:
    """Return what changes in front of the loop and has no line of its own.

    A script without a process group has no other line at which this could be named. A library makes
    the group and the model by itself. A model on a mesh is not replicated.
    """
    if library or "init_process_group" in names:
        return ""
    if names & _SPLIT:
        return f"{_START_SPLIT}; "
    samples = "DataLoader" in names and not names & {"DistributedSampler", "set_epoch"}
    return f"{_START} at the start; " + (f"{_SAMPLES}; " if samples else "")


def _changes(module: Module, group: str) -> Iterator[Remark]:
    """Find the lines that change. `group`: what stands in place of init_process_group."""
    collectives: list[int] = []
    yield from _meshes(module)
    evaluating = _of_evaluations(module.tree)
    for name, call in module.calls:
        here, short = SourcePlace(module.file, call), last_name(name)
        if name == "deepspeed.initialize":
            short = "initialize_deepspeed"
        if short == "init_process_group":
            yield here.remark("the process group", group)
        elif short == "destroy_process_group":
            yield here.remark("the end of the process group", "delete it")
        elif short == "DistributedDataParallel":
            yield here.remark("the model", f"{_replicated(call)} in place of this call")
        elif short == "FullyShardedDataParallel":
            yield here.remark(
                "the model (FSDP1)",
                f"fully_shard(model, mesh=run.mesh), which is FSDP2, {_IN_MAIN}",
            )
        elif short in _REFUSED:
            yield here.remark(*_REFUSED[short])
        elif short == "DistributedSampler" and id(call) not in evaluating and not _in_order(call):
            yield here.remark(
                "the order of the samples",
                "DataLoader(data, batch_sampler=outlast.StepSampler(data, batch_size=...)), with"
                " the batch of all ranks together",
            )
        elif name.startswith("torch.distributed.") and short in COLLECTIVES:
            collectives.append(call.lineno)
    if collectives:
        yield Remark(
            collectives[0],
            f"collectives of the script's own ({_lines(collectives)})",
            "they may stand inside `with step:` in front of the optimizer, in `for attempt in"
            f" run.phase(...)`, or in front of the loop, with both {_IN_MAIN}",
            file=module.file,
        )


def _replicated(call: ast.Call) -> str:
    """Return the call of run.replicate that stands for this one of DistributedDataParallel."""
    given = [ast.unparse(one) for one in call.args[:1]] + [
        f"{one.arg}={ast.unparse(one.value)}"
        for one in call.keywords
        if one.arg not in (None, "module", *_PLACES)
    ]
    given += [ast.unparse(one.value) for one in call.keywords if one.arg == "module"]
    text = ", ".join(given)
    return f"run.replicate({text})" if given and len(text) <= 80 else "run.replicate(model, ...)"


def _lines(numbers: Sequence[int]) -> str:
    """Return "line 3" or "lines 3, 7"."""
    different = sorted(set(numbers))
    return f"line{'s' * (len(different) > 1)} {some([str(line) for line in different])}"


def _meshes(module: Module) -> Iterator[Remark]:
    """Find where the script shards its model or makes a mesh. Of several calls the first counts."""
    changes = {
        "fully_shard": ("the model (FSDP2)", f"fully_shard(..., mesh=run.mesh), {_IN_MAIN}"),
        "init_device_mesh": ("the device mesh", f"run.device_mesh(...), {_IN_MAIN}"),
    }
    for name, call in module.calls:
        change = changes.pop(last_name(name), None)
        if change is not None:
            yield SourcePlace(module.file, call).remark(*change)


def _library_changes(
    module: Module, changes: Mapping[str, str], owners: Set[str]
) -> Iterator[Remark]:
    """Find the calls that change. A tensor has a method `gather`, too, so the owner counts.

    owners   what the script calls its accelerator
    """
    for name, call in module.calls:
        short, owner = last_name(name), last_name(name.rpartition(".")[0])
        if short in changes and (short[0].isupper() or owner in owners):
            yield SourcePlace(module.file, call).remark(f"the call of {short}", changes[short])


def _accelerators(modules: Sequence[Module]) -> set[str]:
    """Return the names to which the script assigns an Accelerator."""
    return {"accelerator"} | {
        last_name(dotted(target))
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and last_name(dotted(node.value.func)) == "Accelerator"
        for target in node.targets
    }


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
                yield SourcePlace(module.file, call).remark(
                    f"{kind.name}.step communicates ({last_name(name)}), which outlast refuses: if"
                    " a rank is lost there, the others are left with half an update",
                    "use an optimizer whose step() is local, such as torch.optim.Muon or AdamW",
                )
                break


_TENSORS = ("reduce_scatter_tensor", "all_gather_object", "all_to_all_single")
_EVALUATES = re.compile(
    r"(?<![A-Za-z])(?:val|valid|validate|validation|eval|evaluate|evaluation|test)"
    r"(?:set|data|loader|sampler|dataset)?(?![A-Za-z])",
    re.IGNORECASE,
)


def _of_evaluations(tree: ast.AST) -> set[int]:
    """Return the identities of the calls that an evaluation makes, or that are made for one.

    Their names tell it: `validate()`, `val_sampler = ...`, `DistributedSampler(test_data)`.
    """
    found: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) if _evaluates(name):
                found |= {id(one) for one in ast.walk(node) if isinstance(one, ast.Call)}
            case ast.Assign(targets=[target], value=value) if _evaluates(dotted(target)):
                found |= {id(one) for one in ast.walk(value) if isinstance(one, ast.Call)}
            case ast.Call(args=[first, *_]) if _evaluates(dotted(first)):
                found.add(id(node))
            case _:
                pass
    return found


def _evaluates(name: str) -> bool:
    return bool(_EVALUATES.search(name)) and "train" not in name.lower()


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


def _epochs(modules: Sequence[Module], loop: SourcePlace) -> Iterator[Remark]:
    """Find the loop around the training loop, in its own function or around a call of that."""
    reach = Reach(modules)

    def far(place: SourcePlace) -> int:
        if any(one is loop.node for one in ast.walk(place.node)):
            return 0
        return reach.comes_to(place.node, loop.node)

    found = [
        (far(one), one)
        for one in loops(modules)
        if isinstance(one.node, ast.For) and one.node is not loop.node
    ]
    around = [one for distance, one in found if distance == 0]
    if not around:
        # Over several calls, functions of the same name are easily confused.
        around = [one for distance, one in found if distance < FAR]
    if any(one.file == loop.file for one in around):
        around = [one for one in around if one.file == loop.file]
    if len(around) == 1:
        yield around[0].remark("the loop over epochs", _EPOCHS)
    elif around:
        here = [one for one in around if one.file == around[-1].file]
        yield here[0].remark(
            f"the loops around it ({_lines([one.node.lineno for one in here])})", _AROUND
        )


def _own_order(modules: Sequence[Module]) -> Iterator[Remark]:
    """Find the order of a sampler of the script's own, which is told the epoch."""
    found = [
        (last_name(name), SourcePlace(module.file, call))
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


def _within(modules: Sequence[Module], loop: SourcePlace) -> Iterator[Remark]:
    """Find gradient accumulation in the training loop, batches that an iterator gives, and updates
    of the parameters without an optimizer.

    All may stand in a function that the loop calls on its way to `backward`.
    """
    reach = Reach(modules)
    places = [loop, *reach.on_the_way(loop.node, is_backward)]
    yield from _first(
        one.remark("gradient accumulation", _ACCUMULATE)
        for place in places
        for one in accumulating(place, reach)
    )
    yield from _first(
        SourcePlace(place.file, one).remark("a batch that an iterator gives", _NEXT)
        for place in places
        for one in calls_in(place.node)
        # next(iter(loader)) begins anew by itself
        if dotted(one.func) == "next" and not (one.args and isinstance(one.args[0], ast.Call))
    )
    yield from _first(
        SourcePlace(place.file, one).remark("an update of the parameters by hand", _UPDATE)
        for place in places
        for one in calls_in(place.node)
        if is_by_hand(dotted(one.func))
    )


def _first(found: Iterator[Remark]) -> Iterator[Remark]:
    yield from islice(found, 1)
