"""What a container's runtime or a cluster's tool packs around each line of a log.

    Kubernetes (CRI)     2026-11-24T02:41:09.1Z stderr F text
    kubectl --prefix     [pod/NAME/CONTAINER] text; with --timestamps a time stands before the text
    kubectl --timestamps 2026-11-24T02:41:09.1Z text
    docker compose       trainer-1  | text
    stern, kail          NAME CONTAINER text; NAMESPACE/NAME[CONTAINER]: text; of more than one
                         namespace, stern's line begins with it
    logcli query         2026-11-24T02:41:09Z {container="trainer", pod="NAME"} text
    aws logs tail        2026-11-24T02:41:09.100000+00:00 GROUP/STREAM text
    torchx log           trainer/0 text
    records of JSON      `json_lines.py`

The rules are about what programs write, so such lines are opened before any rule looks at them.
The pod or container is the node of its lines, and lines of two writers are read apart, even if they
stand in one file in turns.

A block of lines is opened in one way, if most of it looks like that. Lines that do not are left as
they are.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from outlast.diagnose.logs.json_lines import Inner, open_record
from outlast.diagnose.logs.prefixes import time_of

Opener = Callable[[bytes], list[Inner] | None]

LOOKED_AT = 64  # lines of a block
SHARE_OF_RECORDS, SHARE_OF_LINES = 0.6, 0.85
WRITERS_MAX = 64  # in those lines
_STAMP = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)"
_COLOUR = rb"(?:\x1b\[[\d;]{0,12}m)?"
_CRI = re.compile(rb"(?P<time>" + _STAMP + rb") std(?:out|err) (?P<part>[FP])(?: (?P<text>.*)|$)")
_KUBECTL = re.compile(
    _COLOUR
    + rb"\[pod/(?P<pod>[\w.-]{1,253})/(?P<container>[\w.-]{1,63})\]"
    + _COLOUR
    + rb"(?: (?:(?P<time>"
    + _STAMP
    + rb")(?: |$))?(?P<text>.*)|$)"
)
_STAMPED = re.compile(
    rb"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z)(?: (?P<text>.*)|$)"
)
_SYSLOG = re.compile(rb"[\w.-]{1,80} [\w./@-]{1,60}(?:\[\d{1,9}\])?: |\[?[A-Z]{4,8}\]?\b")
_COMPOSE = re.compile(
    _COLOUR
    + rb"(?P<container>[A-Za-z0-9][\w.-]{0,80}) {1,40}\|"
    + _COLOUR
    + rb" ?"
    + _COLOUR
    + rb"(?:(?P<time>"
    + _STAMP
    + rb")(?: |$))?(?P<text>.*)"
)
_STERN = re.compile(
    _COLOUR
    + rb"(?P<pod>[a-z0-9][a-z0-9.-]{2,251}[a-z0-9])"
    + _COLOUR
    + rb" "
    + _COLOUR
    + rb"(?P<container>[a-z][a-z0-9-]{0,61}[a-z0-9])"
    + _COLOUR
    + rb"(?: (?:(?P<time>"
    + _STAMP
    + rb")(?: |$))?(?P<text>.*)|$)"
)
_KAIL = re.compile(
    rb"(?P<namespace>[a-z0-9-]{1,63})/(?P<pod>[a-z0-9][a-z0-9.-]{1,252})"
    rb"\[(?P<container>[\w.-]{1,63})\]:(?: (?P<text>.*)|$)"
)
_STERN_OF_ALL = re.compile(
    rb"(?:" + _COLOUR + rb"[a-z0-9-]{1,63}" + _COLOUR + rb" )" + _STERN.pattern
)
_LABEL = rb'[a-z_]\w{0,60}="[^"\n]{0,253}"'
_LOGCLI = re.compile(
    _COLOUR
    + rb"(?P<time>"
    + _STAMP
    + rb")"
    + _COLOUR
    + rb" "
    + _COLOUR
    + rb"\{(?P<labels>(?:"
    + _LABEL
    + rb"(?:, ?)?){0,40})\}"
    + _COLOUR
    + rb" (?P<text>.*)"
)
_LABELS = re.compile(r'\b(pod|container|pod_name|container_name)="([\w./-]{1,253})"')
_AWS_TAIL = re.compile(
    rb"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00)"
    rb" (?P<container>[\w.#@-]{1,250}/[\w./#@-]{1,250})(?: (?P<text>.*)|$)"
)
_TORCHX = re.compile(
    _COLOUR + rb"(?P<container>[a-z][\w-]{0,60}/\d{1,5})" + _COLOUR + rb" (?P<text>.*)"
)
_NUMBERED = re.compile(r".{0,80}[-_]\d{1,5}")  # as compose calls a service's containers
_GENERATED = re.compile(r"[a-z0-9.-]{1,240}-(?:\d{1,5}|[a-z0-9]{5})")  # as Kubernetes calls pods
_POD_FILE = re.compile(
    r"(?:^|/)containers/(?P<pod>[a-z0-9][a-z0-9.-]{1,252})_[a-z0-9-]{1,63}"
    r"_[\w.-]{1,63}-[0-9a-f]{64}\.log"
    r"|(?:^|/)[a-z0-9-]{1,63}_(?P<of_folder>[a-z0-9][a-z0-9.-]{1,252})_[\w-]{1,40}"
    r"/[\w.-]{1,63}/\d{1,5}\.log"
)
_DOCKER_FILE = re.compile(r"(?:^|/)(?P<id>[0-9a-f]{12})[0-9a-f]{52}-json\.log")


def opener_of(lines: Sequence[bytes], name: str) -> Opener | None:
    """Return what opens the lines of this block; None if they are plain.

    `name` is that of the file, which may name the pod or container.
    """
    written = [line for line in lines[: LOOKED_AT * 64] if line.strip()]
    some = written[:: max(1, len(written) // LOOKED_AT)][:LOOKED_AT]
    if not some:
        return None
    if sum(line.lstrip()[:1] == b"{" for line in some) >= SHARE_OF_RECORDS * len(some):
        opened = sum(open_record(line) is not None for line in some)
        if opened >= SHARE_OF_RECORDS * len(some):
            return lambda line: _with_name(open_record(line), name)
        return None
    bare = [line.rstrip(b"\r\n") for line in some]
    for pattern, is_right in _PATTERNS:
        found = _matches(pattern, bare)
        if found and is_right(found):
            return lambda line: _with_name(_inner(pattern, line), name)
    return None


def _matches(pattern: re.Pattern[bytes], lines: Sequence[bytes]) -> list[re.Match[bytes]]:
    """Return the matches of the lines; empty as soon as too few of them can match."""
    may_differ = len(lines) - SHARE_OF_LINES * len(lines)
    found = []
    for line in lines:
        if match := pattern.match(line):
            found.append(match)
        elif (may_differ := may_differ - 1) < 0:
            return []
    return found


def _inner(pattern: re.Pattern[bytes], line: bytes) -> list[Inner] | None:
    found = pattern.match(line.rstrip(b"\r\n"))
    if found is None:
        return None
    groups = found.groupdict()
    pod, container = _said(groups, "pod"), _said(groups, "container")
    if labels := _said(groups, "labels"):
        named = dict(_LABELS.findall(labels))
        pod = named.get("pod") or named.get("pod_name")
        container = named.get("container") or named.get("container_name")
    stamp = _said(groups, "time")
    return [
        Inner(
            groups["text"] or b"",
            "/".join(filter(None, (pod, container))),
            pod or container,
            pod is not None,
            at_s=None if stamp is None else time_of(stamp),
            is_part=groups.get("part") == b"P",
        )
    ]


def _said(groups: dict[str, bytes | None], key: str) -> str | None:
    one = groups.get(key)
    return None if one is None else one.decode("utf-8", "replace")


def _with_name(inner: list[Inner] | None, name: str) -> list[Inner] | None:
    """Return the lines, and of a container's own file from where they are."""
    if not inner or inner[0].node is not None:
        return inner
    pod, container = _POD_FILE.search(name), _DOCKER_FILE.search(name)
    node = (pod["pod"] or pod["of_folder"]) if pod else container["id"] if container else None
    if node is None:
        return inner
    return [
        Inner(one.text, one.writer, node, pod is not None, one.host, one.at_s, one.is_part)
        for one in inner
    ]


