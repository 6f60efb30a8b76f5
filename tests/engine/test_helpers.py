"""When a helper process is replaced, and which store takes over, on a virtual clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlast.engine.helpers import (
    HelperReading,
    HelperVerdict,
    HelperWatch,
    StandbyStore,
    decide_store,
)
from outlast.model import limits

WELL, STOPPED = HelperReading(stopped=False), HelperReading(stopped=True)


class DrivenWatch:
    """A watch over a helper process, whose clock moves by HELPER_LOOK_S with each look."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.watch = HelperWatch("the zygote 7", now_s=self.now_s)

    def look(
        self, reading: HelperReading = WELL, *, idle: bool = True, late_s: float = 0.0
    ) -> HelperVerdict:
        self.now_s += limits.HELPER_LOOK_S + late_s
        return self.watch.on_look(reading, now_s=self.now_s, may_ask=idle)

    def look_until_replaced(self, reading: HelperReading) -> tuple[float, str]:
        """Return how long the watch took to replace the helper, and the reason."""
        began_s = self.now_s
        while self.now_s < began_s + 100.0:
            verdict = self.look(reading)
            if verdict.replace:
                return self.now_s - began_s, verdict.reason
        raise AssertionError("it was never replaced")


def test_a_stopped_helper_is_replaced_within_half_a_second_or_so() -> None:
    took_s, reason = DrivenWatch().look_until_replaced(STOPPED)
    assert took_s <= limits.HELPER_STOPPED_S + 2 * limits.HELPER_LOOK_S
    assert reason == "the zygote 7 is stopped (SIGSTOP, or a debugger)"


def test_a_helper_that_is_stopped_for_a_moment_stays() -> None:
    """The count starts over each time the helper is seen running."""
    looked = DrivenWatch()
    for _ in range(20):
        for reading in (STOPPED, STOPPED, WELL):
            assert not looked.look(reading, idle=False).replace


def test_an_idle_helper_is_asked_and_replaced_when_it_stays_silent() -> None:
    looked = DrivenWatch()
    took_s, reason = looked.look_until_replaced(WELL)
    most_s = limits.HELPER_ASK_S + limits.HELPER_ANSWER_S + 3 * limits.HELPER_LOOK_S
    assert limits.HELPER_ANSWER_S < took_s <= most_s
    assert reason == f"the zygote 7 has not answered for {limits.HELPER_ANSWER_S:g} s"


def test_a_helper_that_answers_is_asked_once_a_second_and_stays() -> None:
    looked, asked = DrivenWatch(), 0
    for _ in range(100):
        verdict = looked.look()
        assert not verdict.replace
        if verdict.ask:
            asked += 1
            looked.watch.answered(now_s=looked.now_s)
    assert 8 <= asked <= 10


def test_a_busy_helper_is_not_asked() -> None:
    looked = DrivenWatch()
    assert not any(looked.look(idle=False).ask for _ in range(100))


def test_a_helper_without_a_processor_is_not_silent() -> None:
    """The helper has owed an answer for 20 s, and was ready to run all that time."""
    looked, asked_s = DrivenWatch(), 0.0
    for _ in range(200):
        starved_s = looked.now_s - asked_s if looked.watch.is_asked else 0.0
        verdict = looked.look(HelperReading(stopped=False, starved_s=starved_s))
        asked_s = looked.now_s if verdict.ask else asked_s
        assert not verdict.replace


@pytest.mark.parametrize("reading", [WELL, STOPPED])
def test_a_launcher_that_was_held_up_blames_no_helper(reading: HelperReading) -> None:
    """Method: a look comes 20 s late, while a question is unanswered and the helper was just seen
    stopped.
    """
    looked = DrivenWatch()
    while not looked.look().ask:
        pass
    assert not looked.look(reading).replace
    assert not looked.look(reading, late_s=20.0).replace


def test_the_ready_store_takes_over_or_says_why_it_does_not() -> None:
    ready = StandbyStore(is_up=True, is_stopped=False, fixed_port=False, plain=False)
    assert decide_store(ready).take_standby
    assert decide_store(replace(ready, fixed_port=True)).take_standby, "plans name the address"
    assert decide_store(replace(ready, plain=True)).take_standby
    for change, word in (
        ({"is_up": False}, "no store stands ready"),
        ({"is_stopped": True}, "is stopped"),
        ({"fixed_port": True, "plain": True}, "at the port that was asked for"),
    ):
        verdict = decide_store(replace(ready, **change))
        assert not verdict.take_standby
        assert word in verdict.reason
