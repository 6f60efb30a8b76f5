"""Which variables of a script are only shown to people: a running loss that is printed.

Such a variable starts over on a rank that is replaced, and nothing else depends on it.

    running += loss.item()                      # its own update
    print(f"loss {running / count:.4f}")        # shown
    if running > 3: break                       # decides something: not only shown

A variable that is read only before the loop is not needed at all.

A value that becomes part of a text is shown. Limits: one that reaches a line of output by way of
another number counts as used.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast

from outlast.diagnose.scripts.script_calls import dotted, last_name

_SHOWS = frozenset(
    {
        "print",
        "info",
        "debug",
        "warning",
        "log",
        "log_metrics",
        "add_scalar",
        "add_scalars",
        "set_description",
        "set_postfix",
        "set_postfix_str",
        "write",
        "format",
    }
)
_COMPUTES = ("math.", "torch.", "np.", "numpy.")  # math.log


def is_only_shown(source: str, function: str, name: str) -> bool:
    """Return whether the function ("<module>": the file) only updates and shows the variable."""
    scopes = _scopes(source, function)
    return bool(scopes) and all(shows_only(scope, name) for scope in scopes)


def _scopes(source: str, function: str) -> list[ast.AST]:
    """Return the functions of this name ("<module>": the file); none if the source has an error."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    if function == "<module>":
        return [tree]
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
    ]


def shows_only(scope: ast.AST, name: str) -> bool:
    """Return whether the variable is shown, and each other line that reads it updates it."""
    shown: set[int] = set()
    own: set[int] = set()
    for node in ast.walk(scope):
        match node:
            case ast.Call(func=func) if _shows(dotted(func)):
                shown.update(map(id, ast.walk(node)))
            case ast.JoinedStr() | ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
                shown.update(map(id, ast.walk(node)))
            case ast.AugAssign(target=ast.Name(id=found), value=value) if found == name:
                own.update(map(id, ast.walk(value)))
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                own.update(map(id, ast.walk(value)))
            case _:
                pass
    read = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]
    return any(id(node) in shown for node in read) and all(
        id(node) in shown or id(node) in own for node in read
    )


def _shows(call: str) -> bool:
    return last_name(call) in _SHOWS and not call.startswith(_COMPUTES)


def is_read_before(source: str, function: str, name: str, line: int) -> bool:
    """Return whether a variable is read only before the training loop, or never.

    function   the function that has the loop; "<module>": the file
    line       the line of the loop

    A loop around that one, or a function that is defined in this one, may run again later. So what
    is read there does not count as read before.
    """
    scopes = _scopes(source, function)
    if len(scopes) != 1 or "." in name:
        return False
    (scope,) = scopes
    begins = [
        node.lineno
        for node in ast.walk(scope)
        if isinstance(node, ast.For | ast.While) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    later = {
        id(inner)
        for node in ast.walk(scope)
        if node is not scope
        and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
        for inner in ast.walk(node)
    }
    first = min([line, *begins])
    updated = {id(node.target) for node in ast.walk(scope) if isinstance(node, ast.AugAssign)}
    return all(
        node.lineno < first and id(node) not in later
        for node in ast.walk(scope)
        if isinstance(node, ast.Name)
        and node.id == name
        and (isinstance(node.ctx, ast.Load) or id(node) in updated)
    )
