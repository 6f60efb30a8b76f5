"""Reports about a hang by other tools: which ranks they show to be behind.

    ncclras        "31 ranks have launched up to operation 6650", and the ranks that have not
    ncclras        "Missing communicator data from 1 rank", and the ranks that do not answer
    torchfrtrace   "Not all ranks joining collective", and "missing ranks: {5}"

NCCL's report lists the smaller part of the ranks, which may be the one that is ahead. A rank of a
communicator is the rank of the job only if the communicator has all GPUs of the job.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

RULE = "report.behind"
NEEDLES = (b"job summary", b"not all ranks joining collective")
LINES_MAX = 2_000  # of one report of NCCL
RECORD_LINES = 8  # from the head of a collective of torchfrtrace to its missing ranks
SHARE_MAX = 0.5  # if more ranks are listed, they are not the few that the others wait for
_TOTALS = re.compile(r"^\s{1,20}(?:\d{1,7}\s{1,20}){2,4}(\d{1,7})\s{0,4}$")
_GROUP = re.compile(
    r"^\s{1,20}(\d{1,5})\s{1,20}(?:\d{1,7}\s{1,20}){3}(\d{1,7})\s{1,20}\d{1,7}\s{1,20}[A-Z]"
)
_HEAD = re.compile(r"^#(\d{1,5})-\d{1,5} \(\w{1,32}\) ")
_COUNT = re.compile(
    r"^\s{1,8}\d{1,7} ranks? ha(?:s|ve) launched up to operation (\d{1,18})\b"
    r"|^\s{1,8}Missing (communicator data) from \d{1,7} ranks?"
)
_RANK = re.compile(
    r"^\s{1,8}Rank (\d{1,7}) -- GPU \S{1,12} managed by process \d{1,9} on node (\S{1,80})"
)
_MISSING = re.compile(r"\bmissing ranks: \{([\d, ]{1,400})\}")
_JOINING = "Not all ranks joining collective"


@dataclass(frozen=True, slots=True)
class Behind:
    """A rank that a report shows to be behind, and the line that names it."""

    rank: int
    node: str | None
    line: int
    text: str


@dataclass(slots=True)
class _Section:
    """One communicator of NCCL's report. `parts` are of (operation, the ranks listed below it)."""

    group: int = -1
    parts: list[tuple[int, list[Behind]]] = field(default_factory=list)

    def behind(self) -> Iterator[Behind]:
        newest = max((operation for operation, _ in self.parts), default=0)
        for operation, listed in self.parts:
            if operation < newest or operation < 0:
                yield from listed


class HangReports:
    """Read reports line by line. `feed` and `end` return what is known by then."""

    def __init__(self) -> None:
        self._left = 0
        self._gpus = 0
        self._sizes: dict[int, int] = {}  # of the communicators of each group
        self._section = _Section()
        self._record_left = 0

    @property
    def active(self) -> bool:
        return self._left > 0 or self._record_left > 0

    def feed(self, line: int, text: str) -> list[Behind]:
        if _JOINING in text:
            self._record_left = RECORD_LINES
        elif text.strip().lower() == "job summary":
            self._left, self._gpus, self._sizes = LINES_MAX, 0, {}
        elif self._record_left:
            self._record_left -= 1
            if missing := _MISSING.search(text):
                self._record_left = 0
                ranks = sorted(map(int, re.findall(r"\d+", missing[1])))
                return [Behind(rank, None, line, text) for rank in ranks]
        return self._ras(line, text) if self._left else []

    def end(self) -> list[Behind]:
        self._left = 0
        section, self._section = self._section, _Section()
        size = self._sizes.get(section.group, 0)
        behind = list(section.behind())
        few = len(behind) <= SHARE_MAX * size
        return behind if few and size == self._gpus else []

    def _ras(self, line: int, text: str) -> list[Behind]:
        self._left -= 1
        if head := _HEAD.match(text):
            done, left = self.end(), self._left
            self._left, self._section = left or LINES_MAX, _Section(int(head[1]))
            return done
        if group := _GROUP.match(text):
            self._sizes[int(group[1])] = int(group[2])
        elif totals := _TOTALS.match(text):
            self._gpus = int(totals[1])
        elif count := _COUNT.match(text):
            self._section.parts.append((-1 if count[2] else int(count[1]), []))
        elif (listed := _RANK.match(text)) and self._section.parts:
            one = Behind(int(listed[1]), listed[2], line, text)
            self._section.parts[-1][1].append(one)
        return self.end() if not self._left else []
