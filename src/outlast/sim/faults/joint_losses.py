"""Draw the loss of several nodes at once: of any two, or of all nodes of one domain."""

from __future__ import annotations

from outlast.model.fault_plan import PlannedFault
from outlast.sim.draws import Stream
from outlast.sim.options import Options


def draw_joint_losses(stream: Stream, options: Options) -> tuple[PlannedFault, ...]:
    """Draw whether several nodes that hold ranks lose power together, and when."""
    some, whole, first, second = (
        stream.chance(0.35),
        stream.chance(0.5),
        stream.below(1000),
        stream.below(1000),
    )
    step, for_s = 1 + stream.below(options.steps), stream.pick((2.0, 20.0, 60.0))
    count = -(-options.ranks // options.ranks_per_node)  # nodes that hold ranks at first
    if not some or not options.peer_copies or count < 2:
        return ()
    one = first % count
    if whole and options.domains:
        domain = options.domain_of(one)
        lost = [node for node in range(count) if options.domain_of(node) == domain]
    else:
        lost = [one, (one + 1 + second % (count - 1)) % count]
    return tuple(
        PlannedFault(
            f"joint-{node}",
            "lose_node",
            node * options.ranks_per_node,
            at_step=step,
            for_s=for_s,
        )
        for node in lost
    )
