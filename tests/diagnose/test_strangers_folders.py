"""Folders of evidence as strangers bring them: each is read, and says what an engineer needs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from outlast.model.verdict import Verdict
from outlast.runtime.evidence.reading import diagnose

TRACEBACK = """\
Traceback (most recent call last):
  File "/app/train.py", line 61, in main
    for batch in loader:
  File "/app/data/packed.py", line 118, in __getitem__
    return self.index[i]
  File "/usr/lib/python3/dist-packages/numpy/core/memmap.py", line 335, in __getitem__
    res = super().__getitem__(index)
IndexError: index 91211 is out of bounds for axis 0 with size 91200"""
RAISED = "raised in __getitem__ (data/packed.py:118)"


def verdict_of(folder: Path, **files: str | bytes) -> Verdict:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return diagnose([str(folder)]).verdict


def ranks_of(verdict: Verdict) -> list[int]:
    return [one.rank for one in verdict.ranks]


def labelled(label: str, text: str) -> str:
    return "".join(f"{label}{line}\n" for line in text.splitlines())


def test_a_traceback_tells_the_users_own_line(tmp_path: Path) -> None:
    """The innermost frame is a library's; the line to mend is the user's."""
    got = verdict_of(tmp_path, log_dot_txt=TRACEBACK)
    assert got.failure_class.value == "user_code"
    assert RAISED in got.reason


def test_srun_labels_are_ranks_where_srun_starts_them(tmp_path: Path) -> None:
    """The node comes from srun's own line about that task."""
    end = "srun: error: gpu-017: task 5: Exited with exit code 1\n"
    end += "srun: error: gpu-016: tasks 0-3: Terminated\n"
    got = verdict_of(tmp_path, slurm_dot_out=labelled("5: ", TRACEBACK) + end)
    assert (ranks_of(got), got.nodes) == ([5], ("gpu-017",))


def test_srun_labels_are_nodes_where_srun_starts_a_launcher(tmp_path: Path) -> None:
    """Method: task 1 runs torchrun, whose rank 6 raised."""
    table = """\
[2026-11-24 03:10:01,101] torch.distributed.elastic.multiprocessing.api: [ERROR] failed \
(exitcode: 1) local_rank: 2 (pid: 2203) of binary: /usr/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
Root Cause (first observed failure):
[0]:
  time      : 2026-11-24_03:10:00
  host      : nid0042
  rank      : 6 (local_rank: 2)
  exitcode  : 1 (pid: 2203)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================"""
    got = verdict_of(tmp_path, slurm_dot_out=labelled("1: ", f"{TRACEBACK}\n{table}"))
    assert (ranks_of(got), got.nodes) == ([6], ("nid0042",))


def test_torchs_own_label_goes_before_that_of_srun(tmp_path: Path) -> None:
    got = verdict_of(tmp_path, slurm_dot_out=labelled("1: [rank6]: ", TRACEBACK))
    assert ranks_of(got) == [6]


def test_kubectl_and_compose_labels_do_not_hide_a_traceback(tmp_path: Path) -> None:
    """Method: two pods write in turns, and the times of the lines are of different lengths."""
    lines = []
    for at, line in enumerate(TRACEBACK.splitlines()):
        stamp = f"2026-11-24T02:41:09.{'123456789'[: 1 + at]}Z"
        lines.append(f"[pod/llama-worker-1/pytorch] {stamp} {line}")
        lines.append(f"[pod/llama-worker-0/pytorch] {stamp} step {at} loss 2.2")
    got = verdict_of(tmp_path / "pods", all_dot_log="\n".join(lines))
    assert RAISED in got.reason
    got = verdict_of(
        tmp_path / "cri", all_dot_log=labelled("2026-11-24T02:41:09.1Z stderr F ", TRACEBACK)
    )
    assert RAISED in got.reason
    got = verdict_of(tmp_path / "compose", all_dot_log=labelled("trainer-2  | ", TRACEBACK))
    assert RAISED in got.reason


