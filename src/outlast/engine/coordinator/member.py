"""`Member`: one process of a run, as the coordinator knows it. This module is pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from outlast.model.messages import Inventory, Registered, Regroup
from outlast.model.terms import Tier, Waypoint


@dataclass(slots=True)
class MemberProcess:
    """The facts about the process itself.

    pid          its process id; 0 until its agent reports that it was started
    host         the host name of its machine; "" until then
    hello_seen   its listener thread runs, so it can be sent a plan
    running      its script runs: it said Hello, or it is a program that was started
    parked       it is a spare that can take a rank now
    """

    pid: int = 0
    host: str = ""
    hello_seen: bool = False
    running: bool = False
    parked: bool = False


@dataclass(slots=True)
class MemberScript:
    """The progress of the script in a process, and how it can be recovered.

    registration   its newest message about that; None: it has not called outlast.join
    attached       run.steps has restored its state, or knows that there is none
    finished       it is past the last step
    left_in_step   it has ended well in the middle of a step, where its peers may wait for it
    lingers        it is over, but its process does not end
    seals_in       the newest generation in which it seals an image after each step; -1: none
    """

    registration: Registered | None = None
    attached: bool = False
    finished: bool = False
    left_in_step: bool = False
    lingers: bool = False
    seals_in: int = -1

    @property
    def registered(self) -> bool:
        """Return True once the script has called outlast.join."""
        return self.registration is not None

    @property
    def recovery_mode(self) -> str:
        """Return how the script can be recovered, as it has registered."""
        return "respawn" if self.registration is None else self.registration.recovery_mode

    def register(self, message: Registered) -> None:
        """Note how the script says that it can be recovered."""
        self.registration, self.attached = message, message.step >= 0


@dataclass(slots=True)
class MemberPath:
    """The way of a process into the generation of its newest plan, and out of it.

    plan              the plan that was made for it, whether it was sent or not
    plan_generation   the generation of the newest plan that was sent; 0: none was
    waypoint          how far it has come since then, as it reports (Underway)
    joined            it is in the current generation
    committed_s       when it committed its first new step in this generation; None: not yet
    inventory         what it holds, once it has left the generation and stands still; else None
    newest_report     generation and step of its newest report. Older reports are late copies
    raised            error and traceback, if its script raised in this generation; else None
    collateral        it reports that a collective failed, so a peer may be the cause
    needs_all_ranks   it cannot replace a rank in place: its script needs all ranks before run.steps
    """

    plan: Regroup | None = None
    plan_generation: int = 0
    waypoint: Waypoint = Waypoint.BEGINS
    joined: bool = False
    committed_s: float | None = None
    inventory: Inventory | None = None
    newest_report: tuple[int, int] = (0, -1)
    raised: tuple[str, str] | None = None
    collateral: bool = False
    needs_all_ranks: bool = False

    def note_break(self, mechanism: str) -> None:
        """Note why the process cannot go on in this generation: the `mechanism` of its Broke."""
        self.collateral = mechanism == "collective"
        self.needs_all_ranks = mechanism == "alone"

    def come_to(self, place: int) -> None:
        """Note a waypoint, given by its value. A lower one is a late message, and is ignored."""
        if place > self.waypoint:
            self.waypoint = Waypoint(place)

    def note_sent(self, plan: Regroup) -> None:
        """Note that the process was sent `plan`: its way into that generation begins."""
        self.plan_generation, self.inventory = plan.generation, None
        self.waypoint = Waypoint.BEGINS
        self.collateral = self.needs_all_ranks = False  # these were about the last generation


@dataclass(slots=True)
class MemberLife:
    """The state of a process: alive, or how it has ended.

    condemned           its death was ordered, and its fault is booked
    dead                it is confirmed to have ended
    done                it has ended well
    node_lost           why its node was lost, if it died with its node; else ""
    ended_in_run_phase  it has ended in a phase (run.phase)
    """

    condemned: bool = False
    dead: bool = False
    done: bool = False
    node_lost: str = ""
    ended_in_run_phase: bool = False


@dataclass(slots=True)
class Member:
    """One process, as the coordinator knows it.

    A member holds a rank, or is a spare with rank -1. It is made when its process is ordered, and
    forgotten when another process takes its rank. So it may outlive its process, which `life.dead`
    tells.

    home   the node whose agent watches it; "" if the run has one node only
    """

    worker: int
    rank: int
    kind: str
    started_s: float
    home: str = ""
    process: MemberProcess = field(default_factory=MemberProcess)
    script: MemberScript = field(default_factory=MemberScript)
    path: MemberPath = field(default_factory=MemberPath)
    life: MemberLife = field(default_factory=MemberLife)

    @property
    def answers_leave(self) -> bool:
        """Return True if this process is in a generation, so that it will answer a Leave.

        A process that is still starting has none yet. It gets the newest plan when it says Hello.
        """
        life = self.life
        gone = life.dead or life.condemned or life.done
        return self.path.plan_generation > 0 and not gone

    @property
    def is_late(self) -> bool:
        """Return True if this process lives, and has not joined the generation."""
        return not (self.life.dead or self.life.condemned or self.path.joined)

    def is_at_work(self, waiting: set[Waypoint]) -> bool:
        """Return True if the script of this process may be running, which may take long.

        waiting   the waypoints at which members only wait for others
        """
        path = self.path
        if path.waypoint is Waypoint.BEGINS and path.plan is not None:
            # A survivor that goes on in place only settles its step first, which is quick.
            return path.plan.then != "in_place"
        return path.waypoint not in waiting


def costliest_tier(members: Iterable[Member]) -> Tier | None:
    """Return the costliest tier from which the plans of `members` restore state; None: none do."""
    plans = [member.path.plan for member in members if member.path.plan is not None]
    if any(plan.checkpoint for plan in plans):
        return Tier.LOCAL
    if any(plan.replicated == "donor" or plan.private == "copy" for plan in plans):
        return Tier.PEER
    moved = any(
        plan.replicated in ("transfer", "kept") or plan.private in ("slot", "twin")
        for plan in plans
    )
    return Tier.MEMORY if moved else None


def said_before(one: Registered, known: Registered | None) -> bool:
    """Return True if `one` is older than `known`, and has only arrived later."""
    if known is None:
        return False
    return (one.generation, one.step, one.at_steps) < (known.generation, known.step, known.at_steps)
