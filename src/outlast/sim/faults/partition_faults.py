"""Draw faults between nodes that the coordinator can still reach.

Other faults drawn here let an agent or a node stand still for a while.
"""

from __future__ import annotations

from dataclasses import replace

from outlast.model.fault_plan import PlannedFault
from outlast.sim.draws import Stream
from outlast.sim.options import Options

PARTITION_KINDS = ("part", "snap", "freeze")
DRAWN = ("part", "part", "snap", "freeze", "stop")  # "stop" stops an agent here
MARKS = {
    "still": 1,
    "settled": 1,
    "donating": 1,
    "grouping": 2,
    "restoring": 2,
    "joined": 2,
    "voting": 2,
    "body": 3,
    "sealing": 2,
}
STAGES = ("training", "gathering", "leaving", "moving", "handover", "clearing")


def draw_partition_faults(stream: Stream, options: Options) -> tuple[PlannedFault, ...]:
    """Draw faults that separate nodes from each other.

    There are none in a run with one node, and none for a plain script. Its workers cannot report
    which peers they do not reach, and do not check their lease.
    """
    faults = []
    several, count = stream.chance(0.4), 1 + stream.below(2)
    for number in range(count):
        kind, how, mark, stage, step = (
            stream.pick(DRAWN),
            stream.below(10),
            stream.pick(tuple(MARKS)),
            stream.pick(STAGES),
            1 + stream.below(options.steps),
        )
        at_s, after_s, for_s = (
            stream.between(0.0, 2.0),
            stream.pick((0.0, 0.002, 0.02)),
            stream.pick((0.3, 2.0, 8.0, 30.0, 200.0, 2_500.0)),
        )
        beats, node, other = (
            stream.pick((1.0, 4.0, 6.5, 9.0, 12.0, 60.0)),
            stream.below(options.nodes),
            1 + stream.below(max(options.nodes - 1, 1)),
        )
        fault = PlannedFault(f"apart{number + 1}", kind, None, node=node, after_s=after_s)
        if kind in ("part", "snap"):
            fault = replace(
                fault,
                peer=(node + other) % options.nodes,
                for_s=for_s if kind == "part" else fault.for_s,
            )
        else:
            fault = replace(fault, for_s=beats * options.beat_s, agent=kind == "stop")
        if how < 3:
            fault = replace(fault, at_s=at_s)
        elif how < 5:
            fault = replace(fault, at_step=step)
        else:
            fault = (
                replace(fault, mark=mark, nth=MARKS[mark])
                if how < 8
                else replace(fault, mark=stage)
            )
        faults.append(fault)
    return (
        tuple(faults) if several and options.nodes > 1 and options.recovery_mode != "plain" else ()
    )
