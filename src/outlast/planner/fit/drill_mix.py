"""Write a plan for `outlast drill` with the mix of failures that was observed.

Each class strikes as often as it was seen, by the kinds of faults that stand for it on one host. If
Llama 3's table has the class, its kinds are taken from there.

Limits   Kinds that only whole hosts have are not in it. Waves are not either: add `waves`.

This module is pure: data in, text out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from outlast.errors import UsageError
from outlast.model.drills.drill_faults import LLAMA3
from outlast.model.terms import FailureClass
from outlast.planner.fit.observed import Observed

PACE_S = 8.0  # of the drill, for each fault: most recoveries take less
COUNT_MOST = 466  # faults of a drill, as in the plan llama3: about an hour
C = FailureClass
_KINDS: Mapping[FailureClass, Mapping[str, float]] = {
    **{one.stands_for: one.kinds for one in LLAMA3},
    # a process that was killed from outside has no other class in a ledger; some hang
    C.UNKNOWN: {"kill": 3, "hang": 1},
    C.NVLINK: {"abort": 1, "hang": 1},
    C.STORAGE: {"io": 1},
    C.HOST_MEMORY: {"kill": 1},
    C.GPU_OOM: {"raise": 1},
    C.STRAGGLER: {"slow": 1},
    C.USER_CODE: {"raise": 2, "shape": 1},
    C.USER_DATA: {"nan": 1, "uneven": 1},
}


def drill_mix(records: Sequence[Observed]) -> str:
    """Return the plan. Raises UsageError if nothing has failed."""
    classes = Counter(failure.failure_class for one in records for failure in one.failures)
    seen = sum(classes.values())
    if not seen:
        raise UsageError(
            "nothing has failed yet, so there is no mix of failures to drill",
            hint="`outlast drill smoke` injects one fault of each kind",
        )
    count = min(seen, COUNT_MOST)
    over_s = sum(one.span_s for one in records) * count / seen
    scale = max(1.0, over_s / (count * PACE_S))
    lines = [
        f"# {seen} failures, as `outlast calibrate` has seen them:"
        f" {', '.join(f'{number} {one.value}' for one, number in classes.most_common())}.",
        f"# At this time scale {count} of them come in {over_s / scale:.0f} s.",
        "# `outlast drill FILE -- train.py`; docs/how-to/rehearse.md",
        "schema = 1",
        f"name = {json.dumps(', '.join(one.source for one in records))}",
        f"time_scale = {scale:.6g}",
        "",
        "[draw]",
        f"count = {count}",
        f"over_s = {over_s:.6g}",
        "",
        "[draw.kinds]  # weights",
        *(f"{name} = {weight:.4g}" for name, weight in _weights(classes).items()),
    ]
    return "\n".join(lines) + "\n"


def _weights(classes: Mapping[FailureClass, int]) -> dict[str, float]:
    """Return the weight of each kind, the largest first."""
    out: dict[str, float] = {}
    for one, number in classes.items():
        kinds = _KINDS.get(one, {"kill": 1.0})
        for name, weight in kinds.items():
            out[name] = out.get(name, 0.0) + number * weight / sum(kinds.values())
    return dict(sorted(out.items(), key=lambda pair: -pair[1]))
