"""The command `outlast`.

Exit codes   0 ended well, 1 the run failed, 2 usage, 3 undetermined (diagnose: unknown), 130 and
             143 on SIGINT and SIGTERM.
Start        Neither torch nor Rich is imported before a subcommand needs it.
"""

from __future__ import annotations

import argparse
import difflib
import io
import math
import os
import sys
import typing
from collections.abc import Callable, Mapping, Sequence

from outlast.errors import OutlastError, UsageError

SIGINT_EXIT = 130

COMMANDS = {
    "run": "train with a script, and go on through failures (torchrun's flags)",
    "status": "how a run stands now",
    "report": "where the time of a run went, and every interruption",
    "diagnose": "who, where and why: from logs, dumps, stacks and kernel messages to one verdict",
    "policy": (
        "what is done once an interruption has a verdict: show, check, try on recorded incidents"
    ),
    "calibrate": (
        "from ledgers, or a table of failures: rates, phases of recovery, and how sure they are"
    ),
    "plan": "look ahead: how often to save, where to, how many spares, how far a run can grow",
    "sim": (
        "simulated lives of runs, from seeds: the code that decides, under faults nobody would"
        " think of"
    ),
}


class Parser(argparse.ArgumentParser):
    """argparse with errors that say what to do, and no abbreviated flags.

    Raises UsageError instead of leaving the process.
    """

    def __init__(self, *args: typing.Any, **keywords: typing.Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **keywords})

    def error(self, message: str) -> typing.NoReturn:
        raise UsageError(message, hint=f"`{self.prog} --help` lists what there is")


def finite(text: str) -> float:
    """An argument that is a number, for argparse. NaN and infinity are refused."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number")
    return value


class _Version(argparse.Action):
    """Looks the version up only when it is asked for; the look-up costs more than the rest of the
    start.
    """

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from importlib.metadata import version

        print(f"outlast {version('outlast')}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code.

    Errors go to stderr as `error: ...`, a blank line, `hint: ...`.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a path or a traceback may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        return _dispatch(arguments)
    except OutlastError as error:
        return fail(error)
    except KeyboardInterrupt:
        return SIGINT_EXIT
    except BrokenPipeError:  # `outlast report | head`
        # What is still buffered must go somewhere at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)  # tidy: the device that swallows it
        os.dup2(nowhere, sys.stdout.fileno())
        return 0


def fail(error: OutlastError) -> int:
    """Say the error on stderr; its exit code."""
    print(f"error: {error}", file=sys.stderr)
    return error.exit_code


def _dispatch(arguments: list[str]) -> int:
    if arguments[:1] == ["run"]:
        from outlast.app.run import main as run

        return run(arguments[1:])
    if arguments[:1] == ["diagnose"]:
        from outlast.app.diagnose import main as diagnose

        return diagnose(arguments[1:])
    if arguments[:1] == ["policy"]:
        from outlast.app.policy import main as policy

        return policy(arguments[1:])
    if arguments[:1] == ["calibrate"]:
        from outlast.app.calibrate import main as calibrate

        return calibrate(arguments[1:])
    if arguments[:1] == ["plan"]:
        from outlast.app.plan import main as plan

        return plan(arguments[1:])
    if arguments[:1] == ["sim"]:
        from outlast.app.sim import main as sim

        return sim(arguments[1:])
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 2
    command = arguments[0]
    if not command.startswith("-") and command not in COMMANDS:
        close = difflib.get_close_matches(command, COMMANDS, n=1)
        raise UsageError(
            f"there is no command {command!r}",
            hint=(
                f"did you mean `outlast {close[0]}`?"
                if close
                else "`outlast --help` lists the commands"
            ),
        )
    options = parser.parse_args(arguments)
    return _show(options.command, options.run, as_json=options.json)


def _parser() -> Parser:
    parser = Parser(
        prog="outlast",
        description="PyTorch training that outlives its workers, and says where every second went.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and leave")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=Parser
    )
    # they have parsers of their own
    for name in ("run", "diagnose", "policy", "calibrate", "plan", "sim"):
        commands.add_parser(name, help=COMMANDS[name], add_help=False)
    for name in ("status", "report"):
        one = commands.add_parser(
            name,
            help=COMMANDS[name],
            description=(
                f"Say {COMMANDS[name]}."
                if name == "status"
                else "Say where the time of a run went."
            ),
        )
        one.add_argument(
            "run",
            nargs="?",
            metavar="RUN",
            help="a run's folder, or its name under runs/ (default: the newest)",
        )
        one.add_argument(
            "--json", action="store_true", help="for programs: one JSON object on stdout"
        )
    return parser


def _show(command: str, run: str | None, *, as_json: bool) -> int:
    from outlast.runtime.ledger.view import look

    view = look(run)
    facts: Mapping[str, typing.Any]
    show: Callable[..., None]
    if command == "status":
        from outlast.app.status import show_status as show
        from outlast.app.status import status_facts

        facts = status_facts(view)
    else:
        from outlast.app.report import report_facts
        from outlast.app.report import show_report as show

        facts = report_facts(view)
    if as_json:
        from outlast.app.json_text import json_text

        print(json_text(facts))
    else:
        from outlast.app.words import console_for

        console = console_for(environment=os.environ)
        with console.capture() as page:
            show(console, facts)
        print("\n".join(line.rstrip() for line in page.get().splitlines()))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
