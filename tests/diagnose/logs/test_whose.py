"""Whose a line is: the launcher's, a pipe's to a child, a stack's, a warning, or the job's own
failure.
"""

from __future__ import annotations

import pytest

from outlast.diagnose.findings import Finding
from outlast.diagnose.logs import read_lines
from outlast.diagnose.logs.tracebacks import RaisedAt
from outlast.diagnose.stacks import Stack
from outlast.model.verdict import Role

SITE = "/srv/venv/lib/python3.11/site-packages/torch/distributed"
JSON = "/usr/lib/python3.11/json/decoder.py"


def found(text: str, name: str = "log") -> list[Finding]:
    return list(read_lines(text.encode().splitlines(keepends=True), name=name))


def raised(line: str, *paths: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        + "".join(f'  File "{path}", line 3, in call\n    call()\n' for path in paths)
        + line
        + "\n"
    )


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            raised(
                "json.decoder.JSONDecodeError: Expecting value: line 1",
                f"{SITE}/run.py",
                f"{SITE}/elastic/multiprocessing/errors/__init__.py",
                JSON,
            ),
            "elastic.stumbled",
        ),
        (
            raised(
                "json.decoder.JSONDecodeError: Expecting value: line 1",
                f"{SITE}/elastic/multiprocessing/errors/__init__.py",
                "/srv/train.py",
                JSON,
            ),
            "data.unparsed",
        ),
        (
            raised(
                "ConnectionResetError: [Errno 104] Connection reset by peer",
                "/srv/train.py",
                "/usr/lib/python3.11/multiprocessing/connection.py",
            ),
            "python.group_down",
        ),
        (
            raised(
                "ConnectionResetError: [Errno 104] Connection reset by peer",
                "/srv/train.py",
                f"{SITE}/distributed_c10d.py",
            ),
            "store.broken",
        ),
        (
            raised(
                "RuntimeError: whatever it says", "/srv/train.py", f"{SITE}/distributed_c10d.py"
            ),
            "c10d.backend_error",
        ),
        (raised("RuntimeError: whatever it says", "/srv/train.py"), "python.user_runtime"),
    ],
    ids=[
        "the launcher's",
        "a worker's below the launcher's wrapper",
        "a child's pipe",
        "a peer's socket",
        "a collective's",
        "the job's",
    ],
)
def test_an_exception_is_whose_frames_it_was_raised_in(text: str, rule: str) -> None:
    assert [one.rule for one in found(text) if one.evidence.line == text.count("\n")] == [rule]


@pytest.mark.parametrize("stamp", ["W", "W1122 08:29:36.123456789", "W101 00:00:00.1"])
def test_a_warning_of_a_name_that_is_not_found_is_advice(stamp: str) -> None:
    (one,) = found(
        f"[{stamp} socket.cpp:752] [c10d] The hostname of the client socket cannot be retrieved."
        " err=-3\n"
    )
    assert one.evidence.role is Role.ADVICE


def test_a_frame_of_torch_distributed_in_a_stack_is_no_error_of_it() -> None:
    stack = (
        f'Thread 0x00007f1617fff6c0 (most recent call first):\n  File "{SITE}/distributed_c10d.py",'
        ' line 3 in recv\n  File "train.py", line 9 in <module>\n'
    )
    assert [one.rule for one in found(stack)] == ["stack.waiting"]


def test_a_function_of_the_kernel_in_a_trace_is_no_state_of_a_job() -> None:
    assert [
        one.rule
        for one in found(
            "JobState=OUT_OF_MEMORY\n[Sun Nov 22 12:55:17 2026]  out_of_memory+0x214/0x500\n"
        )
    ] == ["slurm.oom"]


def test_the_name_of_a_folder_is_no_bucket() -> None:
    assert not [
        one
        for one in found("  error_file: /tmp/logs/a_qf4wgs3r/attempt_0/1/error.json\n")
        if one.rule == "object.store"
    ]
    assert [one.rule for one in found("botocore: s3 read timeout\n")] == ["object.store"]


