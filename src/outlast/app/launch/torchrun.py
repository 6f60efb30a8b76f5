"""Understand the command line of `outlast run`: torchrun's flags and ours, as `RunOptions`.

Torch's own parser reads the words, in the process that imports torch anyway. This module decides
what each flag means. A flag that works on one node is used. A flag that changes nothing on one node
becomes a note. A flag that cannot work is an error that names it.
"""

from __future__ import annotations

import argparse
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outlast.app.command_line import address, need_package
from outlast.app.launch.kept_elsewhere import copies_at_peers, parity_of
from outlast.app.launch.nodes import NodeArguments, is_several, read_nodes
from outlast.engine.default_policy import default_policy
from outlast.engine.durable import Retention
from outlast.engine.save_interval import ExpectedFailures
from outlast.errors import UsageError
from outlast.model.keep import AUTO, NEVER, Every, KeepOption, read_keep
from outlast.model.limits import (
    GIVEN_FILE_MAX_BYTES,
    STATUS_EVERY_S,
    TERM_GRACE_S,
    WORKERS_MAX_COUNT,
)
from outlast.model.policy import Policy, parse
from outlast.model.quantities import QuantityKind
from outlast.model.quantities import parse as quantity
from outlast.model.redundancy import Code
from outlast.runtime.agent.logs import ConsolePolicy, parse_streams
from outlast.runtime.agent.zygote_client import ZygoteClient
from outlast.runtime.folders.given import is_program, read_small, read_text
from outlast.runtime.page_options import page_command, page_webhook


@dataclass(frozen=True)
class Program:
    """The program that every worker runs.

    entry   "script" (a path), "module" (-m) or "program" (--no-python: it is executed as it is)
    """

    script: str
    entry: str
    args: tuple[str, ...]

    @property
    def first_path(self) -> str:
        """Return the folder that Python puts in front of sys.path for this program."""
        return (
            os.path.dirname(os.path.realpath(self.script))
            if self.entry == "script"
            else os.getcwd()
        )


@dataclass(frozen=True)
class Spares:
    """The options of spares: how many, and whether they are "hot" or "warm"."""

    count: int
    kind: str  # "hot" or "warm"


@dataclass(frozen=True)
class ObjectOptions:
    """The options of object storage.

    url           the place to which checkpoints are copied
    every         how often a checkpoint is copied there
    bytes_per_s   the most bytes a second that are sent; 0: no limit
    """

    url: str
    every: Every
    bytes_per_s: float = 0.0


@dataclass(frozen=True)
class CheckpointOptions:
    """The options of checkpoints.

    every_steps    steps between two checkpoints; None: only the script asks for checkpoints
    folder         where they are written; "": in the run's folder
    resume         True if an earlier run is continued
    from_scratch   True if a resumed run must not use what was saved before
    retention      which checkpoints are kept as newer ones are written
    timed          how often a checkpoint is written by the clock
    objects        the object storage to which they are copied; None: they are not copied
    expected       the expected failures of the run, for `--keep disk:auto`; None: not needed
    """

    every_steps: int | None
    folder: str
    resume: bool
    from_scratch: bool = False
    retention: Retention = field(default_factory=Retention)
    timed: Every = NEVER
    objects: ObjectOptions | None = None
    expected: ExpectedFailures | None = None

    @property
    def are_written(self) -> bool:
        """Return whether the run writes checkpoints without being asked."""
        return bool(self.every_steps) or not self.timed.is_never


@dataclass(frozen=True)
class StatusOptions:
    """The options of what outlast itself writes to stderr, such as its status line.

    quiet            True if outlast writes only warnings and errors
    status_every_s   seconds between status lines if stderr is not a terminal; 0: no status lines
    metrics          where the run's metrics are served, as [HOST:]PORT; "": they are not served
    page_command     the words of the command that sends a page; (): no command
    page_webhook     the URL to which a page is posted; "": none
    """

    quiet: bool = False
    status_every_s: float = STATUS_EVERY_S
    metrics: str = ""
    page_command: tuple[str, ...] = ()
    page_webhook: str = ""


