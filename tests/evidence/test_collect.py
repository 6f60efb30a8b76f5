"""Collecting from real processes, and following their logs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.errors import UsageError
from outlast.runtime.collect import collect, find_processes
from outlast.runtime.collect.collector import (
    Collected,
    ended_here,
    lines_for_other_nodes,
    refuse_several_jobs,
)
from outlast.runtime.collect.ports import holder_of
from outlast.runtime.collect.processes import JobProcess, activity_of
from outlast.runtime.collect.watch import Logs, WatchPace, look_at, watch

JOB = f"a-job-of-{os.getpid()}"  # the tests may run twice at once on one machine
BRISK = WatchPace(poll_s=0.05, settle_s=1.0, stacks_apart_s=0.1, again_s=0.1)
# A rank that answers requests for its recorder as NCCL does, and prints a line now and then.
RANK = """
import os, sys, threading, time
folder, rank, lines = sys.argv[1], os.environ["RANK"], int(sys.argv[2])
pipe = f"{folder}/pipe_{rank}.pipe"
os.mkfifo(pipe)
def answer():
    fd = os.open(pipe, os.O_RDWR)
    while os.read(fd, 1):
        with open(f"{folder}/trace_rank_{rank}", "w") as file:
            file.write("{}")
threading.Thread(target=answer, daemon=True).start()
for number in range(lines):
    print("step", number, flush=True)
    time.sleep(0.1)
if len(sys.argv) > 3:
    print(sys.argv[3], flush=True)
    sys.exit(1)
