"""Log lines that a collector or a logging library packed into a record of JSON.

    Docker          {"log": "step 3\\n", "stream": "stderr", "time": "..."}
    Google Cloud    {"textPayload": "...", "resource": {"labels": {"pod_name": ...}}, ...}
                    its audit logs {"protoPayload": {"methodName": ..., "resourceName": ...}}
    journald        {"MESSAGE": "...", "_HOSTNAME": "...", "__REALTIME_TIMESTAMP": "..."}
    stern           {"message": "...", "podName": ..., "nodeName": ...}
    Loki, Grafana, Elastic, Fluent Bit, CloudWatch; the last may hold a record of Fluent Bit
    the program     {"event": "...", "level": "error", "exception": "Traceback ..."} of structlog,
                    loguru and the like; such a record may be within one of the others

A record of a program keeps what it says besides its message: after the message, as JSON. A line
of journald becomes what journalctl prints of it as text.

Not opened: numbers without a message, such as metrics.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs.prefixes import time_of
from outlast.model.texts import cut_at_word

MESSAGE_MAX_LINES = 5_000
_MESSAGES = ("message", "msg", "event", "text", "log")
_TRACEBACKS = ("exception", "exc_info", "exc_text", "traceback", "stack_trace", "stacktrace")
_TIMES = ("timestamp", "time", "@timestamp", "ts", "asctime", "date")
_RANKS = ("rank", "global_rank", "world_rank", "RANK")
_PARTS = ("_p", "logtag")
_ADDED = ("kubernetes", "agent", "ecs", "host", "container")  # by Filebeat and Elastic's agent
_LEVELS = ("level", "levelname", "severity")
_NOT_SAID_AGAIN = {*_MESSAGES, *_TRACEBACKS, *_TIMES, *_LEVELS, *_RANKS, "record"}
_REST_CHARACTERS = 400
_MACHINE = re.compile(r"/(?:instances|nodes|virtualMachines)/([\w.-]{1,80})")
_NAME = re.compile(r"[A-Za-z0-9_][\w.:@/ -]{0,252}", re.ASCII)
# a number that counts seconds, milliseconds, microseconds or nanoseconds since 1970
_COUNTED = re.compile(r"\d{10,19}", re.ASCII)
_UNITS = ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9))


@dataclass(frozen=True, slots=True)
class Inner:
    """A line as its program wrote it.

    writer   who of those that write into the file wrote it; "" if there is only one
    node     the pod or the container, or else the host; None if the file does not say
    is_pod   `node` is a pod of Kubernetes
    host     the machine, where the record tells it besides the pod
    at_s     Unix seconds; None if only the line itself tells its time
    is_part  the rest of the line comes with the writer's next one
    """

    text: bytes
    writer: str = ""
    node: str | None = None
    is_pod: bool = False
    host: str | None = None
    at_s: float | None = None
    is_part: bool = False


@dataclass(frozen=True, slots=True)
class OfPod(Finding):
    """Lines of a pod stand in the file. `host` is the machine it ran on, or ""."""

    host: str = ""


def open_record(line: bytes) -> list[Inner] | None:
    """Return the lines in a record; None if the line is not a record of a known kind."""
    found = _object(line)
    if found is None:
        return None
    if isinstance(source := found.get("_source"), dict):  # an export of Elastic or OpenSearch
        found = source
    if "MESSAGE" in found and ("_HOSTNAME" in found or "__REALTIME_TIMESTAMP" in found):
        return [_journal_line(found)]
    labels = _labels(found)
    payload: object = found
    if isinstance(found.get("log"), str) and ("stream" in found or "kubernetes" in found):
        payload = found["log"]
    elif isinstance(found.get("textPayload"), str):
        payload = found["textPayload"]
    elif isinstance(found.get("jsonPayload"), dict):
        payload = of_host = found["jsonPayload"]
        if "MESSAGE" in of_host:
            return [replace(_journal_line(of_host), at_s=_time_of_record(found))]
    elif isinstance(audit := found.get("protoPayload"), dict):
        return [_audit_line(found, audit)]
    elif isinstance(found.get("line"), str) and _has_labels(found):
        payload = found["line"]
    elif _is_of_collector(found) and isinstance(found.get("message"), str):
        payload = message = found["message"]
        if message.startswith("{") and '"kubernetes"' in message:
            return open_record(message.encode("utf-8", "replace"))
    is_part = isinstance(payload, str) and _is_part(found, payload)
    lines = list(_lines_of(payload))
    if not lines:
        return None
    at_s = _time_of_record(found)
    node = labels.pod or labels.container or labels.host
    packed = labels.pod or labels.container
    writer = (labels.pod, labels.container) if packed else (labels.host, labels.file)
    who = "/".join(filter(None, writer))
    return [
        Inner(text, who, node, labels.pod is not None, labels.host, at_s, is_part)
        for text in lines[:MESSAGE_MAX_LINES]
    ]


def _has_labels(found: Mapping[str, Any]) -> bool:
    return isinstance(found.get("labels"), dict) or isinstance(found.get("fields"), dict)


def _is_of_collector(found: Mapping[str, Any]) -> bool:
    """Return True for a record whose other keys the collector added, and not the program."""
    return (
        "logStreamName" in found
        or "ingestionTime" in found
        or ("podName" in found and "containerName" in found)
        or ("@timestamp" in found and any(isinstance(found.get(one), dict) for one in _ADDED))
    )


def _is_part(found: Mapping[str, Any], payload: str) -> bool:
    """Return True if the rest of the line comes with a later record.

    Fluent Bit says so where the runtime did. Docker ends each whole line, and then cuts long ones.
    """
    for key in _PARTS:
        if isinstance(said := found.get(key), str):
            return said == "P"
    return "stream" in found and "kubernetes" not in found and not payload.endswith("\n")


def _object(line: bytes | str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _lines_of(payload: object) -> Iterator[bytes]:
    if isinstance(payload, str):
        if payload.startswith("{") and (inner := _object(payload)) is not None:
            packed = list(_lines_of(inner))
            if packed:
                yield from packed
                return
        yield from (line.encode("utf-8", "replace") for line in payload.splitlines() or [""])
    elif isinstance(payload, dict):
        yield from (line.encode("utf-8", "replace") for line in _said_by_program(payload))


def _said_by_program(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the message and the traceback of a record that a program's logging library wrote."""
    message = _first_text(record, _MESSAGES)
    raised = _first_text(record, _TRACEBACKS)
    if message is None and raised is None:
        return
    first, _, others = (message or "").partition("\n")
    rank = next((record[key] for key in _RANKS if type(record.get(key)) is int), None)
    label = "" if rank is None or first.startswith("[rank") else f"[rank{rank}]: "
    level = _first_text(record, _LEVELS) or ""
    warning = "WARNING: " if level.lower().startswith("warn") else ""
    rest = {key: one for key, one in record.items() if key not in _NOT_SAID_AGAIN}
    said = (
        f" {cut_at_word(json.dumps(rest), _REST_CHARACTERS)}"
        if rest and message is not None
        else ""
    )
    # An exception's own line ends with its message, and so does one that a library parses.
    is_plain = "\n" in (message or "") or first.startswith(("  ", "Traceback"))
    yield f"{label}{warning}{first}{'' if is_plain else said}"
    for line in (*others.splitlines(), *(raised or "").splitlines()):
        yield f"{label}{line}"


