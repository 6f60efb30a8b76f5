"""A run's folder: where it is, what is in it, and which process holds it.

    runs/<utc time>-<name>/
      run.json      run id, name, format, version, options, pid of the newest launcher
      ledger.db     see runtime/ledger; on a network file system it is a copy, see ledger/pointer.py
      logs/ evidence/ checkpoints/
      lock          held (flock) by the launcher while it lives; its text is the holder's pid

The lock ends with the process, however that ends. Programs that the launcher starts do not inherit
it. A bare fork that outlives the launcher would keep it. Over a network file system, flock is only
as reliable as that file system.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import itertools
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from outlast.errors import CapacityError, RunFolderError
from outlast.model.limits import (
    CARD_MAX_BYTES,
    LEDGER_OLDEST_VERSION,
    LEDGER_VERSION,
    LOCK_PATIENCE_S,
)
from outlast.model.texts import duration
from outlast.runtime import clock
from outlast.runtime.folders.given import read_small
from outlast.runtime.ledger.copier import bring
from outlast.runtime.ledger.pointer import (
    LEDGER,
    find_ledger,
    forget_pointer,
    point_to,
    read_pointer,
)

ROOT = Path("runs")
# the number of entries that are read of a folder that was named by mistake
_LOOKED_AT_COUNT = 1_000


def folder_name(text: str) -> str:
    """Return a text as a part of a folder's name; "" if none of it can be used there."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("._-")
    return name[:64]  # the folder has no words in its name


def stamped(name: str) -> str:
    """Return `name` with the present time in UTC in front of it: 20260102T030405Z-name."""
    return f"{datetime.fromtimestamp(clock.wall_s(), timezone.utc):%Y%m%dT%H%M%SZ}-{name}"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """An open run folder: this process holds its lock until `close`.

    state   where ledgers lie on this machine (state_folder.py); None: in the folder of their run
    note    what people should know of the ledger with which a session goes on; "": nothing
    """

    path: Path
    run: str
    name: str
    lock_fd: int
    state: Path | None = None
    note: str = ""

    @property
    def ledger(self) -> Path:
        """Return where the ledger lies while this launcher writes it."""
        return (self.path if self.state is None else self.state / self.run) / LEDGER

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def evidence(self) -> Path:
        return self.path / "evidence"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @classmethod
    def create(
        cls,
        path: Path | None,
        *,
        name: str,
        version: str,
        options: Mapping[str, object],
        root: Path = ROOT,
        state: Path | None = None,
    ) -> RunFolder:
        """Create the folder of a new run.

        Without a path, it is `root/<utc time>-<name>`. Raises RunFolderError if a run is there
        already, and CapacityError if the disk refuses.
        """
        name = folder_name(name) or "run"
        stamp = stamped(name)
        with _disk_errors(path or root):
            path = _make_new(root, stamp) if path is None else _make_given(path)
            with _locked(path) as lock_fd:
                if (path / "run.json").exists():  # another launcher was faster
                    raise _has_a_run(path)
                folder = cls(path, f"{stamp}-{secrets.token_hex(3)}", name, lock_fd, state)
                folder._fill(version, options)
        return folder

    @classmethod
    def resume(cls, path: Path, *, state: Path | None = None) -> RunFolder:
        """Open an existing run, to go on with it. Nothing but its lock is written.

        Raises RunFolderError if it is in use, of another version, or not a run.
        """
        read_card(path)
        with _disk_errors(path), _locked(path) as lock_fd:
            card = read_card(path)
            return cls(path, str(card["run"]), str(card["name"]), lock_fd, state)

    @classmethod
    def take_over(
        cls,
        path: Path,
        *,
        run: str,
        name: str,
        version: str,
        options: Mapping[str, object],
        state: Path | None = None,
    ) -> RunFolder:
        """Make `path` the folder of a run that another node has led so far.

        Raises RunFolderError if another launcher holds it, and CapacityError if the disk refuses.
        """
        with _disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            with _locked(path) as lock_fd:
                folder = cls(path, run, name, lock_fd, state)
                folder._fill(version, options)
        return folder

    def _fill(self, version: str, options: Mapping[str, object]) -> None:
        for part in (self.logs, self.evidence, self.checkpoints):
            part.mkdir(exist_ok=True)
        self.make_place_of_ledger()
        self._write_card(version, options)

    def make_place_of_ledger(self) -> None:
        """Make the folder in which the ledger will lie, readable by its owner only."""
        if self.state is not None:
            self.ledger.parent.mkdir(mode=0o700, parents=True, exist_ok=True)

    def bring_ledger(self) -> RunFolder:
        """Bring the ledger of an earlier session to where it will be written.

        Return this folder, with a note if only a copy was there. Raises RunFolderError and
        CapacityError.
        """
        found = find_ledger(self.path)
        with _disk_errors(self.path):
            self.make_place_of_ledger()
            bring(found.path, self.ledger)
        if found.copied_ago_s is None:
            return self
        note = (
            f"the ledger of this run lies {found.elsewhere}: this session goes on from a copy that"
            f" is {duration(found.copied_ago_s)} old, without what was recorded since then"
        )
        return replace(self, note=note)

    def point_to_ledger(self) -> None:
        """Let readers find the ledger: write the pointer, or remove an older one.

        Raises CapacityError if the disk refuses.
        """
        with _disk_errors(self.path):
            if self.state is None:
                forget_pointer(self.path)
                return
            before = read_pointer(self.path)
            copied_wall_s = 0.0 if before is None else before.copied_wall_s
            point_to(self.path, self.ledger, copied_wall_s=copied_wall_s)

    def missing(self) -> str:
        """Say what of the folder is no longer where it was; "" if nothing is missing."""
        held = os.fstat(self.lock_fd)
        try:
            there = os.stat(self.path / "lock")
        except OSError:
            return (
                f"the lock of {self.path} was removed"
                if self.path.exists()
                else f"the run's folder {self.path} was moved or removed"
            )
        if (there.st_dev, there.st_ino) != (held.st_dev, held.st_ino):
            return f"another folder has taken the place of {self.path}"
        return "" if self.ledger.exists() else f"the ledger {self.ledger} was removed"

    def close(self) -> None:
        """Release the lock. Call it once."""
        os.close(self.lock_fd)

    def write_card(self, version: str, options: Mapping[str, object]) -> None:
        """Write run.json for this launcher. Raises CapacityError if the disk refuses."""
        with _disk_errors(self.path):
            self._write_card(version, options)

    def _write_card(self, version: str, options: Mapping[str, object]) -> None:
        card: dict[str, object] = {
            "run": self.run,
            "name": self.name,
            "format": LEDGER_VERSION,
            "version": version,
        }
        card |= {"pid": os.getpid(), "opened_wall_s": clock.wall_s(), "options": options}
        part = self.path / "run.json.part"
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)  # it contains the script's arguments
        part.write_text(json.dumps(card, indent=2, default=str) + "\n")
        part.replace(self.path / "run.json")


