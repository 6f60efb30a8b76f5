"""What `outlast run` opens and says, the same for one node and for several."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from outlast.app.launch import object_storage, resuming
from outlast.app.launch.live import LiveView, live_console
from outlast.app.launch.resuming import Beginning
from outlast.app.launch.torchrun import ObjectOptions, RunOptions
from outlast.diagnose.redact import GONE, redacted_words
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.protocol.outputs import End
from outlast.errors import OutlastError, UsageError, whole_message_of
from outlast.model import limits
from outlast.model.records import Meta
from outlast.model.texts import escaped
from outlast.runtime import clock, console, stop_signals
from outlast.runtime.agent.agent_driver import NodeOptions
from outlast.runtime.agent.beacons import Beacons
from outlast.runtime.agent.evidence import EvidenceCollector
from outlast.runtime.agent.logs import Sink, WorkerLogs, make_log_folder
from outlast.runtime.agent.zygote_client import ZygoteClient
from outlast.runtime.coordinator.bookkeeping import Bookkeeping
from outlast.runtime.coordinator.pager import Pager, PageTargets
from outlast.runtime.coordinator.side_process import SideProcess
from outlast.runtime.coordinator.upload_process import UploadProcess
from outlast.runtime.folders import run_folder
from outlast.runtime.folders.run_folder import RunFolder
from outlast.runtime.folders.state_folder import state_root
from outlast.runtime.interpreter import module_command
from outlast.runtime.ledger.copier import LedgerCopier
from outlast.runtime.ledger.pointer import find_ledger
from outlast.runtime.ledger.store import Ledger, Newest, read_ledger
from outlast.runtime.loop import Loop
from outlast.runtime.tiers import local
from outlast.runtime.tiers.vault import Vault


def make_view(options: RunOptions) -> LiveView:
    """Return the live view of a launcher, as the flags of the command line want it."""
    return LiveView(
        live_console(os.environ),
        status_every_s=options.status.status_every_s,
        quiet=options.status.quiet,
    )


def make_logs(options: RunOptions, folder: Path, loop: Loop, sink: Sink) -> WorkerLogs:
    """Open the logs of a node's workers, in `folder` unless --log-dir names another."""
    given = Path(options.log_dir) if options.log_dir else folder
    made = make_log_folder(given, options.meeting.run_id or "none")
    return WorkerLogs(loop, made, options.console, sink)


def make_evidence(
    loop: Loop,
    folder: Path,
    vault: Vault,
    beacons: Beacons,
    logs: WorkerLogs,
    *,
    on_verdict: Callable[[int, Mapping[str, object]], None],
) -> EvidenceCollector:
    """Return the part that secures evidence of a node's processes in `folder`."""
    return EvidenceCollector(
        loop=loop,
        folder=folder,
        vault=vault.folder,
        live_beacons=beacons.live_beacons,
        logs=logs.paths,
        command=(*module_command("outlast.app.cli"), "diagnose", "--json"),
        on_verdict=on_verdict,
    )


def of_node(options: RunOptions, zygote: ZygoteClient) -> NodeOptions:
    """Return how a node starts its processes, and after how long it takes them for hung."""
    return NodeOptions(
        zygote=zygote if options.zygote else None,
        preload=options.preload,
        first_path=options.program.first_path,
        hang_after_s=options.hang_after_s,
        greets=options.program.entry != "program",
    )


def open_folder(
    options: RunOptions, began_s: float, began_wall_s: float
) -> tuple[RunFolder, Ledger]:
    """Make the folder and the ledger of a run, or open those of the run that is resumed."""
    release = version("outlast")
    name = Path(options.program.script).stem
    card = folder_card(options)
    given = Path(options.run_dir) if options.run_dir else None
    objects = options.checkpoints.objects
    if options.checkpoints.resume:
        if objects is not None and given is not None and not (given / "run.json").exists():
            return _open_lost(options, objects, given, began_s, began_wall_s)
        path = given if given is not None else run_folder.newest()
        folder = RunFolder.resume(path, state=state_of(options, path))
        if objects is not None:
            _bring(options, objects, folder)
        resuming.check(
            read_ledger(find_ledger(path).path, whole=True),
            root=checkpoint_root(options, folder),
            workers=options.world_size,
            from_scratch=options.checkpoints.from_scratch,
        )
        folder.write_card(release, card)
        folder = folder.bring_ledger()
        ledger = Ledger.resume(
            folder.ledger,
            pid=os.getpid(),
            started_s=began_s,
            started_wall_s=began_wall_s,
            world_size=options.world_size,
        )
        folder.point_to_ledger()
        return folder, ledger
    if objects is not None:
        object_storage.check_new(objects)
    state = state_of(options, given if given is not None else run_folder.ROOT)
    folder = RunFolder.create(given, name=name, version=release, options=card, state=state)
    return folder, _new_ledger(options, folder, began_s, began_wall_s)


