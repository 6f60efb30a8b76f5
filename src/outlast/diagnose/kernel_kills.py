"""Whether a process that a kernel ended was one of the job's.

A kernel's log knows all that runs on a host. One event there is several lines ("invoked
oom-killer", "oom-kill:constraint=...", "Killed process 4242 (python)"), and only some of them name
the process. Lines of one file that stand close together are one `KernelKill`.

A kill is judged by what the job's own evidence says of its processes (`JobProcesses`):

    tied         it names a pid of the job that ended by such a signal, or whose end is not known
    fits         some rank ended by that signal, the pid cannot be compared (a container counts pids
                 of its own, or no pid of the rank is known), and command and time do not speak
                 against it
    untied       nothing ties it to the job, nothing excludes it
    excluded     the job's processes lived on, or ended in another way

What is not seen: a process of the job that no evidence names, such as a service that it needs.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs.went_on import RULE as WENT_ON
from outlast.diagnose.processes import DEEPSPEED, ENDED, SPAWNED
from outlast.diagnose.stacks.reader import Stack, doing

KILLS = ("oom.", "segfault.")  # rules of what a kernel says about a process that it ended
OWN_WORDS = ("oom.systemd",)  # these name a unit, not a process
SAME_EVENT_LINES = 400  # a memory report with a long table of tasks stands between its lines
SAME_EVENT_S = 5.0
FAILED_WITHIN_S = 180.0  # the job shows a failure so soon after one of its processes was killed
AGREE_S = 5.0  # clocks of a host and of a job agree so well
SIGNALS = {"oom.": (-9, 137), "segfault.": (-11, -4, -8, 139, 132, 136)}

_PID = re.compile(
    r"killed? process (\d{1,9})|reaped process (\d{1,9})|\bpid=(\d{1,9})"
    r"|^.{0,120}?\b[\w./:-]{1,40}\[(\d{1,9})\]:? (?:segfault|general protection|trap)",
    re.IGNORECASE,
)
_COMMAND = re.compile(
    r"process \d{1,9},? (?:UID \d{1,9}, )?\(([^)]{1,40})\)|\btask=([^,]{1,40}),pid="
    r"|([\w./:-]{1,40})\[\d{1,9}\]:? (?:segfault|general protection|trap)",
    re.IGNORECASE,
)
_CGROUP = re.compile(r"(?:oom|task)_memcg=([^,\s]{1,400})")
_CONTAINER = re.compile(r"kubepods|docker|containerd|crio|libpod|lxc", re.IGNORECASE)
_SLURM_JOB = re.compile(r"/job_(\d{1,12})\b")
# what a training process and its loader's workers are called
TRAINS = re.compile(
    r"^(?:python|pt_main|pt_data|pt_nccl|torchrun|ray|train|\(?sd-pam)", re.IGNORECASE
)
_TABLE_PID = re.compile(r"^exitcode {1,6}: (-?\d{1,3}) {1,2}\(pid: (\d{1,9})\)")
_AGENT_FAILED = re.compile(r"failed \(exitcode: (-?\d{1,3})\).{0,60}\(pid: (\d{1,9})\)")
_AGENT_CLOSES = re.compile(
    r"(?:sending process|closing process|process) (\d{1,9}) closing|"
    r"closing process (\d{1,9}) via",
    re.IGNORECASE,
)
_LOADER_PID = re.compile(r"dataloader worker \(pid(?:\(s\))? ([\d, ]{1,80})\)", re.IGNORECASE)
_LOADER_ENDED = re.compile(
    r"is killed by signal: (\w{1,20})|unexpectedly with exit code (\d{1,3})", re.IGNORECASE
)
_LOADER_CODES = {"killed": -9, "segmentation": -11, "bus": -7, "aborted": -6, "terminated": -15}
_RECEIVED_BY = re.compile(r"signal \d{1,2} \(\w{1,12}\) received by pid (\d{1,9})", re.IGNORECASE)


class Tie(str, Enum):
    """The strength of the evidence that a kill of the kernel hit the job."""

    TIED = "tied"
    FITS = "fits"
    UNTIED = "untied"
    EXCLUDED = "excluded"


@dataclass(slots=True)
class KernelKill:
    """One event of a kernel's log, and the findings about it."""

    findings: list[Finding] = field(default_factory=list)
    pid: int | None = None
    command: str = ""
    cgroup: str = ""

    @property
    def at_s(self) -> float | None:
        """The time of the kill in Unix seconds; None if no line has one."""
        return next((one.at_s for one in self.findings if one.at_s is not None), None)

    @property
    def kind(self) -> str:
        """The prefix, one of KILLS, that the rules of its lines share."""
        return next(kind for kind in KILLS if self.findings[0].rule.startswith(kind))


