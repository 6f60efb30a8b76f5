"""Variables that a training loop carries from one step into the next without outlast's knowledge.

A replaced rank runs the script from its top, so such a variable has its first value again: a batch
that was drawn ahead, the best loss so far, a counter of patience. outlast keeps only what run.state
was given. The loop is read as text, once; nothing of it is run.

    for step in run.steps(state, until=100):
        with step:
            loss = train(X)          # X is read here ...
        X = get_batch()              # ... and was set by the step before

Not seen: variables that called functions keep for themselves, attributes, elements of lists and
dicts, and loops whose source is not available. Times (`t0 = time.time()`) and differences of times
are left out.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field

from outlast.diagnose.scripts.called_reads import CalledReads, attributes_read
from outlast.diagnose.scripts.only_shown import shows_only

_CLOCKS = frozenset({"time", "monotonic", "perf_counter", "process_time", "now", "time_ns"})


@dataclass(frozen=True, slots=True)
class Carried:
    """A variable that is carried. At `line` a step reads what an earlier step has set."""

    name: str
    line: int


def carried(source: str, line: int) -> list[Carried]:
    """Return what the loop over run.steps at `line` carries from step to step, by its lines.

    A running loss that is only printed is left out if it has a value before the loop. Without one,
    a replaced rank would raise a NameError. Empty where the source cannot be read, or where there
    is no such loop.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    loop = _loop_at(tree, line)
    if loop is None:
        return []
    scope = _scope_of(tree, loop)
    return [
        one
        for one in _read_first(loop)
        if not (shows_only(scope, one.name) and _is_set_in_front(scope, loop, one.name))
    ]


def _is_set_in_front(scope: ast.AST, loop: ast.For, name: str) -> bool:
    """Return whether `name` has a value in this scope before the loop begins."""
    for node in ast.walk(scope):
        match node:
            case ast.Name(id=found, ctx=ast.Store(), lineno=at) if found == name:
                if at < loop.lineno:
                    return True
            case ast.Global(names=names) | ast.Nonlocal(names=names) if name in names:
                return True
            case ast.arg(arg=found) if found == name:
                return True
            case _:
                pass
    return False


def _scope_of(tree: ast.Module, loop: ast.For) -> ast.AST:
    """Return the innermost function that holds the loop, or the file."""
    found: list[ast.AST] = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno < loop.lineno <= (node.end_lineno or node.lineno)
    ]
    return found[-1] if found else tree


def _read_first(loop: ast.For) -> list[Carried]:
    """Return the variables that a round may read before it sets them."""
    reading = _Reading(_assigned(loop.body) - _clocks(loop.body) - _names(loop.target))
    reading.block(loop.body, set())
    return [Carried(name, at) for name, at in sorted(reading.first.items(), key=lambda one: one[1])]


def temporaries(source: str, line: int) -> frozenset[str]:
    """Return the names that the loop at `line` sets in each round before it reads them.

    Attributes are among them (`self.loss`), unless a function that is called before they are set
    may read them.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return frozenset()
    loop = _loop_at(tree, line)
    if loop is None:
        return frozenset()
    read_first = {one.name for one in _read_first(loop)}
    names = (_assigned(loop.body) | _names(loop.target)) - read_first
    return frozenset(names | _attributes_set_first(tree, loop))


def _attributes_set_first(tree: ast.Module, loop: ast.For) -> set[str]:
    body = [_Dotted().visit(deepcopy(statement)) for statement in loop.body]
    wanted = {name for name in _assigned(body) if "." in name}
    reading = _Reading(wanted, calls=attributes_read(tree))
    reading.block(body, set())
    return wanted - reading.first.keys()


class _Dotted(ast.NodeTransformer):
    """Turn each attribute of a name into one name: `self.loss`."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name):
            name = ast.Name(f"{node.value.id}.{node.attr}", node.ctx)
            return ast.copy_location(name, node)
        return self.generic_visit(node)


def _loop_at(tree: ast.AST, line: int) -> ast.For | None:
    """Return the innermost `for` over a call of `.steps(...)` whose head holds the line."""
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For)
        and node.lineno <= line <= (node.iter.end_lineno or node.lineno)
        and any(
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "steps"
            for call in ast.walk(node.iter)
        )
    ]
    return found[-1] if found else None


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def _own_nodes(statements: Iterable[ast.stmt]) -> Iterable[ast.AST]:
    """Walk the statements, but not into functions and classes, whose names are their own."""
    todo: list[ast.AST] = list(statements)
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, _SCOPES):
            todo.extend(ast.iter_child_nodes(node))