def test_kubectl_describe_tells_the_node_of_a_killed_pod(tmp_path: Path) -> None:
    text = (
        "Name:             llama-worker-1\nNode:             gke-a3-x2kq/10.128.0.77\n"
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n"
    )
    got = verdict_of(tmp_path, describe_dot_txt=text)
    assert (got.failure_class.value, got.nodes) == ("host_memory", ("gke-a3-x2kq",))


def spy(pid: int, frames: list[str]) -> str:
    body = "".join(f"    {frame}\n" for frame in frames)
    head = f"Process {pid}: python train.py\nPython v3.11.9"
    return f'{head}\n\nThread {pid} (idle): "MainThread"\n{body}'


WAITS = ["all_reduce (torch/distributed/distributed_c10d.py:2806)", "main (train.py:410)"]
READS = ["get (shard_cache.py:88)", "__next__ (train.py:90)", "main (train.py:402)"]


def test_headings_above_stacks_of_many_processes_are_ranks(tmp_path: Path) -> None:
    stacks = [spy(3100 + rank, READS if rank == 2 else WAITS) for rank in range(4)]
    text = "".join(f"=== rank {rank} on n0 ===\n{stack}\n" for rank, stack in enumerate(stacks))
    got = verdict_of(tmp_path, stacks_dot_txt=text)
    assert ranks_of(got) == [2]
    assert got.stacks[0].frames[0] == READS[0]


def test_without_ranks_the_process_is_named_in_the_next_test(tmp_path: Path) -> None:
    text = "".join(f"{spy(3100 + at, READS if at == 2 else WAITS)}\n" for at in range(4))
    got = verdict_of(tmp_path, stacks_dot_txt=text)
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [])
    assert "py-spy dump --pid 3102" in got.next_test


def test_torchelastics_error_files_are_enough(tmp_path: Path) -> None:
    """Rank 0 lost its peer, rank 3 raised; the bytes that were read are counted."""

    def error(text: str, stack: str) -> str:
        extra = {"py_callstack": stack, "timestamp": "1795489901"}
        return json.dumps({"message": {"message": text, "extraInfo": extra}})

    for rank, text in ((0, "torch.distributed.DistBackendError: remote process exited"), (3, "")):
        path = tmp_path / f"attempt_0/{rank}/error.json"
        path.parent.mkdir(parents=True)
        path.write_text(error(text or TRACEBACK.splitlines()[-1], "" if text else TRACEBACK))
    got = diagnose([str(tmp_path)])
    assert ranks_of(got.verdict) == [3]
    assert RAISED in got.verdict.reason
    assert got.read_bytes > 0


def test_a_gpu_is_not_to_be_reset_where_the_driver_asks_for_a_reboot(
    tmp_path: Path,
) -> None:
    stamp = "[Tue Nov 24 03:10:51 2026] NVRM: Xid (PCI:0000:43:00): "
    text = f"{stamp}79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    asked = (
        f"{stamp}154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n"
    )
    plain = verdict_of(tmp_path / "plain", dmesg_dot_txt=text)
    assert any("--gpu-reset" in one for one in plain.commands)
    got = verdict_of(tmp_path / "asked", dmesg_dot_txt=text + asked)
    assert got.action.endswith("the driver itself asks for: Node Reboot Required")
    assert not any("--gpu-reset" in one for one in got.commands)


def test_a_check_of_the_loss_is_no_fault_of_the_line_that_checks(tmp_path: Path) -> None:
    said = TRACEBACK.rpartition("\n")[0] + "\nAssertionError: loss became NaN"
    got = verdict_of(tmp_path, output_dot_log=said)
    assert got.failure_class.value == "unknown"
    assert "learning rate" in got.action


def test_a_node_that_went_away_is_to_be_left_out(tmp_path: Path) -> None:
    got = verdict_of(tmp_path, slurm_dot_out="slurmstepd: error: Node failure on nid0042\n")
    assert got.nodes == ("nid0042",)
    assert "without that node" in got.action


