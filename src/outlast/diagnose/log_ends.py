"""How far each rank had come, by the last lines of the logs.

A job that hangs prints nothing, and often its logs are all that is left. Their ends still show
which rank's steps end before those of the others, which log ends first, and whether the job had
hung when it was ended.

A *step* is a line with a number that grows: "step 12", "iteration 12/ 100", a bar of progress. The
series of a rank are compared only if their lines have one form and count in one interval.

None of this shows a failure. A job that runs on has such ends, too, at any moment at which its logs
are copied. So no class and no rank follows from it, and the sentences say "if it stands still".

Not seen: programs that print no numbers of steps, and logs of which only the beginning was copied.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from statistics import median

from outlast.diagnose.findings import Finding
from outlast.diagnose.ledger import RECORDED_END
from outlast.diagnose.logs.prefixes import rank_of, rank_of_name
from outlast.diagnose.logs.tracebacks import label_of
from outlast.diagnose.logs.went_on import form_of, says_finished
from outlast.diagnose.rules import RULES
from outlast.diagnose.same_job import day_of, nearest, time_of
from outlast.model.texts import cut_at_word, duration, some
from outlast.model.verdict import Evidence

RULE, STOOD_STILL, FINISHED = "log.ends", "log.stood_still", "log.finished"
STEPS_MIN = 3  # lines of one form, with numbers that grow: from this many on they are steps
FORMS_MAX = 32  # of one writer
WRITERS_MAX = 1_024  # in one log
OWN_LINES = 100  # of the log of one rank; a log of several ranks is looked at as far as it was read
CHARACTERS = 400
LAST_LINES = 200  # in these a program may say that its training is finished
TIMES_MAX = 32  # of one writer
SILENT_FACTOR = 10.0  # a rank fell silent if its usual gap passed so often while others wrote
SILENT_MIN_S = 60.0
STILL_MIN_S = 300.0  # a save or an evaluation may take this long without a line
CLOSING_S = 60.0  # lines so close to the end may be those of closing down
ZONE_S, ZONE_SLACK_S = 1_800.0, 30.0  # two clocks may be in two zones, which differ by multiples
ENDED_BY_OTHERS = (
    "slurm.time",
    "batch.time",
    "batch.cancelled",
    "slurm.cancelled",
    "slurm.cancelled_job",
    "stopped.by_hand",
    "exit.outside",
)
ENDED_OR_HANGS = "the job hangs or was ended without a word"
_HANGS = f"If no line has come since, {ENDED_OR_HANGS}."
_STEP = re.compile(
    rb"(?:(?<![a-z])|_)(?:step|iter(?:ation)?|update|batch)s?[\"']?[ \t]{0,2}[:=#]?[ \t\[(]{0,10}"
    rb"(\d{1,9})(?![\d]|[.,]\d|:\d|[ \t]?(?:ms|s\b|it/))(?:[ \t]{0,2}(?:/|of)[ \t]{0,10}(\d{1,9}))?"
)
_BAR = re.compile(rb"(?<![\d.])(\d{1,9})/(\d{1,9}) \[\d{1,4}:\d\d")
_ENDS = re.compile(
    rb"train_runtime|exits successfully|exiting program at|process group destroyed"
    rb"|destroy_process_group|run summary:|all done\b",
    re.IGNORECASE,
)
_LAUNCHERS = re.compile(
    rb"^(?:\[[^\]]{1,40}\]:? ?)?(?:slurm(?:stepd|ctld)?|srun)[:-]|^[IWE]\d{4} [^\]]{1,200}/elastic/"
)
_RANK_LABEL = re.compile(rb"^(?:\d{1,5}: |\[default\d{1,5}\]: ?)?\[rank(\d{1,6})\]:")
_LOCAL_LABEL = re.compile(r"^\s{0,4}(?:\[(?:default|trainer)\d|\d{1,5}: )")
_ATTEMPT = re.compile(r"attempt_(\d{1,4})/")


@dataclass(slots=True)
class Series:
    """Steps in lines of one form: the first and the last number, how many, and when."""

    count: int = 0
    first: int = 0
    last: int = 0
    total: int | None = None
    lines: tuple[bytes, bytes] = (b"", b"")  # the first and the last
    first_s: float | None = None
    last_s: float | None = None

    def feed(self, number: int, total: int | None, line: bytes) -> None:
        """Take the number of one more line. A smaller one than before begins the series anew."""
        if not self.count or number < self.last:  # a new epoch counts from the beginning again
            self.count, self.first, self.lines = 0, number, (line, line)
        self.count += 1
        self.last, self.total, self.lines = number, total, (self.lines[0], line)

    def close(self) -> None:
        """Read the times, which takes long, of two lines only."""
        self.first_s, self.last_s = map(time_of, self.lines)
        self.lines = (b"", b"")

    @property
    def is_steps(self) -> bool:
        """Return whether there are enough lines, and the number grew."""
        return self.count >= STEPS_MIN and self.last > self.first

    @property
    def interval(self) -> float:
        """Return by how much the number grows from line to line."""
        return (self.last - self.first) / max(1, self.count - 1)

    @property
    def gap_s(self) -> float | None:
        """Return the usual time between two of these lines; None if they have no times."""
        if self.first_s is None or self.last_s is None or self.last_s <= self.first_s:
            return None
        return (self.last_s - self.first_s) / (self.count - 1)

    @property
    def is_complete(self) -> bool:
        """Return whether the number came to the total that the lines name, or one short of it."""
        return self.total is not None and self.total > 1 and self.last >= self.total - 1


@dataclass(slots=True)
class LogEnd:
    """The end of what one writer left in one log.

    series    by the form of the line
    times_s   of its last lines, oldest first
    is_cut    the log ends within a line, because the program's output is buffered
    """

    name: str
    writer: str
    series: dict[bytes, Series] = field(default_factory=dict)
    times_s: tuple[float, ...] = ()
    line: bytes = b""
    is_finished: bool = False
    is_cut: bool = False
    lines: deque[bytes] = field(default_factory=lambda: deque(maxlen=TIMES_MAX))

    def close(self) -> None:
        """Drop series that are not steps, and read the times of the last lines."""
        self.series = {form: one for form, one in self.series.items() if one.is_steps}
        for one in self.series.values():
            one.close()
        known = {at_s for line in self.lines if (at_s := time_of(line)) is not None}
        self.times_s = tuple(sorted(known))
        self.lines.clear()


@dataclass(frozen=True, slots=True)
class LogsEnd(Finding):
    """The finding about the ends of all logs. It has no failure class and names no rank.

    sentence  how far the logs go
    behind    the writers whose steps end first; empty if the logs do not tell them apart
    """

    sentence: str = field(default="", kw_only=True)
    behind: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class _Said:
    """This is what the ends show, what may follow, and who is behind ("" if that is not known)."""

    fact: str
    guess: str
    behind: str = ""


def read_ends(name: str, lines: Sequence[bytes]) -> list[LogEnd]:
    """Read the last lines of one log; empty if it has no steps. The last one may be a part."""
    own = rank_of_name(name)
    by_writer: dict[str, LogEnd] = {}
    drawn = (part for line in lines for part in line.rstrip(b"\r").split(b"\r")[-OWN_LINES:])
    for raw in list(drawn)[-OWN_LINES:] if own is not None else drawn:
        line = raw[:CHARACTERS]
        if not line or _LAUNCHERS.match(line):
            continue
        found = _step(line)
        if found is None and not by_writer:
            continue
        writer = f"rank {own}" if own is not None else _writer(line, name)
        end = by_writer.get(writer)
        if found is not None:
            if end is None:
                if len(by_writer) == WRITERS_MAX:
                    continue
                end = by_writer[writer] = LogEnd(name, writer)
            form = form_of(line)
            if form in end.series or len(end.series) < FORMS_MAX:
                total = int(found[2]) if found[2] else None
                end.series.setdefault(form, Series()).feed(int(found[1]), total, line)
                end.line = line
        if end is not None:
            end.lines.append(line)
    for end in by_writer.values():
        end.close()
    kept = [end for end in by_writer.values() if end.series]
    if kept:
        last = b"\n".join(line[:CHARACTERS] for line in lines[-LAST_LINES:])
        is_finished = says_finished(last) or _ENDS.search(last) is not None
        is_cut = bool(lines[-1]) and b"\r" not in lines[-1]
        for end in kept:
            end.is_finished, end.is_cut = is_finished, is_cut
    return kept


def last_words(name: str, lines: Sequence[bytes]) -> list[Finding]:
    """Return the last line of each rank in a log that several ranks write, by torch's own label.

    A log of one rank has its last line already, from the reader of its lines.
    """
    if rank_of_name(name) is not None:
        return []
    row = RULES["log.last"]
    found: dict[int, bytes] = {}
    for line in reversed(lines):
        label = _RANK_LABEL.match(line)
        if label is not None and len(found) < WRITERS_MAX:
            found.setdefault(int(label[1]), line)
    return [
        Finding(Evidence(name, None, _text(line[:CHARACTERS]), row.role), row.name, rank=rank)
        for rank, line in sorted(found.items())
    ]


def _step(line: bytes) -> re.Match[bytes] | None:
    low = line.lower()
    may_be = b"step" in low or b"iter" in low or b"update" in low or b"batch" in low
    if may_be and (found := _STEP.search(low)):
        return found
    return _BAR.search(line) if b" [" in line else None


def _writer(line: bytes, name: str) -> str:
    text = line.decode("utf-8", "replace")
    rank = rank_of(text)
    if rank is not None and not _LOCAL_LABEL.match(text):
        return f"rank {rank}"
    # A launcher's own label counts the tasks of a step, or the processes of one node.
    label = label_of(text).strip(" :|[]")
    return f"{label} in {name}" if label else name


def with_ends(findings: Sequence[Finding], ends: Iterable[LogEnd]) -> list[Finding]:
    """Return the findings with what the ends of the logs tell.

    A line of somebody who ended the job says why it ended only if the job still went on then.
    """
    if any(one.rule == RECORDED_END for one in findings):
        return list(findings)  # the ledger knows how the run ended; the ends of logs do not
    newest = _newest_attempts(list(ends))
    if not newest:
        return list(findings)
    if finished := [one for one in newest if one.is_finished]:
        row = RULES[FINISHED]
        at = Evidence(finished[0].name, None, "its training is finished", row.role)
        return [*findings, Finding(at, row.name)]
    form, usual = _main_form(newest)
    steps = {one.writer: one.series[form] for one in newest if form in one.series}
    if not steps or all(one.is_complete for one in steps.values()):
        return list(findings)
    own = [one for one in newest if one.writer in steps]
    said = _compare(own, steps, usual)
    kept, still_s = [], 0.0
    for one in findings:
        stood_s = _stood_still_s(one, own, usual)
        still_s = max(still_s, stood_s)
        kept.append(_as_stood_still(one) if stood_s else one)
    guess = said.guess
    if still_s and usual is not None:
        guess = (
            f"By then the last line of the logs was {duration(still_s)} old, and one usually"
            f" came within {duration(usual)}."
        )
        if said.behind:
            guess += f" The others waited for {said.behind}, or {said.behind} ended first."
    row = RULES[RULE]
    at = Evidence(own[0].name, None, _text(own[0].line), row.role)
    sentence = f"{said.fact} {guess}"
    return [*kept, LogsEnd(at, row.name, sentence=sentence, behind=said.behind)]


def _newest_attempts(ends: list[LogEnd]) -> list[LogEnd]:
    """Return the ends of the newest attempt, one for each writer: that which goes furthest."""
    number = {id(one): int(found[1]) for one in ends if (found := _ATTEMPT.search(one.name))}
    newest = max(number.values(), default=0)
    by_writer: dict[str, LogEnd] = {}
    for one in ends:
        if number.get(id(one), newest) != newest:
            continue
        had = by_writer.get(one.writer)
        if had is None or _furthest(one) > _furthest(had):
            by_writer[one.writer] = one
    return list(by_writer.values())


def _furthest(end: LogEnd) -> tuple[int, int]:
    longest = max(end.series.values(), key=lambda one: one.count)
    return longest.last, longest.count


def _main_form(ends: Sequence[LogEnd]) -> tuple[bytes, float | None]:
    """Return the form of line that most writers share, and the usual time between two of them."""
    counts: Counter[bytes] = Counter()
    for end in ends:
        counts.update(dict.fromkeys(end.series, 1_000_000))
        counts.update({form: one.count for form, one in end.series.items()})
    form = counts.most_common(1)[0][0]
    gaps = [one.gap_s for end in ends if (one := end.series.get(form)) is not None]
    known = [gap_s for gap_s in gaps if gap_s is not None]
    return form, median(known) if known else None


def _stood_still_s(one: Finding, ends: Sequence[LogEnd], usual_s: float | None) -> float:
    """Return for how long the logs had been silent when somebody ended the job; 0 if not long."""
    if one.rule not in ENDED_BY_OTHERS or usual_s is None or one.doubt:
        return 0.0
    newest_s = max((end.times_s[-1] for end in ends if end.times_s), default=None)
    ended_s = one.at_s if one.at_s is not None else _without_year_s(one.evidence.text, newest_s)
    if ended_s is None:
        return 0.0
    before = [at_s for end in ends for at_s in end.times_s if at_s < ended_s - CLOSING_S]
    if not before:
        return 0.0
    still_s = ended_s - max(before)
    slack_s = ZONE_SLACK_S + 2 * usual_s
    if still_s < max(STILL_MIN_S, SILENT_FACTOR * usual_s) or may_be_zones(still_s, slack_s):
        return 0.0
    return still_s


def may_be_zones(apart_s: float, slack_s: float) -> bool:
    """Return True if two clocks in two zones could be so far apart, give or take `slack_s`."""
    return abs(apart_s - round(apart_s / ZONE_S) * ZONE_S) < slack_s


def _as_stood_still(one: Finding) -> Finding:
    row = RULES[STOOD_STILL]
    return replace(
        one,
        rule=row.name,
        failure_class=None,
        mechanism=row.mechanism,
        evidence=replace(one.evidence, role=row.role),
    )


def _without_year_s(text: str, near_s: float | None) -> float | None:
    """Return the time of a line whose date has no year, as the moment nearest to `near_s`."""
    day = day_of(text.encode("utf-8", "replace"))
    return None if day is None or near_s is None else nearest(day, near_s)


def _compare(ends: Sequence[LogEnd], steps: dict[str, Series], usual_s: float | None) -> _Said:
    """Return how far the logs go, and who is behind."""
    if len(ends) > 1 and any(one.is_cut for one in ends):
        return _Said(
            "Some logs end within a line, because the program's output is buffered: where they end"
            " says little.",
            "PYTHONUNBUFFERED=1 has each line written at once.",
        )
    furthest = max(one.last for one in steps.values())
    interval = max(1.0, median(one.interval for one in steps.values()))
    alike = all(abs(one.interval - interval) <= 0.5 * interval for one in steps.values())
    late = [name for name, one in steps.items() if furthest - one.last >= interval]
    when = _when(max((one.last_s for one in steps.values() if one.last_s), default=None))
    if len(steps) == 1 or not alike:
        return _of_one(ends, steps, furthest, when)
    if late and len(late) <= len(steps) // 2:
        came = sorted({steps[name].last for name in late})
        to = f"step {came[0]}" if len(came) == 1 else f"steps {came[0]} to {came[-1]}"
        who = _named(late)
        return _Said(
            f"{_log_of(who, late)} at {to}, and those of the other {len(steps) - len(late)} at"
            f" step {furthest}{when}.",
            f"If the job stands still, this looks like a hang in which the others wait for {who}.",
            who,
        )
    if late:
        low = min(one.last for one in steps.values())
        return _Said(f"{len(steps)} logs end at steps {low} to {furthest}{when}.", _HANGS)
    return _silent(ends, usual_s) or _Said(
        f"{'Both' if len(steps) == 2 else f'All {len(steps)}'} logs end at step {furthest}{when}.",
        f"{_HANGS} Their ends do not tell the ranks apart.",
    )


def _of_one(ends: Sequence[LogEnd], steps: dict[str, Series], furthest: int, when: str) -> _Said:
    end = max(ends, key=lambda one: steps[one.writer].last)
    total = steps[end.writer].total
    of = f" of {total}" if total else ""
    fact = f"{end.name} ends at step {furthest}{of}{when}, and does not say that training ended."
    return _Said(fact, _HANGS)


def _silent(ends: Sequence[LogEnd], usual_s: float | None) -> _Said | None:
    """Return who stopped writing long before the others, of ranks that reached the same step."""
    last = {one.writer: one.times_s[-1] for one in ends if one.times_s}
    if usual_s is None or len(last) < 2 or len(last) < len(ends):
        return None
    newest_s = max(last.values())
    limit_s = max(SILENT_MIN_S, SILENT_FACTOR * usual_s)
    early = [name for name, at_s in last.items() if newest_s - at_s > limit_s]
    rest = [at_s for name, at_s in last.items() if name not in early]
    # The others must have gone on together: where each falls silent at its own time, none is first.
    if not early or len(early) > len(last) // 2 or newest_s - min(rest) > limit_s / 2:
        return None
    ago_s = min(rest) - max(last[name] for name in early)
    if may_be_zones(ago_s, ZONE_SLACK_S + 2 * usual_s):
        return None
    who = _named(early)
    return _Said(
        f"{_log_of(who, early)} {duration(ago_s)} before those of the others, after the same step.",
        f"If the job stands still, look at {who} first.",
        who,
    )


def _log_of(who: str, writers: Sequence[str]) -> str:
    are_ranks = who.startswith("rank")
    of = f"The log{'s' if len(writers) > 1 else ''} of " if are_ranks else ""
    return f"{of}{who} {'end' if len(writers) > 1 else 'ends'}"


def _named(writers: Sequence[str]) -> str:
    ranks = [one.removeprefix("rank ") for one in writers]
    if all(one.isdecimal() for one in ranks):
        ordered = [str(one) for one in sorted(map(int, ranks))]
        return f"rank{'s' if len(ordered) > 1 else ''} {some(ordered, 8)}"
    return some(sorted(writers), 4)


def _when(at_s: float | None) -> str:
    if at_s is None:
        return ""
    return f" ({datetime.fromtimestamp(at_s, timezone.utc):%Y-%m-%d %H:%M:%S})"


def _text(line: bytes) -> str:
    return cut_at_word(line.decode("utf-8", "replace").strip(), CHARACTERS)
