"""Find the training loop of a script, and what it reaches through the functions that it calls.

A training loop often calls a method that calls `backward`. Functions are distinguished by their
last name alone.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from outlast.diagnose.scripts.script_calls import Module, SourcePlace, dotted, last_name

_APPLIERS = ("opt", "scaler", "adam", "sgd", "muon")  # parts of the names of what is stepped
_BY_HAND = (".data.add_", ".data.sub_")  # how a script changes parameters without an optimizer
# A scaler of this name is called with the loss and the optimizer: `loss_scaler(loss, optimizer)`
# goes backward and steps, as in MAE, Swin and timm. These of its arguments say when it steps.
_DOES_BOTH = "loss_scaler"
_STEPS_IF = ("update_grad", "need_update")
FAR = 1_000  # calls deep: it is not reached


def training_loop(modules: Sequence[Module]) -> SourcePlace | None:
    """Return the innermost loop that reaches both `backward` and the update of the parameters.

    A loop over micro-batches reaches only `backward`, and one over epochs is not the innermost. Of
    several, the one that reaches them by the fewest calls is taken; without a step in sight, the
    outermost loop in which `backward` is called.
    """
    reach = Reach(modules)
    found: list[tuple[int, int, SourcePlace]] = []
    for order, place in enumerate(loops(modules)):
        far = reach.depth(place.node, is_backward) + reach.depth(place.node, is_step)
        if far < FAR:
            found.append((far, -order, place))  # inner loops are walked later
    if found:
        return min(found, key=lambda one: one[:2])[2]
    return next((one for one in loops(modules) if reach.depth(one.node, is_backward) == 0), None)


def accumulating(place: SourcePlace, reach: Reach) -> Iterator[SourcePlace]:
    """Find what steps at some rounds only, and loops over parts of a batch."""
    for node in ast.walk(place.node):
        match node:
            case ast.If(test=test):
                counts = any(isinstance(one, ast.Mod) for one in ast.walk(test))
                counts = counts or "accum" in ast.unparse(test).lower()
                names = [dotted(one.func) for one in calls_in(node)]
                # what goes backward there as well is trained in some rounds, as in DQN
                found = counts and any(map(is_step, names)) and not any(map(is_backward, names))
            case ast.Call(func=func, keywords=keywords):
                found = is_both(dotted(func)) and any(one.arg in _STEPS_IF for one in keywords)
            case ast.For() | ast.While() if node is not place.node:
                found = reach.depth(node, is_backward) < FAR and reach.depth(node, is_step) == FAR
            case _:
                continue
        if found:
            yield SourcePlace(place.file, node)


def loops(modules: Sequence[Module]) -> Iterator[SourcePlace]:
    """Yield all loops, an outer one before those in it."""
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.For | ast.While):
                yield SourcePlace(module.file, node)


def is_backward(name: str) -> bool:
    """Return whether a call of this name computes gradients."""
    return last_name(name) in ("backward", "manual_backward") or is_both(name)


def is_both(name: str) -> bool:
    """Return whether a call of this name goes backward and steps the optimizer."""
    return last_name(name).endswith(_DOES_BOTH)


def is_step(name: str) -> bool:
    """Return whether a call of this name updates parameters: an optimizer's, or one by hand."""
    owner, _, method = name.rpartition(".")
    steps = method == "step" and any(part in last_name(owner).lower() for part in _APPLIERS)
    return steps or is_by_hand(name) or is_both(name)


def is_by_hand(name: str) -> bool:
    """Return whether a call of this name changes parameters without an optimizer."""
    return name.endswith(_BY_HAND)


class Reach:
    """Find which calls a piece of the script reaches, through its own functions."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self._functions: dict[str, list[SourcePlace]] = {}
        # What was found once, by the identity of the node: a large project has thousands of loops.
        self._called: dict[int, frozenset[str]] = {}
        self._holders: dict[int, frozenset[str]] = {}
        for module in modules:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._functions.setdefault(node.name, []).append(SourcePlace(module.file, node))

    def depth(self, node: ast.AST, wanted: Callable[[str], bool]) -> int:
        """Return over how many calls `node` reaches one that is wanted; FAR: it does not."""
        for level, pieces in enumerate(self._levels(node)):
            if any(wanted(name) for piece in pieces for name in self._names(piece)):
                return level
        return FAR

    def function_reaches(self, name: str, wanted: Callable[[str], bool]) -> bool:
        """Return whether a function of the script with this name reaches a call that is wanted."""
        return any(self.depth(one.node, wanted) < FAR for one in self._functions.get(name, ()))

    def on_the_way(self, node: ast.AST, wanted: Callable[[str], bool]) -> list[SourcePlace]:
        """Return the functions that `node` calls and that reach a call that is wanted."""
        reached = {id(piece) for pieces in self._levels(node) for piece in pieces}
        return [
            place
            for places in self._functions.values()
            for place in places
            if id(place.node) in reached and self.depth(place.node, wanted) < FAR
        ]

    def comes_to(self, node: ast.AST, wanted: ast.AST) -> int:
        """Return over how many calls `node` leads to the function that holds `wanted`.

        0: it calls that function itself; FAR: it does not lead there.
        """
        homes = self._homes(wanted)
        return self.depth(node, lambda name: last_name(name) in homes)

    def _homes(self, wanted: ast.AST) -> frozenset[str]:
        """Return the names of the functions that hold `wanted`."""
        found = self._holders.get(id(wanted))
        if found is None:
            found = frozenset(
                name
                for name, ones in self._functions.items()
                if any(inner is wanted for one in ones for inner in ast.walk(one.node))
            )
            self._holders[id(wanted)] = found
        return found

    def _levels(self, node: ast.AST) -> Iterator[list[ast.AST]]:
        """Yield `node`, then the functions that it calls, then those that these call."""
        seen: set[str] = set()
        pieces = [node]
        while pieces:
            yield pieces
            names = {last_name(name) for piece in pieces for name in self._names(piece)}
            fresh = names - seen
            seen |= fresh
            pieces = [one.node for name in sorted(fresh) for one in self._functions.get(name, ())]

    def _names(self, node: ast.AST) -> frozenset[str]:
        """Return the names that are called in `node`. It is walked once."""
        found = self._called.get(id(node))
        if found is None:
            found = frozenset(dotted(one.func) for one in calls_in(node))
            self._called[id(node)] = found
        return found


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """Yield all calls within the node."""
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))
