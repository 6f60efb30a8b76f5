"""Lines that are older than the job: they weigh little, name nobody, and are said."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.diagnose.findings import Finding
from outlast.diagnose.foreign_lines import (
    OLD_S,
    ZONES_S,
    with_strangers_marked,
    without_foreign_lines,
)
from outlast.diagnose.fuse import decide
from outlast.diagnose.logs import read_lines
from outlast.diagnose.logs.lines import SAME_LATER, SAME_MAX
from outlast.diagnose.same_job import BEGAN_LINES, Sample
from outlast.model.terms import FailureClass, Mechanism
from outlast.runtime.evidence.reading import diagnose

BEGAN = datetime(2026, 11, 22, 21, 0, 0, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
OOM = "Out of memory: Killed process 4242 (python) total-vm:1kB"
WAIT = (
    "[rank{rank}]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank {rank}] Timeout at NCCL work: 19, last"
    " enqueued NCCL work: 19, last completed NCCL work: 18."
)


def kernel(*told: tuple[timedelta, str], host: str = "n1") -> str:
    return "".join(
        f"{BEGAN + after:%Y-%m-%dT%H:%M:%S}+00:00 {host} kernel: {text}\n" for after, text in told
    )


def job(form: str, *, ends: str = WAIT) -> str:
    """A rank's log that begins with a time in `form`."""
    return f"{BEGAN.strftime(form)} step 1\nstep 2\n{ends.format(rank=0)}\n"


def read(**logs: str) -> tuple[list[Finding], str]:
    found, samples = [], []
    for name, text in logs.items():
        lines = text.encode().splitlines()
        found += read_lines(lines, name=name)
        samples.append(Sample(name))
        samples[-1].look(lines)
    return without_foreign_lines(found, samples)


FORMS = [
    "%Y-%m-%d %H:%M:%S",
    "[rank0]:[W%m%d %H:%M:%S.718204215 Utils.hpp:137]",
    "W%m%d %H:%M:%S.412000 139 torch/distributed/elastic/agent/server/api.py:933]",
]


@pytest.mark.parametrize("form", FORMS, ids=["ISO", "torch", "torchrun"])
@pytest.mark.parametrize(
    ("ago", "failure_class"),
    [(8 * HOUR, "unknown"), (HOUR, "unknown"), (-HOUR, "unknown"), (72 * HOUR, "unknown")],
)
def test_what_killed_something_hours_before_the_job_began_did_not_end_it(
    tmp_path: Path, form: str, ago: timedelta, failure_class: str
) -> None:
    (tmp_path / "dmesg.txt").write_text(kernel((-ago, OOM)))
    (tmp_path / "rank_0.log").write_text(job(form))
    got = diagnose([str(tmp_path)])
    assert got.verdict.failure_class.value == failure_class
    assert any("older than the job's own logs" in note for note in got.notes) is (ago > 3 * HOUR)


def test_an_old_line_counts_only_where_clocks_may_differ_by_a_zone() -> None:
    """Method: an OOM kill eight hours before the job, and one three days before it."""
    near, far = (
        decide(read(dmesg=kernel((-ago, OOM)), job=job(FORMS[0]))[0], blame=None)
        for ago in (8 * HOUR, 72 * HOUR)
    )
    assert [one for one, _ in near.others] == [FailureClass.HOST_MEMORY]
    assert far.others == ()


def test_how_an_older_job_ended_is_not_how_this_one_did() -> None:
    """Method: an OOM kill ends by a signal; this job hangs."""
    new, _ = read(dmesg=kernel((HOUR, OOM)), job=job(FORMS[0]))
    old, _ = read(dmesg=kernel((-8 * HOUR, OOM)), job=job(FORMS[0]))
    assert [decide(found, blame=None).mechanism for found in (new, old)] == [
        Mechanism.SIGNAL,
        Mechanism.HANG,
    ]


