"""Groups and collectives that fail as gloo's do.

Nowhere ok before all have entered; after that, where a member dies or leaves, ok on any subset and an error on the rest.
A group that is not complete yet raises nowhere: its members wait until they are told.
"""

from __future__ import annotations

from collections.abc import Callable

from outlast.model.messages import Regroup
from outlast.sim.draws import Stream
from outlast.sim.processes import Group, PeerFailure, Process
from outlast.sim.timeline import Timeline

Resume = Callable[[Process, int, Exception | None], None]  # process, its token, what it raises


class Collectives:
    """`resume` lets a main thread go on, unless it waits for something else by then."""

    def __init__(self, timeline: Timeline, stream: Stream, *, ranks: int, resume: Resume) -> None:
        self._timeline = timeline
        self._stream = stream
        self._ranks = ranks
        self._resume = resume
        self._groups: dict[tuple[int, int], Group] = {}

    def build(self, process: Process, plan: Regroup) -> None:
        """Its main thread waits for the group of `plan`."""
        group = self._groups.setdefault((plan.generation, plan.store_port), Group())
        process.group, process.collectives = group, 0
        group.members[plan.rank] = process
        if len(group.members) < self._ranks:
            return
        if any(not member.alive or member.group is not group for member in group.members.values()):
            group.lost = True
        for member in list(group.members.values()):
            self._settle(member, group)

    def enter(self, process: Process) -> None:
        """Its main thread waits in its group's next collective."""
        group = process.group
        if group is None or group.lost:
            self.wake(process, PeerFailure("a peer is gone"))
            return
        number = process.collectives
        process.collectives += 1
        entered = group.entered.setdefault(number, set())
        entered.add(process.rank)
        if len(entered) == self._ranks:
            for member in group.members.values():
                if _waits_for(member, "collective") and member.collectives == number + 1:
                    self._settle(member, group)

    def leave(self, process: Process, *, well: bool = False) -> None:
        """It dies, or shuts its sockets. Those that still wait raise, a little later, if they have not come through by then.

        One that has come to its end well has sent all that it had to: who waits for nobody else comes through.
        """
        group, process.group = process.group, None
        if group is None or group.lost or len(group.members) < self._ranks:
            return
        group.lost = True
        for member in group.members.values():
            served = well and len(group.entered.get(member.collectives - 1, ())) == self._ranks
            if member is not process and member.alive and not served and _waits_for(member, "collective", "build"):
                self._later(member, self._stream.between(0.001, 0.03), PeerFailure("a peer is gone"))

    def wake(self, process: Process, error: Exception | None) -> None:
        process.token += 1
        self._later(process, self._stream.between(0.0002, 0.002), error)

    def _settle(self, member: Process, group: Group) -> None:
        """All have entered: it ends well here, unless a peer is lost before that. One that has left waits for something else."""
        if member.alive and member.group is group:
            self._later(member, self._stream.between(0.0005, 0.006), PeerFailure("a peer is gone") if group.lost else None)

    def _later(self, process: Process, delay_s: float, error: Exception | None) -> None:
        token = process.token
        self._timeline.after(delay_s, lambda: self._resume(process, token, error))


def _waits_for(process: Process, *what: str) -> bool:
    return process.waits is not None and process.waits[0] in what
