"""When a process that could not be started is tried again, on a virtual clock."""

from __future__ import annotations

from outlast.engine.starting import FailedStart, LastReport, decide_start, retry_wait_s
from outlast.model import limits

ERROR = "fork: Resource temporarily unavailable"


def tries(*, any_started: bool, lasts_s: float) -> list[float]:
    """Return the times at which a process was tried whose start fails for `lasts_s`."""
    now_s, tried = 0.0, [0.0]
    while now_s < lasts_s:
        failed = FailedStart(len(tried), 0.0, any_started=any_started, error=ERROR)
        verdict = decide_start(failed, now_s=now_s)
        assert ERROR in verdict.reason
        if verdict.again_s is None:
            break
        now_s = verdict.again_s
        tried.append(now_s)
    return tried


def test_a_process_is_tried_again_until_the_limit_is_lifted() -> None:
    """Method: the limit is lifted after a minute. The process starts within the longest wait after
    that.
    """
    tried = tries(any_started=True, lasts_s=60.0)
    assert 60.0 <= tried[-1] <= 60.0 + limits.START_RETRY_MAX_S
    assert tried[1] == limits.START_RETRY_S


def test_a_process_that_never_starts_is_given_up_in_the_end() -> None:
    tried = tries(any_started=True, lasts_s=1e9)
    assert tried[-1] >= limits.START_GIVE_UP_S
    assert tried[-1] <= limits.START_GIVE_UP_S + limits.START_RETRY_MAX_S


def test_a_run_in_which_no_process_starts_ends_soon() -> None:
    """The installation or the machine is broken, so the run does not wait for half an hour."""
    tried = tries(any_started=False, lasts_s=1e9)
    assert len(tried) == limits.FIRST_STARTS_COUNT
    assert tried[-1] < 10.0


def test_the_wait_before_another_start_doubles_up_to_its_bound() -> None:
    waits = [retry_wait_s(failures) for failures in range(1, 12)]
    assert waits[:3] == [limits.START_RETRY_S * factor for factor in (1, 2, 4)]
    assert waits == sorted(waits)
    assert waits[-1] == limits.START_RETRY_MAX_S


def test_people_hear_of_a_new_failure_at_once_and_of_the_same_now_and_then() -> None:
    """This holds at the very beginning of the clock too."""
    last = LastReport()
    assert last.note_if_due("no memory", now_s=0.0)
    assert not last.note_if_due("no memory", now_s=limits.START_REPORT_S - 0.1)
    assert last.note_if_due("no threads", now_s=1.0)
    assert not last.note_if_due("no threads", now_s=1.0)
    assert last.note_if_due("no threads", now_s=1.0 + limits.START_REPORT_S)
