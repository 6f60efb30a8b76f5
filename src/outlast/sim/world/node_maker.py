"""Make the nodes of a simulated run, before anything happens."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.sim.draws import ProcessDraws, Stream
from outlast.sim.options import Options
from outlast.sim.shortcuts.identical_nodes import PLACE, Echo, IdenticalNodes, Likeness
from outlast.sim.world.links import Links
from outlast.sim.world.node import Node
from outlast.sim.world.node_parts import NodeGiven, Script
from outlast.sim.world.node_ports import Surroundings


def make_nodes(
    world: Surroundings,
    script: Script,
    links: Links,
    kernel: Stream,
    *,
    likeness: Likeness | None,
    twins: IdenticalNodes | None,
    rests: bool,
) -> Iterator[tuple[str, Node | Echo]]:
    """Yield each node with its name. An Echo takes the place of a node that is not simulated."""
    options, chance = world.frame.options, world.chance
    lines, clocks = chance.stream("lines"), chance.stream("clocks")
    standstills = chance.stream("standstills")
    alike = likeness.places if likeness is not None else frozenset()
    shared = 0.0, 1.0  # the clock of all identical nodes
    for place, name in enumerate(options.node_names):
        clock, luck = _clock(clocks, options), None
        if place in alike and chance.pool is not None:
            shared = clock if likeness is not None and place == likeness.herald else shared
            clock, luck = shared, ProcessDraws(chance.pool, PLACE)
        which = twins.place_of(place) if twins is not None else -1
        if which > 0 and twins is not None:
            yield name, Echo(twins, which)
            continue
        yield (
            name,
            Node(
                world,
                NodeGiven(
                    name,
                    place,
                    script,
                    links,
                    luck or kernel,
                    twins if which == 0 else None,
                    place if luck is None else PLACE,
                    luck,
                    rests,
                ),
                clock=clock,
                lines=lines,
                standstills=standstills,
            ),
        )


def _clock(stream: Stream, options: Options) -> tuple[float, float]:
    """Draw offset and rate of a clock. The only node of a run has the clock of its coordinator."""
    offset_s, drift = stream.between(0.0, 1e5), stream.between(-1.0, 1.0)
    return (offset_s, 1.0 + drift * options.drift) if options.nodes > 1 else (0.0, 1.0)
