"""What counts as a fault, of which rank, and which faults are one event.

This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.members import Member
from outlast.engine.protocol.moving import Moving
from outlast.engine.protocol.outputs import Output, SetTimer, Tell
from outlast.engine.protocol.state import Stage
from outlast.engine.rare import rare
from outlast.model import limits
from outlast.model.messages import IMAGE, STORE, Broke, StoreLost, WorkerExited, WorkerHung
from outlast.model.terms import FailureClass, Mechanism


class Faults(Moving):
    """Each fault is booked once, when it is first seen: a process that is condemned adds nothing by its death."""

    def _fault(self, now_s: float, member: Member, mechanism: Mechanism, fault_s: float | None, error: str, traceback: str, reason: str,
               *, joins: bool = False) -> list[Output]:  # fmt: skip
        """`joins`: it is one event with the newest open interruption, as all are that come while a run gathers or leaves."""
        one_node = mechanism is Mechanism.LOST_NODE and self._node_faults > 0
        self._node_faults += self._several_end
        same_event = (one_node or joins or self.stage in (Stage.GATHERING, Stage.LEAVING)) and bool(self.interruptions.open)
        first = not self.interruptions.open
        not_before = None if fault_s is not None else self._moved_s
        self.interruptions.fault(
            rank=member.rank, pid=member.pid, node=member.node, mechanism=mechanism, generation=self.generation, step=self.step, fault_s=fault_s,
            fault_not_before_s=not_before, detected_s=now_s, same_event=same_event, error=error, traceback=traceback, reason=reason,
        )  # fmt: skip
        if first:
            self._fault_s, self._detected_s = fault_s if fault_s is not None else now_s, now_s
        elif fault_s is not None and self._fault_s is not None:
            self._fault_s = min(self._fault_s, fault_s)
        out = self._records()
        if self.stage in (Stage.TRAINING, Stage.MOVING, Stage.STARTING):
            out += self._gather(now_s, limits.VICTIM_WAIT_S if mechanism is Mechanism.LOST_CONTACT else limits.COMPANION_WAIT_S)
        elif self.stage is Stage.GATHERING and mechanism is not Mechanism.LOST_CONTACT:
            out.append(SetTimer("gather", now_s + limits.COMPANION_WAIT_S))
        elif self.stage is Stage.HANDOVER and member.plan is not None and member.plan.donate:
            rare("who was to hand over is lost")
            self.stage, self._cut_short = Stage.LEAVING, False  # all others stand still as before: another one hands over, once this one is dead
            out.append(SetTimer("handover", None))
            if not member.dead and not member.condemned:
                out += self._kill(now_s, [member], reason)
        return out

    def _gather(self, now_s: float, wait_s: float) -> list[Output]:
        self._cut_short = self.stage is Stage.TRAINING
        self.stage = Stage.GATHERING
        return [SetTimer("gather", now_s + wait_s)]

    def _kill_those(self, now_s: float, members: list[Member], why: str) -> list[Output]:
        out: list[Output] = []
        for member in members:
            if not member.condemned and not member.dead:
                member.condemned = True
                out += self._fault(now_s, member, Mechanism.HANG, None, "", "", f"rank {member.rank} (pid {member.pid}) {why}")
                out += self._kill(now_s, [member], why)
        return out

    def _late(self, now_s: float, timer: str, members: list[Member], why: str) -> list[Output]:
        """They are killed; of those on a node without a connection nobody can say yet: it comes back, or is counted out."""
        late = [member for member in members if member.home not in self.nodes.silent]
        again: list[Output] = []
        if len(late) < len(members):
            rare("those that are waited for cannot be heard")
            again = [SetTimer(timer, now_s + limits.SILENT_LOOK_S)]
        return [*again, *self._kill_those(now_s, late, why)]

    # --- how faults show themselves ------------------------------------------------------------------------------

    def _fault_of_exit(self, now_s: float, member: Member, message: WorkerExited) -> list[Output]:
        if member.condemned:
            if member.node_lost:
                self.interruptions.node_lost(reason=member.node_lost)
            return self._records()  # its fault was booked when it was condemned
        mechanism = Mechanism.SIGNAL if message.signal is not None else Mechanism.LOST_CONTACT if member.victim else Mechanism.EXIT
        if member.raised:
            mechanism = Mechanism.EXCEPTION
        if member.node_lost:
            return self._fault(now_s, member, Mechanism.LOST_NODE, None, message.error, "", f"rank {member.rank} is lost with its node: {member.node_lost}")
        error, traceback = member.raised or (message.error or _how(message), "")
        out = self._fault(now_s, member, mechanism, message.fault_s, error, traceback, f"rank {member.rank} (pid {member.pid}) ended: {_how(message)}")
        if message.oom:
            self.interruptions.classify(failure_class=FailureClass.HOST_MEMORY, reason=f"rank {member.rank} was killed for memory by the kernel")
        return out

    def _on_spare_exit(self, now_s: float, spare: Member, message: WorkerExited) -> list[Output]:
        self.roster.drop(spare)
        if self.stage is Stage.STOPPING:
            return self._when_stopped(now_s)
        out: list[Output] = [self._event(now_s, "spare_lost", {"pid": spare.pid, "kind": spare.kind, "error": message.error})]
        if not spare.parked and not spare.condemned:
            rare("a spare ends before it could park")
            self._spare_failures += 1
            out.append(Tell(f"a {spare.kind} spare ended before it could park: {message.error or _how(message)}"))
        return [*out, SetTimer("spares", now_s + limits.SPARE_REFILL_DELAY_S)]

    def _on_hung(self, now_s: float, member: Member, message: WorkerHung) -> list[Output]:
        if member.condemned or member.dead:
            rare("hung, and condemned already")
            return []
        if self._by_signal:
            rare("one does not end whose peers were sent SIGTERM")
            return []
        member.condemned = True
        if member.rank < 0:
            rare("a spare hangs")
            return self._kill(now_s, [member], message.reason)
        out = self._fault(now_s, member, Mechanism.HANG, message.last_s, "", "", message.reason)
        return [*out, *self._kill(now_s, [member], message.reason)]

    def _on_broke(self, now_s: float, member: Member, message: Broke) -> list[Output]:
        if message.generation != self.generation or member.rank < 0 or member.condemned:
            rare("broke in a generation that is over, or condemned")
            return []
        if self._by_signal:
            rare("one breaks whose peers were sent SIGTERM")
            return []
        member.victim = message.mechanism == "collective"
        if message.unreached:
            self._note_links(now_s, member, message)
        if message.mechanism == "exception":
            self._raised.add(member.rank)
            member.raised = (message.error, message.traceback)
            self._user_error = (message.error, message.traceback)
            return self._fault(now_s, member, Mechanism.EXCEPTION, message.at_s, message.error, message.traceback, f"rank {member.rank} raised")
        if message.mechanism == "corrupt":
            return self._fault(now_s, member, Mechanism.CORRUPT, message.at_s, message.error, "", f"rank {member.rank}'s image is corrupt: it was refused")
        if self.stage not in (Stage.TRAINING, Stage.MOVING, Stage.STARTING):
            return self._records()  # a victim of what is being dealt with
        if self.links and self.interruptions.open:
            rare("a generation fails for a link that is known to be cut")
            return [*self._records(), *self._gather(now_s, limits.VICTIM_WAIT_S)]  # it is the same interruption that goes on
        rare("a victim speaks before the culprit is known")
        out = self._fault(now_s, member, Mechanism.LOST_CONTACT, None, message.error, "", f"rank {member.rank}'s collective failed")
        if self._store_lost[0] == self.generation:
            self.interruptions.excuse(reason=self._store_lost[1])
        if self.links:
            self.interruptions.excuse(reason=self.links.reason)
        return [*out, *self._records()]

    def _note_links(self, now_s: float, member: Member, message: Broke) -> None:
        """It names what it could not reach: a link is cut, and no rank is to blame."""
        homes = {
            self._store_home if one == STORE else (self._donated.home if self._donated is not None else "") if one == IMAGE else self.roster.homes.get(one, "")
            for one in message.unreached
        }
        others = [home for home in sorted(homes) if home in self.nodes and home != member.home]
        if others and member.home in self.nodes:
            rare("nodes that cannot reach each other")
            self.links.cut(member.home, others, generation=message.generation, now_s=now_s)
            self.interruptions.excuse(reason=self.links.reason)

    def _on_store_lost(self, now_s: float, message: StoreLost) -> list[Output]:
        """Whoever builds a group just now fails for it, and may say so before this is known."""
        if self.stage is not Stage.TRAINING:
            rare("the store is lost while a generation is built")
        self._store, self._store_lost = None, (self.generation, f"the store that groups are built with was lost: {message.reason}")
        if self.stage in (Stage.GATHERING, Stage.LEAVING):
            self.interruptions.excuse(reason=self._store_lost[1])
        return [*self._records(), self._event(now_s, "store_lost", {"reason": message.reason}), *self._ask_store(now_s, message.reason)]


def _how(message: WorkerExited) -> str:
    return f"signal {message.signal}" if message.signal is not None else f"exit code {message.exit_code}"
