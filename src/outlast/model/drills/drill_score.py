"""The score of a drill: what was survived, what it cost, and what the diagnosis said about it.

The truth of each fault is what was injected and when. What the run says of it is in the ledger. A
fault belongs to the interruption that began with it; if it came during a recovery, to that one.

MTTR here is from the strike to the first newly committed step, by the strike's own time. A fault
that interrupted nothing (a spare that was killed, a short stop) has none.

A flipped bit interrupts nothing. The run finds it once it compares the ranks' states, and ends: it
is not known which rank is right. So its score is whether it was found, and after how many steps.

This module is pure.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlast.model.drills.drill_faults import EXIT_CODE, FaultKind, Leaves
from outlast.model.drills.drill_redundancy import InForce, least, lost_beyond, may_lose
from outlast.model.terms import FailureClass, Mechanism

SCHEMA = "outlast.drill/1"
SURE = 0.8  # of a wrong verdict from which on it is counted as confident
EARLY_S = 0.1  # an interruption's own time may be this far before the strike that caused it
# what is detected later than this does not belong to a strike: the end of a process, and a hang
LATE_S, HANG_LATE_S = 5.0, 120.0
HOST_LATE_S = 30.0  # a host that is lost: its lease has to end first
# how a run says that the ranks' states are not the same any more
_DIVERGED = re.compile(
    r"at step (\d+), (?:ranks? ([\d, ]+) disagrees? with the others|all ranks hold different)"
)

Facts = Mapping[str, Any]  # the JSON of `outlast report`, or a part of it


@dataclass(frozen=True, slots=True)
class Struck:
    """One fault that has fired.

    rank      -1: no rank
    at_s      seconds since the run began
    others    of a fault of a whole host, the ranks that lived there
    in_force  what the run had to fall back on then; None: not recorded
    """

    id: str
    kind: FaultKind
    stands_for: FailureClass
    rank: int
    pid: int
    at_s: float
    step: int
    others: tuple[int, ...] = ()
    in_force: InForce | None = None

    @property
    def may_lose_steps(self) -> int:
        """Return how many committed steps it may cost by the redundancy that was in force."""
        return may_lose(self.kind, (rank for rank in self.ranks if rank >= 0), self.in_force)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that were struck."""
        return self.others if self.kind.of_host else (self.rank,)

    @property
    def interrupts(self) -> bool:
        """Return whether the run must book an interruption. A host without ranks causes none."""
        return self.kind.interrupts and bool(self.ranks)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one fault.

    interruption   number of the interruption it belongs to; None: the run was not interrupted
    mttr_s         from the strike to the first newly committed step; None: not interrupted
    lost_s         how long the run would have trained instead; 0.0 if another fault began it
    survived       a step was committed after it, or the run ended well
    said           the class of the verdict, and how sure it is
    judged         "right", "wrong", "unknown", or "" where there was nothing to diagnose
    """

    struck: Struck
    interruption: int | None
    mttr_s: float | None
    survived: bool
    said: str
    confidence: float
    judged: str
    lost_s: float = 0.0

    @property
    def is_confident_wrong(self) -> bool:
        return self.judged == "wrong" and self.confidence >= SURE


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of the run under fire.

    step    its last committed one
    reason  why it ended, if it did not end well
    """

    well: bool
    step: int
    reason: str = ""


def begun_by(struck: Sequence[Struck], report: Facts) -> dict[int, Struck]:
    """Return the fault that began each interruption, by the interruption's number."""
    owned = _owners(struck, report["interruptions"])
    return {owned[one.id][0]["id"]: one for one in struck if one.id in owned and owned[one.id][1]}


def outcomes(struck: Sequence[Struck], report: Facts, ended: Ended) -> tuple[Outcome, ...]:
    """Return what became of each fault. `report` is the JSON of `outlast report` on the run."""
    verdicts = {one["interruption"]: one for one in report["verdicts"]}
    owned = _owners(struck, report["interruptions"])
    ranks = report["world_size"]
    return tuple(_outcome(one, owned.get(one.id), verdicts, ended, ranks=ranks) for one in struck)


def _owners(
    struck: Sequence[Struck], interruptions: Sequence[Facts]
) -> dict[str, tuple[Facts, bool]]:
    """Return the interruption that each fault belongs to, by the fault's id.

    With it comes whether the fault began it. Otherwise it came in the midst of that recovery, which
    had to begin again; such a fault has no verdict of its own.
    """
    owned: dict[str, tuple[Facts, bool]] = {}
    since_s: dict[int, float] = {}  # when the fault struck that began an interruption
    for one in interruptions:
        able = [fault for fault in struck if fault.id not in owned and _begins(one, fault)]
        if able:
            first = max(able, key=lambda fault: fault.at_s)
            owned[first.id], since_s[one["id"]] = (one, True), first.at_s
    for fault in struck:
        if fault.id in owned or not fault.interrupts:
            continue
        around = [
            one
            for one in interruptions
            if _spans(one, fault.at_s, since_s.get(one["id"], math.inf)) or _took(one, fault)
        ]
        if around:
            owned[fault.id] = (around[-1], False)
    return owned


