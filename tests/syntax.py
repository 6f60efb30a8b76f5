"""The syntax of source texts, for rules that look at all of them in turn."""

from __future__ import annotations

import ast
import functools


@functools.cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """All nodes of a text. It is parsed once, which takes most of what a rule takes."""
    return tuple(ast.walk(ast.parse(source)))
