"""Follow the logs of a running job of another launcher, and say when it hangs or has failed.

The logs are read again and again. Each file's new lines go to the readers of `outlast diagnose`. A
failure shows in the launcher's own messages. It counts once the logs have not changed for a moment,
so that the end is read completely. `diagnose/quiet.py` decides whether the job hangs.

The time of the newest file shows how long the logs were silent before watching began. So if a job
hangs already, stacks are taken at once. Lines for people say what the command waits for next, and
until when.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from outlast.diagnose.logs import read_lines
from outlast.diagnose.quiet import (
    AGAIN_S,
    BLIND_FACTOR,
    GAPS_KEPT,
    QUIET_MIN_S,
    JobState,
    Look,
    decide_hang,
    decide_quiet,
)
from outlast.diagnose.stacks.reader import Stack
from outlast.errors import UsageError
from outlast.model.verdict import Role
from outlast.runtime.collect.collector import STACKS_APART_S, Collected, collect
from outlast.runtime.collect.processes import find_processes, writers_of

# the most bytes that are read of one file at one look; of more, the end is read
NEW_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class WatchPace:
    """The times by which logs are followed.

    poll_s          the time between two looks at the logs
    settle_s        how long the logs have to be silent before a failure counts
    stacks_apart_s  the time between two stacks of a process, which show whether it moves
    again_s         the time between two looks at a job whose usual gap is not known
    """

    poll_s: float = 1.0
    settle_s: float = 5.0
    stacks_apart_s: float = STACKS_APART_S
    again_s: float = AGAIN_S


@dataclass(frozen=True, slots=True)
class WatchEnd:
    """This says why watching ended: "failed", "hangs" or "gone"; and the folders to diagnose."""

    how: str
    reason: str
    paths: tuple[str, ...]


@dataclass(slots=True)
class Logs:
    """The followed files: how far each was read, and when lines came."""

    paths: Sequence[str]
    sizes: dict[str, int] = field(default_factory=dict)
    gaps_s: list[float] = field(default_factory=list)
    last_line_s: float = 0.0
    has_lines: bool = False  # some lines came since watching began
    failure: str = ""

    def silent_s(self) -> float:
        """Return for how long no file was written, by the times of the files.

        Return 0 without files.
        """
        ages_s = []
        for path in self._files():
            with suppress(OSError):
                status = os.stat(path)
                ages_s += [time.time() - status.st_mtime] if status.st_size else []
        return max(0.0, min(ages_s, default=0.0))

    def look(self, now_s: float) -> None:
        grew = False
        for path in self._files():
            try:
                size = os.stat(path).st_size
            except OSError:
                continue  # it was rotated away between the listing and now
            before = self.sizes.get(path)
            if before is None or size == before:
                # What is there at the start is not new. It may be from an earlier attempt.
                self.sizes[path] = size
                continue
            self.sizes[path] = size
            grew = True
            self._read(path, min(before, size), size)
        if grew:
            # Before the first line the job was starting, or was not watched. That does not count as
            # a gap.
            if self.has_lines:
                self.gaps_s.append(now_s - self.last_line_s)
                del self.gaps_s[:-GAPS_KEPT]
            self.last_line_s, self.has_lines = now_s, True

    def writers(self) -> list[int]:
        """Return the processes that write the logs. If several jobs run, these belong to the job.

        The result is empty if the job prints into a pipe, and another process writes its log.
        """
        found = writers_of(self._files())
        return found if find_processes(pids=found) else []

    def _files(self) -> Iterator[str]:
        for path in self.paths:
            if os.path.isdir(path):
                yield from (str(one) for one in sorted(Path(path).rglob("*")) if one.is_file())
            else:
                yield path

    def _read(self, path: str, start: int, size: int) -> None:
        with open(path, "rb") as file:
            file.seek(max(start, size - NEW_BYTES_MAX))
            lines = file.read(NEW_BYTES_MAX).splitlines()
        for one in read_lines(lines, name=path):
            tells = one.rule.startswith(("elastic.", "exit.", "slurm.", "kube."))
            if tells and one.evidence.role in (Role.ROOT, Role.MESSENGER) and not self.failure:
                self.failure = one.evidence.text


def watch(
    paths: Sequence[str],
    *,
    incidents: Path,
    pids: Sequence[int] = (),
    job: str = "",
    min_s: float = QUIET_MIN_S,
    pace: WatchPace = WatchPace(),
    on_look: Callable[[str], None] = lambda said: None,
    is_over: Callable[[], bool] = lambda: False,
) -> WatchEnd:
    """Follow the logs until the job hangs or has failed.

    The evidence of a hang is put into a new folder below `incidents`. Raises UsageError if a path
    does not exist.
    """
    for path in paths:
        if not os.path.exists(path):
            raise UsageError(f"{path} does not exist", hint="name the job's logs, or their folder")
    began_s = time.monotonic()
    logs = Logs(paths)
    logs.last_line_s = began_s - logs.silent_s()
    looks = Looks(began_s, min_s=min_s, pace=pace, said=on_look)
    while not is_over():
        now_s = time.monotonic()
        logs.look(now_s)
        silent_s = now_s - logs.last_line_s
        if logs.failure and silent_s >= pace.settle_s:
            return WatchEnd("failed", logs.failure, tuple(paths))
        if pids and not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return WatchEnd("gone", "the process that was named has ended", tuple(paths))
        quiet = decide_quiet(
            now_s=now_s, last_line_s=logs.last_line_s, gaps_s=logs.gaps_s, min_s=min_s
        )
        if quiet.state is JobState.GOES_ON:
            looks.wait_for_silence(now_s, logs.last_line_s + quiet.from_s, quiet)
        elif now_s >= looks.next_s:
            folder = incidents / time.strftime("incident-%Y%m%d-%H%M%S", time.gmtime())
            look, collected = looks.take(
                quiet, logs.last_line_s, folder, pids if pids or job else logs.writers(), job
            )
            if look.state is JobState.HANGS:
                extra = () if collected is None else (str(collected.folder),)
                return WatchEnd("hangs", look.reason, (*paths, *extra))
            if collected is not None:  # it is from a job that goes on, so it is not needed
                shutil.rmtree(collected.folder, ignore_errors=True)
        time.sleep(pace.poll_s)
    return WatchEnd("gone", "watching was ended", tuple(paths))


@dataclass(slots=True)
class Looks:
    """The looks at the processes of a silent job: the last one's result, and when the next is due.

    stood  the frames by pid of a look in which no process moved
    """

    began_s: float
    min_s: float
    pace: WatchPace
    said: Callable[[str], None]
    next_s: float = 0.0
    stood: dict[int, tuple[str, ...]] | None = None
    _announced: bool | None = None  # whether the usual gap was known when that was said

    def wait_for_silence(self, now_s: float, until_s: float, quiet: Look) -> None:
        """Note that lines come.

        Say until when this waits, once at first, and once more when the usual gap is known.
        """
        self.stood, self.next_s = None, 0.0
        if self._announced is not quiet.is_sure:
            self._announced = quiet.is_sure
            self.said(
                f"{quiet.reason.partition(';')[0]}; stacks are taken at"
                f" {_clock(until_s - now_s)} if none comes by then"
            )

    def take(
        self, quiet: Look, last_line_s: float, folder: Path, pids: Sequence[int], job: str
    ) -> tuple[Look, Collected | None]:
        """Look at the processes, say what they show, and set when to look again."""
        now_s = time.monotonic()
        silent_s = now_s - last_line_s
        collected, why = look_at(folder, pids, job, self.pace)
        first, second = ({}, {}) if collected is None else _frames(collected.folder / "stacks")
        # Without stacks, only the silence that was watched counts: the logs may be those of a job
        # that ended long ago.
        watched_s = min(silent_s, now_s - self.began_s)
        blind_after_s = max(quiet.long_s, BLIND_FACTOR * self.min_s)
        look = decide_hang(
            quiet,
            first=first,
            second=second,
            quiet_s=watched_s,
            blind_after_s=blind_after_s,
            earlier=self.stood,
        )
        look = replace(look, reason=f"{look.reason}{why}")
        stands = look.state is JobState.STANDS
        self.stood = second if stands else None
        pause_s = self.pace.again_s if stands else min(silent_s, 10 * self.min_s) / 2
        then = f"; stacks are taken again at {_clock(pause_s)} if no line comes by then"
        if not first.keys() & second.keys():
            left_s = max(0.0, blind_after_s - watched_s)
            pause_s = min(pause_s, left_s)
            then = (
                f"; without them it counts as a hang at {_clock(left_s)} if no line comes by then"
            )
        self.next_s = time.monotonic() + pause_s
        self.said(look.reason if look.state is JobState.HANGS else f"{look.reason}{then}")
        return look, collected


def _clock(in_s: float) -> str:
    """Return the local time of day, `in_s` seconds from now."""
    return time.strftime("%H:%M:%S %Z", time.localtime(time.time() + max(0.0, in_s))).strip()


def look_at(
    folder: Path, pids: Sequence[int], job: str, pace: WatchPace
) -> tuple[Collected | None, str]:
    """Take stacks twice, and everything else that a diagnosis needs.

    Also return why there are no stacks, or "" if there are. The processes may be on another node,
    or another user's. Then nothing is collected.
    """
    try:
        collected = collect(folder, pids=pids, job=job, apart_s=pace.stacks_apart_s)
    except UsageError as error:
        one_line = " ".join(error.hint.split())
        return None, f" ({error.message}: {one_line})"
    has_stacks = bool(collected.got.get("second stacks"))
    lacking = next((said for said in collected.lacking if said.startswith("py-spy ")), "")
    return collected, "" if has_stacks or not lacking else f" ({lacking})"


def _frames(
    folder: Path,
) -> tuple[dict[int, tuple[str, ...]], dict[int, tuple[str, ...]]]:
    """Return the main threads' frames by pid, of the first look and of the second."""
    looks: tuple[dict[int, tuple[str, ...]], dict[int, tuple[str, ...]]] = ({}, {})
    for path in sorted(folder.glob("stack_rank_*.txt")) if folder.is_dir() else ():
        for one in read_lines(path.read_bytes().splitlines(), name=path.name):
            if isinstance(one, Stack) and one.process.isdecimal():
                pid = int(one.process)
                looks[1 if pid in looks[0] else 0][pid] = one.frames
    return looks
