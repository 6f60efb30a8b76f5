"""What a run waits for while it does not train, and until when, as text for people.

It is shown on the console and in `outlast status`. The text is made from the coordinator's own
facts and timers, so it shows what the coordinator acts on. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Stage, Timer
from outlast.model.terms import Waypoint
from outlast.model.texts import some

# the words for one rank, and for several
_IMPORTS = (
    "it is forked once torch and the script's modules are imported",
    "they are forked once torch and the script's modules are imported",
)
_BEFORE_JOIN = (
    "its script runs, with its imports, and has not called outlast.join",
    "their scripts run, with their imports, and have not called outlast.join",
)
_ON_ITS_WAY = (
    "its script is on the way from outlast.join to run.steps",
    "their scripts are on the way from outlast.join to run.steps",
)
_SETTLES = ("it settles the step that was interrupted", "they settle the step that was interrupted")
_UNSEEN = (
    "its script runs, with its imports: no outlast call and no optimizer step so far",
    "their scripts run, with their imports: no outlast call and no optimizer step so far",
)
_WAYPOINTS = {
    Waypoint.BEGINS: _ON_ITS_WAY,
    Waypoint.AWAITS_STATE: ("it waits for the state", "they wait for the state"),
    Waypoint.CONNECTS: ("it connects to its peers", "they connect to their peers"),
    Waypoint.IN_SCRIPT: _ON_ITS_WAY,
    Waypoint.RESTORES: ("it restores its state", "they restore their state"),
}


@dataclass(frozen=True, slots=True)
class Awaited:
    """This is what the run waits for, and the deadline after which it acts by itself.

    until_s   by the coordinator's clock; None: the wait has no deadline
    """

    what: str
    until_s: float | None


def describe_wait(
    run: RunParts, deadlines: Mapping[str, float], *, imports: bool = False
) -> Awaited | None:
    """Say what the run waits for; None while it trains, or has ended.

    deadlines   the timers of the coordinator that are set, by name
    imports     the process that workers are forked from is not done with its imports
    """
    match run.lifecycle.stage:
        case Stage.ENDED:
            return None
        case Stage.TRAINING:
            return _to_end(run)
        case Stage.ENROLLING:
            return _until(_nodes(run), deadlines, Timer.NODES)
        case Stage.REBUILDING:
            what = "the nodes of the run to come to the new coordinator"
            return _until(what, deadlines, Timer.REBUILD)
        case Stage.GATHERING:
            return _until("other signs of the same fault", deadlines, Timer.GATHER)
        case Stage.LEAVING:
            return _to_leave(run, deadlines)
        case Stage.HANDOVER:
            donors = [m for m in run.roster.live() if m.path.plan and m.path.plan.donate]
            what = f"{_ranks(donors)} to hand over the state"
            return _until(_or_store(run, what), deadlines, Timer.HANDOVER)
        case Stage.CLEARING | Stage.STOPPING:
            return _until(f"{_ranks(run.roster.live())} to end", deadlines, Timer.KILL, Timer.STOP)
        case Stage.STARTING | Stage.MOVING:
            return _to_join(run, deadlines, imports=imports)


def _nodes(run: RunParts) -> str:
    """Say how many nodes are in, which ones, and how many are waited for."""
    here, all_count = tuple(run.nodes), run.options.nodes
    names = f" ({some(here)})" if here else ""
    return f"nodes: {len(here)} of {all_count} are in{names}"


def _to_end(run: RunParts) -> Awaited | None:
    """Describe the wait for scripts after their last step, and for processes that do not end."""
    live = run.roster.live()
    stay = [m for m in live if m.script.lingers]
    what = [f"{_ranks(stay)} to end: the script is over, and the process goes on"] if stay else []
    if all(m.script.finished or m.script.lingers for m in live):
        behind = [m for m in live if not m.script.lingers]
        what += [f"{_ranks(behind)} to end, after the last step"] if behind else []
    return Awaited("; ".join(what), None) if what else None


def _to_leave(run: RunParts, deadlines: Mapping[str, float]) -> Awaited:
    """Describe the wait of a regroup for those that are still in the last generation."""
    condemned = [m for m in run.roster.live() if m.life.condemned]
    if condemned:
        return _until(f"{_ranks(condemned)}, killed, to end", deadlines, Timer.KILL)
    late = run.roster.not_quiesced()
    if late:
        return _until(f"{_ranks(late)} to leave the step", deadlines, Timer.LEAVE)
    if Timer.NODES.value in deadlines:
        return _until("a node with room for the lost ranks", deadlines, Timer.NODES)
    return _until("a connection between nodes", deadlines, Timer.LINKS)


def _to_join(run: RunParts, deadlines: Mapping[str, float], *, imports: bool) -> Awaited | None:
    """Describe the wait of a generation for those that have not joined it yet."""
    roster = run.roster
    late = sorted((m for m in roster.live() if not m.path.joined), key=lambda m: m.rank)
    if not roster.outlast and late and all(m.process.running for m in late):
        return _to_end(run) or _to_show_a_step(run, late)
    by_state: dict[tuple[str, str], list[Member]] = {}
    for member in late:
        by_state.setdefault(_state_of(member, imports=imports), []).append(member)
    what = "; ".join(_said(some, words) for words, some in by_state.items())
    return _until(_or_store(run, what or _of_nobody(run)), deadlines, Timer.MOVE)


def _to_show_a_step(run: RunParts, late: list[Member]) -> Awaited | None:
    """Describe the wait for the first sign of what a script does. It has no deadline.

    The script may still import its modules, or it may never call outlast. A program that is no
    Python script gives no sign at all, so nothing is waited for.
    """
    if run.progress.generation_live or not run.options.greets:
        return None
    return Awaited(_said(late, _UNSEEN), None)


def _of_nobody(run: RunParts) -> str:
    """Describe the wait while no living process is late."""
    gone = [m for m in run.roster.members() if not m.path.joined]
    if gone:
        return f"{_ranks(gone)} to be replaced"
    return "the first step" if run.roster.members() else "the first processes to be ordered"


def _said(members: list[Member], words: tuple[str, str]) -> str:
    """Name the members, and say where they are, with the words for one and for several."""
    return f"{_ranks(members)}: {words[len(members) > 1]}"


def _state_of(member: Member, *, imports: bool) -> tuple[str, str]:
    """Say where a process is on its way into the generation, as of one and as of several."""
    if member.life.condemned:
        return "it was killed and has not ended", "they were killed and have not ended"
    if not member.process.pid and imports:
        return _IMPORTS
    if not member.process.pid:
        return "its process is being started", "their processes are being started"
    if not member.process.hello_seen:
        return "its interpreter starts", "their interpreters start"
    if member.path.waypoint is Waypoint.BEGINS:
        plan = member.path.plan
        if plan is not None and plan.then == "in_place":
            return _SETTLES
        return _ON_ITS_WAY if member.script.registered else _BEFORE_JOIN
    return _WAYPOINTS[member.path.waypoint]


def _or_store(run: RunParts, what: str) -> str:
    """Name the store first if no rank can go on without it."""
    waits = run.store.address is None
    return f"the store of the process groups; {what}" if waits else what


def _ranks(members: Iterable[Member]) -> str:
    ranks = sorted(m.rank for m in members if m.rank >= 0)
    if not ranks:
        return "its processes"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _until(what: str, deadlines: Mapping[str, float], *timers: Timer) -> Awaited:
    """Return the wait with the first of its deadlines."""
    due_s = [deadlines[timer.value] for timer in timers if timer.value in deadlines]
    return Awaited(what, min(due_s, default=None))