def test_windows_logs_and_packed_logs_are_read(tmp_path: Path) -> None:
    crlf = TRACEBACK.replace("\n", "\r\n").replace("/app/", "C:\\Users\\Jürgen\\")
    for name, raw in (
        ("utf16", b"\xff\xfe" + crlf.encode("utf-16-le")),
        ("latin", crlf.encode("latin-1")),
        ("packed", gzip.compress(TRACEBACK.encode())),
    ):
        got = verdict_of(tmp_path / name, log_dot_txt=raw)
        assert "packed.py:118" in got.reason, name


def timed_out(rank: int, number: int) -> str:
    at = f"[rank{rank}]:[E1124 03:10:0{rank}.123 ProcessGroupNCCL.cpp:688] [Rank {rank}]"
    work = f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000)"
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    return (
        f"{at} Watchdog caught collective operation timeout: {work} ran for 600023 milliseconds\n"
        f"[rank{rank}]:[E1124 03:10:0{rank}.124 ProcessGroupNCCL.cpp:2256] {group}  failure"
        f" detected by watchdog at work sequence id: {number} PG status: last enqueued work:"
        f" {number + 2}, last completed work: {number - 1}\n"
    )


def told_to_dump(rank: int, enqueued: int) -> str:
    return (
        f"[rank{rank}]:[E1124 03:10:09.125 ProcessGroupNCCL.cpp:1794] [PG ID 0 PG GUID"
        f" 0(default_pg) Rank {rank}] Received a dump signal due to a collective timeout from  rank"
        f" 0 and we will try our best to dump the debug info. Last enqueued NCCL work: {enqueued},"
        f" last completed NCCL work: {enqueued}.\n"
    )


def test_a_rank_that_is_told_to_dump_says_how_far_it_had_come(tmp_path: Path) -> None:
    """Ranks 0, 1 and 3 timed out in collective 71, which rank 2 had not called yet."""
    waits = "".join(timed_out(rank, 71) for rank in (0, 1, 3))
    got = verdict_of(tmp_path / "late", log_dot_txt=waits + told_to_dump(2, 70))
    assert (ranks_of(got), got.mechanism and got.mechanism.value) == ([2], "hang")
    got = verdict_of(tmp_path / "there", log_dot_txt=waits + told_to_dump(2, 72))
    assert ranks_of(got) == []


def test_srun_names_the_task_that_ran_out_of_memory(tmp_path: Path) -> None:
    """A task is a rank where a host has several of them, and a node where it has one."""
    killed = "slurmstepd-gpu-04: error: Detected 1 oom_kill event in StepId=7.0.\n"
    killed += "srun: error: gpu-04: task 6: Out Of Memory\n"
    got = verdict_of(tmp_path / "ranks", out=killed + "srun: error: gpu-03: tasks 0-3: Killed\n")
    assert (ranks_of(got), got.nodes) == ([6], ("gpu-04",))
    assert "failed by a signal" in got.reason
    got = verdict_of(tmp_path / "nodes", out=killed + "srun: error: gpu-03: task 5: Killed\n")
    assert ranks_of(got) == []


def test_the_node_whose_link_went_down_goes_before_those_that_noticed(tmp_path: Path) -> None:
    notices = "".join(
        f"gpu-0{node}:90:99 [4] transport/net_ib.cc:2205 NCCL WARN NET/IB: mlx5_1:1 Got completion"
        " from peer 10.1.0.7<49921> with status=12 opcode=0 len=0 vendor err 129\n"
        for node in (3, 5)
    )
    kernel = "Nov 24 03:10:01 gpu-07 kernel: mlx5_core 0000:9a:00.0 ibp154s0: Link down\n"
    got = verdict_of(tmp_path / "both", train_dot_log=notices, kern_dot_log=kernel)
    assert (got.failure_class.value, got.nodes) == ("network", ("gpu-07",))
    got = verdict_of(tmp_path / "noticed", train_dot_log=notices)
    assert got.nodes == ("10.1.0.7",)  # both lost it, and neither the other


def test_the_node_that_failed_is_not_the_one_of_the_batch_script(tmp_path: Path) -> None:
    text = "srun: error: Node failure on nid0042\nslurmstepd: error: *** JOB 9 ON nid0001 CANCELLED"
    got = verdict_of(
        tmp_path, out=f"{text} AT 2026-11-24T04:00:00 DUE TO NODE FAILURE, SEE LOG ***\n"
    )
    assert got.nodes == ("nid0042",)