@dataclass(frozen=True)
class Meeting:
    """The values of MASTER_ADDR and MASTER_PORT for workers, and the name of the meeting.

    run_id         the name of the meeting; "": outlast makes one up
    role           torchrun's --role
    master_addr    MASTER_ADDR
    master_port    MASTER_PORT; 0: any free port
    max_restarts   how many whole restarts without progress are allowed. None: the flag was not
                   given. torchrun's own default is 0, and outlast's is a budget
    """

    run_id: str
    role: str
    master_addr: str
    master_port: int
    max_restarts: int | None


@dataclass(frozen=True)
class RunOptions:
    """All options of `outlast run`.

    workers            workers on each node
    nodes              the options of several nodes; None: the run has one node
    copies             how often replicated state is copied to the vault
    peers              how many other nodes keep a copy of each image of sharded state; 0: none does
    parity             the parity that is kept of these images instead of copies; None for none
    run_dir, log_dir   "": the usual place
    state_dir          where ledgers lie on this machine; "": the usual place
    notes              the flags without effect here, a sentence each
    """

    program: Program
    workers: int
    nodes: NodeArguments | None
    meeting: Meeting
    spares: Spares
    checkpoints: CheckpointOptions
    snapshot_every: int
    copies: Every
    peers: int
    parity: Code | None
    console: ConsolePolicy
    status: StatusOptions
    preload: tuple[str, ...]
    run_dir: str
    state_dir: str
    log_dir: str
    hang_after_s: float | None
    policy: Policy
    term_grace_s: float
    zygote: bool
    notes: tuple[str, ...]

    @property
    def world_size(self) -> int:
        """Return how many ranks the run has."""
        return self.workers * (1 if self.nodes is None else self.nodes.count)

    @property
    def peer_copies(self) -> bool:
        """Return whether other nodes keep copies of images, or parity of them."""
        return self.peers > 0 or self.parity is not None


def read_command_line(argv: list[str], zygote: ZygoteClient) -> RunOptions | str:
    """Return the options, or the text of --help. Blocks while the zygote imports torch.

    Raises UsageError.
    """
    return understand(
        zygote.parse(argv), prefix=os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "")
    )


def understand(answer: dict[str, Any], *, prefix: str = "") -> RunOptions | str:
    """Return the options of a run, or the help text, from the answer of the parser.

    The parser is `parse` in runtime/worker/script/arguments.py. Raises UsageError.
    """
    if "help" in answer:
        return str(answer["help"])
    if "usage" in answer:
        raise UsageError(answer["usage"], hint=answer["hint"])
    asked: dict[str, Any] = answer["options"]
    given: set[str] = set(asked["given"])
    _refuse(asked, given)
    workers, spares = _counts(asked)
    keep = _keep(asked)
    snapshot_every = asked["snapshot_every"] or (keep.vault or NEVER).steps or 1
    nodes = read_nodes(asked, given)
    elsewhere = {"snapshot_every": snapshot_every, "nodes": 1 if nodes is None else nodes.count}
    peers = copies_at_peers(keep, **elsewhere)
    parity = parity_of(keep, **elsewhere)
    if nodes is not None and asked["spares"] is None:
        spares = workers * nodes.spares
    return RunOptions(
        program=_program(asked, spares),
        workers=workers,
        nodes=nodes,
        meeting=_meeting(asked, given),
        spares=Spares(spares, asked["spare_kind"]),
        checkpoints=_checkpoints(
            asked, keep, world_size=workers * (1 if nodes is None else nodes.count)
        ),
        snapshot_every=snapshot_every,
        copies=AUTO if keep.vault is None else keep.vault,
        peers=peers,
        parity=parity,
        console=_console(asked, prefix),
        status=StatusOptions(
            asked["quiet"],
            STATUS_EVERY_S if asked["status_every"] is None else asked["status_every"],
            _metrics(asked["metrics_port"]),
            page_command(asked["page_command"]),
            page_webhook(asked["page_webhook"], os.environ),
        ),
        preload=tuple(asked["preload"]),
        run_dir=asked["run_dir"] or "",
        state_dir=asked["state_dir"] or "",
        log_dir=asked["log_dir"] or "",
        hang_after_s=asked["hang_after"],
        policy=(
            default_policy()
            if asked["policy"] is None
            else parse(read_text(asked["policy"]), source=asked["policy"])
        ),
        term_grace_s=(
            TERM_GRACE_S
            if asked.get("shutdown_timeout") is None
            else float(asked["shutdown_timeout"])
        ),
        zygote=not asked["no_zygote"],
        notes=(
            *(
                f"--{name.replace('_', '-')} has no effect here: {why}"
                for name, why in (
                    _WITHOUT_EFFECT if nodes is None else _WITHOUT_EFFECT_ON_NODES
                ).items()
                if name in given
            ),
            *_late(asked["training_script_args"]),
        ),
    )


