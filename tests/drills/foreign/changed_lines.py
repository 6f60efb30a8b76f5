"""Count the lines of a script that were changed to adopt outlast."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path


def changed_lines(old: Path, new: Path) -> tuple[int, int]:
    """Return how many lines were added or changed, and how many of the old ones are gone.

    Lines whose indentation alone changed, empty ones, and the docstring of the file are not
    counted.
    """
    before, after = (_lines(path) for path in (old, new))
    changes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    added = sum(j2 - j1 for tag, _, _, j1, j2 in changes if tag != "equal")
    removed = sum(i2 - i1 for tag, i1, i2, _, _ in changes if tag != "equal")
    return added, removed


def _lines(path: Path) -> list[str]:
    text = path.read_text()
    first = ast.parse(text).body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    begin = (first.end_lineno or 0) if is_docstring else 0
    return [line.strip() for line in text.splitlines()[begin:] if line.strip()]
