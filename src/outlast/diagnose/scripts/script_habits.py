"""Habits of training scripts that do not go with outlast, as far as the text shows them.

    a second outlast.join()      handlers for the signals that end a run
    a sys.argv that changes      optimizers that are called in another order on some ranks
    run.draw over an iterator    a fork of a process that has threads
    run.draw of a method that counts batches

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
_CHANGES = frozenset({"append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"})
Habit = tuple[int, str, str]  # line, what is the matter, what to do


def habits(tree: ast.AST, calls: list[tuple[str, ast.Call]], joined_at: int) -> Iterator[Habit]:
    """Yield what is found. `joined_at`: the line of the first outlast.join."""
    yield from _joined_again(tree, calls)
    yield from _handlers(calls)
    yield from _arguments(tree, joined_at)
    yield from _by_rank(tree)
    yield from _iterators_drawn_from(tree, calls)
    yield from _counters_drawn_from(tree, calls)
    yield from _forks_with_threads(calls, joined_at)


def _joined_again(tree: ast.AST, calls: list[tuple[str, ast.Call]]) -> Iterator[Habit]:
    """Find two calls in one function. In two functions they may be two ways to the same run."""
    joins = {id(call) for name, call in calls if name == "outlast.join"}
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        here = [node for node in _own(scope) if id(node) in joins]
        lines = sorted(node.lineno for node in here if isinstance(node, ast.Call))
        for line in lines[1:]:
            yield (
                line,
                f"outlast.join() is called again: it returns the run of line {lines[0]}, and no"
                " other one",
                "call it once, and use what it returned",
            )


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Walk a scope, but not into the functions in it."""
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)


def _handlers(calls: list[tuple[str, ast.Call]]) -> Iterator[Habit]:
    for name, call in calls:
        if name != "signal.signal" or not call.args:
            continue
        given = ast.unparse(call.args[0]).rpartition(".")[2]
        if given in _SIGNALS:
            yield (
                call.lineno,
                f"a handler for {given}: `outlast run` takes that signal, and ends all ranks after"
                " the same step without calling it",
                "put what it does into `finally:` around the loop, or let `outlast run"
                " --checkpoint-every` save",
            )


def _forks_with_threads(calls: list[tuple[str, ast.Call]], joined_at: int) -> Iterator[Habit]:
    """Find os.fork() where threads run: behind outlast.join(), or behind a thread of the script."""
    threads = [
        call.lineno
        for name, call in calls
        if name.rpartition(".")[2] in ("Thread", "ThreadPoolExecutor")
    ]
    since = min([joined_at, *threads])
    for name, call in calls:
        if name in ("os.fork", "os.forkpty") and call.lineno > since:
            yield (
                call.lineno,
                f"{name} copies a process in which threads run (since line {since}): a lock that"
                " one of them holds stays locked in the copy for ever",
                "start a program by subprocess, or use multiprocessing's start method `spawn`",
            )