# hardly a script has one of these for its own
_NEVER_OF_SCRIPTS = (
    "nproc-per-node",
    "nnodes",
    "node-rank",
    "spares",
    "spare-kind",
    "standalone",
    "run-dir",
    "state-dir",
    "rdzv-backend",
    "rdzv-endpoint",
)


def _late(script_args: Sequence[str]) -> list[str]:
    """Return a warning if options that look like ours stand after the script's name."""
    given = [word.partition("=")[0] for word in script_args if word.startswith("--")]
    late = [word for word in given if word[2:].replace("_", "-") in _NEVER_OF_SCRIPTS]
    if not late:
        return []
    names, go = ", ".join(late), "goes" if len(late) == 1 else "go"
    return [
        f"warning: {names} after the script's name {go} to the script: options of `outlast run`"
        " come before it"
    ]


_WITHOUT_EFFECT = {
    "monitor_interval": "the kernel tells at once when a worker ends",
    "start_method": (
        "workers are forked from a process that has paid for the imports (--no-zygote starts fresh"
        " ones)"
    ),
    "rdzv_conf": "on one node nobody is waited for",
    "local_addr": "on one node workers meet on --master-addr",
}
_WITHOUT_EFFECT_ON_NODES = {
    name: why for name, why in _WITHOUT_EFFECT.items() if name not in ("rdzv_conf", "local_addr")
}
_REFUSED = {
    "event_log_handler": "outlast keeps its own ledger; `outlast report --json` reads it",
    "logs_specs": "logs go to --log-dir in torchrun's layout",
    "numa_binding": "bind with numactl around `outlast run`",
    "duplicate_stdout_filters": "filter the files in --log-dir",
    "duplicate_stderr_filters": "filter the files in --log-dir",
    "virtual_local_rank": "choose the device by LOCAL_RANK in the script",
    "signals_to_handle": (
        "SIGINT, SIGTERM, SIGHUP and SIGQUIT end the run cleanly, and so do SIGUSR1, SIGUSR2 and"
        " SIGXCPU as a scheduler's notice; others cannot be chosen"
    ),
}


# in place of which `outlast run` is typed
_LAUNCHERS = re.compile(
    r"python[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec|srun|horovodrun"
)


def _refuse(asked: dict[str, Any], given: set[str]) -> None:
    several = is_several(asked)
    if not several and (asked["node_rank"] or 0) != 0:
        raise UsageError(
            f"--node-rank {asked['node_rank']}: runs on one node only, which is node 0",
            hint="leave --node-rank out, or say with --nnodes how many nodes there are",
        )
    if asked["rdzv_backend"] not in ("static", "c10d"):
        raise UsageError(
            f"--rdzv-backend {asked['rdzv_backend']} is not supported",
            hint="on one node use --standalone",
        )
    host = asked["rdzv_endpoint"].rpartition(":")[0] or asked["rdzv_endpoint"]
    is_here = host in ("", "localhost", "127.0.0.1", "[::1]", "::1")
    if not several and not is_here and not asked["standalone"]:
        raise UsageError(
            f"--rdzv-endpoint {asked['rdzv_endpoint']}: runs on one node only",
            hint=(
                "say with --nnodes how many nodes there are; on one node use --standalone, or"
                " --master-addr and --master-port"
            ),
        )
    if asked["from_scratch"] and not asked["resume"]:
        raise UsageError(
            "--from-scratch goes with --resume: it trains an existing run again",
            hint="add --resume, or leave --from-scratch out: a new run begins at step 0",
        )
    for name, instead in _REFUSED.items():
        if name in given:
            raise UsageError(f"--{name.replace('_', '-')} is not supported", hint=instead)


