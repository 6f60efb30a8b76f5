"""The words of a verdict: its sentence, its evidence, what would refute it, and the next test.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from outlast.diagnose.findings import Finding
from outlast.diagnose.fuse.accounts import OUTSIDE
from outlast.diagnose.fuse.culprits import Culprits, GraphBlame
from outlast.diagnose.fuse.desync import Desync, end_of_its_log
from outlast.diagnose.fuse.next_evidence import GATHER, NEXT_TEST
from outlast.diagnose.fuse.no_failure import ends_of, is_quiet, quiet_ends, quiet_words
from outlast.diagnose.fuse.reported_words import HANGUP, REPORTED
from outlast.diagnose.fuse.verdict_context import AMD, AMD_NEXT_TEST, recovery_asked
from outlast.diagnose.fuse.weigh import RuleVote
from outlast.diagnose.fuse.weights import BROKEN_DEVICE
from outlast.diagnose.fuse.words import (
    BY_RULE,
    DAMAGE,
    DRAINED,
    FINISHED_AFTERWARDS,
    HUNG,
    OWN_BUG,
    REFUTED,
    UNSEEN_AFTERWARDS,
    WORDS,
    Words,
    healed_action,
    words_for,
)
from outlast.diagnose.interrupted import Interrupted
from outlast.diagnose.log_ends import STOOD_STILL
from outlast.diagnose.logs.fingerprints import odd_call
from outlast.diagnose.logs.process_table import STOPPED_PID
from outlast.diagnose.logs.tracebacks import RaisedAt
from outlast.diagnose.recovered import has_recovered
from outlast.diagnose.stacks.reader import Stack, activity
from outlast.diagnose.stacks.workers import is_loader
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.texts import cut_at_word, some
from outlast.model.verdict import Evidence, Role

EVIDENCE_MAX = 12
RANKS_SAID = 8
TEXT_SAID = 160
_UNKNOWN = FailureClass.UNKNOWN
_LAST_WORDS = ("exited", "left", "silent")  # nothing else tells what such a rank did
LOADER_SLOW = "loader.slow"  # the rank did not hang: it gave up, and its process is gone
_BY_GRAPH = ("graph", "mismatch")


@dataclass(frozen=True, slots=True)
class VerdictFacts:
    """The facts from which the words of a verdict are made.

    named        the class that the verdict names; UNKNOWN where none is likely enough
    best         the likeliest class, whether it is named or not
    supporting   the votes for `best`, strongest first
    findings     all that was read, with what the graph, the waits and the stacks add
    nodes        where it failed
    """

    named: FailureClass
    best: FailureClass
    supporting: tuple[RuleVote, ...]
    blame: GraphBlame | None
    desync: Desync
    culprits: Culprits
    mechanism: Mechanism | None
    findings: tuple[Finding, ...]
    nodes: tuple[str, ...] = ()


def evidence_of(facts: VerdictFacts) -> tuple[Evidence, ...]:
    """Return the lines to show, most important first, and at most two for each rule.

    First come the lines of the winning class and those that show the guilty ranks. Then come the
    other roots, the messengers and the effects.
    """
    winners = [vote.finding for vote in facts.supporting] if facts.named is not _UNKNOWN else []
    order = {Role.ROOT: 0, Role.MESSENGER: 1, Role.EFFECT: 2, Role.ADVICE: 3}
    rest = sorted(
        facts.findings,
        key=lambda one: (order[one.evidence.role], one.at_s is None, one.at_s or 0.0, one.order),
    )
    shown: dict[tuple[str, int | None], Evidence] = {}
    rules: Counter[str] = Counter()
    for one in [*winners, *facts.culprits.shown, *_stacks_of_the_guilty(facts), *rest]:
        if len(shown) >= EVIDENCE_MAX:
            break
        rules[one.rule] += 1
        if rules[one.rule] <= 2 and one.evidence.role is not Role.ADVICE:
            shown.setdefault((one.evidence.file, one.evidence.line), one.evidence)
    return tuple(shown.values())


def reason_of(facts: VerdictFacts, notes: Sequence[str]) -> str:
    """Return why the job failed, or how it ended where nothing says why, in whole sentences.

    The first part is the class with the line that shows it; then come the guilty ranks, and the
    `notes` on what was noticed while reading.
    """
    who = _who(facts)
    if facts.named is not _UNKNOWN:
        parts = [_why(facts, repeated=bool(who)), who, _left_behind(facts)]
    elif who:
        # A signal is a cause, and so is a drain; of anything else the run saw only how it showed
        # itself.
        seen = newest_seen(facts)
        is_why = seen is not None and (seen.drained or facts.mechanism is Mechanism.SIGNAL)
        parts = [who, "" if is_why else _raised(facts) or "Nothing that was read says why."]
    elif is_quiet(facts.findings):
        parts = ["Nothing that was read tells of a failure.", *quiet_ends(facts.findings)]
    elif (doing := _only_stacks(facts)) == {False}:
        parts = [
            "By their stacks several ranks work and none waits for another: the job runs, or all"
            " of them hang in code of their own."
        ]
    elif doing == {True}:
        parts = [
            "By their stacks all ranks wait in collectives, and none stands apart. Stacks alone do"
            " not show for which of them the others wait."
        ]
    else:
        guess = (
            f" The likeliest guess is that {WORDS[facts.best].means}."
            if facts.best is not _UNKNOWN
            else ""
        )
        said, special = _first_said(facts), _reported_words(facts)
        ended = "hangs" if facts.mechanism is Mechanism.HANG else "failed"
        head = f"What was read says that the job {ended}, not why"
        if special is not None:
            head = f"{special.means[0].upper()}{special.means[1:]}. What was read does not say why"
        still = special in (REPORTED[STOOD_STILL], REPORTED["watch.hangs"])
        ends = ends_of(facts.findings).sentence if still else ""
        parts = [f"{head}.{guess}", said, ends, _absent(facts)]
    if has_recovered(facts.findings):
        parts.append("The launcher started the job again after that, and it then finished.")
    return " ".join([*(part for part in parts if part), *(f"Noticed: {note}." for note in notes)])


def _why(facts: VerdictFacts, *, repeated: bool) -> str:
    """Return what the class means, and the first line that shows it.

    The line is left out if the graph's own sentence follows, which says the same.
    """
    first = facts.supporting[0].finding
    means = _words(facts).means
    means = f"{means[0].upper()}{means[1:]}"
    if repeated and (first.rule.startswith("graph.") or isinstance(first, Interrupted)):
        return f"{means}."
    where = (
        f"{first.evidence.file}:{first.evidence.line}"
        if first.evidence.line
        else first.evidence.file
    )
    # The line may be of the healthy end of a link, and the verdict names the other one.
    elsewhere = bool(facts.nodes) and first.node not in (None, *facts.nodes)
    own = first.node if facts.nodes else None  # a failure of all nodes is not the fault of this one
    node = some(facts.nodes, 3) if elsewhere else own
    on = "".join(f" on {what}" for what in (first.device, node) if what)
    stack = _stack_at(first.evidence, facts)
    if stack is not None and is_loader(stack.frames):
        on += " in a process of its data loader"
    said = cut_at_word(first.evidence.text.strip(), TEXT_SAID)
    at = f", raised in {first.place}" if isinstance(first, RaisedAt) else ""
    return f"{means}{on}: {said} ({where}){at}."


def _raised(facts: VerdictFacts) -> str:
    """Return where the exception of a guilty rank was raised; "" where no traceback was read.

    A place in outlast is where the end of another process was found, and says nothing.
    """
    guilty = {one.rank for one in facts.culprits.ranks}
    for one in facts.findings:
        its_own = one.rank in guilty or (one.rank is None and len(guilty) == 1)
        if not isinstance(one, RaisedAt) or "(outlast/" in one.place:
            continue
        if its_own and one.evidence.role is Role.ROOT:
            text = cut_at_word(one.evidence.text.strip(), TEXT_SAID)
            return f"{text} was raised in {one.place}."
    return ""


def _who(facts: VerdictFacts) -> str:
    """Return which ranks are guilty and how that is known; "" if none is."""
    culprits = facts.culprits
    ranks = _named([one.rank for one in culprits.ranks])
    if seen := _seen(facts):
        return seen + _stands(facts)
    if culprits.how in _BY_GRAPH and facts.blame is not None:
        return _by_graph(facts, facts.blame, ranks)
    if not culprits.ranks:
        return ""
    line = (
        ""
        if not culprits.shown
        or culprits.shown[0]
        is (
            facts.supporting[0].finding
            if facts.supporting and facts.named is not _UNKNOWN
            else None
        )
        else (f": {cut_at_word(culprits.shown[0].evidence.text.strip(), TEXT_SAID)}")
    )
    if culprits.how == "witnessed":
        ended = "failed" if facts.mechanism is None else _ENDED[facts.mechanism]
        return f"{ranks} {ended}{line}.{_stands(facts)}"
    if culprits.how == "called" and (odd := odd_call(facts.findings)) is not None:
        return f"{ranks} called {odd.called} where most ranks called {odd.usual}."
    said = {
        "killed": f"{ranks} ended by a signal that the launcher did not send{line}",
        "raised": (
            (
                f"{ranks} failed by a signal"
                if culprits.mechanism is Mechanism.SIGNAL
                else f"{ranks} raised an exception of its own"
            )
            + ("; the others lost their peers or were closed" if _has_others(facts) else "")
            + (line if facts.named is _UNKNOWN else "")
        ),
        "barrier": f"{ranks} did not come to a barrier that torch monitored{line}",
        "late": f"{ranks} had not called the collective in which the others timed out{line}",
        "reported": f"{ranks} is behind the others, by a report about all ranks{line}",
        "stuck": f"{ranks} had a watchdog that was stuck, and all others timed out{line}",
        "exited": f"{ranks} ended with an exit code of its own{_without(facts)}{line}",
        "left": (
            f"{ranks} ended without a failure while the others went on: it is not among those that"
            " failed or were closed"
        ),
        "silent": (
            f"All other ranks waited, and {ranks.lower()} reports nothing: it hung, or was stopped"
            if facts.mechanism is Mechanism.HANG
            else f"All other ranks lost a peer, and {ranks.lower()} reports nothing: it went first"
        ),
        "forced": f"{ranks} did not end when asked to (SIGTERM): it hung",
        "remains": f"{ranks} has not ended, and all other ranks of its node have{line}",
        "channel": f"{ranks} stands apart, and no other rank moved{line}",
        "beacons": f"{ranks} was behind the others, by their beacons{line}",
        "alone": (
            f"{ranks} ended by itself; the others were closed"
            if facts.mechanism is not Mechanism.HANG
            else f"{ranks} is what the others waited for"
        ),
    }.get(culprits.how)
    if said is not None and culprits.how in _LAST_WORDS and len(culprits.ranks) == 1:
        said += end_of_its_log(culprits.ranks[0].rank, facts.findings)
    return "" if said is None else f"{said.removesuffix('.')}.{_stands(facts)}"


def _without(facts: VerdictFacts) -> str:
    """Return ", and without an exception", unless there is one whose line names no rank.

    Before a rank has joined its group, torch does not put the rank before a traceback.
    """
    unlabelled = any(
        one.rank is None and one.evidence.role is Role.ROOT and one.mechanism is Mechanism.EXCEPTION
        for one in facts.findings
    )
    return "" if unlabelled else ", and without an exception"


def _has_others(facts: VerdictFacts) -> bool:
    """Return True if any evidence is of a rank that is not guilty."""
    guilty = {one.rank for one in facts.culprits.ranks}
    return any(one.rank is not None and one.rank not in guilty for one in facts.findings)


_ENDED = {
    Mechanism.HANG: "hung",
    Mechanism.SIGNAL: "ended by a signal",
    Mechanism.EXCEPTION: "raised an exception",
    Mechanism.EXIT: "ended by itself",
    Mechanism.LOST_CONTACT: "was no longer heard of",
    Mechanism.SLOW: "was too slow",
    Mechanism.CORRUPT: "gave wrong results",
}


def _by_graph(facts: VerdictFacts, blame: GraphBlame, ranks: str) -> str:
    """Return the graph's sentence if it is about the culprits, else where their stacks are."""
    same = {one.rank for one in facts.culprits.ranks} == {one.rank for one in blame.ranks}
    if same and blame.sentence:
        return blame.sentence + _stands(facts)
    if not facts.culprits.ranks:
        suspects = _named([one.rank for one in facts.culprits.suspects])
        if facts.mechanism is Mechanism.LOST_CONTACT:
            return f"Ranks lost their peers; by the dumps {suspects.lower()} may have gone first."
        return f"{suspects} left no evidence, and the others wait."
    return f"{ranks} was elsewhere, or said nothing, while the others waited.{_stands(facts)}"


