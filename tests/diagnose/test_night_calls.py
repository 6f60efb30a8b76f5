"""Logs as an engineer brings them at night: what the verdict must say, and must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Verdict
from tests.diagnose._written import verdict_of

C = FailureClass
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total"
TRACE = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/srv/app/fit.py", line 40, in <module>
[rank1]:     main()
[rank1]:   File "/srv/app/fit.py", line 31, in main
[rank1]:     model(batch)
"""


def of_log(folder: Path, text: str, name: str = "job.log") -> Verdict:
    return verdict_of(folder, {name: text})


def ranks_of(verdict: Verdict) -> list[int]:
    return [one.rank for one in verdict.ranks]


@pytest.mark.parametrize(
    "raised",
    [
        "sqlite3.OperationalError: table runs has 3 columns but 2 values were supplied",
        "urllib3.exceptions.LocationParseError: Failed to parse: //nowhere",
        "psycopg2.errors.UndefinedTable: relation runs is not there",
    ],
)
def test_the_type_of_an_exception_is_no_node(tmp_path: Path, raised: str) -> None:
    """Its module may have a digit in its name, as many hosts have, and a colon follows it."""
    text = (
        f'Traceback (most recent call last):\n  File "/srv/app/fit.py", line 9, in save\n{raised}\n'
    )
    assert of_log(tmp_path, text).nodes == ()


def test_a_host_in_front_of_a_colon_is_a_node(tmp_path: Path) -> None:
    """The other side of the rule above: deepspeed and pdsh put the host there."""
    assert of_log(tmp_path, f"worker-7: {OOM}\n").nodes == ("worker-7",)


@pytest.mark.parametrize(
    "after", ["Will try to load from local cache.\n", "Using the cached copy instead.\n"]
)
def test_a_service_that_is_done_without_is_no_cause(tmp_path: Path, after: str) -> None:
    """Method: the same refusal with and without the line that says how the program goes on."""
    refused = "Couldn't connect to the Hub: 429 Client Error: Too Many Requests for url: x/y.\n"
    got = of_log(tmp_path, refused + after)
    assert got.failure_class is C.UNKNOWN
    alone = of_log(tmp_path, refused, name="job.log")
    assert alone.failure_class is C.DEPENDENCY


def test_what_a_rank_raised_goes_before_a_refusal_in_the_log(tmp_path: Path) -> None:
    """Nothing says that the program went on, but a rank raised something else afterwards."""
    refused = "Couldn't connect to the Hub: 503 Server Error: Service Unavailable for url: x/y.\n"
    got = of_log(tmp_path, f"{refused}step 1 loss 2.0\n{TRACE}[rank1]: {OOM}\n")
    assert got.failure_class is C.GPU_OOM
    assert ranks_of(got) == [1]


def test_a_comparison_of_two_ranks_names_neither(tmp_path: Path) -> None:
    """The rank that raises it is the one that compares, and not the one that differs."""
    said = "DDP expects same model across all ranks, but Rank 2 has 48 params, while rank 0 has"
    got = of_log(tmp_path, f"RuntimeError: {said} inconsistent 46 params.\n")
    assert got.failure_class is C.USER_CODE
    assert ranks_of(got) == []


@pytest.mark.parametrize(
    "raised",
    [
        "soundfile.LibsndfileError: Error opening 'a.flac': Format not recognised.",
        "soundfile.LibsndfileError: <exception str() failed>",
        "av.error.InvalidDataError: [Errno 1094995529] Invalid data found when processing input",
        "decord._ffi.base.DECORDError: cannot find video stream",
    ],
)
def test_a_decoder_that_fails_on_a_sample_is_about_data(tmp_path: Path, raised: str) -> None:
    loader = '[rank1]:   File "/lib/site-packages/torch/_utils.py", line 769, in reraise\n'
    got = of_log(tmp_path, f"{TRACE}{loader}[rank1]:     raise exception\n[rank1]: {raised}\n")
    assert (got.failure_class, ranks_of(got)) == (C.USER_DATA, [1])