def _began_s(one: Facts) -> float:
    at_s = one["detected_s"] if one["fault_s"] is None else one["fault_s"]
    return float(at_s)


def _begins(one: Facts, fault: Struck) -> bool:
    """Return whether an interruption can be the answer to this fault.

    It shows on the same rank, in the way in which this kind shows, and soon enough.
    """
    if one["mechanism"] not in fault.kind.shows or not set(fault.ranks) & set(one["ranks"]):
        return False
    late_s = float(one["detected_s"]) - fault.at_s
    if fault.kind.of_host:
        return -EARLY_S <= late_s <= HOST_LATE_S
    hangs = one["mechanism"] in (Mechanism.HANG.value, Mechanism.SLOW.value)
    return -EARLY_S <= late_s <= (HANG_LATE_S if hangs else LATE_S)


def _spans(one: Facts, at_s: float, since_s: float) -> bool:
    """Return whether an interruption lasted at this time. `since_s`: when what began it struck.

    The loss of a host is noticed seconds after its strike, and nothing goes on in between.
    """
    until_s = math.inf if one["resumed_s"] is None else one["resumed_s"]
    return bool(min(_began_s(one), since_s) - EARLY_S <= at_s <= until_s + EARLY_S)


def _took(one: Facts, fault: Struck) -> bool:
    """Return whether a rank that hung was lost before its hang was noticed, in this interruption.

    Another fault began it meanwhile. One that hung in a collective was freed by any of them.
    """
    late_s = float(one["detected_s"]) - fault.at_s
    hangs = fault.kind.leaves is Leaves.STACK
    freed = fault.rank in one["ranks"] or fault.kind.name == "order"
    return hangs and freed and -EARLY_S <= late_s <= HOST_LATE_S


def _outcome(
    fault: Struck,
    owner: tuple[Facts, bool] | None,
    verdicts: Mapping[int, Facts],
    ended: Ended,
    *,
    ranks: int,
) -> Outcome:
    if fault.kind.is_silent:
        was_found = _DIVERGED.search(ended.reason) is not None
        said = FailureClass.SILENT_DATA_CORRUPTION.value if was_found else ""
        return Outcome(fault, None, None, was_found, said, 1.0, "right" if was_found else "unknown")
    if owner is None:
        survived = ended.well or ended.step > fault.step
        return Outcome(fault, None, None, survived, "", 0.0, "")
    one, began = owner
    resumed_s = one["resumed_s"]
    mttr_s = None if resumed_s is None else max(0.0, resumed_s - fault.at_s)
    survived = resumed_s is not None or ended.well
    if not began:
        return Outcome(fault, one["id"], mttr_s, survived, "unknown", 0.0, "unknown")
    verdict = verdicts.get(one["id"], {})
    said = str(verdict.get("class", one["class"]))
    confidence = float(verdict.get("confidence", 1.0 if said != "unknown" else 0.0))
    judged = _judged(fault.kind, said, str(verdict.get("reason", "")))
    lost_s = float(one["lost_rank_s"]) / ranks
    return Outcome(fault, one["id"], mttr_s, survived, said, confidence, judged, lost_s)


def _judged(kind: FaultKind, said: str, reason: str) -> str:
    """Judge what the diagnosis said about a fault of this kind.

    Where only a signal or an exit code is left, that is all that can be known: who names it is
    right. So is who says that a DataLoader has lost a worker.
    """
    if said in {one.value for one in kind.classes}:
        return "right"
    if said != FailureClass.UNKNOWN.value:
        return "wrong"
    named = {Leaves.SIGNAL: kind.signal, Leaves.CODE: f"exit code {EXIT_CODE}"}.get(kind.leaves)
    named = "DataLoader" if kind.name == "loader" else named
    return "right" if named and re.search(rf"{named}\b", reason) else "unknown"


def silent_facts(found: Sequence[Outcome], ended: Ended) -> dict[str, Any] | None:
    """Return what became of a flipped bit, or None if none was flipped.

    found         True if the run noticed it
    after_steps   steps from the one in which it flipped to the one in which the run noticed it
    named_rank    True if the run named the rank, and no other
    """
    flipped = next((one.struck for one in found if one.struck.kind.is_silent), None)
    if flipped is None:
        return None
    diverged = _DIVERGED.search(ended.reason)
    if diverged is None:
        return {"found": False, "after_steps": None, "named_rank": False}
    after = max(0, int(diverged[1]) - flipped.step)
    return {"found": True, "after_steps": after, "named_rank": diverged[2] == str(flipped.rank)}


