"""The plans of a generation.

Ranks that go the same way share one plan, so that a node is sent it once. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from outlast.model.messages import Regroup


class SharedPlans:
    """The plans of one generation.

    `common`: what all of them say; `own`: the fields in which they differ.
    """

    def __init__(self, *own: str, **common: Any) -> None:
        self._own = own
        self._common = common
        self._made: dict[tuple[object, ...], Regroup] = {}

    def of(self, *values: object) -> Regroup:
        """Return the plan with these values of its own fields."""
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
