"""Where the text of a script sets a variable.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast


def last_set(source: str, function: str, name: str) -> int:
    """Return the last line of the function ("<module>": of the file) that sets the variable.

    If nothing else sets it, a call of one of its methods counts, such as `history.append(x)`. The
    result is 1 if nothing sets it.
    """
    try:
        tree: ast.AST = ast.parse(source)
    except (SyntaxError, ValueError):
        return 1
    scope = tree if function == "<module>" else _function(tree, function) or tree
    wanted = name.rpartition(".")[2]
    attribute = "." in name
    set_at, used_at = [0], [0]
    for node in ast.walk(tree if attribute or scope is tree else scope):
        match node:
            case ast.Name(id=found, ctx=ast.Store()) if not attribute and found == wanted:
                set_at.append(node.lineno)
            case ast.Attribute(attr=found, ctx=ast.Store()) if attribute and found == wanted:
                set_at.append(node.lineno)
            case ast.Subscript(value=inner, ctx=ast.Store()) if _named(inner) == wanted:
                set_at.append(node.lineno)
            case ast.Call(func=ast.Attribute(value=inner)) if _named(inner) == wanted:
                used_at.append(node.lineno)
            case ast.arg(arg=found) if not attribute and found == wanted:
                used_at.append(node.lineno)
            case _:
                pass
    if attribute and not max(set_at):  # of a closure
        return last_set(source, "<module>", wanted)
    return max(set_at) or max(used_at) or 1


def _function(tree: ast.AST, name: str) -> ast.AST | None:
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    ]
    return found[-1] if found else None


def _named(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
