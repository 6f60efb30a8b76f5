"""`outlast diagnose --collect OUT`: gather evidence on this node, and list what is missing."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from outlast.app import words
from outlast.runtime.collect import Collected, collect
from outlast.runtime.collect.collector import lines_for_other_nodes


def collect_into(folder: str, *, pids: Sequence[int], job: str) -> int:
    """Collect, and print what to do next. Raises UsageError."""
    out = collect(
        Path(folder), pids=pids, job=job, on_step=lambda what: print(what, file=sys.stderr)
    )
    print("\n".join(_page(out)))
    return 0


def _page(out: Collected) -> list[str]:
    ranks = sorted({one.rank for one in out.processes if one.is_rank})
    shown = words.count(len(ranks), "rank")
    got = ", ".join(f"{what} ({count})" for what, count in out.got.items()) or "nothing"
    lines = [f"collected from {shown} into {out.folder}: {got}"]
    lines += [f"not there: {one}" for one in out.lacking]
    others = lines_for_other_nodes(out)
    if others:
        lines.append("this job has ranks on other nodes; collect there too:")
        lines += [f"  {one}" for one in others]
    return [*lines, "next:", f"  outlast diagnose {out.folder}"]
