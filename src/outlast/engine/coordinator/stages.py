"""The stage of a run, the number of its generation, and the timers of the coordinator.

This module is pure.
"""

from __future__ import annotations

from enum import Enum

from outlast.engine.protocol.outputs import SetTimer


class Stage(Enum):
    """The stages of a run. machine.py has a picture of their order."""

    ENROLLING = "enrolling"  # the run waits for its nodes
    REBUILDING = "rebuilding"  # a new coordinator waits for the nodes of the one that has died
    STARTING = "starting"  # all ranks were started, and join their first generation
    TRAINING = "training"  # all members are in the generation
    GATHERING = "gathering"  # a fault was seen; its companions have a few milliseconds to show
    LEAVING = "leaving"  # survivors leave their collectives, and condemned processes die
    MOVING = "moving"  # survivors and replacements join the next generation
    HANDOVER = "handover"  # before a restart, a donor writes the transfer image
    CLEARING = "clearing"  # before a restart, all members are killed
    STOPPING = "stopping"  # the run ends, and all processes are killed
    ENDED = "ended"


IN_A_GENERATION = (Stage.TRAINING, Stage.MOVING, Stage.STARTING)  # a fault here begins a regroup


class Timer(Enum):
    """A deadline of the coordinator. The value is the name that drivers know it by."""

    GATHER = "gather"  # the companions of a fault have had time to show themselves
    LEAVE = "leave"  # every survivor must have left its collective by now
    MOVE = "move"  # every member must have joined the generation by now
    HANDOVER = "handover"  # the donor must have written the transfer image by now
    KILL = "kill"  # a killed process must have ended by now
    INQUIRY = "inquiry"  # every node must have answered the hang inquiry by now
    LINKS = "links"  # the next generation may be tried although a link was cut
    NODES = "nodes"  # a node with room must have come by now
    SPARES = "spares"  # missing spares may be started now
    POLICY = "policy"  # a run that is to shrink has waited long enough for a node
    STOP = "stop"  # a run that was asked to stop has had time for its last step
    LEFT = "left"  # all ranks must have left the script where one has, in the middle of a step
    REBUILD = "rebuild"  # every node that is still alive has enrolled with the new coordinator


def set_timer(timer: Timer, at_s: float) -> SetTimer:
    """Return the output that sets `timer`, in place of an earlier time."""
    return SetTimer(timer.value, at_s)


def cancel(timer: Timer) -> SetTimer:
    """Return the output that cancels `timer`, whether it is set or not."""
    return SetTimer(timer.value, None)


class Lifecycle:
    """The stage and the generation of a run.

    Only `enter` changes the stage, and the generation grows by one at a time. So a search for calls
    of `enter` and `next_generation` finds every transition.
    """

    def __init__(self, *, generation: int) -> None:
        self.stage = Stage.STARTING
        self.generation = generation

    def enter(self, stage: Stage) -> None:
        """Go to `stage`."""
        self.stage = stage

    def is_in(self, *stages: Stage) -> bool:
        """Return True while the run is in one of `stages`."""
        return self.stage in stages

    def next_generation(self) -> None:
        """Begin the next generation. Messages with an older number are dropped from now on."""
        self.generation += 1

    def saw_generation(self, generation: int) -> None:
        """Note that a process is in `generation`, so that this number is not used again."""
        self.generation = max(self.generation, generation)