def test_a_volume_of_a_pod_that_started_was_mounted_in_the_end(tmp_path: Path) -> None:
    late = (
        '3m Warning FailedMount pod/fit-1 MountVolume.SetUp failed for volume "data" : timed out\n'
    )
    started = "2m Normal Started pod/fit-{} Started container trainer\n"
    got = verdict_of(tmp_path / "started", events=late + started.format(1))
    assert got.reason.startswith("Nothing that was read tells of a failure")
    got = verdict_of(tmp_path / "waits", events=late + started.format(0))
    assert got.failure_class.value == "storage"


def test_pods_with_one_pid_are_told_apart_by_their_headings(tmp_path: Path) -> None:
    """A stack in Python's own socket reads from a server; it does not wait for a peer."""
    reads = [
        "recv_into (socket.py:707)",
        "read (fsspec/implementations/http.py:300)",
        "__getitem__ (remote.py:55)",
        "main (train.py:80)",
    ]
    stacks = [spy(77, reads if rank == 2 else WAITS) for rank in range(4)]
    text = "".join(
        f"==== fit-worker-{rank} rank {rank} ====\n{one}\n" for rank, one in enumerate(stacks)
    )
    got = verdict_of(tmp_path, stacks_dot_txt=text)
    assert (got.failure_class.value, ranks_of(got)) == ("storage", [2])


def test_what_a_loaders_worker_raised_is_placed_in_the_users_code(tmp_path: Path) -> None:
    """Torch puts the worker's traceback below the words "Original Traceback"."""
    outer = TRACEBACK.replace(
        "IndexError: ", "IndexError: Caught IndexError in DataLoader worker process 3.: "
    )
    text = outer.replace("/app/data/packed.py", "/venv/site-packages/torch/_utils.py")
    inner = "Original " + TRACEBACK
    got = verdict_of(tmp_path, log_dot_txt=labelled("[rank5]: ", f"{text}\n{inner}"))
    assert RAISED in got.reason


def test_kubectl_tells_the_node_of_a_pod_in_each_of_its_formats(tmp_path: Path) -> None:
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    pod = {"spec": {"nodeName": "ip-10-0-1-9"}, "status": {"containerStatuses": [killed]}}
    yaml = "spec:\n  nodeName: ip-10-0-1-9\nstatus:\n    terminated:\n      reason: OOMKilled\n"
    for name, text in (("json", json.dumps(pod, indent=4)), ("yaml", yaml)):
        got = verdict_of(tmp_path / name, pod=text)
        assert (got.failure_class.value, got.nodes) == ("host_memory", ("ip-10-0-1-9",)), name


def test_what_follows_is_shown_after_the_failure_of_the_same_second(tmp_path: Path) -> None:
    """torchrun's table lists the ranks that it closed before the one that failed."""
    entry = (
        "  time      : 2026-11-24_03:10:00\n  host      : n1\n  rank      : {0} (local_rank: {0})\n"
        "  exitcode  : {1} (pid: 7{0})\n  error_file: <N/A>\n  traceback : {2}\n"
    )
    closed = entry.format(0, -15, "Signal 15 (SIGTERM) received by PID 70")
    failed = entry.format(1, 3, "To enable traceback see: https://pytorch.org")
    text = (
        f"Failures:\n[1]:\n{closed}Root Cause (first observed failure):\n[0]:\n{failed}{'=' * 60}\n"
    )
    got = verdict_of(tmp_path, out=text)
    assert [one.rank for one in got.timeline] == [1, 0]


def test_an_old_line_of_the_kernel_did_not_break_what_fails_today(tmp_path: Path) -> None:
    """The job's log does not say when it began, only when it failed."""
    text = f"[rank2]: {TRACEBACK.splitlines()[-1]}"
    failed = f"2026-11-24 03:10:00,101 ERROR {TRACEBACK}\n{text}\n"
    xid = (
        "[Mon Nov  {} 03:09:51 2026] NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen off the bus.\n"
    )
    got = verdict_of(tmp_path / "old", train_dot_log=failed, dmesg=xid.format(2))
    assert got.failure_class.value == "user_code"
    now = xid.format("24").replace("  24", " 24")
    got = verdict_of(tmp_path / "now", train_dot_log=failed, dmesg=now)
    assert got.failure_class.value == "gpu"


