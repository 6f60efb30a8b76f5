"""Which branches of `outlast.engine` simulated lives come to, counted from outside the code.

    python -m tools.branches --seeds 300            the share of each file, and what was missed
    python -m tools.branches --seeds 300 --json     the same for a program

A branch is the body of an `if`, `elif`, `else`, `case` or `except`. Each module of the engine is
compiled with one call more at the head of each branch; its files stay as they are. So this has to
run in a process of its own: modules that are imported already cannot be counted.

A branch that no life comes to is not wrong. Unit tests reach many of them by hand. But a branch
that *stopped* being reached says that the swarm no longer tests it.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

ENGINE = Path(__file__).parents[2] / "src" / "outlast" / "engine"
PROBE = "__came_to_branch__"


class Branches:
    """Every branch that was compiled, and those that were taken."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int, str]] = []  # file, line, function and condition
        self.taken: set[int] = set()

    def probe(self, file: str, line: int, what: str) -> ast.stmt:
        """Return the statement that notes one branch when it is taken."""
        self.places.append((file, line, what))
        call = f"{PROBE}({len(self.places) - 1})"
        return ast.fix_missing_locations(ast.parse(call).body[0])


class _Instrument(ast.NodeTransformer):
    """Put a probe at the head of each branch of one module."""

    def __init__(self, branches: Branches, file: str) -> None:
        self._branches, self._file = branches, file
        self._within: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._named(node, node.name)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._named(node, node.name)

    def _named(self, node: ast.AST, name: str) -> ast.AST:
        self._within.append(name)
        self.generic_visit(node)
        self._within.pop()
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return node
        condition = ast.unparse(node.test)
        is_elif = len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
        at = node.orelse[0].lineno if node.orelse else 0
        self.generic_visit(node)
        node.body.insert(0, self._probe(node.lineno, f"if {condition}"))
        if node.orelse and not is_elif:
            node.orelse.insert(0, self._probe(at, f"else of if {condition}"))
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        self.generic_visit(node)
        if not _never(node.body):
            at = node.body[0].lineno
            node.body.insert(0, self._probe(at, f"case {ast.unparse(node.pattern)}"))
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, self._probe(node.lineno, "except"))
        return node

    def _probe(self, line: int, what: str) -> ast.stmt:
        return self._branches.probe(self._file, line, f"{'.'.join(self._within)}: {what}")


def _never(body: Sequence[ast.stmt]) -> bool:
    """Return True for `assert_never(...)`, which nothing can come to."""
    return "assert_never" in ast.unparse(body[0])


class _Loader(importlib.machinery.SourceFileLoader):
    branches: Branches

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source with its probes, past any compiled copy on the disk."""
        path = Path(self.path)
        tree = ast.parse(path.read_text())
        file = str(path.relative_to(ENGINE))
        return compile(_Instrument(self.branches, file).visit(tree), self.path, "exec")


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of the engine, and loads them with probes."""

    def __init__(self, branches: Branches) -> None:
        self._branches = branches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("outlast.engine"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return spec
        loader = _Loader(fullname, spec.origin)
        loader.branches = self._branches
        return importlib.util.spec_from_file_location(
            fullname,
            spec.origin,
            loader=loader,
            submodule_search_locations=spec.submodule_search_locations,
        )


def count(seeds: Sequence[int]) -> Branches:
    """Live through `seeds`, and note which branches of the engine they come to."""
    branches = Branches()
    setattr(builtins, PROBE, branches.taken.add)
    sys.meta_path.insert(0, Finder(branches))
    from outlast.sim.simulated_run import (
        simulate_seed,  # only now, so that the engine is loaded with its probes
    )

    for seed in seeds:
        simulate_seed(seed=seed, given={})
    return branches


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=300, help="how many seeds to live through")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--also", type=int, nargs="*", default=[], help="seeds beside these")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    branches = count([*args.also, *range(args.first, args.first + args.seeds)])
    files: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    missed = []
    for number, (file, line, what) in enumerate(branches.places):
        files[file][0] += number in branches.taken
        files[file][1] += 1
        if number not in branches.taken:
            missed.append(f"{file}:{line}: {what}")
    if args.json:
        print(json.dumps({"files": dict(sorted(files.items())), "missed": sorted(missed)}))
        return 0
    for file, (taken, there) in sorted(files.items()):
        print(f"{taken:4} of {there:4}  {file}")
    print("\nnot reached:", *sorted(missed), sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
