"""Observations of interruptions and of the whole run, most of them made once it is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from outlast.model.records import Interruption
from outlast.model.terms import Cause


@dataclass(frozen=True, slots=True)
class CulpritsAtEnd:
    """The run is over, and an interruption has this mechanism.

    kinds      the faults that struck the processes that it names
    times_s    what is known of its course, since the beginning
    over_s     now
    unsure_s   how far off a time may be, because the messages that tell of it were held up
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
    stop_asked     a stop of the run was asked for
    refused        input was refused
    alive          processes with a rank that still live
    strikes        how often something was struck that may be taken for a fault
    done           ranks that reached their end well
    blamed         pids that interruptions name, except for one that the run was stopped in before
                   all had left
    struck         pids that were struck so that they may be blamed
    kinds          the kinds of all faults that struck
    max_restarts   whole restarts that are allowed without progress
    asked          exit code and reason of each time that a stop was asked for
    noted          the ledger says that the script has steps, or the one to write that may have been
                   away
    ending_s       how long ago a stop was first asked for; 0: none was, or there are several nodes
    early_s        how long ago a spare first ended by itself before it could park, and could say so
    spent          tokens that are missing from the budgets of replacements and whole restarts;
                   None: a coordinator that knew of others died
    rungs          of the interruptions, in their order, and whether each is a child of another
    policy         the policy that acted
    signals        interruptions that began with the end of a process by a signal
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
    """The bound on time is over, or nothing will ever happen again, and the run has not ended.

    `where`: the place of each process.
    """

    bound_s: float
    where: str


@dataclass(frozen=True, slots=True)
class SecondsAtEnd:
    """The run is over, and the seconds of each rank are booked by cause.

    worked_s      how long each rank worked on steps that it then committed for the first time, by
                  the world's own clock
    unsure_s      the part of that which is not known to the run, because a rank was lost with its
                  node
    interrupted   the run was interrupted, or cut short
    """

    wall_s: float
    by_rank: tuple[Mapping[Cause, float], ...]
    worked_s: tuple[float, ...]
    unsure_s: tuple[float, ...]
    interrupted: bool


@dataclass(frozen=True, slots=True)
class RecoveryChosen:
    """The coordinator has chosen how it answers an interruption.

    rung, reason   as it writes them down
    moves          survivors go on in their processes; otherwise all restart, or the run ends
    kept           ranks that stay in their step
    reentered      ranks that enter main's function again
    begun          ranks that go on though they had no state yet
    taken          ranks that a spare takes
    forked         ranks that get a fresh process
    there          ranks whose process lives, stands still, has its whole state, and has a lease
                   that is not over
    ready          spares that are known to stand ready where ranks are forked, and take none
    held           some process holds the newest committed step
    over           some rank is past the last step
    apart          a node, its link or the coordinator had a fault, so it may not be known which
                   processes live
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
    """The coordinator of `epoch` hears something that people are to be warned of."""

    text: str
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class RecordRewritten:
    """The record of an interruption is written again."""

    before: Interruption
    record: Interruption


@dataclass(frozen=True, slots=True)
class InterruptionAtEnd:
    """The run is over, and this is what its ledger says of one interruption.

    nodes       how many nodes there are, and so how many clocks
    moved       by how many steps the run went back in the generation of this interruption. None: it
                is not known, because under sharded state all ranks may have committed a step that
                not all have sealed
    begun       the same, counted from the newest step that any rank had asked for; None: the script
                has no steps
    back_s      when a later generation first trained, by the clock of the records: it had committed
                a step (sharded: all its ranks had), or a rank was past the last step, or all
                processes of a script without steps had reported that they run. None: never
    latency_s   the longest time that a message takes
    committed   the newest step that was committed when it was detected: the least that was known by
                then, and the true one. None: the run has gone back since, or it is not known
    stood_s     when all ranks had committed a step in a later generation. None: never, or the only
                rank that knew it may be lost with its node
    unsure_s    how wrong the clock of `stood_s` may be
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
    noticed_s      how long the detection took
    back_s         how long after that a step was committed again; None: another fault came before
    latency_s      the longest time that a message takes
    first_step_s   the longest time that the first step of a process takes
    steps          the number of steps before the fault
    within         the fault came in a step, which has a deadline of its own
    mechanism      the mechanism that must be booked; "" if other ranks may be blamed
    silence_s      the silence of a plain script that counts as a hang; 0: the script has steps
    body_s         the longest body of a step
    nodes          how many there are
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
    """An interruption that the run did not make itself gets a verdict.

    `outage`: it, or the one that it is part of; `blamed`: node -> how sure that is.
    """

    outage: int
    blamed: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ActionDecided:
    """The policy has decided on an action.

    `budget`: how often that is allowed within so many seconds; None: without limit. `own`: it is
    for an interruption that the policy made itself. `moves`: a drain takes ranks off their nodes,
    because their state has other owners elsewhere.
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

    `undisturbed`: nothing was struck since the drain began. `left`: ranks that are to live there
    anyway. `cut_short`: ranks whose process was given up by the drain before it had committed
    the step that the run goes on from.
    """

    generation: int
    steps: tuple[int, ...]
    committed: int
    undisturbed: bool
    left: tuple[int, ...] = ()
    cut_short: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class EventWritten:
    """An event of the ledger, by the coordinator of `epoch`."""

    kind: str
    data: Mapping[str, object]
    epoch: int = 1


@dataclass(frozen=True, slots=True)
class TextShown:
    """A line that is shown to people.

    `ended_early`: some spare has ended before it could park, and nobody had killed it, or it may
    have been lost with its node.
    """

    text: str
    ended_early: bool = False


@dataclass(frozen=True, slots=True)
class NodeStaysOut:
    """The run is over, and an agent was connected for so long without enrolling.

    It had given up all its processes, and they have ended.
    """

    node: str
    for_s: float


@dataclass(frozen=True, slots=True)
class StartedOnBarredNode:
    """A worker is to be started on a node that was barred before."""

    node: str
    worker: int