time.sleep(120)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two ranks that stand still after a few lines."""
    started = [start(tmp_path, rank, "3") for rank in range(2)]
    yield started
    for process in started:
        process.kill()
        process.wait(30)


def start(folder: Path, rank: int, *arguments: str) -> subprocess.Popen[bytes]:
    (folder / "fr").mkdir(exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": JOB,
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/fr/pipe_",
    }
    with (folder / "logs" / f"rank_{rank}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-c", RANK, str(folder / "fr"), *arguments],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def wait_for(what: Path, text: str) -> None:
    over_s = time.monotonic() + 60
    while not what.exists() or text not in what.read_text():
        assert time.monotonic() < over_s, f"{what} never said {text!r}"
        time.sleep(0.05)


def test_the_processes_of_a_job_are_found_by_its_id_and_by_pid(
    tmp_path: Path, job: list[subprocess.Popen[bytes]]
) -> None:
    wait_for(tmp_path / "logs" / "rank_1.log", "step 2")
    wait_for(tmp_path / "logs" / "rank_0.log", "step 2")
    found = find_processes(job=JOB)
    assert [(one.rank, one.pid) for one in found] == [
        (rank, process.pid) for rank, process in enumerate(job)
    ]
    assert [one.rank for one in find_processes(pids=[job[1].pid])] == [1]
    assert find_processes(job="another") == []


def test_dumps_logs_and_states_are_collected_and_what_lacks_is_named(
    tmp_path: Path, job: list[subprocess.Popen[bytes]]
) -> None:
    """Method: rank 1 is stopped, so that it cannot answer; all else is there all the same."""
    for rank in range(2):
        wait_for(tmp_path / "logs" / f"rank_{rank}.log", "step 2")
    job[1].send_signal(signal.SIGSTOP)
    out = collect(tmp_path / "out", job=JOB, apart_s=0.1, dump_wait_s=3.0)
    assert (tmp_path / "out" / "dumps" / "trace_rank_0").read_text() == "{}"
    assert not (tmp_path / "out" / "dumps" / "trace_rank_1").exists()
    assert any("rank 1 did not answer" in one for one in out.lacking)
    assert "step 2" in (tmp_path / "out" / "logs" / "rank_0.stdout.log").read_text()
    table = (tmp_path / "out" / "node" / "processes.txt").read_text().splitlines()
    assert [row.split()[2][0] for row in table[1:]] == ["S", "T"]
    record = json.loads((tmp_path / "out" / "node" / "collected.json").read_text())
    assert record["lacking"] == out.lacking
    assert record["ranks"] == {str(job[0].pid): 0, str(job[1].pid): 1}


@pytest.mark.parametrize(("local_world_size", "elsewhere"), [("2", False), ("1", True)])
def test_a_rank_of_this_node_that_has_ended_is_not_looked_for_elsewhere(
    tmp_path: Path, local_world_size: str, elsewhere: bool
) -> None:
    """Method: of two ranks only rank 1 has a process; the launcher says how many it started."""
    local = "1" if local_world_size == "2" else "0"
    environment = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": local_world_size, "LOCAL_RANK": local}
    one = JobProcess(os.getpid(), 1, 1, "python train.py", "S", 0.0, environment=environment)
    out = Collected(tmp_path, processes=[one])
    assert bool(lines_for_other_nodes(out)) is elsewhere
    assert ended_here(out.processes) == ([] if elsewhere else [0])


def test_a_thread_that_waits_is_still_and_one_that_computes_moves() -> None:
    """Method: one real process sleeps, the other counts; both are looked at twice."""
    sleeps, counts = (
        subprocess.Popen([sys.executable, "-c", f"print(flush=True)\n{then}"], stdout=-1)
        for then in ("import time; time.sleep(120)", "while True: pass")
    )
    try:
        for process in (sleeps, counts):
            assert process.stdout is not None
            process.stdout.readline()
        over_s = time.monotonic() + 60
        state = Path(f"/proc/{sleeps.pid}/stat")
        while state.read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < over_s, "it never slept"
        first = [activity_of(process.pid) for process in (sleeps, counts)]
        while activity_of(counts.pid)[1] == first[1][1]:
            assert time.monotonic() < over_s, "the one that counts never ran"
        assert activity_of(sleeps.pid) == first[0]
    finally:
        for process in (sleeps, counts):
            process.kill()
            process.communicate()


def test_a_folder_that_holds_something_is_not_mixed_with(
    tmp_path: Path, job: list[subprocess.Popen[bytes]]
) -> None:
    wait_for(tmp_path / "logs" / "rank_0.log", "step 2")
    with pytest.raises(UsageError, match="not empty"):
        collect(tmp_path, job=JOB)


STARTS_A_RANK = """
import subprocess, sys
sys.exit(subprocess.call([sys.executable, "-c", "import time; print('up', flush=True); \
time.sleep(99)"]))
"""


def test_two_jobs_on_one_node_are_not_mixed(tmp_path: Path) -> None:
    """Method: two launchers with a rank each; unless one is named, nothing is collected."""
    environment = {**os.environ, "WORLD_SIZE": "1", "RANK": "0"}
    launchers = []
    for _ in range(2):
        # The launcher itself has no RANK, its child has.
        program = (
            f"import os; os.environ.update({{'RANK': '0', 'WORLD_SIZE': '1'}}); {STARTS_A_RANK!r}"
        )
        launchers.append(
            subprocess.Popen(
                [sys.executable, "-c", f"exec({program!r}); exec({STARTS_A_RANK!r})"],
                env={name: value for name, value in environment.items() if name != "RANK"},
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        )
    try:
        for one in launchers:
            assert one.stdout is not None
            assert one.stdout.readline() == b"up\n"
        with pytest.raises(UsageError, match="jobs run on this node") as raised:
            collect(tmp_path / "out")
        assert all(f"--pid {one.pid} " in raised.value.hint for one in launchers)
    finally:
        for one in launchers:
            os.killpg(one.pid, signal.SIGKILL)
            one.communicate()


def test_a_process_that_its_launcher_left_is_named_by_its_own_pid() -> None:
    """Its parent is init then, and to name that would take all orphans of the node."""
    of_a_job, orphan = (
        JobProcess(pid, rank, parent, "python train.py", "S", 0.0)
        for pid, rank, parent in ((20, 0, 10), (30, 1, 1))
    )
    with pytest.raises(UsageError) as raised:
        refuse_several_jobs([of_a_job, orphan])
    assert "--pid 10  rank 0" in raised.value.hint
    assert "--pid 30  rank 1" in raised.value.hint


def test_no_process_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no process of a training job"):
        collect(tmp_path / "out", job="nobody's")


def test_who_holds_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert f"pid {os.getpid()} listens there" in holder_of(port)
    assert holder_of(port) == "nobody listens there"


def test_a_followed_job_that_stands_still_is_said_to_hang(tmp_path: Path) -> None:
    """Without py-spy the silence alone must be longer; with it, the stacks confirm it."""
    said: list[str] = []
    process = start(tmp_path, 0, "25")
    try:
        ended = watch(
            [str(tmp_path / "logs")],
            incidents=tmp_path / "incidents",
            job=JOB,
            min_s=0.5,
            pace=BRISK,
            on_look=said.append,
        )
    finally:
        process.kill()
        process.wait(30)
    assert ended.how == "hangs"
    assert "no new line" in ended.reason
    assert "step 24" in (tmp_path / "logs" / "rank_0.log").read_text()
    assert said[-1] == ended.reason
    assert [str(one) for one in (tmp_path / "incidents").iterdir()] == list(ended.paths[1:])


def test_a_followed_job_that_fails_is_said_to_have_failed(tmp_path: Path) -> None:
    """Method: the launcher's words come while it is followed; those of before do not count."""
    words = (
        "E torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) "
        "local_rank: 0 (pid: 7) of binary: python"
    )
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "old.log").write_text(words + "\n")
    process = start(tmp_path, 0, "8", words)
    try:
        ended = watch([str(tmp_path / "logs")], incidents=tmp_path, min_s=100.0, pace=BRISK)
    finally:
        process.kill()
        process.wait(30)
    assert ended.how == "failed"
    assert "exitcode: 1" in ended.reason