def test_many_old_lines_make_one_another_no_surer() -> None:
    """Method: three sources for a GPU, any two of which would name it."""
    gone = [
        (-8 * HOUR, f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, name=python, x")
        for code in (79, 62, 122)
    ]
    got = decide(read(dmesg=kernel(*gone), job=job(FORMS[0]))[0], blame=None)
    assert (got.failure_class, got.confidence <= 0.5) == (FailureClass.UNKNOWN, True)


def test_where_a_new_line_says_the_same_no_old_one_adds_a_node() -> None:
    gone = (
        "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the"
        " bus."
    )
    found, note = read(
        a=kernel((-9 * HOUR, gone), host="n1"), b=kernel((HOUR, gone), host="n2"), job=job(FORMS[0])
    )
    assert (decide(found, blame=None).nodes, "1 line of a is 9.0 hours or more older" in note) == (
        ("n2",),
        True,
    )


@pytest.mark.parametrize(
    "log",
    [
        f"{WAIT.format(rank=0)}\n",  # no time at all
        "loss 0.1\n" * BEGAN_LINES + job(FORMS[0]),  # its first time is that of its end
    ],
    ids=["no time", "no time at first"],
)
def test_a_log_that_does_not_say_when_it_began_makes_nothing_old(log: str) -> None:
    found, note = read(dmesg=kernel((-8 * HOUR, OOM)), job=log)
    assert (note, any(one.doubt for one in found)) == ("", False)


def test_a_log_of_a_host_says_nothing_of_when_the_job_began() -> None:
    """Method: kernel logs of two hosts; one begins after an OOM kill on the other. No job log."""
    found, note = read(a=kernel((-8 * HOUR, OOM)), b=kernel((HOUR, "eth0: link becomes ready")))
    assert (note, any(one.doubt for one in found)) == ("", False)


def test_a_year_that_is_not_said_is_the_nearest(tmp_path: Path) -> None:
    """Method: the kernel logs on New Year's Eve; the job, without a year, on the next morning."""
    (tmp_path / "dmesg.txt").write_text(f"2025-12-31T23:00:00+00:00 n1 kernel: {OOM}\n")
    (tmp_path / "rank_0.log").write_text(
        "[rank0]:[W0101 07:30:00.718204215 Utils.hpp:137] x\n" + WAIT.format(rank=0)
    )
    assert "8.5 hours or more older" in "".join(diagnose([str(tmp_path)]).notes)


def test_what_a_log_repeats_for_weeks_is_still_read_today() -> None:
    """Method: far more lines of one kind than are handed on, a day before; then two today."""
    before = [(timedelta(seconds=at), OOM) for at in range(10 * SAME_MAX)]
    today = [(24 * HOUR + timedelta(seconds=at), OOM) for at in range(10)]
    found = list(read_lines(kernel(*before, *today).encode().splitlines(), name="dmesg"))
    assert [(one.at_s or 0.0) > BEGAN.timestamp() + 80_000 for one in found] == [
        False
    ] * SAME_MAX + [True] * SAME_LATER


SPY = (
    'Process {pid}: python job.py\nThread {pid} (idle): "MainThread"\n    {frame}\n    main'
    " (job.py:9)\n"
)
WAITS, WORKS = "all_reduce (torch/distributed/distributed_c10d.py:2501)", "fetch (job.py:4)"


def hang(**more: str) -> list[Finding]:
    """Four ranks of which one works, an OOM kill before their eyes, and `more`."""
    logs = {
        f"stack_rank_{rank}.txt": SPY.format(pid=rank + 70, frame=WORKS if rank == 2 else WAITS)
        for rank in range(4)
    }
    return read(
        **logs | {"job": job(FORMS[0], ends="step 3"), "dmesg": kernel((HOUR, OOM))} | more
    )[0]


def doubts(**more: str) -> set[str]:
    return {
        one.doubt for one in with_strangers_marked(hang(**more))[0] if one.evidence.file == "dmesg"
    }


def test_a_kill_beside_a_rank_that_waits_for_its_loader_is_untied() -> None:
    """A worker of the loader may have been killed, but nothing names its pid."""
    stuck = SPY.format(pid=72, frame="_try_get_data (torch/utils/data/dataloader.py:1291)")
    assert doubts(**{"stack_rank_2.txt": stuck}) == {"untied"}


def test_where_all_ranks_live_a_kernel_has_killed_something_else() -> None:
    found, note = with_strangers_marked(hang())
    got = decide(found, blame=None)
    assert (got.failure_class, got.mechanism, [one.rank for one in got.ranks]) == (
        FailureClass.USER_CODE,
        Mechanism.HANG,
        [2],
    )
    assert FailureClass.HOST_MEMORY not in dict(got.others)
    assert any("4242" in one.text for one in got.evidence)
    assert "4242" in note


@pytest.mark.parametrize(
    ("more", "doubt"),
    [
        ({"rank_5.log": "2026-11-22 21:00:00 step 1"}, "untied"),  # no stack of that rank
        ({"console": "traceback : Signal 9 (SIGKILL) received by PID 4242"}, ""),
        (
            {
                "rank_1.log": "RuntimeError: DataLoader worker (pid 4242) is killed by"
                " signal: Killed."
            },
            "",
        ),
    ],
    ids=["no stack of one", "one was killed", "its loader was killed"],
)
def test_a_kill_counts_where_a_pid_ties_it_to_the_job(more: dict[str, str], doubt: str) -> None:
    assert doubts(**more) == {doubt}


TABLE = """\
E torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: {code}) local_rank: 1 \
(pid: {pid}) of binary: python
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_22:00:05
  host      : n1
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>
  traceback : x
"""
CGROUP = "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg={0},task_memcg={0},task={1},pid=4242,uid=0"
POD = "/kubepods.slice/kubepods-pod1.slice/cri-1.scope"


@pytest.mark.parametrize(
    ("line", "code", "pid", "doubt"),
    [
        (OOM, -9, 4242, ""),
        (OOM, 1, 4242, "stranger"),
        (OOM, 1, 77, "stranger"),
        (OOM, -9, 77, "untied"),
        (CGROUP.format(POD, "python"), -9, 77, ""),
        (CGROUP.format(POD, "mysqld"), -9, 77, "stranger"),
        (OOM.replace("python", "httpd"), -9, 77, "stranger"),
        ("python3[4242]: segfault at 0 ip 00 sp 00 error 4 in x.so", -11, 4242, ""),
        ("python3[4242]: segfault at 0 ip 00 sp 00 error 4 in x.so", -9, 77, "stranger"),
    ],
    ids=[
        "pid and code",
        "pid with a traceback's code",
        "other pid, other code",
        "other pid",
        "container's pid",
        "container's database",
        "other command",
        "crash",
        "another's crash",
    ],
)
def test_pid_code_command_and_cgroup_tie_a_kill_to_a_job(
    line: str, code: int, pid: int, doubt: str
) -> None:
    """Method: a launcher's table of one failed rank beside one line of the kernel, an hour in."""
    found, _ = read(console=TABLE.format(code=code, pid=pid), dmesg=kernel((HOUR, line)))
    marked, _ = with_strangers_marked(found)
    assert {one.doubt for one in marked if one.evidence.file == "dmesg"} == {doubt}


def test_a_kill_hours_from_the_failure_is_untied() -> None:
    """The pid is a container's, so that only the time can speak against it."""
    pod = CGROUP.format(POD, "python")
    found, _ = read(console=TABLE.format(code=-9, pid=77), dmesg=kernel((HOUR / 2, pod)))
    marked, _ = with_strangers_marked(found)
    assert {one.doubt for one in marked if one.evidence.file == "dmesg"} == {"untied"}


@pytest.mark.parametrize(
    ("hours", "apart_s", "doubt"),
    [(0.0, 9_000.0, ""), (6.3, 9_000.0, "untied"), (-6.3, 9_000.0, "untied"), (6.3, 5.0, "")],
    ids=["at the end", "hours before", "hours after", "copied"],
)
def test_a_log_without_times_ends_when_its_file_was_written(
    hours: float, apart_s: float, doubt: str
) -> None:
    """The kernel's log was written later, by hand; copied files all have one time."""
    console = TABLE.format(code=-9, pid=77).replace("2026-11-22_22:00:05", "x")
    pod = CGROUP.format(POD, "python")
    found, _ = read(console=console, dmesg=kernel((HOUR, pod)))
    killed_s = next(one.at_s for one in found if one.evidence.file == "dmesg")
    assert killed_s is not None
    written_s = {"console": killed_s + 20.0 + hours * 3_600.0}
    written_s["dmesg"] = written_s["console"] + apart_s
    marked, _ = with_strangers_marked(found, written_s=written_s)
    assert {one.doubt for one in marked if one.evidence.file == "dmesg"} == {doubt}


def test_a_kill_that_is_tied_names_its_rank() -> None:
    found, _ = read(console=TABLE.format(code=-9, pid=4242), dmesg=kernel((HOUR, OOM)))
    got = decide(with_strangers_marked(found)[0], blame=None)
    assert (got.failure_class, [one.rank for one in got.ranks]) == (FailureClass.HOST_MEMORY, [1])


def test_a_group_that_may_not_fork_is_the_jobs_only_if_the_job_says_so() -> None:
    line = kernel((HOUR, "cgroup: fork rejected by pids controller in /another-job"))
    for said, doubt in (
        ("step 2", "untied"),
        ("[rank1]: BlockingIOError: [Errno 11] Resource temporarily unavailable", ""),
    ):
        found, _ = read(dmesg=line, job=job(FORMS[0], ends=said + "\n" + WAIT))
        marked, _ = with_strangers_marked(found)
        assert {one.doubt for one in marked if one.evidence.file == "dmesg"} == {doubt}


def test_lines_of_one_kill_are_judged_together() -> None:
    """Only one of three lines names the pid, and it is another job's."""
    found, _ = read(
        console=TABLE.format(code=1, pid=77),
        dmesg=kernel(
            (HOUR, "python invoked oom-killer: gfp_mask=0x1, order=0"),
            (HOUR, CGROUP.format("/user.slice", "java")),
            (HOUR, "Out of memory: Killed process 4242 (java) total-vm:1kB"),
        ),
    )
    marked, _ = with_strangers_marked(found)
    assert {one.doubt for one in marked if one.evidence.file == "dmesg"} == {"stranger"}


START = (
    "W{0:%m%d %H:%M:%S}.412000 139 torch/distributed/run.py:766] Setting OMP_NUM_THREADS"
    " environment variable\n"
)


@pytest.mark.parametrize(
    ("line", "doubt"),
    [
        (OOM, "older"),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x, GPU has fallen off the bus.", ""),
    ],
)
def test_a_kill_before_the_start_is_foreign_and_a_broken_gpu_is_not(line: str, doubt: str) -> None:
    """Method: twenty minutes before the start of the job, of which the launcher's log has the first
    words.
    """
    logs = {
        "dmesg": kernel((-HOUR / 3, line)),
        "rank_0.log": "IndexError: list index out of range\n",
    }
    started, _ = read(
        **logs,
        console=START.format(BEGAN)
        + "x torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1)"
        " local_rank: 0\n",
    )
    unsure, _ = read(**logs, job=job(FORMS[0]))
    assert [
        {one.doubt for one in found if one.evidence.file == "dmesg"} for found in (started, unsure)
    ] == [{doubt}, {""}]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(-40, 40), st.booleans()), max_size=8))
