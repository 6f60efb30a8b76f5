"""Headings that say whose lines follow: of which host, and of which rank.

    tail, head           ==> logs/node12/rank_3.log <==
    clush, dshbak        a line of a host's name, or of several (node[1-4]), between two rulers
    ansible              node12 | CHANGED | rc=0 >>
    a shell's prompt     root@node12:~# dmesg -T
    people, scripts      node: node12      === node12 ===      ### rank 3 ###
    kubectl              Node:  gpu-4/10.0.0.4, and nodeName in YAML and JSON

A heading holds until the next one. Between rulers and signs of equality people also write other
things ("=== epoch12 ==="), so there only a name that looks like that of a host counts.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs.prefixes import node_of_name, rank_of_name

NEEDLES = (
    b"==> ",
    b" <==",
    b"-----",
    b"=====",
    b"=== ",
    b"### ",
    b"--- ",
    b"*** ",
    b"node:",
    b"node :",
    b"node =",
    b"host:",
    b"hostname:",
    b"nodename",
    b"rc=0",
    b"changed",
    b"failed | ",
    b":~# ",
    b":~$ ",
    b" ~]#",
    b" ~]$",
)
HEADING_CHARACTERS = 320
FOLDED_MAX = 64  # hosts of one folded name
_NAME = r"[A-Za-z][\w.-]{0,80}"
_HOST = re.compile(
    r"(?:node|nid|host|compute|dgx|hgx|worker|server|srv|login|ip)[a-z._-]{0,20}\d[\w.-]{0,40}"
    r"|(?:gpu|gn|cn|vm|rack|pod)[a-z._-]{1,12}\d[\w.-]{0,40}|(?:gpu|gn|cn)\d{2,6}[\w.-]{0,40}"
    r"|[a-z]\d{1,4}[a-z]{0,2}-?\d{1,4}[a-z\d.-]{0,20}|n\d{1,5}",
    re.IGNORECASE,
)
_TAIL = re.compile(r"^==> {0,2}(\S.{0,280}?) {0,2}<==$")
_RULER = re.compile(r"^[-=]{5,120}$")
_PART = r"[A-Za-z][\w.-]{0,60}(?:\[[\d,-]{1,120}\])?[\w.-]{0,20}"
_FOLDED = re.compile(rf"^({_PART})(?: \(\d{{1,5}}\))?$")
_RANGE = re.compile(r"^([\w.-]{0,60})\[([\d,-]{1,120})\]([\w.-]{0,20})$")
_FIELD = re.compile(rf"^(?:node|host|hostname|node ?name) {{0,2}}[:=] ?({_NAME})$", re.IGNORECASE)
_FRAMED = re.compile(
    rf"^(?:[=#*>-]{{2,40}}) ?(?:(?:node|host|on|from) ?:? ?)?({_NAME}) ?([=#*<-]{{2,40}})?:?$",
    re.IGNORECASE,
)
_NO_NAMES = {"localhost", "none", "null", "true", "false", "auto", "any", "all", "unknown"}
_FRAMED_RANK = re.compile(
    r"^[=#*>-]{2,40} ?(?:global ?)?rank ?[_:=#]? ?(\d{1,6}) ?(?:[=#*<-]{2,40})?:?$", re.IGNORECASE
)
_PROMPT = re.compile(
    rf"^(?:\([\w.-]{{1,40}}\) )?\[?[a-z_][\w.-]{{0,30}}@({_NAME})(?::| )[^\s$#]{{0,120}}\]?[$#] "
)
_ANSIBLE = re.compile(rf"^({_NAME}) \| (?:CHANGED|SUCCESS|FAILED)!? (?:\| rc=\d|=> )")
_POD_NODE = re.compile(
    r"^(?:Node: {3,20}([A-Za-z0-9][\w.-]{0,80})/[\d.:a-f]{3,40}"
    r"|\s{1,16}\"?nodeName\"?: \"?([A-Za-z0-9][\w.-]{0,80})\"?,?)$"
)


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading says whose lines follow. None: it does not say."""

    node: str | None = None
    rank: int | None = None


def read_heading(text: str, above: Sequence[str]) -> Heading | None:
    """Return what a line says of those that follow, or None if it is not a heading.

    `above` are the two lines before it.
    """
    if len(text) > HEADING_CHARACTERS:
        return None
    if pod := _POD_NODE.match(text):
        return Heading(pod[1] or pod[2])
    if tail := _TAIL.match(text):
        return _of_file(tail[1])
    if _RULER.match(text):
        framed = len(above) > 1 and _RULER.match(above[-2]) and _FOLDED.match(above[-1])
        return Heading(framed[1]) if framed and _is_host(framed[1]) else None
    if rank := _FRAMED_RANK.match(text):
        return Heading(rank=int(rank[1]))
    if named := _FIELD.match(text) or _PROMPT.match(text) or _ANSIBLE.match(text):
        return None if named[1].lower() in _NO_NAMES else Heading(named[1])
    framed = _FRAMED.match(text)
    # "--node1" may be an option of a command
    is_heading = framed is not None and (framed[2] is not None or not text.startswith("-"))
    return Heading(framed[1]) if framed and is_heading and _is_host(framed[1]) else None


def _of_file(path: str) -> Heading:
    parts = path.split("/")
    stem = re.sub(r"(?:\.(?:log|txt|out|err|gz))+$", "", parts[-1])
    hosts = (one for one in (stem, *reversed(parts[:-1])) if _HOST.fullmatch(one))
    return Heading(node_of_name(path) or next(hosts, None), rank_of_name(path))


def _is_host(name: str) -> bool:
    folded = _RANGE.match(name)
    return _HOST.fullmatch(f"{folded[1]}1{folded[3]}" if folded else name) is not None


def with_single_nodes(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings; one of several hosts, which a tool printed once, is yielded for each."""
    for one in findings:
        for node in _unfolded(one.node) if one.node and "[" in one.node else (one.node,):
            yield one if node == one.node else replace(one, node=node)


def _unfolded(name: str) -> list[str]:
    """Return "node1", "node3" and "node4" for "node[1,3-4]"."""
    folded = _RANGE.match(name)
    if folded is None:
        return [name]
    found: list[str] = []
    for part in folded[2].split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            return [name]
        numbers = range(int(first), min(int(last or first) + 1, int(first) + FOLDED_MAX))
        found += [f"{folded[1]}{number:0{len(first)}d}{folded[3]}" for number in numbers]
    return found[:FOLDED_MAX]
