"""Leases: how long an agent's processes may go on without hearing from the coordinator.

This is the arithmetic of both sides. The agent asks for a lease, which runs from that moment on the
agent's clock. The coordinator receives the request later, and counts from then on its own clock. It
adds the largest drift between two clocks, and the time that the agent needs to kill its processes.
Only after that it gives the agent's ranks away.

This module is pure.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from outlast.engine.protocol.outputs import Output, SetTimer
from outlast.model import limits
from outlast.model.messages import Beat


class Lease:
    """The lease of an agent. There is none at first: `until_s` is None."""

    def __init__(self) -> None:
        self.until_s: float | None = None
        self.lease_s = 0.0
        self._asked_s: OrderedDict[int, float] = OrderedDict()

    def begins(self, *, asked_s: float, lease_s: float) -> None:
        """Begin the lease that came with the welcome. It runs from when the agent enrolled."""
        self.lease_s, self.until_s = lease_s, asked_s + lease_s
        self._asked_s.clear()

    def asked(self, number: int, *, now_s: float) -> None:
        """Note that the agent asks for the lease to be prolonged, by the heartbeat `number`."""
        self._asked_s[number] = now_s

    def granted(self, number: int) -> None:
        """Prolong the lease: the heartbeat `number` was granted. An unknown number is ignored."""
        asked_s = self._asked_s.pop(number, None)
        if asked_s is not None and self.until_s is not None:
            self.until_s = max(self.until_s, asked_s + self.lease_s)
        while self._asked_s and next(iter(self._asked_s)) < number:
            self._asked_s.popitem(last=False)

    def prolong(self, *, asked_s: float) -> None:
        """Prolong the lease from `asked_s`, if there is one."""
        if self.until_s is not None:
            self.until_s = max(self.until_s, asked_s + self.lease_s)

    def ends(self) -> None:
        """End the lease. There is none until the next `begins`."""
        self.until_s = None
        self._asked_s.clear()

    def is_out(self, *, now_s: float) -> bool:
        """Return True if there was a lease, and it is out."""
        return self.until_s is not None and now_s >= self.until_s


class HeldLease:
    """The lease of one agent, with the heartbeats that ask for it and the timer that ends it.

    The lease begins with the welcome to an enrolment, and runs from when the agent enrolled. Each
    heartbeat asks for another one, which runs from when the heartbeat was sent.
    """

    def __init__(self, *, beat_s: float) -> None:
        self._lease = Lease()
        self._alarm = Alarm("lease")
        self._beat_s = beat_s
        self._beats = 0
        self._enrolled_s = 0.0

    @property
    def until_s(self) -> float | None:
        """Return when the lease is out, or None if there is no lease."""
        return self._lease.until_s

    def is_out(self, *, now_s: float) -> bool:
        """Return True if there was a lease, and it is out."""
        return self._lease.is_out(now_s=now_s)

    def enrols(self, *, now_s: float) -> None:
        """Note that the agent enrols: a lease that comes with the welcome runs from now."""
        self._enrolled_s = now_s

    def is_over_before_it_begins(self, lease_s: float, *, now_s: float) -> bool:
        """Return True if the welcome took longer than the lease that it brings."""
        return now_s >= self._enrolled_s + lease_s

    def begins(self, lease_s: float) -> None:
        """Begin the lease: the agent was welcomed."""
        self._lease.begins(asked_s=self._enrolled_s, lease_s=lease_s)

    def ask(self, heard: int, *, now_s: float) -> Beat:
        """Return the next heartbeat. `heard`: the newest message that the agent has heard."""
        self._beats += 1
        self._lease.asked(self._beats, now_s=now_s)
        return Beat(self._beats, heard, now_s)

    def next_beat(self, now_s: float) -> SetTimer:
        """Set the timer of the next heartbeat."""
        return SetTimer("beat", now_s + self._beat_s)

    def prolong(self, *, asked_s: float) -> list[Output]:
        """Prolong the lease without the coordinator: a majority of the voters does not hear from it
        either.
        """
        self._lease.prolong(asked_s=asked_s)
        return self.watch()

    def leave_out_beats(self, *, asked_s: float) -> None:
        """Prolong the lease by heartbeats that the driver has left out.

        Each would have been granted. The last would have been sent at `asked_s`.
        """
        self._lease.begins(asked_s=asked_s, lease_s=self._lease.lease_s)

    def granted(self, number: int) -> list[Output]:
        """Prolong the lease: the heartbeat `number` was granted."""
        self._lease.granted(number)
        return self.watch()

    def watch(self) -> list[Output]:
        """Set the timer for the end of the lease, if it is not set."""
        return self._alarm.at(self._lease.until_s)

    def rang(self, *, now_s: float) -> None:
        """Note that the timer for the end of the lease has fired."""
        self._alarm.rang(now_s=now_s)

    def ends(self) -> list[Output]:
        """End the lease: no timer of it is needed any more."""
        self._lease.ends()
        return [*self.watch(), SetTimer("beat", None)]


def kill_s(lease_s: float) -> float:
    """Return how many seconds an agent has to kill its processes once its lease is out.

    In that time they cannot vote, seal or commit, because they check the lease themselves.
    """
    return min(limits.LEASE_KILL_S, lease_s / 2)


def void_after_s(lease_s: float) -> float:
    """Return how many seconds after a node's last message its processes are certainly dead.

    (Or they are stuck in the kernel, and run no code.) The time is by the coordinator's clock, from
    when it received that message.
    """
    return lease_s * (1 + limits.CLOCK_DRIFT_MAX) / (1 - limits.CLOCK_DRIFT_MAX) + kill_s(
        lease_s
    ) * (1 + limits.CLOCK_DRIFT_MAX)


class LeaseBook:
    """The coordinator's book of the leases of all nodes: constant time for each heartbeat."""

    def __init__(self, *, lease_s: float) -> None:
        self._void_after_s = void_after_s(lease_s)
        self._heard_s: OrderedDict[str, float] = OrderedDict()  # the longest silent first

    def heard(self, node: str, *, now_s: float) -> None:
        """Note a sign of life of a node, which begins its lease or prolongs it."""
        self._heard_s[node] = now_s
        self._heard_s.move_to_end(node)

    def forget(self, node: str) -> None:
        """Forget a node that is counted out."""
        self._heard_s.pop(node, None)

    def void(self, *, now_s: float) -> list[str]:
        """Return the nodes whose lease is out for certain, and forget them."""
        out = []
        while self._heard_s:
            node, heard_s = next(iter(self._heard_s.items()))
            if now_s < heard_s + self._void_after_s:
                break
            out.append(node)
            del self._heard_s[node]
        return out

    def next_s(self) -> float | None:
        """Return when the next lease may be void."""
        return next(iter(self._heard_s.values())) + self._void_after_s if self._heard_s else None


class Alarm:
    """A timer for a moment that every message may postpone.

    To set the timer at each message would cost too many outputs. So it is left as it is when the
    moment moves to later. It then fires too early, and is set again.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._set_s = math.inf  # when it is due; infinity: it is not set

    def at(self, due_s: float | None) -> list[Output]:
        """Note that the moment is `due_s` now; None: there is none."""
        before_s, due_s = self._set_s, math.inf if due_s is None else due_s
        if before_s == due_s or before_s < due_s < math.inf:
            return []
        self._set_s = due_s
        return [SetTimer(self._name, due_s if due_s < math.inf else None)]

    def rang(self, *, now_s: float) -> float:
        """Note that the timer has fired. Return by how many seconds it was late."""
        late_s = max(0.0, now_s - self._set_s)
        self._set_s = math.inf
        return late_s
