"""Spares do nothing for a script without outlast calls, and the run says so."""

from __future__ import annotations

import pytest

from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.coordinator.script_reports import SPARES_IDLE
from outlast.engine.protocol.outputs import Output, Tell
from outlast.model.messages import Hello, Progress, Registered, StoreUp, WorkerStarted


def told(*, spares: int, calls: bool, steps: tuple[int, ...]) -> list[str]:
    """Return what a run of two ranks tells people until agents have seen these steps."""
    coordinator = Coordinator(options=CoordinatorOptions(2, Restart(), spares=spares))
    outputs: list[Output] = coordinator.start(now_s=0.0)
    outputs += coordinator.on_message(StoreUp("127.0.0.1", 4000, 1), now_s=0.1)
    for worker in (1, 2):
        outputs += coordinator.on_message(WorkerStarted(worker, worker, "n", 0.2), now_s=0.2)
        outputs += coordinator.on_message(Hello(worker, worker), now_s=0.2)
        if calls:
            called = Registered(worker, 1, 0, "in_place", False, True, "")
            outputs += coordinator.on_message(called, now_s=0.3)
    for step in steps:
        outputs += coordinator.on_message(Progress(step, step, 0.1, 1.0), now_s=1.0)
    return [one.text for one in outputs if isinstance(one, Tell)]


def test_a_plain_script_that_trains_beside_spares_is_reported_once() -> None:
    assert told(spares=1, calls=False, steps=(1, 2, 3)) == [f"warning: {SPARES_IDLE}"]


@pytest.mark.parametrize(
    ("spares", "calls", "steps"),
    [
        pytest.param(0, False, (1, 2), id="no spares were asked for"),
        pytest.param(1, True, (1, 2), id="the script calls outlast"),
        pytest.param(1, False, (0,), id="the script may still come to its first call"),
    ],
)
def test_nothing_is_reported_where_spares_help_or_there_are_none(
    spares: int, calls: bool, steps: tuple[int, ...]
) -> None:
    assert told(spares=spares, calls=calls, steps=steps) == []