def _keep(asked: dict[str, Any]) -> KeepOption:
    """Return what `--keep` says. Raises UsageError, also if another option says it too."""
    if asked["keep"] is None:
        return KeepOption()
    keep = read_keep(asked["keep"])
    for place, said, option in (
        ("vault", keep.vault, "snapshot_every"),
        ("disk", keep.disk, "checkpoint_every"),
    ):
        if said is not None and asked[option] is not None:
            flag = f"--{option.replace('_', '-')}"
            raise UsageError(
                f"--keep names {place}, and {flag} is given too: both say how often",
                hint=f"leave {flag} out, or {place} out of --keep",
            )
    return keep


def _checkpoints(asked: dict[str, Any], keep: KeepOption, *, world_size: int) -> CheckpointOptions:
    """Return the options of checkpoints.

    With a URL alone, a checkpoint is written whenever one is to be uploaded. Raises UsageError.
    """
    objects, disk = _objects(asked, keep), keep.disk or NEVER
    if objects is not None and disk.is_never and not asked["checkpoint_every"]:
        disk = objects.every
        if disk.steps == 1:
            raise UsageError(
                f"--keep {asked['keep']!r} does not say how often a checkpoint is written",
                hint=f"write '{objects.url}:1h', or name disk as well:"
                f" 'disk:10min, {objects.url}:1h'",
            )
    return CheckpointOptions(
        asked["checkpoint_every"] or disk.steps or None,
        asked["checkpoint_dir"] or "",
        asked["resume"],
        asked["from_scratch"],
        Retention(asked["keep_last"], asked["keep_every"]),
        Every(seconds=disk.seconds, auto=disk.auto),
        objects,
        _expected(asked["cluster"], disk, world_size=world_size),
    )


def _expected(cluster_file: str | None, disk: Every, *, world_size: int) -> ExpectedFailures | None:
    """Return how often the run is expected to fail, if that is needed. Raises UsageError."""
    if not disk.auto:
        if cluster_file is not None:
            raise UsageError(
                "--cluster is about the failures that --keep disk:auto expects",
                hint="add --keep disk:auto, or leave --cluster out",
            )
        return None
    # This imports the planner, which other runs do not need.
    from outlast.app.planning.expected_failures import expected_failures

    return expected_failures(cluster_file, world_size=world_size)


def _objects(asked: dict[str, Any], keep: KeepOption) -> ObjectOptions | None:
    """Return where checkpoints are copied to, or None. Raises UsageError."""
    rate = asked["upload_rate"]
    if keep.objects is None:
        if rate is not None:
            raise UsageError(
                "--upload-rate is about a URL in --keep, and there is none",
                hint="add one, such as --keep 's3://BUCKET/PATH:1h'",
            )
        return None
    bytes_per_s = (
        0.0 if rate is None else quantity(rate, QuantityKind.BANDWIDTH, name="--upload-rate")
    )
    return ObjectOptions(keep.url, keep.objects, bytes_per_s)


def _metrics(asked: str | None) -> str:
    """Check where metrics are to be served, and that they can be. Raises UsageError."""
    if asked is None:
        return ""
    try:
        address(asked)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"--metrics-port {error}", hint="write --metrics-port 9400") from None
    need_package("prometheus_client", what="metrics", extra="metrics")
    return asked


def _counts(asked: dict[str, Any]) -> tuple[int, int]:
    workers, spares = asked["nproc_per_node"], asked["spares"] or 0
    if workers < 1:
        raise UsageError(f"--nproc-per-node {workers}: at least one worker is needed")
    if workers + spares > WORKERS_MAX_COUNT:
        raise UsageError(
            f"{workers} workers and {spares} spares are more than the {WORKERS_MAX_COUNT} that a"
            " node may have",
            hint="lower --nproc-per-node or --spares",
        )
    return workers, spares


