"""`outlast run`: from a command line to a run folder, a vault and a launcher.

At the end of the run, it returns an exit code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outlast.app.command_line import fail
from outlast.app.launch import object_storage, resuming
from outlast.app.launch.node_setup import (
    WorkerOutput,
    checkpoint_root,
    close_books,
    coordinator_options,
    copier_of,
    finish_uploads,
    make_evidence,
    make_logs,
    make_view,
    of_node,
    open_folder,
    pager,
    say_end,
    serve_metrics,
    unrun_noted,
)
from outlast.app.launch.resuming import Beginning
from outlast.app.launch.run_nodes import run_several
from outlast.app.launch.torchrun import CheckpointOptions, RunOptions, read_command_line
from outlast.engine.protocol.outputs import End
from outlast.errors import CapacityError, OutlastError, RunFolderError, UsageError
from outlast.model.own_bugs import REPORT, is_own_bug
from outlast.model.records import Records
from outlast.runtime import clock, console, stop_signals
from outlast.runtime.agent.agent_driver import NodeParts
from outlast.runtime.agent.beacons import BeaconNews, Beacons
from outlast.runtime.agent.logs import WorkerLogs
from outlast.runtime.agent.specs import RunFolders, Specs, UserScript, WorldSize
from outlast.runtime.agent.zygote_client import LIMIT_HINT, ZygoteClient
from outlast.runtime.coordinator.bookkeeping import Bookkeeping
from outlast.runtime.coordinator.control_socket import ControlSocket
from outlast.runtime.coordinator.coordinator_driver import CoordinatorParts
from outlast.runtime.coordinator.launcher import Launcher
from outlast.runtime.folders.run_folder import RunFolder
from outlast.runtime.ledger.copier import LedgerCopier
from outlast.runtime.ledger.store import Ledger
from outlast.runtime.loop import Loop
from outlast.runtime.network import token
from outlast.runtime.network.listener import meeting_address
from outlast.runtime.open_files import make_room_for_run, make_room_for_start
from outlast.runtime.tiers.left_vaults import left_vaults_note
from outlast.runtime.tiers.vault import Vault
from outlast.runtime.tiers.vault_owner import clean_stale, vault_folder


def main(argv: Sequence[str]) -> int:
    """Run a script under outlast, and return the exit code of the training.

    Errors of the console do not change the exit code.
    """
    with console.unblocked():
        try:
            return _supervise(argv)
        except OutlastError as error:
            console.begin_line(sys.stderr)
            return fail(error)


def _check_place() -> None:
    """Raise UsageError if the working folder or /proc is not there.

    torch cannot be loaded without a working folder, and outlast watches processes through /proc.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "the working folder has been removed", hint="change into a folder that exists"
        ) from None
    if not os.path.isdir("/proc/self/fd"):
        raise UsageError(
            "/proc is not mounted, and outlast watches processes there",
            hint="mount it: `mount -t proc proc /proc`; a container or chroot needs its own",
        )


def _first_zygote() -> ZygoteClient:
    """Start a zygote. Raises CapacityError if the system does not allow another process."""
    try:
        return ZygoteClient.start()
    except OSError as error:
        limited = error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
        raise CapacityError(
            f"the process that imports torch cannot be started: {error.strerror}",
            hint=LIMIT_HINT if limited else f"may this user run {sys.executable}?",
        ) from error


def _supervise(argv: Sequence[str]) -> int:
    began_s, began_wall_s = clock.now_s(), clock.wall_s()
    _check_place()
    given_token = token.take_from_environment()  # before anything else is started
    # Until the launcher listens, a signal raises an exception. `_run` blocks signals while it makes
    # things that the exception would leave behind.
    with stop_signals.raising():
        make_room_for_start()  # of the zygote, which reads how many workers there are
        zygote = _first_zygote()
        try:
            options = read_command_line(list(argv), zygote)
            if isinstance(options, str):
                print(options)
                return 0
            make_room_for_run(options.workers + options.spares.count, (zygote.pid,))
            if options.nodes is not None:
                return run_several(options, zygote, given_token, (began_s, began_wall_s))
            options = _with_meeting_address(options)
            folder, ledger = open_folder(options, began_s, began_wall_s)
            end = _run(options, folder, ledger, zygote)
        except BaseException:
            zygote.kill()
            raise
    say_end(end, folder)
    return end.exit_code


def _with_meeting_address(options: RunOptions) -> RunOptions:
    """Look up the address of the host where workers meet, once, and put it into the options."""
    meeting = options.meeting
    address = meeting_address(meeting.master_addr or "127.0.0.1", meeting.master_port)
    return replace(options, meeting=replace(meeting, master_addr=address))


@dataclass(frozen=True, slots=True)
class OpenVault:
    """An open vault.

    adopted      True if a killed launcher left it
    seen_step    the newest step that the workers of that launcher had committed
    passed_over  why this run uses nothing of the vault that was left, a sentence; "" if it does
    """

    vault: Vault
    adopted: bool = False
    seen_step: int = 0
    passed_over: str = ""


def _open_vault(folder: RunFolder, checkpoints: CheckpointOptions, records: Records) -> OpenVault:
    """Open the run's vault.

    The vault that a killed launcher left is not used with `--from-scratch`, nor with another number
    of ranks.
    """
    clean_stale()
    path = vault_folder(folder.run)
    seen_step, why = 0, ""
    if checkpoints.resume:
        try:
            vault = Vault.adopt(path, folder.run)
        except RunFolderError:
            if path.exists():
                raise
        else:
            seen_step = vault.newest_committed()
            why = "" if checkpoints.from_scratch else resuming.passes_over_vault(records, vault)
            if not checkpoints.from_scratch and not why:
                return OpenVault(vault, True, seen_step)
            vault.remove()
    return OpenVault(Vault.create(path, folder.run), False, seen_step, why)