def read_card(path: Path) -> dict[str, object]:
    """Return run.json of a run folder.

    Raises RunFolderError if there is none, or it is of another version.
    """
    try:
        card = json.loads(read_small(path / "run.json", most_bytes=CARD_MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        raise RunFolderError(
            f"{path} is not a run folder: it has no run.json",
            hint="name a folder that `outlast run` made",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(
            f"{path / 'run.json'} cannot be read: {error}",
            hint="restore the file, or start a new run",
        ) from None
    if not isinstance(card, dict) or not {"run", "name", "format", "version"} <= set(card):
        raise RunFolderError(
            f"{path / 'run.json'} is not what outlast writes",
            hint="restore the file, or start a new run",
        )
    if card["format"] not in range(LEDGER_OLDEST_VERSION, LEDGER_VERSION + 1):
        raise RunFolderError(
            f"{path} was written by outlast {card['version']} (format {card['format']}); this one"
            f" reads format {LEDGER_OLDEST_VERSION} to {LEDGER_VERSION}",
            hint=f"install outlast {card['version']} or newer for this run, or start a new one",
        )
    return card


def _hint_within(path: Path) -> str:
    """Return what to name instead of a folder that contains runs, and is not a run itself."""
    for folder in (path, path / ROOT):
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            held = [
                one.name
                for one in itertools.islice(entries, _LOOKED_AT_COUNT)
                if os.path.isfile(os.path.join(one.path, "run.json"))
            ]
            if held:
                return f"{folder} holds runs: name one of them, such as {folder / max(held)}"
    return "name a folder that `outlast run` made"


def find(run: str | None, *, root: Path = ROOT) -> Path:
    """Return the folder that RUN names.

    RUN is a folder's path, a name, or a run id under `root`. Without it, the newest run is meant.

    Raises RunFolderError if there is no such folder, or if it is no run folder.
    """
    if run is None:
        return newest(root)
    for path in (Path(run), root / run):
        if path.is_dir():
            if not (path / "run.json").exists():
                raise RunFolderError(
                    f"{path} is not a run folder: it has no run.json", hint=_hint_within(path)
                )
            read_card(path)
            return path
    known = {str(card["run"]): path for path, card in _runs(root)} | {
        path.name: path for path, _ in _runs(root)
    }
    if run in known:
        return known[run]
    for path in (Path(run), root / run):
        if path.exists():  # a run of that name goes before a file
            raise RunFolderError(
                f"{path} is a file, and not a run folder",
                hint="name a folder that `outlast run` made",
            )
    close = difflib.get_close_matches(run, known, n=1)
    hint = (
        f"did you mean {close[0]}?"
        if close
        else "name a run folder, or leave RUN out for the newest one under runs/"
    )
    raise RunFolderError(f"there is no run {run}", hint=hint)


def newest(root: Path = ROOT) -> Path:
    """Return the run that was started or resumed last. Raises RunFolderError if there is none."""
    runs = _runs(root)
    if not runs:
        raise RunFolderError(
            f"there is no run under {root}/",
            hint="start one with `outlast run script.py`, name its folder, or go to the folder in"
            f" which it was started: this is {_here()}",
        )
    return max(runs, key=lambda run: (_opened_s(run[1]), run[0].name))[0]


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "a folder that has been removed"


def holder(path: Path) -> int | None:
    """Return the pid of the launcher that holds the folder now.

    It is None if none does, and 0 if that cannot be told.
    """
    try:
        fd = os.open(path / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError:
        return 0
    try:
        # this lock is held for an instant only, and a launcher that starts now waits that long
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _pid_in(fd)
    else:
        return None
    finally:
        os.close(fd)


def _make_new(root: Path, stamp: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        path = root / (stamp if number == 1 else f"{stamp}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise RunFolderError(
        f"there are a thousand runs named {root / stamp}",
        hint="wait a second, or name a folder with --run-dir",
    )


def _make_given(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise RunFolderError(f"{path} is a file", hint="name another folder with --run-dir")
    if (path / "run.json").exists():
        _refuse_if_held(path)
        raise _has_a_run(path)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _has_a_run(path: Path) -> RunFolderError:
    return RunFolderError(
        f"{path} holds a run already",
        hint="go on with it with --resume, or name another folder with --run-dir",
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Lock the folder, and yield the lock's descriptor. It is closed again if the block fails."""
    lock_fd = _lock(path)
    try:
        yield lock_fd
    except BaseException:
        os.close(lock_fd)
        raise


def _lock(path: Path) -> int:
    """Take the lock, and return its descriptor.

    A reader looks for an instant only, so a taken lock is tried again for a moment.
    """
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    patient_until_s = clock.now_s() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if clock.now_s() >= patient_until_s:
                os.close(fd)
                _refuse_if_held(path, certain=True)
            time.sleep(LOCK_PATIENCE_S / 20)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _refuse_if_held(path: Path, *, certain: bool = False) -> None:
    pid = holder(path)
    if pid is not None or certain:
        who = f"process {pid}" if pid else "another process"
        raise RunFolderError(
            f"{path} is in use by {who}",
            hint="wait for that run to end, stop it, or name another folder with --run-dir",
        )


def _pid_in(fd: int) -> int:
    try:
        return int(os.pread(fd, 32, 0).decode().strip() or 0)
    except (OSError, ValueError):
        return 0


def _runs(root: Path) -> list[tuple[Path, dict[str, object]]]:
    """Return the folders under `root` that hold a run of this version."""
    found = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(root.iterdir()):
            with contextlib.suppress(RunFolderError):
                found.append((path, read_card(path)))
    return found


def _opened_s(card: Mapping[str, object]) -> float:
    value = card.get("opened_wall_s")
    return float(value) if isinstance(value, int | float) else 0.0


class _disk_errors:  # noqa: N801 - reads as a statement
    """Raise the file system's errors as errors of outlast."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            hint = f"{'free space there, or ' if full else ''}name another folder with --run-dir"
            raise CapacityError(
                f"the run folder {self._path} cannot be written: {error.strerror}", hint=hint
            ) from error
