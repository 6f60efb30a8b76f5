"""The prefixes of a message: time, node, rank.

Launchers, syslog, dmesg, glog and containers each put something there, often several.

Times without a year (syslog, glog) or since boot (dmesg) are not Unix seconds: such a line keeps
its order in the file and no time. Times without a zone are taken for UTC; that clocks differ by
hours is for the fusion to see.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone

HEAD = 300  # characters of a line in which a prefix is looked for
ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)")
_MONTHS = {
    name: number
    for number, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
_ISO = re.compile(
    r"(\d{4})[-/](\d\d)[-/](\d\d)[T _:](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))? ?(Z|[+-]\d\d:?\d\d)?"
)
_CTIME = re.compile(
    r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
    r" {1,2}(\d{1,2}) (?:(\d\d):(\d\d):(\d\d) (\d"
    r"{4})|(\d{4}) (\d\d):(\d\d):(\d\d))"
)
# as mail and kubectl describe write it
_RFC1123 = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), (\d\d) (\w{3}) (\d{4}) (\d\d):(\d\d):(\d\d) ([+-]\d{4})"
)
_RANK = re.compile(
    r"^\s{0,4}(?:\[(?:rank|default|trainer|Rank |rank=)(\d{1,6})\]:?|(\d{1,5}):"
    r" |\[(\d{1,5})\]: )"
)
# mpirun's label (--tag-output) has the job and the rank; a time may stand before it
_MPI_LABEL = r"\[\d{1,6},(\d{1,6})\]<std(?:err|out)>:"
_MPI_RANK = re.compile(rf"^[\w :.,+-]{{0,48}}{_MPI_LABEL}")
# srun's label is the task, which is a node where srun starts a launcher, and torchrun's (--tee) is
# a local rank: torch's own goes before both
_RANK_IN_TASK = re.compile(
    r"^\s{0,4}(?:\d{1,5}: {1,2}|\[(?:default|trainer)\d{1,6}\]: ?)\[rank(\d{1,6})\]"
)
_LABELS = (_RANK_IN_TASK, _MPI_RANK, _RANK)
_INNER_RANK = re.compile(
    r"\[rank(\d{1,6})\]|\[(?:PG [^\]]{0,80}?)?Rank (\d{1,6})\]|\brank[ =](\d{1,6})\b|\(rank"
    r" (\d{1,6})\)|ProcessExitedException: process (\d{1,4}) terminated",
    re.IGNORECASE,
)
_SYSLOG_HOST = re.compile(
    r"^(?:<\d{1,3}>\d? ?)?(?:[A-Z][a-z]{2} {1,2}\d{1,2}"
    r" \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,24}) ([A-Za-z0-9][\w.-]{0,80}) (?:"
    r"kernel|[\w./@-]{1,40}(?:\[\d{1,8}\])?):"
    # with a blank between date and time only a daemon with its pid is told from a level
    r"|^\d{4}-\d\d-\d\d [\d:.,+Z-]{8,24} ([a-z][\w.-]{0,60}\d[\w.-]{0,20})"
    r" (?:kernel|[a-z][\w./@-]{0,40}\[\d{1,8}\]):"
)
_NCCL_HOST = re.compile(
    r"^(?:\S{1,40} {1,2}){0,5}(?:\S{0,24}\[\d{1,6},\d{1,6}\]<std(?:err|out)>:)?"
    r"([A-Za-z0-9][\w.-]{0,80}):\d{1,8}:\d{1,8} \[[\d-]{1,4}\]"
    r" (?:[\w/.]{1,60}:\d{1,5} )?NCCL"
)
# The type of an exception stands before a colon too: "sqlite3.OperationalError: ..."
_NO_TYPE = (
    r"(?!\S{0,82}?(?:Error|Exception|Warning|Exit|Interrupt|\.(?:errors?|exceptions?)\.\w{1,40}):)"
)
_PDSH_HOST = re.compile(
    rf"^{_NO_TYPE}"
    r"([A-Za-z][\w.-]{0,60}\d[\w.-]{0,20}): |^(\d{1,3}(?:\.\d{1,3}){3}): "  # deepspeed, pdsh
    r"|^([A-Za-z][\w.-]{0,60}[-\d][\w.-]{0,20}):\d{2,8} \["  # NCCL without a thread's number
)
_PEER_HOST = re.compile(
    r"\b([A-Za-z][\w.-]{1,60}\d[\w.-]{0,20})<\d{1,5}>"
)  # NCCL's peer: the far end
_SRUN_HOST = re.compile(
    r"(?:srun|slurmstepd|slurmctld|slurmd): (?:error|warning): ([A-Za-z][\w.-]{0,60}): task"
    r"|^slurmstepd-([\w.-]{1,60}): |\bON"
    r" ([A-Za-z][\w.-]{0,60}) CANCELLED(?! AT \S{1,40} DUE TO NODE)"
    r"|StepId=\S{1,30} on ([\w.-]{1,60})|\bnode failure on ([A-Za-z][\w.-]{0,60})|\bnode[="
    r" /]['\"]?(?=[\w.-]{0,60}\d)([A-Za-z][\w.-]{0,60}\w)(?![\w-])",
    re.IGNORECASE,
)
# Ray's labels: "(raylet, ip=10.0.0.5)", "(RayTrainWorker pid=3113, ip=10.0.0.5)"
_RAY_HOST = re.compile(
    r"\((?:[\w.:]{0,80}(?:\[rank=\d{1,6}\])?[ ,]{0,2}(?:pid=\d{1,9}, )?ip="
    r"|(?:ID: \w{1,80}, )?IP: )(\d{1,3}(?:\.\d{1,3}){3})[,)]"
)
# JSON, labels
_FIELD_HOST = re.compile(
    r"\b(?:_hostname|hostname|host|node|node_?name)\"? ?[:=] ?\"([A-Za-z][\w.-]{0,80})\"",
    re.IGNORECASE,
)
_BARE_FIELD_HOST = re.compile(
    r"\b(?:host|hostname|node|node_?name)=(?=[\w.-]{0,60}\d)([A-Za-z][\w.-]{0,60}\w)(?![\w-])",
    re.IGNORECASE,
)
_JOURNAL_TIME = re.compile(r"\"__REALTIME_TIMESTAMP\" ?: ?\"(\d{16})\"")
_OF_RENDEZVOUS = re.compile(r"_\d{1,8}_\d{1,4}$")  # torchelastic's node: host, pid, local id
FIELDS = 4_000  # characters of a line of JSON that are looked at: its fields have no order
_NAME_RANK = re.compile(
    r"(?:^|[/_.-])(?:global)?rank[_.-]?(\d{1,6})(?:[_.-]|$|/)|attempt_\d{1,4}/(\d{1,6})/"
)
# A kernel's log tells no host where dmesg printed it. The command in docs/reference/diagnosis.md
# puts the host into the name, and so do people: "n03-kern.log", "slurmd-gpu13.log", "n03/dmesg".
# A run on several nodes has the logs of each in a folder of that node.
_NAME_NODE = re.compile(
    r"(?:^|/)dmesg-of-([A-Za-z0-9][\w.-]{0,80}?)(?:\.(?:txt|log))?$"
    r"|(?:^|/)nodes/([A-Za-z0-9][\w.-]{0,80})/(?:stdout|stderr|stacks)-rank\d{1,9}\.(?:log|txt)$"
)
_SYSTEM_LOG = (
    r"(?:dmesg|kern|kernel|kmsg|journal|journalctl|syslog|messages|slurmd|mmfs|ibstat|ibstatus"
    r"|ibv_devinfo|nvidia[-_]smi|nvsmi|smi|gpus|dcgmi|ipmi|sel|ethtool|rdma|lspci)"
)
_NO_HOST = (
    r"(?!(?:after|at|attempt|before|boot|case|copy|during|file|hang|incident|job|log|new|old|out"
    r"|part|prev|run|task|test|time|try|user|v)[a-z]{0,6}[_-]?\d)"
)
_HOST = rf"{_NO_HOST}([a-z](?:[a-z\d]|-(?=[a-z\d])){{0,40}}?\d[a-z\d]{{0,12}})"
_NAME_HOST = re.compile(
    rf"(?:^|/)(?:{_HOST}(?:[-_.]{_SYSTEM_LOG}\b[^/]{{0,40}}|/{_SYSTEM_LOG}(?![a-z])[^/]{{0,40}})"
    rf"|{_SYSTEM_LOG}[-_.]{_HOST}(?:\.(?:txt|log|json|gz)){{0,3}})$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The time, node and rank in front of a message; None: the line does not say."""

    at_s: float | None
    node: str | None
    rank: int | None


