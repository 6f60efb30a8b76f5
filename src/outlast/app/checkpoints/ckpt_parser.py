"""The options of `outlast ckpt`."""

from __future__ import annotations

import argparse

from outlast.app import control_parser
from outlast.app.command_line import Parser, add_json, add_run, whole
from outlast.model.limits import CHECKPOINTS_KEPT_COUNT

_RUN = (
    "the run's folder or its name under runs/, a folder of checkpoints, one checkpoint, or a URL"
    " such as s3://BUCKET/PATH (default: the newest run)"
)


def parser() -> Parser:
    """Return the parser of the command."""
    out = Parser(
        prog="outlast ckpt",
        description=(
            "List and verify checkpoints, remove old ones, and export weights. The run may still be"
            " training."
        ),
    )
    commands = out.add_subparsers(dest="command", required=True, metavar="COMMAND")
    ls = commands.add_parser("ls", help="list checkpoints: step, size, age, state")
    _add_run(ls)
    _add_verify(commands.add_parser("verify", help="read every byte, and say which are bad"))
    plan = commands.add_parser(
        "plan-restore", help="say which checkpoint a restore would take, and how long that takes"
    )
    _add_run(plan)
    _add_prune(commands.add_parser("prune", help="remove older checkpoints"))
    _add_now(commands.add_parser("now", help="let a run that is training write a checkpoint now"))
    _add_diff(commands.add_parser("diff", help="say which tensors differ, and how far"))
    _add_export(commands.add_parser("export", help="write the weights of a module to one file"))
    return out


def _add_run(to: argparse.ArgumentParser) -> None:
    to.add_argument("run", nargs="?", metavar="RUN", help=_RUN)
    add_json(to)


def _add_verify(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Read every byte of each checkpoint, and compare it with the checksums in its manifest."
        " The exit code is 1 if one is bad."
    )
    _add_run(to)
    to.add_argument("--step", metavar="STEP", type=whole, help="only the checkpoint of this step")


def _add_prune(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Remove checkpoints that are not among the newest, and what was left by saves that were cut"
        " short. The newest one of which every byte is right is never removed, nor is a newer one."
    )
    _add_run(to)
    to.add_argument(
        "--keep-last",
        metavar="N",
        type=whole,
        default=CHECKPOINTS_KEPT_COUNT,
        help=f"keep the newest N, at least one (default: {CHECKPOINTS_KEPT_COUNT})",
    )
    to.add_argument(
        "--keep-every",
        metavar="STEPS",
        type=whole,
        default=0,
        help="also keep each one whose step is a multiple of STEPS (default: none)",
    )
    to.add_argument("--dry-run", action="store_true", help="only say what would be removed")


def _add_now(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Let a run that goes on write a checkpoint of the step that it commits next, also without"
        " --checkpoint-every. `outlast run --resume` goes on from there."
    )
    add_run(to)
    control_parser.add_asking(to)


def _add_diff(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Compare the weights of two checkpoints, bit for bit. A and B are runs, checkpoints, or"
        " files with weights: .safetensors, or one for torch.load. The exit code is 0 if all are"
        " the same, and 1 if one differs."
    )
    to.add_argument("a", metavar="A", help="a run, a checkpoint or a file")
    to.add_argument("b", metavar="B", help="what it is compared with")
    to.add_argument(
        "--step", metavar="STEP", type=whole, help="the step of A to compare (default: the newest)"
    )
    to.add_argument(
        "--step-b", metavar="STEP", type=whole, help="the step of B (default: the newest)"
    )
    to.add_argument(
        "--most", metavar="N", type=whole, default=20, help="print at most N tensors (default: 20)"
    )
    add_json(to)


def _add_export(to: argparse.ArgumentParser) -> None:
    to.description = (
        "Write the weights of a module to one file, for use without outlast. The newest good"
        " checkpoint is read; the run may be running, or be long over."
    )
    to.add_argument("run", metavar="RUN", help="the run's folder, or that of a checkpoint")
    to.add_argument(
        "file", metavar="FILE", help="the new file: .safetensors, or any other name for torch.load"
    )
    to.add_argument(
        "--format",
        choices=("safetensors", "torch", "dcp"),
        help="the format (default: by the name of FILE); dcp: FILE is a new folder for dcp.load",
    )
    to.add_argument(
        "--name", metavar="NAME", help="the module's name in run.state(NAME=...) (default: model)"
    )
    to.add_argument(
        "--step", metavar="STEP", type=whole, help="take this checkpoint (default: the newest)"
    )
    add_json(to)
