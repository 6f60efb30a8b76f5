"""Dumps of gloo's flight recorder, as small as a diagnosis needs them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def all_reduce(
    seq: int,
    *,
    done: bool,
    at_ns: int,
    number: int | None = None,
    group: tuple[int, str] = (0, "default_pg"),
    size: int = 7,
    timeout_ms: int = 1_800_000,
) -> dict[str, Any]:
    """Return the record of one all-reduce.

    number   of the record in its dump; None: that of the collective
    group    index and name of the process group
    size     how many elements are reduced
    """
    record = seq if number is None else number
    return {
        "collective_seq_id": seq,
        "process_group": [str(group[0]), group[1]],
        "profiling_name": "gloo:all_reduce",
        "record_id": record,
        "op_id": record,
        "p2p_seq_id": 0,
        "pg_id": group[0],
        "is_p2p": False,
        "state": "scheduled",
        "retired": done,
        "time_created_ns": at_ns,
        "input_sizes": [[size]],
        "output_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "timeout_ms": timeout_ms,
    }


def dump_of(entries: Iterable[dict[str, Any]]) -> str:
    """Return the text of a dump with these records."""
    whole = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": list(entries)}
    return json.dumps(whole)
