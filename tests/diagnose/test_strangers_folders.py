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
