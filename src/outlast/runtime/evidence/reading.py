"""From evidence to a verdict: this module reads the files, and `diagnose/pipeline.py` decides.

Files are read in this order: what outlast itself recorded, dumps, logs, error files, beacons.

Memory   The memory holds the directory of one archive, one line, the small states of the dumps, and
         the findings that are kept (`diagnose/bounded_findings.py`), but not the files.
Files    Archives are unpacked into a separate folder under the system's temporary one (TMPDIR),
         which is removed at the end, also after SIGTERM (`scratch.py`).
Time     Reading stops when most of the time limit is over (`deadline.py`). The verdict is then
         decided from what was read, and a note says what is missing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from outlast.diagnose import log_ends, same_job, self_output
from outlast.diagnose.bounded_findings import BoundedFindings
from outlast.diagnose.collectives import Blame, Dump
from outlast.diagnose.findings import Finding
from outlast.diagnose.laggards import find_laggards
from outlast.diagnose.ledger import LedgerContents
from outlast.diagnose.logs import read_lines
from outlast.diagnose.pipeline import Conclusion, Material, conclude
from outlast.diagnose.rules import RULES
from outlast.diagnose.stacks.reader import Stack
from outlast.errors import message_of
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.pieces import Piece
from outlast.model.verdict import Evidence, Verdict
from outlast.runtime.evidence import recorded
from outlast.runtime.evidence.deadline import DEFAULT_LIMIT_S, TimeBudget, TimeOver
from outlast.runtime.evidence.lines import Lines, last_lines
from outlast.runtime.evidence.notes import Notes, some
from outlast.runtime.evidence.scratch import scratch_folder
from outlast.runtime.evidence.unpickling import read_dumps
from outlast.runtime.evidence.walk import Gathered, gather

NAMED_UNREADABLE_COUNT = 3
END_BYTES = 1 << 20  # the most bytes of a file for which there was not enough time


@dataclass(frozen=True, slots=True)
class ReadingProgress:
    """The progress of reading.

    `done` of `total`: dumps, or bytes of logs.
    """

    what: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class ReadDiagnosis:
    """A verdict, and how it was found. `blame` is None if there were no dumps.

    `notes`: what was left out and what does not fit, in sentences for people.
    """

    verdict: Verdict
    blame: Blame | None
    notes: tuple[str, ...]
    dumps_count: int
    logs_count: int
    read_bytes: int


@dataclass(slots=True)
class _Reading:
    on_progress: Callable[[ReadingProgress], None]
    budget: TimeBudget
    findings: BoundedFindings = field(default_factory=BoundedFindings)
    notes: Notes = field(default_factory=Notes)
    samples: list[same_job.Sample] = field(default_factory=list)
    ends: list[log_ends.LogEnd] = field(default_factory=list)
    done_bytes: int = 0
    total_bytes: int = 0


def diagnose(
    paths: Sequence[str],
    *,
    on_progress: Callable[[ReadingProgress], None] | None = None,
    limit_s: float = DEFAULT_LIMIT_S,
    hangs: str = "",
) -> ReadDiagnosis:
    """Read all of `paths` and decide, within about `limit_s` seconds.

    `hangs` says how the job was seen to hang, if the command followed the job; otherwise it is "".
    Raises UsageError if nothing can be read as evidence.
    """
    with scratch_folder() as scratch:
        budget = TimeBudget(limit_s)
        gathered = gather(paths, scratch, is_over=budget.reading_is_over)
        reading = _Reading(on_progress or (lambda progress: None), budget)
        return _diagnose(gathered, reading, budget, hangs)


def _diagnose(
    gathered: Gathered, reading: _Reading, budget: TimeBudget, hangs: str
) -> ReadDiagnosis:
    material = _read_all(gathered, reading)
    if hangs:
        row = RULES["watch.hangs"]
        seen = Evidence("outlast diagnose --watch", None, hangs, row.role)
        found = Finding(seen, row.name, mechanism=row.mechanism)
        material = replace(material, findings=[*material.findings, found])
    try:
        with budget.interrupts():
            conclusion = conclude(material)
    except TimeOver:
        conclusion = _conclude_from_less(material, budget)
    return ReadDiagnosis(
        conclusion.verdict,
        conclusion.blame,
        (*conclusion.notes, *reading.notes.skipped, *gathered.skipped),
        len(gathered.dumps),
        gathered.count - len(gathered.dumps),
        reading.done_bytes,
    )


def _conclude_from_less(material: Material, budget: TimeBudget) -> Conclusion:
    """Decide without dumps and stacks, which is where reasoning can take long."""
    note = (
        f"the time limit of {budget.limit_s:g} s was over before the dumps and stacks were"
        " understood: this verdict is from the logs alone (see --time-limit)"
    )
    logs = [one for one in material.findings if not isinstance(one, Stack)]
    return conclude(Material(logs, material.samples, notes=(*material.notes, note)))


def _read_all(gathered: Gathered, reading: _Reading) -> Material:
    if earlier := gathered.leave_out_earlier_attempts():
        named = some(
            [one.rstrip("/") or "those beside its folder" for one in earlier], len(earlier)
        )
        reading.notes.say(
            "the ranks were collected more than once, in different processes, so in different"
            " attempts of the job or in different jobs; only the newest collection is read, and not"
            f" {named}; name an older one alone to read it"
        )
    if history := gathered.leave_out_history():
        reading.notes.say(
            f"the evidence of {history:,} earlier"
            f" {'interruption' if history == 1 else 'interruptions'} was not looked at: name its"
            " folder to read it"
        )
    quiet = [piece.name for piece in gathered.databases if _recorded(piece, recorded.read, reading)]
    if asked := gathered.leave_out_suspicions(quiet):
        were = "file of stacks was" if asked == 1 else "files of stacks were"
        reading.notes.say(
            f"{asked:,} {were} left out: workers write them when they are asked whether they live,"
            " and nobody was given up for it"
        )
    dumps, unreadable = _dumps(gathered.dumps, reading)
    reading.total_bytes = sum(piece.size_bytes for piece in gathered.texts)
    unread = 0
    for piece in gathered.texts:
        if reading.budget.reading_is_over():
            unread += 1
            _end_alone(piece, reading)
        else:
            _text(piece, reading)
    for piece in gathered.error_files:
        _whole(piece, recorded.error_lines, reading)
    for piece in gathered.standings:
        _recorded(piece, recorded.read_standing, reading)
    reading.findings.add(find_laggards(_beacons(gathered.beacons, reading)))
    if reading.findings.dropped_count:
        reading.notes.say(
            f"{reading.findings.dropped_count:,} more lines said the same as others, and were"
            " counted no further"
        )
    if reading.budget.stopped_reading:
        reading.notes.say(
            f"reading was stopped by the time limit of {reading.budget.limit_s:g} s"
            + (f", and {unread:,} files were not read as a whole" if unread else "")
            + ": the verdict is from what was read until then, and from the ends of the files (see"
            " --time-limit)"
        )
    return Material(
        findings=reading.findings.all(),
        samples=reading.samples,
        ends=reading.ends,
        dumps=dumps,
        had_dumps=bool(gathered.dumps),
        unreadable=unreadable,
        notes=(*reading.notes.said, *gathered.said),
        written_s=_written_s((*gathered.texts, *gathered.dumps)),
    )


def _written_s(pieces: Iterable[Piece]) -> dict[str, float]:
    """Return when each file was last written, if the file system has that time."""
    found: dict[str, float] = {}
    for piece in pieces:
        if piece.path is not None and piece.is_original:
            with suppress(OSError):
                found[piece.name] = os.stat(piece.path).st_mtime
    return found


def _dumps(pieces: Sequence[Piece], reading: _Reading) -> tuple[list[Dump], dict[str, str]]:
    if reading.budget.reading_is_over():
        return [], {piece.name: "the time limit was over" for piece in pieces}
    dumps, unreadable = read_dumps(
        pieces,
        is_over=reading.budget.reading_is_over,
        on_progress=lambda done, total: reading.on_progress(ReadingProgress("dumps", done, total)),
    )
    by_why: dict[str, list[str]] = {}
    for name, why in unreadable.items():
        by_why.setdefault(why, []).append(name)
    for number, (why, names) in enumerate(by_why.items()):
        if number == NAMED_UNREADABLE_COUNT:
            rest = len(unreadable) - sum(len(names) for names in list(by_why.values())[:number])
            reading.notes.say(f"{rest:,} more {'dump' if rest == 1 else 'dumps'} cannot be read")
            break
        reading.notes.say(f"{some(names, len(names))} cannot be read as a dump: {why}")
    return dumps, unreadable


def _beacons(pieces: Sequence[Piece], reading: _Reading) -> dict[str, Beacon]:
    beacons = {}
    for piece in pieces:
        try:
            beacons[piece.name] = recorded.read_beacon(piece)
        except (OSError, ValueError) as error:
            reading.notes.skip(str(error), piece.name)
    return beacons


def _text(piece: Piece, reading: _Reading) -> None:
    def on_bytes(count: int) -> None:
        reading.done_bytes += count
        reading.on_progress(ReadingProgress("logs", reading.done_bytes, reading.total_bytes))

    sample = same_job.Sample(piece.name)
    lines = Lines(piece, on_bytes=on_bytes)
    try:
        reading.findings.add(
            read_lines(
                self_output.without_own_verdicts(reading.budget.lines(_sampled(lines, sample))),
                name=piece.name,
            )
        )
        last = last_lines(piece)
        if reading.budget.stopped_reading:
            _end_alone(piece, reading)
        if not 0 < sample.looked_count < limits.EVIDENCE_SAMPLE_LINES:  # it has not seen all lines
            sample.look(last)
        reading.ends += log_ends.read_ends(piece.name, last)
        reading.findings.add(log_ends.last_words(piece.name, last))
    except OSError as error:
        reading.notes.skip(message_of(error), piece.name)
    if lines.cut_count:
        were = "line" if lines.cut_count == 1 else "lines"
        reading.notes.say(
            f"{piece.name}: {lines.cut_count:,} {were} longer than"
            f" {limits.EVIDENCE_LINE_MAX_BYTES:,} bytes, read as their beginnings and ends"
        )
    reading.samples.append(sample)


def _end_alone(piece: Piece, reading: _Reading) -> None:
    """Read the end of a file for which there was not enough time. A log reports a failure there."""
    if reading.budget.ends_are_over():
        return
    with suppress(OSError):
        end = last_lines(piece, size=END_BYTES)
        reading.findings.add(
            recorded.without_line(one)
            for one in read_lines(self_output.without_own_verdicts(end), name=piece.name)
        )


def _sampled(lines: Iterable[bytes], sample: same_job.Sample) -> Iterator[bytes]:
    source = iter(lines)
    first = list(itertools.islice(source, limits.EVIDENCE_SAMPLE_LINES))
    sample.look(first)
    yield from first
    yield from source


def _whole(piece: Piece, unfold: Callable[[Piece], list[bytes]], reading: _Reading) -> None:
    """Read text that was made from a file. What is found in it points to the file as a whole."""
    try:
        lines = unfold(piece)
    except (OSError, ValueError) as error:
        reading.notes.skip(str(error), piece.name)
        return
    reading.done_bytes += piece.size_bytes
    reading.findings.add(recorded.without_line(one) for one in read_lines(lines, name=piece.name))


def _recorded(piece: Piece, read: Callable[[Piece], LedgerContents], reading: _Reading) -> bool:
    """Read the ledger. Return True if nothing was interrupted in that run."""
    try:
        ledger = read(piece)
    except (OSError, ValueError) as error:
        reading.notes.skip(str(error), piece.name)
        return False
    for note in ledger.notes:
        reading.notes.say(f"{piece.name}: {note}")
    reading.findings.add(ledger.findings)
    reading.findings.add(
        recorded.without_line(one) for one in read_lines(ledger.lines, name=piece.name)
    )
    return ledger.is_quiet