def _new_ledger(
    options: RunOptions, folder: RunFolder, began_s: float, began_wall_s: float
) -> Ledger:
    meta = Meta(
        run=folder.run,
        name=folder.name,
        world_size=options.world_size,
        version=version("outlast"),
        started_s=began_s,
        started_wall_s=began_wall_s,
    )
    ledger = Ledger.create(folder.ledger, meta, pid=os.getpid())
    folder.point_to_ledger()
    return ledger


def state_of(options: RunOptions, folder: Path) -> Path | None:
    """Return where ledgers of this launcher lie; None: in the folder of their run.

    Several nodes may be on one machine, so each has a folder of its own. Raises UsageError.
    """
    root = state_root(options.state_dir, folder)
    if root is None or options.nodes is None:
        return root
    return root / (run_folder.folder_name(options.nodes.name) or "node")


def copier_of(folder: RunFolder) -> LedgerCopier:
    """Return what puts copies of the ledger into the run's folder, if it does not lie there."""
    return LedgerCopier(folder.ledger, folder.path)


def _bring(options: RunOptions, objects: ObjectOptions, folder: RunFolder) -> None:
    """Download the newest checkpoint of a run that goes on, if the disk has none as new."""
    from_scratch = options.checkpoints.from_scratch
    object_storage.check_resumed(objects, folder.run, from_scratch=from_scratch)
    if not from_scratch:
        root = checkpoint_root(options, folder)
        object_storage.bring(objects, root=root, run=folder.run, quiet=options.status.quiet)


def _open_lost(
    options: RunOptions, objects: ObjectOptions, path: Path, began_s: float, began_wall_s: float
) -> tuple[RunFolder, Ledger]:
    """Make a new folder for a run whose folder was lost. Its checkpoints are still at a URL.

    The run keeps its id, so it goes on at the same URL. Its ledger begins now. Raises UsageError if
    there is no checkpoint to go on from.
    """
    run = next(iter(object_storage.look(objects)), "")
    checkpoints = options.checkpoints.folder
    root = Path(checkpoints) if checkpoints else path / "checkpoints"
    if run and not options.checkpoints.from_scratch:
        object_storage.bring(objects, root=root, run=run, quiet=options.status.quiet)
    if not any(one.manifest.run == run for one in local.checkpoints(root)):
        raise UsageError(
            f"{path} is not a run folder, and {objects.url} has no checkpoint to go on from",
            hint="name a folder that `outlast run` made, or leave --resume out",
        )
    folder = RunFolder.take_over(
        path,
        run=run,
        name=run_folder.folder_name(Path(options.program.script).stem) or "run",
        version=version("outlast"),
        options=folder_card(options),
        state=state_of(options, path),
    )
    ledger = _new_ledger(options, folder, began_s, began_wall_s)
    resuming.check(ledger.read(), root=root, workers=options.world_size, from_scratch=False)
    return folder, ledger


def folder_card(options: RunOptions) -> dict[str, object]:
    """Return what run.json says of a launcher's options."""
    return {
        "argv": redacted_words(_without_webhook(sys.argv[1:], options)),
        "workers": options.world_size,
        "spares": options.spares.count,
        **(
            {"checkpoints": str(Path(options.checkpoints.folder).absolute())}
            if options.checkpoints.folder
            else {}
        ),
    }


def _without_webhook(words: list[str], options: RunOptions) -> list[str]:
    """Remove the address of the webhook from a command line: it is a secret, like a password."""
    secret = options.status.page_webhook
    return [word.replace(secret, GONE) for word in words] if secret else words


def checkpoint_root(options: RunOptions, folder: RunFolder) -> Path:
    """Return the folder of checkpoints: the given one, or that in the run's folder."""
    given = options.checkpoints.folder
    return Path(given) if given else folder.checkpoints


def serve_metrics(where: str, folder: RunFolder, loop: Loop, view: LiveView) -> SideProcess:
    """Start the process that serves the run's metrics."""
    command = (*module_command("outlast.app.reports.metrics_command"), str(os.getpid()), where)
    return SideProcess(
        loop, (*command, str(folder.path.resolve())), what="metrics", tell=view.print_line
    )


def pager(
    options: RunOptions, folder: RunFolder, loop: Loop, books: Bookkeeping, view: LiveView
) -> Pager | None:
    """Return the part that pages people, or None if no command and no webhook was given."""
    command, webhook = options.status.page_command, options.status.page_webhook
    if not command and not webhook:
        return None
    targets = PageTargets(folder.run, str(folder.path.resolve()), command, webhook)
    return Pager(loop, targets, tell=view.print_line, record=books.record)


def close_books(books: Bookkeeping, end: End, view: LiveView) -> None:
    """Write the rest of the ledger. If that fails, the exit code is still the training's."""
    try:
        books.close(end)
    except OutlastError as error:
        view.print_line(
            f"warning: the ledger lacks this run's end and what was queued before it: {error}"
        )