def test_a_file_of_settings_is_repaired_and_no_sample(tmp_path: Path) -> None:
    """A parser's error says which file to repair, wherever the file is read."""
    got = of_log(
        tmp_path, f"{TRACE}[rank1]: json.decoder.JSONDecodeError: Expecting value: line 1 column 1"
    )
    assert "sample" not in got.action
    assert "json.tool" in got.next_test


@pytest.mark.parametrize(
    "stamp", ["", "2026-06-02T16:13:44.884Z: ", "Tue Jun  2 16:13:44 2026", "2026-06-02 16:13:44 "]
)
def test_the_label_of_mpirun_is_a_rank_behind_a_time(tmp_path: Path, stamp: str) -> None:
    """mpirun --tag-output, with and without --timestamp-output; the host is NCCL's own prefix."""
    label = f"{stamp}[1,13]<stdout>:"
    text = f"{label}node-b7:812:866 [0] NCCL WARN NET/IB : Got async event : local catastrophic"
    got = of_log(tmp_path, f"{text} error\n")
    assert (got.failure_class, got.nodes) == (C.NIC, ("node-b7",))
    raised = f"{label}Traceback (most recent call last):\n{label}{OOM}\n"
    assert ranks_of(of_log(tmp_path, raised)) == [13]


def test_a_program_that_aborts_itself_was_sent_no_signal(tmp_path: Path) -> None:
    """SIGABRT after an exception of C++ is its end; to ask who sent the signal leads nowhere."""
    got = of_log(
        tmp_path,
        """\
terminate called after throwing an instance of 'std::runtime_error'
  what():  NCCL error: unhandled system error, NCCL version 2.18.1
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 0 (pid: 51)
""",
    )
    assert got.mechanism is Mechanism.EXCEPTION
    assert "NCCL WARN" in got.next_test
    assert "sent the signal" not in got.action + got.next_test


def test_daemons_of_slurm_that_do_not_answer_are_a_failure(tmp_path: Path) -> None:
    text = "srun: error: slurm_receive_msgs: [[n-17]:6818] failed: Socket timed out on send/recv"
    got = of_log(tmp_path, f"{text} operation\n")
    assert got.failure_class is C.UNKNOWN
    assert "slurmd" in got.next_test
    assert "Nothing that was read tells of a failure" not in got.reason


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", C.HOST_MEMORY),
        ("=>> PBS: job killed: mem 70000000kb exceeded limit 67108864kb", C.HOST_MEMORY),
        ("TERM_RUNLIMIT: job killed after reaching LSF run time limit.", C.HOST_MAINTENANCE),
        ("=>> PBS: job killed: walltime 3630 exceeded limit 3600", C.HOST_MAINTENANCE),
        ("TERM_OWNER: job killed by owner.", C.UNKNOWN),
    ],
)
def test_other_schedulers_say_why_they_ended_a_job(
    tmp_path: Path, line: str, named: FailureClass
) -> None:
    got = of_log(tmp_path, f"step 10 loss 2.1\nstep 11 loss 2.0\nstep 12 loss 1.9\n{line}\n")
    assert (got.failure_class, ranks_of(got), got.nodes) == (named, [], ())
    assert "sacct" not in got.next_test


def test_a_time_limit_is_no_fault_of_a_node(tmp_path: Path) -> None:
    """Slurm names the node on which the batch script ran; the job had sixteen of them."""
    end = "CANCELLED AT 2026-05-24T09:50:34 DUE TO TIME LIMIT ***"
    got = of_log(tmp_path, f"slurmstepd: error: *** STEP 77.0 ON b12 {end}\n")
    assert (got.failure_class, got.nodes) == (C.HOST_MAINTENANCE, ())
    lost = of_log(
        tmp_path,
        "slurmstepd: error: *** JOB 77 ON b12 CANCELLED AT 2026-05-24T09:50:34"
        " DUE TO PREEMPTION ***\n",
    )
    assert lost.nodes == ("b12",)


