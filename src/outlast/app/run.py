"""`outlast run`: from a command line to a run folder, a vault and a launcher.

At the end of the run, it returns an exit code.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from outlast.app import resuming
from outlast.app.command_line import SIGINT_EXIT, fail
from outlast.app.live import LiveView, live_console
from outlast.app.node_setup import make_evidence, make_logs, of_node
from outlast.app.resuming import Beginning
from outlast.app.torchrun import Checkpoints, RunOptions, read_command_line
from outlast.diagnose.redact import GONE, redacted_words
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.protocol.outputs import End
from outlast.errors import OutlastError, RunFolderError, UsageError
from outlast.model.own_bugs import REPORT, is_own_bug
from outlast.model.records import Meta
from outlast.model.texts import escaped
from outlast.runtime import clock, console, run_folder, stop_signals
from outlast.runtime.agent.agent_driver import NodeParts
from outlast.runtime.agent.beacons import BeaconNews, Beacons
from outlast.runtime.agent.logs import WorkerLogs
from outlast.runtime.agent.zygote_client import ZygoteClient
from outlast.runtime.coordinator.bookkeeping import Bookkeeping
from outlast.runtime.coordinator.coordinator_driver import RunDesk
from outlast.runtime.coordinator.launcher import Launcher
from outlast.runtime.coordinator.pager import Pager, PageTargets
from outlast.runtime.coordinator.side_process import SideProcess
from outlast.runtime.coordinator.specs import Place, Script, Specs
from outlast.runtime.ledger.store import Ledger, Newest, read_ledger
from outlast.runtime.listener import meeting_address
from outlast.runtime.loop import Loop
from outlast.runtime.run_folder import RunFolder
from outlast.runtime.tiers.vault import Vault, clean_stale, vault_folder


def main(argv: Sequence[str]) -> int:
    """Run a script under outlast, and return the exit code of the training.

    Problems of the console do not change it.
    """
    with console.unblocked():
        try:
            return _supervise(argv)
        except OutlastError as error:
            return fail(error)


def _check_working_folder() -> None:
    """Raise UsageError if the working folder is gone: torch cannot be loaded there."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "the working folder has been removed", hint="change into a folder that exists"
        ) from None


def _supervise(argv: Sequence[str]) -> int:
    began_s, began_wall_s = clock.now_s(), clock.wall_s()
    _check_working_folder()
    # Before the launcher listens, signals raise, but never while what they would leave behind is
    # made.
    with stop_signals.raising():
        zygote = ZygoteClient.start()
        try:
            options = read_command_line(list(argv), zygote)
            if isinstance(options, str):
                print(options)
                return 0
            options = _with_meeting_address(options)
            folder, ledger = _open_folder(options, began_s, began_wall_s)
            end = _run(options, folder, ledger, zygote)
        except BaseException:
            zygote.kill()
            raise
    _say_end(end, folder)
    return end.exit_code


def _with_meeting_address(options: RunOptions) -> RunOptions:
    """Look up the name of the place where workers meet, once, and put in its address."""
    meeting = options.meeting
    address = meeting_address(meeting.master_addr or "127.0.0.1", meeting.master_port)
    return replace(options, meeting=replace(meeting, master_addr=address))


def _open_folder(
    options: RunOptions, began_s: float, began_wall_s: float
) -> tuple[RunFolder, Ledger]:
    release = version("outlast")
    name = Path(options.program.script).stem
    card = {
        "argv": redacted_words(_without_webhook(sys.argv[1:], options)),
        "workers": options.workers,
        "spares": options.spares.count,
        **(
            {"checkpoints": str(Path(options.checkpoints.folder).absolute())}
            if options.checkpoints.folder
            else {}
        ),
    }
    given = Path(options.run_dir) if options.run_dir else None
    if options.checkpoints.resume:
        path = given if given is not None else run_folder.newest()
        folder = RunFolder.resume(path)
        resuming.check(
            read_ledger(folder.ledger, whole=True),
            root=_checkpoint_root(options, folder),
            workers=options.workers,
            from_scratch=options.checkpoints.from_scratch,
        )
        folder.write_card(release, card)
        return folder, Ledger.resume(
            folder.ledger, pid=os.getpid(), started_s=began_s, started_wall_s=began_wall_s
        )
    folder = RunFolder.create(given, name=name, version=release, options=card)
    meta = Meta(
        run=folder.run,
        name=folder.name,
        world_size=options.workers,
        version=release,
        started_s=began_s,
        started_wall_s=began_wall_s,
    )
    return folder, Ledger.create(folder.ledger, meta, pid=os.getpid())


def _without_webhook(words: list[str], options: RunOptions) -> list[str]:
    """Take the address of the webhook out of a command line: who has it can post there."""
    secret = options.status.page_webhook
    return [word.replace(secret, GONE) for word in words] if secret else words


