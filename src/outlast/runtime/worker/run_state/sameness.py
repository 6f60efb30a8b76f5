"""Check whether replicated state is the same on all ranks. Until then it is only assumed.

Some state is not replicated: a model without DDP that each rank seeds for itself, parameters that
DDP is told to ignore, or the stage of a pipeline. If a rank took such state from a peer, it would
go on with wrong weights, and nothing would show it. So there are two checks:

    compare   at the start and after the first step all ranks exchange a fingerprint of each tensor.
              What differs then is each rank's own state
    Watch     from then on a small piece of the state is read in each 8th step, and its checksum is
              sent with the vote. State that was equal and differs later has diverged, which is a
              fault

Cost       `compare` reads all parameters and optimizer tensors once, and exchanges about 100 bytes
           for each. `Watch` reads at most `WATCH_BYTES` in each of `WATCH_EVERY_STEPS` steps. On a
           device, that waits for the device.
Limits     `Watch` reaches each tensor once in a cycle of 8 steps for each piece that the state
           has. Divergence is found within that number of steps.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from outlast.errors import CorruptError
from outlast.model.limits import (
    TWINS_COUNT,
    WATCH_BYTES,
    WATCH_EVERY_STEPS,
    WATCH_REFRESH_STEPS,
    WATCH_TENSORS_COUNT,
)
from outlast.model.texts import some
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.tensors import optim_state, tree
from outlast.runtime.worker.tensors.fingerprint import fingerprint, word
from outlast.runtime.worker.tensors.gather import gather_bytes
from outlast.runtime.worker.tensors.sharding import is_distributed, local

UNLIKE = "-"  # the print of a rank with state that no other rank has to hold as well


@dataclass(frozen=True, slots=True)
class Difference:
    """Tensors that are not the same on all ranks, and the ranks that differ from most.

    If there is no majority, these are all ranks.
    """

    names: tuple[str, ...]
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return some(self.names)


def fingerprints(state: State) -> dict[str, str]:
    """Return a fingerprint of each parameter and optimizer tensor, and of each optimizer's
    hyper-parameters; distributed tensors are left out.
    """
    found = {
        name: fingerprint(tensor)
        for name, tensor in state.whole_tensors().items()
        if not is_distributed(tensor)
    }
    for name, optimizer in state.optimizers.items():
        groups = tree.encode(optim_state.hyper(optimizer), "hyper")
        found[f"{name}: hyper-parameters"] = groups.text + "".join(
            map(fingerprint, groups.tensors.values())
        )
    return found


def print_of_shards(state: State) -> str:
    """Return a fingerprint of all that this rank holds under sharded state, and of where it is.

    It is UNLIKE if no other rank has to hold the same: all parameters have to be distributed, and
    replicated over a dimension of their mesh.
    """
    shards = state.shards()
    bound = all(
        name in shards and any(one.startswith("R") for one in shards[name].placements)
        for name in state.parameters
    )
    if not bound or not shards:
        return UNLIKE
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in state.whole_tensors().items():
        shard = shards.get(name)
        where = None if shard is None else (shard.global_shape, shard.offsets, shard.placements)
        digest.update(f"{name} {where} {fingerprint(local(tensor))}\n".encode())
    return digest.hexdigest()


def twins_of(rank: int, prints: Sequence[bytes]) -> tuple[int, ...]:
    """Return the ranks that can replace `rank`, and that it can replace, including itself.

    They have the same print. If many ranks have it, they replace each other in sets of TWINS_COUNT,
    and of one more in the last set, because a message names them all. The result is empty if no
    other rank has that print.
    """
    mine = prints[rank]
    same = [one for one, said in enumerate(prints) if said == mine]
    if mine == UNLIKE.encode() or len(same) < 2:
        return ()
    begin = same.index(rank) // TWINS_COUNT * TWINS_COUNT
    if begin and begin == len(same) - 1:
        begin -= TWINS_COUNT  # so that no rank is left alone
    end = begin + TWINS_COUNT
    return tuple(same[begin : end + 1] if end == len(same) - 1 else same[begin:end])


def compare(state: State) -> Difference | None:
    """Exchange fingerprints with all ranks of the default group. Return None if all are the same.

    Every rank has to call this. Raises what torch raises when a peer is lost.
    """
    return difference(_exchange(fingerprints(state)))


def difference(ranks: Sequence[Mapping[str, str]]) -> Difference | None:
    """Return what differs between the ranks' fingerprints, by rank."""
    names = sorted(set().union(*ranks))
    differing = tuple(name for name in names if len({one.get(name) for one in ranks}) > 1)
    if not differing:
        return None
    held = [tuple(one.get(name) for name in differing) for one in ranks]
    (most, count), *_ = Counter(held).most_common(1)
    odd = (
        [rank for rank, value in enumerate(held) if value != most]
        if count * 2 > len(ranks)
        else list(range(len(ranks)))
    )
    return Difference(differing, tuple(odd))


