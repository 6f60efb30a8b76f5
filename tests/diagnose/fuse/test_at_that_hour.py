"""What stands beside a verdict: commands to paste, stacks, the decisive minute, why others are
innocent.
"""

from __future__ import annotations

import pytest

from outlast.diagnose.fuse import decide
from outlast.diagnose.logs import read_lines
from outlast.diagnose.logs.prefixes import read_prefix
from outlast.model.terms import FailureClass
from outlast.model.verdict import Verdict

XID = "2026-11-22T21:00:03+00:00 gpu-12 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7, fallen off"
WAITS = "all_reduce (torch/distributed/distributed_c10d.py:2501)"
WORKS = tuple(f"level{number} (train.py:{number})" for number in range(8))


def spy(rank: int, *frames: str) -> str:
    body = "".join(f"    {frame}\n" for frame in frames)
    return (
        f'Process {100 + rank}: python train.py\nThread {100 + rank} (idle): "MainThread"\n{body}'
    )


def verdict(scheduler: str = "", **logs: str) -> Verdict:
    findings = [
        one
        for name, text in logs.items()
        for one in read_lines(text.encode().splitlines(), name=name)
    ]
    return decide(findings, blame=None, scheduler=scheduler)


@pytest.mark.parametrize(
    ("scheduler", "wanted"),
    [
        ("slurm", "scontrol update nodename=gpu-12 state=drain"),
        ("kubernetes", "kubectl cordon gpu-12"),
        ("", "nvidia-smi --gpu-reset -i 0000:3b:00"),
    ],
)
def test_commands_to_paste_are_those_of_the_scheduler(scheduler: str, wanted: str) -> None:
    got = verdict(scheduler, dmesg=XID)
    assert got.failure_class is FailureClass.GPU
    assert any(one.startswith(wanted) for one in got.commands), got.commands


def test_a_gpu_of_amd_is_asked_by_its_own_tool() -> None:
    line = "kernel: amdgpu 0000:c1:00.0: amdgpu: uncorrectable hardware error(ERREVENT_X) detected!"
    got = verdict(dmesg=line)
    assert got.failure_class is FailureClass.GPU
    assert got.commands[-1] == "amd-smi reset --gpureset --gpu 0000:c1:00.0"
    assert "nvidia-smi" not in " ".join((*got.commands, got.next_test))


def test_a_gpu_that_a_line_names_by_its_uuid_is_the_device() -> None:
    uuid = "GPU-5a1c2f3e-1111-2222-3333-444455556666"
    line = f"CUDA error: uncorrectable ECC error encountered on {uuid}"
    got = verdict(log=line)
    assert (got.failure_class, got.devices) == (FailureClass.HBM, (uuid,))
    assert got.commands[0] == f"nvidia-smi -q -i {uuid}"
    assert verdict(log=f"{line}, and not on {uuid[:-1]}7").devices == ()


@pytest.mark.parametrize(("ranks", "known"), [(range(4), True), (range(1, 4), False)])
def test_a_receive_is_no_fault_where_a_rank_without_a_stack_may_send(
    ranks: range, known: bool
) -> None:
    """Method: rank 2 receives while others reduce; rank 0 has a log, and a stack or none."""
    receives = "recv (torch/distributed/distributed_c10d.py:2799)"
    logs = {f"rank_{rank}.log": "step 6" for rank in range(4)}
    stacks = {
        f"stack_rank_{rank}.txt": spy(rank, receives if rank == 2 else WAITS, "main (train.py:9)")
        for rank in ranks
    }
    got = verdict(**logs, **stacks)
    assert (got.failure_class is FailureClass.SOFTWARE_BUG) is known


def test_ranks_that_all_wait_are_not_said_to_have_failed() -> None:
    """Their stacks alone do not show for whom they wait."""
    got = verdict(
        **{f"stack_rank_{rank}.txt": spy(rank, WAITS, "main (train.py:9)") for rank in range(4)}
    )
    assert (got.failure_class, got.ranks) == (FailureClass.UNKNOWN, ())
    assert "all ranks wait in collectives" in got.reason
    assert "failed" not in got.reason