def finish_uploads(uploads: UploadProcess, ledger: Ledger) -> None:
    """Wait until the newest checkpoint is uploaded, after the books of the run are closed."""
    uploads.finish()
    with contextlib.suppress(OutlastError):  # that error was printed before
        ledger.flush()


def coordinator_options(
    options: RunOptions, beginning: Beginning, newest: Newest
) -> CoordinatorOptions:
    """Return the coordinator's options. A resumed run goes on counting from `newest`."""
    return CoordinatorOptions(
        world_size=options.world_size,
        start=beginning.start,
        committed_before=beginning.highest,
        spares=options.spares.count,
        spare_kind=options.spares.kind,
        max_restarts=options.meeting.max_restarts,
        checkpoint=beginning.checkpoint,
        checkpoint_on_stop=options.checkpoints.are_written,
        durable=options.checkpoints.are_written or bool(beginning.checkpoint[0]),
        term_grace_s=options.term_grace_s,
        generation=max(0, newest.generation),
        first_interruption=max(newest.interruption + 1, 1),
        first_worker=max(newest.worker + 1, 1),
        saves_last=options.nodes is None,
        nodes=0 if options.nodes is None else options.nodes.count + options.nodes.spares,
        enrol_wait_s=limits.ENROL_WAIT_S if options.nodes is None else options.nodes.join_timeout_s,
        greets=options.program.entry != "program",
        peer_copies=options.snapshot_every if options.peer_copies else 0,
        peers=options.peers,
        parity=options.parity,
        expected_failures=options.checkpoints.expected,
        policy=options.policy,
    )


@contextlib.contextmanager
def unrun_noted(ledger: Ledger) -> Iterator[None]:
    """If the block raises, write into the ledger how it ended. No worker has run then."""
    try:
        yield
    except BaseException as error:
        _end_unrun(ledger, error)
        raise


def _end_unrun(ledger: Ledger, error: BaseException) -> None:
    state, code, reason = (
        "failed",
        error.exit_code if isinstance(error, OutlastError) else 1,
        whole_message_of(error),
    )
    if isinstance(error, KeyboardInterrupt | SystemExit):
        code = (
            limits.SIGINT_EXIT_CODE
            if isinstance(error, KeyboardInterrupt)
            else int(error.code or 0)
        )
        state, reason = "stopped", "the launcher was told to stop before anything ran"
    with contextlib.suppress(OutlastError):
        ledger.end_session(ended_s=clock.now_s(), state=state, exit_code=code, reason=reason)


_LINES_COUNT = 1_000  # of stderr, in which a traceback is looked for


class WorkerOutput:
    """Print the lines of the workers where the launcher's own lines go.

    The last lines of stderr are kept, so that no traceback is shown twice.
    """

    def __init__(self, view: LiveView) -> None:
        self.view = view
        self._last: deque[str] = deque(maxlen=_LINES_COUNT)

    def __call__(self, stream: str, line: str) -> None:
        out = sys.stdout if stream == "stdout" else sys.stderr
        if stream != "stdout":
            self._last.append(line.rstrip())

        def write(text: str) -> None:
            out.write(text)
            out.flush()

        if out.isatty():
            self.view.pass_through(stream, line, write)
        else:  # it goes to a file or a pipe, which gets every byte at once
            write(line)

    def close(self) -> None:
        """Close the view, and write the line ends that it has kept back."""
        self.view.close(
            lambda stream, text: (sys.stdout if stream == "stdout" else sys.stderr).write(text)
        )

    def has_shown(self, traceback: str) -> bool:
        """Return whether a worker's stderr ended in this traceback, on the console."""
        error = traceback.rstrip().rpartition("\n")[2]
        begun = any("Traceback (most recent call last)" in line for line in self._last)
        return begun and any(line.endswith(error) for line in self._last)


def say_end(end: End, folder: RunFolder) -> None:
    """Print how the run ended, if it did not end well."""
    if end.exit_code != 0:
        console.begin_line(sys.stderr)
    if end.traceback:
        print(escaped(end.traceback, lines=True), file=sys.stderr)
    if end.exit_code != 0 and end.exit_code not in stop_signals.EXIT_CODES:
        print(f"error: {escaped(end.reason, lines=True)}", file=sys.stderr)
        if "\nhint: " not in end.reason:  # one thing to do is enough
            print(f"\nhint: {_hint(end.reason, folder)}", file=sys.stderr)


# breakpoint() and input() raise one of these if stdin is at its end
_AT_END_OF_INPUT = ("bdb.BdbQuit", "BdbQuit", "EOFError: EOF when reading a line")


def _hint(reason: str, folder: RunFolder) -> str:
    if reason.endswith(_AT_END_OF_INPUT):
        return (
            "a rank has no terminal to read from: for breakpoint() and input() run the script"
            " alone, as `python SCRIPT`, where outlast.join() works as well"
        )
    return f"`outlast report {folder.path}` shows what happened; logs lie in {folder.logs}"