def test_a_thread_that_was_started_is_not_the_main_one() -> None:
    """faulthandler names no threads."""
    started = '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap\n'
    text = (
        'Thread 0x01 (most recent call first):\n  File "pathlib.py", line 3 in'
        f" rename\n{started}\nThread 0x02 (most recent call first):\n"
    )
    read = [
        one
        for one in found(
            text + '  File "train.py", line 9 in pack\n  File "train.py", line 12 in <module>\n'
        )
        if isinstance(one, Stack)
    ]
    assert [one.frames[0] for one in read] == ["pack (train.py:9)"]


@pytest.mark.parametrize(
    ("frames", "rule"),
    [
        ("_ask (outlast/runtime/worker/communication/shared_vote.py:3)", "stack.waiting"),
        ("take (outlast/runtime/worker/communication/shared_rows.py:112)", "stack.waiting"),
        ("_look (outlast/runtime/worker/communication/script_position.py:117)", "stack.waiting"),
        (
            (
                "__iter__ (outlast/runtime/network/channel.py:3)\n    _listen"
                " (outlast/runtime/worker/member/session.py:9)"
            ),
            "stack.idle",
        ),
    ],
)
def test_in_our_own_files_a_rank_waits_for_its_peers_or_listens(frames: str, rule: str) -> None:
    (one,) = found(f'Process 7: python train.py\n\nThread 7 (idle): "MainThread"\n    {frames}\n\n')
    assert one.rule == rule


def test_a_rank_that_left_a_log_was_there_and_what_it_said_last_is_kept() -> None:
    (one,) = found("step 1\nend of data\n\n", name="attempt_0/3/stdout.log")
    assert (one.rule, one.rank, one.evidence.line, one.evidence.text, one.evidence.role) == (
        "log.last",
        3,
        2,
        "end of data",
        Role.ADVICE,
    )
    assert not found("step 1\n", name="train.log")


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (
            (
                "LAST SEEN  node/gke-a3-pool-1-2f9c  Node gke-a3-pool-1-2f9c status is now:"
                " NodeNotReady\n"
            ),
            "gke-a3-pool-1-2f9c",
        ),
        ("Preempted by pod 8c1f on node gpu-12.\n", "gpu-12"),
        ("srun: error: Node failure on node-a031\n", "node-a031"),
        (
            (
                "Rank 17, node n-044.cluster, device 3, iteration #92012: Possible persistent"
                " error!!\n"
            ),
            "n-044.cluster",
        ),
        (
            (
                '{"MESSAGE":"NVRM: Xid (PCI:0000:97:00): 79, GPU has fallen off the'
                ' bus.","_HOSTNAME":"gpu-45"}\n'
            ),
            "gpu-45",
        ),
        ('DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="3",Hostname="gpu-17"} 1\n', "gpu-17"),
        ("no healthy devices present on this node after 3 tries\n", None),
    ],
)
def test_a_node_is_named_whole(text: str, node: str | None) -> None:
    assert {one.node for one in found(text)} == {node}


def test_a_kernel_log_that_names_no_host_is_of_the_host_in_its_name() -> None:
    gone = (
        "[Tue Jun 11 03:31:01 2024] NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>',"
        " name=<unknown>, GPU has fallen off the bus.\n"
    )
    assert [
        found(gone, name)[0].node
        for name in ("incident/dmesg-of-gpu-17.lab.txt", "dmesg-of-vm", "dmesg-full.txt")
    ] == ["gpu-17.lab", "vm", None]


@pytest.mark.parametrize(
    ("code", "rule"),
    [(137, "exit.kill"), (139, "exit.segv"), (135, "exit.bus"), (134, "exit.abort")],
)
def test_an_exit_code_above_128_is_a_signal_however_it_is_lined_up(code: int, rule: str) -> None:
    """Method: as `kubectl describe`, a pod as YAML and as JSON have it."""
    for line in (
        f"      Exit Code:    {code}",
        f"        exitCode: {code}",
        f'"exitCode": {code},',
    ):
        assert [one.rule for one in found(line)] == [rule]


