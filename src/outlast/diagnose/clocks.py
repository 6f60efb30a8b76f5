"""Put the times of all findings on one clock.

Times of hosts whose clocks are wrong are corrected by the collectives that their ranks entered
together (`collectives/skew.py`). A finding has the clock of its rank, or else that of its node, as
far as other findings tell which ranks are there. The median clock is taken to be right. Differences
below APART_S are left alone. A rank may usually come that much later, and no order is read from so
little (`LATER_THAN_S`).

Not seen: a host's clock that was set in the middle of the job, and logs that name the wrong time
zone.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median_low

from outlast.diagnose.collectives.blame import named
from outlast.diagnose.findings import Finding

APART_S = 2.0


def on_one_clock(
    findings: Sequence[Finding], offsets: Mapping[int, float], *, about: Sequence[Finding] = ()
) -> list[Finding]:
    """Return the same findings in the same order, with corrected times.

    The `offsets` are the seconds by which each rank's clock is ahead of that of some rank. Findings
    in `about` may also tell on which nodes the ranks are.
    """
    ahead = wrong_clocks(offsets)
    if not ahead:
        return list(findings)
    nodes = _of_nodes([*findings, *about], offsets, ahead)

    def set_right(one: Finding) -> Finding:
        if one.at_s is None or (one.rank not in offsets and one.node not in nodes):
            return one
        return replace(
            one,
            at_s=one.at_s
            - (
                ahead.get(one.rank, 0.0)
                if one.rank is not None and one.rank in offsets
                else nodes[one.node or ""]
            ),
        )

    return [set_right(one) for one in findings]


def wrong_clocks(offsets: Mapping[int, float]) -> dict[int, float]:
    """Return by how many seconds the clocks of ranks are ahead, for those that are wrong."""
    if not offsets:
        return {}
    middle = median_low(offsets.values())
    return {
        rank: offset - middle for rank, offset in offsets.items() if abs(offset - middle) > APART_S
    }


def note_of(offsets: Mapping[int, float]) -> str:
    """Return a sentence about what was corrected; "" if nothing was."""
    ahead = wrong_clocks(offsets)
    if not ahead:
        return ""
    least, most = min(ahead.values()), max(ahead.values())
    by = (
        f"{_seconds(least)}" if most - least < APART_S else f"{_seconds(least)} to {_seconds(most)}"
    )
    verb = "clock of {} is" if len(ahead) == 1 else "clocks of {} are"
    return (
        f"by the collectives that ranks entered together the {verb.format(named(ahead))} off by"
        f" {by}; times were set right by that"
    )


def _seconds(value: float) -> str:
    return f"{value:+,.0f} s"


def _of_nodes(
    findings: Sequence[Finding], offsets: Mapping[int, float], ahead: Mapping[int, float]
) -> dict[str, float]:
    """Return the offset of each node: the median of those of its ranks."""
    ranks: dict[str, set[int]] = defaultdict(set)
    for one in findings:
        if one.node and one.rank is not None and one.rank in offsets:
            ranks[one.node].add(one.rank)
    return {node: median_low(ahead.get(rank, 0.0) for rank in some) for node, some in ranks.items()}
