"""Folders as users have them: several attempts, other people's GPUs, texts that a log shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.model.verdict import Verdict
from tests.diagnose._written import verdict_of


def steps_at(first: int, last: int, hour: str = "2026-05-11 03") -> str:
    return "".join(
        f"{hour}:{step // 60:02d}:{step % 60:02d},000 INFO step={step} loss=2.{step}\n"
        for step in range(first, last)
    )


def raised(rank: int, error: str) -> str:
    label = f"[rank{rank}]: "
    return (
        f"{label}Traceback (most recent call last):\n"
        f'{label}  File "/app/train.py", line 61, in main\n'
        f"{label}    loss = step(batch)\n"
        f"{label}{error}\n"
    )


def ranks_of(verdict: Verdict) -> list[int]:
    return [one.rank for one in verdict.ranks]


ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
WAITED = "".join(
    f"[rank{rank}]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc"
    ":81] Timed out waiting 1800000ms for recv operation to complete\n"
    for rank in (0, 1, 3)
)
BARE_KILL = "run.sh: line 4: 4711 Killed                  python train.py\n"


# --- nothing is known ----------------------


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (WAITED, "outlast diagnose --collect OUT"),
        (BARE_KILL, "dmesg -T"),
        ("[rank1]: RuntimeError: CUDA error: unspecified launch failure\n", "nvidia-smi -q"),
    ],
)
def test_where_nothing_is_known_evidence_is_asked_for(
    tmp_path: Path, text: str, asked: str
) -> None:
    """A restart was advised before, though nothing told that it would end otherwise."""
    got = verdict_of(tmp_path, {"train.log": steps_at(0, 30) + text})
    assert got.failure_class.value == "unknown"
    assert asked in got.action
    assert "from the last checkpoint" not in got.action


# --- an earlier submission, and another job of the host ----------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("slurm-1001.out", "slurm-1002.out"),
        ("train.o4711", "train.o4712"),
        ("logs/pretrain-81231.log", "logs/pretrain-81240.log"),
        ("attempt1.log", "attempt2.log"),
        ("train.log.1", "train.log"),
    ],
)
def test_of_outputs_of_two_submissions_the_newer_one_is_diagnosed(
    tmp_path: Path, old: str, new: str
) -> None:
    """Method: a GPU broke yesterday, and today rank 0 raises."""
    files = {
        old: steps_at(0, 90, "2026-05-10 01") + raised(2, ECC),
        new: steps_at(90, 180) + raised(0, "KeyError: 'eval_loss'"),
    }
    got = verdict_of(tmp_path, files)
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [0])
    assert "earlier submissions" in got.reason


def test_of_two_submissions_the_one_that_failed_is_diagnosed(tmp_path: Path) -> None:
    """The newer one tells of no failure, so the folder is asked about the older one."""
    files = {
        "slurm-1001.out": steps_at(0, 90, "2026-05-10 01") + raised(2, ECC),
        "slurm-1002.out": steps_at(90, 180),
    }
    got = verdict_of(tmp_path, files)
    assert (got.failure_class.value, ranks_of(got)) == ("hbm", [2])


@pytest.mark.parametrize("names", ["rank_{}.err", "node{}.err", "out.log.{}", "run_{}.log"])
def test_files_of_ranks_that_fail_at_different_times_are_no_submissions(
    tmp_path: Path, names: str
) -> None:
    """Rank 1 raises, and the others time out half an hour later."""
    lost = "torch.distributed.DistBackendError: NCCL error: remote process exited"
    files = {
        names.format(1): "2026-05-11 03:00:00 failed\n" + raised(1, "KeyError: 'x'"),
        names.format(2): "2026-05-11 03:30:00 failed\n" + raised(2, lost),
    }
    got = verdict_of(tmp_path, files)
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [1])


@pytest.mark.parametrize(("minute", "named"), [(10, "user_code"), (59, "gpu")])
def test_a_gpu_lost_before_the_job_by_another_process_is_not_its_own(
    tmp_path: Path, minute: int, named: str
) -> None:
    """The launcher names the job's processes. At 02:59 two clocks may differ by so much."""
    table = (
        "E0511 03:01:31.100000 4001 torch/distributed/elastic/multiprocessing/api.py:869] failed"
        " (exitcode: 1) local_rank: 1 (pid: 9302) of binary: /usr/bin/python\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-05-11_03:01:31\n"
        "  host      : n3\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 9302)\n"
    )
    kernel = (
        f"[Mon May 11 02:{minute}:59 2026] NVRM: Xid (PCI:0000:5d:00): 79, pid=110, name=vllm,"
        " GPU has fallen off the bus.\n"
    )
    log = steps_at(0, 90) + raised(1, "KeyError: 'attention_mask'") + table
    got = verdict_of(tmp_path, {"n3-dmesg.txt": kernel, "run.log": log})
    assert got.failure_class.value == named


