"""Read the command line of `outlast run` with torch's own parser for torchrun.

Our flags are added to that parser. It runs in a fork of a process that may import torch: `gpu` and
`auto` may use a driver that a zygote must not have used. Answers are JSON values: {"options":
{...}}, {"help": text}, or {"usage": message, "hint": text}.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from torch.distributed.run import determine_local_world_size, get_args_parser

from outlast.model.limits import CHECKPOINTS_KEPT_COUNT
from outlast.model.option_words import meant_option
from outlast.model.terms import SPARE_KINDS

_HINT = "`outlast run --help` lists the options; options of the script come after its name"


class _Wrong(Exception):
    """The command line cannot be understood. It has the message and the hint."""

    def __init__(self, message: str, hint: str = _HINT) -> None:
        super().__init__(message, hint)


def parse(argv: list[str]) -> dict[str, Any]:
    """Parse the command line after `outlast run`. Return one of the answers above."""
    parser = _parser()

    def error(message: str) -> NoReturn:
        raise _Wrong(message)

    parser.error = error  # type: ignore[method-assign]
    if _asks_for_help(parser, argv):
        return {"help": parser.format_help()}
    try:
        options = vars(_known(parser, argv))
        options["given"] = _given(parser, options)
        options["nproc_per_node"] = _worker_count(options["nproc_per_node"])
    except _Wrong as wrong:
        return dict(zip(("usage", "hint"), wrong.args, strict=True))
    return {"options": options}


def _parser() -> argparse.ArgumentParser:
    parser = get_args_parser()
    # Otherwise a flag of the script that begins like one of ours would be taken for ours.
    parser.allow_abbrev = False
    parser.prog = "outlast run"
    parser.usage = "outlast run [options] training_script ..."
    parser.description = (
        "Start a training script as torchrun does, and keep it going through dead, hung and slow"
        " processes."
    )
    _count_restarts_our_way(parser)
    _order_nodes_our_way(parser)
    group = parser.add_argument_group("outlast")
    _add_processes(group)
    _add_nodes(group)
    _add_state(group)
    _add_failures(group)
    _add_console(group)
    _add_watching(group)
    return parser


def _count_restarts_our_way(parser: argparse.ArgumentParser) -> None:
    """Distinguish a 0 that was given from torchrun's default of 0.

    Replace the help by our rule.
    """
    (restarts,) = [one for one in parser._actions if one.dest == "max_restarts"]
    if "PET_MAX_RESTARTS" not in os.environ:
        restarts.default = None
    restarts.help = (
        "How often all workers may be restarted at once before the run fails (default: 3; ten newly"
        " committed steps give one back). Replacing a lost rank or repeating a step does"
        " not count. 0: never, so a script without outlast calls ends at its first failure."
    )


def _order_nodes_our_way(parser: argparse.ArgumentParser) -> None:
    """Distinguish a given 0 from torchrun's default, with which nodes are sorted by name."""
    (rank,) = [one for one in parser._actions if one.dest == "node_rank"]
    if "PET_NODE_RANK" not in os.environ:
        rank.default = None


def _add_console(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--quiet",
        action="store_true",
        help="Print no status and no interruptions: only warnings, errors and the script's output.",
    )
    group.add_argument(
        "--status-every",
        type=_seconds_or_never,
        metavar="SECONDS",
        help="Where stderr is no terminal, print a status line this often (default: 60; 0: never).",
    )


def _add_watching(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="Serve the run's metrics to Prometheus on this port, from a process with the lowest"
        " priority. HOST is 127.0.0.1 unless it is given. Default: no metrics.",
    )
    group.add_argument(
        "--page-command",
        metavar="COMMAND",
        help="When the policy decides to page, run this command, with the page as JSON on its"
        " stdin. It is not run through a shell.",
    )
    group.add_argument(
        "--page-webhook",
        metavar="URL",
        help='When the policy decides to page, post {"text": ...} to this URL, the format that'
        " Slack accepts. With '$NAME' the URL is read from that environment variable.",
    )


def _add_processes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--spares",
        type=_at_least(0),
        metavar="N",
        help="Keep N processes ready to take the place of a dead rank (default: 0; with"
        " --spare-nodes, one for each rank that a spare node can take).",
    )
    group.add_argument(
        "--spare-kind",
        choices=list(SPARE_KINDS),
        default="hot",
        help="hot: the script has begun and the model is built; warm: only the imports are done."
        " Default: hot.",
    )
    group.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="Import MODULE once, before workers are forked. May be repeated.",
    )
    group.add_argument(
        "--no-zygote",
        action="store_true",
        help="Start each worker as a fresh interpreter, which is slower, in place of a fork.",
    )


