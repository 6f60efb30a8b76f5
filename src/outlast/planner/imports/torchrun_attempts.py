"""Make sessions and failures from the log folder of a torchrun job.

    <folder>/<run id>_<suffix>/attempt_<n>/<local rank>/{stdout.log, stderr.log, error.json}

Each folder of a run id is a session: one start of torchrun. Every attempt except the last has
failed, because torchrun begins the next attempt only then. The last one has failed if a rank left
an error file. The rank whose error came first is blamed, unless a diagnosis says more.

Times      They come from the files. An attempt begins when its folders were made, and ends when the
           last of its files was written. A copy of the folder has to keep these times (cp -a, tar,
           rsync -t).
Not seen   Other nodes, each of which has a folder of its own, and a job that was killed as a whole.

This module is pure: the list of files in, sessions out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from outlast.errors import UsageError
from outlast.model.terms import FailureClass, Mechanism
from outlast.planner.foreign_records import ForeignFailure, ForeignLife, ForeignSession


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank in one attempt.

    made_s, written_s   when its folder was made, and when the last of its files was written
    failed_s            the time in its error file, or when that file was written; None without one
    """

    run: str
    attempt: int
    rank: int
    made_s: float
    written_s: float
    failed_s: float | None = None
    message: str = ""
    traceback: str = ""


def sessions_of(
    found: Sequence[RankFiles],
    *,
    node: str,
    source: str,
    verdicts: Mapping[tuple[str, int], dict[str, object]],
) -> list[ForeignSession]:
    """Return a session for each start of torchrun.

    verdicts   by run and attempt, the result of a diagnosis of its folder

    Raises UsageError if nothing was found, or if all files of a session have the same time.
    """
    if not found:
        raise UsageError(
            f"{source} holds no logs of torchrun",
            hint="name the folder given to --log-dir, in which <run id>_.../attempt_0 lies",
        )
    ordered = sorted(found, key=lambda one: (one.run, one.attempt, one.rank))
    out = []
    for run, files in groupby(ordered, key=lambda one: one.run):
        attempts = [list(group) for _, group in groupby(files, key=lambda one: one.attempt)]
        out.append(_session(run, attempts, node, source, verdicts))
    return out


def _session(
    run: str,
    attempts: Sequence[Sequence[RankFiles]],
    node: str,
    source: str,
    verdicts: Mapping[tuple[str, int], dict[str, object]],
) -> ForeignSession:
    began = [min(one.made_s for one in attempt) for attempt in attempts]
    ended = [max(one.written_s for one in attempt) for attempt in attempts]
    if ended[-1] - began[0] <= 0:
        raise UsageError(
            f"{source}/{run}: all of its files have the same time",
            hint="copy the folder with its times: cp -a, tar, or rsync -t",
        )
    lives: list[ForeignLife] = []
    failures: list[ForeignFailure] = []
    for at, attempt in enumerate(attempts):
        goes_on = at + 1 < len(attempts)
        to_s = max(min(ended[at], began[at + 1]) if goes_on else ended[at], began[at])
        lives += [
            ForeignLife(one.rank, node, began[at], to_s, f"attempt {one.attempt}")
            for one in attempt
        ]
        errors = [one for one in attempt if one.failed_s is not None]
        if goes_on or errors:
            resumed_s = began[at + 1] if goes_on else None
            verdict = verdicts.get((run, attempt[0].attempt))
            failures.append(_failure(errors, to_s, resumed_s, node, verdict))
    failed = bool(failures) and failures[-1].resumed_s is None
    state = "failed" if failed else "ended"
    reason = failures[-1].reason if failed else ""
    return ForeignSession(
        began[0], ended[-1], state, tuple(lives), tuple(failures), int(failed), reason
    )


def _failure(
    errors: Sequence[RankFiles],
    to_s: float,
    resumed_s: float | None,
    node: str,
    verdict: dict[str, object] | None,
) -> ForeignFailure:
    first = min(errors, key=lambda one: one.failed_s or 0.0, default=None)
    said = (verdict or {}).get("class")
    known = {one.value: one for one in FailureClass}
    if first is None:
        return ForeignFailure(
            to_s,
            Mechanism.EXIT,
            known.get(str(said), FailureClass.UNKNOWN),
            (),
            (node,),
            resumed_s,
            reason="torchrun began another attempt; no rank left an error file",
            verdict=verdict,
        )
    lines = first.message.strip().splitlines() or ["its error file has no message"]
    return ForeignFailure(
        min(first.failed_s or to_s, to_s),
        Mechanism.EXCEPTION,
        known.get(str(said), FailureClass.UNKNOWN),
        (first.rank,),
        (node,),
        resumed_s,
        reason=f"rank {first.rank}: {lines[0]}",
        error=lines[0],
        traceback=first.traceback,
        verdict=verdict,
    )