# --- what a log shows, and what a stack tells ----------------------

SAMPLE = "sample[1]: 'Xid (PCI:0000:65:00): 79, GPU has fallen off the bus'\n"


def test_a_text_that_a_log_shows_is_no_lost_gpu(tmp_path: Path) -> None:
    shown = verdict_of(tmp_path / "on", {"train.log": steps_at(0, 60) + SAMPLE + steps_at(60, 120)})
    assert (shown.failure_class.value, shown.devices) == ("unknown", ())
    ended = verdict_of(tmp_path / "off", {"train.log": steps_at(0, 60) + SAMPLE})
    assert ended.failure_class.value == "gpu"


def test_a_monitor_that_goes_on_has_not_taken_its_word_back(tmp_path: Path) -> None:
    checks = "".join(f"2026-05-11 03:00:{second} check {second} ok\n" for second in range(10, 50))
    lost = "2026-05-11 03:00:50 GPU 3 is lost: GPU is lost\n"
    got = verdict_of(tmp_path, {"monitor.log": checks + lost + checks.replace("03:00", "03:01")})
    assert (got.failure_class.value, got.devices) == ("gpu", ("GPU 3",))


def waits(rank: int) -> str:
    said = (
        "WorkNCCL(SeqNum=912, OpType=BARRIER, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for"
        " 600012 milliseconds before timing out."
    )
    status = "failure detected by watchdog at work sequence id: 912 PG status: last enqueued work"
    head = f"[rank{rank}]:[E511 03:16:44.443001113 ProcessGroupNCCL.cpp:"
    return (
        f"{head}632] [Rank {rank}] Watchdog caught collective operation timeout: {said}\n"
        f"{head}2268] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  {status}: 912, last completed"
        " work: 911\n"
    )


def test_the_stack_of_the_rank_that_the_others_wait_for_tells_why(tmp_path: Path) -> None:
    """All others time out in a barrier, and rank 0 writes its checkpoint."""
    stack = (
        "Process 900: python -u train.py\nPython v3.11.8 (/usr/bin/python3.11)\n\n"
        'Thread 900 (active): "MainThread"\n    write (torch/serialization.py:644)\n'
        "    _save (torch/serialization.py:1181)\n    save (torch/serialization.py:966)\n"
        "    save_checkpoint (train.py:150)\n    main (train.py:251)\n"
    )
    log = steps_at(0, 60) + "".join(map(waits, range(1, 8)))
    got = verdict_of(tmp_path, {"run.log": log, "pyspy_rank_0.txt": stack})
    assert (got.failure_class.value, ranks_of(got)) == ("storage", [0])
    without = verdict_of(tmp_path / "without", {"run.log": log})
    assert (without.failure_class.value, ranks_of(without)) == ("user_code", [0])


# --- whose rank, and which end ----------------------

LOST = "torch.distributed.DistBackendError: NCCL error: remote process exited"
UNLABELLED = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 9, in f\nKeyError: 1\n'
)


def test_a_label_of_torchrun_is_a_local_rank(tmp_path: Path) -> None:
    """The launcher's table tells that local rank 3 of the second node is rank 11."""
    log = (
        f"[default3]:{ECC}\n"
        "E0511 03:01:31.100000 4001 torch/distributed/elastic/multiprocessing/api.py:869] failed"
        " (exitcode: 1) local_rank: 3 (pid: 93) of binary: /usr/bin/python\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-05-11_03:01:31\n"
        "  host      : n2\n  rank      : 11 (local_rank: 3)\n  exitcode  : 1 (pid: 93)\n"
        "  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org\n"
    )
    got = verdict_of(tmp_path, {"n2.log": steps_at(0, 30) + log})
    assert (got.failure_class.value, ranks_of(got)) == ("hbm", [11])


