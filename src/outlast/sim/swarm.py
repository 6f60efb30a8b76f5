"""Count the results of many simulated runs: which faults struck, and how the runs went on.

The sizes of the runs are counted too, and the faults that struck during a recovery.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any


class Tally:
    """Count simulated runs. Each is given as `SimulatedRun.as_dict` returns it.

    `bad` holds the seeds whose result is not "ok". `as_dict` returns the smallest first.
    """

    def __init__(self) -> None:
        self.seeds = self.counted = self.events = 0
        self.bad: list[int] = []
        self._overlapping = 0
        self._sim_s = 0.0
        self._not_fired = 0
        # subject -> the number of each kind
        self._counts: dict[str, Counter[str]] = {
            name: Counter() for name in ("results", "ends", "faults", "rungs", "marks")
        }
        self._shapes: dict[str, Counter[str]] = {
            name: Counter() for name in ("way", "ranks", "spares", "spare_kind")
        }

    def add(self, run: Mapping[str, Any]) -> None:
        self.seeds += 1
        self.counted += run["counts"]
        self.events += run["events"]
        self._sim_s += run["sim_s"]
        self._counts["results"][run["result"]] += 1
        self._counts["ends"][run["end"] or "none"] += 1
        self._overlapping += any(fault["in_recovery"] for fault in run["faults"])
        for fault in run["faults"]:
            if fault["fired"]:
                self._counts["faults"][fault["kind"]] += 1
            else:
                self._not_fired += 1
        self._counts["rungs"].update(run["rungs"])
        self._counts["marks"].update(run["marks"])
        for name, counter in self._shapes.items():
            counter[str(run["options"][name])] += 1
        if run["result"] != "ok":
            self.bad.append(run["seed"])

    @property
    def result(self) -> str:
        return (
            "bad"
            if self._counts["results"]["bad"]
            else "unknown"
            if self._counts["results"]["unknown"] or not self.seeds
            else "ok"
        )

    @property
    def overlap(self) -> float:
        """Return the share of seeds in which a fault struck during the recovery from another."""
        return self._overlapping / self.seeds if self.seeds else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "counted": self.counted,
            "result": self.result,
            "results": _sorted(self._counts["results"]),
            "bad": sorted(self.bad),
            "overlap": round(self.overlap, 4),
            "ends": _sorted(self._counts["ends"]),
            "faults": _sorted(self._counts["faults"]) | {"not fired": self._not_fired},
            "rungs": _sorted(self._counts["rungs"]),
            "marks": _sorted(self._counts["marks"]),
            **{name: _sorted(counter) for name, counter in self._shapes.items()},
            "events": self.events,
            "sim_s": round(self._sim_s, 3),
        }


def _sorted(counter: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counter.items(), key=lambda item: (-item[1], item[0])))
