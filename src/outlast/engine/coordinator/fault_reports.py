"""Reports of faults whose process is alive: hangs, exceptions, broken collectives, a lost store.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from outlast.engine.coordinator.cut_links import Pair
from outlast.engine.coordinator.epilogue import Epilogue
from outlast.engine.coordinator.left_in_step import LeftInStep
from outlast.engine.coordinator.member import Member
from outlast.engine.coordinator.orders import event
from outlast.engine.coordinator.regroup import RegroupMachine
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import IN_A_GENERATION, Stage
from outlast.engine.coordinator.stop import StopRequest
from outlast.engine.protocol.outputs import Output
from outlast.model import limits
from outlast.model.messages import IMAGE, STORE, Broke, StoreLost, WorkerHung
from outlast.model.terms import Mechanism


class FaultReports:
    """Handle reports of workers and agents about faults. It has no state of its own."""

    def __init__(self, run: RunParts, stop: StopRequest, regroup: RegroupMachine) -> None:
        self.run = run
        self.stop = stop
        self.regroup = regroup
        self.epilogue = Epilogue(run, stop)
        self.left = LeftInStep(run, stop, regroup)

    def on_hung(self, now_s: float, member: Member, message: WorkerHung) -> list[Output]:
        """Kill a process that makes no progress, and book its fault."""
        if member.life.condemned or member.life.dead:
            # The worker is already being killed, and its fault is booked.
            return []
        if self.stop.by_signal:
            # The run is stopping, and this worker does not end: that is not a new fault.
            return []
        member.life.condemned = True
        if member.rank < 0:
            # A spare has no rank, so its hang is not a fault of the run.
            return self.run.kill(now_s, [member], message.reason)
        kind, last_s = Mechanism.HANG, self._last_seen_s(message)
        out = self.regroup.fault(now_s, member, kind, last_s, "", "", message.reason)
        return [*out, *self.run.kill(now_s, [member], message.reason)]

    def _last_seen_s(self, message: WorkerHung) -> float | None:
        """Return when a process last moved, or None if that cannot be seen.

        It cannot be seen in a script without outlast calls whose steps are not counted. There, only
        a silence that has lasted too long shows a hang.
        """
        run = self.run
        seen = run.roster.outlast or run.progress.trained
        return message.last_s if seen or message.deadline_s > limits.STOPPED_FLOOR_S else None

    def on_broke(self, now_s: float, member: Member, message: Broke) -> list[Output]:
        """Handle a worker's report that it cannot go on in this generation.

        Its script raised, its image is corrupt, or a collective failed.
        """
        run = self.run
        stale = message.generation != run.lifecycle.generation
        if stale or member.rank < 0 or member.life.condemned:
            # The report is of a generation that is over, or of a worker that is being killed.
            return []
        if self.stop.by_signal:
            # Its peers were sent SIGTERM, so a broken step is not a fault.
            return []
        member.path.note_break(message.mechanism)
        if message.mechanism != "corrupt" and self.epilogue.is_reached(member):
            if member.path.collateral:
                return []  # a peer has ended or failed, and that will be reported by itself
            return self.epilogue.script_raised(
                now_s, member, at_s=message.at_s, error=message.error, traceback=message.traceback
            )
        if message.unreached:
            self.note_links(now_s, member, message)
        rank, at_s, error = member.rank, message.at_s, message.error
        if message.mechanism == "exception":
            member.path.raised = (error, message.traceback)
            run.faults.note_raised(rank, member.path.raised)
            kind, why = Mechanism.EXCEPTION, f"rank {rank} raised"
            return self.regroup.fault(now_s, member, kind, at_s, *member.path.raised, why)
        if message.mechanism == "corrupt":
            why = f"rank {rank}'s image is corrupt: it was refused"
            return self.regroup.fault(now_s, member, Mechanism.CORRUPT, at_s, error, "", why)
        if member.path.needs_all_ranks:
            return self._on_needs_all_ranks(now_s, member, error)
        return self._on_collective_failed(now_s, member, error)

    def _on_needs_all_ranks(self, now_s: float, member: Member, error: str) -> list[Output]:
        """Begin another regroup for the open interruption, because its rung was too cheap.

        This is not another fault. `member` has reported that it cannot be replaced in place, so the
        roster's recovery mode is a costlier one from now on.
        """
        run, why = self.run, f"rank {member.rank} cannot be replaced in place: {error}"
        if not run.interruptions.open:
            return self.regroup.fault(now_s, member, Mechanism.LOST_CONTACT, None, error, "", why)
        run.interruptions.explain(reason=why)
        gathers = run.lifecycle.is_in(*IN_A_GENERATION)
        out = self.regroup.gather(now_s, limits.COMPANION_WAIT_S) if gathers else []
        return [*run.records(), *out]

    def _on_collective_failed(self, now_s: float, member: Member, error: str) -> list[Output]:
        """Book a failed collective of `member` as collateral of some other fault."""
        run = self.run
        if not run.lifecycle.is_in(*IN_A_GENERATION):
            return run.records()  # collateral of a fault that is already being handled
        if blamed := self.left.blame(now_s):
            # A peer has left the script, and this collective failed for it.
            return blamed
        if run.links and run.interruptions.open:
            # The generation failed because of a link that is known to be cut,
            # so the same interruption goes on.
            return [*run.records(), *self.regroup.gather(now_s, limits.COLLATERAL_WAIT_S)]
        # Collateral may report before the culprit is known.
        kind, why = Mechanism.LOST_CONTACT, f"rank {member.rank}'s collective failed"
        out = self.regroup.fault(now_s, member, kind, None, error, "", why)
        if run.store.lost_in == run.lifecycle.generation:
            run.interruptions.excuse(reason=run.store.lost_reason)
        if run.links:
            run.interruptions.excuse(reason=run.links.reason)
        return [*out, *run.records()]

    def note_links(self, now_s: float, member: Member, message: Broke) -> None:
        """Note which links are cut, if a worker names what it could not reach.

        No rank is to blame then.
        """
        run = self.run
        homes = {self._home_of(one) for one in message.unreached}
        others = [home for home in sorted(homes) if home in run.nodes and home != member.home]
        if others and member.home in run.nodes:
            run.links.cut(member.home, others, generation=message.generation, now_s=now_s)
            run.interruptions.excuse(reason=run.links.reason)

    def on_cut_for_good(
        self, now_s: float, member: Member, since_s: Mapping[Pair, float]
    ) -> list[Output]:
        """Begin a regroup, because links have long carried nothing and all ranks wait for them.

        If survivors keep their processes (mode "in_place"), the next generation is first tried over
        new connections, and a node is given up only if that fails. Otherwise a node is given up at
        once, because ranks that follow another plan lose the state in their processes.

        since_s   for each link: since when it has carried nothing
        """
        run = self.run
        tries = run.roster.recovery_mode == "in_place"
        generation = run.lifecycle.generation if tries else run.lifecycle.generation - 1
        for (node, other), at_s in since_s.items():
            run.links.cut(node, [other], generation=generation, now_s=now_s, since_s=at_s)
        contact, why = Mechanism.LOST_CONTACT, run.links.reason
        out = self.regroup.fault(now_s, member, contact, None, "", "", why)
        run.interruptions.excuse(reason=why)
        return [*out, *run.records()]

    def _home_of(self, unreached: int) -> str:
        """Return the node of what was not reached: of the store, the transfer image, or a rank."""
        run = self.run
        if unreached == STORE:
            return run.store.home
        if unreached == IMAGE:
            return run.sources.transfer_home()
        return run.roster.homes.get(unreached, "")

    def on_store_lost(self, now_s: float, message: StoreLost) -> list[Output]:
        """Order another store, because this one is lost.

        A worker that was just building a group fails because of that, and may have reported its
        failure first. Then it is not to blame.
        """
        run = self.run
        run.store.lose(run.lifecycle.generation, message.reason)
        if run.lifecycle.is_in(Stage.GATHERING, Stage.LEAVING):
            run.interruptions.excuse(reason=run.store.lost_reason)
        noted = [*run.records(), event(now_s, "store_lost", {"reason": message.reason})]
        return [*noted, *run.order_store(now_s, message.reason)]
