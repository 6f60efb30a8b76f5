"""Mark what a person wrote: notes, mails and tickets that lie beside the logs.

They recall earlier incidents ("same as in March, when node12 had Xid 79") and guess, in the words
of a failure. Such a line says what its writer thinks, so it weighs little: alone it names no class.

A file is prose if its name says so (`notes.txt`, `ticket.eml`), or if words in it are those of
people ("yesterday", "we saw", "no idea"), and most of its lines have no head that a program writes.
In prose a line with such a head still counts: people paste lines of logs there. In a log a sentence
is a person's if it says so itself, as where a script prints a remark.

Not seen: a remark in another language than English.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from outlast.diagnose.findings import Finding
from outlast.model.verdict import Role

WORDS_MIN = 2  # different words of people, in a file or in one sentence
TEXT_MAX = 1_000  # characters of a line that are looked at
_NAMED = re.compile(
    r"(?:^|[/_.-])(?:my|our|the)?[_-]?(?:notes?|todo|readme|tickets?|e?mails?|chat|slack|teams"
    r"|comments?|hand-?over|on-?call|memo|post-?mortem|runbook|cheat-?sheet|known[_-]issues|faq"
    r"|wiki|jira)(?:[_.-]?\d{0,8})?(?:\.(?:txt|eml|msg|text))*$",
    re.IGNORECASE,
)
# no program speaks so
_STRONG_WORDS = (
    "i'm i've we've we'd she yesterday tonight guess saw told rma rma'd thanks thx btw fyi remember"
    " remembers happened"
)
_STRONG = frozenset(_STRONG_WORDS.split())
_STRONG_PHRASE = re.compile(
    r"\b(?:no idea|last (?:week|month|year|night|time)|back then|this time|in (?:january|february"
    r"|march|april|may|june|july|august|september|october|november|december))\b"
)
_WEAK_WORDS = (
    "i we our my he had seen today ago maybe perhaps think thought asked ticket vendor hi hello"
    " idea replaced swapped suspect suspected again seems"
)
_WEAK = frozenset(_WEAK_WORDS.split())
_WEAK_PHRASE = re.compile(r"\b(?:same as|looks like)\b")
# what programs put in front: a time of day, a label, a level, the name of an exception
_HEAD = re.compile(
    r"^\s{0,8}(?:<\d{1,3}>|\[(?!\w{1,12}\] \w{2,12} )|\|"
    r"|\(?\d{4}[-/.]\d\d[-/.]\d\d[ T_]\d\d:\d\d:\d\d|\w{3} {1,2}\d{1,2} \d\d:\d\d:\d\d "
    r"|\w{3} \w{3} {1,2}\d{1,2} \d\d:\d\d:\d\d |\d{1,5}: |\d{1,3}(?:\.\d{1,3}){3}|[IWEF]\d{4} \d\d:"
    r"|(?:[A-Za-z_]\w{0,40}\.){0,6}[A-Z]\w{1,60}(?:Error|Exception|Exit|Interrupt|Warning):"
    r"|(?:slurmstepd|srun|slurmd|slurmctld|kernel|NVRM|bash|sh|python\d?|mpirun|ERROR|WARNING|INFO"
    r"|DEBUG|FATAL|CRITICAL|E|W|I)\b[^:]{0,40}: |Traceback \(|File \"|[{][\"']|NCCL |CUDA error: "
    r"|[\w.-]{1,80}:\d{2,8}:\d{2,8} \[)",
)
# steps of training: a log may show texts that its model writes
_STEP = re.compile(
    r"(?:loss|step|epoch|iter(?:ation)?|batch|lr)\b\S{0,12}[ =:\[(]{1,4}\d|\d(?:it/s|s/it)",
    re.IGNORECASE,
)
STEPS_MAX = 3  # a file with this many lines of steps is a log
HEADED_MAX = 60  # as is one with this many lines with the heads of programs; people paste fewer
LINES_MAX = 120  # few write longer notes
_TOKEN = re.compile(r"(?<![/.-])[a-z']+(?![/-])")
_OF_PHRASES = frozenset({"no", "last", "back", "this", "in", "same", "looks"})
_WORD = re.compile(r"[A-Za-z']{1,20}")
_SENTENCE_WORDS = 4


@dataclass(slots=True)
class WordsOfPeople:
    """Count how the lines of one file look: heads of programs, and words of people."""

    headed_count: int = 0
    bare_count: int = 0
    steps_count: int = 0
    strong: set[str] = field(default_factory=set)  # words that no program says
    weak: set[str] = field(default_factory=set)

    @property
    def is_log(self) -> bool:
        """Return True once it is certain that the file is not prose."""
        return (
            self.steps_count >= STEPS_MAX
            or self.headed_count >= HEADED_MAX
            or self.bare_count > LINES_MAX
        )

    def look(self, line: bytes) -> None:
        """Count one line, unless it is certain already that the file is a log."""
        if self.is_log:
            return
        text = line[:TEXT_MAX].decode("utf-8", "replace").rstrip()
        if not text.strip():
            return
        self.steps_count += _STEP.search(text) is not None
        if _HEAD.match(text):
            self.headed_count += 1
        else:
            self.bare_count += 1
            strong, weak = _words(text)
            self.strong |= strong
            self.weak |= weak

    def is_prose(self, name: str) -> bool:
        """Return True if most of these lines are a person's, by the file's name or its words."""
        if self.is_log or self.bare_count <= self.headed_count:
            return False
        if _NAMED.search(name):
            return bool(self.strong or self.weak)
        return _are_of_people(self.strong, self.weak)


def _words(text: str) -> tuple[set[str], set[str]]:
    low = text.lower()
    found = set(_TOKEN.findall(low))
    strong, weak = found & _STRONG, found & _WEAK
    if found & _OF_PHRASES:
        strong |= set(_STRONG_PHRASE.findall(low))
        weak |= set(_WEAK_PHRASE.findall(low))
    return strong, weak


def _are_of_people(strong: set[str], weak: set[str]) -> bool:
    return bool(strong) and len(strong | weak) >= WORDS_MIN


def is_remark(text: str, *, in_prose: bool) -> bool:
    """Return True for a line that a person wrote, in a file of prose or among lines of a log."""
    if in_prose:
        return _HEAD.match(text) is None
    if len(_WORD.findall(text)) < _SENTENCE_WORDS:
        return False
    return _HEAD.match(text) is None and _are_of_people(*_words(text))


def with_remarks_marked(
    findings: Sequence[Finding], words: Mapping[str, WordsOfPeople]
) -> tuple[list[Finding], str]:
    """Mark the findings in lines of people, and say so in a sentence ("" for none).

    `words` are of each file, by its name.
    """
    prose = {name for name, one in words.items() if one.is_prose(name)}
    remarks = [
        one
        for one in findings
        if not one.doubt
        and one.evidence.line is not None
        and one.evidence.role is not Role.ADVICE
        and one.evidence.file in words
        and is_remark(one.evidence.text, in_prose=one.evidence.file in prose)
    ]
    if not remarks:
        return list(findings), ""
    ids = set(map(id, remarks))
    marked = [
        replace(
            one,
            doubt="remark",
            mechanism=None,
            rank=None,
            evidence=replace(one.evidence, role=Role.MESSENGER),
        )
        if id(one) in ids
        else one
        for one in findings
    ]
    first = remarks[0].evidence
    more = f" (and {len(remarks) - 1} more such)" if len(remarks) > 1 else ""
    return marked, (
        f"{first.file}:{first.line}{more} is what a person wrote, and may be about another"
        " incident: look for the line of the log itself"
    )
