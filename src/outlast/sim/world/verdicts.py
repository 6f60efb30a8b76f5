"""Verdicts for simulated runs.

Some time after an interruption it gets a right or a wrong verdict, and the policy decides what to
do. A verdict names the nodes of ranks in the generation of the interruption. A coordinator that is
away gets the verdict later.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from outlast.engine.coordinator.barring import BARRED
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.policy_actions import (
    DECIDED,
    DEPARTED,
    FAILED_EXIT,
    STOPPED,
)
from outlast.engine.default_policy import TEXT
from outlast.model.messages import StartWorker
from outlast.model.policy import Action, Policy, parse
from outlast.model.records import DRAINING, Event, Interruption
from outlast.model.terms import FailureClass
from outlast.model.verdict import Blamed, Verdict
from outlast.sim.draws import Stream
from outlast.sim.rules.final_observations import ActionDecided, Diagnosed, StartedOnBarredNode
from outlast.sim.world.frame import Frame
from outlast.sim.world.requested_stops import RequestedStops
from outlast.sim.world.timeline import FIXED

EAGER = """
schema = 1
breaker = { actions = 3, within_s = 20, open_s = 3 }

[budget]
drain = { times = 3, within_s = 30 }
exclude = { times = 3, within_s = 10 }

[[rule]]
id = "stop"
when = { class = "user_data", confidence = 0.9 }
action = "stop"

[[rule]]
id = "shrink"
when = { class = "chassis" }
action = "shrink"
otherwise = "exclude"

[[rule]]
id = "drain"
when = { class = ["gpu", "hbm", "nic"] }
action = "drain"
otherwise = "exclude"

[[rule]]
id = "exclude"
when = { class = "straggler" }
action = "exclude"
backoff = { first_s = 0.5, most_s = 8 }

[[rule]]
id = "dry"
when = { class = "cpu" }
action = "drain"
dry_run = true

