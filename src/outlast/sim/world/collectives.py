"""Groups and collectives that fail like those of gloo.

A collective succeeds on no rank before all ranks have entered. If a member dies or leaves after
that, it may succeed on any subset of ranks, and raises on the rest. A group that is not complete
yet raises nowhere. Its members wait until they get a message.

Between nodes that cannot reach each other, nothing fails at once. A rank that waits for a message
across the cut waits until the message arrives, or until TCP gives the connection up. A rank that
waits for no other node leaves the collective with success. A group is formed when all ranks are at
the store. A rank that cannot connect to a member gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from outlast.model import limits
from outlast.model.messages import STORE, Regroup
from outlast.sim.draws import Draws, Stream
from outlast.sim.durations import SETTLE_MOST_S, SETTLE_S
from outlast.sim.world.paths import GIVES_UP_S, Paths
from outlast.sim.world.processes import Home, PeerFailure, SimulatedGroup, SimulatedProcess
from outlast.sim.world.timeline import Timeline

COLLECTIVE = ("collective", None)
Resume = Callable[
    [SimulatedProcess, int, Exception | None], None
]  # process, its token, what it raises


class Collectives:
    """The groups of a run, and the collectives in them.

    resume   lets a main thread go on, unless it waits for something else meanwhile
    turns    a stream that draws whether the data of a collective passes through all members
    """

    def __init__(
        self,
        timeline: Timeline,
        stream: Stream,
        *,
        ranks: int,
        resume: Resume,
        paths: Paths,
        turns: Stream,
    ) -> None:
        self._timeline = timeline
        self._stream = stream
        self._ranks = ranks
        self._resume = resume
        self._paths = paths
        self._turns = turns
        self._groups: dict[tuple[int, int], SimulatedGroup] = {}

    # --- building ---------------------------------------------------------------------------------

    def build(self, process: SimulatedProcess, plan: Regroup, store: Home) -> None:
        """Let a process wait for the group of `plan`. `store` is the node that hosts the store."""
        group = self._groups.setdefault((plan.generation, plan.store_port), SimulatedGroup())
        process.group, process.collectives = group, 0
        self._come(process, group, store, self._timeline.now_s + limits.STORE_DEADLINE_S)

    def _come(
        self, process: SimulatedProcess, group: SimulatedGroup, store: Home, until_s: float
    ) -> None:
        """Take a process into the group, once the store knows of it."""
        if (heals_s := self._paths.heals_s(process.node, store)) > self._timeline.now_s:
            self._try_again(
                process,
                heals_s,
                until_s,
                (STORE,),
                lambda: self._come(process, group, store, until_s),
            )
            return
        if process not in group.members:
            group.members[process] = None
            group.size += process.count
        if group.size < self._ranks:
            return
        if any(not member.alive or member.group is not group for member in group.members):
            group.lost = True
        for member in list(group.members):
            self._connect(member, group, self._timeline.now_s + limits.GROUP_CONNECT_S)

    def _connect(self, member: SimulatedProcess, group: SimulatedGroup, until_s: float) -> None:
        group.made_s = now_s = self._timeline.now_s
        if self._paths.whole or not member.alive or member.group is not group:
            self._settle(member, group)
            return
        apart = {
            other: at_s
            for other in group.members
            if (at_s := self._paths.heals_s(member.node, other.node)) > now_s
        }
        if apart:
            self._try_again(
                member,
                max(apart.values()),
                until_s,
                _ranks_of(apart),
                lambda: self._connect(member, group, until_s),
            )
        else:
            self._settle(member, group)

    def _try_again(
        self,
        process: SimulatedProcess,
        at_s: float,
        until_s: float,
        unreached: tuple[int, ...],
        act: Callable[[], None],
    ) -> None:
        """Plan `act` for `at_s`, or give up at `until_s`.

        Nothing happens if the process waits for something else then.
        """
        token = process.token
        if at_s > until_s:
            self._later(
                process,
                until_s - self._timeline.now_s,
                PeerFailure("a peer cannot be reached", unreached),
            )
        else:
            self._timeline.after(
                at_s - self._timeline.now_s,
                lambda: act() if process.alive and process.token == token else None,
            )

    # --- collectives ------------------------------------------------------------------------------

    def enter(self, process: SimulatedProcess) -> None:
        """Let a process wait in the next collective of its group."""
        group = process.group
        if group is None or group.lost:
            self.wake(process, PeerFailure("a peer is gone"))
            return
        number = process.collectives
        process.collectives += 1
        group.entered[number] = entered = group.entered.get(number, 0) + process.count
        if entered == self._ranks:
            group.entered.pop(number - 2, None)
            rings = not self._paths.whole and self._turns.chance(0.5)
            for member in group.members:
                if member.waits == COLLECTIVE and member.collectives == number + 1:
                    self._come_through(member, group, rings, self._timeline.now_s + GIVES_UP_S)

    def _come_through(
        self, member: SimulatedProcess, group: SimulatedGroup, rings: bool, until_s: float
    ) -> None:
        """Let a member leave the collective when the data that it waits for can have arrived.

        With `rings`, this data has passed through all members. Otherwise it comes from each of
        them.
        """
        if self._paths.whole or not member.alive or member.group is not group:
            self._settle(member, group)
            return
        at_s = max(
            self._paths.flows_s(one.node, other.node, made_s=group.made_s)
            for one in (group.members if rings else (member,))
            for other in group.members
        )
        if at_s > self._timeline.now_s:
            self._try_again(
                member, at_s, until_s, (), lambda: self._come_through(member, group, rings, until_s)
            )
        elif group.lost and not group.well:
            self._later(member, 0.0, PeerFailure("a peer is gone"))
        else:
            self._later(member, self._draws(member).between(SETTLE_S, SETTLE_MOST_S), None)

    def cut_off(self, process: SimulatedProcess) -> tuple[int, ...]:
        """Return the ranks that do not acknowledge the data of its present collective."""
        group = process.group
        if self._paths.whole or group is None or not _waits_for(process, "collective"):
            return ()
        return _ranks_of(
            other
            for other in group.members
            if self._paths.flows_s(process.node, other.node, made_s=group.made_s)
            > self._timeline.now_s
        )

    # --- the end of a group -----------------------------------------------------------------------

    def leave(self, process: SimulatedProcess, *, well: bool = False) -> None:
        """Take a process out of its group, because it dies or shuts its sockets.

        Members that still wait raise a little later, if they have not left the collective by then.

        With `well`, the process has ended with success, and has sent all its data. So a rank that
        waits for no other rank leaves the collective with success. A rank that cannot be reached
        learns of the end from others that leave, or when it can be reached again.
        """
        group, process.group = process.group, None
        if group is None or group.size < self._ranks:
            return
        first, group.lost, group.well = (
            not group.lost,
            True,
            well and (group.well or not group.lost),
        )
        for member in group.members if first else list(group.unheard):
            served = well and group.entered.get(member.collectives - 1, 0) == self._ranks
            if (
                member.alive
                and member.group is group
                and not served
                and _waits_for(member, "collective", "build")
            ):
                self._hears_of(member, process.node, group)

    def _hears_of(self, member: SimulatedProcess, node: Home, group: SimulatedGroup) -> None:
        at_s = self._paths.flows_s(member.node, node, made_s=group.made_s)
        if at_s > self._timeline.now_s:
            group.unheard.setdefault(member)
            self._later(member, at_s - self._timeline.now_s, PeerFailure("a peer is gone"))
        else:
            group.unheard.pop(member, None)
            self._later(member, self._hears_after_s(member), PeerFailure("a peer is gone"))

    def _hears_after_s(self, member: SimulatedProcess) -> float:
        """Draw the time after which a member learns that another one has left.

        If several leave at the same time, their order makes no difference to the draws.
        """
        return (
            self._stream.between(0.001, 0.03)
            if member.luck is None
            else member.luck.aside(0.001, 0.03)
        )

    def reset(self, node: Home, other: Home) -> None:
        """End all connections between two nodes at once, with the knowledge of both ends.

        The other members learn of it when these leave the group.
        """
        for group in self._groups.values():
            members = [member for member in group.members if member.alive and member.group is group]
            if (
                group.lost
                or sum(len(one.each()) for one in members) < self._ranks
                or not {node, other} <= {member.node for member in members}
            ):
                continue
            group.lost = True
            for member in members:
                if _waits_for(member, "collective", "build"):
                    if member.node in (node, other):
                        self._later(
                            member,
                            self._draws(member).between(0.001, 0.03),
                            PeerFailure("a connection is lost"),
                        )
                    else:
                        group.unheard.setdefault(member)

    def wake(self, process: SimulatedProcess, error: Exception | None) -> None:
        process.token += 1
        process.node.sleeps_no_more(process)
        self._later(process, self._draws(process).between(0.0002, 0.002), error)

    def _settle(self, member: SimulatedProcess, group: SimulatedGroup) -> None:
        """End the collective with success, because all have entered, unless a peer is lost first.

        A member that has left waits for something else.
        """
        if member.alive and member.group is group:
            self._later(
                member,
                self._draws(member).between(SETTLE_S, SETTLE_MOST_S),
                PeerFailure("a peer is gone") if group.lost else None,
            )

    def _draws(self, process: SimulatedProcess) -> Draws:
        return process.luck or self._stream

    def _later(self, process: SimulatedProcess, delay_s: float, error: Exception | None) -> None:
        self._timeline.after(delay_s, partial(self._resume, process, process.token, error))


def _ranks_of(units: Iterable[SimulatedProcess]) -> tuple[int, ...]:
    return tuple(sorted(one.rank for unit in units for one in unit.each()))


def _waits_for(process: SimulatedProcess, *what: str) -> bool:
    return process.waits is not None and process.waits[0] in what