def test_rows_of_other_jobs_in_slurms_accounting_count_for_nothing(tmp_path: Path) -> None:
    rows = "8999     OUT_OF_ME+    0:125\n9001        FAILED      1:0\n"
    got = verdict_of(tmp_path / "other", **{"slurm-9001_dot_out": TRACEBACK, "sacct": rows})
    assert got.failure_class.value == "user_code"
    assert "8999" in got.reason
    got = verdict_of(tmp_path / "own", **{"slurm-8999_dot_out": TRACEBACK, "sacct": rows})
    assert got.failure_class.value == "host_memory"


def test_a_program_that_finished_its_training_did_not_fail(tmp_path: Path) -> None:
    """A language model may write a traceback as its sample. Another rank's end tells nothing."""
    end = "\nTraining finished in 1:02:11\n"
    got = verdict_of(tmp_path / "one", log_dot_txt=f"sample 1:\n{TRACEBACK}{end}")
    assert got.reason.startswith("Nothing that was read tells of a failure")
    failed = labelled("[rank2]: ", TRACEBACK) + "[rank0]: Training finished\n"
    got = verdict_of(tmp_path / "two", log_dot_txt=failed)
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [2])


def test_words_that_only_look_like_a_full_disk_or_a_kill(tmp_path: Path) -> None:
    watches = "OSError: [Errno 28] inotify watch limit reached"
    got = verdict_of(tmp_path / "watches", log=TRACEBACK.rpartition("\n")[0] + f"\n{watches}")
    assert got.failure_class.value == "user_code"
    got = verdict_of(tmp_path / "lived", inspect='[\n  {\n    "OOMKilled": false\n  }\n]\n')
    assert got.failure_class.value == "unknown"
    got = verdict_of(tmp_path / "killed", inspect='[\n  {\n    "OOMKilled": true\n  }\n]\n')
    assert got.failure_class.value == "host_memory"
    cut = "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"
    got = verdict_of(tmp_path / "cut", log=TRACEBACK.rpartition("\n")[0] + f"\n{cut}")
    assert got.failure_class.value == "storage"


def test_a_rank_that_only_repeats_what_another_one_met_is_innocent(tmp_path: Path) -> None:
    text = labelled("[rank3]: ", TRACEBACK)
    text += labelled("[rank0]: ", TRACEBACK.rpartition("\n")[0] + "\nRuntimeError: rank 3 failed")
    assert ranks_of(verdict_of(tmp_path / "other", log=text)) == [3]
    text = labelled("[rank3]: ", TRACEBACK.rpartition("\n")[0] + "\nRuntimeError: rank 3 failed")
    assert ranks_of(verdict_of(tmp_path / "own", log=text)) == [3]


def test_a_server_that_refuses_is_no_disk_and_no_peer(tmp_path: Path) -> None:
    """In "refused" there is the name of a file system, and torch's store has such words, too."""
    head = TRACEBACK.rpartition("\n")[0]
    text = f"{head}\nConnectionRefusedError: [Errno 111] Connection refused"
    got = verdict_of(tmp_path, log_dot_txt=labelled("[rank2]: ", text))
    assert (got.failure_class.value, ranks_of(got)) == ("unknown", [2])
    assert got.others[0][0].value == "dependency"


def test_a_breakpoint_left_in_the_script_is_its_fault(tmp_path: Path) -> None:
    head = TRACEBACK.rpartition("\n")[0]
    got = verdict_of(tmp_path, log_dot_txt=labelled("[rank1]: ", f"{head}\nbdb.BdbQuit"))
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [1])


LOADER_KILLED = """\
[rank3]: RuntimeError: DataLoader worker (pid 48213) is killed by signal: Killed.
[rank3]: The above exception was the direct cause of the following exception:
[rank3]: RuntimeError: DataLoader worker (pid(s) 48213) exited unexpectedly
"""
OOM_KILL = (
    "[Tue Nov 24 03:40:05 2026] Memory cgroup out of memory: Killed process {} (python3.11)"
    " total-vm:58211232kB, anon-rss:41203888kB, oom_score_adj:936\n"
)