def _run(options: RunOptions, folder: RunFolder, ledger: Ledger, zygote: ZygoteClient) -> End:
    """Run the job. However it ends, everything that was opened is closed and the vault is removed.

    A vault that was taken over stays if no worker has run in it.
    """
    loop = Loop()
    with contextlib.ExitStack() as closing:
        copier = copier_of(folder)
        closing.callback(folder.close)
        closing.callback(copier.close, is_last=True)
        for opened in (ledger, loop):
            closing.callback(opened.close)
        control = ControlSocket(loop, folder.path, tell=lambda text: sink.view.print_line(text))
        closing.callback(control.close)
        with stop_signals.masked(signal.SIG_BLOCK), unrun_noted(ledger):
            records = ledger.read()
            opened_vault = _open_vault(folder, options.checkpoints, records)
            vault, adopted = opened_vault.vault, opened_vault.adopted
            try:
                with stop_signals.masked(signal.SIG_UNBLOCK):  # signals that have come raise here
                    view = make_view(options)
                    books, launcher = _prepare(
                        options,
                        folder,
                        ledger,
                        zygote,
                        records=records,
                        opened_vault=opened_vault,
                        loop=loop,
                        sink=(sink := WorkerOutput(view)),
                        control=control,
                        copier=copier,
                    )
                launcher.listen()
                uploads = object_storage.start_uploads(
                    options,
                    run=folder.run,
                    root=checkpoint_root(options, folder),
                    loop=loop,
                    tell=view.print_line,
                    record=books.record,
                )
                if uploads is not None:
                    closing.callback(uploads.close)
                if options.status.metrics:
                    closing.callback(
                        serve_metrics(options.status.metrics, folder, loop, view).close
                    )
            except BaseException:
                (vault.close if adopted else vault.remove)()
                raise
        try:
            end = launcher.run()
            sink.close()
            close_books(books, end, view)
        finally:
            sink.close()
            vault.remove()
        if uploads is not None:
            finish_uploads(uploads, ledger)
    if is_own_bug(end.traceback):
        end = replace(end, reason=f"{end.reason}\n\nhint: {REPORT}")
    return replace(end, traceback="") if sink.has_shown(end.traceback) else end


def _prepare(
    options: RunOptions,
    folder: RunFolder,
    ledger: Ledger,
    zygote: ZygoteClient,
    *,
    records: Records,
    opened_vault: OpenVault,
    loop: Loop,
    sink: WorkerOutput,
    control: ControlSocket,
    copier: LedgerCopier,
) -> tuple[Bookkeeping, Launcher]:
    """Decide where the run begins, print that, and make its launcher."""
    vault, view = opened_vault.vault, sink.view
    root = checkpoint_root(options, folder)
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
    engine_options = coordinator_options(options, beginning, ledger.newest())
    logs = make_logs(options, folder.logs, loop, sink)
    books = Bookkeeping(
        ledger=ledger,
        records=records,
        start_step=beginning.start.step,
        living=lambda: beacons.lives(),
        gauges=lambda: beacons.gauges(),
        log_of=lambda node, worker: logs.folder_of(worker),
        show=view.update,
        also=copier.note,
    )
    node = platform.node()
    news = BeaconNews(over=books.life_over, step=books.step_seen)
    beacons = Beacons(vault, node=node, news=news)
    evidence = make_evidence(
        loop, folder.evidence, vault, beacons, logs,
        on_verdict=lambda number, verdict: launcher.on_verdict(number, verdict),
    )  # fmt: skip  # one argument a line would hide what happens
    specs = _specs(options, folder, vault, logs, checkpoint_root=root.resolve())
    parts = NodeParts(
        node, loop, logs, vault, beacons, specs, evidence, of_node(options, zygote),
        tell=view.print_line, missing=folder.missing,
    )  # fmt: skip  # one argument a line would hide what happens
    coordinator_parts = CoordinatorParts(
        loop, books, specs, vault, evidence, root.resolve(), view.print_line,
        pager(options, folder, loop, books, view), control,
        retention=options.checkpoints.retention,
    )  # fmt: skip  # one argument a line would hide what happens
    launcher = Launcher(parts, coordinator_parts, engine_options)
    doubts = [one for one in (opened_vault.passed_over, folder.note) if one]
    refused = (f"warning: {one}" for one in (*doubts, *beginning.refused))
    left = left_vaults_note(own=vault.folder)
    for note in (*options.notes, *refused, *([left] if left else [])):
        view.print_line(note)
    if options.checkpoints.resume:
        view.print_line(beginning.describe(folder.path))
    copier.begin(tell=view.print_line)
    return books, launcher


def _specs(
    options: RunOptions,
    folder: RunFolder,
    vault: Vault,
    logs: WorkerLogs,
    *,
    checkpoint_root: Path,
) -> Specs:
    """Return the options for every worker process."""
    return Specs(
        place=RunFolders(folder.run, str(folder.path.resolve()), str(vault.folder)),
        script=UserScript(options.program.script, options.program.entry, options.program.args),
        size=WorldSize(options.workers, options.workers),
        role=options.meeting.role,
        master=(options.meeting.master_addr, options.meeting.master_port),
        max_restarts=options.meeting.max_restarts or 0,
        logs=logs,
        options={
            "checkpoint_every": options.checkpoints.every_steps or 0,
            "checkpoint_root": str(checkpoint_root),
            "snapshot_every": options.snapshot_every,
            "keep_vault": dataclasses.astuple(options.copies),
            "keep_disk": dataclasses.astuple(options.checkpoints.timed),
        },
    )