def _add_nodes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--spare-nodes",
        type=_at_least(0),
        default=0,
        metavar="S",
        help="With --nnodes N: S more nodes stand ready to take the place of lost ones"
        " (default: 0).",
    )
    group.add_argument(
        "--node-name",
        metavar="NAME",
        help="Name of this node among the others. Default: its host name, followed by the"
        " number that the scheduler gives it (SLURM_NODEID, JOB_COMPLETION_INDEX).",
    )
    group.add_argument(
        "--node-domain",
        metavar="NAME",
        help="What this node shares with others that can be lost together with it, such as its"
        " rack: copies and parity of images (--keep) lie in other domains. Default:"
        " OUTLAST_NODE_DOMAIN, or else what Slurm says (SLURM_TOPOLOGY_ADDR); '' for none.",
    )
    group.add_argument(
        "--join-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="Wait this long for the other nodes at the start (default: 600).",
    )
    group.add_argument(
        "--token-file",
        metavar="FILE",
        help="File, readable by its owner only, with the secret that all nodes of the run share."
        " Default: the variable OUTLAST_TOKEN.",
    )
    group.add_argument(
        "--port-range",
        metavar="LO-HI",
        help="With several nodes: the ports that outlast itself listens on, besides that of the"
        " endpoint (default: any free ones).",
    )
    group.add_argument(
        "--lease",
        type=_seconds,
        metavar="SECONDS",
        help="With several nodes: a node that is silent for this long counts as lost"
        " (default: 1 for up to 64 nodes, else 6).",
    )


def _add_folders(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--run-dir",
        metavar="PATH",
        help="Folder of the run, for its ledger, logs and evidence."
        " Default: runs/<utc time>-<name>.",
    )
    group.add_argument(
        "--state-dir",
        metavar="PATH",
        help="Folder on a disk of this machine, in which the ledger lies while the run goes on. The"
        " run's folder gets copies at checkpoints and at the end. Default: the run's folder, or"
        " ~/.local/state/outlast if that is on a network file system.",
    )


def _add_state(group: argparse._ArgumentGroup) -> None:
    _add_folders(group)
    group.add_argument(
        "--resume",
        action="store_true",
        help="Continue from the newest good state in the run's folder.",
    )
    group.add_argument(
        "--from-scratch",
        action="store_true",
        help="With --resume: train the run again from step 0, and use nothing that it saved.",
    )
    group.add_argument(
        "--keep",
        metavar="WHERE:EVERY,...",
        help="Where state is kept, and how often: vault (shared memory) and disk (checkpoints),"
        " each with a number of steps (10steps), a time (10min), auto or never. vault:auto copies"
        " as often as it can without costing more than half a percent of the time. disk:auto weighs"
        " what a checkpoint costs against how often one is needed. With sharded state"
        " on several nodes, peers=1:step keeps a copy of each rank's image on another node"
        " (peers=2:step on two others),"
        " and parity=4+2:step keeps parity of it, so that any 2 nodes can be lost."
        " s3://BUCKET/PATH:1h (also gs://, az:// and file:///PATH) copies the newest checkpoint"
        " there each hour."
        " Default: vault:auto.",
    )
    group.add_argument(
        "--snapshot-every",
        type=_at_least(1),
        metavar="STEPS",
        help="With sharded state: copy it to shared memory every STEPS steps. Default: 1.",
    )
    group.add_argument(
        "--checkpoint-every",
        type=_at_least(1),
        metavar="STEPS",
        help="Write a checkpoint every STEPS steps. Default: never.",
    )
    group.add_argument(
        "--checkpoint-dir",
        metavar="PATH",
        help="Folder for checkpoints. Default: inside the run's folder.",
    )
    group.add_argument(
        "--keep-last",
        type=_at_least(1),
        default=CHECKPOINTS_KEPT_COUNT,
        metavar="N",
        help=f"Keep the newest N checkpoints. Default: {CHECKPOINTS_KEPT_COUNT}.",
    )
    group.add_argument(
        "--keep-every",
        type=_at_least(1),
        default=0,
        metavar="STEPS",
        help="Also keep each checkpoint whose step is a multiple of STEPS. Default: none.",
    )
    group.add_argument(
        "--upload-rate",
        metavar="RATE",
        help="Upload checkpoints to the URL of --keep no faster than this, such as 50MB/s."
        " Default: as fast as the network allows.",
    )