_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def _assigned(body: list[ast.stmt]) -> set[str]:
    return {
        node.id
        for node in _own_nodes(body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _clocks(body: list[ast.stmt]) -> set[str]:
    """Return names that are set from a clock, or from another such name, and from nothing else."""
    values: dict[str, list[ast.expr]] = {}
    for node in _own_nodes(body):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for part, value in _pairs(target, node.value):
                    for name in _names(part):
                        values.setdefault(name, []).append(value)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign) and node.value is not None:
            for name in _names(node.target):
                values.setdefault(name, []).append(node.value)
    clocks: set[str] = set()
    while True:
        more = {
            name
            for name, given in values.items()
            if name not in clocks and all(_is_clock(value, clocks) for value in given)
        }
        if not more:
            return clocks
        clocks |= more


def _pairs(target: ast.expr, value: ast.expr) -> Iterable[tuple[ast.expr, ast.expr]]:
    """Return what is assigned to what: `dt, t0 = time.time() - t0, time.time()` has two pairs."""
    match target, value:
        case (ast.Tuple(elts=names), ast.Tuple(elts=values)) if len(names) == len(values):
            return zip(names, values, strict=True)
        case _:
            return [(target, value)]


def _is_clock(value: ast.expr, clocks: set[str]) -> bool:
    """Return whether this is a time, or a difference of times."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Sub):
        return _is_clock(value.left, clocks) and _is_clock(value.right, clocks)
    if isinstance(value, ast.Call):
        called = value.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        return name in _CLOCKS
    return isinstance(value, ast.Name) and value.id in clocks


@dataclass(slots=True)
class _Reading:
    """Go through one round of the loop, in the order in which it runs.

    calls   what called functions may read of attributes; None: attributes do not count
    """

    wanted: set[str]
    first: dict[str, int] = field(default_factory=dict)
    calls: CalledReads | None = None

    def block(self, body: list[ast.stmt], known: set[str]) -> set[str]:
        """Return the names that are surely set after the statements."""
        for statement in body:
            known = self._statement(statement, known)
        return known

    def _statement(self, node: ast.stmt, known: set[str]) -> set[str]:
        match node:
            case ast.Assign(targets=targets, value=value):
                self._reads(value, known)
                for target in targets:
                    self._reads(target, known)
                return known.union(*map(_stored, targets))
            case ast.AnnAssign(target=target, value=given):
                if given is not None:
                    self._reads(given, known)
                    return known | _stored(target)
                return known
            case ast.AugAssign(target=target, value=value):
                self._reads(value, known)
                if isinstance(target, ast.Name):
                    self._read(target, known)
                else:
                    self._reads(target, known)
                return known | _stored(target)
            case ast.If(test=test, body=body, orelse=orelse):
                known = known | _made_once(test)
                self._reads(test, known)
                return self.block(body, set(known)) & self.block(orelse, set(known))
            case ast.For(target=target, iter=source, body=body, orelse=orelse):
                self._reads(source, known)
                # such a loop, over micro-batches for example, is taken to run at least once
                return self.block(orelse, self.block(body, known | _stored(target)))
            case ast.While(test=test, body=body, orelse=orelse):
                self._reads(test, known)
                self.block(body, set(known))
                self.block(orelse, set(known))
                return known
            case ast.With(items=items, body=body):
                for item in items:
                    self._reads(item.context_expr, known)
                    known = known | (_stored(item.optional_vars) if item.optional_vars else set())
                return self.block(body, known)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                after = self.block(orelse, self.block(body, set(known)))
                for handler in handlers:
                    self.block(handler.body, set(known))
                return self.block(final, after if not handlers else set(known))
            case _:
                self._reads(node, known)
                return known

    def _reads(self, node: ast.AST, known: set[str]) -> None:
        for one in _own_nodes_of(node):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
                self._read(one, known)
            elif isinstance(one, ast.Call) and self.calls is not None:
                for name in self.wanted - known:
                    if self.calls.may_read(one, name):
                        self.first.setdefault(name, one.lineno)
        for one in _own_nodes_of(node):
            if isinstance(one, ast.NamedExpr):
                known.add(one.target.id)

    def _read(self, name: ast.Name, known: set[str]) -> None:
        if name.id in self.wanted and name.id not in known:
            self.first.setdefault(name.id, name.lineno)


def _made_once(test: ast.expr) -> set[str]:
    """Return `x` of `if x is None:`. Such a value is made when it is first needed, so it is made
    again.
    """
    match test:
        case ast.Compare(
            left=ast.Name(id=name), ops=[ast.Is()], comparators=[ast.Constant(value=None)]
        ):
            return {name}
        case ast.UnaryOp(op=ast.Not(), operand=ast.Name(id=name)):
            return {name}
        case ast.BoolOp(op=ast.And(), values=[first, *_]):
            return _made_once(first)
        case _:
            return set()


def _own_nodes_of(node: ast.AST) -> Iterable[ast.AST]:
    """Walk an expression, but not into functions. A comprehension runs where it stands."""
    todo: list[tuple[ast.AST, frozenset[str]]] = [(node, frozenset())]
    while todo:
        one, hidden = todo.pop()
        if isinstance(one, ast.Name) and one.id in hidden:
            continue  # a name of the comprehension's own
        yield one
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(one, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            hidden = hidden.union(*(_stored(part.target) for part in one.generators))
        todo += [(child, hidden) for child in ast.iter_child_nodes(one)]


def _stored(target: ast.AST) -> set[str]:
    return {
        one.id
        for one in ast.walk(target)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
