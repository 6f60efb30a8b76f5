"""Decide which step all ranks go on from, and how each rank gets there.

Replicated state (DDP): every live rank holds it, so nothing is lost. Let k be the newest committed
step. The run goes *forward* to k+1 if any live rank saw the vote of k+1 pass. It also goes forward
if all ranks, the dead included, had sealed "prepared k+1". Every survivor then still holds its
complete gradients, and applies them. Otherwise the run *repeats*: it goes on from k. What was
decided before stays decided: if the last plan goes forward, or a commit was reported since, some
rank may have the step, although the others do not know of it. Its node may be lost, with all that
it had sealed.

Sharded state (FSDP2): a dead rank's shard exists only in its image. So all ranks go to the newest
step whose image all owners, the dead included, have sealed. Where replicas hold the same shards
(HSDP), the image of a rank that was lost with its node is with its twin in another replica, too.
Another node may keep a copy of it (`--keep peers=1`), or several nodes have parity of it (`--keep
parity=4+2`). Such a copy, or such parity, also stands in for an image that its own rank has refused
as damaged.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

NONE: Mapping[int, tuple[int, ...]] = MappingProxyType({})
NO_REFUSALS: Mapping[int, Mapping[int, str]] = MappingProxyType({})
_NAMED_COUNT = 3  # refused images that a verdict names


@dataclass(frozen=True, slots=True)
class Holding:
    """The state of a rank that can still be used.

    It comes from a survivor's Inventory, or from the slots of a dead rank, which the agent has
    read. `ranks` are all ranks with the same values.
    """

    ranks: tuple[int, ...]
    alive: bool
    committed: int
    prepared: tuple[int, ...]  # steps whose private state is sealed
    passed: int
    in_hook: bool
    sealed: tuple[int, ...]
    # False: alive, but its state is torn (it failed after apply) or not built yet
    usable: bool = True
    phases: int = 0  # done since `committed`
    begun: bool = False  # past all phases after `committed`
    over: bool = False  # no step follows


@dataclass(frozen=True, slots=True)
class RestoreVerdict:
    """The step that all ranks go on from, and how they do so.

    step    None: no live rank or image can be restored, so a checkpoint is needed
    settle  what each live, usable rank does with its current step: "forward" or "repeat"
    donor   the rank from which others take replicated state; -1: none
    heal    ranks that must take replicated state from `donor`
    phases  how many phases after `step` are done, as far as any live rank knows
    replay  no rank is known to be past the phases after `step`: a healed rank has to reach them
            through its script
    begun   the step after `step` was begun, and was interrupted. False: the ranks that are there
            stand in, or before, a phase
    over    no step follows `step`: the vote that was interrupted ends the steps
    """

    step: int | None
    settle: dict[int, str]
    donor: int
    heal: tuple[int, ...]
    reason: str
    phases: int = 0
    replay: bool = False
    begun: bool = False
    over: bool = False


def decide_replicated(
    *, holdings: Sequence[Holding], decided: int = -1, leaving: Collection[int] = ()
) -> RestoreVerdict:
    """Decide where a run under replicated state goes on from.

    holdings   each rank of the generation, once
    decided    the step of the last plan, or the newest that is known to be committed since
    leaving    ranks of a node that is being drained. It may not be reached, so none of them is the
               donor if another rank has the same state
    """
    live = [held for held in holdings if held.alive and held.usable and held.committed >= 0]
    if not live:
        return RestoreVerdict(None, {}, -1, (), "no rank that holds the replicated state is alive")
    newest, reason = _newest_decided(holdings, live, decided)
    settle: dict[int, str] = {}
    left_out: list[int] = []
    for held in holdings:
        how = _settles(held, newest)
        if how:
            settle |= dict.fromkeys(held.ranks, how)
        else:
            left_out += held.ranks
    if not settle:
        # No live rank can reach the newest step in its process.
        return RestoreVerdict(None, {}, -1, (), f"no live rank can reach step {newest}")
    there = [held for held in live if held.committed == newest]
    phases = max((held.phases for held in there), default=0)
    begun = any(held.begun for held in there)
    # The script's own code after the step may change state, so the donor should have run it. A
    # rank that applies the step forward runs it before it hands over.
    furthest = (
        [held for held in there if held.begun]
        or there
        or [held for held in live if _settles(held, newest)]
    )
    able = [rank for held in furthest for rank in held.ranks]
    donor = min([rank for rank in able if rank not in leaving] or able)
    heal = tuple(sorted(left_out))
    return RestoreVerdict(
        newest,
        settle,
        donor,
        heal,
        reason,
        phases,
        replay=newest > 0 and not begun,
        begun=begun,
        over=any(held.over for held in there),
    )


def _newest_decided(
    holdings: Sequence[Holding], live: Sequence[Holding], decided: int
) -> tuple[int, str]:
    """Return the newest step that must not be undone, and why.

    `live` are those of `holdings` that are alive and hold the state.
    """
    newest = max(max(held.committed, held.passed) for held in live)
    seen = (
        "is committed on a live rank"
        if any(held.committed == newest for held in live)
        else "was seen to pass its vote by a live rank"
    )
    if decided > newest and any(_can_apply(held, decided) for held in live):
        # A later step was decided than any live rank has committed or seen pass. A rank has
        # committed it, or may have followed the last plan, and is gone.
        newest, seen = decided, "was decided before, and a live rank can still apply it"
    # All ranks may have sealed one step more, whose vote no live rank has seen pass.
    if _all_sealed(holdings, live, newest + 1):
        # All ranks had sealed the step, the dead included, so it can go forward.
        step = newest + 1
        return step, f"all ranks, the dead included, had sealed step {step} as prepared"
    return newest, f"step {newest} {seen}"


def _settles(held: Holding, step: int) -> str:
    """Return how these ranks get to `step` in their processes; "": they cannot."""
    if not (held.alive and held.usable and held.committed >= 0):
        return ""
    if held.committed == step:
        return "repeat"
    return "forward" if _can_apply(held, step) else ""


def _can_apply(held: Holding, step: int) -> bool:
    return held.in_hook and held.committed == step - 1 and step in held.prepared


def _all_sealed(holdings: Sequence[Holding], live: Sequence[Holding], step: int) -> bool:
    return all(step in held.prepared for held in holdings) and all(
        held.in_hook and held.committed == step - 1 for held in live
    )


def decide_sharded(
    *,
    holdings: Sequence[Holding],
    twins: Mapping[int, tuple[int, ...]] = NONE,
    copies: Mapping[int, tuple[int, ...]] = NONE,
    rebuilt: Mapping[int, tuple[int, ...]] = NONE,
    refused: Mapping[int, Mapping[int, str]] = NO_REFUSALS,
) -> RestoreVerdict:
    """Decide where a run under sharded state goes on from: the newest step sealed by all owners.

    twins    for each rank whose images are lost: ranks that hold the same shards, and have images
    copies   for each rank whose images are lost: the steps of which another node keeps a copy
    rebuilt  for each rank whose images are lost: the steps of which parity can rebuild its image
    refused  for each rank: the steps of which its own image was refused as damaged, each with the
             reason. `copies` and `rebuilt` have these steps too
    """
    sealed = _sealed_by(holdings, twins, (copies, rebuilt))
    common = set(sealed[0]).intersection(*sealed[1:]) if sealed else set()
    if not common:
        # There is no step whose image all owners have sealed.
        missing = sorted(
            rank
            for held, steps in zip(holdings, sealed, strict=True)
            if not steps
            for rank in held.ranks
        )
        which = f" (none at all from ranks {missing})" if missing else ""
        why = f"no snapshot was sealed by all owners{which}{_name_refused(refused, {})}"
        return RestoreVerdict(None, {}, -1, (), why)
    step = max(common)
    owners = sum(len(held.ranks) for held in holdings)
    why = f"step {step} is the newest snapshot that all {owners} owners sealed"
    if twins:
        ranks = ", ".join(map(str, sorted(twins)))
        why += f", or a replica in their place: ranks {ranks} lost theirs with their node"
    damaged = {rank for rank, steps in refused.items() if step in steps}
    copied = {rank for rank, steps in copies.items() if step in steps}
    by_parity = {rank for rank, steps in rebuilt.items() if step in steps}
    if copied - damaged:
        ranks = ", ".join(map(str, sorted(copied - damaged)))
        why += f"; of ranks {ranks}, whose node is lost, another node keeps a copy"
    if by_parity - damaged:
        ranks = ", ".join(map(str, sorted(by_parity - damaged)))
        why += f"; the images of ranks {ranks}, whose node is lost, are rebuilt from parity"
    instead = dict.fromkeys(by_parity & damaged, "it is rebuilt from parity")
    instead |= dict.fromkeys(copied & damaged, "another node keeps a copy")
    why += _name_refused(refused, {(rank, step): how for rank, how in instead.items()})
    return RestoreVerdict(step, {}, -1, (), why)


def _name_refused(
    refused: Mapping[int, Mapping[int, str]], instead: Mapping[tuple[int, int], str]
) -> str:
    """Return the end of a reason, which names the images that were refused; "": there are none.

    instead   by rank and step: what is taken in place of such an image
    """
    found = [(rank, step, why) for rank in sorted(refused) for step, why in refused[rank].items()]
    named = ""
    for rank, step, why in found[:_NAMED_COUNT]:
        named += f"; rank {rank}'s own image of step {step} was refused ({why})"
        named += f", and {instead[rank, step]}" if (rank, step) in instead else ""
    more = len(found) - _NAMED_COUNT
    return f"{named}; {more} more images were refused" if more > 0 else named


def _sealed_by(
    holdings: Sequence[Holding],
    twins: Mapping[int, tuple[int, ...]],
    elsewhere: tuple[Mapping[int, tuple[int, ...]], ...],
) -> list[tuple[int, ...]]:
    """Return for each holding the steps that can be restored, the newest first.

    These are the steps that the holding itself has, those of its twins, and those of other nodes.

    elsewhere   by rank, the steps that other nodes can provide: as copies, and from parity
    """
    if not twins and not any(elsewhere):
        return [held.sealed for held in holdings]
    by_rank = {rank: held.sealed for held in holdings for rank in held.ranks}
    found = []
    for held in holdings:
        own = set(held.sealed)
        for twin in twins.get(held.ranks[0], ()):
            own.update(by_rank[twin])
        for of_ranks in elsewhere:
            own.update(of_ranks.get(held.ranks[0], ()))
        found.append(tuple(sorted(own, reverse=True)))
    return found