[[rule]]
id = "rest"
action = "page"
"""
TEXTS: Mapping[str, str] = {"default": TEXT, "eager": EAGER}
CLASSES = (
    *(FailureClass.GPU,) * 4,
    FailureClass.HBM,
    FailureClass.NIC,
    FailureClass.CHASSIS,
    *(FailureClass.STRAGGLER,) * 2,
    FailureClass.CPU,
    FailureClass.USER_CODE,
    FailureClass.USER_DATA,
    FailureClass.NETWORK,
    FailureClass.HOST_MAINTENANCE,
    *(FailureClass.UNKNOWN,) * 3,
)
CONFIDENCES = (0.3, 0.6, 0.79, 0.8, 0.95, 0.95)
DELAYS_S = (0.02, 0.1, 0.3, 0.3, 1.0, 10.0)
AGAIN_S = 1.0  # time until a verdict is offered again to a coordinator that is away


def policy_of(name: str) -> Policy:
    """Return the policy of that name. Without verdicts, any policy will do."""
    return parse(TEXTS.get(name, TEXT), source=f"the policy {name!r}")


class VerdictReceiver(Protocol):
    """The host of the coordinator, which receives the verdicts."""

    lives: bool

    @property
    def homes(self) -> Mapping[int, Mapping[int, str]]: ...

    @property
    def coordinator(self) -> Coordinator: ...

    @property
    def interruptions(self) -> Mapping[int, Interruption]: ...

    def on_verdict(self, interruption: int, verdict: Verdict) -> None: ...

    def drains(self, node: str) -> None: ...


class Verdicts:
    """Draw verdicts for interruptions, and hand each over some time later.

    acts   the number of times that the policy interrupted the run
    own    these interruptions, even if faults joined them
    """

    def __init__(
        self, frame: Frame, host: VerdictReceiver, requested_stops: RequestedStops, draws: Stream
    ) -> None:
        self.acts = 0
        self._frame = frame
        self._host = host
        self._requested_stops = requested_stops
        self._draws = draws
        self._seen: set[int] = set()
        self.own: set[int] = set()  # interruptions that the policy caused
        self._barred: dict[str, set[int]] = {}  # barred nodes, and the ranks that lived there
        self._ordered: set[int] = set()  # workers whose start was ordered
        self._policy = policy_of(frame.options.policy)

    # --- diagnosing -------------------------------------------------------------------------------

    def noted(self, record: Interruption) -> None:
        """Receive the coordinator's record of an interruption.

        The first time, a verdict is drawn for it.
        """
        if self._frame.options.policy == "none" or record.id in self._seen:
            return
        self._seen.add(record.id)
        draws = self._draws
        delay_s = draws.pick(DELAYS_S) * draws.between(0.5, 1.5)
        kind, confidence, by_name, right, which = (
            draws.pick(CLASSES),
            draws.pick(CONFIDENCES),
            draws.chance(0.5),
            draws.chance(0.75),
            draws.below(1 << 20),
        )
        homes = self._host.homes.get(record.generation, {})
        act = partial(self._arrives, record.id, kind, confidence, by_name, right, which, homes)
        self._frame.timeline.after(delay_s, act, sort=FIXED)

    def _arrives(
        self,
        number: int,
        kind: FailureClass,
        confidence: float,
        by_name: bool,
        right: bool,
        which: int,
        homes: Mapping[int, str],
    ) -> None:
        frame = self._frame
        if frame.end is not None:
            return
        if not self._host.lives:
            frame.timeline.after(
                AGAIN_S,
                partial(self._arrives, number, kind, confidence, by_name, right, which, homes),
                sort=FIXED,
            )
            return
        record = self._host.interruptions[number]
        named = record.ranks if right and record.ranks else tuple(range(frame.options.ranks))
        rank = named[which % len(named)]
        confidence = min(confidence, 0.5) if kind is FailureClass.UNKNOWN else confidence
        where = homes.get(rank, "")
        verdict = Verdict(
            kind,
            record.mechanism,
            confidence,
            "as drawn",
            "",
            ranks=() if by_name and where else (Blamed(rank, confidence),),
            nodes=(where,) if by_name and where else (),
        )
        if number not in self.own:
            frame.see(Diagnosed(record.parent or number, {where: confidence} if where else {}))
        frame.say(
            f"verdict on interruption {number}: {kind.value}, confidence {confidence:g}, rank"
            f" {rank}"
        )
        self._host.on_verdict(number, verdict)

    # --- watching ---------------------------------------------------------------------------------

    def written(self, event: Event) -> None:
        """Note that the coordinator records the verdict."""
        data, frame = event.data, self._frame
        if event.kind == DECIDED:
            action, nodes = Action(str(data["action"])), data["nodes"]
            assert isinstance(nodes, list), nodes
            budget = self._policy.budgets.get(action)
            limit = (budget.times, budget.within_s) if budget is not None else None
            moves = (
                frame.options.recovery_mode != "plain"
                and len(set(self._host.coordinator.roster.homes.values())) > 1
            )
            frame.see(
                ActionDecided(
                    action.value,
                    tuple(nodes),
                    bool(data["dry_run"]),
                    frame.now_s,
                    limit,
                    data["interruption"] in self.own,
                    moves,
                )
            )
        elif event.kind == BARRED:
            node = str(data["node"])
            self._barred[node] = {
                rank for rank, home in self._host.coordinator.roster.homes.items() if home == node
            }
        elif event.kind == DEPARTED:
            # ranks that have moved away have no state there any more
            homes = self._host.coordinator.roster.homes
            node = str(data["node"])
            self._barred[node] = {rank for rank, home in homes.items() if home == node}
        elif event.kind == DRAINING:
            self.acts += 1
            number = data["interruption"]
            assert isinstance(number, int), number
            self.own.add(number)
            self._host.drains(str(data["node"]))
        elif event.kind == STOPPED:
            self._requested_stops.add((FAILED_EXIT, str(data["reason"])), now_s=frame.now_s)

    def ordered(self, node: str, message: object) -> None:
        """Note an order of the coordinator to an agent. An order that is sent again is ignored."""
        if (
            not isinstance(message, StartWorker)
            or message.worker in self._ordered
            or self._frame.options.policy == "none"
        ):
            return
        self._ordered.add(message.worker)
        member = self._host.coordinator.roster.of(message.worker)
        if member is None or member.life.condemned:
            return  # this is an older order, and the end of that worker follows
        # the rank's state is on that node, unless it was drained
        stays = self._frame.options.recovery_mode == "sharded" and message.rank in self._barred.get(
            node, ()
        )
        if node in self._barred and not stays:
            self._frame.see(StartedOnBarredNode(node, message.worker))