def _add_failures(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--cluster",
        metavar="FILE",
        help="With --keep disk:auto: cluster file (TOML) of `outlast calibrate`, whose failure"
        " rates count until the run has failed itself. Default: the rate of Llama 3's GPUs.",
    )
    group.add_argument(
        "--hang-after",
        type=_seconds,
        metavar="SECONDS",
        help="For scripts that do not call outlast: treat silence longer than this as a hang."
        " Default: never.",
    )
    group.add_argument(
        "--policy",
        metavar="FILE",
        help=(
            "Policy (TOML) that says what to do once a failure has been diagnosed. Default: see"
            " `outlast policy show`."
        ),
    )


def _known(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Return the options. Report an unknown flag before a missing script, unlike argparse."""
    try:
        options, unknown = parser.parse_known_args(argv)
    except _Wrong as wrong:
        if "training_script" not in wrong.args[0]:
            raise
        options, unknown = (
            argparse.Namespace(),
            [word for word in argv if word.startswith("--") and not _is_known(parser, word)],
        )
        if not unknown:
            raise _Wrong("no training script was named", _swallowed(argv)) from None
    if unknown:
        raise _Wrong(f"unknown option {_flag(unknown[0])}", _meant(parser, unknown[0]))
    return options


def _swallowed(argv: list[str]) -> str:
    """Return the hint for an option that has taken the script as its value.

    An example is `--nproc-per-node train.py`. Return the general hint otherwise.
    """
    *_, option, last = ["", "", *argv]
    if option.startswith("-") and "=" not in option and last.endswith(".py"):
        return f"{last} was taken for the value of {option}: write the value between the two"
    return _HINT


def _flag(word: str) -> str:
    return word.partition("=")[0]


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [
        flag
        for action in parser._actions
        for flag in action.option_strings
        if flag.startswith("--")
    ]


def _is_known(parser: argparse.ArgumentParser, word: str) -> bool:
    return _flag(word) in _flags(parser)


def _meant(parser: argparse.ArgumentParser, word: str) -> str:
    return meant_option(word, _flags(parser)) or _HINT


def _asks_for_help(parser: argparse.ArgumentParser, argv: list[str]) -> bool:
    """Return True for -h or --help before the script's name. argparse finds where that is."""
    called: list[bool] = []
    parser.print_help = lambda file=None: called.append(True)  # type: ignore[method-assign, assignment]
    try:
        parser.parse_known_args(argv)
    except (SystemExit, _Wrong):
        pass
    del parser.print_help
    return bool(called)


def _given(parser: argparse.ArgumentParser, options: dict[str, Any]) -> list[str]:
    """Return the options that the user asked for: those that differ from the parser's defaults.

    Options that the environment sets count as well.
    """
    own = {action.dest: action.default for action in parser._actions}
    environment = {dest for dest in own if f"PET_{dest.upper()}" in os.environ}
    return sorted(
        dest
        for dest, value in options.items()
        if dest in environment or (dest in own and value != own[dest])
    )


def _worker_count(text: str) -> int:
    """Return how many workers `--nproc-per-node` asks for. `gpu` and `auto` count the devices."""
    try:
        return int(determine_local_world_size(text))
    except ValueError as error:
        raise _Wrong(
            f"--nproc-per-node {text}: {error}", "give a number, or auto, cpu, gpu"
        ) from None


def _at_least(least: int) -> Callable[[str], int]:
    """Return a parser of whole numbers that refuses those below `least`."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}, not {text!r}"
            )
        return value

    return number


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return value


def _seconds_or_never(text: str) -> float:
    return 0.0 if text.strip() in ("0", "0.0") else _seconds(text)


def parse_in_fork(argv: list[str]) -> dict[str, Any]:
    """Call `parse` in a fork of this process. The answer comes back through a pipe."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            with open(writer, "w") as out:
                json.dump(parse(argv), out)
            os._exit(0)
        finally:
            os._exit(1)  # the traceback is on stderr already
    os.close(writer)
    with open(reader) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return (
        dict(json.loads(text))
        if text
        else {"usage": "the command line could not be read", "hint": "see the error above"}
    )