def test_a_kill_of_a_loaders_worker_is_tied_to_the_job(tmp_path: Path) -> None:
    """Torch tells the signal first, and then the same end again without it, or that alone."""
    got = verdict_of(tmp_path / "own", train_dot_log=LOADER_KILLED, dmesg=OOM_KILL.format(48213))
    assert (got.failure_class.value, ranks_of(got)) == ("host_memory", [3])
    assert got.confidence > 0.9
    untold = LOADER_KILLED.splitlines()[-1]
    got = verdict_of(tmp_path / "untold", train_dot_log=untold, dmesg=OOM_KILL.format(48213))
    assert (got.failure_class.value, ranks_of(got)) == ("host_memory", [3])
    crashed = LOADER_KILLED.replace("Killed.", "Segmentation fault.")
    for name, log, pid in (("other", LOADER_KILLED, 9), ("crashed", crashed, 48213)):
        got = verdict_of(tmp_path / name, train_dot_log=log, dmesg=OOM_KILL.format(pid))
        assert "is not shown to be of this job" in got.reason, name


def test_a_node_that_shuts_down_ends_its_pods(tmp_path: Path) -> None:
    """The pods' peers lost a connection, and the events say that the node was not ready."""
    text = (
        "Name:             llama-ft-worker-2\nNode:             gke-spot-x9lk/10.128.0.41\n"
        "Reason:           Terminated\n"
        "Message:          Pod was terminated in response to imminent node shutdown.\n"
        "  Warning  NodeNotReady  2m21s  node-controller          Node is not ready\n"
    )
    lost = (
        "[rank0]: ncclRemoteError: A call failed possibly due to a network error or a remote"
        " process exiting prematurely.\n"
    )
    got = verdict_of(tmp_path, describe_dot_txt=text, worker_dot_log=lost)
    assert (got.failure_class.value, got.nodes) == ("host_maintenance", ("gke-spot-x9lk",))
    assert ranks_of(got) == []


def test_a_checkpoint_that_does_not_fit_is_no_line_to_fix(tmp_path: Path) -> None:
    said = (
        "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for "
    )
    said += "lm_head.weight: copying a param with shape torch.Size([32000, 4096]) from checkpoint"
    text = TRACEBACK.rpartition("\n")[0] + f"\n{said}"
    got = verdict_of(tmp_path, log=text)
    assert got.failure_class.value == "user_code"
    assert got.action.startswith("build the model as it was when the checkpoint was saved")


def test_a_service_that_fails_is_not_asked_for_its_version(tmp_path: Path) -> None:
    """A name that has no address is another matter than a server that refuses."""
    head = TRACEBACK.rpartition("\n")[0]
    at = "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x"
    name = f"urllib3.exceptions.MaxRetryError: {at} (Caused by NameResolutionError('Failed to"
    name += " resolve huggingface.co'))"
    got = verdict_of(tmp_path / "name", log=f"{head}\n{name}")
    assert (got.failure_class.value, got.next_test.split()[0]) == ("dependency", "getent")
    refused = "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: x"
    got = verdict_of(tmp_path / "refused", log=f"{head}\n{refused}")
    assert (got.failure_class.value, "curl -I" in got.next_test) == ("dependency", True)


def test_a_group_left_open_at_the_end_is_no_failure(tmp_path: Path) -> None:
    """Torch says it of programs that end well, too."""
    open_ = "[rank{}]:[W1124 03:16:05.003 ProcessGroupNCCL.cpp:1476] Warning: WARNING:"
    open_ += " destroy_process_group() was not called before program exit\n"
    steps = "".join(f"step {step} loss 2.2\n" for step in range(30))
    got = verdict_of(tmp_path / "well", log=steps + open_.format(0))
    assert got.reason.startswith("Nothing that was read tells of a failure")
    got = verdict_of(tmp_path / "badly", log=labelled("[rank1]: ", TRACEBACK) + open_.format(0))
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [1])


