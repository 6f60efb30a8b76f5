"""Create a run's folder from records that outlast has not written itself (`outlast import`)."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from outlast.errors import CapacityError
from outlast.model.records import Meta, Records, Session
from outlast.runtime.folders import run_folder
from outlast.runtime.folders.run_folder import RunFolder
from outlast.runtime.folders.state_folder import state_root
from outlast.runtime.ledger.copier import LedgerCopier
from outlast.runtime.ledger.pointer import LEDGER
from outlast.runtime.ledger.store import Ledger


def write_records(path: Path | None, records: Records, *, options: dict[str, object]) -> Path:
    """Write the records as the ledger of a new run, as a whole or not at all. Return its folder.

    Without a path, the folder is under runs/. Raises RunFolderError if there is a run already, and
    CapacityError if the disk refuses.
    """
    is_new = path is None or not path.exists()
    version = records.meta.version
    state = state_root("", path or run_folder.ROOT)
    folder = RunFolder.create(
        path, name=records.meta.name, version=version, options=options, state=state
    )
    try:
        _fill(folder, records)
        LedgerCopier(folder.ledger, folder.path).close(is_last=True)
        if not (folder.path / LEDGER).exists():
            raise CapacityError(
                f"the ledger cannot be put into {folder.path}",
                hint="name another folder with --run-dir",
            )
    except BaseException:
        if is_new:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    finally:
        folder.close()
    return folder.path


def _fill(folder: RunFolder, records: Records) -> None:
    meta = replace(records.meta, run=folder.run, name=folder.name)
    for part in records.sessions:
        session = part.session
        with closing(_opened(folder, session, meta)) as ledger:
            for some in (part.lives, part.interruptions, part.generations, part.steps, part.events):
                for record in some:
                    ledger.add(record)
                ledger.flush()
            code = session.exit_code
            ledger.end_session(
                ended_s=session.over_s,
                state=session.state,
                exit_code=int(session.state == "failed") if code is None else code,
                reason=session.reason,
            )


def _opened(folder: RunFolder, session: Session, meta: Meta) -> Ledger:
    if session.session == 1:
        return Ledger.create(folder.ledger, meta, pid=os.getpid())
    return Ledger.resume(
        folder.ledger,
        pid=os.getpid(),
        started_s=session.started_s,
        started_wall_s=session.started_wall_s,
    )
