"""Observations of interruptions and of the whole run. Most are made when the run is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outlast.model.records import Interruption
from outlast.model.terms import Cause


@dataclass(frozen=True, slots=True)
class CulpritsAtEnd:
    """The run is over, and an interruption has this mechanism.

    kinds      the kinds of faults that struck the processes that it names
    times_s    the known times of the interruption, in seconds since the beginning
    over_s     the present time, in seconds since the beginning
    unsure_s   the largest error of a time, because messages about it were held up
    """

    id: int
    mechanism: str
    kinds: tuple[str, ...]
    times_s: tuple[float, ...] = ()
    over_s: float = 0.0
    unsure_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run is over.

    until          the last step that was asked for
    stop_asked     True: a stop of the run was requested
    refused        True: input was refused
    alive          workers with a rank that still live
    strikes        the number of strikes that may be taken for a fault
    done           the ranks that ended with success
    blamed         the pids that interruptions name. If the run was stopped in an interruption
                   before all ranks had left, that one does not count
    struck         the pids that were struck in such a way that they may be blamed
    kinds          the kinds of all faults that struck
    max_restarts   the number of whole restarts that are allowed without progress
    asked          exit code and reason of each request to stop
    noted          True: the ledger says that the script has steps, or the coordinator that had to
                   write that may have been away
    ending_s       seconds since the first request to stop; 0 if there was none, or if there are
                   several nodes
    early_s        seconds since a spare first ended by itself before it could park, and this could
                   be reported
    spent          the number of tokens that are missing from the budgets of replacements and whole
                   restarts; None if a coordinator that knew of others has died
    rungs          the rungs of the interruptions, in their order, and whether each is a child
    policy         the policy that acted
    signals        the number of interruptions that began with the end of a process by a signal
    """

    state: str
    exit_code: int
    reason: str
    committed: int
    until: int
    trained: bool
    plain: bool
    stop_asked: bool
    refused: bool
    alive: tuple[int, ...]
    open_interruptions: tuple[int, ...]
    interruptions: int
    strikes: int
    ranks: int
    done: tuple[int, ...]
    blamed: tuple[int, ...]
    struck: tuple[int, ...]
    kinds: tuple[str, ...]
    max_restarts: int
    asked: tuple[tuple[int, str], ...] = ()
    noted: bool = True
    ending_s: float = 0.0
    early_s: float = 0.0
    spent: int | None = None
    rungs: tuple[tuple[str, bool], ...] = ()
    policy: str = "none"
    signals: int = 0


@dataclass(frozen=True, slots=True)
class NothingMoves:
    """The run has not ended, but the time bound is reached, or nothing will happen any more.

    `where` describes the place of each process.
    """

    bound_s: float
    where: str


@dataclass(frozen=True, slots=True)
class SecondsAtEnd:
    """The run is over, and the seconds of each rank are booked by cause.

    worked_s      seconds for which each rank worked on steps that it committed for the first time,
                  by the world's own clock
    unsure_s      the part of `worked_s` that the run cannot know, because a rank was lost with its
                  node
    interrupted   True: the run was interrupted, or cut short
    """

    wall_s: float
    by_rank: tuple[Mapping[Cause, float], ...]
    worked_s: tuple[float, ...]
    unsure_s: tuple[float, ...]
    interrupted: bool


@dataclass(frozen=True, slots=True)
class RecoveryChosen:
    """The coordinator has chosen how it answers an interruption.

    rung, reason   the rung and the reason that it records
    moves          True: survivors go on in their processes. False: all ranks restart, or the run
                   ends
    kept           the ranks that stay in their step
    reentered      the ranks that enter main's function again
    begun          the ranks that go on although they had no state yet
    taken          the ranks that a spare takes
    forked         the ranks that get a fresh process
    there          the ranks whose process lives, stands still, has its whole state, and has a valid
                   lease
    ready          the number of spares that are known to be parked on nodes where ranks are forked,
                   and that take no rank
    held           True: some process holds the newest committed step
    over           True: some rank is past the last step
    apart          True: a node, its link or the coordinator had a fault, so it may not be known
                   which processes live
    """

    rung: str
    reason: str
    moves: bool
    kept: tuple[int, ...]
    reentered: tuple[int, ...]
    begun: tuple[int, ...]
    taken: tuple[int, ...]
    forked: tuple[int, ...]
    there: tuple[int, ...]
    ready: int
    held: bool
    over: bool
    recovery_mode: str
    ranks: int
    stop_asked: bool
    apart: bool