def test_a_journal_as_json_tells_the_time() -> None:
    (one,) = found(
        '{"MESSAGE":"NVRM: Xid (PCI:0000:97:00): 79, GPU has fallen off the'
        ' bus.","__REALTIME_TIMESTAMP":"1741406400250000"}\n'
    )
    assert one.at_s == 1741406400.25


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            "First rerun: unexpected result is not reproducible within the tolerance (1.0 != nan)",
            "rerun.transient",
        ),
        (
            (
                "First rerun: unexpected result is reproducible within the tolerance (nan = nan)."
                " Need to rerun on a different GPU"
            ),
            "rerun.reproducible",
        ),
        (
            (
                "Second rerun: unexpected result is not reproducible on a different GPU, therefore"
                " was likely incorrect (1.0 != nan)"
            ),
            "rerun.persistent",
        ),
        (
            (
                "Second rerun: unexpected result is reproducible on a different GPU, therefore it"
                " was likely correct (nan = nan)"
            ),
            "rerun.application",
        ),
    ],
)
def test_what_a_rerun_showed_is_told_by_where_it_ran(text: str, rule: str) -> None:
    """Sentences as Megatron's rerun state machine writes them."""
    (one,) = found(f"Rank 17, node n-044, device 3, iteration #92012: {text}\n")
    assert (one.rule, one.rank) == (rule, 17)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("mce: CPU0: Thermal monitoring enabled (TM1)", []),
        (
            (
                "mce: CPU52: Package temperature above threshold, cpu clock throttled (total events"
                " = 231)"
            ),
            ["heat.cpu"],
        ),
        (
            "EDAC MC3: 1 CE memory read error on CPU_SrcID#1_MC#1_Chan#0_DIMM#1 (channel:0 slot:1)",
            ["memory.corrected"],
        ),
        (
            (
                "nvidia 0000:18:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer,"
                " (Receiver ID)"
            ),
            ["pcie.corrected"],
        ),
        (
            (
                "nvme 0000:18:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction"
                " Layer, (Requester ID)"
            ),
            ["pcie.nvme"],
        ),
        (
            "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20001, Non-fatal, Link 10 TX Replay Error",
            ["sxid.noise"],
        ),
        (
            "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Fatal, Link 44 LTSSM Fault Up",
            ["sxid.fatal"],
        ),
        ("smartd[991]: Device: /dev/nvme0n1, Critical Warning (0x04): Reliability", ["ssd.block"]),
        ('{"Events":[{"EventType":"Preempt","EventStatus":"Scheduled"}]}', ["cloud.maintenance"]),
    ],
)
def test_what_healthy_machines_say_too_weighs_little(text: str, rules: list[str]) -> None:
    assert [one.rule for one in found(text + "\n")] == rules


def test_a_table_of_one_card_after_the_other_says_whose_line_it_is() -> None:
    text = (
        "GPU 00000000:19:00.0\n    Clocks Event Reasons\n        HW Thermal Slowdown : Active\nGPU"
        " 00000000:3B:00.0\n        HW Thermal Slowdown : Not Active\n"
    )
    assert [(one.rule, one.device) for one in found(text)] == [
        ("clocks.thermal", "00000000:19:00.0")
    ]


def test_tracebacks_that_torchrun_prints_in_turns_are_read_apart() -> None:
    """Its label is followed by the line at once, and each rank raises at another place."""
    texts = [raised("KeyError: 7", f"/srv/of_{rank}.py").splitlines() for rank in range(2)]
    lines = [f"[default{rank}]:{texts[rank][at]}\n" for at in range(4) for rank in range(2)]
    places = {one.rank: one.place for one in found("".join(lines)) if isinstance(one, RaisedAt)}
    assert places == {rank: f"call (srv/of_{rank}.py:3)" for rank in range(2)}


def test_a_service_that_does_not_answer_is_no_lost_peer() -> None:
    """Python's own client says of it what torch's store says of a peer."""
    text = raised(
        "urllib.error.URLError: <urlopen error [Errno 111] Connection refused>",
        "/srv/data.py",
        "/usr/lib/python3.11/urllib/request.py",
    )
    assert [one.rule for one in found(text)] == ["dependency.unreached"]
