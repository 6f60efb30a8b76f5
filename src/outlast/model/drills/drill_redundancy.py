"""What a run had to fall back on when a fault of a drill struck, and how much it might lose then.

A run does not promise that nothing is ever lost. It promises that no committed step is lost while
somebody holds it: a living rank, an image in shared memory, another node. So the drill records with
each fault what there was at that moment, and a lost step counts against the run only beyond that.

    state            who holds it                           a fault may cost
    replicated       another rank that lives                no step
                     nobody else, copies in shared memory   the steps since the newest copy
    sharded          images in shared memory                the steps since the newest image
                     one of these images is damaged         the steps since the newest checkpoint
                     the images went with their host        the same

The image before the newest one is not redundancy. Each rank has two slots. It seals a new image
over its older one, while other ranks may still work on the step before. So between the first seal
of a step and the last, there is only one step of which all ranks have an image. If one of these
images is damaged, no such step is left. A check before a slot is overwritten would not help,
because an image may be damaged after it.

Limits     A rank that was struck before, and has no new process yet, holds nothing here. Replicas
           of sharded state on other hosts (HSDP) are not counted: only copies and parity are.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.model.drills.drill_faults import FaultKind, Leaves

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InForce:
    """The redundancy of a run at one moment.

    step             the newest committed step
    sharded          whether the state is sharded; None: the run has not said so
    copies           how many living ranks hold all of the state; None: it is sharded, or not known
    nodes            on how many nodes these are; None: the same
    spares           processes that stand ready to take a rank
    kept_step        the newest step of which shared memory has an image of all ranks; 0: none
    checkpoint_step  the newest checkpoint; 0: there is none
    nodes_survived   how many nodes, whichever they are, could be lost now without losing a step
                     that is kept in memory, and without the end of the run; None: not known
    """

    step: int
    sharded: bool | None
    copies: int | None
    nodes: int | None
    spares: int
    kept_step: int
    checkpoint_step: int
    nodes_survived: int | None

    @property
    def is_known(self) -> bool:
        """Return whether the run has said what kind of state it has."""
        return self.sharded is not None

    @property
    def behind_steps(self) -> int:
        """Return how many committed steps the newest image or checkpoint does not have."""
        return max(0, self.step - max(self.kept_step, self.checkpoint_step))

    @property
    def behind_checkpoint_steps(self) -> int:
        return max(0, self.step - self.checkpoint_step)


def nodes_survived(
    *, sharded: bool | None, nodes: int | None, nodes_to_lose: int | None, voters: int
) -> int | None:
    """Return how many nodes, whichever they are, a run survives the loss of. None: not known.

    nodes          on how many nodes whole copies of replicated state are
    nodes_to_lose  of sharded state, as the run itself counts it; None: it keeps none on other nodes
    voters         the nodes that elect another leader; 0: nobody can take over from the one that
                   leads, and it may be the one that is lost
    """
    if sharded is None:
        return None
    holds = (nodes_to_lose or 0) if sharded else max(0, (nodes or 0) - 1)
    return min(holds, max(0, voters - 1) // 2)


def may_lose(kind: FaultKind, ranks: Iterable[int], then: InForce | None) -> int:
    """Return how many committed steps a fault may cost by what there was when it struck.

    ranks   those that were struck
    then    None: it was not recorded, so the run is held to the whole promise

    One more step may have been committed between the record `then` and the fault.
    """
    struck = len(set(ranks))
    if then is None or not then.is_known or not struck or kind.struck in _HELPERS:
        return 0
    if then.sharded:
        if not kind.interrupts and not kind.passes:
            return 0
        if kind.damages or (kind.of_host and not then.nodes_survived):
            return 1 + then.behind_checkpoint_steps
        return then.behind_steps
    if kind.leaves is Leaves.TRACEBACK or (then.copies or 0) > struck:
        return 0  # the process lives on, or another one holds the state
    if kind.of_host:
        return 1 + then.behind_checkpoint_steps
    return 1 + then.behind_steps


_HELPERS = ("spare", "store", "zygote")


def lost_beyond(interruptions: Iterable[Facts], allowed: Mapping[int, int]) -> int | None:
    """Return how many committed steps were lost that were promised. None: it is not known.

    interruptions   as `outlast report --json` has them
    allowed         how many steps each of them may have cost, by its number

    An interruption that came in the midst of another one is counted together with that one.
    """
    parents: dict[int, int] = {}
    lost: dict[int, int] = {}
    for one in interruptions:
        number, parent = int(one["id"]), one.get("parent")
        first = number if parent is None else parents.get(int(parent), int(parent))
        parents[number] = first
        if one["steps_lost"] is None:
            return None
        lost[first] = lost.get(first, 0) + int(one["steps_lost"])
    most: dict[int, int] = {}
    for number, steps in allowed.items():
        first = parents.get(number, number)
        most[first] = max(most.get(first, 0), steps)
    return sum(max(0, steps - most.get(number, 0)) for number, steps in lost.items())


def least(recorded: Iterable[InForce]) -> dict[str, int | None]:
    """Return the least that there was at any of these moments, and the oldest newest image."""
    some = list(recorded)
    return {
        "copies": _least(one.copies for one in some),
        "spares": _least(one.spares for one in some),
        "nodes_survived": _least(one.nodes_survived for one in some),
        "behind_steps": max((one.behind_steps for one in some), default=None),
    }


def _least(values: Iterable[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)