def read_prefix(text: str) -> Prefix:
    """Return the time, node and rank that stand in front of the message of a line."""
    head = text[:HEAD]
    at_s, node = (
        time_of(head),
        _first(head, _RAY_HOST, _SYSLOG_HOST, _NCCL_HOST, _SRUN_HOST, _PDSH_HOST, _PEER_HOST),
    )
    node = node if node is None else _OF_RENDEZVOUS.sub("", node)
    if (node is None and '="' in text) or head.startswith("{"):
        fields = text[:FIELDS]
        node = node or _first(fields, _FIELD_HOST)
        journal = _JOURNAL_TIME.search(fields)
        at_s = int(journal.group(1)) / 1e6 if journal else at_s
    return Prefix(at_s, node, rank_of(head))


def time_of(head: str) -> float | None:
    """Return the first time in the text in Unix seconds (UTC if it names no zone), or None."""
    iso = _ISO.search(head)
    try:
        if iso:
            year, month, day, hour, minute, second = map(int, iso.group(1, 2, 3, 4, 5, 6))
            return (
                _unix(year, month, day, hour, minute, second)
                + float("0." + (iso.group(7) or "0"))
                - _offset_s(iso.group(8))
            )
        named = _CTIME.search(head)
        if named:
            month, day = _MONTHS[named.group(1).lower()], int(named.group(2))
            parts = (
                named.group(3, 4, 5, 6)
                if named.group(6)
                else (*named.group(8, 9, 10), named.group(7))
            )
            return _unix(int(parts[3]), month, day, int(parts[0]), int(parts[1]), int(parts[2]))
        mail = _RFC1123.search(head)
        if mail and (month := _MONTHS.get(mail[2].lower(), 0)):
            day, year, hour, minute, second = map(int, mail.group(1, 3, 4, 5, 6))
            return _unix(year, month, day, hour, minute, second) - _offset_s(mail[7])
    except ValueError:
        return None
    return None