def newest_seen(facts: VerdictFacts) -> Interrupted | None:
    """Return the newest interruption that a live run recorded itself, or None."""
    seen = [one for one in facts.culprits.shown if isinstance(one, Interrupted)]
    return max(seen, key=lambda one: (one.number, bool(one.sender)), default=None)


def _seen(facts: VerdictFacts) -> str:
    """Return what a live run recorded of its interruptions; "" if no run did.

    If both the ledger and the record of that moment describe one, the record knows more and is
    used.
    """
    seen = [one for one in facts.culprits.shown if isinstance(one, Interrupted) and one.sentence]
    best: dict[int, Interrupted] = {}
    for one in seen:
        if one.sender or one.number not in best:
            best[one.number] = one
    return " ".join(best[number].sentence for number in sorted(best))


def _stacks_of_the_guilty(facts: VerdictFacts) -> list[Stack]:
    ranks = {one.rank for one in facts.culprits.ranks}
    return [
        one
        for one in facts.findings
        if isinstance(one, Stack)
        and one.rank in ranks
        and activity(one)[0] not in ("idle", "waiting")
    ]


def _stood_still(facts: VerdictFacts) -> bool:
    """Return True if two stacks of one guilty thread, taken apart, have the same frames."""
    seen: dict[tuple[int | None, str, str], tuple[str, ...]] = {}
    for one in _stacks_of_the_guilty(facts):
        if seen.setdefault((one.rank, one.process, one.thread), one.frames) != one.frames:
            return False
    return len(_stacks_of_the_guilty(facts)) > len(seen) > 0


