"""Verdicts for simulated runs: some time after an interruption somebody has diagnosed it, rightly
or not, and the policy says what comes of that.

Who is named lived where it did in the generation of the interruption. A coordinator that is away
hears the verdict later.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from outlast.engine.coordinator.policy_actions import (
    BARRED,
    DECIDED,
    DRAINING,
    FAILED_EXIT,
    STOPPED,
)
from outlast.engine.default_policy import TEXT
from outlast.model.messages import StartWorker
from outlast.model.policy import Action, Policy, parse
from outlast.model.records import Event, Interruption
from outlast.model.terms import FailureClass
from outlast.model.verdict import Blamed, Verdict
from outlast.sim.draws import Stream
from outlast.sim.rules.final_observations import Acted, Diagnosed, StartedThere
from outlast.sim.world.timeline import FIXED

if TYPE_CHECKING:
    from outlast.sim.world.world import World

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
AGAIN_S = 1.0  # a coordinator that is away is told again


def policy_of(name: str) -> Policy:
    """Of a run in which nobody diagnoses it does not matter."""
    return parse(TEXTS.get(name, TEXT), source=f"the policy {name!r}")


class Verdicts:
    """`acts`: how often the policy interrupted the run; `own`: these interruptions, whatever else
    joined them.
    """

    def __init__(self, world: World, draws: Stream) -> None:
        self.acts = 0
        self._world = world
        self._draws = draws
        self._seen: set[int] = set()
        self.own: set[int] = set()  # interruptions that the policy made
        self._barred: dict[str, set[int]] = {}  # and the ranks that lived there
        self._ordered: set[int] = set()  # workers
        self._policy = policy_of(world.options.policy)

    # --- diagnosing -------------------------------------------------------------------------------

    def noted(self, record: Interruption) -> None:
        """The coordinator writes down what it knows of an interruption; the first time a verdict is
        drawn for it.
        """
        if self._world.options.policy == "none" or record.id in self._seen:
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
        homes = self._world.host.homes.get(record.generation, {})
        act = partial(self._arrives, record.id, kind, confidence, by_name, right, which, homes)
        self._world.timeline.after(delay_s, act, sort=FIXED)

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
        world = self._world
        if world.end is not None:
            return
        if not world.host.lives:
            world.timeline.after(
                AGAIN_S,
                partial(self._arrives, number, kind, confidence, by_name, right, which, homes),
                sort=FIXED,
            )
            return
        record = world.interruptions[number]
        named = record.ranks if right and record.ranks else tuple(range(world.options.ranks))
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
            world.see(Diagnosed(record.parent or number, {where: confidence} if where else {}))
        world.say(
            f"verdict on interruption {number}: {kind.value}, confidence {confidence:g}, rank"
            f" {rank}"
        )
        world.host.on_verdict(number, verdict)

    # --- watching ---------------------------------------------------------------------------------

    def written(self, event: Event) -> None:
        """The coordinator writes it down."""
        data, world = event.data, self._world
        if event.kind == DECIDED:
            action, nodes = Action(str(data["action"])), data["nodes"]
            assert isinstance(nodes, list), nodes
            budget = self._policy.budgets.get(action)
            limit = (budget.times, budget.within_s) if budget is not None else None
            moves = (
                world.options.way not in ("plain", "sharded")
                and len(set(world.coordinator.roster.homes.values())) > 1
            )
            world.see(
                Acted(
                    action.value,
                    tuple(nodes),
                    bool(data["dry_run"]),
                    world.now_s,
                    limit,
                    data["interruption"] in self.own,
                    moves,
                )
            )
        elif event.kind == BARRED:
            node = str(data["node"])
            self._barred[node] = {
                rank for rank, home in world.coordinator.roster.homes.items() if home == node
            }
        elif event.kind == DRAINING:
            self.acts += 1
            number = data["interruption"]
            assert isinstance(number, int), number
            self.own.add(number)
            world.host.drains(str(data["node"]))
        elif event.kind == STOPPED:
            world.asks((FAILED_EXIT, str(data["reason"])))

    def ordered(self, node: str, message: object) -> None:
        """The coordinator's order to an agent; one that is said again is none."""
        if (
            not isinstance(message, StartWorker)
            or message.worker in self._ordered
            or self._world.options.policy == "none"
        ):
            return
        self._ordered.add(message.worker)
        member = self._world.coordinator.roster.of(message.worker)
        if member is None or member.life.condemned:
            return  # the order is from before, and its end follows
        # its state lies there
        stays = self._world.options.way == "sharded" and message.rank in self._barred.get(node, ())
        if node in self._barred and not stays:
            self._world.see(StartedThere(node, message.worker))