def _arguments(tree: ast.AST, joined_at: int) -> Iterator[Habit]:
    """Find changes of sys.argv after outlast.join(). Changes before it are done again."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.Assign(targets=targets) if any(map(_is_argv, targets)):
                pass
            case ast.AugAssign(target=target) if _is_argv(target):
                pass
            case ast.Delete(targets=targets) if any(map(_is_argv, targets)):
                pass
            case ast.Call(func=ast.Attribute(value=value, attr=changes)) if (
                changes in _CHANGES and _is_argv(value)
            ):
                pass
            case _:
                continue
        if line > joined_at:
            yield (
                line,
                "sys.argv is changed: a process that replaces a rank begins with the command line"
                " that was given",
                "keep what it says by run.values(...), or change it in front of outlast.join()",
            )


def _is_argv(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="sys"), attr="argv"):
            return True
        case ast.Subscript(value=inner):
            return _is_argv(inner)
        case _:
            return False


def _by_rank(tree: ast.AST) -> Iterator[Habit]:
    """Find optimizers that are called under a condition on the rank."""
    optimizers = {
        target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and "optim." in ast.unparse(node.value)
        for target in node.targets
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.If) or "rank" not in ast.unparse(node.test).lower():
            continue
        orders = [_steps(part, optimizers) for part in (node.body, node.orelse)]
        if [name for name, _ in orders[0]] != [name for name, _ in orders[1]]:
            yield (
                (orders[0] or orders[1])[0][1],
                "the optimizers are called in another order on some ranks, or not on all: a step"
                " that is interrupted between them can then not be finished alike",
                "call the same optimizers in the same order on every rank",
            )


def _iterators_drawn_from(tree: ast.AST, calls: list[tuple[str, ast.Call]]) -> Iterator[Habit]:
    """Find functions given to run.draw that take the next item of an iterator of the script."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for name, call in calls:
        if not name.endswith(".draw") or not call.args:
            continue
        given = call.args[0]
        body: ast.AST = functions.get(given.id, given) if isinstance(given, ast.Name) else given
        for iterator in _taken_from(body):
            yield (
                call.lineno,
                f"what run.draw calls takes the next item of {iterator}, and a rank that is"
                f" replaced begins {iterator} anew",
                "give it a function that returns the batch of a number: run.draw(read,"
                " numbered=True)",
            )
            break


def _counters_drawn_from(tree: ast.AST, calls: list[tuple[str, ast.Call]]) -> Iterator[Habit]:
    """Find methods given to run.draw that move an object which run.state is not given."""
    kept = {
        node.id
        for name, call in calls
        if name.endswith(".state")
        for given in [*call.args, *(one.value for one in call.keywords)]
        for node in ast.walk(given)
        if isinstance(node, ast.Name)
    }
    for name, call in calls:
        if not name.endswith(".draw") or not call.args or call.keywords:
            continue
        for node in ast.walk(call.args[0]):
            match node:
                case ast.Attribute(value=ast.Name(id=owner), attr=method) if owner not in kept:
                    moved = _moved_by(tree, method)
                case _:
                    continue
            if moved:
                yield (
                    call.lineno,
                    f"what run.draw calls moves {owner}.{moved}, which is not kept: a rank that is"
                    " replaced begins with the first batch",
                    "give it a function that returns the batch of a number: run.draw(read,"
                    " numbered=True)",
                )
                break


def _moved_by(tree: ast.AST, method: str) -> str:
    """Return an attribute that a method of this name counts on; "" if there is none."""
    for kind in ast.walk(tree):
        if not isinstance(kind, ast.ClassDef):
            continue
        for function in kind.body:
            if isinstance(function, ast.FunctionDef) and function.name == method:
                for node in ast.walk(function):
                    match node:
                        case ast.AugAssign(
                            target=ast.Attribute(value=ast.Name(id="self"), attr=attribute)
                        ):
                            return attribute
                        case _:
                            pass
    return ""


def _taken_from(body: ast.AST) -> Iterator[str]:
    """Yield the names of iterators that `body` takes items of and does not make by itself."""
    own = {
        node.id
        for node in ast.walk(body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(body):
        match node:
            case ast.Call(func=ast.Name(id="next"), args=[ast.Name() | ast.Attribute() as of, *_]):
                pass
            case ast.Attribute(value=ast.Name() | ast.Attribute() as of, attr="__next__"):
                pass
            case _:
                continue
        name = ast.unparse(of)
        if name not in own:
            yield name


def _steps(body: list[ast.stmt], optimizers: set[str]) -> list[tuple[str, int]]:
    """Return the optimizers whose `step` is called, in order, with the lines."""
    found = []
    for statement in body:
        for node in ast.walk(statement):
            match node:
                case ast.Call(func=ast.Attribute(value=inner, attr="step"), lineno=line):
                    name = inner.id if isinstance(inner, ast.Name) else getattr(inner, "attr", "")
                    if name in optimizers:
                        found.append((name, line))
                case _:
                    pass
    return sorted(found, key=lambda one: one[1])