def spread(values_s: Iterable[float]) -> dict[str, float | None]:
    """Return median, 95th percentile and maximum; each None where there is no value."""
    ordered = sorted(values_s)
    if not ordered:
        return {"median": None, "p95": None, "max": None}
    at = max(0, math.ceil(0.95 * len(ordered)) - 1)
    return {"median": statistics.median(ordered), "p95": ordered[at], "max": ordered[-1]}


def score(
    found: Sequence[Outcome],
    report: Facts,
    *,
    plan: str,
    seed: int,
    planned_count: int,
    left_out: Mapping[str, int],
    digest_equal: bool | None,
    ended: Ended,
    leaks: Mapping[str, float],
    predicted: float | None = None,
) -> dict[str, Any]:
    """Return the score, with the keys that programs may rely on. What is not measured is None."""
    lost = [one["steps_lost"] for one in report["interruptions"]]
    by_class: dict[str, list[float]] = {}
    lost_s: dict[str, float] = {}
    for one in found:
        name = one.struck.stands_for.value
        lost_s[name] = lost_s.get(name, 0.0) + one.lost_s
        if one.mttr_s is not None:
            by_class.setdefault(name, []).append(one.mttr_s)
    return {
        "schema": SCHEMA,
        "plan": plan,
        "seed": seed,
        "steps": ended.step,
        "faults_left_out": dict(left_out),
        "faults_planned": planned_count,
        "faults_fired": len(found),
        "survived": sum(one.survived for one in found),
        "manual_interventions": 0 if ended.well else 1,
        "steps_lost": None if None in lost else sum(lost),
        "digest_equal": digest_equal,
        "ettr": report["ettr"],
        "ettr_training": report["ettr_training"],
        "predicted_ettr_training": predicted,
        "mttr_s": spread(value for values in by_class.values() for value in values),
        "mttr_s_by_class": {name: spread(values) for name, values in sorted(by_class.items())},
        "diagnosis": {
            "right": sum(one.judged == "right" for one in found),
            "wrong": sum(one.judged == "wrong" for one in found),
            "unknown": sum(one.judged == "unknown" for one in found),
            "confident_wrong": sum(one.is_confident_wrong for one in found),
        },
        "leaks": dict(leaks),
        "silent": silent_facts(found, ended),
        "lost_s_by_class": dict(sorted(lost_s.items())),
        "redundancy": _redundancy(found, report),
    }


def _redundancy(found: Sequence[Outcome], report: Facts) -> dict[str, Any]:
    """Return what there was when faults struck, and whether more was lost than that allowed.

    recorded           with how many faults it was recorded; a script without outlast calls has none
    least              the least that there was at any of them
    steps_lost_beyond  committed steps that were lost, and by what there was should not have been;
                       None: it is not known how many were lost
    """
    recorded = [then for one in found if (then := one.struck.in_force) and then.is_known]
    allowed: dict[int, int] = {}
    for one in found:
        if one.interruption is not None:
            most = max(allowed.get(one.interruption, 0), one.struck.may_lose_steps)
            allowed[one.interruption] = most
    return {
        "recorded": len(recorded),
        "least": least(recorded),
        "steps_lost_beyond": lost_beyond(report["interruptions"], allowed),
    }


def wrong(facts: Facts, found: Sequence[Outcome], reason: str, *, plain: bool = False) -> list[str]:
    """Return what the drill has failed at, a sentence each; empty if all was survived.

    reason   why the run ended, if it did not end well
    plain    the script makes no outlast call, so steps may be done again
    """
    out = []
    silent = facts["silent"]
    if silent is not None and not silent["found"]:
        out.append("the flipped bit was not found")
    if facts["manual_interventions"] and not (silent is not None and silent["found"]):
        out.append(f"the run under fire did not reach its end: {reason or 'it says no reason'}")
    if missing := facts["faults_planned"] - facts["faults_fired"]:
        out.append(f"{missing} of {facts['faults_planned']} faults did not fire")
    gone = facts["faults_fired"] - facts["survived"]
    if gone and silent is None:
        out.append(f"{gone} faults were not survived")
    if (beyond := facts["redundancy"]["steps_lost_beyond"]) and not plain:
        out.append(_lost(facts["steps_lost"], beyond))
    if facts["digest_equal"] is False:
        out.append("the state differs from that of the undisturbed run")
    unbooked = [one.struck for one in found if one.struck.interrupts and one.interruption is None]
    if unbooked:
        ids = ", ".join(f"{one.id} ({one.kind.name})" for one in unbooked[:5])
        out.append(f"the ledger has no interruption for {len(unbooked)} faults: {ids}")
    for name in ("processes", "segments"):
        if left := facts["leaks"].get(name):
            out.append(f"{left:g} {name} were left behind")
    return out


def _lost(steps: int, beyond: int) -> str:
    if beyond == steps:
        return f"{steps} committed steps were lost"
    return f"{steps} committed steps were lost, {beyond} more than the redundancy in force allowed"