def test_folders_of_two_nodes_launchers_are_of_local_ranks(tmp_path: Path) -> None:
    """Local rank 1 of the second node raises, without a label. Its neighbour says it is rank 7."""
    files = {
        f"n{node}/logs/run/attempt_0/{rank}/stderr.log": "" for node in (1, 2) for rank in (1,)
    }
    files["n1/logs/run/attempt_0/0/stderr.log"] = raised(0, LOST)
    files["n2/logs/run/attempt_0/3/stderr.log"] = raised(7, LOST)
    files["n2/logs/run/attempt_0/1/stderr.log"] = UNLABELLED
    assert ranks_of(verdict_of(tmp_path, files)) == [5]


def test_a_node_that_was_lost_leaves_no_other_rank_to_blame(tmp_path: Path) -> None:
    """Ranks 1 and 2 lost their peers, and rank 0 says nothing. The lost node may have been its."""
    log = "srun: error: Node failure on n3\n" + raised(1, LOST) + raised(2, LOST)
    got = verdict_of(tmp_path, {"slurm-91.out": steps_at(0, 30) + log})
    assert (ranks_of(got), got.nodes) == ([], ("n3",))


def test_a_call_of_cuda_that_failed_in_nccl_is_the_ranks_own(tmp_path: Path) -> None:
    said = "torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled {} error"
    for what, ranks in (("cuda", [2]), ("system", [])):
        log = raised(2, said.format(what)) + raised(0, LOST) + raised(1, LOST)
        assert ranks_of(verdict_of(tmp_path / what, {"run.log": log})) == ranks


def completion(host: str, peer: str) -> str:
    return (
        f"{host}:900:1244 [0] transport/net_ib.cc:2132 NCCL WARN NET/IB : Got completion from peer"
        f" {peer}<55921> with status=12 opcode=1 len=0 vendor err 129 (Send) hca mlx5_2\n"
    )


@pytest.mark.parametrize(
    ("lines", "nodes"),
    [
        ([("n1", "10.0.0.9"), ("n2", "10.0.0.9")], ("10.0.0.9",)),
        ([("n7", "10.0.0.1"), ("n7", "10.0.0.2"), ("n1", "10.0.0.7")], ("n7",)),
        ([("n1", "10.0.0.2"), ("n2", "10.0.0.1")], ("n1", "n2")),
    ],
)
def test_of_links_the_end_that_all_of_them_share_is_named(
    tmp_path: Path, lines: list[tuple[str, str]], nodes: tuple[str, ...]
) -> None:
    log = steps_at(0, 30) + "".join(completion(*one) for one in lines)
    got = verdict_of(tmp_path, {"run.log": log})
    assert (got.failure_class.value, got.nodes) == ("network", nodes)


def test_a_port_that_failed_shows_whose_end_it_is(tmp_path: Path) -> None:
    port = "n2:4401:4522 [3] transport/net_ib.cc:132 NCCL WARN NET/IB : mlx5_3:1 Got async"
    log = f"{port} error event: port error\n" + completion("n1", "10.0.0.2")
    got = verdict_of(tmp_path, {"run.log": steps_at(0, 30) + log})
    assert (got.failure_class.value, got.nodes) == ("network", ("n2",))


# --- lines that read like something else ----------------------


@pytest.mark.parametrize(
    "line",
    [
        "pcieport 0000:00:02.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Tx)",
        "pcieport 0000:00:02.0: AER: Correctable error message received from 0000:00:02.0",
        "mce: CPU12: Core temperature above threshold, cpu clock throttled (total events = 1)",
    ],
)
def test_what_a_host_corrects_by_itself_is_no_failure(tmp_path: Path, line: str) -> None:
    """ "Bus Error" was read as the signal, and a first moment of heat as the cause."""
    files = {f"rank_{rank}.log": steps_at(0, 90) for rank in range(4)}
    files["dmesg.txt"] = f"[Mon May 11 03:01:10 2026] {line}\n"
    got = verdict_of(tmp_path, files)
    assert got.failure_class.value == "unknown"
    assert got.reason.startswith("Nothing that was read tells of a failure")