@dataclass(frozen=True, slots=True)
class WarningHeard:
    """The coordinator of `epoch` hears something that people have to be warned of."""

    text: str
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class RecordRewritten:
    """The record of an interruption is replaced by another one."""

    before: Interruption
    record: Interruption


@dataclass(frozen=True, slots=True)
class InterruptionAtEnd:
    """The run is over, and this is the ledger's record of one interruption.

    nodes       the number of nodes, and so of clocks
    moved       the number of steps by which the run went back in the generation of this
                interruption. None if it is not known, because under sharded state all ranks may
                have committed a step that not all have sealed
    begun       the same, counted from the newest step that any rank had asked for. None if the
                script has no steps
    back_s      when a later generation was first at work, by the clock of the records; None if none
                was. It is at work when it has committed a step (with sharded state: on all ranks),
                when a rank is past the last step, or when all processes of a script without steps
                have reported that they run
    latency_s   the longest time that a message takes
    committed   the newest committed step at the detection: the least that was known then, and the
                true one. None if the run has gone back since, or if it is not known
    stood_s     when all ranks had committed a step in a later generation. None if they never did,
                or if the only rank that knew it may be lost with its node
    unsure_s    the largest error of the clock of `stood_s`
    """

    record: Interruption
    nodes: int
    moved: int | None
    begun: int | None = None
    back_s: float | None = None
    latency_s: float = 0.0
    committed: tuple[int, int] | None = None
    stood_s: float | None = None
    unsure_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FirstFault:
    """The run is over, and its first fault was the only one until it was detected.

    kind           the kind of the fault
    noticed_s      seconds that the detection took
    back_s         seconds from the detection until a step was committed again; None if another
                   fault came before
    latency_s      the longest time that a message takes
    first_step_s   the longest time that the first step of a process takes
    steps          the number of steps before the fault
    within         True: the fault came in a step, which has a deadline of its own
    mechanism      the mechanism that must be booked; "" if other ranks may be blamed
    silence_s      the silence of a plain script that counts as a hang; 0 if the script has steps
    body_s         the longest body of a step
    nodes          the number of nodes
    """

    kind: str
    noticed_s: float
    back_s: float | None
    latency_s: float
    first_step_s: float
    steps: int = 0
    within: bool = False
    mechanism: str = ""
    silence_s: float = 0.0
    body_s: float = 0.0
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """An interruption that the run did not cause itself gets a verdict.

    outage   the interruption, or the one that it is a part of
    blamed   the blamed nodes, each with the confidence
    """

    outage: int
    blamed: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ActionDecided:
    """The policy has decided on an action.

    budget   how often the action is allowed, and within how many seconds; None: without a limit
    own      True: the interruption was caused by the policy itself
    moves    True: a drain moves ranks off their nodes, because their state has other owners
             elsewhere
    """

    action: str
    nodes: tuple[str, ...]
    dry_run: bool
    at_s: float
    budget: tuple[int, float] | None
    own: bool = False
    moves: bool = False


@dataclass(frozen=True, slots=True)
class DrainPlanned:
    """The plans of the generation in which a drained node has no ranks any more.

    undisturbed   True: nothing was struck since the drain began
    left          the ranks that have to live there anyway
    cut_short     the ranks whose process the drain gave up before it had committed the step that
                  the run goes on from
    """

    generation: int
    steps: tuple[int, ...]
    committed: int
    undisturbed: bool
    left: tuple[int, ...] = ()
    cut_short: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EventWritten:
    """The coordinator of `epoch` writes an event into the ledger."""

    kind: str
    data: Mapping[str, object]
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class TextShown:
    """A line that is shown to people.

    `ended_early` is True if a spare has ended before it could park, and was not killed, or may have
    been lost with its node.
    """

    text: str
    ended_early: bool = False


@dataclass(frozen=True, slots=True)
class NodeStaysOut:
    """The run is over, and an agent was connected for `for_s` seconds without enrolling.

    It had given up all its processes, and they had ended.
    """

    node: str
    for_s: float


@dataclass(frozen=True, slots=True)
class StartedOnBarredNode:
    """A start of a worker is ordered on a node that was barred before."""

    node: str
    worker: int
