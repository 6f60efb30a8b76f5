"""Connect a node to the node that leads the run, and compare how the two were started.

While the leading node does not answer, this node prints lines for people. They say to which address
it connects, how often it has tried, and until when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone

from outlast.app.launch.nodes import NodeArguments
from outlast.errors import OutlastError, UsageError
from outlast.model import limits
from outlast.model.messages import Admitted, Message
from outlast.runtime import clock
from outlast.runtime.agent.dialler import Caller, Dialler
from outlast.runtime.loop import Loop
from outlast.runtime.software import difference


@dataclass(frozen=True)
class Destination:
    """The address to which this node connects, and how long it goes on trying.

    endpoint  the address and the port of the coordinator
    named     the endpoint in words for people, with the host name that was given
    wait_s    --join-timeout: the most seconds that it tries
    here      True if the address is of this machine, where another process has the port
    """

    endpoint: tuple[str, int]
    named: str
    wait_s: float
    here: bool


def destination_of(nodes: NodeArguments, endpoint: tuple[str, int], *, here: bool) -> Destination:
    """Return the address of the coordinator, which --rdzv-endpoint names."""
    address, port = endpoint
    host = address if nodes.host == address else f"{nodes.host} ({address})"
    return Destination(endpoint, f"{host} port {port}", nodes.join_timeout_s, here)


class Arrival:
    """Wait for the first connection to the coordinator (`LinkEvents`)."""

    def __init__(self) -> None:
        self.facts: Admitted | None = None
        self.refusal = ""

    @property
    def done(self) -> bool:
        """Return True once the coordinator has answered."""
        return self.facts is not None or bool(self.refusal)

    def on_admitted(self, facts: Admitted) -> None:
        self.facts = facts

    def on_refused(self, reason: str) -> None:
        self.refusal = reason

    def on_link(self, message: Message) -> None:
        """Ignore a message: the agent has not enrolled yet."""

    def on_broken(self) -> None:
        self.facts = None


class _TryReports:
    """Print from time to time how often this node has tried to connect, until `close`."""

    def __init__(
        self, loop: Loop, destination: Destination, dialler: Dialler, tell: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._destination = destination
        self._dialler = dialler
        self._tell = tell
        end = datetime.fromtimestamp(clock.wall_s() + destination.wait_s, timezone.utc).astimezone()
        self._until = end.strftime("%H:%M:%S")
        self._timer = loop.call_at(clock.now_s() + limits.TRIES_TOLD_FIRST_S, self._say)

    def close(self) -> None:
        self._timer.cancel()

    def _say(self) -> None:
        self._timer = self._loop.call_at(clock.now_s() + limits.TRIES_TOLD_S, self._say)
        destination, dialler = self._destination, self._dialler
        self._tell(
            f"no `outlast run` answers at {destination.named} so far, after {dialler.tries} tries"
            f" ({dialler.error or 'no answer'}): this node goes on trying until {self._until}"
            f" (--join-timeout {destination.wait_s:g})"
        )


def reach(
    loop: Loop,
    destination: Destination,
    caller: Caller,
    *,
    token: bytes | None,
    tell: Callable[[str], None],
) -> tuple[Dialler, Admitted]:
    """Connect to the coordinator. Raises OutlastError if it cannot be reached or refuses us."""
    arrival = Arrival()
    dialler = Dialler(loop, destination.endpoint, caller, arrival, token=token)
    reports = _TryReports(loop, destination, dialler, tell)

    def strange() -> bool:
        return dialler.strange >= limits.STRANGE_ANSWERS_COUNT

    dialler.dial()
    try:
        came = loop.run_until(lambda: arrival.done or strange(), within_s=destination.wait_s)
    finally:
        reports.close()
    if came and arrival.facts is not None:
        return dialler, arrival.facts
    count, why = dialler.tries, dialler.error or "no answer"
    dialler.close()
    if arrival.refusal:
        raise UsageError(f"{destination.named}: {arrival.refusal}")
    if strange():
        raise UsageError(
            f"--rdzv-endpoint: at {destination.named} another program listens than"
            f" `outlast run` ({why})",
            hint="give another port on all nodes, or end that program (`ss -ltnp` names it)",
        )
    whose = "does another program have that port (`ss -ltnp`)?" if destination.here else ""
    raise OutlastError(
        f"the coordinator at {destination.named} was not reached in {destination.wait_s:g} s,"
        f" with {count} tries: {why}",
        hint=whose or "is `outlast run` started on that node, and may this node connect to it?",
    )


def check_size(facts: Admitted, *, nodes: int, workers: int) -> None:
    """Raise UsageError if this node and the leading node were given different sizes."""
    if facts.nodes and (facts.nodes, facts.workers) != (nodes, workers):
        raise UsageError(
            f"this node was given --nnodes {nodes} --nproc-per-node {workers}, and the node that"
            f" leads the run --nnodes {facts.nodes} --nproc-per-node {facts.workers}",
            hint="give all nodes of a run the same, and another run an endpoint of its own",
        )


def warnings(facts: Admitted, *, script: str, digest: str, software: str) -> list[str]:
    """Return a warning for each difference between this node and the leading node."""
    out = []
    if digest and facts.digest and digest != facts.digest:
        out.append(
            f"warning: {script} of this node is not the same script as {facts.script} of the node"
            " that leads: ranks that run different code may wait for each other for ever"
        )
    if other := difference("the node that leads", facts.software, software):
        out.append(other)
    return out