def _stands(facts: VerdictFacts) -> str:
    """Return a sentence on where the first guilty rank is, by its newest stack; "" without one."""
    if facts.mechanism is not Mechanism.HANG:
        return ""
    stacks = _stacks_of_the_guilty(facts)
    if not stacks:
        return ""
    return f" The stack of rank {stacks[-1].rank} is in {_innermost(stacks[-1])}."


def _innermost(stack: Stack) -> str:
    return next(
        (frame for frame in stack.frames if "outlast/runtime/" not in frame), stack.frames[0]
    )


def _left_behind(facts: VerdictFacts) -> str:
    """Return who is behind by the ends of the logs, where a hang has no other suspect."""
    culprits, ends = facts.culprits, ends_of(facts.findings)
    known = culprits.ranks or culprits.suspects or facts.desync.suspects
    if facts.mechanism is not Mechanism.HANG or known or not ends.behind:
        return ""
    return ends.sentence


def _only_stacks(facts: VerdictFacts) -> set[bool]:
    """Return whether they wait, if nothing was read but stacks of several ranks; else nothing."""
    said = [one for one in facts.findings if one.evidence.role is not Role.ADVICE]
    stacks = [one for one in said if isinstance(one, Stack)]
    if len(stacks) < len(said) or len({one.rank for one in stacks}) < 2:
        return set()
    return {activity(one)[0] == "waiting" for one in stacks}