def test_a_tracker_that_lost_its_server_is_no_failure(tmp_path: Path) -> None:
    text = "wandb: ERROR Error while calling W&B API: context deadline exceeded (<Response [500]>)"
    got = of_log(tmp_path, f"step 1 loss 2.0\n{text}\nstep 2 loss 1.9\n")
    assert (got.failure_class, got.confidence) == (C.UNKNOWN, 0.0)


@pytest.mark.parametrize("key", ["/psm_a76d7b88", "/mp-x1y2z3", "/loky-551-abcdef"])
def test_a_tracker_of_shared_memory_raises_no_key_error(tmp_path: Path, key: str) -> None:
    text = (
        f'Traceback (most recent call last):\n  File "t.py", line 1, in main\nKeyError: {key!r}\n'
    )
    assert of_log(tmp_path, text).failure_class is C.UNKNOWN
    own = text.replace(key, "labels")
    assert of_log(tmp_path, own).failure_class is C.USER_CODE


def test_a_setting_that_a_library_corrects_is_no_conflict(tmp_path: Path) -> None:
    said = (
        "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`."
    )
    got = of_log(tmp_path, f"{said}\n{TRACE}[rank1]: {OOM}\n")
    assert got.failure_class is C.GPU_OOM
    assert C.DEPENDENCY not in [name for name, _ in got.others]


def test_the_message_that_was_raised_goes_before_one_that_passes_it_on(tmp_path: Path) -> None:
    """DataParallel raises "Caught ... in replica 0", and prints the message below."""
    got = of_log(
        tmp_path,
        f"""\
Traceback (most recent call last):
  File "/srv/app/fit.py", line 31, in main
torch.OutOfMemoryError: Caught OutOfMemoryError in replica 0 on device 0.
Original Traceback (most recent call last):
  File "/lib/site-packages/torch/nn/modules/linear.py", line 125, in forward
{OOM}
""",
    )
    assert "Tried to allocate" in got.reason


def test_a_clear_line_goes_before_one_that_two_ranks_wrote_at_once(tmp_path: Path) -> None:
    """Ranks without labels write their tracebacks over one another's."""
    said = "[Errno 2] No such file or directory: '/srv/conf/a.yaml'"
    text = f"""\
Traceback (most recent call last):
Traceback (most recent call last):
  File "/srv/app/fit.py", line 31, in main
^^^FileNotFoundError^^: ^^    {said}^^with open(name) as file:
    ^^^^^
FileNotFoundError: {said}
"""
    assert "^^" not in of_log(tmp_path, text).reason


def test_of_several_starts_in_one_file_the_last_wrong_command_counts(tmp_path: Path) -> None:
    """A log to which each start appends ends with the error that stands there now."""
    starts = "".join(
        f"usage: fit.py [-h]\nfit.py: error: argument --{name}: invalid choice: 'x'\n"
        for name in ("old", "older", "newest")
    )
    got = of_log(tmp_path, starts)
    assert "--newest" in got.reason
    assert "--help" in got.next_test


def test_what_is_left_for_other_classes_sums_to_no_more_than_the_rest(tmp_path: Path) -> None:
    """Method: a class and one that is akin to it compete less, so their shares sum to over one."""
    text = (
        "Max retries exceeded with url: /api/login\n"
        f"{TRACE}[rank1]: NameError: name 'HOST' is not defined\n"
        'Traceback (most recent call last):\n  File "/srv/app/b.py", line 3, in <module>\n'
        "ImportError: cannot import name 'x' from 'y'\n"
    )
    got = of_log(tmp_path, text)
    assert got.confidence + sum(share for _, share in got.others) <= 1.0 + 1e-9


