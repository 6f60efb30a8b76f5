"""The wait for the threads of gloo groups: there is none without groups, and it never lasts without
end.

`tests/drills/test_destroyed_group.py` shows what it is for.
"""

from __future__ import annotations

import pytest

from outlast.runtime.worker.script import run_loops


def test_a_process_without_gloo_groups_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def slept(_: float) -> None:
        raise AssertionError("it waited")

    monkeypatch.setattr(run_loops.time, "sleep", slept)
    monkeypatch.setattr(run_loops, "_states", list)
    run_loops.wait_until_quiet()


def test_a_loop_that_never_rests_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(run_loops.time, "sleep", slept.append)
    monkeypatch.setattr(run_loops, "_states", lambda: ["R", "S"])
    run_loops.wait_until_quiet()
    assert sum(slept) == pytest.approx(1.0)
