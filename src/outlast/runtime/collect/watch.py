"""Follow the logs of a running job of others, and say when it hangs or has failed.

The logs are looked at again and again. Each file's new lines go to the readers of `outlast
diagnose`. A failure shows in the launcher's own messages. It counts once the logs have been still
for a moment, so that all of the end is read. `diagnose/quiet.py` decides whether the job hangs.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from outlast.diagnose.logs import read_lines
from outlast.diagnose.quiet import (
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

NEW_BYTES_MAX = 4 << 20  # of one file at one look; of more, the end is read


@dataclass(frozen=True, slots=True)
class Pace:
    """How the logs are followed.

    poll_s          between two looks at the logs
    settle_s        the logs are still for so long before a failure is believed
    stacks_apart_s  between two stacks of a process that is asked whether it moves
    """

    poll_s: float = 1.0
    settle_s: float = 5.0
    stacks_apart_s: float = STACKS_APART_S


@dataclass(frozen=True, slots=True)
class Ended:
    """Why watching ended: "failed", "hangs" or "gone"; and the folders to diagnose."""

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
    has_lines: bool = False  # some came since watching began
    failure: str = ""

    def look(self, now_s: float) -> None:
        grew = False
        for path in self._files():
            try:
                size = os.stat(path).st_size
            except OSError:
                continue  # it was rotated away between the listing and now
            before = self.sizes.get(path)
            if before is None or size == before:
                # What is there at the start is no news: it may be an earlier attempt's.
                self.sizes[path] = size
                continue
            self.sizes[path] = size
            grew = True
            self._read(path, min(before, size), size)
        if grew:
            # Before the first line the job started, or was not watched: that is no gap.
            if self.has_lines:
                self.gaps_s.append(now_s - self.last_line_s)
                del self.gaps_s[:-GAPS_KEPT]
            self.last_line_s, self.has_lines = now_s, True

    def writers(self) -> list[int]:
        """Return the processes that write them: where several jobs run, these are the job's.

        Empty where the job prints into a pipe, and another process writes its log.
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
    pace: Pace = Pace(),
    on_look: Callable[[str], None] = lambda said: None,
    is_over: Callable[[], bool] = lambda: False,
) -> Ended:
    """Follow the logs until the job hangs or has failed.

    The evidence of a hang is put into a new folder below `incidents`. Raises UsageError if a path
    does not exist.
    """
    for path in paths:
        if not os.path.exists(path):
            raise UsageError(f"{path} does not exist", hint="name the job's logs, or their folder")
    logs = Logs(paths, last_line_s=time.monotonic())
    asked_s = 0.0  # when stacks were last taken; they are not taken again at once
    while not is_over():
        now_s = time.monotonic()
        logs.look(now_s)
        silent_s = now_s - logs.last_line_s
        if logs.failure and silent_s >= pace.settle_s:
            return Ended("failed", logs.failure, tuple(paths))
        if pids and not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return Ended("gone", "the process that was named has ended", tuple(paths))
        quiet = decide_quiet(
            now_s=now_s, last_line_s=logs.last_line_s, gaps_s=logs.gaps_s, min_s=min_s
        )
        if quiet.state is JobState.QUIET and now_s - asked_s >= min(silent_s, 10 * min_s) / 2:
            asked_s = now_s
            folder = incidents / time.strftime("incident-%Y%m%d-%H%M%S", time.gmtime())
            collected, why = look_at(folder, pids if pids or job else logs.writers(), job, pace)
            look = _ask(quiet, silent_s, collected, min_s)
            look = replace(look, reason=f"{look.reason}{why}")
            on_look(look.reason)
            if look.state is JobState.HANGS:
                extra = () if collected is None else (str(collected.folder),)
                return Ended("hangs", look.reason, (*paths, *extra))
            if collected is not None:  # of a job that goes on, nobody asks for it
                shutil.rmtree(collected.folder, ignore_errors=True)
        time.sleep(pace.poll_s)
    return Ended("gone", "watching was ended", tuple(paths))


def look_at(
    folder: Path, pids: Sequence[int], job: str, pace: Pace
) -> tuple[Collected | None, str]:
    """Take stacks twice, and all else that a diagnosis wants.

    Also return why there are no stacks; "" if there are. The processes may be on another node, or
    another user's, and then nothing is collected.
    """
    try:
        collected = collect(folder, pids=pids, job=job, apart_s=pace.stacks_apart_s)
    except UsageError as error:
        return None, f" ({error.args[0]}: {error.hint})"
    has_stacks = bool(collected.got.get("second stacks"))
    lacking = next((said for said in collected.lacking if said.startswith("py-spy ")), "")
    return collected, "" if has_stacks or not lacking else f" ({lacking})"


def _ask(quiet: Look, silent_s: float, collected: Collected | None, min_s: float) -> Look:
    """Decide by the stacks whether a quiet job hangs."""
    first, second = ({}, {}) if collected is None else _frames(collected.folder / "stacks")
    return decide_hang(
        quiet,
        first=first,
        second=second,
        quiet_s=silent_s,
        blind_after_s=BLIND_FACTOR * min_s,
    )


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
