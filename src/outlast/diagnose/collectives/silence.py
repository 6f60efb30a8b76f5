"""What a rank waits in, and whether its dump is older than that.

What one dump says of itself is corrected by what its peers have seen.

    finished       with NCCL, what has completed. gloo also retires what failed. So with gloo an
                   operation is certainly finished only if the rank went on after it
    fell silent    a rank whose dump lacks, or still waits in, what its peers have certainly
                   finished with it. So it reached that operation, but saved no later dump. It was
                   stopped, cannot run its threads, or has ended. It is not known what it did since,
                   or what it waits for
    failed wait    a rank of gloo whose last operation is retired, though not all have reached it:
                   it was waiting there when the job failed
If there are failed waits, the dumps are from after the failure, and from several moments. A rank
that fell silent may then only have been closed.

This module is pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from outlast.diagnose.collectives.groups import DumpedGroup, DumpedJob
from outlast.diagnose.collectives.state import GroupState

# a rank may finish these before others have come
ROOTED = ("broadcast", "reduce ", "gather ", "scatter ", "_broadcast_oop", "_reduce_oop")

_Last = Mapping[int, tuple[GroupState, int]]


@dataclass(slots=True)
class SilenceFacts:
    """This is what is known of all groups, by the place of each group.

    heads        the operations that ranks wait in, with these ranks
    finished     the last operation that is certainly finished

    fell_silent  rank -> (place of the group, number) of the first operation that shows it
    maybe        the same for ranks whose last operation failed or was finished; ranks without a
                 dump take part in that operation
    """

    heads: list[dict[int, list[int]]] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    fell_silent: dict[int, tuple[int, int]] = field(default_factory=dict)
    maybe: dict[int, tuple[int, int]] = field(default_factory=dict)
    is_afterwards: bool = False


def situation_of(job: DumpedJob) -> SilenceFacts:
    """Return what each group has finished, what its ranks wait in, and which ranks fell silent."""
    last = _last_of_each(job)
    known = [known_states(group, job) for group in job.groups]
    now = SilenceFacts(
        finished=[
            max(
                (_went_on_after(state, last.get(rank)) for rank, state in states.items()),
                default=-1,
            )
            for states in known
        ]
    )
    for at, states in enumerate(known):
        _find_silent(at, now, states)
    failed = _failed_waits(job, last, known, now)
    now.is_afterwards = bool(failed)
    if now.is_afterwards:
        failed |= {rank: seq for rank, (_, seq) in now.maybe.items()}
    for group in job.groups:
        heads: dict[int, list[int]] = defaultdict(list)
        for rank, state in group.states.items():
            head = (
                state.head
                if state.head is not None
                else failed.get(rank)
                if last.get(rank, (None,))[0] is state
                else None
            )
            if head is not None and rank not in job.silent and rank not in now.fell_silent:
                heads[head].append(rank)
        now.heads.append(heads)
    return now


def known_states(group: DumpedGroup, job: DumpedJob) -> dict[int, GroupState]:
    """Return the states that can be relied on.

    Counters include sends and receives. If there is such traffic, a state from counters alone,
    without entries, tells nothing.
    """
    counts_p2p = any(state.traffic for state in group.states.values())
    return {
        rank: state
        for rank, state in group.states.items()
        if rank not in job.silent
        and state.enqueued is not None
        and (state.recent or state.traffic or not counts_p2p)
    }


def _last_of_each(job: DumpedJob) -> dict[int, tuple[GroupState, int]]:
    """Return the last collective that each rank of gloo called: the state of its group, and the
    number.
    """
    last = {}
    for rank, dump in job.dumps.items():
        if dump.issued and dump.groups[dump.issued[-1][0]].backend == "gloo":
            last[rank] = (dump.groups[dump.issued[-1][0]], dump.issued[-1][1])
    return last


def _went_on_after(state: GroupState, last: tuple[GroupState, int] | None) -> int:
    """Return the highest collective that a rank has certainly finished and cannot finish alone."""
    highest = state.head - 1 if state.head is not None else state.enqueued or 0
    if state.backend == "gloo" and (last is None or (last[0] is state and last[1] <= highest)):
        highest = min(highest, (state.enqueued or 0) - 1)
    for seq, signature in reversed(state.recent):
        if seq <= highest and signature.startswith(ROOTED):
            highest = seq - 1
        elif seq <= highest:
            break
    return highest


def _find_silent(at: int, now: SilenceFacts, states: Mapping[int, GroupState]) -> None:
    lowest = min((state.enqueued or 0 for state in states.values()), default=0)
    for rank, state in states.items():
        shows = min(state.head if state.head is not None else 1 << 62, (state.enqueued or 0) + 1)
        if state.backend != "gloo" and (
            state.head is None or state.signature(state.head) is None or lowest < state.head
        ):
            # its dumps are all of one moment, that of a time-out; what counters say without an
            # entry may be sends and receives
            continue
        if shows <= now.finished[at] and rank not in now.fell_silent:
            now.fell_silent[rank] = (at, shows)


def _failed_waits(
    job: DumpedJob, last: _Last, known: list[dict[int, GroupState]], now: SilenceFacts
) -> dict[int, int]:
    """Return ranks whose wait has failed, with the number of that operation, and `now.maybe`.

    A peer without a dump is not a sign of a failure, but it fits one.
    """
    place_of = {id(state): at for at, states in enumerate(known) for state in states.values()}
    failed: dict[int, int] = {}
    for rank, (state, seq) in last.items():
        at = place_of.get(id(state))
        if (
            at is None
            or rank in now.fell_silent
            or seq <= now.finished[at]
            or any(one.head is not None for one in job.dumps[rank].groups)
        ):
            continue
        if (state.signature(seq) or "").startswith(ROOTED):
            continue
        if any((other.enqueued or 0) < seq for other in known[at].values()):
            failed[rank] = seq
        elif not job.silent.isdisjoint(job.groups[at].members) or job.groups[at].possible:
            now.maybe[rank] = (at, seq)
    return failed
