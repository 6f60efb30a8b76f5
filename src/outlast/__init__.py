"""outlast keeps a PyTorch training run going through the failures of its hardware.

In a training script:

    import outlast

    run = outlast.join()
    model = run.replicate(Net())
    state = run.state(model=model, optimizer=optimizer, loader=loader)
    for step in run.steps(state, until=1_000):
        with step:
            ...

Names are imported when they are first used, so that tools which need no torch start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.errors import (
        CapacityError,
        CorruptError,
        DivergedError,
        OutlastError,
        StateError,
        TransactionError,
        UsageError,
    )
    from outlast.runtime.evidence.api import diagnose
    from outlast.runtime.worker.communication.flight_recorder import record_collectives
    from outlast.runtime.worker.data.sampler import StepSampler
    from outlast.runtime.worker.member.ticks import tick
    from outlast.runtime.worker.run import Run, join, main
    from outlast.runtime.worker.run_state.digest import digest
    from outlast.runtime.worker.run_state.state import State
    from outlast.runtime.worker.saving.saved_weights import load
    from outlast.runtime.worker.steps.step import Step

_HOMES = {
    "join": "outlast.runtime.worker.run",
    "main": "outlast.runtime.worker.run",
    "Run": "outlast.runtime.worker.run",
    "Step": "outlast.runtime.worker.steps.step",
    "State": "outlast.runtime.worker.run_state.state",
    "StepSampler": "outlast.runtime.worker.data.sampler",
    "digest": "outlast.runtime.worker.run_state.digest",
    "tick": "outlast.runtime.worker.member.ticks",
    "load": "outlast.runtime.worker.saving.saved_weights",
    "diagnose": "outlast.runtime.evidence.api",
    "record_collectives": "outlast.runtime.worker.communication.flight_recorder",
    **dict.fromkeys(
        (
            "OutlastError",
            "UsageError",
            "TransactionError",
            "StateError",
            "CapacityError",
            "CorruptError",
            "DivergedError",
        ),
        "outlast.errors",
    ),
}

__all__ = [
    "CapacityError",
    "CorruptError",
    "DivergedError",
    "OutlastError",
    "Run",
    "State",
    "StateError",
    "Step",
    "StepSampler",
    "TransactionError",
    "UsageError",
    "__version__",
    "diagnose",
    "digest",
    "join",
    "load",
    "main",
    "record_collectives",
    "tick",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("outlast")
    if name == "checkpoint":  # a module of its own, which needs torch
        return importlib.import_module("outlast.checkpoint")
    if name not in _HOMES:
        raise AttributeError(f"module 'outlast' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
