"""Reading lines: formats of many programs, several readers at once, and input that was never meant
to be read.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from itertools import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import _mutants
from outlast.diagnose.findings import Finding
from outlast.diagnose.logs import read_lines
from outlast.diagnose.logs.lines import LINE_BYTES, SAME_MAX
from outlast.diagnose.logs.prefixes import read_prefix, time_of
from outlast.diagnose.logs.watchdog import AwaitedCollective
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.verdict import Role

C = FailureClass


def read(text: str, name: str = "log") -> list[Finding]:
    return list(read_lines([line.encode() + b"\n" for line in text.splitlines()], name=name))


LINES = [
    # GPUs
    (
        (
            "[Thu Oct 10 03:06:53 2024] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>',"
            " name=<unknown>, GPU has fallen off the bus."
        ),
        "xid.79",
        C.GPU,
    ),
    (
        (
            "6,3973,227541,-;NVRM: Xid (PCI:0000:05:00): 119, pid=1, name=x, Timeout after 6s of"
            " waiting for RPC response from GPU0 GSP!"
        ),
        "xid.119",
        C.GPU_SYSTEM_PROCESSOR,
    ),
    ("kernel: NVRM: Xid (0000:03:00): 31, Ch 00000001", "xid.31", C.SOFTWARE_BUG),
    (
        (
            "NVRM: Xid (PCI:0000:dc:00): 45, pid=7, name=python3, Ch 00000001 caused by previous"
            " Xid 149"
        ),
        "xid.149",
        C.NVLINK,
    ),
    ("NVRM: Xid (PCI:0000:dc:00): 45, pid=7, name=python3, Ch 00000001", "xid.45", None),
    (
        (
            "NVRM: Xid (PCI:0000:dc:00): 48, An uncorrectable double bit error (DBE) has been"
            " detected on GPU in the framebuffer at partition 6"
        ),
        "xid.dram",
        C.HBM,
    ),
    (
        "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        "sxid.fatal",
        C.NVLINK,
    ),
    (
        "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 11012, Non-fatal, Link 30 single bit",
        "sxid.corrected",
        None,
    ),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "cuda.ecc", C.HBM),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB",
        "cuda.oom",
        C.GPU_OOM,
    ),
    (
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't"
            " allocate memory: you tried to allocate 8651768261046852299 bytes."
        ),
        "torch.absurd_size",
        C.USER_CODE,
    ),
    (
        (
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 128. TiB for an array"
            " with shape (1048576, 16777216) and data type float64"
        ),
        "torch.absurd_size",
        C.USER_CODE,
    ),
    (
        (
            "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 1.50 TiB for an array"
            " with shape (1, 206158430208) and data type float64"
        ),
        "host.allocator",
        C.HOST_MEMORY,
    ),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.45 EiB",
        "torch.absurd_size",
        C.USER_CODE,
    ),
    (
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't"
            " allocate memory: you tried to allocate 274877906944 bytes."
        ),
        "host.allocator",
        C.HOST_MEMORY,
    ),
    (
        (
            "RuntimeError: ProcessGroupGloo::allgather: invalid output tensor list at index 0"
            " (expected length 4, got 2)"
        ),
        "c10d.argument",
        C.USER_CODE,
    ),
    ("ValueError: Tensors must be CUDA and dense", "c10d.argument", C.USER_CODE),
    (
        (
            "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable"
            " to find address for: eth99"
        ),
        "gloo.interface",
        C.USER_CODE,
    ),
    (
        "RuntimeError: Distributed package doesn't have NCCL built in",
        "dependency.not_built",
        C.DEPENDENCY,
    ),
    (
        "AssertionError: Torch not compiled with CUDA enabled",
        "dependency.not_built",
        C.DEPENDENCY,
    ),
    (
        (
            "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to"
            " do so you have two options, do those steps only if you trust the source."
        ),
        "torch.weights_only",
        C.USER_CODE,
    ),
    (
        (
            "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the"
            " default value of the `weights_only` argument"
        ),
        "data.broken",
        C.USER_DATA,
    ),
    (
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "cuda.illegal_access",
        C.SOFTWARE_BUG,
    ),
    ("RuntimeError: CUDA error: device-side assert triggered", "cuda.device_assert", C.USER_CODE),
    (
        "CUDA kernel errors might be asynchronously reported at some other API call",
        "cuda.advice",
        None,
    ),
    # hosts
    (
        "[123.4] Out of memory: Killed process 123 (python) total-vm:1kB",
        "oom.killed",
        C.HOST_MEMORY,
    ),
    (
        (
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.batch. Some of your"
            " processes may have been killed"
        ),
        "slurm.oom",
        C.HOST_MEMORY,
    ),
    ("JobState=OUT_OF_MEMORY Reason=OutOfMemory", "slurm.oom", C.HOST_MEMORY),
    ('    "reason": "OOMKilled",', "kube.oom", C.HOST_MEMORY),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "memory.uncorrected", C.SYSTEM_MEMORY),
    (
        "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 4: be00000000800400",
        "cpu.machine_check",
        C.CPU,
    ),
    (
        "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]",
        "cpu.soft_lockup",
        C.CPU,
    ),
    (
        "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller",
        "nvme.failed",
        C.SSD,
    ),
    (
        (
            "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 1): ACCESS_REG(0x805) op_mod(0x1)"
            " failed"
        ),
        "mlx5.command",
        C.NIC,
    ),
    ("nfs: server 10.0.0.1 not responding, timed out", "fs.remote", C.STORAGE),
    ("OSError: [Errno 28] No space left on device: '/scratch/ckpt'", "disk.full", C.STORAGE),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/x'", "host.shm", C.HOST_MEMORY),
    # collectives and launchers
    (
        (
            "NET/IB : Got completion from peer 10.0.0.1<1> with status=12 opcode=0 len=0 vendor"
            " err 129"
        ),
        "ib.retry_exceeded",
        C.NETWORK,
    ),
    (
        (
            "node1:1:2 [0] NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device"
            " 1000"
        ),
        "nccl.duplicate_gpu",
        C.USER_CODE,
    ),
    (
        (
            "[rank0]:[W1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=1): Connection"
            " was likely closed."
        ),
        "store.broken",
        None,
    ),
    (
        (
            "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 12 closing"
            " signal SIGTERM"
        ),
        "exit.closing",
        None,
    ),
    ("  traceback : Signal 9 (SIGKILL) received by PID 1234", "exit.kill", C.HOST_MEMORY),
    (
        (
            "RuntimeError: [../gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 40"
            " vs 16"
        ),
        "gloo.size",
        C.USER_CODE,
    ),
    (
        (
            "slurmstepd: error: *** JOB 1 ON node7 CANCELLED AT 2024-01-01T00:00:00 DUE TO"
            " PREEMPTION ***"
        ),
        "slurm.preempted",
        C.HOST_MAINTENANCE,
    ),
    (
        "Rank 3, node n1, device 3, iteration #7: Possible transient error!",
        "rerun.transient",
        C.SILENT_DATA_CORRUPTION,
    ),
    ("ModuleNotFoundError: No module named 'flash_attn'", "dependency.import", C.DEPENDENCY),
    ('DCGM_FI_DEV_XID_ERRORS{gpu="3",UUID="GPU-1"} 79', "xid.79", C.GPU),
    ('DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="3"} 1', "metric.hbm", C.HBM),
]


@pytest.mark.parametrize(
    ("line", "rule", "failure_class"),
    LINES,
    ids=[f"{rule}-{at}" for at, (_, rule, _) in enumerate(LINES)],
)
def test_a_line_is_what_its_maker_means_by_it(
    line: str, rule: str, failure_class: FailureClass | None
) -> None:
    found = read(line)
    assert [(one.rule, one.failure_class) for one in found] == [(rule, failure_class)]
    assert found[0].evidence.line == 1


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[rank3]: ",
        "3: ",
        "[default3]:",
        "May  1 12:00:00 node7 kernel: [1.5] ",
        "[Thu Oct 10 03:06:53 2024] ",
        "2024-05-01T12:00:00.5+02:00 node7 kernel: ",
    ],
)
def test_a_line_means_the_same_behind_any_prefix(prefix: str) -> None:
    found = read(prefix + "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    assert [one.rule for one in found] == ["xid.79"]
    assert found[0].device == "0000:3b:00"
    if "node7" in prefix:
        assert found[0].node == "node7"
    if "3]" in prefix or prefix == "3: ":
        assert found[0].rank == 3


def test_times_are_unix_seconds_only_where_the_year_is_known() -> None:
    assert time_of("2024-05-01T12:00:00.5+02:00 x") == 1714557600.5
    assert time_of("[Thu Oct 10 03:06:53 2024] x") == time_of("2024-10-10 03:06:53")
    assert time_of("[Jul 23 2024 07:53:55] x") == time_of("2024-07-23 07:53:55")
    for nothing in (
        "May  1 12:00:00 node x",
        "[123.456] x",
        "E0501 12:00:00.1 x",
        "2024-99-99 99:99:99",
    ):
        assert time_of(nothing) is None


def test_teardown_and_healthy_lines_hold_no_root() -> None:
    """Method: 5,000 drawn lines of healthy runs, and what every job prints while it is closed.

    Of a healthy run only NCCL's word on which process is which rank is kept.
    """
    rng = random.Random(5)
    healthy = read("\n".join(_mutants.healthy(5000, rng)))
    assert {one.rule for one in healthy} <= {"nccl.process"}
    assert not [
        one
        for one in read("\n".join(_mutants.teardown(rng)))
        if one.evidence.role in (Role.ROOT, Role.MESSENGER)
    ]


def test_a_torchrun_table_gives_ranks_and_how_they_ended() -> None:
    text = """train.py FAILED