def _program(asked: dict[str, Any], spares: int) -> Program:
    script, args = asked["training_script"], tuple(asked["training_script_args"])
    if asked["no_python"] and not asked.get("run_path"):
        if asked["module"]:
            raise UsageError(
                "--no-python and --module exclude each other", hint="leave one of them out"
            )
        if spares:
            raise UsageError(
                "--spares does not go with --no-python: a program cannot wait for a rank",
                hint="leave one of them out",
            )
        if not is_program(script):
            raise UsageError(
                f"there is no program {script} that can be executed",
                hint=f"`chmod +x {script}`"
                if os.path.isfile(script)
                else "give its path, or a name in a folder of PATH",
            )
        return Program(script, "program", args)
    if asked["module"]:
        if script.endswith(".py") and os.path.exists(script):
            # Python would train while it imports the module, and fail after that
            raise UsageError(
                f"-m takes the name of a module, and {script} is a path",
                hint=f"leave -m out, or write `-m {script.removesuffix('.py').replace('/', '.')}`",
            )
        return Program(script, "module", args)
    if not os.path.exists(script):
        raise UsageError(f"there is no script {script}", hint=_where(script))
    if os.path.isdir(script) and not os.path.exists(os.path.join(script, "__main__.py")):
        raise UsageError(
            f"{script} is a folder without __main__.py", hint="give the path of the script in it"
        )
    _check_syntax(script)
    return Program(script, "script", args)


def _check_syntax(script: str) -> None:
    """Raise UsageError for a script that Python cannot read, before its run has a folder."""
    if not script.endswith(".py"):
        return  # may be a zip file, or compiled
    try:
        text = read_small(Path(script), most_bytes=GIVEN_FILE_MAX_BYTES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python gives them again, in the workers
            compile(text, script, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise UsageError(
            f"{script}, line {error.lineno}: {type(error).__name__}: {error.msg}",
            hint="nothing was run; `python -m py_compile` shows the line",
        ) from None
    except (OSError, ValueError, RecursionError, MemoryError):
        return  # the workers say it better


def _where(script: str) -> str:
    if script.startswith("-"):
        return "options of `outlast run` come before the script's name"
    if _LAUNCHERS.fullmatch(script):
        return f"leave `{script}` out: `outlast run` takes the script itself"
    if "/" not in script and not script.endswith(".py"):
        return f"a module is run with `-m {script}`; else give the script's path"
    return f"the path counts from {os.getcwd()}"


def _meeting(asked: dict[str, Any], given: set[str]) -> Meeting:
    # older torch: 29500 unless it is given
    addr, port = asked["master_addr"], asked["master_port"] if "master_port" in given else 0
    static = (
        asked["rdzv_backend"] == "static"
        and asked["rdzv_endpoint"]
        and not asked["standalone"]
        and not is_several(asked)
    )
    if static:
        addr, _, text = asked["rdzv_endpoint"].rpartition(":")
        if not text.isdigit():
            raise UsageError(
                f"--rdzv-endpoint {asked['rdzv_endpoint']} has no port", hint="write host:port"
            )
        port = int(text)
    if (asked["max_restarts"] or 0) < 0:
        raise UsageError(f"--max-restarts {asked['max_restarts']}: cannot be negative")
    run_id = "" if asked["standalone"] or asked["rdzv_id"] == "none" else asked["rdzv_id"]
    return Meeting(
        run_id,
        asked["role"],
        addr,
        port,
        asked["max_restarts"],
    )


def _console(asked: dict[str, Any], prefix: str) -> ConsolePolicy:
    text = asked["local_ranks_filter"]
    try:
        only = frozenset(int(rank) for rank in text.split(",")) if text else frozenset()
    except ValueError:
        raise UsageError(
            f"--local-ranks-filter {text}: not a list of ranks",
            hint="write --local-ranks-filter 0,1,2",
        ) from None
    redirects, tee = (
        parse_streams(asked["redirects"], "--redirects"),
        parse_streams(asked["tee"], "--tee"),
    )
    return ConsolePolicy(
        role=asked["role"], redirects=redirects, tee=tee, only_ranks=only, prefix=prefix
    )
