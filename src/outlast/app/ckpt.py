"""`outlast ckpt`: take weights out of the checkpoints of a run.

    outlast ckpt export RUN FILE

Exit codes   0 written, 1 a damaged checkpoint, 2 wrong usage or nothing to export.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from outlast.app.command_line import Parser, whole
from outlast.errors import UsageError
from outlast.model.texts import count, escaped, some


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(argv)
    # torch takes a second to import, and `outlast ckpt --help` needs none
    from outlast.runtime.worker import saved_weights

    found = saved_weights.read(Path(args.run), step=args.step)
    for reason in found.refused:
        print(f"warning: a newer checkpoint was passed over: {escaped(reason)}", file=sys.stderr)
    names = found.names()
    name = args.name or ("model" if "model" in names or len(names) != 1 else names[0])
    if not args.name and name not in names:
        raise UsageError(
            f"the checkpoint has weights of {some(names)}", hint="choose one by --name NAME"
        )
    file = Path(args.file)
    tensors = saved_weights.export(found, file, name=name)
    print(f"{escaped(str(file))}: {count(tensors, 'tensor')} of {name}, step {found.step}")
    return 0


def parser() -> Parser:
    out = Parser(prog="outlast ckpt", description="Take weights out of the checkpoints of a run.")
    commands = out.add_subparsers(dest="command", required=True, metavar="COMMAND")
    export = commands.add_parser(
        "export",
        help="write the weights of a module to one file",
        description=(
            "Write the weights of a module to one file, for use without outlast. The newest good"
            " checkpoint is read; the run may be running, or be long over."
        ),
    )
    export.add_argument("run", metavar="RUN", help="the run's folder, or that of a checkpoint")
    export.add_argument(
        "file", metavar="FILE", help="the new file: .safetensors, or any other name for torch.load"
    )
    export.add_argument(
        "--name", metavar="NAME", help="the module's name in run.state(NAME=...) (model)"
    )
    export.add_argument(
        "--step", metavar="STEP", type=whole, help="take the checkpoint of this step (the newest)"
    )
    return out