def _checkpoint_root(options: RunOptions, folder: RunFolder) -> Path:
    given = options.checkpoints.folder
    return Path(given) if given else folder.checkpoints


@dataclass(frozen=True, slots=True)
class OpenVault:
    """An open vault.

    `adopted`: a killed launcher left it, whose workers had committed `seen_step`.
    """

    vault: Vault
    adopted: bool = False
    seen_step: int = 0


def _open_vault(folder: RunFolder, checkpoints: Checkpoints) -> OpenVault:
    """Open the run's vault. `--from-scratch` uses nothing of one that a killed launcher left."""
    clean_stale()
    path = vault_folder(folder.run)
    seen_step = 0
    if checkpoints.resume:
        try:
            vault = Vault.adopt(path, folder.run)
        except RunFolderError:
            if path.exists():
                raise
        else:
            seen_step = vault.newest_committed()
            if not checkpoints.from_scratch:
                return OpenVault(vault, True, seen_step)
            vault.remove()
    return OpenVault(Vault.create(path, folder.run), False, seen_step)


def _run(options: RunOptions, folder: RunFolder, ledger: Ledger, zygote: ZygoteClient) -> End:
    """Run the job. However it ends, all that was opened is closed and the vault is removed.

    Only a vault that was taken over stays where nothing ran in it.
    """
    loop = Loop()
    with contextlib.ExitStack() as closing:
        for opened in (folder, ledger, loop):
            closing.callback(opened.close)
        with stop_signals.masked(signal.SIG_BLOCK):
            opened_vault = _open_vault(folder, options.checkpoints)
            vault, adopted = opened_vault.vault, opened_vault.adopted
            try:
                with stop_signals.masked(signal.SIG_UNBLOCK):  # what came meanwhile is raised here
                    view = LiveView(
                        live_console(os.environ),
                        status_every_s=options.status.status_every_s,
                        quiet=options.status.quiet,
                    )
                    books, launcher = _prepare(
                        options,
                        folder,
                        ledger,
                        zygote,
                        opened_vault=opened_vault,
                        loop=loop,
                        sink=(sink := WorkerOutput(view)),
                    )
                launcher.listen()
                if options.status.metrics:
                    closing.callback(
                        _serve_metrics(options.status.metrics, folder, loop, view).close
                    )
            except BaseException as error:
                _end_unrun(ledger, error)
                (vault.close if adopted else vault.remove)()
                raise
        try:
            end = launcher.run()
            sink.close()
            _close_books(books, end, view)
        finally:
            sink.close()
            vault.remove()
    if is_own_bug(end.traceback):
        end = replace(end, reason=f"{end.reason}\n\nhint: {REPORT}")
    return replace(end, traceback="") if sink.has_shown(end.traceback) else end


def _serve_metrics(where: str, folder: RunFolder, loop: Loop, view: LiveView) -> SideProcess:
    """Start the process that serves the run's metrics."""
    command = (sys.executable, "-m", "outlast.app.exporter", str(os.getpid()), where)
    return SideProcess(
        loop, (*command, str(folder.path.resolve())), what="metrics", tell=view.print_line
    )


def _pager(
    options: RunOptions, folder: RunFolder, loop: Loop, books: Bookkeeping, view: LiveView
) -> Pager | None:
    """Return the part that tells people, if there is anybody to be told."""
    command, webhook = options.status.page_command, options.status.page_webhook
    if not command and not webhook:
        return None
    targets = PageTargets(folder.run, str(folder.path.resolve()), command, webhook)
    return Pager(loop, targets, tell=view.print_line, record=books.record)


def _close_books(books: Bookkeeping, end: End, view: LiveView) -> None:
    """Write the rest of the ledger. If that fails, the exit code is still the training's."""
    try:
        books.close(end)
    except OutlastError as error:
        view.print_line(
            f"warning: the ledger lacks this run's end and what was queued before it: {error}"
        )


