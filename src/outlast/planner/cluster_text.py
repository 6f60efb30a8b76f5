"""Write cluster files, each input with its source.

A written file is read back as the same values. Stated defaults are written as comments, so that a
reader sees which assumptions the file makes.

This module is pure: data in, text out.
"""

from __future__ import annotations

import json
from collections import Counter

from outlast.planner.cluster_file import SCHEMA, Cluster, Input, Origin
from outlast.planner.schema import LISTS, TABLES


def render(cluster: Cluster) -> str:
    """Return TOML that `cluster_file.parse` reads as this cluster, with stated defaults as
    comments.
    """
    lines = [f"schema = {SCHEMA}", f"name = {json.dumps(cluster.name, ensure_ascii=False)}"]
    lines += [f"about = {json.dumps(cluster.about, ensure_ascii=False)}"] if cluster.about else []
    for table in TABLES:
        lines += _table(
            f"[{table}]",
            [
                cluster.inputs[f"{table}.{key}"]
                for key in TABLES[table]
                if f"{table}.{key}" in cluster.inputs
            ],
        )
    for table, names in (("failure", cluster.failures), ("tier", cluster.tiers)):
        for name in names:
            paths = [f"{table}.{name}.{key}" for key in LISTS[table]]
            given = [cluster.inputs[path] for path in paths if path in cluster.inputs]
            lines += _table(f"[[{table}]]", given, name=name)
    return "\n".join(lines) + "\n"


def _table(head: str, inputs: list[Input], *, name: str = "") -> list[str]:
    said = [one for one in inputs if one.origin is not Origin.DEFAULT or (name and _needed(one))]
    lines = ["", head, *([f"name = {json.dumps(name)}"] if name else [])]
    lines += [f"{_key(one)} = {one.reader.say(one.value)}" for one in said]
    lines += [
        f"# {_key(one)} = {one.reader.say(one.value)}  # {one.source}"
        for one in inputs
        if one not in said
    ]
    usual = Counter(one.source for one in said).most_common(1)
    lines += [f"source = {_quoted(usual[0][0])}"] if usual else []
    lines += _inline(
        "sources", [(_key(one), _quoted(one.source)) for one in said if one.source != usual[0][0]]
    )
    ranges = [
        (_key(one), f"[{one.reader.say(one.range[0])}, {one.reader.say(one.range[1])}]")
        for one in said
        if one.range is not None
    ]
    return lines + _inline("ranges", ranges) if said or name else ["", f"# {head}", *lines[2:]]


def _needed(one: Input) -> bool:
    """Return True for a default without which a table of a list could not be read back."""
    return _key(one) in ("mttf", "count", "exposure", "bandwidth", "survives", "stall", "write")


def _inline(key: str, pairs: list[tuple[str, str]]) -> list[str]:
    return (
        [f"{key} = {{ {', '.join(f'{name} = {value}' for name, value in pairs)} }}"]
        if pairs
        else []
    )


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(one: Input) -> str:
    return one.path.rpartition(".")[2]
