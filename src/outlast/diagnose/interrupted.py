"""What a live run saw of an interruption: who was lost, how, what was done, what it cost.

`Interrupted` is a finding that carries this as one sentence, such as

    Rank 1 (pid 77) was killed by signal 9 (SIGKILL), sent neither by outlast nor by the OOM killer;
    recovered with a spare in 53 ms, 1 step repeated, 0 lost.

The sentence excludes the OOM killer only if the kernel's counters of OOM kills were read, and none
rose when the process died. A ledger alone does not know who sent a signal.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from outlast.diagnose.findings import Finding
from outlast.model.drain_words import drain_of
from outlast.model.terms import FailureClass, Mechanism, Rung
from outlast.model.texts import UNACKNOWLEDGED, cost_words, cut_at_word, recovery_words
from outlast.model.verdict import Evidence, Role

STRANGER = "sent neither by outlast nor by the OOM killer"
RULE = "ledger.interruption"  # as fuse/decide.py knows it
ERROR_COUNT = 160  # characters of an error that the sentence repeats
SIGKILL = 9
CRASHES = {
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    11: "SIGSEGV",
    31: "SIGSYS",
}
SIGNALS = CRASHES | {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", SIGKILL: "SIGKILL", 15: "SIGTERM"}
RECOVERED = {
    Rung.REPEAT: "by repeating the step",
    Rung.REENTER: "by entering main's function again",
    Rung.RESPAWN: "with new processes",
    Rung.SPARE: "with a spare",
    Rung.RESTART: "by restarting all ranks",
    Rung.STOP: "",
}
_LEFT = "the script left"  # as a rank reports that sys.exit has ended its script
# as torch says it: strsignal(3) in glibc
_LOADER = re.compile(
    r"DataLoader worker \(pid (\d{1,9})\) is killed by signal: ([A-Z][A-Za-z0-9 ]{3,40})"
)
_SAID = {
    "Killed": SIGKILL,
    "Segmentation fault": 11,
    "Bus error": 7,
    "Aborted": 6,
    "Terminated": 15,
    "Illegal instruction": 4,
    "Floating point exception": 8,
}
_NUMBER = re.compile(r"signal (\d{1,2})")
_EXITED = re.compile(r"rank (\d{1,9}) \(pid (\d{1,9})\) ended: exit code (\d{1,3})")
_PARTS = re.compile(r"; (?![^()]*\))")  # but not within brackets


@dataclass(frozen=True, slots=True)
class Interrupted(Finding):
    """The finding of one rank of an interruption (rank None: no rank is to blame).

    number    the number of the interruption in the ledger
    sentence  who was lost, what happened, what was done and what it cost
    sender    what is known of the sender of the signal that ended it: "not outlast", or more; ""
              for nothing
    healed    training went on after it
    drained   its ranks were moved off a node on purpose, so it is not a failure
    unseen    all ranks were started again, and nothing shows whether they train
    """

    number: int = 0
    sentence: str = ""
    sender: str = ""
    healed: bool = False
    drained: bool = False
    unseen: bool = False


def only_killed(findings: Iterable[Finding]) -> bool:
    """Return True if a SIGKILL that somebody else sent is all that interrupted the run."""
    seen = [one for one in findings if isinstance(one, Interrupted)]
    return bool(seen) and all(
        one.mechanism is Mechanism.SIGNAL and one.sender == STRANGER for one in seen
    )


def interrupted(
    about: Mapping[str, Any],
    *,
    name: str,
    processes: Sequence[Mapping[str, Any]] = (),
    missing: Mapping[str, str] = MappingProxyType({}),
    at_s: float | None = None,
    order: int = 0,
) -> list[Interrupted]:
    """Return one finding for each rank of an interruption.

    `about` is the interruption in its public shape (`Interruption.public`); `processes` are those
    of standing.json, and none if only the ledger is known. `missing` are nodes that have sent no
    evidence, and why. Raises KeyError, TypeError or ValueError if these are not what outlast
    writes.
    """
    _check_numbers(about)
    mechanism, cause = Mechanism(about["mechanism"]), FailureClass(about["class"])
    known = cause is not FailureClass.UNKNOWN
    reason = f": {about['reason']}" if about["reason"] else ""
    text = f"interruption {about['id']}: {mechanism.value}{reason}"
    evidence = Evidence(name, None, text, Role.ROOT if known else Role.MESSENGER)
    ranks = [int(rank) for rank in about["ranks"]]
    own = [one for one in processes if int(one["rank"]) in ranks and _ended(one)]
    sender = _sender(own)
    several = bool(missing) or any("node" in one for one in processes)
    where = _where(about, mechanism) if several else ""
    resumed = about.get("resumed_s") is not None
    sentence = _sentence(about, mechanism, ranks, own, sender, where, _silent(about, missing))
    return [
        Interrupted(
            evidence,
            RULE,
            cause if known else None,
            mechanism,
            at_s,
            order,
            rank=rank,
            node=about["nodes"][0] if len(about["nodes"]) == 1 else None,
            number=int(about["id"]),
            sentence=sentence,
            sender=sender,
            healed=resumed and about.get("steps_seen", True) is True,
            unseen=resumed and about.get("steps_seen", True) is False,
            drained=drain_of(mechanism.value, str(about["reason"])) is not None,
        )
        for rank in ranks or (None,)
    ]


def _check_numbers(about: Mapping[str, Any]) -> None:
    """Raise an error unless everything that the sentence counts with is a number."""
    for name in ("detected_s", "fault_not_before_s", "resumed_s", "mttr_s"):
        value = about.get(name)
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} is {value}")
    for name in ("steps_repeated", "steps_lost"):
        value = about.get(name, 0)  # None: it is not known
        if value is not None and type(value) is not int:
            raise ValueError(f"{name} is no count")


def _ended(process: Mapping[str, Any]) -> bool:
    return process["signal"] is not None or process["exit_code"] is not None


def _sentence(
    about: Mapping[str, Any],
    mechanism: Mechanism,
    ranks: Sequence[int],
    own: Sequence[Mapping[str, Any]],
    sender: str,
    where: str,
    silent: str,
) -> str:
    cause, *more = _PARTS.split(str(about["reason"]))
    links = [part for part in more if UNACKNOWLEDGED in part]
    if not ranks:
        what = f"{cause[:1].upper()}{cause[1:]}" or "Something was lost"
        return "; ".join(part for part in (what, *links, silent, _done(about)) if part) + "."
    pids = list(about.get("pids") or ())
    exited = _exited(about) if mechanism is Mechanism.SIGNAL else {}
    struck = [rank for rank in ranks if rank not in exited] or list(ranks)
    if len(struck) < len(ranks):
        pids = [pid for rank, pid in zip(ranks, pids, strict=False) if rank in struck]
        own = [one for one in own if int(one["rank"]) in struck]
    what = f"{_who(struck, pids)}{where} {_how(about, mechanism, own, sender, len(struck) > 1)}"
    others = [exited[rank] for rank in ranks if rank not in struck]
    said = (what, *others, *links, silent, _done(about))
    return "; ".join(part for part in said if part) + "."


def _where(about: Mapping[str, Any], mechanism: Mechanism) -> str:
    """Return " on node b" if these ranks were on one node; "" if that is said anyway."""
    is_said = mechanism is Mechanism.LOST_NODE or len(about["nodes"]) != 1
    return "" if is_said else f" on node {about['nodes'][0]}"


def _silent(about: Mapping[str, Any], missing: Mapping[str, str]) -> str:
    """Return which of the nodes where it happened have sent no evidence, and why; "" for none."""
    found = [(node, missing[node]) for node in map(str, about["nodes"]) if node in missing]
    if not found:
        return ""
    return f"no evidence came from node {found[0][0]}, because {found[0][1]}" + (
        f", nor from {len(found) - 1} more" if len(found) > 1 else ""
    )


def _exited(about: Mapping[str, Any]) -> dict[int, str]:
    """Return the ranks that ended with an exit code in an interruption by a signal.

    In a script without outlast calls the survivors end by the exception of their broken
    connection. No signal has killed them.
    """
    found = (_EXITED.fullmatch(part) for part in _PARTS.split(str(about["reason"])))
    return {
        int(one[1]): f"rank {one[1]} (pid {one[2]}) ended as well, with exit code {one[3]}"
        for one in found
        if one is not None
    }


def _who(ranks: Sequence[int], pids: Iterable[Any]) -> str:
    named = ", ".join(str(int(pid)) for pid in pids)
    noun, pid = ("Rank", "pid") if len(ranks) == 1 else ("Ranks", "pids")
    return f"{noun} {', '.join(map(str, ranks))}" + (f" ({pid} {named})" if named else "")


def _how(
    about: Mapping[str, Any],
    mechanism: Mechanism,
    own: Sequence[Mapping[str, Any]],
    sender: str,
    several: bool,
) -> str:
    """Return how the ranks failed, as the rest of a sentence that begins with them."""
    were = "were" if several else "was"
    cause = next(iter(_PARTS.split(str(about["reason"]))), "")
    error = cut_at_word(str(about.get("error") or "").strip().rpartition("\n")[2], ERROR_COUNT)
    match mechanism:
        case Mechanism.SIGNAL:
            return _by_signal(_signals(own, error), were, sender)
        case Mechanism.EXCEPTION:
            if loader := _LOADER.search(error):
                return _lost_loader(int(loader[1]), loader[2])
            if error.startswith(_LEFT):
                return f"left the script{error.removeprefix(_LEFT)}"
            return f"raised {error}" if error else "raised an exception"
        case Mechanism.EXIT:
            return f"ended: {error}" if error else "ended"
        case Mechanism.LOST_NODE if drain := drain_of(mechanism.value, str(about["reason"])):
            return f"{were} moved off node {drain.node}, which was drained, {drain.why}"
        case Mechanism.LOST_NODE:
            return f"{were} lost with a node" + (f": {cause}" if cause else "")
        case Mechanism.HANG:
            return f"hung: {cause}" if cause else "hung"
        case Mechanism.SLOW | Mechanism.CORRUPT | Mechanism.LOST_CONTACT:
            word = {"slow": f"{were} too slow", "corrupt": "had a corrupt image"}
            failed = word.get(mechanism.value, f"{were} no longer heard of")
            return f"{failed}: {cause}" if cause else failed


def _lost_loader(pid: int, said: str) -> str:
    """Return how a rank lost a worker of its loader. `said`: the signal, in torch's words."""
    number = _SAID.get(said)
    how = f"was killed by a signal ({said})" if number is None else _by_signal([number], "was", "")
    return f"lost a worker of its DataLoader (pid {pid}), which {how}"