def _first_said(facts: VerdictFacts) -> str:
    """Return the first line that reports the failure, as a sentence; "" if there is none."""
    special = _reported_words(facts)
    first = next(
        (
            one.evidence
            for one in facts.findings
            if special is not None and REPORTED.get(one.rule) is special
        ),
        None,
    ) or next((one for one in evidence_of(facts) if one.role is not Role.EFFECT), None)
    if first is None:
        return ""
    where = f"{first.file}:{first.line}" if first.line else first.file
    return f"The first report: {cut_at_word(first.text.strip(), TEXT_SAID)} ({where})."


def _absent(facts: VerdictFacts) -> str:
    if not facts.desync.suspects:
        return ""
    return (
        f"{_named([one.rank for one in facts.desync.suspects])} reports no collective"
        " that it waits in, and the others do."
    )


def _named(ranks: Sequence[int]) -> str:
    shown = some([str(rank) for rank in ranks], RANKS_SAID)
    return f"Rank {shown}" if len(ranks) == 1 else f"Ranks {shown}"


def _is_own_bug(facts: VerdictFacts) -> bool:
    named = facts.named is FailureClass.SOFTWARE_BUG
    return named and any(vote.finding.rule == "outlast.bug" for vote in facts.supporting)


def _is_damage(facts: VerdictFacts) -> bool:
    named = facts.named is FailureClass.STORAGE
    return named and facts.supporting[0].rule.name in DAMAGE


