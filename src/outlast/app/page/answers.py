"""The six questions that a stranger has about a run, each with its answer.

Does it train? How fast? How much time is left? What failed last? Which part was at fault? What did
that cost?

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outlast.app import words
from outlast.app.page.failed import back_words, failed
from outlast.app.page.pace import PacePoint
from outlast.app.reports.status import OVER, logged_words
from outlast.app.words import Facts
from outlast.model.verdict import summary

QUIET_S = 15.0  # a launcher that has not written for this long may be gone; it writes each second
FAR_BEHIND = 20.0  # the answer says so if no step came for this many times the median step
GOOD, WATCH, BAD, PLAIN = "good", "watch", "bad", "plain"
_TONE = {
    "training": GOOD,
    "ending": GOOD,
    "ended": GOOD,
    "regrouping": WATCH,
    "stopped": WATCH,
    "failed": BAD,
    "lost": BAD,
}


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """One question, its answer in a few words, and a sentence that says more.

    tone          GOOD, WATCH, BAD or PLAIN
    interruption  the id of the interruption that it is about, or None
    """

    question: str
    answer: str
    note: str
    tone: str = PLAIN
    interruption: int | None = None


@dataclass(frozen=True, slots=True)
class PageMoment:
    """This says when the page was made, in the time of the run.

    heard_s  seconds since the launcher's last sign of life
    step_s   when the newest step was committed; None before the first
    """

    now_s: float
    heard_s: float
    step_s: float | None


def answers(
    report: Facts, status: Facts, points: Sequence[PacePoint], moment: PageMoment
) -> tuple[PageAnswer, ...]:
    """Return the six answers, and how old they are if a copy of the ledger was read."""
    newest = report["interruptions"][-1] if report["interruptions"] else None
    verdict = None
    if newest is not None:
        newest = _root(report["interruptions"], newest)
        verdict = next(
            (one for one in reversed(report["verdicts"]) if one["interruption"] == newest["id"]),
            None,
        )
    return (
        _is_it_training(report, status, moment),
        _how_fast(report, status, points),
        _how_long(report, status),
        _what_failed(report, newest, moment),
        _whose_fault(report, newest, verdict),
        _what_cost(report),
        *_how_old(report),
        *_what_is_missing(report),
    )


def _how_old(report: Facts) -> tuple[PageAnswer, ...]:
    copy = report["copy_of_ledger"]
    if not copy:
        return ()
    age = words.duration(copy["age_s"])
    return (PageAnswer("How old is this?", age, copy["note"], WATCH),)


def _what_is_missing(report: Facts) -> tuple[PageAnswer, ...]:
    if not report["damage"]:
        return ()
    return (PageAnswer("Is this all?", "no, some of it is missing", report["damage"], BAD),)


_MISSING = "Some interruptions are missing."


def _root(some: Sequence[Facts], one: Facts) -> Facts:
    """Return the interruption that this one is a part of."""
    by_id = {each["id"]: each for each in some}
    return by_id.get(one["parent"], one)


def _is_over(report: Facts) -> bool:
    return report["state"] in OVER


def _is_it_training(report: Facts, status: Facts, moment: PageMoment) -> PageAnswer:
    question, state = "Is it training?", report["state"]
    tone = _TONE.get(state, PLAIN)
    running = words.duration(report["wall_s"])
    if state == "training":
        if moment.heard_s > QUIET_S:
            note = f"The launcher has written nothing for {words.duration(moment.heard_s)}."
            return PageAnswer(question, "not known", note, WATCH)
        median_s = report["step_median_s"]
        late_s = moment.now_s - moment.step_s if moment.step_s is not None else 0.0
        if median_s and late_s > max(QUIET_S, FAR_BEHIND * median_s):
            note = f"A step takes {words.duration(median_s)}; the last one was"
            return PageAnswer(question, "no step", f"{note} {words.duration(late_s)} ago.", WATCH)
        note = f"{words.states(status['workers'])}, for {running}."
        return PageAnswer(question, "yes", note, tone)
    if state == "ended":
        return PageAnswer(question, "no, it has ended well", f"It took {running}.", tone)
    if state == "lost":
        note = "The launcher is gone. `outlast run --resume` goes on from the newest good state."
        return PageAnswer(question, "no, it was lost", note, tone)
    if state in ("failed", "stopped"):
        return PageAnswer(question, f"no, it {_was(state)}", report["reason"], tone)
    wait = status.get("waits_for")
    note = f"It {words.waits(wait)}." if wait else f"It has run for {running}."
    return PageAnswer(question, f"not now: {state}", note, tone)


def _was(state: str) -> str:
    return "has failed" if state == "failed" else "was stopped"


def _how_fast(report: Facts, status: Facts, points: Sequence[PacePoint]) -> PageAnswer:
    question = "How fast?"
    if not report["steps_seen"]:
        unseen = "The steps of this script are not seen."
        why = "Some of the ledger is missing." if report["damage"] else unseen
        return PageAnswer(question, "not known", why)
    median_s = report["step_median_s"]
    note = "" if median_s is None else f"One step takes {words.duration(median_s)} (median)."
    logged = logged_words(status)
    note += f" Newest {logged}." if logged else ""
    if status.get("steps_per_s"):
        return PageAnswer(question, f"{status['steps_per_s']:.3g} steps/s", note)
    if report["steps"] and report["wall_s"] > 0 and points:
        steps = sum(max(0, one.to_step - one.from_step) for one in points)
        return PageAnswer(question, f"{steps / report['wall_s']:.3g} steps/s on average", note)
    return PageAnswer(question, "no step yet", note)


def target_of(status: Facts) -> int | None:
    """Return the step at which the run will be done, if it is known."""
    target = status.get("target_step")
    return target if isinstance(target, int) and target > 0 else None


def _how_long(report: Facts, status: Facts) -> PageAnswer:
    question, target, step = "How long still?", target_of(status), report["steps"]
    over = _is_over(report)
    of = f" of {target:,}" if target else ""
    at = f"It is at step {step:,}{of}." if report["steps_seen"] else "No step was seen."
    if over:
        return PageAnswer(question, "it is over", at.replace("is at", "came to"))
    left_s = status.get("time_left_s")
    if isinstance(left_s, int | float):
        return PageAnswer(question, f"about {words.long_duration(left_s)}", at)
    rate = status.get("steps_per_s")
    if target and rate:
        return PageAnswer(question, f"about {words.long_duration((target - step) / rate)}", at)
    note = "" if target else " The script has not said how many steps it will do."
    return PageAnswer(question, "not known", at + note)


def _what_failed(report: Facts, newest: Facts | None, moment: PageMoment) -> PageAnswer:
    question = "What failed last?"
    if newest is None and "interruptions" in report["lacks"]:
        return PageAnswer(question, "not known", _MISSING, WATCH)
    if newest is None:
        return PageAnswer(question, "nothing", "No interruption so far.", GOOD)
    at_s = newest["detected_s"] if newest["fault_s"] is None else newest["fault_s"]
    ago_s = max(0.0, moment.now_s - at_s)
    what = failed(newest)
    then = "the end" if _is_over(report) else "now"
    when = f"At {words.duration(at_s)}, {words.duration(ago_s)} before {then}"
    if report["imported"]:
        back = "" if newest["resumed_s"] is not None else " The time of its return is not known."
        return PageAnswer(question, what, f"{when}.{back}", PLAIN, newest["id"])
    if newest["resumed_s"] is None:
        back = "did not come back" if _is_over(report) else "is not back yet"
        return PageAnswer(question, what, f"{when}. It {back}.", BAD, newest["id"])
    back = back_words(newest)
    note = f"{when}. {back[0].upper()}{back[1:]}; {words.cost_words(newest)}."
    return PageAnswer(question, what, note, PLAIN, newest["id"])


def _whose_fault(report: Facts, newest: Facts | None, verdict: Facts | None) -> PageAnswer:
    question = "Whose fault was it?"
    if newest is None and "interruptions" in report["lacks"]:
        return PageAnswer(question, "not known", _MISSING, WATCH)
    if newest is None:
        return PageAnswer(question, "nobody's", "Nothing has failed.", GOOD)
    if verdict is None:
        why = newest["reason"] or newest["error"]
        yet = "no verdict" if _is_over(report) else "no verdict yet"
        return PageAnswer(question, yet, why, PLAIN, newest["id"])
    name = str(verdict.get("class", "unknown")).replace("_", " ")
    sure = verdict.get("confidence")
    if name == "unknown":
        return PageAnswer(question, "not known", summary(verdict), WATCH, newest["id"])
    how = f" ({sure * 100:.0f} % sure)" if isinstance(sure, int | float) else ""
    return PageAnswer(question, f"{name}{how}", str(verdict.get("reason", "")), PLAIN, newest["id"])


def _what_cost(report: Facts) -> PageAnswer:
    question = "What did it cost?"
    if {"interruptions", "lives"} & set(report["lacks"]):
        why = "Some interruptions or lives of processes are missing."
        return PageAnswer(question, "not known", why, WATCH)
    total_s = sum(value or 0.0 for value in report["rank_seconds"].values())
    lost_s = report["lost"]["rank_s"]
    share = lost_s / total_s if total_s > 0 else 0.0
    count = sum(one["parent"] is None for one in report["interruptions"])
    inner_count = len(report["interruptions"]) - count
    repeated, lost = (
        sum(one[key] or 0 for one in report["interruptions"])
        for key in ("steps_repeated", "steps_lost")
    )
    lost += report["steps_lost_between_sessions"] or 0
    more = f" and {inner_count:,} more during a recovery" if inner_count else ""
    note = (
        f"{words.count(count, 'interruption')}{more} took {words.duration(lost_s)} of"
        f" {words.duration(total_s)} of all ranks; {repeated:,} steps repeated, {lost:,} lost."
    )
    if report["cost"]["lost_money"] is not None:
        note += f" In money: {report['cost']['lost_money']:,.2f}."
    if not count and not lost:
        return PageAnswer(question, "nothing", "No interruption so far.", GOOD)
    if not report["steps_seen"]:
        note = f"{words.count(count, 'interruption')}; which steps they cost is not seen."
        return PageAnswer(question, "not known", note, WATCH)
    tone = GOOD if share < 0.02 else WATCH if share < 0.1 else BAD
    return PageAnswer(question, f"{share * 100:.1f} % of the time", note, tone)