def _first_text(record: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((one for key in keys if isinstance(one := record.get(key), str) and one), None)


# --- who wrote it, and when -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Labels:
    pod: str | None = None
    container: str | None = None
    host: str | None = None
    file: str | None = None  # that was followed, on a host without containers


def _labels(found: Mapping[str, Any]) -> _Labels:
    """Return what the collector says about who wrote the line."""
    resource = found.get("resource")
    of_resource = resource.get("labels") if isinstance(resource, dict) else None
    pod = container = host = file = None
    kept = (found.get(key) for key in ("kubernetes", "labels", "attrs", "fields"))
    for some in (of_resource, *kept):
        if not isinstance(some, dict):
            continue
        pod = pod or _name(some, "pod_name", "pod", "k8s-pod-name")
        container = container or _name(some, "container_name", "container", "tag", "instance_id")
        host = host or _name(
            some, "host", "node_name", "node", "compute.googleapis.com/resource_name"
        )
        file = file or _name(some, "filename")
    pod, host = pod or _name(found, "podName"), host or _name(found, "nodeName")
    if container is None:
        container = _name(found, "containerName")
    if pod is None and container is None:
        container = _name(found, "logStreamName", "container_name")
    if pod is None and container is None and _is_of_collector(found):  # Elastic's, of a host
        of_file = found.get("log")
        host = host or _name(found, "host")
        file = _path(of_file) if isinstance(of_file, dict) else file
    return _Labels(pod, container, host, file)


def _path(of_file: Mapping[str, Any]) -> str | None:
    path = of_file.get("file")
    return _name(path, "path") if isinstance(path, dict) else None


def _name(some: Mapping[str, Any], *keys: str) -> str | None:
    for key in keys:
        one = some.get(key)
        if isinstance(one, dict):  # {"pod": {"name": "..."}}
            one = one.get("name")
        if isinstance(one, str) and _NAME.fullmatch(one.lstrip("/")):
            return one.lstrip("/")
    return None


def _time_of_record(found: Mapping[str, Any]) -> float | None:
    for key in _TIMES:
        one = found.get(key)
        if isinstance(one, str) and (at_s := time_of(one)) is not None:
            return at_s
        if isinstance(one, str) and _COUNTED.fullmatch(one):
            one = int(one)
        if isinstance(one, (int, float)) and not isinstance(one, bool) and one > 1e9:
            return next((one / unit for below, unit in _UNITS if one < below), None)
    return None


def _audit_line(found: Mapping[str, Any], audit: Mapping[str, Any]) -> Inner:
    """Return what a cloud did to a machine, as a line of that machine."""
    status = audit.get("status")
    parts = (
        audit.get("methodName"),
        audit.get("resourceName"),
        status.get("message") if isinstance(status, dict) else None,
    )
    said = " ".join(" ".join(part.split()) for part in parts if isinstance(part, str))
    machine = _MACHINE.search(said)
    node = machine[1] if machine else None
    return Inner(said.encode("utf-8", "replace"), node or "", node, at_s=_time_of_record(found))


# --- journald -------------------------------------------------------------------------------------

_MICROSECONDS = re.compile(r"\d{16}")


def _journal_line(found: Mapping[str, Any]) -> Inner:
    """Return the line as journalctl prints it as text. Each host's lines are read apart."""
    message = found["MESSAGE"]
    if isinstance(message, list):  # so it writes what is no UTF-8
        text = bytes(one & 255 for one in message if isinstance(one, int)).decode(
            "utf-8", "replace"
        )
    else:
        text = str(message)
    stamp = str(found.get("__REALTIME_TIMESTAMP", ""))
    at = ""
    if _MICROSECONDS.fullmatch(stamp):
        moment = datetime.fromtimestamp(int(stamp) / 1e6, tz=timezone.utc)
        at = moment.isoformat(timespec="microseconds")
    host = _name(found, "_HOSTNAME", "_MACHINE_ID") or "localhost"
    name = _name(found, "SYSLOG_IDENTIFIER", "_COMM") or "kernel"
    pid = found.get("_PID") or found.get("SYSLOG_PID")
    process = f"[{pid}]" if isinstance(pid, str) and pid.isdigit() and name != "kernel" else ""
    said = f"{at} {host} {name}{process}: {' '.join(text.splitlines())}".strip()
    return Inner(said.encode("utf-8", "replace"), host, host)
