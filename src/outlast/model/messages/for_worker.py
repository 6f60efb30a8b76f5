"""Messages from the coordinator to a worker. They pass through the agent of its node."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import attrgetter

from outlast.model.messages.image_link import PartSource, Share
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

    rank        the rank that the worker holds. It is -1 on the way to the agent, which fills it in
                from `ToWorkers.ranks`
    settle      "forward": first apply the prepared step; "repeat": roll the current step back;
                "none": do neither
    then        "in_place": join the group and go on; "reenter": enter main's function again;
                "start": the process was not in the last generation; "exit": the process ends;
                "stand": the process stands still, and sends another Inventory
    step        the step of all ranks' state, after settling and restoring
    donor       the rank whose replicated state is the source, or -1
    donate      True: this worker writes the transfer image before it joins
    replicated  the source of the replicated state of a replaced rank: "none", "donor", "transfer",
                "kept" or "checkpoint"
    private     the source of this rank's private and sharded state: "keep", "slot", "kept", "twin",
                "copy", "parity", "checkpoint" or "none"
    twin        with "twin": the rank whose image is read, because it holds the same shards
    twin_source the address that serves this image, as HOST:PORT: with "twin", on the node of that
                rank; with "copy", on the node that keeps a copy of this rank's image. It is "" if
                the run has one node
    keepers     the addresses to which this rank sends copies of its images, as HOST:PORT; empty if
                it sends none
    shares      the nodes to which it sends parts of its images, to be summed up as parity
    sources     with "parity": the sources from which the parts of this rank's image are rebuilt
    refused     with "copy" and "parity": the rank's own image of `step` was refused as damaged. Its
                older images still count. False: all its images were lost with its node
    checkpoint  folder of the checkpoint, or ""
    high_water  the newest step that this rank has ever committed. Executing it again is booked as
                repeated work
    phases      the number of phases after `step` that are done; no rank runs them again
    replay      True: survivors may still be in a phase after `step`, or before it. This worker gets
                there by running that step once more without keeping its result
    source      the address that serves the transfer image, as HOST:PORT. It is "" if nothing is
                taken from there, or if the run has one node
    local_rank  the place of the worker on its node. It is -1 on the way to the agent, which fills
                it in
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
    keepers: tuple[str, ...] = ()
    shares: tuple[Share, ...] = ()
    sources: tuple[PartSource, ...] = ()
    refused: bool = False

    @property
    def brings_state(self) -> bool:
        """Return whether this plan restores any state of the run.

        Otherwise the run begins with the state that the script makes.
        """
        from_a_peer = self.replicated in ("donor", "transfer")
        sealed = self.private in ("slot", "twin", "copy", "parity")
        return bool(self.step or from_a_peer or self.checkpoint or sealed)

    @property
    def attaching(self) -> Cause:
        """Return the cause of the seconds until a rank that starts is in the group."""
        return Cause.STARTUP if self.fault_s is None else Cause.REGROUP

    @property
    def restoring(self) -> Cause:
        """Return the cause of the seconds from there until all ranks have their state."""
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

    One rank gets this message. Its vote tells the others, so that all save the same step.
    """

    reason: Text


@dataclass(frozen=True, slots=True)
class SealEach:
    """All ranks seal an image after each step from now on, until this generation is over.

    One rank gets this message, as for SaveNow. It matters only under sharded state, where a run may
    seal less often. Each rank answers with Sealed.
    """

    reason: Text


@dataclass(frozen=True, slots=True)
class SendImage:
    """This worker, which stands still, sends its image of `step` to another node.

    Its node is being drained. The node at `at` (HOST:PORT) takes the rank over, and keeps the copy.
    """

    generation: int
    step: int
    at: str


ForWorker = Leave | Regroup | Ping | Stop | SaveNow | SealEach | SendImage
