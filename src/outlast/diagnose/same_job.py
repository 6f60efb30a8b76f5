"""Check whether all logs belong to one job and one clock.

Identities and times in the first and last lines of each log are compared. If they do not fit, a
note says so, but no line is left out. Not seen: two jobs that say the same of themselves, and a
clock that is wrong by less than CLOCKS_APART_S.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from outlast.diagnose.prose import WordsOfPeople

CLOCKS_APART_S = 3_600.0
ZONE_S = 900.0  # zones differ by multiples of this
ZONE_SLACK_S = 120.0
NAMED_COUNT = 3
BEGAN_LINES = 20  # a log that has no time in so many first lines does not say when it began

Day = tuple[int, int, int, int, int]  # month, day, hour, minute, second

_ENV = rb"[\"']?\s{0,2}[=:]\s{0,2}[\"']?"
_FLAG = rb"[\"']?[=\s,:]{1,3}[\"']?"
_ID = rb"([\w.:-]{1,64})"
# what a job says of itself -> patterns; the sources are torchrun's options and log lines, and
# Slurm's environment
_IDENTITIES: tuple[tuple[str, re.Pattern[bytes]], ...] = (
    (
        "run id",
        re.compile(
            rb"(?:\brdzv_id"
            + _ENV
            + rb"|--rdzv[-_]id"
            + _FLAG
            + rb"|\bTORCHELASTIC_RUN_ID"
            + _ENV
            + rb"|^\s*run_id\s*:\s*)"
            + _ID
        ),
    ),
    (
        "Slurm job",
        re.compile(
            rb"(?:\bSLURM_JOB_?ID"
            + _ENV
            + rb"|\bslurmstepd: error: \*\*\* (?:STEP|JOB) |\bsrun: job )([0-9]{1,12})"
        ),
    ),
    (
        "world size",
        re.compile(
            rb"(?:\bWORLD_SIZE"
            + _ENV
            + rb"|\bworld[ _]size"
            + _ENV
            + rb"|\bglobal_world_sizes\s*=\s*\[|(?<!local )\brank [0-9]{1,6} of )([0-9]{1,7})\b",
            re.IGNORECASE,
        ),
    ),
    (
        "master port",
        re.compile(
            rb"(?:\bMASTER_PORT"
            + _ENV
            + rb"|\bmaster_port\s*=\s*|--master[-_]port"
            + _FLAG
            + rb")([0-9]{1,5})\b"
        ),
    ),
)
_HINT = re.compile(rb"(?i)rdzv|run_id|slurm|srun: job|world[ _]size|master[-_]port|rank \d+ of \d")
_HINT_WORDS = (b"rdzv", b"run_id", b"slurm", b"srun: job", b"world", b"master", b" of ")
_NO_ID = {b"none", b"null", b"default", b"static", b"0"}
_DATE = rb"(?<![0-9])(20[0-9]{2})[-/](0[1-9]|1[0-2])[-/]([0-3][0-9])"
_CLOCK = rb"([0-2][0-9]):([0-5][0-9]):([0-5][0-9])(?:[.,][0-9]{1,9})?\s?(Z|[+-][0-9]{2}:?[0-9]{2})?"
# the head of torch's and torchrun's own lines
_GLOG = re.compile(
    rb"(?<![A-Za-z0-9])[IWEF](0[1-9]|1[0-2])([0-3][0-9])"
    rb" ([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])\.[0-9]{3,9} "
)
# lines that come at the start and not later: torchrun's first ones, torch's about its environment,
# gloo's and NCCL's about which ranks met
_START = re.compile(
    rb"torch/distributed/run\.py:|torch\.distributed\.run|elastic_operator with launch"
    rb" configs|Starting worker group"
    rb"|Utils\.hpp:\d+\] Warning: Environment variable|\[Gloo\] Rank \d+ is"
    rb" connected|ProcessGroupNCCL initialization options"
    rb"|NCCL version \d|NCCL INFO Bootstrap"
)
_TIME = re.compile(_DATE + rb"[T _](?:at )?" + _CLOCK)
# a program that starts the ranks of a node, which a scheduler starts on each node
_LAUNCHER = re.compile(
    rb"torchrun|torch[./]distributed[./](?:run|launch|elastic)|TORCHELASTIC|accelerate launch"
    rb"|deepspeed[ ./](?:launcher|--)|OMP_NUM_THREADS environment variable for each process"
)


@dataclass(slots=True)
class Sample:
    """This is what one log says of its job, and when it was written.

    Times without a zone are read as UTC. `began_s`, `began_day`: the time of its first lines, with
    a year or without. `starts`: its first lines are those of a job that starts, so that its
    beginning is not missing. `has_launcher`: torchrun, or another launcher of the ranks of a node,
    wrote in it.
    """

    name: str
    identities: dict[str, set[str]] = field(default_factory=dict)
    first_s: float | None = None
    last_s: float | None = None
    began_s: float | None = None
    began_day: Day | None = None
    starts: bool = False
    has_launcher: bool = False
    words: WordsOfPeople = field(default_factory=WordsOfPeople)
    looked_count: int = 0

    def look(self, lines: Iterable[bytes]) -> None:
        """Look at some lines of a log: at its first ones, and later at its last ones."""
        may_be_prose = not self.words.is_log
        lines = [line[:1024] for line in lines]
        whole = b"\n".join(lines).lower()
        may_identify = any(word in whole for word in _HINT_WORDS)
        for line in lines:
            if may_identify and _HINT.search(line):
                self._identify(line)
            if may_be_prose:
                self.words.look(line)
                may_be_prose = not self.words.is_log
            if b"torch" in line or b"launch" in line or b"OMP_" in line or b"TORCH" in line:
                self.has_launcher = self.has_launcher or _LAUNCHER.search(line) is not None
            at_s = time_of(line)
            if at_s is not None:
                self.first_s = at_s if self.first_s is None else min(self.first_s, at_s)
                self.last_s = at_s if self.last_s is None else max(self.last_s, at_s)
            if self.looked_count < BEGAN_LINES and not self.starts:
                self.starts = _START.search(line) is not None
            if self.looked_count < BEGAN_LINES and self.began_s is None and self.began_day is None:
                self.began_s, self.began_day = at_s, day_of(line) if at_s is None else None
            self.looked_count += 1

    def _identify(self, line: bytes) -> None:
        for what, pattern in _IDENTITIES:
            for match in pattern.finditer(line):
                if match[1].lower() not in _NO_ID:
                    self.identities.setdefault(what, set()).add(match[1].decode("ascii", "replace"))


def time_of(line: bytes) -> float | None:
    """Return the first full date in a line, in Unix seconds; None if there is none."""
    match = _TIME.search(line)
    if match is None:
        return None
    try:
        moment = datetime(*map(int, match.groups()[:6]), tzinfo=timezone.utc)  # type: ignore[misc,arg-type]
    except ValueError:
        return None
    zone = match[7]
    if zone in (None, b"Z"):
        return moment.timestamp()
    digits = zone[1:].replace(b":", b"")
    offset = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return (moment - offset if zone[:1] == b"+" else moment + offset).timestamp()


def day_of(line: bytes) -> Day | None:
    """Return the time of a line whose date has no year; None if there is none."""
    match = _GLOG.search(line)
    if match is None:
        return None
    month, day, hour, minute, second = map(int, match.groups())
    return month, day, hour, minute, second


def nearest(day: Day, near_s: float) -> float | None:
    """Return the moment of a date without a year that is nearest to `near_s`, in Unix seconds."""
    year = datetime.fromtimestamp(near_s, timezone.utc).year
    moments = []
    for one in (year - 1, year, year + 1):
        try:
            moments.append(datetime(one, *day, tzinfo=timezone.utc).timestamp())
        except ValueError:  # 29 February
            continue
    return min(moments, key=lambda moment: abs(moment - near_s), default=None)


def notes_of(samples: Sequence[Sample]) -> tuple[str, ...]:
    """Return what does not fit together, in sentences."""
    return (*_jobs(samples), *_clocks(samples))


def world_size(samples: Sequence[Sample]) -> int:
    """Return the number of ranks, if logs tell it and none contradicts it; else 0."""
    said = {size for sample in samples for size in sample.identities.get("world size", ())}
    return int(said.pop()) if len(said) == 1 else 0


def _jobs(samples: Sequence[Sample]) -> list[str]:
    """Return sentences about logs of two jobs.

    An id differs, or both the world size and a port. Ports alone change when torchrun starts its
    workers again, and world sizes alone when a job shrinks.
    """
    by = {what: _values(samples, what) for what, _ in _IDENTITIES}
    apart = [what for what in ("run id", "Slurm job") if len(by[what]) > 1]
    if not apart and len(by["world size"]) > 1:
        apart = ["world size"] + (["master port"] if len(by["master port"]) > 1 else [])
    if not apart:
        return []
    said = "; ".join(f"{what} {_each(by[what])}" for what in apart)
    return [f"this may be evidence of more than one job: {said}"]


def _values(samples: Sequence[Sample], what: str) -> dict[str, str]:
    """Return each value that logs give, with the first log that gives it.

    A log that gives several values does not count.
    """
    found: dict[str, str] = {}
    for sample in samples:
        values = sample.identities.get(what, set())
        if len(values) == 1:
            found.setdefault(next(iter(values)), sample.name)
    return found


def _each(values: dict[str, str]) -> str:
    named = [f"{value} in {name}" for value, name in list(values.items())[:NAMED_COUNT]]
    more = len(values) - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _clocks(samples: Sequence[Sample]) -> list[str]:
    """Return a sentence about the largest gap between the times of two logs; none without a gap.

    Logs of one job would overlap.
    """
    spans = sorted(
        (sample.first_s, sample.last_s, sample.name)
        for sample in samples
        if sample.first_s is not None and sample.last_s is not None
    )
    apart: list[tuple[float, str, str]] = []
    reached_s, reached_by = 0.0, ""
    for first_s, last_s, name in spans:
        if reached_by and first_s - reached_s > CLOCKS_APART_S:
            apart.append((first_s - reached_s, reached_by, name))
        if not reached_by or last_s > reached_s:
            reached_s, reached_by = last_s, name
    if not apart:
        return []
    gap_s, before, after = max(apart)
    begins = {sample.name: sample for sample in samples}
    shift_s = (begins[after].last_s or 0.0) - (begins[before].last_s or 0.0)
    zone = (
        abs(shift_s - round(shift_s / ZONE_S) * ZONE_S) < ZONE_SLACK_S
        and abs(shift_s) < 14.5 * 3_600
    )
    why = (
        "clocks that differ by a time zone, or two jobs"
        if zone
        else "a clock that is wrong, a time zone, or two jobs"
    )
    return [
        f"the times in {after} begin {gap_s / 3_600:.1f} hours after those in {before} end: {why};"
        " order in time between them means little"
    ]