@dataclass(frozen=True, slots=True)
class JobProcesses:
    """This is what the job's own evidence says about its processes.

    is_known       something was read that belongs to the job itself
    codes          pid -> exit code, if a launcher reports it
    ranks          pid -> rank, if a launcher or the file of a stack names it
    living         pids whose stack was taken, and whose end is not reported
    lost_workers   pids of loaders' workers that ended, and nothing reports how
    lived_until_s  the earliest of the ranks' last signs of life, in Unix seconds; None unless every
                   rank has one
    failed_s       when the launcher or a rank first reported a failure (Unix seconds); None: never
    slurm_jobs     the job ids that the job's own logs name
    all_stand      every rank that left any evidence has a stack, and nothing says that one ended
    ended_by       the exit codes of all ranks that failed by themselves
    has_logs       files other than the kernel's log were read, even if they are empty
    """

    is_known: bool = False
    codes: dict[int, int] = field(default_factory=dict)
    ranks: dict[int, int] = field(default_factory=dict)
    living: frozenset[int] = frozenset()
    lost_workers: frozenset[int] = frozenset()
    lived_until_s: float | None = None
    failed_s: float | None = None
    slurm_jobs: frozenset[str] = frozenset()
    all_stand: bool = False
    ended_by: tuple[int, ...] = ()
    has_logs: bool = False


def is_kill(one: Finding) -> bool:
    """Return whether the line says that a kernel ended a process."""
    return one.rule.startswith(KILLS) and one.rule not in OWN_WORDS and one.rule != "oom.page"


def kills_of(findings: Iterable[Finding]) -> list[KernelKill]:
    """Return the kills that kernel logs report. All lines about one kill are one `KernelKill`."""
    kills: list[KernelKill] = []
    last: dict[str, KernelKill] = {}
    for one in findings:
        if not is_kill(one):
            continue
        text = one.evidence.text
        found = _PID.search(text)
        pid = int(next(group for group in found.groups() if group)) if found else None
        kill = last.get(one.evidence.file)
        if kill is None or not _continues(kill, one, pid):
            kill = KernelKill()
            kills.append(kill)
            last[one.evidence.file] = kill
        kill.findings.append(one)
        kill.pid = kill.pid if pid is None else pid
        if command := _COMMAND.search(text):
            kill.command = next(group for group in command.groups() if group)
        if cgroup := _CGROUP.search(text):
            kill.cgroup = cgroup[1]
    return kills


def _continues(kill: KernelKill, one: Finding, pid: int | None) -> bool:
    before = kill.findings[-1]
    if pid is not None and kill.pid is not None and pid != kill.pid:
        return False
    if "invoked oom-killer" in one.evidence.text:  # this line begins an event
        return False
    if before.at_s is not None and one.at_s is not None:
        return abs(one.at_s - before.at_s) <= SAME_EVENT_S
    return one.order - before.order <= SAME_EVENT_LINES


def job_processes(
    findings: Sequence[Finding],
    *,
    slurm_jobs: Iterable[str] = (),
    last_signs_s: Iterable[float] = (),
    files: Iterable[str] = (),
) -> JobProcesses:
    """Collect what launchers, loaders and stacks say of the job's processes.

    `last_signs_s` are the times of each rank's last recorded collective, and `files` the names of
    all texts that were read.
    """
    own = [one for one in findings if _is_of_the_job(one)]
    codes: dict[int, int] = {}
    ranks: dict[int, int] = {}
    closed: set[int] = set()
    workers: set[int] = set()
    for one in own:
        text = one.evidence.text
        for pattern in (_TABLE_PID, _AGENT_FAILED):
            if found := pattern.search(text):
                codes[int(found[2])] = int(found[1])
                if one.rank is not None:
                    ranks[int(found[2])] = one.rank
        if one.rule == DEEPSPEED and one.rank is not None and (found := SPAWNED.search(text)):
            ranks[int(found[1])] = one.rank
        if found := ENDED.search(text):  # without a rank, any of them may have ended by a signal
            code = int(found[1])
            is_any = one.rank is None and code < 0
            codes |= {pid: code for pid, rank in ranks.items() if is_any or rank == one.rank}
        if found := _AGENT_CLOSES.search(text):
            closed.add(int(found[1] or found[2]))
        if found := _LOADER_PID.search(text):
            # Torch tells the signal in one message, and again, without it, in the one that follows.
            pids = {int(pid) for pid in re.findall(r"\d+", found[1])}
            workers |= pids
            if how := _LOADER_ENDED.search(text):
                code = int(how[2]) if how[2] else _LOADER_CODES.get(how[1].lower(), 1)
                codes.update(dict.fromkeys(pids, code))
            if one.rank is not None:
                ranks.update(dict.fromkeys(pids, one.rank))
        if (found := _RECEIVED_BY.search(text)) and "9 (SIGKILL)" in text:
            codes.setdefault(int(found[1]), -9)
    codes.update({pid: -15 for pid in closed if pid not in codes})
    stacks = [one for one in own if isinstance(one, Stack)]
    living = {int(one.process) for one in stacks if one.process.isdecimal()} - codes.keys()
    signs = list(last_signs_s)
    return JobProcesses(
        is_known=bool(own) or bool(signs),
        codes=codes,
        ranks=ranks,
        living=frozenset(living),
        lost_workers=frozenset(workers - codes.keys()),
        lived_until_s=min(signs, default=None),
        failed_s=min(
            (one.at_s for one in own if one.at_s is not None and _fails(one)), default=None
        ),
        slurm_jobs=frozenset(slurm_jobs),
        all_stand=_all_stand(findings),
        has_logs=bool(set(files) - {one.evidence.file for one in findings if is_kill(one)}),
        ended_by=tuple(code for code in codes.values() if code not in (0, -15, -2, -1, -6)),
    )


