"""Messages from the coordinator to a worker. They pass through the agent of its node."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter

from outlast.model.shorten import Text
from outlast.model.terms import Cause


@dataclass(frozen=True, slots=True)
class Leave:
    """Generation `generation` is over.

    The worker leaves its collectives, stops working on its step, and sends an Inventory.
    """

    generation: int
    reason: Text


@dataclass(frozen=True, slots=True)
class Regroup:
    """The plan of the next generation for one worker: its place, and how it gets there.

    Ranks that go the same way share one plan. `held_by` makes the plan of one rank from it.

    rank        the rank that the worker holds; -1 on the way to the agent, which fills it in from
                `ToWorkers.ranks`
    settle      "forward": first apply the prepared step; "repeat": roll the current step back;
                "none": do neither
    then        "in_place": join the group and go on; "reenter": enter main's function again;
                "start": the process was not in the last generation; "exit": the process ends;
                "stand": the process stands still, and sends another Inventory
    step        the step of all ranks' state, after settling and restoring
    donor       the rank whose replicated state is the source, or -1
    donate      this worker writes the transfer image before it joins
    replicated  where a replaced rank takes replicated state from: "none", "donor", "transfer",
                "kept" or "checkpoint"
    private     where this rank takes private and sharded state from: "keep", "slot", "kept",
                "twin", "copy", "checkpoint" or "none"
    twin        with "twin": the rank whose image is read, because it holds the same shards
    twin_source where the node of that rank serves it, as HOST:PORT; "": the run has one node. With
                "copy": where the node serves it that keeps a copy of this rank's image
    keeper      where this rank sends copies of its images, as HOST:PORT; "": nowhere
    checkpoint  folder of the checkpoint, or ""
    high_water  the newest step that this rank has ever committed; to execute it again is booked as
                repeated work
    phases      how many phases after `step` are done; no rank runs them again
    replay      survivors may still be in or before a phase after `step`, so this worker gets there
                by running that step once more without keeping its result
    source      where the node that holds the transfer image serves it, as HOST:PORT; "" where
                nothing is taken from there, or the run has one node
    local_rank  the place of the worker on its node; -1 on the way to the agent, which gives it
    """

    generation: int
    rank: int
    world_size: int
    store_host: str
    store_port: int
    settle: str
    then: str
    step: int
    donor: int
    donate: bool
    replicated: str
    private: str
    checkpoint: str
    high_water: int
    fault_s: float | None
    detected_s: float | None
    phases: int = 0
    replay: bool = False
    source: str = ""
    local_rank: int = -1
    twin: int = -1
    twin_source: str = ""
    keeper: str = ""

    @property
    def brings_state(self) -> bool:
        """Return whether anything of the run's own is restored by this plan.

        Otherwise the run begins from what the script made.
        """
        from_a_peer = self.replicated in ("donor", "transfer")
        sealed = self.private in ("slot", "twin", "copy")
        return bool(self.step or from_a_peer or self.checkpoint or sealed)

    @property
    def attaching(self) -> Cause:
        """Return what the seconds are booked as until a rank that starts is in the group."""
        return Cause.STARTUP if self.fault_s is None else Cause.REGROUP

    @property
    def restoring(self) -> Cause:
        """Return what the seconds are booked as from there until all ranks have their state."""
        return Cause.RESTORE if self.brings_state or self.fault_s is not None else Cause.STARTUP

    def held_by(self, rank: int) -> Regroup:
        """Return the same plan for another rank."""
        return Regroup(self.generation, rank, *_BUT_FOR_RANK(self))


_BUT_FOR_RANK = attrgetter(
    *(field.name for field in fields(Regroup) if field.name not in ("generation", "rank"))
)


@dataclass(frozen=True, slots=True)
class Ping:
    """The worker's listener thread answers this with Pong and the same nonce."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The worker commits the current step and leaves run.steps. All ranks leave at the same step.

    checkpoint  the workers also write a checkpoint of that step
    """

    reason: Text
    checkpoint: bool


@dataclass(frozen=True, slots=True)
class SaveNow:
    """All ranks write a checkpoint of the step whose vote passes next.

    One rank gets this message. Its vote informs the others, so that all save the same step.
    """

    reason: Text


ForWorker = Leave | Regroup | Ping | Stop | SaveNow