def test_a_cpp_frame_with_timeout_in_its_name_is_no_exception(tmp_path: Path) -> None:
    """torch names the function that raised; the log is of the rank that could not connect."""
    text = (
        "[W1226 15:44:31.548330712 TCPStore.cpp:358] [c10d] TCP client failed to connect/validate"
        " to host h-05:8000 - retrying (try=0, timeout=600000ms, delay=77116ms): The client socket"
        " has timed out after 600000ms while trying to connect to (h-05, 8000).\n"
        "Exception raised from throwTimeoutError at ../torch/csrc/distributed/c10d/socket.cpp:1013"
        " (most recent call first):\n"
    )
    got = of_log(tmp_path, text, name="rank_1.log")
    assert got.failure_class is C.UNKNOWN
    assert "nc -vz" in got.next_test
    assert ranks_of(got) == []


def test_a_script_that_is_not_there_is_a_wrong_command(tmp_path: Path) -> None:
    got = of_log(tmp_path, "/usr/bin/python: can't open file 'fit.py': [Errno 2] No such file\n")
    assert got.failure_class is C.USER_CODE
    assert "path of the script" in got.action


def test_a_label_out_of_range_is_looked_for_in_its_batch(tmp_path: Path) -> None:
    kernel = "../aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward: block: [0,0,0], thread:"
    got = of_log(tmp_path, f"{kernel} [3,0,0] Assertion `t >= 0 && t < n_classes` failed.\n")
    assert "labels" in got.action
    assert "CPU" in got.next_test


def test_an_adapter_that_refuses_access_is_no_cable(tmp_path: Path) -> None:
    """Statuses 4, 9 and 10 of verbs are about buffers and their registration."""
    said = "NET/IB : Got completion from peer 10.1.3.201<33057> with status=9 opcode=0 len=0 vendor"
    got = of_log(
        tmp_path, f"n23:10214:10303 [0] transport/net_ib.cc:1909 NCCL WARN {said} err 138\n"
    )
    assert got.failure_class is C.DEPENDENCY
    assert "peermem" in got.action
    told = "NET/IB : mlx5_ib0:1 async fatal event on QP (0x7f69): local access violation work queue"
    got = of_log(tmp_path, f"n23:238:1219 [0] transport/net_ib.cc:180 NCCL WARN {told} error\n")
    assert got.failure_class is C.DEPENDENCY


def test_the_only_rank_that_is_told_of_aborted_by_its_own_exception(tmp_path: Path) -> None:
    """The log has no labels: an exception of C++, and the launcher's table with one row."""
    got = of_log(
        tmp_path,
        """\
CUDA error (/srv/app/kernels.cu:214): misaligned address
terminate called after throwing an instance of 'c10::AcceleratorError'
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
  <NO_OTHER_FAILURES>
Root Cause (first observed failure):
[0]:
  time      : 2026-08-13_08:21:19
  host      : n58
  rank      : 6 (local_rank: 6)
  exitcode  : -6 (pid: 1246013)
  error_file: <N/A>
  traceback : Signal 6 (SIGABRT) received by PID 1246013
============================================================
""",
    )
    assert (got.failure_class, ranks_of(got), got.nodes) == (C.SOFTWARE_BUG, [6], ("n58",))


def test_a_closed_terminal_is_no_matter_of_a_scheduler(tmp_path: Path) -> None:
    at = "W1030 17:53:58.738000 1404 torch/distributed/elastic/agent/server/api.py:688] Received"
    got = of_log(tmp_path, f"step 1 loss 2.0\n{at} Signals.SIGHUP death signal, shutting down\n")
    assert "terminal" in got.reason
    assert "sacct" not in got.next_test
    ended = of_log(tmp_path, f"step 1 loss 2.0\n{at} Signals.SIGTERM death signal, shutting down\n")
    assert "sacct" in ended.next_test


def test_srun_tells_the_node_of_a_task_that_ended(tmp_path: Path) -> None:
    got = of_log(
        tmp_path,
        "srun: error: nid37: task 3: Exited with exit code 1\n"
        "srun: error: nid37: tasks 0-2: Terminated\n",
    )
    assert (ranks_of(got), got.nodes) == ([3], ("nid37",))
