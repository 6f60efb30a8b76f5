"""`LedgerCopier`: puts copies of a ledger on this machine's disk into the run's folder.

    begin    the pointer was written; the first copy is made
    note     a checkpoint was written; another copy is made soon
    close    the last copy is made, once the ledger is closed

SQLite never opens a file on the network file system: a thread makes the copy beside the ledger, and
moves its bytes into the folder as one file. Training does not wait for it. If the folder cannot be
written, that is said once, and tried again with the next copy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from outlast.model import limits
from outlast.model.records import Event, Record
from outlast.runtime import clock
from outlast.runtime.ledger.files import BESIDE
from outlast.runtime.ledger.pointer import LEDGER, forget_pointer, point_to

CHECKPOINT = "checkpoint"  # the kind of the event of a checkpoint that was written


class LedgerCopier:
    """Copy a ledger into the folder of its run, if it does not lie there.

        copier = LedgerCopier(ledger_path, folder)
        copier.begin(tell=print)
        copier.note(record)           # each record that is written
        copier.close(is_last=True)    # after the ledger was closed

    It does nothing if the ledger lies in the folder. A copy may lack the newest second, except for
    the last one. `tell` is called by the thread that calls these methods.
    """

    def __init__(self, ledger: Path, folder: Path) -> None:
        self._ledger = ledger
        self._folder = folder
        self._tell: Callable[[str], object] = lambda text: None
        self._wanted = threading.Event()
        self._over = threading.Event()
        self._is_last = False  # the last copy is to be made
        self._lack = ""  # why the newest copy could not be made
        self._told = ""  # the newest lack that was told
        away = ledger.parent.resolve() != folder.resolve()
        self._thread = threading.Thread(target=self._run, daemon=True) if away else None

    def begin(self, *, tell: Callable[[str], object]) -> None:
        """Make the first copy soon. `tell` shows a line to people, from now on."""
        self._tell = tell
        if self._thread is not None:
            tell(
                f"the ledger lies in {self._ledger}; copies are put into {self._folder} at"
                " checkpoints and at the end"
            )
            self._wanted.set()
            self._thread.start()

    def note(self, record: Record) -> None:
        """Make another copy soon, if `record` is that of a checkpoint."""
        if isinstance(record, Event) and record.kind == CHECKPOINT:
            self._wanted.set()
        self._tell_lack()

    def close(self, *, is_last: bool) -> None:
        """Stop. With `is_last`, make the last copy, and remove the ledger that it is of.

        Otherwise another launcher goes on with the run, and the ledger stays.
        """
        if self._thread is None or self._over.is_set():
            return
        self._is_last = is_last
        self._over.set()
        self._wanted.set()
        if self._thread.ident is None:
            self._thread.start()
        self._thread.join(limits.LEDGER_COPY_S)
        if is_last and self._thread.is_alive():
            self._lack = f"{self._folder} does not answer"
        self._tell_lack()

    def _tell_lack(self) -> None:
        lack = self._lack
        if lack and not self._told:
            self._tell(
                f"warning: no copy of the ledger can be put into {self._folder}: {lack}; the ledger"
                f" itself lies in {self._ledger}"
            )
        elif self._told and not lack:
            self._tell(f"copies of the ledger are put into {self._folder} again")
        self._told = lack

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        """Make copies until the launcher is over, and then the last one."""
        while True:
            self._wanted.wait()
            self._wanted.clear()
            # The record of the checkpoint is flushed by then.
            if self._over.wait(2 * limits.LEDGER_FLUSH_S):
                break
            self._copy()
        if self._is_last and self._copy():
            with contextlib.suppress(OSError):
                forget_pointer(self._folder)
                _remove(self._ledger)
                self._ledger.parent.rmdir()

    def _copy(self) -> bool:
        """Copy the ledger now. Return False if that is not possible."""
        beside = self._ledger.with_name("copy-of-ledger.db")
        part = self._folder / f"{LEDGER}.part"
        try:
            _remove(beside)
            _back_up(self._ledger, beside)
            made_wall_s = clock.wall_s()
            with beside.open("rb") as source, part.open("wb") as target:
                shutil.copyfileobj(source, target, limits.EVIDENCE_READ_BYTES)
                target.flush()
                os.fsync(target.fileno())
            part.replace(self._folder / LEDGER)
            point_to(self._folder, self._ledger, copied_wall_s=made_wall_s)
            _remove(beside)
        except (OSError, sqlite3.Error) as error:
            self._lack = str(error)
            return False
        self._lack = ""
        return True


def bring(source: Path, target: Path) -> None:
    """Make `target` the ledger that `source` is, unless it is that already. Raises OSError.

    `source` may be a copy on a network file system, which SQLite does not open.
    """
    if source.resolve() == target.resolve():
        return
    part = target.with_name("copy-of-ledger.db")
    _remove(part)
    try:
        if Path(f"{source}-wal").exists():
            _back_up(source, part)
        else:
            shutil.copyfile(source, part)
    except sqlite3.Error as error:
        raise OSError(f"{source} cannot be read: {error}") from error
    _remove(target)
    part.replace(target)


def _back_up(ledger: Path, target: Path) -> None:
    """Write what the ledger holds at this moment into a file that needs no other file beside it."""
    with (
        closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")


def _remove(ledger: Path) -> None:
    """Remove a ledger, and the files that SQLite keeps beside it."""
    for name in (ledger, *(Path(f"{ledger}{ending}") for ending in BESIDE)):
        name.unlink(missing_ok=True)
