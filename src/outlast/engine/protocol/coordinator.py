"""The coordinator: who is in, what to do about a fault, which generation comes next.

    STARTING ──all joined──> TRAINING ──fault──> GATHERING ──a few ms──> LEAVING ──all still, all dead confirmed──┐
        ^                        ^                                                                                │
        │                        └──────────────all joined────────────── MOVING <──in place, re-enter, spare, fork┤
        └──────── CLEARING (all killed, confirmed) <── HANDOVER (a donor writes the transfer image) <──restart────┘
    any ──stop asked, verdict, all done──> STOPPING ──> ENDED

A fault in MOVING or STARTING leads to GATHERING again, with the next generation. Nothing here waits: a
deadline is a timer, and each has an answer that needs nobody's help (kill, and count as dead).

Sans-IO: every method takes `now_s` (the coordinator's monotonic clock) and returns outputs.
"""

from __future__ import annotations

from outlast.engine.coordinator.members import Member, said_before
from outlast.engine.protocol.outputs import End, Output, Record, SetTimer, Tell
from outlast.engine.protocol.rebuild import Rebuilding
from outlast.engine.protocol.state import CoordinatorOptions, Restart, Stage
from outlast.engine.rare import rare
from outlast.model.messages import (
    Broke,
    Checkpointed,
    Committed,
    Donated,
    Enrol,
    Finished,
    FromAgent,
    FromWorker,
    FromWorkers,
    Hello,
    Inventory,
    Joined,
    Parked,
    Pong,
    Progress,
    Refused,
    Registered,
    Standings,
    StoreLost,
    StoreUp,
    Underway,
    Warned,
    WorkerExited,
    WorkerFailedToStart,
    WorkerHung,
    WorkerStarted,
    ZygoteLost,
)

__all__ = ["Coordinator", "CoordinatorOptions", "Restart", "Stage"]


