"""Every condition of the engine's deciding files, turned round, one at a time."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.mutation.files import FLIPPED
from tools.mutation.planted import SOURCE, Mutant

PROBE = "__came_to__"  # as in mutant.py


def flips() -> Iterator[Mutant]:
    """Yield each test of an if, a while or a comprehension, and each part of one, turned round.

    Left out is what stands at the end of an `or` as a number.
    """
    number = 0
    for file in FLIPPED:
        source = (SOURCE / file).read_text()
        for index, name in enumerate(conditions(file)):
            tree = ast.parse(source)
            _, holder, field, place = list(_conditions(tree))[index]
            _put(holder, field, place, lambda one: ast.UnaryOp(ast.Not(), one))
            yield Mutant(
                name, file, text=ast.unparse(ast.fix_missing_locations(tree)), number=number
            )
            number += 1


def conditions(file: str) -> list[str]:
    """Return the names of all flips of `file`: file, function, condition."""
    named: Counter[str] = Counter()
    out = []
    for where, holder, field, place in _conditions(ast.parse((SOURCE / file).read_text())):
        name = (
            f"{Path(file).name} {where}: {ast.unparse(_put(holder, field, place, lambda one: one))}"
        )
        named[name] += 1
        out.append(f"{name} ({named[name]})" if named[name] > 1 else name)
    return out


def probed() -> dict[str, str]:
    """Return the files in FLIPPED, changed so that each condition says when a life comes to it.

    The conditions have the numbers that `flips` gives them.
    """
    out: dict[str, str] = {}
    number = 0
    for file in FLIPPED:
        tree = ast.parse((SOURCE / file).read_text())
        for _, holder, field, place in list(_conditions(tree)):
            said = ast.Constant(number)
            _put(
                holder,
                field,
                place,
                lambda one, said=said: ast.Call(ast.Name(PROBE, ast.Load()), [said, one], []),
            )  # type: ignore[misc]
            number += 1
        out[file] = ast.unparse(ast.fix_missing_locations(tree))
    return out


def _put(
    holder: ast.AST, field: str, place: int | None, made: Callable[[ast.expr], ast.expr]
) -> ast.expr:
    """Put what `made` makes of a condition in its place. Return the condition."""
    here = getattr(holder, field)
    condition: ast.expr = here if place is None else here[place]
    if place is None:
        setattr(holder, field, made(condition))
    else:
        here[place] = made(condition)
    return condition


def _conditions(tree: ast.AST, where: str = "") -> Iterator[tuple[str, ast.AST, str, int | None]]:
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef) else where
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            yield inside, node, "test", None
        elif isinstance(node, ast.comprehension):
            yield from ((inside, node, "ifs", place) for place in range(len(node.ifs)))
        elif isinstance(node, ast.BoolOp):
            yield from (
                (inside, node, "values", place)
                for place, value in enumerate(node.values)
                if not _is_plain(value)
            )
        yield from _conditions(node, inside)


def _is_plain(value: ast.expr) -> bool:
    """Return whether this is a number or an empty display, which is no condition.

    It is what is taken if the value before it is nothing.
    """
    if isinstance(value, ast.Constant):
        return not isinstance(value.value, bool)
    if (
        isinstance(value, ast.Attribute)
        and isinstance(value.value, ast.Name)
        and value.value.id == "limits"
    ):
        return True
    return (isinstance(value, ast.Dict) and not value.keys) or (
        isinstance(value, ast.Tuple) and not value.elts
    )