def _is_drain(facts: VerdictFacts) -> bool:
    seen = newest_seen(facts)
    return facts.named is FailureClass.HOST_MAINTENANCE and seen is not None and seen.drained


def _words(facts: VerdictFacts) -> Words:
    """Return what is said about the class, or about the rule that decided if that is more."""
    if _is_own_bug(facts):
        return OWN_BUG
    if _is_drain(facts):
        return DRAINED
    if facts.named is not _UNKNOWN and facts.supporting:
        special = BY_RULE.get(facts.supporting[0].rule.name)
        if special is not None:
            return special
    if special := _reported_words(facts):
        return special
    return words_for(facts.named, facts.mechanism)


def _reported_words(facts: VerdictFacts) -> Words | None:
    """Return the words for a failure whose class is unknown, but whose report says what to do.

    None if a rank is shown or suspected: then the questions are about that rank.
    """
    culprits = facts.culprits
    if facts.named is not _UNKNOWN:
        return None
    if culprits.shown and culprits.shown[0].rule in ("data.nan", "rerun.unexpected"):
        return REPORTED["data.nan"]  # what to do about it is the same for any rank
    if culprits.shown and culprits.shown[0].rule == LOADER_SLOW:
        return REPORTED[LOADER_SLOW]
    if culprits.ranks or culprits.suspects:
        return None
    if is_quiet(facts.findings):
        return quiet_words(facts.findings)
    seen = {one.rule for one in facts.findings if one.evidence.role is not Role.ADVICE}
    outside = [one for one in facts.findings if one.rule == OUTSIDE]
    if outside and all("SIGHUP" in one.evidence.text for one in outside):
        return HANGUP
    return next((words for rule, words in REPORTED.items() if rule in seen), None)


def refuted_by_of(facts: VerdictFacts) -> str:
    """Return what would show this verdict to be wrong; "" where it names nothing."""
    if facts.named is not _UNKNOWN:
        return _words(facts).refuted_by
    if _stopped_pid(facts):
        return REFUTED["stopped"]
    return (
        REFUTED.get(facts.culprits.how, "")
        if facts.culprits.ranks or facts.culprits.suspects
        else ""
    )


