"""`SharedPlans`: makes the plans of a generation, one object for all ranks with the same plan.

A node is sent such a plan once, for all its ranks. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from outlast.model.messages import Regroup


class SharedPlans:
    """Make the plans of one generation. Equal plans are one object.

        plans = SharedPlans("private", "then", generation=7, step=41, ...)
        plan = plans.of("keep", "in_place")

    own      the names of the fields in which plans differ, in the order of the arguments of `of`
    common   the values of all other fields
    """

    def __init__(self, *own: str, **common: Any) -> None:
        self._own = own
        self._common = common
        self._made: dict[tuple[object, ...], Regroup] = {}

    def of(self, *values: object) -> Regroup:
        """Return the plan whose own fields have these values."""
        plan = self._made.get(values)
        if plan is None:
            own: dict[str, Any] = dict(zip(self._own, values, strict=True))
            plan = self._made[values] = Regroup(**self._common, **own)
        return plan


def with_store(plans: Iterable[Regroup], *, host: str, port: int) -> dict[int, Regroup]:
    """Return, by the id of each plan, the plan that replaces it once the store is there.

    Members that share a plan go on sharing one.
    """
    return {
        id(plan): replace(plan, store_host=host, store_port=port)
        for plan in {id(plan): plan for plan in plans}.values()
    }
