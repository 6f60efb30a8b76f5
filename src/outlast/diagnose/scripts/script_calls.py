"""The calls in the text of a script, with dotted names, and the remarks that are made of them.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COLLECTIVES = frozenset(
    {
        "all_reduce",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "barrier",
        "broadcast",
        "broadcast_object_list",
        "reduce",
        "reduce_scatter",
        "scatter",
        "all_to_all",
    }
)
_STARTS = ("spawn", "start_processes")  # of torch.multiprocessing

Calls = list[tuple[str, ast.Call]]


@dataclass(frozen=True, slots=True)
class Remark:
    """A line of the script, what is the matter there, and what to do.

    file   another file than the script; "": the script itself
    about  the variable that it is about, if it is about one
    used   False: outlast refuses it where it is used, so it is unused if the script trains
    """

    line: int
    what: str
    do: str
    file: str = ""
    about: str = ""
    used: bool = True


@dataclass(frozen=True, slots=True)
class Module:
    """A parsed file. `file` is "" for the script itself."""

    file: str
    tree: ast.Module
    calls: Calls

    @classmethod
    def parsed(cls, source: str, file: str = "") -> Module:
        """Return the module of this text. Raises SyntaxError if it is no Python."""
        tree = ast.parse(source)
        return cls(file, tree, sorted(calls_of(tree), key=lambda one: one[1].lineno))


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """A call or a statement, and the file that it is in."""

    file: str
    node: ast.Call | ast.stmt

    def remark(self, what: str, do: str) -> Remark:
        """Return a remark about this place."""
        return Remark(self.node.lineno, what, do, file=self.file)

    def __str__(self) -> str:
        return (
            f"{self.file.rpartition('/')[2]}:{self.node.lineno}"
            if self.file
            else (f"line {self.node.lineno}")
        )


def calls_of(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
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
        if isinstance(node, ast.Call) and (name := dotted(node.func)):
            first, dot, rest = name.partition(".")
            yield renamed.get(first, first) + dot + rest, node


def dotted(node: ast.expr) -> str:
    """Return the dotted name of an expression ("torch.save"); "" if it has none."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            inner = dotted(value)
            return f"{inner}.{attribute}" if inner else attribute
        case _:
            return ""


def last_name(name: str) -> str:
    """Return the part of a dotted name after its last dot."""
    return name.rpartition(".")[2]


def ranks_of_its_own(name: str) -> bool:
    """Return whether a call of this name starts ranks, as torch.multiprocessing.spawn does."""
    first, _, last = name.rpartition(".")
    return last in _STARTS and first.startswith(("torch.multiprocessing", "mp"))