def _exchange(mine: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what each rank gave, by rank.

    It is JSON, because nothing that comes from a peer is unpickled.
    """
    try:
        return [json.loads(text) for text in gather_bytes(json.dumps(mine).encode())]
    except ValueError as error:
        raise CorruptError(f"the fingerprints of a rank cannot be read: {error}") from None


class Watch:
    """Read a small piece of the replicated state, another one each time.

    So all of it is compared again and again.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        # flat tensors: several small ones together, or a single large one
        self._groups: list[list[torch.Tensor]] = []
        self._ends: list[int] = []  # the number of pieces of this group and all groups before it
        self._refreshed = -1  # the multiple of WATCH_REFRESH_STEPS at which the list was created

    def key(self, step: int) -> float:
        """Return a number that is the same on all ranks while the piece in turn is.

        It is 0 if there is nothing to compare. Every rank calls it for the same step: all of them
        before, or all of them after the optimizer.
        """
        if self._state.sharded or step % WATCH_EVERY_STEPS:
            return 0.0
        if step // WATCH_REFRESH_STEPS != self._refreshed:
            self._refresh(step // WATCH_REFRESH_STEPS)
        if not self._ends:
            return 0.0
        number = step // WATCH_EVERY_STEPS % self._ends[-1]
        at = bisect.bisect_right(self._ends, number)
        group = self._groups[at]
        if len(group) > 1:
            return float(word(group) or 1)
        length = _piece_length(group[0])
        start = (number - (self._ends[at - 1] if at else 0)) * length
        return float(word([group[0][start : start + length]]) or 1)

    def _refresh(self, number: int) -> None:
        """List the tensors again.

        The first steps make optimizer state, and a regroup may have replaced some tensors.
        """
        self._refreshed = number
        plain = (local(tensor).detach() for tensor in self._state.whole_tensors().values())
        dense = [
            one.view(-1)
            for one in plain
            if one.is_contiguous() and one.numel() and not one.is_conj() and not one.is_neg()
        ]
        self._groups = _grouped(dense)
        self._ends = list(
            itertools.accumulate(
                -(-group[0].numel() // _piece_length(group[0])) if len(group) == 1 else 1
                for group in self._groups
            )
        )


def _grouped(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group small tensors that follow each other on one device.

    A group has at most WATCH_TENSORS_COUNT tensors and WATCH_BYTES.
    """
    groups: list[list[torch.Tensor]] = []
    held = 0
    for one in tensors:
        fits = (
            groups
            and len(groups[-1]) < WATCH_TENSORS_COUNT
            and held + one.nbytes <= WATCH_BYTES
            and groups[-1][0].device == one.device
        )
        if fits:
            groups[-1].append(one)
            held += one.nbytes
        else:
            groups.append([one])
            held = one.nbytes
    return groups


def _piece_length(tensor: torch.Tensor) -> int:
    """Return how many elements form a piece."""
    return max(1, WATCH_BYTES // tensor.element_size())
