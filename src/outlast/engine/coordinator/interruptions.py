"""The interruptions of a run, as they are recorded in the ledger.

An interruption is opened at the first sign of a fault, completed step by step, and closed by the
first new commit. A further fault before that commit opens a child of the first interruption, and
one commit closes both. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from outlast.model import limits
from outlast.model.own_bugs import is_called_by_outlast, is_damage, is_own_bug, is_shortage
from outlast.model.records import UNKNOWN_COUNT, UNSEEN_COUNT, Interruption
from outlast.model.terms import FailureClass, Mechanism, Rung, Tier

_RANKING = (
    Mechanism.LOST_NODE,
    Mechanism.SIGNAL,
    Mechanism.CORRUPT,
    Mechanism.EXIT,
    Mechanism.EXCEPTION,
    Mechanism.HANG,
    Mechanism.SLOW,
    Mechanism.LOST_CONTACT,
)


class Known(NamedTuple):
    """The facts of an interruption that its verdict, which comes later, needs.

    outage   the id of the first of the interruptions that were closed together
    """

    generation: int
    outage: int
    reason: str


class InterruptionLog:
    """The interruptions of a run. Its methods book what happens, in the order of the story:

        log.fault(rank=1, ...)          # opened, or joined to the newest one
        log.book_decision(...)          # quiesced: the rung, and what it costs
        log.joined(...)                 # all members have their state
        log.resumed(at_s=...)           # closed by the first new commit
        records = log.changed()         # to be written to the ledger

    open    the interruptions that are not closed, the oldest first
    known   the newest INTERRUPTIONS_KNOWN_COUNT interruptions, by id
    """

    def __init__(self, *, first_id: int = 1) -> None:
        self._next = first_id
        self._node_of: dict[int, str] = {}  # of each rank of the newest interruption, at its fault
        self.open: list[Interruption] = []
        self.known: dict[int, Known] = {}
        self._changed: dict[int, Interruption] = {}

    def fault(
        self,
        *,
        rank: int,
        pid: int,
        node: str,
        mechanism: Mechanism,
        generation: int,
        step: int,
        fault_s: float | None,
        fault_not_before_s: float | None,
        detected_s: float,
        same_event: bool,
        error: str,
        traceback: str,
        reason: str,
    ) -> None:
        """Book one rank's fault.

        `same_event`: it is a companion of the newest open interruption, not a new one.
        """
        if same_event and self.open:
            self._join(rank, pid, node, mechanism, fault_s, error, traceback, reason)
            return
        self._node_of = {rank: node}
        self._put(
            Interruption(
                id=self._next,
                parent=self.open[0].id if self.open else None,
                failure_class=_class_of(mechanism, traceback),
                mechanism=mechanism,
                ranks=(rank,),
                pids=_known(pid),
                nodes=(node,),
                rung=None,
                generation=generation,
                step=step,
                fault_s=fault_s,
                fault_not_before_s=fault_not_before_s,
                detected_s=detected_s,
                left_s=None,
                regrouped_s=None,
                restored_s=None,
                resumed_s=None,
                steps_repeated=0,
                steps_lost=0,
                reason=reason,
                error=error,
                traceback=traceback,
            )
        )
        self._next += 1

    def _join(
        self,
        rank: int,
        pid: int,
        node: str,
        mechanism: Mechanism,
        fault_s: float | None,
        error: str,
        traceback: str,
        reason: str,
    ) -> None:
        last = self.open[-1]
        stronger = _RANKING.index(mechanism) < _RANKING.index(last.mechanism)
        if stronger and last.mechanism is Mechanism.LOST_CONTACT:  # the first report was collateral
            fault_s = None if fault_s is None else min(fault_s, last.detected_s)
            self._node_of = {rank: node}
            self._put(
                replace(
                    last,
                    ranks=(rank,),
                    pids=_known(pid),
                    nodes=(node,),
                    mechanism=mechanism,
                    failure_class=_class_of(mechanism, traceback),
                    fault_s=fault_s,
                    error=error,
                    traceback=traceback,
                    reason=reason,
                )
            )
            return
        self._node_of[rank] = node
        ranks = last.ranks if rank in last.ranks else (*last.ranks, rank)
        pids = last.pids if pid in last.pids else (*last.pids, *_known(pid))
        nodes = last.nodes if node in last.nodes else (*last.nodes, node)
        known = [moment for moment in (last.fault_s, fault_s) if moment is not None]
        kind = mechanism if stronger else last.mechanism
        why = (
            _both(reason, last.reason)
            if stronger
            else last.reason
            if mechanism is last.mechanism
            else _both(last.reason, reason)
        )
        self._put(
            replace(
                last,
                ranks=ranks,
                pids=pids,
                nodes=nodes,
                mechanism=kind,
                failure_class=_class_of(kind, last.traceback or traceback),
                fault_s=min(*known, last.detected_s) if known else None,
                error=last.error or error,
                traceback=last.traceback or traceback,
                reason=why,
            )
        )

    def excuse(self, *, reason: str) -> None:
        """Book that no rank is to blame for a lost contact: its reporters are collateral."""
        if self.open and self.open[-1].mechanism is Mechanism.LOST_CONTACT:
            self._put(replace(self.open[-1], ranks=(), pids=(), nodes=(), reason=reason))

    def explain(self, *, reason: str) -> None:
        """Add a reason to the newest open interruption."""
        self._put(replace(self.open[-1], reason=_both(self.open[-1].reason, reason)))

    def acquit(self, living: Mapping[int, int]) -> None:
        """Clear the members that reported a lost contact and are alive: they are not at fault.

        living   the pid of each live rank
        """
        last = self.open[-1] if self.open else None
        if last is None or last.mechanism is not Mechanism.LOST_CONTACT:
            return
        ranks = tuple(rank for rank in last.ranks if rank not in living)
        if ranks != last.ranks:
            why = (
                last.reason
                if ranks
                else _both(
                    "a connection between ranks was lost, and every process lives", last.reason
                )
            )
            self._put(
                replace(
                    last,
                    ranks=ranks,
                    pids=tuple(pid for pid in last.pids if pid not in living.values()),
                    nodes=self._nodes_of(ranks, last.nodes),
                    reason=why,
                )
            )

    def _nodes_of(self, ranks: tuple[int, ...], nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of `nodes` on which one of `ranks` was at its fault.

        They are all of them if the fault of a rank was booked by the coordinator before this one:
        then it is not known where that rank was.
        """
        if any(rank not in self._node_of for rank in ranks):
            return nodes
        there = {self._node_of[rank] for rank in ranks}
        return tuple(node for node in nodes if node in there)

    def node_lost(self, *, reason: str) -> None:
        """Book that a member which was blamed for not answering is lost with its node."""
        if self.open:
            kind = Mechanism.LOST_NODE
            self._put(
                replace(
                    self.open[-1],
                    mechanism=kind,
                    failure_class=_class_of(kind),
                    reason=_both(reason, self.open[-1].reason),
                )
            )

    def classify(self, *, failure_class: FailureClass, reason: str) -> None:
        """Set the class and the reason of the newest open interruption."""
        self._put(replace(self.open[-1], failure_class=failure_class, reason=reason))

    def book_decision(
        self, *, now_s: float, rung: Rung, reason: str, repeated: int, lost: int
    ) -> None:
        """Book that all inventories are in and the rung is chosen."""
        for index, last in enumerate(list(self.open)):
            newest = index == len(self.open) - 1
            why = _both(last.reason, reason)
            known = replace(
                last,
                left_s=last.left_s or now_s,
                rung=last.rung or rung,
                reason=why if newest else last.reason,
                steps_repeated=repeated if newest else last.steps_repeated,
                steps_lost=lost if newest else last.steps_lost,
            )
            if known != last:  # else the ledger has it: there may be hundreds in a storm of kills
                self._put(known)

    def went_further_back(self, *, steps: int) -> None:
        """Book `steps` more as repeated and lost, because the source of the restart was not there.

        A number below 0 means that a newer source was there.
        """
        if steps and self.open:
            last = self.open[-1]
            self._put(
                replace(
                    last,
                    steps_repeated=last.steps_repeated + steps,
                    steps_lost=last.steps_lost + steps,
                )
            )

    def went_on_from(self, step: int | None) -> None:
        """Book that the script has resumed after `step` from a file of its own; None: unknown.

        Until then the steps were booked as if it had begun from nothing.
        """
        if not self.open:
            return
        last = self.open[-1]
        done = [
            UNKNOWN_COUNT if step is None or count < 0 else max(0, count - step)
            for count in (last.steps_repeated, last.steps_lost)
        ]
        self._put(replace(last, steps_repeated=done[0], steps_lost=done[1]))

    def book_unseen_steps(self) -> None:
        """Book that the cost is unknown, because a plain script goes on whose steps are not seen.

        An interruption without a rung is left as it is: the script had ended before.
        """
        for one in [one for one in self.open if one.rung is not None]:
            self._put(replace(one, steps_repeated=UNSEEN_COUNT, steps_lost=UNSEEN_COUNT))

    def joined(self, *, now_s: float, restore_s: float, tier: Tier | None) -> None:
        """Book that all members have joined. `tier`: the costliest source of their state."""
        # A fault that came while all were being killed for a restart gets the rung of that restart.
        rung = next((one.rung for one in reversed(self.open) if one.rung is not None), None)
        for last in list(self.open):
            left_s = last.detected_s if last.left_s is None and rung is not None else last.left_s
            regrouped_s = max(now_s - restore_s, last.detected_s if left_s is None else left_s)
            self._put(
                replace(
                    last,
                    left_s=left_s,
                    rung=last.rung or rung,
                    regrouped_s=regrouped_s,
                    restored_s=now_s,
                    tier=tier,
                )
            )

    def resumed(self, *, at_s: float, generation: int) -> int:
        """Book the first new commit, in `generation`. Return how many interruptions it closed.

        A fault of that generation itself stays open.
        """
        closed = [one for one in self.open if one.generation < generation]
        for one in closed:
            # The last Joined may arrive after the commit that followed it, so keep the order.
            regrouped_s, restored_s = (
                None if known_s is None else min(known_s, at_s)
                for known_s in (one.regrouped_s, one.restored_s)
            )
            self._changed[one.id] = replace(
                one, regrouped_s=regrouped_s, restored_s=restored_s, resumed_s=at_s
            )
        self.open = [one for one in self.open if one.generation >= generation]
        if closed:  # the ones left open came after that commit, so they are children of none closed
            for index, one in enumerate(list(self.open)):
                self._put(replace(one, parent=self.open[0].id if index else None))
        return len(closed)

    def changed(self) -> list[Interruption]:
        """Return the interruptions that have changed since the last call."""
        out = list(self._changed.values())
        self._changed.clear()
        return out

    def recover(self, records: Iterable[Interruption]) -> None:
        """Recover the interruptions of the coordinators before this one from the ledger."""
        known = list(records)
        self.open = [one for one in known if one.resumed_s is None]
        for one in known:
            self.know(one)

    def know(self, record: Interruption) -> None:
        """Remember what the verdict of this interruption will need."""
        self.known[record.id] = Known(record.generation, record.parent or record.id, record.reason)
        while len(self.known) > limits.INTERRUPTIONS_KNOWN_COUNT:
            del self.known[min(self.known)]

    def _put(self, record: Interruption) -> None:
        self._changed[record.id] = record
        self.know(record)
        self.open = [record if old.id == record.id else old for old in self.open]
        if all(old.id != record.id for old in self.open):
            self.open.append(record)


def _both(first: str, second: str) -> str:
    """Join two reasons into one, without repeating any part."""
    return "; ".join(
        dict.fromkeys(part for reason in (first, second) if reason for part in reason.split("; "))
    )


def _known(pid: int) -> tuple[int, ...]:
    """Return the pid, if it is known: a process may be lost before its pid was reported."""
    return (pid,) if pid else ()


def _class_of(mechanism: Mechanism, traceback: str = "") -> FailureClass:
    if mechanism is Mechanism.CORRUPT or is_damage(traceback):
        return FailureClass.STORAGE
    if mechanism is not Mechanism.EXCEPTION:
        return FailureClass.UNKNOWN
    if is_own_bug(traceback):
        return FailureClass.SOFTWARE_BUG
    # What torch raised for outlast tells of a peer, a device or the network, and not of the script.
    # A shortage may be one of memory or of disk.
    if is_called_by_outlast(traceback) or is_shortage(traceback):
        return FailureClass.UNKNOWN
    return FailureClass.USER_CODE