def test_of_several_jobs_the_one_that_writes_the_logs_is_followed(tmp_path: Path) -> None:
    """Method: two ranks of two jobs print into files; a third file has no writer."""
    program = "import time; print('up', flush=True); time.sleep(99)"
    environment = {**os.environ, "WORLD_SIZE": "1", "RANK": "0"}
    processes = []
    try:
        for name in ("mine.log", "other.log"):
            with open(tmp_path / name, "wb") as file:
                processes.append(
                    subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=file)
                )
        (tmp_path / "old.log").write_text("step 1\n")
        assert Logs([str(tmp_path / "mine.log")]).writers() == [processes[0].pid]
        assert Logs([str(tmp_path / "old.log")]).writers() == []
    finally:
        for process in processes:
            process.kill()
            process.wait(30)


def test_where_there_are_no_stacks_it_is_said_why(tmp_path: Path) -> None:
    collected, why = look_at(tmp_path / "out", (), "nobody's", BRISK)
    assert collected is None
    assert "no process of a training job was found" in why
    assert "--pid" in why


def test_the_time_before_the_first_line_is_no_gap_between_two(tmp_path: Path) -> None:
    """A job imports for half a minute before it prints: that is not how often its lines come."""
    log = tmp_path / "rank_0.log"
    log.write_text("")
    logs = Logs([str(log)], last_line_s=100.0)
    for now_s in (100.0, 130.0, 131.0, 132.0):
        if now_s > 100.0:
            log.write_text(f"{log.read_text()}step {now_s:.0f}\n")
        logs.look(now_s)
    assert logs.gaps_s == [1.0, 1.0]


@pytest.mark.parametrize("age_s", [5.0, 700.0, 90_000.0])
def test_a_job_that_hangs_already_is_looked_at_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float
) -> None:
    """Its logs show no gap, so the age of the newest file tells how long it has been silent.

    Method: two looks at stacks that do not move, and a file of that age. What is waited for, and
    until when, is said each time; a silence of many minutes needs no second look.
    """
    log = tmp_path / "rank_0.log"
    log.write_text("step 7\n")
    written_s = time.time() - age_s
    os.utime(log, (written_s, written_s))
    stack = 'Process {0}: python train.py\nThread {0} (idle): "MainThread"\n    load (train.py:3)\n'

    def collected(folder: Path, **_: object) -> Collected:
        (folder / "stacks").mkdir(parents=True, exist_ok=True)
        (folder / "stacks" / "stack_rank_0.txt").write_text(2 * f"{stack.format(71)}\n")
        return Collected(folder, got={"second stacks": 1})

    monkeypatch.setattr("outlast.runtime.collect.watch.collect", collected)
    said: list[str] = []
    ended = watch(
        [str(log)], incidents=tmp_path, job=JOB, min_s=2.0, pace=BRISK, on_look=said.append
    )
    assert ended.how == "hangs"
    assert "how often one comes is not known yet" in ended.reason
    assert len(said) == (2 if age_s < 600.0 else 1)
    assert all(re.search(r"stacks are taken again at \d\d:\d\d:\d\d", one) for one in said[:-1])


def test_logs_of_a_job_that_ended_long_ago_are_no_hang_at_once(tmp_path: Path) -> None:
    """No process is there, so only the silence that was watched counts."""
    log = tmp_path / "rank_0.log"
    log.write_text("step 7\n")
    os.utime(log, (0.0, 0.0))
    said: list[str] = []
    ended = watch(
        [str(log)],
        incidents=tmp_path,
        job="nobody's",
        pace=BRISK,
        on_look=said.append,
        is_over=lambda: bool(said),
    )
    assert ended.how == "gone"
    assert "no process of a training job was found" in said[0]
    assert "it counts as a hang at" in said[0]


def test_watching_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text("step 1\n")
    over = threading.Event()
    threading.Timer(0.2, over.set).start()
    ended = watch([str(tmp_path)], incidents=tmp_path, pace=BRISK, is_over=over.is_set)
    assert ended.how == "gone"
