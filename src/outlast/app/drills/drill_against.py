"""`outlast drill --against`: what the options ask for, and what is refused.

    outlast drill llama3-day --against torchrun --against torchft
    outlast drill plan.toml --against-script 'ddp.py --save {run}/model.pt' -- train.py

The faults of the plan are then injected into the same training under each of these launchers.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.app.command_line import whole
from outlast.errors import UsageError
from outlast.runtime.drill import peer_runs

NAMES = ("torchrun", "dcp", "torchft")
OWN_NAME = "torchrun"  # what launches the user's second script
EXAMPLE = "outlast drill PLAN --against-script 'ddp.py --steps 1000' -- train.py --steps 1000"


@dataclass(frozen=True, slots=True)
class Opponent:
    """A launcher that is drilled as outlast is. `command` has words that are replaced later."""

    name: str
    command: tuple[str, ...]

    @property
    def saves(self) -> bool:
        """Return whether it takes how often to save."""
        return peer_runs.EVERY_WORD in self.command


@dataclass(frozen=True, slots=True)
class DrilledBeside:
    """A comparison that is asked for.

    shipped   both sides train the GPT that comes with outlast, and not the user's scripts
    steps     of that; None: as many as the plan needs
    """

    opponents: tuple[Opponent, ...]
    ranks: int
    shipped: bool
    steps: int | None

    def words(self, given: Sequence[str]) -> list[str]:
        """Return what outlast runs. `given`: what follows `--`."""
        return [peer_runs.OUTLASTS_OWN] if self.shipped else list(given)


def add_against(parser: argparse.ArgumentParser) -> None:
    """Add the options of a comparison."""
    to = parser.add_argument_group(
        "the same faults under another launcher",
        "Without a script all train the small GPT that comes with outlast, on the CPU.",
    )
    to.add_argument(
        "--against",
        action="append",
        choices=NAMES,
        help="drill this one too: torchrun with checkpoints by torch.save or by DCP, or torchft;"
        " may be given more than once",
    )
    to.add_argument(
        "--against-script",
        metavar="COMMAND",
        help="your training as you have it for torchrun: the script and its arguments, in quotes",
    )
    to.add_argument(
        "--against-python",
        metavar="PYTHON",
        default=sys.executable,
        help="interpreter for --against torchft (default: this one)",
    )
    to.add_argument(
        "--steps",
        type=whole,
        metavar="N",
        help="of the GPT that comes with outlast (default: as the plan needs, by a short trial)",
    )


def asked(args: argparse.Namespace, words: Sequence[str], *, ranks: int) -> DrilledBeside | None:
    """Return the comparison that the options ask for, or None. `words`: what follows `--`.

    Raises UsageError for what cannot work, before anything is made.
    """
    if args.hosts is not None and (args.against or args.against_script):
        raise UsageError(
            "other launchers are drilled on one host, and --hosts is given",
            hint="leave --hosts or --against out",
        )
    if args.against_script is not None:
        return DrilledBeside((_own_script(args, words, ranks),), ranks, False, None)
    if not args.against:
        if args.steps is not None:
            raise UsageError(
                "--steps needs --against", hint="give your script an option of its own"
            )
        return None
    if words:
        raise UsageError(
            "--against drills the training that comes with outlast, and another script is named",
            hint=f"leave out what follows `--`, or compare your own scripts: {EXAMPLE}",
        )
    if ranks < 2:
        raise UsageError(
            f"--against with --nproc-per-node {ranks}: nobody is left to go on",
            hint="give 2 or more",
        )
    if "torchft" in args.against:
        peer_runs.check_interpreter(args.against_python, "torchft")
    chosen = tuple(
        _shipped(name, args.against_python, ranks) for name in dict.fromkeys(args.against)
    )
    return DrilledBeside(chosen, ranks, True, args.steps)


def _shipped(name: str, torchft_python: str, ranks: int) -> Opponent:
    python = torchft_python if name == "torchft" else sys.executable
    return Opponent(name, peer_runs.shipped_command(name, ranks=ranks, python=python))


def _own_script(args: argparse.Namespace, words: Sequence[str], ranks: int) -> Opponent:
    if args.against or args.steps is not None:
        raise UsageError(
            "--against and --steps are for the training that comes with outlast",
            hint="leave them out: torchrun launches --against-script",
        )
    try:
        script = shlex.split(args.against_script)
    except ValueError as error:
        raise UsageError(f"--against-script {args.against_script!r}: {error}") from None
    if not script or not words:
        raise UsageError("--against-script needs a script on both sides", hint=EXAMPLE)
    if script[0] not in ("-m", "--module") and not os.path.exists(script[0]):
        raise UsageError(f"--against-script: there is no file {script[0]}", hint=EXAMPLE)
    command = peer_runs.torchrun_command(script, ranks=ranks)
    return Opponent(OWN_NAME, command)
