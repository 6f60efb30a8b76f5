"""Exports of logs that hold one record over many lines.

    gcloud logging read          documents of YAML, one a record, after lines of `---`
    ... --format json, Grafana   an array of objects, each over many lines
    aws logs filter-log-events   such an array, in an object
    kubectl get ... -o json      the same: each pod, node or event of the list is a record
    jq '.[]', stern -o ppextjson objects one after the other, each over many lines

Each record becomes one line of JSON, which `json_lines.py` opens. Everything else stays as it is: a
file of settings in YAML for example. Exports that stand on one long line, and answers of services,
are read by `log_answers.py`.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from outlast.diagnose.logs.yaml_records import read_mapping

RECORD_BYTES = 256 << 10
_ARRAY = re.compile(rb'\s{0,8}\[\s{0,8}$|\s{0,8}"\w{1,40}": \[\s{0,8}$')
_ITEMS = b'"items": ['
HEAD_LINES = 4  # of a list of Kubernetes, before its items
DEPTH_MAX = 12
_BULK = frozenset(
    [
        "managedFields",
        "annotations",
        "labels",
        "ownerReferences",
        "affinity",
        "tolerations",
        "env",
        "envFrom",
        "volumes",
        "volumeMounts",
        "image",
        "imageID",
        "images",
    ]
)
_OF_GOOGLE = (b"textPayload:", b"jsonPayload:")

Numbered = tuple[int, bytes]


def records_of(first: Sequence[bytes], numbered: Iterator[Numbered]) -> Iterator[Numbered]:
    """Return the lines with each record as one of them. `first` are the first two lines."""
    heads = [line.rstrip() for line in first]
    if heads and heads[0] == b"---":
        return _documents(numbered)
    if any(map(_ARRAY.match, heads)):
        return _objects(numbered, is_array=True)
    if len(heads) > 1 and heads[0] == b"{" and heads[1].startswith((b'  "', b'    "', b'\t"')):
        return _objects(numbered, is_array=False)
    return numbered


def _objects(numbered: Iterator[Numbered], *, is_array: bool) -> Iterator[Numbered]:
    """Yield each object of many lines as one line; lines outside of objects as they are."""
    held: list[bytes] = []
    first = size = indent = 0
    for number, line in numbered:
        body = line.strip()
        depth = len(line) - len(line.lstrip(b" \t"))
        if body == _ITEMS and len(held) in range(1, HEAD_LINES):
            held, is_array = [], True  # what is left of the list itself tells nothing
            continue
        if not held and body == b"{" and (depth > 0) == is_array:
            held, first, size, indent = [line], number, 0, depth
        elif held:
            held.append(line)
            size += len(line)
            if (depth == indent and body in (b"}", b"},")) or size > RECORD_BYTES:
                yield first, _short(b"".join(held).strip().rstrip(b","))
                held = []
        elif not (is_array and body in (b"[", b"]")):  # of an array of one record, two of 3 lines
            yield number, line
    if held:
        yield first, b"".join(held)


def _short(record: bytes) -> bytes:
    """Return an object of Kubernetes without what is long and tells nothing of a failure."""
    if b'"metadata"' not in record or b'"kind"' not in record:
        return record
    try:
        found = json.loads(record)
    except ValueError:
        return record
    return json.dumps(_without_bulk(found)).encode()


def _without_bulk(value: Any, depth: int = 0) -> Any:
    if depth > DEPTH_MAX:
        return None
    if isinstance(value, dict):
        return {
            key: _without_bulk(inner, depth + 1) for key, inner in value.items() if key not in _BULK
        }
    return [_without_bulk(one, depth + 1) for one in value] if isinstance(value, list) else value


def _documents(numbered: Iterator[Numbered]) -> Iterator[Numbered]:
    held: list[Numbered] = []
    size = 0
    for number, line in numbered:
        if (line.rstrip() == b"---" or size > RECORD_BYTES) and held:
            yield from _document(held)
            held, size = [], 0
        held.append((number, line))
        size += len(line)
    yield from _document(held)


def _document(held: list[Numbered]) -> list[Numbered]:
    if not any(line.startswith(_OF_GOOGLE) for _, line in held):
        return held  # another document, such as a manifest of Kubernetes
    texts = [line.decode("utf-8", "replace").rstrip("\r\n") for _, line in held]
    record = read_mapping(texts[texts[0].rstrip() == "---" :])
    return [(held[0][0], json.dumps(record).encode())]