def test_a_loss_that_is_no_number_is_looked_at_where_it_began(tmp_path: Path) -> None:
    """The rank that stopped is named, and a restart from the last checkpoint would repeat it."""
    said = TRACEBACK.rpartition("\n")[0] + "\nFloatingPointError: loss is nan at step 311"
    got = verdict_of(tmp_path, log=labelled("[rank2]: ", said))
    assert (got.failure_class.value, ranks_of(got)) == ("unknown", [2])
    assert "from before the first such step" in got.action


def test_advice_is_about_what_failed(tmp_path: Path) -> None:
    """Each of these has a class whose general advice would lead nowhere."""
    head = TRACEBACK.rpartition("\n")[0]
    cases = {
        "CUDA error: invalid device ordinal": ("user_code", "no more ranks"),
        "botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL: x": (
            "storage",
            "credentials",
        ),
        "RuntimeError: Error 802: system not yet initialized": ("dependency", "fabricmanager"),
        "OSError: You are trying to access a gated repo.": ("dependency", "token"),
        "wandb.errors.errors.CommError: Run initialization has timed out": ("dependency", "token"),
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the"
        " C10d store has failed. See inner exception for details.": ("unknown", "MASTER_ADDR"),
    }
    for at, (said, (name, word)) in enumerate(cases.items()):
        got = verdict_of(tmp_path / str(at), log=f"{head}\n{said}")
        assert (got.failure_class.value, word in got.action) == (name, True), (said, got.action)
    pulled = verdict_of(tmp_path / "image", describe="      Reason:       ImagePullBackOff\n")
    assert "registry" in pulled.action


def test_processes_that_die_in_a_pool_may_have_been_killed(tmp_path: Path) -> None:
    """It is a hint, and asks for the kernel's log; that log then decides."""
    said = "RuntimeError: One of the subprocesses has abruptly died during map operation."
    got = verdict_of(tmp_path / "alone", log=TRACEBACK.rpartition("\n")[0] + f"\n{said}")
    assert got.failure_class.value == "unknown"
    assert "OOM kill" in got.next_test


def test_a_loader_that_gave_up_has_no_process_to_look_at(tmp_path: Path) -> None:
    said = TRACEBACK.rpartition("\n")[0] + "\nRuntimeError: DataLoader timed out after 120 seconds"
    got = verdict_of(tmp_path, log=labelled("[rank6]: ", said))
    assert ranks_of(got) == [6]
    assert "while the job still hangs" not in got.action
    assert "py-spy" not in got.next_test


def test_rays_own_memory_monitor_is_believed(tmp_path: Path) -> None:
    said = "The actor is dead because its worker process has died. Worker exit type:"
    got = verdict_of(tmp_path, log=f"{said} NODE_OUT_OF_MEMORY Worker exit detail: x\n")
    assert got.failure_class.value == "host_memory"


def test_settings_beside_a_log_tell_of_no_failure(tmp_path: Path) -> None:
    """They name what a program looks for. A file that a person names is read."""
    settings = "nccl_timeout: 1800\ncheck: ['uncorrectable ECC error', 'Xid 79']\n"
    got = verdict_of(tmp_path, config_dot_yaml=settings, log_dot_txt=TRACEBACK)
    assert got.failure_class.value == "user_code"
    named = diagnose([str(tmp_path / "config.yaml")]).verdict
    assert named.evidence


def test_an_extension_that_cannot_be_compiled_is_a_dependency(tmp_path: Path) -> None:
    text = (
        'Traceback (most recent call last):\n  File "/u/tune.py", line 2, in <module>\n'
        "    import deepspeed\n"
        '  File "/u/site-packages/deepspeed/ops/op_builder/builder.py", line 50, in x\n'
        "    raise MissingCUDAException(text)\ndeepspeed.ops.op_builder.builder."
        "MissingCUDAException: CUDA_HOME does not exist, unable to compile CUDA op(s)\n"
    )
    got = verdict_of(tmp_path, log_dot_txt=text)
    assert got.failure_class.value == "dependency"
