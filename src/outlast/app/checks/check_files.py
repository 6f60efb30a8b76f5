"""The files of a training script: the script itself, and the modules of its own that it imports.

Modules of its own are those in the script's folder, or with `-m` in the current folder. In many
projects the script lies in a folder beside its package, which is installed from there
(`python scripts/train.py`). So the current folder counts as well if the script's is below it.
Modules are found by their names and read as text. Nothing is imported.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outlast.errors import UsageError
from outlast.runtime.folders.given import read_text

MODULES_MAX_COUNT = 50


@dataclass(frozen=True, slots=True)
class ScriptFiles:
    """The files of a script: itself, and the modules of its own that it imports.

    path     the script's file
    module   its name, if it is run with `-m`; "" otherwise
    root     the folder in which Python looks for its modules
    source   the script's text
    others   the texts of its own modules, by absolute path
    """

    path: str
    module: str
    root: str
    source: str
    others: dict[str, str]


def script_files(given: str, *, as_module: bool) -> ScriptFiles:
    """Find and read the files of a script. Raises UsageError where there is no such script."""
    if as_module:
        root = os.getcwd()
        path = next(_candidates(root, given.split("."), main=True), None)
        if path is None:
            raise UsageError(
                f"there is no module {given} in {root}",
                hint="start it in the folder in which `python -m` finds it",
            )
    else:
        path, root = given, os.path.dirname(os.path.abspath(given))
    source = read_text(path)
    here = os.getcwd()
    roots = [root, here] if root.startswith(here.rstrip(os.sep) + os.sep) else [root]
    others = _others(path, source, roots)
    return ScriptFiles(path, given if as_module else "", root, source, others)


def _others(path: str, source: str, roots: Sequence[str]) -> dict[str, str]:
    """Return the modules that the script imports, those that these import, and so on."""
    found: dict[str, str] = {}
    left = [(os.path.abspath(path), source)]
    while left and len(found) < MODULES_MAX_COUNT:
        file, text = left.pop(0)
        for other in _imported(file, text, roots):
            if other in found or other == os.path.abspath(path):
                continue
            try:
                found[other] = read_text(other)
            except UsageError:
                continue  # it cannot be read here, so nothing is said of it
            left.append((other, found[other]))
    return found


def _imported(file: str, source: str, roots: Sequence[str]) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                for root in roots:
                    yield from _candidates(root, one.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            names = (node.module or "").split(".") if node.module else []
            for base in [_above(file, node.level)] if node.level else roots:
                yield from _candidates(base, names)
                for one in node.names:
                    yield from _candidates(base, [*names, one.name])


def _above(file: str, level: int) -> str:
    """Return the folder that a relative import with this number of dots begins in."""
    for _ in range(level):
        file = os.path.dirname(file)
    return file


def _candidates(root: str, names: list[str], *, main: bool = False) -> Iterator[str]:
    """Yield the file of a module, where there is one. `main`: the one that `-m` runs."""
    if not names:
        return
    stem = os.path.join(root, *names)
    for path in (f"{stem}.py", os.path.join(stem, "__main__.py" if main else "__init__.py")):
        if os.path.isfile(path):
            yield path
            return
