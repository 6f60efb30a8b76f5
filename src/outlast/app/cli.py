"""The command `outlast`: the table of its subcommands, and the call of each of them.

A subcommand's module is imported only when it is called. So `outlast --help` is fast, and needs
neither torch nor Rich.

Exit codes:

0          ended well
1          the run failed
2          wrong usage
3          undetermined; for `diagnose`: the cause is unknown
129, 130   a run was ended by SIGHUP, by SIGINT
131, 143   a run was ended by SIGQUIT, by SIGTERM
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from outlast.app.command_line import Parser, fail
from outlast.errors import CapacityError, OutlastError, UsageError, message_of
from outlast.model import limits
from outlast.runtime.standard_streams import open_missing_streams

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Command(NamedTuple):
    """A subcommand: the module and the function that take its arguments, and one line of help."""

    module: str
    function: str
    help: str


COMMANDS = {
    "run": Command(
        "outlast.app.launch.run",
        "main",
        "train with a script and keep going through failures (takes torchrun's options)",
    ),
    "check": Command(
        "outlast.app.checks.check",
        "main",
        "run a script for a few steps, kill ranks, and name what was not kept",
    ),
    "drill": Command(
        "outlast.app.drills.drill",
        "main",
        "train with a script undisturbed, then under faults, and score what was survived",
    ),
    "status": Command("outlast.app.views.run_views", "status", "show how a run is doing now"),
    "report": Command(
        "outlast.app.views.run_views",
        "report",
        "show where the time of a run went, and its failures",
    ),
    "stop": Command(
        "outlast.app.control", "stop", "stop a run once the step in flight is committed"
    ),
    "drain": Command(
        "outlast.app.control", "drain", "move the ranks of a node to other nodes, losing no step"
    ),
    "cordon": Command("outlast.app.control", "cordon", "give a node no more work"),
    "uncordon": Command("outlast.app.control", "uncordon", "give a node work again"),
    "top": Command("outlast.app.views.top", "main", "watch a run over the whole screen"),
    "serve": Command(
        "outlast.app.web.serve",
        "main",
        "show runs in a browser, live",
    ),
    "metrics": Command(
        "outlast.app.reports.metrics_command",
        "main",
        "print, serve or write the metrics of a run, for Prometheus",
    ),
    "import": Command(
        "outlast.app.reports.importer",
        "main",
        "make a ledger of torchrun's logs, Slurm's accounting or a table of failures",
    ),
    "export": Command(
        "outlast.app.reports.export",
        "main",
        "write the ledger of a run as CSV, JSON lines or Parquet",
    ),
    "diagnose": Command(
        "outlast.app.diagnosis.diagnose",
        "main",
        "find out which rank failed, where and why, from logs, dumps and stacks",
    ),
    "ckpt": Command(
        "outlast.app.checkpoints.ckpt",
        "main",
        "list, verify, prune, write and export the checkpoints of a run",
    ),
    "policy": Command(
        "outlast.app.policy",
        "main",
        "show, check or try a policy: what to do once a failure has been diagnosed",
    ),
    "calibrate": Command(
        "outlast.app.planning.calibrate",
        "main",
        "estimate failure rates and recovery times from past runs or a table of failures",
    ),
    "plan": Command(
        "outlast.app.planning.plan",
        "main",
        "plan a run: how often to save and where, how many spares, how far it can grow",
    ),
    "sim": Command(
        "outlast.app.sim",
        "main",
        "simulate runs under random faults, with the code that decides in real runs",
    ),
    "completion": Command(
        "outlast.app.completion",
        "main",
        "print a script that lets bash or zsh complete all of this",
    ),
}


class _Version(argparse.Action):
    """Look the version up only when it is asked for: that costs more than the rest of the start."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from importlib.metadata import version

        print(f"outlast {version('outlast')}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code.

    Errors go to stderr as `error: ...`, a blank line, `hint: ...`.
    """
    open_missing_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a path or a traceback may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _dispatch(arguments)
        if arguments[:1] != ["run"]:  # the code of a run is the training's, whatever is read of it
            _flush()
        return code
    except OutlastError as error:
        return fail(error)
    except KeyboardInterrupt:
        return limits.SIGINT_EXIT_CODE
    except BrokenPipeError:  # `outlast report | head`
        _swallow_output()
        return 0
    except OSError as error:  # `outlast report > FILE`, and the disk is full
        if error.filename is not None or error.errno not in _FULL:
            raise
        _swallow_output()
        return fail(
            CapacityError(
                f"the output cannot be written: {message_of(error)}",
                hint="make room where it is written to, or write it elsewhere",
            )
        )


def _flush() -> None:
    """Write what is buffered for stdout. If its reader is gone, discard it: the command is done."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _swallow_output()


def _swallow_output() -> None:
    """Discard the output that is still buffered for stdout. Python would write it at its exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)  # tidy: the device that swallows it
    os.dup2(nowhere, sys.stdout.fileno())


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        parser().print_help()
        return 2
    name, *rest = arguments
    if name in COMMANDS:
        command = COMMANDS[name]
        run: Callable[[Sequence[str]], int] = getattr(
            importlib.import_module(command.module), command.function
        )
        return run(rest)
    if name == "help":
        return _dispatch([*rest[:1], "--help"])
    if name.startswith("-"):
        if name in ("-h", "--help", "--version"):
            parser().parse_args(arguments)  # ends here
        raise UsageError(
            f"no command stands in front of {name}",
            hint="write the command first, as in `outlast run --nproc-per-node 4 train.py`",
        )
    raise UsageError(f"there is no command {name!r}", hint=_meant_command(name))


# what others call it
_COMMANDS_ELSEWHERE = {
    "launch": "run",
    "torchrun": "run",
    "train": "run",
    "start": "run",
    "ps": "status",
    "list": "status",
    "ls": "status",
    "info": "status",
    "logs": "report",
    "log": "report",
    "show": "report",
    "watch": "top",
    "monitor": "top",
    "ui": "serve",
    "web": "serve",
    "dashboard": "serve",
    "kill": "stop",
    "cancel": "stop",
    "checkpoint": "ckpt",
    "checkpoints": "ckpt",
    "test": "drill",
    "resume": "run --run-dir RUN --resume",
}


def _meant_command(name: str) -> str:
    if name.endswith(".py"):
        return f"did you mean `outlast run {name}`?"
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    meant = _COMMANDS_ELSEWHERE.get(name) or (close[0] if close else "")
    return f"did you mean `outlast {meant}`?" if meant else "`outlast --help` lists the commands"


def parser() -> Parser:
    """Return the parser of `outlast` itself, which lists the commands."""
    out = Parser(
        prog="outlast",
        description="Train with PyTorch through failures, and see where every second went.",
        epilog="`outlast COMMAND --help` explains one command.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),
    )
    out.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = out.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.help, add_help=False)
    return out


if __name__ == "__main__":
    sys.exit(main())