def test_only_lines_of_hosts_that_are_hours_older_are_touched(told: list[tuple[int, bool]]) -> None:
    """Method: lines at any hour before and after the job began, of hosts and of the job itself."""
    logs = {
        f"f{at}": (
            kernel((hours * HOUR, OOM)) if host else kernel((hours * HOUR, WAIT.format(rank=1)))
        )
        for at, (hours, host) in enumerate(told)
    }
    began_s = min(
        [
            BEGAN.timestamp(),
            *(BEGAN.timestamp() + hours * 3_600 for hours, host in told if not host),
        ]
    )
    found, note = read(job=job(FORMS[0]), **logs)
    kept = {one.evidence.file: one for one in found}
    ages_s = {
        f"f{at}": began_s - BEGAN.timestamp() - hours * 3_600
        for at, (hours, host) in enumerate(told)
        if host
    }
    new = any(age_s <= OLD_S for age_s in ages_s.values())
    for name, age_s in ages_s.items():
        assert (name in kept) is (age_s <= OLD_S or (age_s <= ZONES_S and not new))
        assert name not in kept or bool(kept[name].doubt) is (age_s > OLD_S)
    assert all(f"f{at}" in kept for at, (_, host) in enumerate(told) if not host)
    assert bool(note) is any(age_s > OLD_S for age_s in ages_s.values())


@pytest.mark.parametrize("ago", [HOUR, 8 * HOUR], ids=["recent", "older"])
def test_a_kill_of_a_process_that_is_not_the_jobs_weighs_nothing(
    tmp_path: Path, ago: timedelta
) -> None:
    """That the line is older as well gives it no weight back.

    Method: the kernel ended a database; a rank of the job was killed hours later.
    """
    line = "Out of memory: Killed process 999 (mysqld) total-vm:1kB, anon-rss:1kB"
    (tmp_path / "dmesg.txt").write_text(kernel((-ago, line)))
    table = TABLE.format(code=-9, pid=4242)
    (tmp_path / "rank_0.log").write_text(f"{job(FORMS[0])}\n{table}")
    got = diagnose([str(tmp_path)])
    assert got.verdict.failure_class is FailureClass.UNKNOWN
    assert got.verdict.mechanism is Mechanism.SIGNAL
    assert any("mysqld is none of the job's" in note for note in got.notes)