# --- what looks alike -----------------------------------------------------------------------------

Found = Sequence[re.Match[bytes]]


def _always(found: Found) -> bool:
    return True


def _is_no_syslog(found: Found) -> bool:
    """Return False for lines of syslog, and of programs that log a level after the time."""
    texts = [one["text"] or b"" for one in found]
    return sum(_SYSLOG.match(text) is not None for text in texts) < 0.5 * len(texts)


def _are_containers(found: Found) -> bool:
    """Return False for columns of a table."""
    names = {one["container"].decode("utf-8", "replace") for one in found}
    return len(names) <= WRITERS_MAX and any(map(_NUMBERED.fullmatch, names))


def _are_pods(found: Found) -> bool:
    """Return False for sentences whose first words look like names."""
    pods = {one["pod"].decode("utf-8", "replace") for one in found}
    containers = {one["container"] for one in found}
    few = len(pods) <= WRITERS_MAX and len(containers) <= max(4, len(found) // 8)
    return few and all(map(_GENERATED.fullmatch, pods))


_PATTERNS: tuple[tuple[re.Pattern[bytes], Callable[[Found], bool]], ...] = (
    (_CRI, _always),
    (_KUBECTL, _always),
    (_LOGCLI, _always),
    (_AWS_TAIL, _is_no_syslog),
    (_STAMPED, _is_no_syslog),
    (_KAIL, _always),
    (_COMPOSE, _are_containers),
    (_TORCHX, _always),
    (_STERN, _are_pods),
    (_STERN_OF_ALL, _are_pods),
)
