"""`SharedPlans`: makes the plans of a generation, one object for all ranks with the same plan.

A node is sent such a plan once, for all its ranks. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from outlast.model.messages import PartSource, Regroup


class RankFields(NamedTuple):
    """The fields of a plan that differ from rank to rank. `Regroup` says what they mean.

    All but `high_water` say where the rank's private state comes from.
    """

    private: str
    checkpoint: str
    high_water: int
    twin: int = -1
    twin_source: str = ""
    sources: tuple[PartSource, ...] = ()
    refused: bool = False


class SharedPlans:
    """Make the plans of one generation. Equal plans are one object.

        plans = SharedPlans(generation=7, step=41, then="start", ...)
        plan = plans.of(RankFields("keep", "", 41), then="in_place")

    common   the values of the fields that plans share, unless `of` is given another value
    """

    def __init__(self, **common: Any) -> None:
        self._common = common
        self._made: dict[tuple[RankFields, tuple[tuple[str, object], ...]], Regroup] = {}

    def of(self, rank: RankFields, **own: Any) -> Regroup:
        """Return the plan with the fields of a rank, and with these values of other fields."""
        key = rank, tuple(own.items())
        plan = self._made.get(key)
        if plan is None:
            others = self._common | own
            plan = self._made[key] = Regroup(**rank._asdict(), **others)
        return plan


def with_store(plans: Iterable[Regroup], *, host: str, port: int) -> dict[int, Regroup]:
    """Return, by the id of each plan, the plan that replaces it once the store is there.

    Members that share a plan go on sharing one.
    """
    return {
        id(plan): replace(plan, store_host=host, store_port=port)
        for plan in {id(plan): plan for plan in plans}.values()
    }