def test_a_name_that_a_shell_would_obey_is_in_no_command() -> None:
    """Logs are of strangers: what is pasted must not run what they wrote."""
    evil = 'host="gpu-12;reboot" ' + XID.partition("kernel: ")[2]
    for text in (evil, XID.replace("gpu-12", "$(reboot)"), XID.replace("3b:00", "3b:00;reboot")):
        for scheduler in ("slurm", "kubernetes", ""):
            said = " ".join(verdict(scheduler, dmesg=text).commands)
            assert "reboot" not in said


def test_a_port_that_is_taken_asks_who_holds_it_and_not_to_fix_the_script() -> None:
    said = (
        "RuntimeError: The server socket has failed to listen on any local network address. port:"
        " 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    got = verdict(log=said)
    assert got.commands == ("ss -ltnp 'sport = :29500'",)
    assert "holds the port" in got.action
    assert "script" not in got.action


def test_a_guilty_rank_shows_five_frames_and_the_others_are_cleared() -> None:
    logs = {
        f"stack_rank_{rank}.txt": spy(rank, *(WORKS if rank == 2 else (WAITS, "main (train.py:9)")))
        for rank in range(4)
    }
    got = verdict(**logs)
    assert [(one.rank, one.frames) for one in got.stacks] == [(2, WORKS[:5])]
    assert [one.ranks for one in got.cleared] == [(0, 1, 3)]


def test_frames_of_an_event_loop_do_not_hide_the_users_own() -> None:
    """They would be all that is shown of a script that awaits something."""
    loop = (
        "EpollSelector.select (selectors.py:468)",
        "BaseEventLoop._run_once (asyncio/base_events.py:1884)",
        "BaseEventLoop.run_forever (asyncio/base_events.py:607)",
        "BaseEventLoop.run_until_complete (asyncio/base_events.py:640)",
        "Runner.run (asyncio/runners.py:118)",
        "run (asyncio/runners.py:190)",
    )
    own = ("fetch (train.py:12)", "main (train.py:9)")
    logs = {
        f"stack_rank_{rank}.txt": spy(rank, *((*loop, *own) if rank == 2 else (WAITS, own[1])))
        for rank in range(4)
    }
    got = verdict(**logs)
    assert [(one.rank, one.frames) for one in got.stacks] == [(2, (loop[0], "...", *own))]
    assert "fetch (train.py:12)" in got.reason


def test_the_timeline_is_the_minute_around_the_first_sign_in_order() -> None:
    log = (
        "2026-11-22 20:00:00 NCCL WARN an hour before\n"
        "2026-11-22 21:00:05 [rank1]: RuntimeError: CUDA error: unspecified launch failure\n"
        "2026-11-22 21:00:09 [rank2]: RuntimeError: Connection closed by peer [10.0.0.1]:1\n"
        "2026-11-22 22:00:00 [rank3]: ValueError: an hour after\n"
    )
    got = verdict(dmesg=XID, log=log)
    times = [one.at_s for one in got.timeline]
    assert times == sorted(times)
    assert len(times) == 3
    assert times[-1] - times[0] == 6.0
    assert got.timeline[0].node == "gpu-12"
    assert not got.timeline[0].text.startswith("2026")


def test_of_an_oom_kill_the_line_that_names_the_process_is_cited_first() -> None:
    log = (
        "python invoked oom-killer: gfp_mask=0x1, order=0\nCall Trace:\n <TASK>\n"
        "Out of memory: Killed process 4242 (python) total-vm:1kB\n"
    )
    got = verdict(dmesg=log)
    assert "Killed process 4242" in got.reason
    assert not any("Call Trace" in one.text or "TASK" in one.text for one in got.evidence)


@pytest.mark.parametrize(
    ("line", "node"),
    [
        ("192.168.11.119: RuntimeError: NCCL error", "192.168.11.119"),
        ("NCCL WARN Connection closed by remote peer node48<37948>", "node48"),
        ("mycl-g2:353236 [3] NCCL WARN Cuda failure", "mycl-g2"),
        ("mycl-g2:353236:353300 [3] NCCL WARN Cuda failure", "mycl-g2"),
        ("step-12:2000 loss 1.0", None),
        ("12: loss 1.0", None),
        ("loss: 1.0", None),
    ],
)
def test_hosts_in_prefixes_are_read(line: str, node: str | None) -> None:
    assert read_prefix(line).node == node