def _prepare(
    options: RunOptions,
    folder: RunFolder,
    ledger: Ledger,
    zygote: ZygoteClient,
    *,
    opened_vault: OpenVault,
    loop: Loop,
    sink: WorkerOutput,
) -> tuple[Bookkeeping, Launcher]:
    """Decide where the run begins, say so, and make its launcher."""
    vault, view = opened_vault.vault, sink.view
    root = _checkpoint_root(options, folder)
    records = ledger.read()
    beginning = Beginning()
    if options.checkpoints.resume:
        beginning = resuming.find_beginning(
            root,
            records,
            vault=vault if opened_vault.adopted else None,
            seen_step=opened_vault.seen_step,
            from_scratch=options.checkpoints.from_scratch,
        )
        ledger.add(beginning.event())
    coordinator_options = _coordinator_options(options, beginning, ledger.newest())
    logs = make_logs(options, folder.logs, loop, sink)
    books = Bookkeeping(
        ledger=ledger,
        records=records,
        start_step=beginning.start.step,
        living=lambda: beacons.lives(),
        gauges=lambda: beacons.gauges(),
        show=view.update,
    )
    node = platform.node()
    news = BeaconNews(over=books.life_over, step=books.step_seen)
    beacons = Beacons(vault, node=node, news=news)
    evidence = make_evidence(
        loop, folder.evidence, vault, beacons, logs,
        on_verdict=lambda number, verdict: launcher.on_verdict(number, verdict),
    )  # fmt: skip
    specs = _specs(options, folder, vault, logs, checkpoint_root=root.resolve())
    parts = NodeParts(
        node, loop, logs, vault, beacons, specs, evidence, of_node(options, zygote),
        tell=view.print_line, missing=folder.missing,
    )  # fmt: skip
    desk = RunDesk(
        loop, books, specs, vault, evidence, root.resolve(), view.print_line,
        _pager(options, folder, loop, books, view),
    )  # fmt: skip
    launcher = Launcher(parts, desk, coordinator_options)
    refused = (f"warning: a checkpoint was refused: {one}" for one in beginning.refused)
    for note in (*options.notes, *refused):
        view.print_line(note)
    if options.checkpoints.resume:
        view.print_line(beginning.describe(folder.path))
    return books, launcher


def _specs(
    options: RunOptions,
    folder: RunFolder,
    vault: Vault,
    logs: WorkerLogs,
    *,
    checkpoint_root: Path,
) -> Specs:
    """Return what every worker process has to be told."""
    return Specs(
        place=Place(folder.run, str(folder.path.resolve()), str(vault.folder)),
        script=Script(options.program.script, options.program.entry, options.program.args),
        workers=options.workers,
        role=options.meeting.role,
        master=(options.meeting.master_addr, options.meeting.master_port),
        max_restarts=options.meeting.max_restarts or 0,
        logs=logs,
        options={
            "checkpoint_every": options.checkpoints.every_steps or 0,
            "checkpoint_root": str(checkpoint_root),
            "snapshot_every": options.snapshot_every,
        },
    )


def _coordinator_options(
    options: RunOptions, beginning: Beginning, newest: Newest
) -> CoordinatorOptions:
    """Return the coordinator's options. A resumed run goes on counting from `newest`."""
    return CoordinatorOptions(
        world_size=options.workers,
        start=beginning.start,
        committed_before=beginning.highest,
        spares=options.spares.count,
        spare_kind=options.spares.kind,
        max_restarts=options.meeting.max_restarts,
        checkpoint=beginning.checkpoint,
        checkpoint_on_stop=bool(options.checkpoints.every_steps),
        durable=bool(options.checkpoints.every_steps or beginning.checkpoint[0]),
        term_grace_s=options.term_grace_s,
        generation=max(0, newest.generation),
        first_interruption=max(newest.interruption + 1, 1),
        first_worker=max(newest.worker + 1, 1),
        saves_last=True,
        greets=options.program.entry != "program",
        policy=options.policy,
    )


def _end_unrun(ledger: Ledger, error: BaseException) -> None:
    state, code, reason = (
        "failed",
        error.exit_code if isinstance(error, OutlastError) else 1,
        str(error),
    )
    if isinstance(error, KeyboardInterrupt | SystemExit):
        code = SIGINT_EXIT if isinstance(error, KeyboardInterrupt) else int(error.code or 0)
        state, reason = "stopped", "the launcher was told to stop before anything ran"
    with contextlib.suppress(OutlastError):
        ledger.end_session(ended_s=clock.now_s(), state=state, exit_code=code, reason=reason)


_LINES_COUNT = 1_000  # of stderr, in which a traceback is looked for


class WorkerOutput:
    """Print the lines of the workers where the launcher's own lines go.

    What they wrote to stderr last is remembered, so that no traceback is shown twice.
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
        """Take the view away, and write the ends of lines that were kept back."""
        self.view.close(
            lambda stream, text: (sys.stdout if stream == "stdout" else sys.stderr).write(text)
        )

    def has_shown(self, traceback: str) -> bool:
        """Return whether a worker's stderr ended in this traceback, on the console."""
        error = traceback.rstrip().rpartition("\n")[2]
        begun = any("Traceback (most recent call last)" in line for line in self._last)
        return begun and any(line.endswith(error) for line in self._last)


def _say_end(end: End, folder: RunFolder) -> None:
    """Say how the run ended, if not well."""
    if end.traceback:
        print(escaped(end.traceback, lines=True), file=sys.stderr)
    if end.exit_code != 0 and end.exit_code not in stop_signals.EXIT_CODES:
        print(f"error: {escaped(end.reason, lines=True)}", file=sys.stderr)
        if "\nhint: " not in end.reason:  # one thing to do is enough
            print(
                f"\nhint: `outlast report {folder.path}` shows what happened; logs lie in"
                f" {folder.logs}",
                file=sys.stderr,
            )
