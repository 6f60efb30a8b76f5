"""A process that has imported the commands of outlast, and runs each command line in a fork of it.

Most of what a short command takes is the start of its interpreter, and the tests start hundreds.
A fork has its own working folder, environment and streams, as a command in a shell has.

Each line of stdin is one request, as JSON: `arguments`, `cwd`, `environment`, the files `stdout`
and `stderr`, and `within_s`. Each is answered by a line with the exit code. It is negative for a
signal, as in subprocess, and null for a command that was not over in time and was killed.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import select
import signal
import sys
import traceback
from typing import Any, NoReturn

from outlast.app import cli

# Commands that start workers import nothing ahead.
STARTS_WORKERS = ("run", "check")
# What is imported once a command is asked for, because it takes seconds.
LATE = {"ckpt": "outlast.runtime.worker.saving.saved_weights"}


def main() -> None:
    for name, command in cli.COMMANDS.items():
        if name not in STARTS_WORKERS:
            importlib.import_module(command.module)
    for line in sys.stdin:
        request = json.loads(line)
        for late in {LATE[word] for word in request["arguments"][:1] if word in LATE}:
            importlib.import_module(late)
        print(json.dumps(_answer(request)), flush=True)


def _answer(request: dict[str, Any]) -> int | None:
    child = os.fork()
    if not child:
        _run(request)
    over = os.pidfd_open(child)
    in_time = bool(select.select([over], [], [], request["within_s"])[0])
    os.close(over)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if in_time else None


def _run(request: dict[str, Any]) -> NoReturn:
    os.environ.clear()
    os.environ.update(request["environment"])
    encoding = os.environ["PYTHONIOENCODING"]
    for number, name in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding=encoding),
        io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding=encoding),
        io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(2, "w", closefd=False)),
            encoding=encoding,
            errors="backslashreplace",
        ),
    )
    code: Any = 1
    try:
        if request["cwd"] is not None:
            os.chdir(request["cwd"])
        code = cli.main(request["arguments"])
    except SystemExit as end:
        code = end.code
    except BaseException:  # boundary: the interpreter's, which prints what nobody caught
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