def test_a_limit_on_locked_memory_is_no_lack_of_memory(tmp_path: Path) -> None:
    line = "n1:77:99 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_reg_mr_iova2 failed with error"
    got = verdict_of(tmp_path, {"n1.log": f"{line} Cannot allocate memory\n"})
    assert got.failure_class.value == "dependency"


def test_what_py_spy_says_of_a_process_is_no_error_of_its_script(tmp_path: Path) -> None:
    said = (
        "Error: Failed to get process executable name. Check that the process is running.\n"
        "Reason: No such file or directory (os error 2)\n"
    )
    got = verdict_of(tmp_path, {"run.log": steps_at(0, 30), "pyspy_rank1.txt": said})
    assert (got.failure_class.value, ranks_of(got)) == ("unknown", [])


def test_a_loss_scale_at_its_minimum_asks_for_no_fix_of_the_line(tmp_path: Path) -> None:
    error = "Exception: Current loss scale already at minimum - cannot decrease scale anymore."
    got = verdict_of(tmp_path, {"ds.log": steps_at(0, 30) + raised(0, error) + raised(1, error)})
    assert got.mechanism is not None
    assert got.mechanism.value == "corrupt"
    assert "bfloat16" in got.action


def test_the_command_names_the_port_that_another_line_tells(tmp_path: Path) -> None:
    log = (
        "[E511 03:00:03.120 socket.cpp:500] [c10d] The server socket has failed to listen on any"
        " local network address.\n"
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local"
        " network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE\n"
    )
    assert verdict_of(tmp_path, {"run.log": log}).commands == ("ss -ltnp 'sport = :29500'",)


def test_a_phrase_that_an_exception_quotes_is_not_what_happened(tmp_path: Path) -> None:
    error = "ValueError: on_error must be one of ['CUDA out of memory', 'uncorrectable ECC error']"
    got = verdict_of(tmp_path, {"run.log": steps_at(0, 30) + raised(2, error)})
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [2])
    own = raised(2, "RuntimeError: NCCL error: Cuda failure 2 'out of memory'")
    got = verdict_of(tmp_path / "own", {"run.log": steps_at(0, 30) + own})
    assert (got.failure_class.value, ranks_of(got)) == ("gpu_oom", [2])


def test_a_hot_processor_raises_no_exception(tmp_path: Path) -> None:
    kernel = (
        "[Mon May 11 03:00:12 2026] CPU3: Package temperature above threshold, cpu clock throttled"
        " (total events = 48123)\n"
    )
    log = steps_at(0, 30) + raised(1, "KeyError: 'x'")
    got = verdict_of(tmp_path, {"n9-dmesg.txt": kernel, "run.log": log})
    assert (got.failure_class.value, ranks_of(got)) == ("user_code", [1])
    alone = verdict_of(tmp_path / "alone", {"n9-dmesg.txt": kernel})
    assert (alone.failure_class.value, alone.nodes) == ("thermal", ("n9",))


def test_the_node_of_a_process_that_a_signal_ended_is_named(tmp_path: Path) -> None:
    """DeepSpeed's launcher tells the exit code and no rank; pdsh tells the node."""
    log = (
        "worker-0: step 29\nworker-1: step 29\n"
        "worker-1: [2026-05-11 03:01:06,999] [ERROR] [launch.py:325:sigkill_handler]"
        " ['python', 'ft.py', '--local_rank=7'] exits with return code = -9\n"
    )
    got = verdict_of(tmp_path, {"ds.log": steps_at(0, 30) + log})
    assert (got.failure_class.value, got.nodes) == ("unknown", ("worker-1",))


def test_the_rank_whose_watchdog_was_stuck_itself_is_named(tmp_path: Path) -> None:
    """It says so by itself while all others time out. Where several say it, none is named."""
    stuck = (
        "[rank{0}]:[F511 03:08:31.2 ProcessGroupNCCL.cpp:1169] [PG ID 0 PG GUID 0(default_pg) Rank"
        " {0}] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress\n"
    )
    others = "".join(waits(rank) for rank in (0, 1, 2, 4))
    one = verdict_of(tmp_path / "one", {"run.log": stuck.format(3) + others})
    assert (one.failure_class.value, ranks_of(one)) == ("unknown", [3])
    assert "its GPU" in one.next_test
    several = "".join(stuck.format(rank) for rank in range(4))
    assert ranks_of(verdict_of(tmp_path / "several", {"run.log": several})) == []