def _is_of_the_job(one: Finding) -> bool:
    return not is_kill(one) and (
        one.rank is not None
        or isinstance(one, Stack)
        or one.rule.startswith(("elastic.", "exit.", "c10d.", "nccl.", "gloo.", "python."))
        or one.rule.startswith(("loader.", "store.", "data.", "torch.", "cuda.", "ledger."))
        or one.rule == WENT_ON
    )


def _fails(one: Finding) -> bool:
    return one.rule.startswith(("elastic.", "exit.", "gloo.", "c10d.", "nccl.", "loader."))


def _all_stand(findings: Sequence[Finding]) -> bool:
    """Return True if every rank that left anything has a stack and none of them ended.

    No rank waits for workers of its own.
    """
    stood = {one.rank for one in findings if isinstance(one, Stack) and one.rank is not None}
    left = {one.rank for one in findings if one.rank is not None}
    if len(stood) < 2 or stood != left:
        return False
    return not any(
        one.rule.startswith(("elastic.", "exit."))
        or (isinstance(one, Stack) and doing(one.frames) == "loader")
        for one in findings
        if not is_kill(one)
    )


def tie_of(kill: KernelKill, job: JobProcesses) -> tuple[Tie, str]:
    """Decide how a kill is tied to the job, and say why."""
    signals = SIGNALS[kill.kind]
    is_foreign = bool(kill.command) and not TRAINS.match(kill.command)
    if not job.is_known and not (is_foreign and job.has_logs):
        return Tie.FITS, "the kernel's log is all that was read"
    if kill.pid is not None and kill.pid in job.codes:
        if job.codes[kill.pid] in signals:
            return Tie.TIED, f"pid {kill.pid} is the job's, and ended by that signal"
        if kill.kind == "oom.":
            return Tie.EXCLUDED, f"pid {kill.pid} ended with exit code {job.codes[kill.pid]}"
    if kill.pid is not None and kill.pid in job.lost_workers:
        return Tie.TIED, f"pid {kill.pid} is a worker of the job's data loader"
    if kill.pid is not None and kill.pid in job.living:
        return Tie.EXCLUDED, f"pid {kill.pid} lived when its stack was taken"
    job_id = _SLURM_JOB.search(kill.cgroup)
    if job_id and job.slurm_jobs:
        same = job_id[1] in job.slurm_jobs
        return (Tie.TIED if same else Tie.EXCLUDED), f"its cgroup is of Slurm job {job_id[1]}"
    if job.all_stand:
        return Tie.EXCLUDED, "stacks were taken of all ranks"
    if is_foreign:
        return Tie.EXCLUDED, f"the command {kill.command} is none of the job's"
    return _by_exit_and_time(kill, job, signals)


def _by_exit_and_time(
    kill: KernelKill, job: JobProcesses, signals: tuple[int, ...]
) -> tuple[Tie, str]:
    at_s = kill.at_s
    if at_s is not None and job.lived_until_s is not None and at_s < job.lived_until_s - AGREE_S:
        return Tie.EXCLUDED, "all ranks went on after it"
    if job.ended_by and not any(code in signals for code in job.ended_by):
        return Tie.EXCLUDED, f"no process of the job ended by that signal ({_codes(job)})"
    if not any(code in signals for code in job.ended_by):
        return Tie.UNTIED, "nothing tells how the job's processes ended"
    failed_after_s = None if at_s is None or job.failed_s is None else job.failed_s - at_s
    if failed_after_s is not None and not -AGREE_S <= failed_after_s <= FAILED_WITHIN_S:
        return Tie.UNTIED, "the job did not fail at that time"
    if kill.pid is not None and job.codes and not _CONTAINER.search(kill.cgroup):
        return Tie.UNTIED, f"pid {kill.pid} is none that the job's launcher names"
    return Tie.FITS, "a process of the job ended by that signal at that time"


def _codes(job: JobProcesses) -> str:
    shown = sorted(set(job.ended_by))[:4]
    return "exit codes " + ", ".join(map(str, shown))


def with_rank(one: Finding, kill: KernelKill, job: JobProcesses) -> Finding:
    """Return the finding with its rank, if a launcher says which rank the killed process had."""
    rank = job.ranks.get(kill.pid) if kill.pid is not None else None
    return one if rank is None or one.rank is not None else replace(one, rank=rank)