Failures:
[1]:
  time      : 2024-04-01_05:16:50
  host      : n01
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 620208)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 620208
Root Cause (first observed failure):
[0]:
  time      : 2024-04-01_05:16:49
  host      : n02
  rank      : 4 (local_rank: 0)
  exitcode  : -9 (pid: 620204)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 620204
"""
    entries = [
        one for one in read(text) if one.rule.startswith("elastic.") and one.rank is not None
    ]
    assert [
        (one.rule, one.rank, one.node, one.mechanism, one.evidence.role) for one in entries
    ] == [
        ("elastic.other_failure", 1, "n01", Mechanism.SIGNAL, Role.EFFECT),
        ("elastic.first_failure", 4, "n02", Mechanism.SIGNAL, Role.MESSENGER),
    ]
    assert [one.rank for one in read(text) if one.rule == "exit.kill"] == [4]


def test_an_error_file_is_read_as_the_traceback_it_holds() -> None:
    text = (
        '{"message": {"message": "KeyError: 3", "extraInfo": {"py_callstack": "Traceback (most'
        ' recent call last):\\n  File \\"/data/train.py\\", line 3, in main\\n    x ='
        ' y[3]\\nKeyError: 3\\n", "timestamp": "1714557600"}}}'
    )
    assert "python.user_frame" in [one.rule for one in read(text, name="attempt_0/2/error.json")]
    assert {one.rank for one in read(text, name="attempt_0/2/error.json")} == {2}


def test_tracebacks_of_two_ranks_do_not_mix() -> None:
    """Method: two tracebacks line by line in turn, one raised by the user's file, one inside a
    package.
    """
    text = """[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank0]:   File "/data/train.py", line 3, in main
