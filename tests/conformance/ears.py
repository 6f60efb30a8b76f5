"""Somebody who writes down what a simulated node would tell its agent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol, cast

from outlast.engine.agent.agent import Agent
from outlast.engine.protocol.outputs import Output
from outlast.sim.world.node import Node


class Ear(Protocol):
    """The part of an agent that hears the kernel of its node, and its workers."""

    def on_event(self, message: Any, *, now_s: float) -> list[Output]: ...

    def on_worker(self, message: Any, *, now_s: float) -> list[Output]: ...


def put_in_place_of_agent(node: Node, ear: Ear) -> None:
    """Let `ear` hear what the agent of the one node of a world would hear."""
    assert node.agent_session is None, (
        "with several nodes the session with the coordinator hears it"
    )
    node._seat = replace(node._seat, agent=cast(Agent, ear))
