"""Find which attributes the functions of a script may read, in all that they call.

A loop may set `self.loss` in each round, and call a function before it does, which reads the value
of the round before. Functions are found by their names, in this one file. A name that is not
defined there may stand for a module: `model(x)` calls a `forward`. It may also stand for anything
else, which may read every attribute of an object that it is given: `callback(self)`.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

_MODULES = ("forward", "__call__")


@dataclass(slots=True)
class _Function:
    """This is what a function itself reads and calls.

    handed   names that it passes whole to a function that is not defined in the file
    """

    attributes: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)
    handed: set[str] = field(default_factory=set)


class CalledReads:
    """The attributes that the functions of one file may read."""

    def __init__(self, functions: dict[str, _Function]) -> None:
        self._functions = functions

    def may_read(self, call: ast.Call, name: str) -> bool:
        """Return whether `call` may read the attribute `name`, for example `self.loss`."""
        owner, _, attribute = name.rpartition(".")
        called = _name_of(call)
        if called not in self._functions and owner in _whole(call):
            return True
        return any(
            owner in one.handed or attribute in one.attributes for one in self._reached(called)
        )

    def _reached(self, called: str) -> Iterator[_Function]:
        """Go through the function of that name, and all that it calls."""
        todo, seen = [called], set[str]()
        while todo:
            name = todo.pop()
            for known in (name,) if name in self._functions else _MODULES:
                if known in self._functions and known not in seen:
                    seen.add(known)
                    yield self._functions[known]
                    todo.extend(self._functions[known].called)


def attributes_read(tree: ast.Module) -> CalledReads:
    """Return what the functions of a file may read. Those of the same name count as one."""
    functions: dict[str, _Function] = {}
    defined = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for node in defined:
        functions.setdefault(node.name, _Function())
    for node in defined:
        function = functions[node.name]
        for one in ast.walk(node):
            if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Load):
                function.attributes.add(one.attr)
            elif isinstance(one, ast.Call):
                function.called.add(_name_of(one))
                if _name_of(one) not in functions:
                    function.handed |= _whole(one)
    return CalledReads(functions)


def _name_of(call: ast.Call) -> str:
    """Return the last part of the name of what is called, or ""."""
    called = call.func
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id.rpartition(".")[2] if isinstance(called, ast.Name) else ""


def _whole(call: ast.Call) -> set[str]:
    """Return the names that are handed to a call as they are."""
    given = [*call.args, *(one.value for one in call.keywords)]
    return {one.id for one in given if isinstance(one, ast.Name)}