def _unix(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float:
    return datetime(
        year, month, day, hour, minute, min(second, 59), tzinfo=timezone.utc
    ).timestamp()


def _offset_s(zone: str | None) -> int:
    if not zone or zone == "Z":
        return 0
    sign, digits = -1 if zone[0] == "-" else 1, zone[1:].replace(":", "")
    return sign * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)


def rank_of(head: str) -> int | None:
    """Return the rank of a line.

    The launcher's label counts first: what a library calls a rank may be a place in its group.
    """
    return _rank_by(head, *_LABELS, _INNER_RANK)


def rank_of_label(head: str) -> int | None:
    """Return the rank of a line that a launcher labelled, whatever ranks the message names."""
    return _rank_by(head, *_LABELS)


def _rank_by(head: str, *patterns: re.Pattern[str]) -> int | None:
    for pattern in patterns:
        found = pattern.search(head)
        if found:
            return next(int(group) for group in found.groups() if group is not None)
    return None


def rank_of_name(name: str) -> int | None:
    """Return the rank that the path of a log names ("rank7", "attempt_0/7/"); else None."""
    found = _NAME_RANK.search(name)
    return (
        None if found is None else next(int(group) for group in found.groups() if group is not None)
    )


def node_of_name(name: str) -> str | None:
    """Return the node that the path of a log names; else None."""
    found = _NAME_NODE.search(name) or _NAME_HOST.search(name)
    return None if found is None else next(group for group in found.groups() if group)


def _first(head: str, *patterns: re.Pattern[str]) -> str | None:
    for pattern in patterns:
        found = pattern.search(head)
        if found:
            return next((group for group in found.groups() if group), None)
    return None


def node_told(text: str) -> str | None:
    """Return the host that a line names in a field ("host=n3", '"node": "n3"'), or None.

    Only for lines about a part of that host: other lines name the far end of a connection so.
    """
    return _first(text[:FIELDS], _FIELD_HOST, _BARE_FIELD_HOST)
