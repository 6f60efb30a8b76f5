"""Which rank, node or part lines of monitors, trainers and clouds are about."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.diagnose._written import verdict_of

IBSTAT = (
    "CA 'mlx5_3'\n\tCA type: MT4129\n\tPort 1:\n\t\tState: {}\n\t\tPhysical state: {}\n"
    "\t\tLink layer: InfiniBand\n"
)
LOST = (
    "n06:71:88 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer"
    " 10.4.0.7<41218> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n"
)


def test_the_end_of_a_link_whose_port_is_down_is_named(tmp_path: Path) -> None:
    """The other end reports the loss, and its ports are up."""
    got = verdict_of(
        tmp_path,
        {
            "n06/ibstat.txt": IBSTAT.format("Active", "LinkUp"),
            "n07/ibstat.txt": IBSTAT.format("Down", "Polling"),
            "job.log": LOST,
        },
    )
    assert (got.failure_class.value, got.nodes) == ("network", ("n07",))
    assert "on n07" in got.reason
    assert "on n06" not in got.reason


@pytest.mark.parametrize(
    "said",
    [
        "| Warning | GPU 5 had uncorrectable memory errors and row remapping failed. |",
        "health watch: GPU 5: A DBE (double-bit error) was detected",
        "uncorrectable memory errors seen on GPU 5",
    ],
)
def test_a_monitor_that_names_a_gpu_speaks_of_its_memory(tmp_path: Path, said: str) -> None:
    got = verdict_of(tmp_path, {"dcgmi-gpu-44.txt": f"{said}\n"})
    assert (got.failure_class.value, got.nodes, got.devices) == ("hbm", ("gpu-44",), ("GPU 5",))


def test_a_pid_of_the_driver_is_the_rank_that_nccl_tells(tmp_path: Path) -> None:
    got = verdict_of(
        tmp_path,
        {
            "b12-kern.log": "2026-09-09T07:01:11+00:00 b12 kernel: NVRM: Xid (PCI:0000:3b:00): 119,"
            " pid=4411, name=python, Timeout after 45s of waiting for RPC response from GPU3"
            " GSP!\n",
            "ranks.log": "b12:4411:4490 [4] NCCL INFO ncclCommInitRank comm 0x55aa rank 12 nranks"
            " 16 cudaDev 4 busId 3b000 commId 0x77 - Init COMPLETE\n",
        },
    )
    assert (got.nodes, [one.rank for one in got.ranks]) == (("b12",), [12])


def test_the_node_of_a_rendezvous_is_its_host(tmp_path: Path) -> None:
    """torchelastic adds the launcher's pid and a number to the host's name."""
    said = (
        "W0505 04:00:40.000000 77 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1267]"
        " The node 'n07_77_0' has failed to send a keep-alive heartbeat to the rendezvous 'j1' due"
        " to an error of type RendezvousConnectionError.\n"
    )
    assert verdict_of(tmp_path, {"node0.log": said}).nodes == ("n07",)


def test_rays_new_line_about_its_workers_tells_the_rank(tmp_path: Path) -> None:
    """The error of the task is torch's, and not Ray's own about memory of the host."""
    failed = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."
    got = verdict_of(
        tmp_path,
        {
            "driver.log": "(TrainController pid=80) - (ip=10.0.3.11, pid=91) world_rank=0\n"
            "(TrainController pid=80) - (ip=10.0.3.14, pid=71) world_rank=2, local_rank=0\n"
            f"(RayTrainWorker pid=71, ip=10.0.3.14) {failed}\n"
            "ray.exceptions.RayTaskError(OutOfMemoryError): ray::_RayTrainWorker__execute()"
            f" (pid=71, ip=10.0.3.14)\n{failed}\n"
        },
    )
    assert (got.failure_class.value, [one.rank for one in got.ranks]) == ("gpu_oom", [2])
    assert all(name.value != "host_memory" for name, _ in got.others)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("12m Warning PreemptScheduled node/aks-h100spot-04 VM is scheduled", "host_maintenance"),
        (
            "ip-10-1-36-29:451:733 [4] ofi.cc:1688 NCCL WARN NET/OFI Request completed with error."
            " RC: 107. Error: 4126 (Unresponsive receiver (connection never established))",
            "network",
        ),
        ("[E] Unmounting file system because this node was expelled from the cluster.", "storage"),
        (
            "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp",
            "dependency",
        ),
        ("RuntimeError: still have inflight params [{'id': 723}]", "software_bug"),
    ],
)
def test_words_of_clouds_and_their_tools_are_known(tmp_path: Path, said: str, named: str) -> None:
    assert verdict_of(tmp_path, {"out.log": f"{said}\n"}).failure_class.value == named