[rank1]:   File "/usr/lib/python3/dist-packages/lib.py", line 9, in f
[rank0]:     raise OSError("No space left on device")
[rank1]:     raise TypeError("x")
[rank0]: ValueError: bad
[rank1]: TypeError: bad
"""
    assert [(one.rule, one.rank) for one in read(text)] == [
        ("python.user_frame", 0),
        ("python.library_frame", 1),
    ]


@pytest.mark.parametrize(
    ("line", "sequence", "enqueued", "completed", "rank"),
    [
        (
            "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=469508, OpType=ALLREDUCE, "
            "Timeout(ms)=1800000) ran for 1802212 milliseconds",
            469508,
            None,
            None,
            1,
        ),
        (
            "[rank2]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 2] Timeout at NCCL work: "
            "19, last enqueued NCCL work: 19, last completed NCCL "
            "work: 18.",
            19,
            19,
            18,
            2,
        ),
        (
            "[rank9]:[E1218 20:27:21.484903450 ProcessGroupNCCL.cpp:2168] [PG ID 1 PG "
            "GUID 1 Rank 1]  failure detected by watchdog at work "
            "sequence id: 1 PG status: last enqueued work: 547, last completed work: -1",
            1,
            547,
            -1,
            9,
        ),
    ],
)
def test_watchdog_lines_of_all_generations_give_their_numbers(
    line: str, sequence: int | None, enqueued: int | None, completed: int | None, rank: int
) -> None:
    (one,) = read(line)
    assert isinstance(one, AwaitedCollective)
    assert (one.sequence, one.enqueued, one.completed, one.rank, one.failure_class) == (
        sequence,
        enqueued,
        completed,
        rank,
        None,
    )


def test_steps_that_get_slower_are_seen_and_those_that_do_not_are_not() -> None:
    def run(times: list[float]) -> list[Finding]:
        return read(
            "\n".join(
                f"iteration {at} | elapsed time per iteration (s): {value:.3f} | loss 1"
                for at, value in enumerate(times)
            )
        )

    rng = random.Random(3)
    steady = [100 + rng.uniform(-0.3, 0.3) for _ in range(200)]
    assert [one.rule for one in run(steady + [106.0] * 80)] == ["metric.slower"]
    assert not run(steady)
    assert not run([100 * rng.uniform(0.8, 1.3) for _ in range(300)]), (
        "a busy machine's steps differ by more than a slow card shows"
    )


def test_our_own_output_is_no_evidence() -> None:
    text = (
        "outlast diagnose runs/x\n  NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n "
        ' CUDA out of memory\n\nNVRM: Xid (PCI:0000:3b:00): 48, DBE\n{"class": "gpu", "refuted_by":'
        ' "x", "evidence": [{"text": "Xid (PCI:0): 79, x"}]}\n'
    )
    assert [one.rule for one in read(text)] == ["own.output", "xid.48", "own.output"]


def test_what_repeats_is_handed_on_a_few_times_and_memory_stays_flat() -> None:
    """Method: 5,000 lines of one error, from a generator, 0.3 MB; what is held meanwhile is a
    block, not the file.
    """
    lines: Iterator[bytes] = repeat(
        b"NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n", 5_000
    )
    tracemalloc.start()
    found = sum(1 for _ in read_lines(lines, name="log"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == SAME_MAX
    assert peak < 10_000_000


def test_a_line_of_a_hundred_megabytes_is_cut() -> None:
    line = b"CUDA out of memory " + b"x" * 100_000_000
    (one,) = list(read_lines([line], name="log"))
    assert one.rule == "cuda.oom"
    assert len(one.evidence.text) < LINE_BYTES


@settings(max_examples=150)
@given(st.lists(st.binary(max_size=300), max_size=30))
def test_bytes_that_were_never_text_do_not_raise(lines: list[bytes]) -> None:
    list(read_lines(lines, name="junk"))


PIECES = st.sampled_from(
    [
        "Traceback (most recent call last):",
        '  File "a.py", line 3 in f',
        '  File "a.py", line 3, in f',
        'Thread 12 (active): "MainThread"',
        "Current thread 0x1 (most recent call first):",
        "    f (a.py:1)",
        "    all_reduce",
        "Failures:",
        "Root Cause (first observed failure):",
        "  time      : x",
        "  rank      : 1 (local_rank: 1)",
        "  exitcode  : -9 (pid: 1)",
        "  traceback : x",
        "index, temperature.gpu, utilization.gpu",
        "0, 95, 1",
        "[rank1]: ",
        "\x1b[31m",
        "\ufeff",
        "Xid (PCI:0): 999999, x",
        "SXid (PCI:0): 99999, x",
        'DCGM_FI_DEV_XID_ERRORS{gpu="1"} 1e400',
        'DCGM_FI_DEV_XID_ERRORS{gpu="1"} nan',
        "elapsed time per iteration (s): 0",
        "SeqNum=1, OpType=X",
        "py_callstack\\n\\n",
        "outlast diagnose",
        "KeyError: 1",
        "=====",
        "Process 1: x --local_rank=3",
    ]
)


@settings(max_examples=300)
@given(st.lists(st.lists(PIECES, max_size=3).map("".join), max_size=40))
def test_headers_and_bodies_in_any_order_do_not_raise(lines: list[str]) -> None:
    """Method: the words that open readers of several lines, joined and shuffled."""
    for one in read("\n".join(lines)):
        assert one.evidence.line is None or one.evidence.line >= 1


@given(st.text(max_size=400))
def test_a_prefix_of_any_text_is_read_or_left(text: str) -> None:
    read_prefix(text)


BUG = """Traceback (most recent call last):
  File "/srv/train.py", line 12, in <module>
    with step:
  File "/usr/lib/python3/site-packages/outlast/runtime/worker/run_state/state.py", line 90, in keep
    scaler._scale
{error}
"""


def test_an_exception_whose_innermost_frame_is_ours_is_our_bug() -> None:
    """An error that outlast raises on purpose is none, nor one that the script raised below it."""
    error = "AttributeError: 'GradScaler' object has no attribute '_scale'"
    (bug,) = read(BUG.format(error=error))
    assert (bug.rule, bug.failure_class) == ("outlast.bug", FailureClass.SOFTWARE_BUG)
    on_purpose = read(BUG.format(error="outlast.errors.StateError: run.state(x=...) is a dict"))
    below = read(BUG.format(error='  File "/srv/net.py", line 3, in forward\n    x\n' + error))
    assert "outlast.bug" not in {one.rule for one in (*on_purpose, *below)}


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("Corrupt: the checksum of an image of 9 bytes does not match its seal", "storage"),
        ("Corrupt: the checksum of rank 1's weights does not match its seal", "storage"),
        ("Corrupt: state text that cannot be decoded: UnicodeDecodeError: x", "storage"),
        ("Corrupt: a random state that cannot be decoded: ValueError('x')", "storage"),
        ("Corrupt: step 5 in /c: a.safetensors does not match its checksum from byte 0", "storage"),
        ("Corrupt: 7 of 9 bytes have arrived", "storage"),
        ("Corrupt: s3://b/step-5/manifest.json is missing", "storage"),
        ("Corrupt: no checkpoint of /c can be read: an unpickling error: KeyError: 1", "storage"),
        ("Capacity: the vault needs 9 more bytes in /dev/shm/x for images; 1 is", "host_memory"),
        ("Capacity: there is no room for copies of the images of rank 1: x", "host_memory"),
        (
            "Capacity: 2 slots of 9 bytes could not be allocated in /v: File too large",
            "host_memory",
        ),
        ("Capacity: the checkpoint in /c could not be written: No space left on device", "storage"),
    ],
)
def test_damaged_state_and_lack_of_room_are_not_user_code(error: str, cause: str) -> None:
    """Method: errors that outlast raises on purpose, with words that other rules know, too."""
    kind, text = error.split(": ", 1)
    for path in ("/srv/src/outlast/runtime/tiers/image.py", "/x/site-packages/outlast/errors.py"):
        told = BUG.format(error=f'  File "{path}", line 3, in f\n    x\n' + "{error}")
        (one,) = read(told.format(error=f"outlast.errors.{kind}Error: {text}"))
        assert one.failure_class is FailureClass(cause), one


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]:[W1124 22:00:00.123456789 reducer.cpp:1500] Warning: find_unused_parameters=True"
        " was specified in DDP constructor, but did not find any unused parameters in the forward"
        " pass. (function operator())",
        "/x/site-packages/torch/nn/modules/loss.py:610: UserWarning: Using a target size"
        " (torch.Size([8])) that is different to the input size; shape mismatch may follow",
    ],
)
def test_a_warning_of_a_healthy_run_is_no_cause(line: str) -> None:
    assert not [one for one in read(line) if one.evidence.role is Role.ROOT]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("fetch: TimeoutError", ", retrying in 5 s"),
        ("api: ConnectionError", ", retry 1/5"),
        ("reader: OSError: short read", " (ignored)"),
        ("loader: corrupt image a.jpg", ", skipping it"),
        ("tracker: service unavailable", ", resuming"),
        ("reader: ValueError: bad header", ", falling back to the slow path"),
    ],
)
def test_an_exception_that_a_program_goes_on_after_is_no_cause(before: str, after: str) -> None:
    """Method: a line that names an exception is a cause again if the program gives up at last."""
    assert [one.evidence.role for one in read(f"12:00 {before}{after}")] == []
    assert read(f"12:00 {before}{after}: giving up") != []


@pytest.mark.parametrize(
    "line",
    [
        "ERROR caught exception: ValueError: shapes differ",
        "OSError: the shard cannot be skipped",
        "ConnectionError: the host could not be recovered",
        "503 Server Error: Service Unavailable, please retry later",
        "TimeoutError: no answer after the last retry",
    ],
)
def test_an_exception_that_ends_a_program_is_a_cause_whatever_its_words(line: str) -> None:
    """Programs that end use the words of those that go on."""
    assert read(line)
