"""Recognise exceptions that a program handled: its log goes on after them as it did before.

A program may print a traceback and train on. Such a line looks like a cause, and is none. The log
shows that: lines of a form that it had before (a step, a bar of progress) come again. A few by the
same writer suffice. Where several ranks may write one log without labels, more lines are needed:
more than all ranks print until they notice that one is gone. An exception is handled, too, if lines
of one form follow in which a number grows: steps, which no rank takes without the others. Lines
that report exceptions, or where they were raised, do not count as progress, however often they
come.

A program that says that its training is finished has handled whatever it printed before.

If the launcher started the job again in between, the exception did end something: an attempt. It
counts for nothing either while the job went on to another failure, and for all that it says if the
job then finished (`recovered.py`).

A line about a lost device counts likewise, if a program printed it and no kernel, and if steps of
training come after it: it may be a text that the program shows, such as a sample of its data.

The form of a line is its letters: numbers, dates and bars change.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs.prefixes import rank_of
from outlast.diagnose.logs.tracebacks import label_of
from outlast.model.terms import Mechanism
from outlast.model.verdict import Role

RULE, RESTARTED = "log.went_on", "log.restarted"
SIGNALS = ("exit.killed_bare", "exit.bus", "exit.segv", "exit.illegal", "exit.fpe", "exit.abort")
BEFORE_LINES = 80  # lines before the exception that are looked at
BEFORE_COUNT = 3  # at least, of one form
AFTER_COUNT = 5  # lines of the same writer
AFTER_ANY_COUNT = 24  # lines of any writer
STEPS_COUNT = 10  # values of a number that grows, in lines of one form
FORMS_MAX = 32  # of these lines
AFTER_LINES = 2_000  # lines after the exception that are looked at
OPEN_MAX = 24
LIKE_MAX = 1_000
_LETTERS_MIN, _CHARACTERS = 4, 200
# no part of a time, a date, a fraction or a name
_NUMBER = re.compile(rb"(?<![\d.,\w-])(?<!\d:)(\d{1,9}(?:\.\d{1,9})?)(?![\d.:,\w]*[.:\w-])")
# such lines come again and again while nothing goes on
_IDLES = re.compile(rb"wait|retr|attempt|time[d ]?.?out|still|heartbeat", re.IGNORECASE)
_FINISHED = re.compile(
    rb"\btrain(?:ing)?(?: run| job)?:? (?:has |is |was |run )?"
    rb"(?:finished|complete[d.!]?(?![\w ]{0,12}\bfor\b)|done|ended successfully)"
    rb"|finished training|trainer\.fit. stopped: .max_|stopped: .max_(?:steps|epochs)",
    re.IGNORECASE,
)
# such lines come for one rank after the other while a job is closed down
_CLOSING = re.compile(
    rb"kill|subprocess|localrank|exitcode|errorfile|signal|terminat|clos(?:e|ing)|srun|slurm"
    rb"|destroy|shut|abort|exit",
    re.IGNORECASE,
)
_STARTS_AGAIN = re.compile(
    rb"will restart worker group|restarting worker group|rendezvous'ing worker group"
    rb"|worker group failed",
    re.IGNORECASE,
)
# the lines of a traceback: where several ranks raise alike, they come again and again
_TRACEBACK = re.compile(
    rb"traceback \(most recent call"
    rb"|^.{0,120}?(?:^|[\]:|>] {1,2}) {2}(?:file \"| {2}[\w@(\[{\"'~^])",
    re.IGNORECASE,
)
# what a line of training says, and no line of a monitor or a kernel
_TRAINS = re.compile(rb"loss|step|iter|epoch|it/s", re.IGNORECASE)
_BY_KERNEL = re.compile(r"nvrm|kernel:|^\[ {0,8}\d{1,9}\.\d{6}\]|^\[\w{3} \w{3} ", re.IGNORECASE)
_POD = re.compile(r"\bpod/([\w.-]{1,253})", re.IGNORECASE)
_NOT_LETTERS = bytes(one for one in range(256) if not (65 <= one <= 90 or 97 <= one <= 122))


@dataclass(slots=True)
class Growing:
    """The numbers in lines of one form, and how many times each grew without ever falling."""

    last: list[float] = field(default_factory=list)
    grown: list[int] = field(default_factory=list)

    def feed(self, line: bytes) -> bool:
        """Return True once some number took `STEPS_COUNT` values, each larger than the last."""
        now = [float(one) for one in _NUMBER.findall(line[:_CHARACTERS])]
        if len(now) != len(self.last):
            self.last, self.grown = now, [1] * len(now)
            return False
        self.grown = [
            0 if new < old else count + (new > old)
            for new, old, count in zip(now, self.last, self.grown, strict=True)
        ]
        self.last = now
        return max(self.grown, default=0) >= STEPS_COUNT


@dataclass(slots=True)
class _Open:
    """One exception, and what came after it."""

    finding: Finding
    label: str
    forms: frozenset[bytes]
    own_count: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # by writer
    left_count: int = AFTER_LINES
    steps: dict[tuple[str, bytes], Growing] = field(default_factory=dict)
    has_steps: bool = False
    was_restarted: bool = False  # the launcher started the job again after it
    is_device: bool = False  # only training that goes on shows that no device was lost

    @property
    def rule(self) -> str:
        return RESTARTED if self.was_restarted else RULE

    @property
    def is_handled(self) -> bool:
        # All ranks may print one more step before they notice: only what one writer prints counts.
        most = max(self.counts.values(), default=0)
        return self.own_count >= AFTER_COUNT or most >= AFTER_ANY_COUNT or self.has_steps

    def look(self, lines: Sequence[bytes], *, one_writer: bool, failures: Set[bytes]) -> None:
        """Count the lines of a known form among those that come after, and look for steps.

        `failures` are forms of lines that do not count as progress.
        """
        for line in lines[: self.left_count]:
            if self.is_handled:
                return
            self.was_restarted = self.was_restarted or _STARTS_AGAIN.search(line) is not None
            if _FINISHED.search(line) and _writer(line) == self.label:
                self.has_steps = True
                return
            form = form_of(line)
            if form in failures or _TRACEBACK.search(line[:_CHARACTERS]):
                continue
            if form in self.forms:
                self.counts[_who(line)] += 1
                self.own_count += one_writer or (bool(self.label) and _writer(line) == self.label)
            if self.is_device and not _TRAINS.search(form):
                continue
            if form and not _IDLES.search(form) and not _CLOSING.search(form):
                # One writer's number grows with its steps; over all writers it may be the rank.
                series = (_who(line), form)
                if series in self.steps or len(self.steps) < FORMS_MAX:
                    self.has_steps |= self.steps.setdefault(series, Growing()).feed(line)
        self.left_count -= len(lines)


class WentOnReader:
    """A reader of the lines around exceptions. `block` is called once for each block of lines.

    one_writer  the whole log is of one rank, by its name
    """

    def __init__(self, *, one_writer: bool) -> None:
        self._one_writer = one_writer
        self._before: deque[bytes] = deque(maxlen=BEFORE_LINES)
        self._open: list[_Open] = []
        self._failures: set[bytes] = set()  # the forms of lines that tell of exceptions
        # What was usual before the first exception of each form. All ranks may raise alike, and
        # then the lines between two such exceptions are those of the exceptions.
        self._usual: dict[bytes, frozenset[bytes]] = {}

    def block(
        self, lines: Sequence[bytes], raised: Sequence[tuple[int, Finding, str]]
    ) -> list[tuple[str, Finding]]:
        """Return each exception after which the log goes on, with the rule that says how.

        `raised` are the exceptions in this block: at which place, and the text of their lines.
        """
        self._failures |= {form_of(text.encode("utf-8", "replace")) for _, _, text in raised}
        for one in self._open:
            self._look(one, lines)
        handled = [(one.rule, one.finding) for one in self._open if one.is_handled]
        self._open = [one for one in self._open if one.left_count > 0 and not one.is_handled]
        for at, finding, text in raised:
            if len(self._open) >= OPEN_MAX:
                break
            before = [*self._before, *lines[max(0, at - BEFORE_LINES) : at]][-BEFORE_LINES:]
            usual, like = _usual_forms(before), form_of(text.encode("utf-8", "replace"))
            if like in self._usual or len(self._usual) < LIKE_MAX:
                usual &= self._usual.setdefault(like, usual)
            is_device = may_be_shown(finding)
            if is_device:
                usual = frozenset(form for form in usual if _TRAINS.search(form))
            new = _Open(finding, label_of(text), usual, is_device=is_device)
            self._look(new, lines[at + 1 :])
            if new.is_handled:
                handled.append((new.rule, new.finding))
            elif new.left_count > 0:
                self._open.append(new)
        self._before.extend(lines[-BEFORE_LINES:])
        return handled

    def _look(self, one: _Open, lines: Sequence[bytes]) -> None:
        one.look(lines, one_writer=self._one_writer, failures=self._failures)


def _usual_forms(lines: Sequence[bytes]) -> frozenset[bytes]:
    counts = Counter(map(form_of, lines))
    return frozenset(form for form, count in counts.items() if form and count >= BEFORE_COUNT)


def _writer(line: bytes) -> str:
    return label_of(line[:300].decode("utf-8", "replace"))


def _who(line: bytes) -> str:
    """Return the writer of a line: its label, or the rank that it names; "" if it tells neither."""
    text = line[:300].decode("utf-8", "replace")
    if label := label_of(text):
        return label
    rank = rank_of(text)
    return "" if rank is None else str(rank)


def form_of(line: bytes) -> bytes:
    """Return the letters at the beginning of a line; empty where there are few."""
    letters = line[:_CHARACTERS].translate(None, _NOT_LETTERS)
    return letters if len(letters) >= _LETTERS_MIN else b""


def says_finished(line: bytes) -> bool:
    """Return True for a line of a program that says that its training is finished."""
    return _FINISHED.search(line) is not None


def may_be_handled(one: Finding) -> bool:
    """Return True for a line about an exception, which a program may have handled.

    The same holds for words about a signal: a text that the program shows, or a helper of its own.
    """
    if one.rule in SIGNALS or may_be_shown(one):
        return True
    return one.mechanism in (Mechanism.EXCEPTION, Mechanism.CORRUPT) and one.evidence.role in (
        Role.ROOT,
        Role.MESSENGER,
    )


def may_be_shown(one: Finding) -> bool:
    """Return True for a line about a lost device that a program printed, and no kernel.

    It may be a text that the program shows, such as a sample of its data. Ranks that take further
    steps have not lost a device.
    """
    about = one.rule.startswith("xid.") or one.rule == "nvml.lost"
    return about and _BY_KERNEL.search(one.evidence.text) is None


def with_handled_marked(
    findings: Sequence[Finding], *, recovered: bool = False
) -> tuple[list[Finding], str]:
    """Mark the exceptions after which their log goes on, and say so in a sentence ("" for none).

    A job that has `recovered` was started again after a failure, and then finished. What ended its
    earlier attempts is the only failure there is, so it is not marked.
    """
    rules = (RULE,) if recovered else (RULE, RESTARTED)
    at = {(one.evidence.file, one.evidence.line) for one in findings if one.rule in rules}
    findings = _with_mounts_of_started(findings)
    if not at:
        return list(findings), ""
    handled = [
        one
        for one in findings
        if (one.evidence.file, one.evidence.line) in at and may_be_handled(one) and not one.doubt
    ]
    ids = set(map(id, handled))
    kept = [_marked(one) if id(one) in ids else one for one in findings]
    if not handled:
        return kept, ""
    first = handled[0].evidence
    more = len(handled) - 1
    lines = "lines" if more > 1 else "line"
    told = f" and {more} more {lines} tell of exceptions" if more else " tells of an exception"
    again = any(one.rule == RESTARTED and one.evidence.line == first.line for one in findings)
    then = (
        "the launcher started the job again, and the log goes on"
        if again
        else f"the log goes on as before, so {'they' if more else 'it'} ended nothing"
    )
    return kept, f"{first.file}:{first.line}{told} after which {then}"


def _with_mounts_of_started(findings: Sequence[Finding]) -> list[Finding]:
    """Mark the events of volumes that were mounted in the end, because their pod has started."""
    started = {(one.evidence.file, _pod_of(one)) for one in findings if one.rule == "kube.started"}
    return [
        _marked(one)
        if one.rule == "disk.mount"
        and not one.doubt
        and (one.evidence.file, _pod_of(one)) in started
        else one
        for one in findings
    ]


def _pod_of(one: Finding) -> str:
    found = _POD.search(one.evidence.text)
    return found[1] if found else ""


def _marked(one: Finding) -> Finding:
    messenger = replace(one.evidence, role=Role.MESSENGER)
    return replace(one, doubt="handled", mechanism=None, evidence=messenger)