def _signals(own: Sequence[Mapping[str, Any]], error: str) -> list[int]:
    """Return the signals that ended them, or that of the ledger if no process is known."""
    found = _NUMBER.fullmatch(error)
    known = sorted({int(one["signal"]) for one in own if one["signal"] is not None})
    return known or ([int(found[1])] if found else [])


def _by_signal(numbers: Sequence[int], were: str, sender: str) -> str:
    if not numbers:
        return f"{were} ended by a signal"
    named = ", ".join(f"{n} ({SIGNALS[n]})" if n in SIGNALS else str(n) for n in numbers)
    verb = "died of" if CRASHES.keys() >= set(numbers) else f"{were} killed by"
    noun = "signal" if len(numbers) == 1 else "signals"
    return f"{verb} {noun} {named}" + (f", {sender}" if sender else "")


def _sender(own: Sequence[Mapping[str, Any]]) -> str:
    """Return who sent the signals, as far as the run knows.

    It is "" if the run knows nothing about that, or if the processes crashed.
    """
    ended = [one for one in own if one["signal"] is not None]
    if not ended or all(one["signal"] in CRASHES for one in ended):
        return ""
    if any(one["killed"] for one in ended):
        return "sent by outlast: it could no longer be led" if len(ended) == 1 else ""
    killed = [one for one in ended if one["signal"] == SIGKILL]
    if not killed:
        return "not sent by outlast"
    if any(one["oom"] for one in killed):
        return "while the kernel counted an OOM kill"
    if any(one.get("oom_near") for one in killed):
        return "while the kernel counted an OOM kill, and its counter does not say of which process"
    if all(one.get("oom_read") for one in killed):
        return STRANGER
    return "not sent by outlast; whether by the OOM killer was not readable"


def _done(about: Mapping[str, Any]) -> str:
    """Return the recovery and its cost in words, or "" if training has not gone on."""
    if about.get("resumed_s") is None:
        return ""
    if about.get("rung") is None:
        # The script had reached its end by itself before anything was decided.
        return "nothing was run again"
    rung = Rung(about["rung"])
    how = RECOVERED[rung]
    if rung is Rung.SPARE and len(about["ranks"]) > 1:
        how = "with spares"
    if not about.get("steps_seen", True):  # nothing shows whether the script trains again
        return f"all ranks were started again, {cost_words(about)}"
    return " ".join(part for part in ("recovered", how) if part) + (
        f" in {recovery_words(about)}, {cost_words(about)}"
    )