def action_of(facts: VerdictFacts) -> str:
    """Return what to do now. A run that went on by itself needs no restart."""
    seen = newest_seen(facts)
    if _is_own_bug(facts) or _is_damage(facts) or _is_drain(facts):
        return _words(facts).action
    if seen is not None and seen.healed:
        return healed_action(facts.named, facts.mechanism)
    if has_recovered(facts.findings):
        if facts.named is _UNKNOWN:
            return FINISHED_AFTERWARDS
        return healed_action(facts.named, facts.mechanism)
    if facts.named is _UNKNOWN and facts.culprits.how == "channel":
        pid = _stopped_pid(facts)
        return GATHER["stopped"].format(pid=pid) if pid else GATHER["channel"]
    first = UNSEEN_AFTERWARDS if seen is not None and seen.unseen else ""
    asked = recovery_asked(facts.findings) if facts.named in BROKEN_DEVICE else ""
    said = f"; the driver itself asks for: {asked}" if asked else ""
    return first + _words(facts).action + said


def _stopped_pid(facts: VerdictFacts) -> str:
    """Return the pid of the rank that stands apart because it is stopped, or ""."""
    found = (STOPPED_PID.search(one.evidence.text) for one in facts.culprits.shown[:1])
    return next((one[1] for one in found if one is not None), "")


def _with_pid(test: str, facts: VerdictFacts) -> str:
    """Put the number of the process whose stack decided into the command to paste."""
    if not facts.supporting:
        return test
    stack = _stack_at(facts.supporting[0].finding.evidence, facts)
    pid = stack.process if stack is not None and stack.process.isdecimal() else "PID"
    return test.replace("--pid PID", f"--pid {pid}")


def _stack_at(at: Evidence, facts: VerdictFacts) -> Stack | None:
    """Return the stack that was read at this place of a file, or None."""
    stacks = [one for one in facts.findings if isinstance(one, Stack)]
    place = (at.file, at.line)
    return next((one for one in stacks if (one.evidence.file, one.evidence.line) == place), None)


def next_test_of(facts: VerdictFacts) -> str:
    """Return the cheapest test that tells more than what was read."""
    if facts.named is not _UNKNOWN:
        words = _words(facts)
        if words in HUNG.values() and _stood_still(facts):
            who = _named([one.rank for one in facts.culprits.ranks]).lower()
            return NEXT_TEST["hang_still"].format(who=who)
        if facts.supporting and facts.supporting[0].finding.rule.startswith(AMD):
            return AMD_NEXT_TEST
        return _with_pid(words.next_test, facts)
    if special := _reported_words(facts):
        return special.next_test
    seen = newest_seen(facts)
    if seen is not None and "neither" in seen.sender:
        return NEXT_TEST["signal_sent"]
    ranks, how = (
        [one.rank for one in facts.culprits.ranks],
        "" if facts.mechanism is None else facts.mechanism.value,
    )
    suspects = [one.rank for one in facts.culprits.suspects or facts.desync.suspects]
    if any(one.rule == "loader.pipe" for one in facts.culprits.shown):
        return NEXT_TEST["loader"].format(who=_named(ranks).lower())
    if facts.culprits.how == "stuck":
        return NEXT_TEST["stuck"].format(who=_named(ranks).lower())
    if facts.culprits.how == "silent" and how != "hang":
        return NEXT_TEST["silent"].format(who=_named(ranks).lower())
    if how == "hang" and (ranks or suspects):
        who = _named(ranks or suspects).lower()
        if pid := _stopped_pid(facts):
            return NEXT_TEST["stopped"].format(who=who, pid=pid)
        if not ranks:
            return NEXT_TEST["hang_suspects"].format(who=who)
        return NEXT_TEST["hang_stack" if _stacks_of_the_guilty(facts) else "hang_rank"].format(
            who=who
        )
    return NEXT_TEST[how if how in NEXT_TEST else ""]
