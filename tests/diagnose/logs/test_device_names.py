"""Which GPU a line of text names, and that it becomes the GPU of the verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.diagnose.logs.device_names import gpu_of
from tests.diagnose._written import verdict_of


@pytest.mark.parametrize(
    ("text", "gpu"),
    [
        ("GPU 3 fell off the bus", "GPU 3"),
        ("uncorrectable ECC error on CUDA device 5", "cuda:5"),
        ("cuda:2 is lost", "cuda:2"),
        ("health gpu=6 status=failed", "GPU 6"),
        ('{"level": "error", "gpu": 6}', "GPU 6"),
        ("gpu_id=4 gpu_index: 4", "GPU 4"),
        ("GPU#4 row remapping failure", "GPU 4"),
        ("GPU4 is lost", "GPU 4"),
        ("Unable to determine the device handle for GPU4: 0000:A1:00.0: Unknown", "0000:a1:00.0"),
        ("NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x40:2477)", "0000:1b:00.0"),
        ("amdgpu 0000:c3:00.0: amdgpu: 1 uncorrectable hardware errors", "0000:c3:00.0"),
        # several, hosts, amounts and times
        ("found at least two devices, cuda:0 and cuda:1!", None),
        ("GPU 0 is well, GPU 1 is lost", None),
        ("node gpu-12 lost a GPU", None),
        ("host gpu3 lost a GPU", None),
        ("a GPU 80GB of HBM3", None),
        ("a GPU 95% busy", None),
        ("GPU 8 of 8", None),
        ("gpu: 4.5 hours", None),
        ("gpu=10.0.0.1", None),
        ("2026-05-11 03:00:48 GPU lost", None),
    ],
)
def test_a_gpu_is_read_from_its_address_or_its_number(text: str, gpu: str | None) -> None:
    assert gpu_of(text) == gpu


@pytest.mark.parametrize(
    ("line", "device", "node"),
    [
        ("2026-05-11 03:01:02 ERROR monitor node=n3 GPU 3 fell off the bus", "GPU 3", "n3"),
        ('ts=2026-05-11T03:01:00Z gpu=6 host=n3 msg="uncorrectable ECC error"', "GPU 6", "n3"),
        ("2026-05-11 03:01:02 host=n3 GPU 3 is lost", "GPU 3", "n3"),
        ('{"level": "error", "msg": "GPU is lost", "gpu": 6, "node": "n3"}', "GPU 6", "n3"),
        ("2026-05-11 03:00:38 n3 healthd[77]: cuda:2: uncorrectable ECC error", "cuda:2", "n3"),
    ],
)
def test_a_gpu_named_by_its_number_is_that_of_the_verdict(
    tmp_path: Path, line: str, device: str, node: str
) -> None:
    got = verdict_of(tmp_path, {"health.log": line + "\n"})
    assert (got.devices, got.nodes) == ((device,), (node,))


def test_of_a_number_and_an_address_on_one_host_the_address_is_shown(tmp_path: Path) -> None:
    lines = (
        "May 11 03:00:38 n3 kernel: NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus.\n"
        "May 11 03:00:39 n3 healthd[77]: GPU 3 fell off the bus\n"
    )
    got = verdict_of(tmp_path, {"kern.log": lines})
    assert got.devices == ("0000:5d:00",)


def test_a_check_that_passes_names_no_gpu(tmp_path: Path) -> None:
    lines = (
        "[FAIL] GPU 6: Volatile Uncorrectable ECC errors: 3 (aggregate 3)\n"
        "[OK] GPU 5: Volatile Uncorrectable ECC errors: 0\n"
        "GPU 4: Volatile Uncorrectable ECC errors: 0 (aggregate 0)\n"
    )
    assert verdict_of(tmp_path, {"check.txt": lines}).devices == ("GPU 6",)


def test_a_card_without_an_answer_in_the_table_of_nvidia_smi_is_broken(tmp_path: Path) -> None:
    table = (
        "|   3  NVIDIA H100 80GB HBM3    On  |   00000000:5D:00.0 Off |                    0 |\n"
        "| N/A   41C    P0      310W /  700W |   71000MiB /  81559MiB |    100%      Default |\n"
        "|   4  NVIDIA H100 80GB HBM3    On  |   00000000:9B:00.0 Off |                 ERR! |\n"
        "| ERR!  ERR!  ERR!    ERR! /  ERR!  |       0MiB /  81559MiB |    ERR!      Default |\n"
    )
    got = verdict_of(tmp_path, {"n4-smi.txt": table})
    assert (got.failure_class.value, got.devices) == ("gpu", ("00000000:9b:00.0",))


def test_a_gpu_that_is_lost_explains_what_its_kernels_read(tmp_path: Path) -> None:
    log = (
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "/app/train.py", line 61, in main\n'
        "[rank2]:     loss.backward()\n"
        "[rank2]: RuntimeError: CUDA error: an illegal memory access was encountered\n"
        "2026-05-11 03:02:02 node=n3 cuda:2 is lost: NVML_ERROR_GPU_IS_LOST\n"
    )
    assert verdict_of(tmp_path, {"train.log": log}).failure_class.value == "gpu"
