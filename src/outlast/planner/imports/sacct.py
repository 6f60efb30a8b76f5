r"""Read the jobs of one training run from Slurm's accounting.

    sacct --parsable2 --duplicates \
      --format=JobID,JobName,State,ExitCode,Start,End,Elapsed,NNodes,NodeList,AllocTRES

Each job that ran is a session. The state says how it ended:

    COMPLETED               it ended well
    NODE_FAIL, BOOT_FAIL    it failed: a node was lost
    OUT_OF_MEMORY           it failed: the memory of a host was exhausted
    FAILED                  it failed by an exit code or a signal; Slurm does not know why
    RUNNING                 it still runs; Elapsed says for how long
    all others              it was stopped, for example CANCELLED, TIMEOUT or PREEMPTED; this is not
                            a failure

Columns    JobID, State, Start, and End or Elapsed are needed. The first line names the columns.
           Times without a zone are read as UTC, because only differences count.
Ranks      They are the GPUs if AllocTRES counts them, otherwise the nodes.
Steps      The steps of a job (123.batch, 123.0) are left out, because their job says the same.

This module is pure: lines in, records out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from outlast.errors import UsageError
from outlast.model.strict import meant
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.texts import some
from outlast.planner.fit.failures_table import read_moment
from outlast.planner.foreign_records import (
    UNITS_MAX_COUNT,
    ForeignFailure,
    ForeignLife,
    ForeignSession,
)

COLUMNS = ("JobID", "State", "Start")
_STOPPED = (
    "CANCELLED",
    "TIMEOUT",
    "PREEMPTED",
    "DEADLINE",
    "REQUEUED",
    "SUSPENDED",
    "REVOKED",
    "RESIZING",
)
_LOST_NODE = ("NODE_FAIL", "BOOT_FAIL")
_FAILED = (*_LOST_NODE, "OUT_OF_MEMORY", "FAILED")
_NEVER_RAN = ("PENDING", "CONFIGURING")
STATES = ("COMPLETED", "RUNNING", "COMPLETING", *_STOPPED, *_FAILED, *_NEVER_RAN)
_NO_TIME = ("", "Unknown", "None", "N/A")
_ELAPSED = re.compile(r"(?:(\d{1,5})-)?(?:(\d{1,2}):)?(\d{1,2}):(\d{2})(?:\.\d+)?")
_GPUS = re.compile(r"gres/gpu=(\d{1,7})(?:,|$)")
_PART = re.compile(r"([^\[\],]+)(?:\[([0-9,-]+)\])?([^\[\],]*)(?:,|$)")


def read_sacct(lines: Iterable[str], *, source: str, job_name: str | None) -> list[ForeignSession]:
    """Return a session for each job that ran. Raises UsageError, which names the line.

    job_name   read only jobs of this name; it is needed if there are several names
    """
    rows = list(_rows(lines, source))
    names = sorted({row["JobName"] for _, row in rows if row.get("JobName")})
    if job_name is not None:
        if job_name not in names:
            raise UsageError(
                f"{source} has no job {job_name!r}", hint=meant(job_name, tuple(names))
            )
        rows = [(at, row) for at, row in rows if row["JobName"] == job_name]
    elif len(names) > 1:
        raise UsageError(
            f"{source} is about jobs of several names: {some(names)}",
            hint="say which jobs belong to the run: --job-name NAME",
        )
    sessions = [_session(row, f"{source}, line {at}") for at, row in rows]
    return [one for one in sessions if one is not None]


def _rows(lines: Iterable[str], source: str) -> Iterable[tuple[int, Mapping[str, str]]]:
    columns: list[str] | None = None
    for number, line in enumerate(lines, 1):
        cells = line.rstrip("\r\n").split("|")
        if not line.strip():
            continue
        if columns is not None and len(cells) == len(columns) + 1 and not cells[-1]:
            cells.pop()  # --parsable ends each line with a bar, --parsable2 does not
        if columns is None:
            columns = cells if cells[-1] else cells[:-1]
            missing = [name for name in COLUMNS if name not in columns]
            if missing or not {"End", "Elapsed"} & set(columns):
                raise UsageError(
                    f"{source}: the first line names no column {(missing or ['End'])[0]}",
                    hint="sacct --parsable2 --duplicates --format=JobID,JobName,State,ExitCode,"
                    "Start,End,Elapsed,NNodes,NodeList,AllocTRES",
                )
            continue
        if len(cells) != len(columns):
            raise UsageError(
                f"{source}, line {number} has {len(cells)} cells; the first line names"
                f" {len(columns)} columns",
                hint="a name with | in it cannot be read: leave JobName out",
            )
        row = dict(zip(columns, cells, strict=True))
        if "." not in row["JobID"]:  # a step of a job
            yield number, row


def _session(row: Mapping[str, str], where: str) -> ForeignSession | None:
    state = (row["State"].split() or [""])[0].rstrip("+")
    if state not in STATES:
        raise UsageError(f"{where}: State is {state!r}", hint=meant(state, STATES))
    if state in _NEVER_RAN or row["Start"] in _NO_TIME:
        return None
    from_s, _ = read_moment(row["Start"], f"{where}: Start")
    to_s = _end_s(row, from_s, where)
    if to_s is None or to_s < from_s:
        raise UsageError(
            f"{where}: {'it has no End' if to_s is None else 'it ended before it began'}",
            hint="ask sacct for Elapsed too",
        )
    if to_s == from_s:
        return None  # it was cancelled as soon as it had started
    nodes, ranks = _places(row, where)
    end = state.lower()
    lives = tuple(
        ForeignLife(rank, nodes[rank * len(nodes) // ranks], from_s, to_s, end)
        for rank in range(ranks)
    )
    ended = {"COMPLETED": "ended", "RUNNING": "stopped", "COMPLETING": "ended"}
    how = "failed" if state in _FAILED else ended.get(state, "stopped")
    code, _, number = row.get("ExitCode", "").partition(":")
    exit_code = int(code) if code.isdigit() else None
    reason = f"job {row['JobID']}: {state.lower().replace('_', ' ')}"
    failures: tuple[ForeignFailure, ...] = ()
    if state in _FAILED:
        failures = (_failure(state, to_s, exit_code, number, nodes, row.get("FailedNode", "")),)
    return ForeignSession(from_s, to_s, how, lives, failures, exit_code, reason)


def _failure(
    state: str, at_s: float, code: int | None, number: str, nodes: tuple[str, ...], failed: str
) -> ForeignFailure:
    by_signal = number.isdigit() and int(number) > 0
    if state in _LOST_NODE:
        mechanism, words = Mechanism.LOST_NODE, "Slurm lost a node"
    elif state == "OUT_OF_MEMORY":
        mechanism, words = Mechanism.SIGNAL, "the memory of the host was exhausted"
    elif by_signal:
        mechanism, words = Mechanism.SIGNAL, f"signal {number}"
    else:
        mechanism, words = Mechanism.EXIT, "exit code " + ("unknown" if code is None else str(code))
    return ForeignFailure(
        at_s,
        mechanism,
        FailureClass.HOST_MEMORY if state == "OUT_OF_MEMORY" else FailureClass.UNKNOWN,
        nodes=(failed,) if failed in nodes else nodes if len(nodes) == 1 else (),
        reason=f"{state}: {words}",
    )


def _end_s(row: Mapping[str, str], from_s: float, where: str) -> float | None:
    if row.get("End", "") not in _NO_TIME:
        return read_moment(row["End"], f"{where}: End")[0]
    found = _ELAPSED.fullmatch(row.get("Elapsed", ""))
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return from_s + days * 86_400 + hours * 3600 + minutes * 60 + seconds


def _places(row: Mapping[str, str], where: str) -> tuple[tuple[str, ...], int]:
    """Return the names of the nodes, and the number of ranks on them."""
    text = row.get("NNodes", "")
    count = int(text) if text.isdigit() else 0
    listed = row.get("NodeList", "")
    nodes = expand(listed) if listed not in (*_NO_TIME, "None assigned") else ()
    nodes = nodes or tuple(
        f"node-{number}" for number in range(min(max(count, 1), UNITS_MAX_COUNT))
    )
    found = _GPUS.search(row.get("AllocTRES", ""))
    ranks = max(int(found[1]) if found else len(nodes), 1)
    if ranks > UNITS_MAX_COUNT:
        raise UsageError(f"{where}: {ranks:,} GPUs are more than {UNITS_MAX_COUNT:,}")
    return nodes, ranks


def expand(text: str) -> tuple[str, ...]:
    """Return the names that Slurm's short form stands for, such as `n[01-03,7],login1`.

    The result is empty if the text has another form, such as two ranges in one name.
    """
    out: list[str] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            return ()
        at = found.end()
        before, ranges, after = found[1], found[2], found[3]
        if ranges is None:
            out.append(before + after)
            continue
        for one in ranges.split(","):
            low, _, high = one.partition("-")
            if not low.isdigit() or (high and not high.isdigit()):
                continue
            for number in range(int(low), min(int(high or low), int(low) + UNITS_MAX_COUNT) + 1):
                out.append(f"{before}{number:0{len(low)}}{after}")
                if len(out) > UNITS_MAX_COUNT:
                    return tuple(out)
    return tuple(out)
