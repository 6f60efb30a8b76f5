"""Read findings from the lines of one writer: as a stream, in bounded memory, in one pass.

Blocks of lines go through a sieve (`sieve.py`). What it lets through is compared with the rules. It
also opens readers that need several lines: tracebacks, stacks, torchrun's table of failures,
numbers under a header. If several rules match a line, the one with the smallest priority decides.
Nothing in a line can make this raise. A line longer than `LINE_BYTES` is read to that length, and a
finding says so.

Of one kind of finding from one rank, node and device the first `SAME_MAX` are handed on: a log may
repeat a line a million times. If none was handed on for an hour, by the log's own times,
`SAME_LATER` more are. So what a kernel's log repeats today counts, and not only what it said last
week. An exception that a program handled again and again may end it at last, so the newest one of
each kind is handed on at the end.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from outlast.diagnose import self_output
from outlast.diagnose.findings import Finding
from outlast.diagnose.logs import (
    failure_table,
    hang_reports,
    headings,
    metrics,
    nccl_processes,
    prefixes,
    process_table,
    source_echo,
    tracebacks,
    went_on,
    xids,
)
from outlast.diagnose.logs.device_names import OF_A_GPU, gpu_and_host
from outlast.diagnose.logs.fingerprints import Fingerprints, read_fingerprints
from outlast.diagnose.logs.harmless import does_without, is_harmless, is_of_lifetime
from outlast.diagnose.logs.headings import Heading, read_heading
from outlast.diagnose.logs.json_lines import open_record
from outlast.diagnose.logs.raised_rules import rule_of_raised
from outlast.diagnose.logs.sieve import Sieve
from outlast.diagnose.logs.watchdog import AwaitedCollective, read_watchdog
from outlast.diagnose.rules import LINE_RULES, RULES
from outlast.diagnose.rules.table import Rule
from outlast.diagnose.stacks import reader as stacks
from outlast.diagnose.stacks.reader import Stack, StackReader
from outlast.diagnose.stacks.workers import informative_frame, waits_for_work
from outlast.model.terms import Mechanism
from outlast.model.texts import cut_at_word
from outlast.model.verdict import Evidence, Role

LINE_BYTES = 8192
TEXT_CHARACTERS = 400  # of a line that evidence keeps
BEGINNING, BEFORE = 80, 20  # of a record: so much of its beginning, and before what was found
SAME_MAX = 24
SAME_LATER = 2
LATER_S = 3_600.0
FINDINGS_MAX = 20_000
CALLSTACK_LINES = 2000
OWN_LINES = 80  # after a line that heads our own output, in a file of others

_PATTERNS = tuple(re.compile(rule.pattern) for rule in LINE_RULES)
_RULES_N = len(LINE_RULES)
_READERS = (
    metrics.STEP_NEEDLES,
    xids.NEEDLES,
    (tracebacks.NEEDLE,),
    stacks.NEEDLES,
    failure_table.NEEDLES,
    metrics.NEEDLES,
    self_output.LINE_NEEDLES,
    (b"py_callstack",),
    (b"gpu 0000",),
    process_table.NEEDLES,
    headings.NEEDLES,
    (b"-- process ",),
    nccl_processes.NEEDLES,
    hang_reports.NEEDLES,
    (tracebacks.IGNORED_NEEDLE,),
)
(
    STEP,
    XID,
    TRACEBACK,
    STACK,
    TABLE,
    METRIC,
    OWN,
    CALLSTACK,
    CARD,
    PROCESSES,
    HEADING,
    SPAWNED,
    PLACED,
    REPORT,
    IGNORED,
) = range(_RULES_N, _RULES_N + len(_READERS))
_SIEVE = Sieve([*(rule.needles for rule in LINE_RULES), *_READERS])
COMPARES = ("ddp.params",)  # such a message names the rank that raises it, and another one
WAITS_SAID = ("c10d.timeout", "c10d.status", "c10d.told")  # with a collective's number
_SPAWNED = re.compile(r"^-- Process (\d{1,4}) terminated with the following error:")
_GPU_HEADER = re.compile(r"^\s{0,8}gpu (?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)")


class LineReader:
    """The state over the lines of one writer: of a file, or of one pod or container in it.

    `name` is what evidence calls the file; a rank in it (rank_3.log, attempt_0/3/) counts. `node`
    is where the writer runs, for lines that do not say so themselves.
    """

    def __init__(self, name: str, *, node: str | None = None) -> None:
        self._name, self._rank = name, prefixes.rank_of_name(name)
        self._node = node or prefixes.node_of_name(name)
        self._of_file = (self._rank, self._node)  # until a heading says otherwise
        self._spawned: int | None = None  # the process of which torch's spawn prints the traceback
        self._numbers: Sequence[int] = ()  # of the block's lines in the file
        self._times_s: Mapping[int, float] = {}  # of the block's lines, by number
        self._last: tuple[int, bytes] = (0, b"")  # the last line that is not blank
        self._seen: Counter[tuple[object, ...]] = Counter()
        self._newest_s: dict[tuple[object, ...], float] = {}  # of what was handed on
        # the newest exception of each kind of which enough was handed on: it may be the last
        self._repeated: dict[tuple[object, ...], Finding] = {}
        self._given = 0
        self._stack_seen = False
        self._own_left = 0
        self._device: str | None = None
        self._processes = process_table.ProcessTable()
        self._nccl = nccl_processes.NcclProcesses()
        self._reports = hang_reports.HangReports()
        self._around: tuple[list[bytes], int] = ([], 0)  # the block, and the line's place in it
        self._before: list[bytes] = []  # the last lines of the block before it
        self._went_on = went_on.WentOnReader(one_writer=self._rank is not None)
        self._tracebacks, self._stacks, self._table, self._csv, self._steps = (
            tracebacks.Tracebacks(),
            StackReader(),
            failure_table.FailureTable(),
            metrics.Csv(),
            metrics.StepTimes(),
        )

    def block(
        self,
        lines: list[bytes],
        numbers: Sequence[int],
        times_s: Mapping[int, float] = MappingProxyType({}),
    ) -> Iterator[Finding]:
        """Read the next lines. `times_s` are of those whose time does not stand in them."""
        low = [line.lower() for line in lines]
        found = _SIEVE.found(low)
        begins, turn = 0, self._headings(lines, found)
        for place, heading in turn:
            if begins < place:
                part = slice(begins, place)
                yield from self._part(lines[part], low[part], numbers[part], times_s)
            self._turn_to(heading)
            begins = place
        part = slice(begins, len(lines))
        yield from self._part(
            lines[part], low[part], numbers[part], times_s, found if not begins else None
        )

    def _headings(
        self, lines: Sequence[bytes], found: Mapping[int, tuple[int, ...]]
    ) -> list[tuple[int, Heading]]:
        """Return the headings among the lines, by their place."""
        told = []
        for place in sorted(row for row, owners in found.items() if HEADING in owners):
            above = [*self._before[-2:], *lines[max(place - 2, 0) : place]][-2:]
            heading = read_heading(_text(lines[place]), [_text(line) for line in above])
            told += [(place, heading)] if heading is not None else []
        return told

    def _turn_to(self, heading: Heading) -> None:
        """Take the lines that follow for those of another writer."""
        rank, node = self._of_file
        self._rank, self._node = (
            rank if heading.rank is None else heading.rank,
            heading.node or node,
        )
        self._went_on = went_on.WentOnReader(one_writer=self._rank is not None)

    def _part(
        self,
        lines: list[bytes],
        low: list[bytes],
        numbers: Sequence[int],
        times_s: Mapping[int, float],
        found: dict[int, tuple[int, ...]] | None = None,
    ) -> Iterator[Finding]:
        """Read lines of one writer. `found` is what the sieve lets through, if it is known."""
        self._numbers, self._times_s = numbers, times_s
        found = _SIEVE.found(low) if found is None else found
        self._last = next(
            (
                (number, line)
                for number, line in zip(reversed(numbers), reversed(lines), strict=True)
                if line.strip()
            ),
            self._last,
        )
        for at in [row for row, owners in found.items() if STEP in owners]:
            self._steps.feed(numbers[at], low[at], lines[at])
            if len(found[at]) == 1:
                del found[at]
        wanted, at, place = sorted(found), 0, 0
        raised: list[tuple[int, Finding, str]] = []
        repeated: dict[tuple[object, ...], tuple[int, Finding, str]] = {}
        while True:
            if not self._busy:
                while place < len(wanted) and wanted[place] < at:
                    place += 1
                if place == len(wanted):
                    break
                at = wanted[place]
            if at >= len(lines):
                break
            self._around = (lines, at)
            text = _text(lines[at])
            for one in self._one(numbers[at], text, found.get(at, ())):
                is_raised = one.order == numbers[at] and went_on.may_be_handled(one)
                if self._is_given(one):
                    raised += [(at, one, text)] if is_raised else []
                    yield one
                elif is_raised and len(self._seen) <= FINDINGS_MAX:
                    repeated[_kind_of(one)] = (at, one, text)
            at += 1
        self._repeated |= {kind: one for kind, (_, one, _) in repeated.items()}
        raised += repeated.values()
        for name, one in self._went_on.block(lines, raised):
            row = RULES[name]
            yield replace(
                one,
                rule=row.name,
                evidence=replace(one.evidence, role=row.role),
                failure_class=None,
                mechanism=None,
            )
        self._before = lines[-source_echo.NEIGHBOURS :]

    def _above(self, count: int) -> list[str]:
        """Return the lines just above the one that is read, up to `source_echo.NEIGHBOURS`."""
        lines, at = self._around
        before = self._before[at - count :] if at < count else []
        return [_text(line) for line in (*before, *lines[max(at - count, 0) : at])]

    def _below(self, count: int) -> list[str]:
        """Return the lines just below the one that is read, as far as its block goes."""
        lines, at = self._around
        return [_text(line) for line in lines[at + 1 : at + 1 + count]]

    def _is_source(self, text: str) -> bool:
        count = source_echo.NEIGHBOURS
        return source_echo.is_source(text, self._above(count), self._below(count))

    def end(self) -> Iterator[Finding]:
        for thread in self._stacks.end():
            yield from self._given_out(self._stack(thread))
        yield from self._given_out(map(self._process, self._processes.end()))
        yield from self._given_out(map(self._behind, self._reports.end()))
        slower = self._steps.slower()
        if slower is not None:
            line, text, _ = slower
            yield from self._given_out([self._finding(RULES["metric.slower"], line, text)])
        yield from self._repeated.values()
        yield from self._nccl.end(self._name)
        # that this rank left a log, and the last that it said
        if self._last[0] and self._rank is not None and not self._stack_seen:
            yield from self._given_out(
                [
                    replace(
                        self._finding(RULES["log.last"], self._last[0], _text(self._last[1])),
                        rank=self._rank,
                    )
                ]
            )

    @property
    def _busy(self) -> bool:
        return (
            self._own_left > 0
            or self._tracebacks.active
            or self._stacks.active
            or self._table.active
            or self._processes.active
            or self._reports.active
            or self._csv.active
        )

    def _given_out(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        return filter(self._is_given, findings)

    def _is_given(self, one: Finding) -> bool:
        """Return True if the finding is handed on, and count it."""
        key = _kind_of(one)
        if one.at_s is not None and one.at_s > self._newest_s.get(key, one.at_s) + LATER_S:
            self._seen[key] = min(self._seen[key], SAME_MAX - SAME_LATER)
        self._seen[key] += 1
        if (
            self._seen[key] > SAME_MAX
            or self._given >= FINDINGS_MAX
            or len(self._seen) > FINDINGS_MAX
        ):
            return False
        self._given += 1
        if one.at_s is not None:
            self._newest_s[key] = one.at_s
        return True

    def _one(self, line: int, text: str, owners: tuple[int, ...]) -> list[Finding]:
        """Return the findings of one line, and of records that end with it."""
        text = text.removesuffix("\x00cut")
        low = text.lower()
        if OWN in owners and self_output.is_own_line(text):
            self._own_left = OWN_LINES
            return [self._finding(RULES["own.output"], line, text)]
        if self._own_left:
            self._own_left = self._own_left - 1 if low.strip() else 0
            return []
        if CALLSTACK in owners and "\\n" in text:
            return self._unfolded(line, text)
        if TRACEBACK in owners and text.startswith("{") and "\\n" in text:
            # A record among lines of text: most of the file's lines are none.
            inner = open_record(text.encode("utf-8", "replace")) or ()
            if len(inner) > 1:
                return self._pieces(line, [_text(one.text) for one in inner])
        if self._spawned is not None and not self._tracebacks.active and TRACEBACK not in owners:
            self._spawned = None
        done = self._several(line, text, low, owners)
        one = self._read(line, text, low, owners)
        return done if one is None else [*done, one]

    def _unfolded(self, line: int, text: str) -> list[Finding]:
        """Read torchelastic's error file, which has a traceback in one line of JSON."""
        pieces = (
            text.replace('\\"', '"')
            .replace(tracebacks.HEADER, "\\n" + tracebacks.HEADER)
            .split("\\n")
        )
        return self._pieces(line, pieces)

    def _pieces(self, line: int, pieces: Sequence[str]) -> list[Finding]:
        """Read the lines that one line holds. They have its number."""
        found: list[Finding] = []
        for piece in pieces[:CALLSTACK_LINES]:
            owners = _SIEVE.found([piece.lower().encode("utf-8", "replace")]).get(0, ())
            found += self._one(line, piece, tuple(owner for owner in owners if owner != CALLSTACK))
        return found

    def _several(self, line: int, text: str, low: str, owners: tuple[int, ...]) -> list[Finding]:
        """Pass the line to the readers that need several lines.

        Their findings are of the line at which they are complete.
        """
        done: list[Finding] = []
        if STACK in owners or self._stacks.active:
            above = self._above(stacks.HEADING_LINES) if "Process " in text else ()
            for thread in self._stacks.feed(line, text, above):
                done += self._stack(thread)
        if TABLE in owners:
            self._table.begin(low)
        if self._table.active:
            entry = self._table.feed(line, text)
            if entry is not None:
                done.append(self._failed(entry))
        if PROCESSES in owners:
            self._processes.begin()
        elif self._processes.active:
            done += map(self._process, self._processes.feed(line, text))
        if REPORT in owners or self._reports.active:
            done += map(self._behind, self._reports.feed(line, text))
        if PLACED in owners:
            self._nccl.feed(line, text)
        if SPAWNED in owners and (spawned := _SPAWNED.match(text)):
            self._spawned = int(spawned[1])
            done.append(self._finding(RULES["spawn.process"], line, text))
        header = _GPU_HEADER.match(low)
        if header:
            self._device = header["device"]
        return done

    def _read(self, line: int, text: str, low: str, owners: tuple[int, ...]) -> Finding | None:
        coded = xids.read_xid(low) if XID in owners else None
        if coded is not None:
            return self._finding(coded[0], line, text, device=coded[1])
        if METRIC in owners or self._csv.active:
            number = self._number(low, owners)
            if number is not None:
                return self._finding(
                    RULES.get(number[0], RULES["xid.other"]), line, text, device=number[1]
                )
        if TRACEBACK in owners and tracebacks.HEADER in text:
            self._tracebacks.begin(text)
            return None
        if IGNORED in owners and self._tracebacks.ignore(text):
            return None
        if self._tracebacks.active and self._tracebacks.drops(text):
            return None
        if self._tracebacks.active and self._tracebacks.quotes(text):
            self._tracebacks.feed(text)
            return None
        rule, match = self._matching(low, owners)
        if rule is not None and metrics.says_nothing(low):
            return None
        raised = self._tracebacks.feed(text) if self._tracebacks.active else None
        if raised is None and rule is not None and self._is_no_failure(rule, text, low):
            return None
        if raised is not None and match and tracebacks.is_quoted(text, match.start()):
            rule, match = None, None
        if raised is not None:
            told = rule_of_raised(rule, raised, low)
            rule, match = told, match if told is rule else None
        if rule is None:
            return None
        return self._finding(
            rule,
            line,
            text,
            groups=match.groupdict() if match else {},
            low=low,
            place="" if raised is None else raised.place,
            at=match.start() if match else 0,
        )

    def _is_no_failure(self, rule: Rule, text: str, low: str) -> bool:
        """Return True for a warning, or for source code that the program prints."""
        counts = rule.name.startswith("ecc.") and is_of_lifetime(low, self._above(8))
        handled = is_harmless(rule, low) or does_without(rule, self._below(1))
        return counts or handled or self._is_source(text)

    def _matching(
        self, low: str, owners: tuple[int, ...]
    ) -> tuple[Rule | None, re.Match[str] | None]:
        for owner in owners:
            if owner >= _RULES_N:
                break
            match = _PATTERNS[owner].search(low)
            if match:
                return LINE_RULES[owner], match
        return None, None

    def _process(self, row: process_table.ProcessRow) -> Finding:
        return replace(self._finding(RULES[row.rule], row.line, row.text), rank=row.rank)

    def _behind(self, one: hang_reports.Behind) -> Finding:
        found = self._finding(RULES[hang_reports.RULE], one.line, one.text)
        return replace(found, rank=one.rank, node=one.node or found.node)

    def _number(self, low: str, owners: tuple[int, ...]) -> tuple[str, str | None] | None:
        if low.startswith("dcgm_fi_"):
            return metrics.exposed(low)
        if METRIC in owners and "," in low:
            self._csv.begin(low)
            return None
        return self._csv.feed(low) if self._csv.active else None

    def _stack(self, thread: stacks.Thread) -> list[Finding]:
        self._stack_seen = True
        if not stacks.is_main(thread) or waits_for_work(thread.frames):
            return []
        doing = stacks.doing(thread.frames)
        rule = RULES[f"stack.{doing}"]
        prefix = prefixes.read_prefix(thread.text)
        shown = informative_frame(thread.frames) or next(iter(thread.frames), thread.text)
        said = cut_at_word(f"{thread.text.strip()} {shown}", TEXT_CHARACTERS)
        evidence = Evidence(self._name, thread.line, said, rule.role)
        rank = (
            thread.rank
            if thread.rank is not None
            else prefix.rank
            if prefix.rank is not None
            else self._rank
        )
        return [
            Stack(
                evidence,
                rule.name,
                rule.failure_class,
                rule.mechanism,
                self._times_s.get(thread.line) if prefix.at_s is None else prefix.at_s,
                thread.line,
                rank,
                prefix.node or self._node,
                None,
                tuple(thread.frames),
                thread.thread,
                thread.process,
            )
        ]

    def _failed(self, entry: failure_table.FailureEntry) -> Finding:
        rule = RULES["elastic.first_failure" if entry.first else "elastic.other_failure"]
        code = entry.exit_code
        mechanism = (
            Mechanism.SIGNAL
            if code is not None and code < 0
            else Mechanism.EXIT
            if code is not None
            else None
        )
        role = Role.EFFECT if code in (-15, -2, -1) else rule.role
        stamp = prefixes.read_prefix(entry.fields.get("time", ""))
        text = cut_at_word(entry.text.strip(), TEXT_CHARACTERS)
        return Finding(
            Evidence(self._name, entry.line, text, role),
            rule.name,
            None,
            mechanism,
            stamp.at_s,
            entry.line,
            entry.rank,
            entry.fields.get("host") or None,
        )

    def _finding(
        self,
        rule: Rule,
        line: int,
        text: str,
        *,
        device: str | None = None,
        groups: dict[str, str | Any] | None = None,
        low: str = "",
        place: str = "",
        at: int = 0,
    ) -> Finding:
        groups, prefix = groups or {}, prefixes.read_prefix(text)
        rank = next(
            (
                one
                for one in (
                    prefixes.rank_of_label(text) if rule.name in COMPARES else prefix.rank,
                    self._table.rank if self._table.active else None,
                    self._spawned,
                    self._rank,
                    self._nccl.rank_of(text),
                )
                if one is not None
            ),
            None,
        )
        gpu, host = gpu_and_host(rule.failure_class, text)
        part = (
            device
            or groups.get("device")
            or gpu
            or (nccl_processes.gpu_of(text) if rule.failure_class in OF_A_GPU else None)
            or (
                self._device
                if rule.name.startswith(("clocks.", "ecc.", "remap.", "metric.", "nvlink."))
                else None
            )
        )
        evidence = Evidence(self._name, line, _shown(text, at), rule.role)
        common: tuple[Any, ...] = (
            evidence,
            rule.name,
            rule.failure_class,
            rule.mechanism,
            self._times_s.get(line) if prefix.at_s is None else prefix.at_s,
            line,
            rank,
            groups.get("node") or prefix.node or host or self._node,
            part,
        )
        calls = read_fingerprints(low) if rule.name == "c10d.mismatch" else ()
        if calls:
            return replace(Fingerprints(*common), calls=calls)
        awaited = read_watchdog(low) if rule.name in WAITS_SAID else {}
        if awaited:
            return AwaitedCollective(*common, **awaited)  # type: ignore[arg-type]
        return replace(tracebacks.RaisedAt(*common), place=place) if place else Finding(*common)


def _shown(text: str, at: int) -> str:
    """Return what is shown of a line: its beginning, and of a record what was found in it."""
    if at > BEGINNING and text.startswith("{"):
        beginning = cut_at_word(" ".join(text[:at].split()), BEGINNING)
        start = text.rfind(" ", at - BEFORE, at) + 1 or at
        text = f"{beginning} {' '.join(text[start : at + TEXT_CHARACTERS].split())}"
    return cut_at_word(prefixes.ANSI.sub("", text).strip(), TEXT_CHARACTERS)


def _kind_of(one: Finding) -> tuple[object, ...]:
    process = one.process if isinstance(one, Stack) else ""
    return one.rule, one.rank, one.node, one.device, process


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r\n")
