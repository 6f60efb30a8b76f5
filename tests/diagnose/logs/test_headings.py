"""Whose lines follow: headings of tail, clush, ansible, prompts and people; NCCL; spawn; srun."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.diagnose.logs.headings import Heading, read_heading
from tests.diagnose._written import verdict_of

STEPS = "".join(f"2026-05-11 03:00:{at:02d},000 INFO step={at} loss=2.{at}\n" for at in range(60))
AT = "[Mon May 11 03:01:02 2026] "
CALM = f"{AT}usb 1-1: new high-speed USB device number 2\n"
LOST = f"{AT}NVRM: Xid (PCI:0000:5d:00): 79, pid=110, name=python, GPU has fallen off the bus.\n"
RULER = "---------------\n"


@pytest.mark.parametrize(
    "text",
    [
        f"node: n12\n{LOST}",
        f"Hostname: n12\n{LOST}",
        f"==> n11.log <==\n{CALM}\n==> n12.log <==\n{LOST}\n==> n13.log <==\n{CALM}",
        f"==> logs/n12/dmesg <==\n{LOST}",
        f"n11: {CALM}n12: {LOST}",
        f"{RULER}n[11,13-14] (3)\n{RULER}{CALM}{RULER}n12\n{RULER}{LOST}",
        f"n11 | CHANGED | rc=0 >>\n{CALM}n12 | CHANGED | rc=0 >>\n{LOST}",
        f"=== n11 ===\n{CALM}=== n12 ===\n{LOST}",
        f"### node n12 ###\n{LOST}",
        f"root@n12:~# dmesg -T | tail\n{LOST}root@n12:~# exit\n",
        f"[ops@n12 ~]$ sudo dmesg -T\n{LOST}",
    ],
)
def test_lines_below_a_heading_are_of_its_node(tmp_path: Path, text: str) -> None:
    got = verdict_of(tmp_path, {"all.txt": text})
    assert (got.failure_class.value, got.nodes) == ("gpu", ("n12",))


def test_lines_that_several_nodes_share_are_of_each(tmp_path: Path) -> None:
    lost = f"{AT}nfs: server nas1 not responding, timed out\n"
    got = verdict_of(tmp_path, {"all.txt": f"{RULER}node[08-10,12] (4)\n{RULER}{lost}"})
    assert sorted(got.nodes) == ["node08", "node09", "node10", "node12"]


def test_lines_below_a_heading_of_a_rank_are_of_that_rank(tmp_path: Path) -> None:
    calm, lost = STEPS, f"{STEPS}KeyError: 'labels'\n"
    for number, text in enumerate(
        (
            f"==> rank_0.log <==\n{calm}\n==> rank_1.log <==\n{lost}\n==> rank_2.log <==\n{calm}",
            f"### rank 0 ###\n{calm}### rank 1 ###\n{lost}### rank 2 ###\n{calm}",
        )
    ):
        got = verdict_of(tmp_path / str(number), {"all.txt": text})
        assert [one.rank for one in got.ranks] == [1]


@pytest.mark.parametrize(
    "text",
    [
        "=== epoch12 ===",
        "--- step100 ---",
        "==> Downloading weights <==",
        "*** train-3 ***",
        "### Results ###",
        "node: the loss of a node is fatal",
        "host: 3",
        "host: localhost",
        "--host node1",
    ],
)
def test_other_lines_between_rulers_and_signs_name_no_node(text: str) -> None:
    assert read_heading(text, ()) in (None, Heading())


# --- torch.multiprocessing.spawn ----------------------

SPAWN = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 88, in <module>\n'
    "    mp.spawn(main, nprocs=4)\n"
    '  File "/usr/lib/python3/dist-packages/torch/multiprocessing/spawn.py", line 189, in join\n'
)
RAISED = (
    "    raise ProcessRaisedException(msg, error_index, failed_process.pid)\n"
    "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
    "-- Process 1 terminated with the following error:\n"
    "Traceback (most recent call last):\n"
    '  File "/usr/lib/python3/dist-packages/torch/multiprocessing/spawn.py", line 90, in _wrap\n'
    "    fn(i, *args)\n"
    '  File "/app/train.py", line 55, in main\n'
    '    loss = step(batch["labels"])\n'
    "KeyError: 'labels'\n"
)


@pytest.mark.parametrize(
    ("end", "named", "rank"),
    [
        (RAISED, "user_code", 1),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal"
            " SIGSEGV\n",
            "software_bug",
            2,
        ),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal"
            " SIGKILL\n",
            "unknown",
            3,
        ),
    ],
)
def test_spawn_tells_which_process_failed(tmp_path: Path, end: str, named: str, rank: int) -> None:
    got = verdict_of(tmp_path, {"out.txt": STEPS + SPAWN + end})
    assert (got.failure_class.value, [one.rank for one in got.ranks]) == (named, [rank])


def test_processes_that_are_spawned_on_several_nodes_have_local_ranks(tmp_path: Path) -> None:
    calm = STEPS + "done\n"
    two = {"a/out.txt": STEPS + SPAWN + RAISED, "b/out.txt": STEPS + SPAWN + RAISED}
    assert verdict_of(tmp_path / "two", two).ranks == ()
    sixteen = {"out.txt": "WORLD_SIZE=16\n" + STEPS + SPAWN + RAISED, "other.txt": calm}
    assert verdict_of(tmp_path / "sixteen", sixteen).ranks == ()
    four = {"out.txt": "WORLD_SIZE=4\n" + STEPS + SPAWN + RAISED, "other.txt": calm}
    assert [one.rank for one in verdict_of(tmp_path / "four", four).ranks] == [1]


# --- srun's tasks ----------------------


@pytest.mark.parametrize("ended", ["Segmentation fault (core dumped)", "Killed", "Bus error"])
def test_a_task_that_a_signal_ended_is_a_rank_without_a_launcher(
    tmp_path: Path, ended: str
) -> None:
    said = f"{STEPS}srun: error: n3: task 9: {ended}\n"
    got = verdict_of(tmp_path / "bare", {"slurm-8.out": said})
    assert [one.rank for one in got.ranks] == [9]
    assert got.nodes == ("n3",)
    launched = verdict_of(tmp_path / "launched", {"slurm-8.out": f"+ srun torchrun t.py\n{said}"})
    assert launched.ranks == ()


# --- NCCL ----------------------


def nccl(host: str, pid: int, gpu: int, text: str) -> str:
    return f"{host}:{pid}:{pid + 70} [{gpu}] {text}\n"


def test_nccl_tells_which_process_is_which_rank(tmp_path: Path) -> None:
    """Its later lines name the process alone. A smaller communicator has other ranks."""
    processes = [("n1", 40, 0), ("n1", 41, 1), ("n2", 40, 0), ("n2", 41, 1)]
    told = "NCCL INFO comm 0x{} rank {} nranks {} cudaDev {} busId 5d000 - Init COMPLETE"
    made = "".join(
        nccl(*process, told.format(55, rank, 4, process[2]))
        + nccl(*process, told.format(66, process[2], 2, process[2]))
        for rank, process in enumerate(processes)
    )
    failed = nccl("n2", 41, 1, "NCCL WARN Cuda failure 'uncorrectable ECC error encountered'")
    got = verdict_of(tmp_path / "whole", {"out.txt": made + STEPS + failed})
    assert (got.failure_class.value, [one.rank for one in got.ranks]) == ("hbm", [3])
    alone = verdict_of(tmp_path / "alone", {"out.txt": STEPS + failed})
    assert (alone.ranks, alone.nodes, alone.devices) == ((), ("n2",), ("cuda:1",))