class Coordinator(Rebuilding):
    """One per run. Drive it with `start`, `on_message`, `on_timer`, `on_verdict`, `ask_stop`, `on_manifest`; with several nodes, `CoordinatorSessions`."""

    def __init__(self, *, options: CoordinatorOptions) -> None:
        super().__init__(options=options)
        self._early: list[tuple[FromWorker | FromAgent | FromWorkers, str]] = []  # said while the picture was built, and by whose agent

    # --- the driver's calls --------------------------------------------------------------------------------------

    def _on_timer(self, now_s: float, name: str) -> list[Output]:
        if name == "gather" and self.stage is Stage.GATHERING:
            return self._after_gathering(now_s)
        if name == "leave" and self.stage is Stage.LEAVING:
            rare("not all have left in time")
            return self._late(now_s, name, self.roster.not_still(), "did not leave its collective in time")
        if name == "move" and self.stage in (Stage.MOVING, Stage.STARTING):
            rare("not all have joined in time")
            if (donor := self._donor()) is not None and not donor.condemned:
                return self._late(now_s, name, [donor], "did not hand over its state in time")
            return self._late(now_s, name, self.roster.holding_up(), "did not join the new generation in time")
        if name == "handover" and self.stage is Stage.HANDOVER:
            rare("state is not handed over in time")
            return self._late(now_s, name, [m for m in self.roster.live() if m.plan is not None and m.plan.donate], "did not hand over in time")
        if name == "kill":
            return self._on_unkillable(now_s)
        if name == "hearing":
            return self._judge(now_s)
        if name == "links" and self.stage is Stage.LEAVING:
            return self._check_left(now_s)
        if name == "nodes":
            return self._on_nodes_timer(now_s)
        if name == "spares" and self.stage is not Stage.STOPPING:
            return self._refill_spares(now_s)
        if name == "policy":
            return self._on_policy_timer(now_s)
        if name == "stop":
            assert self._end is not None
            return self._stop_now(now_s, self._end)
        return []

    def on_message(self, message: FromWorker | FromAgent | FromWorkers, *, now_s: float, node: str = "") -> list[Output]:
        """`node`: whose agent says or hands on this."""
        if self.stage is Stage.ENDED:
            return []
        if self.stage is Stage.REBUILDING:
            self._early.append((message, node))
            return []
        if isinstance(message, FromWorkers):
            return self._from_workers(now_s, message.workers, message.message)
        if isinstance(message, WorkerExited):
            return self._on_exit(now_s, message)
        if isinstance(message, Progress):
            self._note_step(self._committed_by(message, node), message.newest)
            self.roster.step_s, self._moved_s = message.step_s, message.at_s
            return self._look_at_departures(now_s, changed=False)
        if isinstance(message, (StoreUp, StoreLost)) and message.number != self._stores:
            rare("news of a store that another one takes the place of")
            return []
        if isinstance(message, StoreUp):
            return self._on_store_up(message)
        if isinstance(message, StoreLost):
            return self._on_store_lost(now_s, message)
        if isinstance(message, Standings):
            return self._on_standings(now_s, node, message)
        if isinstance(message, ZygoteLost):
            return [self._event(now_s, "zygote_lost", {"reason": message.reason})]
        return self._from_workers(now_s, (message.worker,), message)

    def _from_workers(self, now_s: float, workers: tuple[int, ...], message: FromWorker | FromAgent) -> list[Output]:
        """All of them say this, or one does."""
        members = self.roster.those(workers)
        if len(members) < len(workers):
            rare("one that was given up says something")
        return self._from_members(now_s, members, message) if members else []

    def _catch_up(self, now_s: float) -> list[Output]:
        """What was said while the picture was built."""
        early, self._early = self._early, []
        return [output for message, node in early for output in self.on_message(message, now_s=now_s, node=node)]

    def on_timer(self, *, now_s: float, name: str) -> list[Output]:
        """A timer that was set is due."""
        if name == "rebuild":
            return [*self._on_rebuild_timer(now_s), *self._catch_up(now_s)]
        return self._on_timer(now_s, name)

    def node_joined(self, *, now_s: float, enrol: Enrol, by_s: float) -> list[Output]:
        out = super().node_joined(now_s=now_s, enrol=enrol, by_s=by_s)
        return out if self.stage is Stage.REBUILDING else [*out, *self._catch_up(now_s)]

    def _from_members(self, now_s: float, members: list[Member], message: FromWorker | FromAgent) -> list[Output]:
        if isinstance(message, Inventory):
            return self._on_inventory(now_s, members, message)
        if isinstance(message, Underway):
            return self._on_underway(members, message)
        if isinstance(message, Joined):
            return self._on_joined(now_s, members, message)
        if isinstance(message, Committed):
            return self._on_committed(now_s, members, message)
        if isinstance(message, Hello):
            return self._on_hello(now_s, members)
        if isinstance(message, Registered):
            return self._on_registered(now_s, members, message)
        if isinstance(message, Finished):
            return self._on_finished(now_s, members, message)
        return self._from_member(now_s, members[0], message)

    def _from_member(self, now_s: float, member: Member, message: FromWorker | FromAgent) -> list[Output]:
        """What nobody says together with others."""
        if isinstance(message, Broke):
            return self._on_broke(now_s, member, message)
        if isinstance(message, WorkerHung):
            return self._on_hung(now_s, member, message)
        if isinstance(message, Parked):
            member.parked = True
            self._spare_failures = 0
            return []
        if isinstance(message, Donated):
            return self._on_donated(now_s, message, member)
        if isinstance(message, Checkpointed):
            return self._on_checkpointed(now_s, message)
        return self._on_news(now_s, member, message)

    def _on_news(self, now_s: float, member: Member, message: FromWorker | FromAgent) -> list[Output]:
        if isinstance(message, WorkerStarted):
            member.pid, member.node = message.pid, message.node
            return [] if self.options.greets else self._on_running(now_s, [member])
        if isinstance(message, WorkerFailedToStart):
            return self._on_exit(now_s, _never_started(message, now_s))
        if isinstance(message, Refused):
            return self._stop_now(now_s, End(message.exit_code, "failed", message.error, ""))
        if isinstance(message, Warned):
            if message.text in self._warned:
                return []
            self._warned.add(message.text)
            return [self._event(now_s, "warning", {"text": message.text}), Tell(f"warning: {message.text}")]
        assert isinstance(message, Pong), message  # answered to the agent, nothing for us
        return []

    # --- membership ----------------------------------------------------------------------------------------------

    def _on_hello(self, now_s: float, members: list[Member]) -> list[Output]:
        for member in members:
            member.greeted = True
        holders = [member for member in members if member.rank >= 0]
        return [*self._send_plans(holders), *self._on_running(now_s, holders)] if holders else []

    def _on_running(self, now_s: float, members: list[Member]) -> list[Output]:
        for member in members:
            member.running = True
        if not self.roster.outlast and not self.links and self.roster.first("not running", lambda m: not m.running) is None:
            return self._resumed(now_s, now_s)  # a script without steps goes on when all its processes run again
        return []

    def _on_registered(self, now_s: float, members: list[Member], message: Registered) -> list[Output]:
        said = message.generation, message.step
        for member in (newest := [member for member in members if said >= member.said and not said_before(message, member.registration)]):
            member.said, member.registration = said, message
            member.way, member.sharded, member.registered = message.way, message.sharded, True
            member.attached = message.step >= 0
            member.finished = False  # the script may call run.steps again
        if len(newest) < len(members):
            rare("how it can be healed is said again, too late")
        if not newest:
            return []
        out: list[Output] = []
        if not self.roster.outlast or (message.sharded and not self.roster.sharded):
            out.append(Record(self.event(now_s, "script", {"sharded": message.sharded}), at_once=not self.nodes.local))
        self.roster.sharded = self.roster.sharded or message.sharded
        if not self.roster.outlast:
            self.roster.outlast = True
            out.append(SetTimer("spares", None))  # they begin with the training: starting ranks need the processors
        if message.note and message.note not in self._warned:
            self._warned.add(message.note)
            out += [self._event(now_s, "warning", {"text": message.note}), Tell(f"warning: {message.note}")]
        return out

    def _on_underway(self, members: list[Member], message: Underway) -> list[Output]:
        if message.generation == self.generation:
            for member in members:
                member.place = max(member.place, message.place)
        return []

    def _on_joined(self, now_s: float, members: list[Member], message: Joined) -> list[Output]:
        if message.generation != self.generation:
            rare("joined a generation that is over")
            return []
        for member in members:
            member.said = message.generation, message.step
            member.joined = member.attached = True
            self.roster.now_attached(member.rank)
        self._restore_s = max(self._restore_s, message.restore_s)
        if self.stage not in (Stage.MOVING, Stage.STARTING) or self.roster.first("not joined", lambda m: not m.joined) is not None:
            return []
        self.stage, self._stands = Stage.TRAINING, True
        self.links.forget()
        self.interruptions.joined(now_s=now_s, restore_s=self._restore_s)
        return [*self._records(), SetTimer("move", None), SetTimer("spares", now_s), *self._spread_stop()]

    def _on_committed(self, now_s: float, members: list[Member], message: Committed) -> list[Output]:
        """Replicated state: one rank's commit is everybody's. Sharded: the step is committed once the last owner has sealed it."""
        if message.generation != self.generation:
            rare("committed in a generation that is over")
            return []
        self._stands = True
        for member in members:
            member.committed_s = message.at_s
            self.roster.note_done(member.rank, message.step)
        self._note_word(message.step, message.step)
        at_s = message.at_s
        if self.roster.sharded:
            if self.roster.first("not committed", lambda m: m.committed_s is None) is not None:
                return []
            at_s = max(m.committed_s or 0.0 for m in self.roster.members())
        self._trained = True
        return self._resumed(now_s, at_s)


def _never_started(message: WorkerFailedToStart, now_s: float) -> WorkerExited:
    return WorkerExited(message.worker, 0, 1, None, False, -1, (), (), "boot", now_s, now_s, message.error)
