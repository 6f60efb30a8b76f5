"""Turn the paths on the command line into pieces of evidence.

Folders, files and archives are walked in one order, and each thing is read once.

Never   Symbolic links are never followed, except those that were named themselves. Only regular
        files are opened. A name inside an archive is never used as a path.
Bounds  Files, nesting and unpacked bytes are limited: `model/limits.py`. What is left out is said
        in `notes`, counted by reason.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from outlast.diagnose.self_output import not_collected
from outlast.errors import UsageError
from outlast.model import limits
from outlast.model.pieces import Piece
from outlast.runtime.evidence import unpack
from outlast.runtime.evidence.collected import (
    CollectedFolder,
    collected_folder,
    home_of,
    of_earlier_attempts,
)
from outlast.runtime.evidence.decompress import CannotRead, Damaged
from outlast.runtime.evidence.kinds import ARCHIVES, FileKind, kind_of, named_like_a_dump
from outlast.runtime.evidence.notes import Notes
from outlast.runtime.evidence.opening import Bounded, NotRegular, Peeked, read_head

_NOT_FOLLOWED = {".git", "__pycache__", "node_modules"}
_READ_WITH_ANOTHER = ("-wal", "-shm")  # SQLite's files beside its file
_SPECIAL = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_LIKE_LOGS = {FileKind.SOURCE, FileKind.SETTINGS}  # read only where a person names them
_NEVER_A_DUMP = {FileKind.OURS, *_LIKE_LOGS}
_READ = {
    FileKind.DUMP,
    FileKind.TEXT,
    FileKind.ERROR_FILE,
    FileKind.DATABASE,
    FileKind.STANDING,
    FileKind.BEACON,
}
# as runtime/agent/evidence.py names them
_CASE = re.compile(r"^(.*?)interruption-(\d{1,9})/[^/]*$")
_INSIDE = re.compile(r"^(.*?)interruption-(\d{1,9})/")
# what a node keeps of its own evidence, as runtime/agent/secured_evidence.py names it
_SECURED = re.compile(r"(?:^|/)secured/interruption-\d{1,9}/")
_ASKED = re.compile(
    r"^(.*?)stacks-\d{1,9}\.txt$"
)  # as runtime/worker/process/witness.py names them


@dataclass(slots=True)
class Gathered:
    """Pieces of evidence by their kind, each list in the order of names.

    collected   what the records of `--collect` say, one for each folder that it wrote
    said        what is unusual about the evidence, in sentences: it is cut, damaged, or too much
    skipped     what was left out, by reason
    """

    dumps: list[Piece] = field(default_factory=list)
    texts: list[Piece] = field(default_factory=list)
    error_files: list[Piece] = field(default_factory=list)
    databases: list[Piece] = field(default_factory=list)
    standings: list[Piece] = field(default_factory=list)
    beacons: list[Piece] = field(default_factory=list)
    collected: list[CollectedFolder] = field(default_factory=list)
    said: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return sum(map(len, self._lists))

    @property
    def _lists(self) -> tuple[list[Piece], ...]:
        return (
            self.dumps,
            self.texts,
            self.error_files,
            self.databases,
            self.standings,
            self.beacons,
        )

    def leave_out_earlier_attempts(self) -> list[str]:
        """Leave out folders of `--collect` that are of earlier attempts. Return their names."""
        folders = of_earlier_attempts(self.collected)
        for pieces in self._lists if folders else ():
            pieces[:] = [one for one in pieces if home_of(one.name, self.collected) not in folders]
        return folders

    def leave_out_history(self) -> int:
        """Leave out the evidence of older interruptions. Return how many folders were left out.

        A run's folder has a folder of evidence for each interruption, and only the newest one
        matters. Beside such folders, the copies that nodes keep of their own evidence are left out
        as well.
        """
        cases = {
            (found[1], int(found[2]))
            for piece in self.standings
            if (found := _CASE.search(piece.name))
        }
        newest: dict[str, int] = {}
        for folder, number in cases:
            newest[folder] = max(newest.get(folder, 0), number)
        old = {(folder, number) for folder, number in cases if number < newest[folder]}

        def counts(piece: Piece) -> bool:
            found = _INSIDE.search(piece.name)
            is_old = found is not None and (found[1], int(found[2])) in old
            return not is_old and not (cases and _SECURED.search(piece.name))

        for pieces in self._lists:
            pieces[:] = filter(counts, pieces)
        return len(old)

    def leave_out_suspicions(self, quiet: Collection[str]) -> int:
        """Leave out stacks that workers of a live run wrote when they were asked for an answer.

        For workers that were given up, copies are with their interruption. `quiet` are the names of
        ledgers without an interruption: no worker was given up in these runs. Return how many were
        left out.
        """
        folders = {f"{name.removesuffix(name.rpartition('/')[2])}evidence/" for name in quiet}
        folders |= {found[1] for piece in self.standings if (found := _CASE.search(piece.name))}
        asked = {
            piece.name
            for piece in self.texts
            if (found := _ASKED.search(piece.name)) and found[1] in folders
        }
        self.texts[:] = [piece for piece in self.texts if piece.name not in asked]
        return len(asked)


def gather(
    paths: Sequence[str], scratch: str, *, is_over: Callable[[], bool] = lambda: False
) -> Gathered:
    """Return all pieces below `paths`.

    Archives are unpacked into the folder `scratch`, which must exist longer than the pieces.
    `is_over` is called from time to time. Once it returns True, nothing more is searched or
    unpacked.

    Raises UsageError if a path does not exist or cannot be read, or if nothing in all of them can
    be read as evidence.
    """
    walk = _Walk(scratch, is_over)
    for path, prefix in zip(paths, _prefixes(paths), strict=True):
        walk.root(path, prefix)
    gathered = walk.sorted()
    if not gathered.count:
        found = "\n".join((*gathered.said, *gathered.skipped))
        raise UsageError(
            f"nothing in {', '.join(paths)} can be read as evidence"
            + (f":\n{found}" if found else ": there are no files"),
            hint=(
                "name a folder with logs, flight-recorder dumps, kernel logs or stacks, or an"
                " archive of them"
            ),
        )
    return gathered


def _prefixes(paths: Sequence[str]) -> list[str]:
    """Return the beginnings of the names of the pieces.

    For a single folder that is nothing. Otherwise it is each path's last part, or the whole path if
    two are alike.
    """
    if len(paths) == 1 and os.path.isdir(paths[0]):
        return [""]
    last = [os.path.basename(os.path.normpath(path)) for path in paths]
    return [
        shown(name if last.count(name) == 1 else path.strip("/"))
        for name, path in zip(last, paths, strict=True)
    ]


def shown(name: str) -> str:
    """Return a file name as text, for any bytes in it."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


class _Walk:
    def __init__(self, scratch: str, is_over: Callable[[], bool]) -> None:
        self._scratch = scratch
        self._is_over = is_over
        self._notes = Notes()
        self._found: list[tuple[FileKind, Piece]] = []
        # its bytes do not say what it is; by the names around it, it may be a damaged dump
        self._undecided: list[tuple[FileKind, Piece]] = []
        self._seen: set[tuple[int, int]] = set()
        self._roots: list[str] = []
        self._written = 0
        self._budget: unpack.UnpackBudget | None = None

    # --- folders ----------------------------------------------------------------------------------

    def root(self, path: str, prefix: str) -> None:
        """Walk a path that a person named. Its own links are followed. Raises UsageError."""
        try:
            real = os.path.realpath(path, strict=True)
            mode = os.stat(real).st_mode
            if stat.S_ISDIR(mode):
                os.listdir(real)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read: {error.strerror}",
                hint="name folders, files or archives that exist and may be read",
            ) from None
        if not stat.S_ISDIR(mode):
            self._entry(real, prefix, mode, named=True)
            return
        self._roots.append(real + os.sep)
        for full, name, entry_mode in self._below(real, prefix):
            if stat.S_ISLNK(entry_mode):
                self._link(full, name)
            else:
                self._entry(full, name, entry_mode)

    def _below(self, folder: str, prefix: str) -> Iterator[tuple[str, str, int]]:
        """Yield everything below a folder that is not a folder: path, name and mode."""
        waiting = [(folder, prefix)]
        count = 0
        while waiting and not self._is_over():
            path, name = waiting.pop()
            try:
                with os.scandir(path) as entries:
                    found = [
                        (
                            one.path,
                            os.path.join(name, shown(one.name)),
                            one.stat(follow_symlinks=False).st_mode,
                        )
                        for one in entries
                    ]
            except OSError as error:
                self._notes.skip(f"{error.strerror}", name or shown(path))
                continue
            for full, one_name, mode in sorted(found, key=lambda entry: entry[1]):
                if stat.S_ISDIR(mode):
                    if os.path.basename(full) not in _NOT_FOLLOWED:
                        waiting.append((full, one_name))
                    continue
                count += 1
                if count > limits.EVIDENCE_FILES_MAX_COUNT:
                    self._notes.say(
                        f"more than {limits.EVIDENCE_FILES_MAX_COUNT:,} files: only so many were"
                        " looked at"
                    )
                    return
                yield full, one_name, mode

    def _link(self, path: str, name: str) -> None:
        """Note a link, unless it leads to something that is read anyway."""
        target = os.path.realpath(path)
        if not os.path.exists(target):
            self._notes.skip("a symbolic link that leads nowhere", name)
        elif not any(target.startswith(root) or target + os.sep == root for root in self._roots):
            self._notes.skip("a symbolic link out of the folder", name)

    # --- files ------------------------------------------------------------------------------------

    def _entry(self, path: str, name: str, mode: int, *, named: bool = False) -> None:
        if not stat.S_ISREG(mode):
            self._notes.skip(_SPECIAL.get(stat.S_IFMT(mode), "not a regular file"), name)
            return
        try:
            head, status = read_head(path, limits.EVIDENCE_HEAD_BYTES)
        except NotRegular:
            self._notes.skip("not a regular file", name)
            return
        except OSError as error:
            self._notes.skip(f"{error.strerror}", name)
            return
        if (status.st_dev, status.st_ino) in self._seen or name.endswith(_READ_WITH_ANOTHER):
            return
        self._seen.add((status.st_dev, status.st_ino))
        kind = kind_of(head, name)
        if kind in ARCHIVES:
            self._archive(path, kind, name, status.st_size)
        else:
            self._take(
                FileKind.TEXT if named and kind in _LIKE_LOGS else kind,
                Piece(name, path, status.st_size),
            )

    def _take(self, kind: FileKind, piece: Piece) -> None:
        if kind in _READ:
            self._found.append((kind, piece))
        else:
            self._undecided.append((kind, piece))

    def _is_collected(self, piece: Piece, out: Gathered) -> bool:
        """Read the record of `--collect`. Return False if this file is none."""
        if piece.path is None:
            return False
        record = read_head(piece.path, limits.EVIDENCE_HEAD_BYTES)[0]
        lacking, read = not_collected(record), collected_folder(piece.name, record)
        for one in lacking:
            self._notes.lack(one)
        if read is not None:
            out.collected.append(read)
        return bool(lacking) or read is not None

    # --- archives ---------------------------------------------------------------------------------

    def _archive(self, path: str, kind: FileKind, name: str, size: int) -> None:
        if self._budget is None:
            self._budget = unpack.UnpackBudget(unpack.room_in(self._scratch))
        self._budget.begin(size)
        try:
            with Bounded(path, size) as file:
                self._open(Peeked(file), kind, name, depth=1, path=path)
        except unpack.Enough as error:
            self._notes.say(f"{name}: {error}; what was unpacked before that was read")
        except OSError as error:
            self._notes.skip(f"{error.strerror or error}", name)

    def _open(
        self, stream: Peeked, kind: FileKind, name: str, *, depth: int, path: str | None = None
    ) -> None:
        """Open an archive. `path`: the path of the archive, if it is a file of its own."""
        assert self._budget is not None
        if depth > limits.EVIDENCE_NESTING_MAX_COUNT:
            self._notes.skip(
                f"an archive more than {limits.EVIDENCE_NESTING_MAX_COUNT} deep in archives", name
            )
            return
        try:
            if kind is FileKind.ZIP:
                found = unpack.inside_zip(
                    path or self._write(stream, name).path or "", name, self._budget
                )
            else:
                found = unpack.inside(stream, kind, name, self._budget)
            for one in found:
                self._inside(one, depth)
        except CannotRead as error:
            self._notes.skip(str(error), name)
        except EOFError:
            self._notes.say(f"{name} was cut short: read up to there")
        except Damaged as error:
            self._notes.say(f"{name} is damaged ({error}): read up to there")

    def _inside(self, one: unpack.Inside, depth: int) -> None:
        if one.body is None:
            self._notes.skip(one.why, one.name)
            return
        if self._is_over():
            raise unpack.Enough("the time limit was over")
        if self._written >= limits.EVIDENCE_FILES_MAX_COUNT:
            raise unpack.Enough(f"more than {limits.EVIDENCE_FILES_MAX_COUNT:,} files")
        try:
            head = one.body.peek(limits.EVIDENCE_HEAD_BYTES)
            plain = unpack.without_suffix(one.name)
            kind = kind_of(head, plain)
            if kind in ARCHIVES:
                self._open(one.body, kind, one.name, depth=depth + 1)
            elif kind in _READ or named_like_a_dump(plain):
                self._write(one.body, plain if named_like_a_dump(plain) else one.name, kind)
            else:
                self._take(kind, Piece(one.name, None, len(head)))
        except unpack.MemberDamaged as error:
            self._notes.say(f"{one.name} is damaged ({error}): read up to there")

    def _write(self, stream: Peeked, name: str, kind: FileKind | None = None) -> Piece:
        """Write a member as a file of its own. What was written before an error is kept."""
        self._written += 1
        path = os.path.join(self._scratch, str(self._written))
        size = 0
        try:
            with open(path, "xb") as file:
                while data := stream.read(limits.EVIDENCE_READ_BYTES):
                    size += file.write(data)
                    if self._is_over():
                        raise unpack.Enough("the time limit was over")
        finally:
            piece = Piece(name, path, size, is_original=False)
            if kind is not None:
                self._take(kind, piece)
        return piece

    # --- the end ----------------------------------------------------------------------------------

    def sorted(self) -> Gathered:
        out = Gathered()
        lists = {
            FileKind.DUMP: out.dumps,
            FileKind.TEXT: out.texts,
            FileKind.ERROR_FILE: out.error_files,
            FileKind.DATABASE: out.databases,
            FileKind.STANDING: out.standings,
            FileKind.BEACON: out.beacons,
        }
        for kind, piece in self._found:
            lists[kind].append(piece)
        siblings = {_stem(piece.name) for piece in out.dumps}
        for kind, piece in self._undecided:
            if (
                piece.path is not None
                and kind not in _NEVER_A_DUMP
                and (_stem(piece.name) in siblings or named_like_a_dump(piece.name))
            ):
                out.dumps.append(piece)
            elif not (kind is FileKind.OURS and self._is_collected(piece, out)):
                self._notes.skip(kind.value, piece.name)
        for some in lists.values():
            some.sort(key=lambda piece: _natural(piece.name))
        out.said, out.skipped = self._notes.said, self._notes.skipped
        return out


def _stem(name: str) -> str:
    """Return a name without its numbers. The dumps of one job have this in common."""
    return re.sub(r"\d+", "#", name)


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a key that sorts rank_2 before rank_10."""
    parts = [part.lstrip("0") if part.isdecimal() else part for part in re.split(r"([0-9]+)", name)]
    return tuple((part.isdecimal(), len(part) if part.isdecimal() else 0, part) for part in parts)
