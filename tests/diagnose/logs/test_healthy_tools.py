"""Tools name every kind of fault on a healthy machine too, to say that there is none."""

from __future__ import annotations

import pytest

from outlast.diagnose.fuse import decide
from outlast.diagnose.logs import lines, read_lines
from outlast.model.terms import FailureClass

C = FailureClass

DCGM = """# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a",pci_bus_id="00000000:18:00.0",device="nvidia0",\
modelName="NVIDIA H100 80GB HBM3",Hostname="n1"} 1980
# HELP DCGM_FI_DEV_MEMORY_TEMP Memory temperature (in C).
DCGM_FI_DEV_MEMORY_TEMP{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 51
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 44
# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
# HELP DCGM_FI_DEV_POWER_VIOLATION Throttling duration due to power constraints (in us).
DCGM_FI_DEV_POWER_VIOLATION{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
DCGM_FI_DEV_THERMAL_VIOLATION{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
# HELP DCGM_FI_DEV_ECC_SBE_VOL_TOTAL Total number of single-bit volatile ECC errors.
# HELP DCGM_FI_DEV_ECC_DBE_VOL_TOTAL Total number of double-bit volatile ECC errors.
DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
# HELP DCGM_FI_DEV_RETIRED_DBE Total number of retired pages due to double-bit errors.
DCGM_FI_DEV_RETIRED_DBE{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
DCGM_FI_DEV_RETIRED_PENDING{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
# HELP DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS Number of remapped rows for uncorrectable errors
# HELP DCGM_FI_DEV_ROW_REMAP_FAILURE Whether remapping of rows has failed
# HELP DCGM_FI_DEV_ROW_REMAP_PENDING Whether remapping of rows is pending
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
DCGM_FI_DEV_ROW_REMAP_PENDING{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
# HELP DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL Total number of NVLink flow-control CRC errors.
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
# HELP DCGM_FI_DEV_PCIE_REPLAY_COUNTER Total number of PCIe retries.
DCGM_FI_DEV_PCIE_REPLAY_COUNTER{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0
"""
SMI_CSV = """timestamp, index, pci.bus_id, pstate, temperature.gpu, temperature.memory, \
utilization.gpu [%], clocks_event_reasons.hw_slowdown, \
clocks_event_reasons.hw_thermal_slowdown, clocks_event_reasons.hw_power_brake_slowdown, \
ecc.errors.corrected.volatile.total, \
ecc.errors.uncorrected.volatile.total, remapped_rows.pending, remapped_rows.failure, \
retired_pages.pending
2024/06/11 03:31:01.123, 0, 00000000:18:00.0, P0, 44, 51, 98 %, Not Active, Not Active, Not \
Active, 0, 0, No, No, [N/A]
2024/06/11 03:31:01.124, 1, 00000000:2A:00.0, P0, 46, 53, 99 %, Not Active, Not Active, Not \
Active, 0, 0, No, No, [N/A]
"""
SMI_Q = """==============NVSMI LOG==============

Driver Version                            : 550.54.15
CUDA Version                              : 12.4

Attached GPUs                             : 8
GPU 00000000:18:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU Reset Status
        Reset Required                    : No
        Drain and Reset Recommended       : No
    GPU Recovery Action                   : None
    GSP Firmware Version                  : 550.54.15
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 5
            Link Width
                Max                       : 16x
                Current                   : 16x
        Replays Since Reset               : 0
        Replay Number Rollovers           : 0
    Fan Speed                             : N/A
    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
    ECC Errors
        Volatile
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
        Aggregate
            SRAM Correctable              : 0
            SRAM Uncorrectable Parity     : 0
            SRAM Uncorrectable SEC-DED    : 0
            DRAM Correctable              : 0
            DRAM Uncorrectable            : 0
            SRAM Threshold Exceeded       : No
        Aggregate Uncorrectable SRAM Sources
            SRAM L2                       : 0
            SRAM SM                       : 0
            SRAM Microcontroller          : 0
            SRAM PCIE                     : 0
            SRAM Other                    : 0
    Retired Pages
        Single Bit ECC                    : N/A
        Double Bit ECC                    : N/A
        Pending Page Blacklist            : N/A
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 0
        Pending                           : No
        Remapping Failure Occurred        : No
        Bank Remap Availability Histogram
            Max                           : 2560 bank(s)
            High                          : 0 bank(s)
    Temperature
        GPU Current Temp                  : 44 C
        GPU T.Limit Temp                  : 42 C
        GPU Shutdown T.Limit Temp         : -8 C
        GPU Slowdown T.Limit Temp         : -2 C
        GPU Max Operating T.Limit Temp    : 0 C
        Memory Current Temp               : 51 C
        Memory Max Operating T.Limit Temp : 0 C
    GPU Power Readings
        Power Draw                        : 693.11 W
    Clocks
        SM                                : 1980 MHz
    Fabric
        State                             : Completed
        Status                            : Success
            Name                          : /usr/bin/python3
"""
SMI = """Tue Jun 11 03:31:01 2024
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |
| N/A   44C    P0            693W / 700W  |   79001MiB / 81559MiB  |     98%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
"""
DIAG = """Successfully ran diagnostic for group.
+---------------------------+------------------------------------------------+
| Diagnostic                | Result                                         |
+===========================+================================================+
|-----  Metadata  ----------+------------------------------------------------|
| DCGM Version              | 3.3.5                                          |
|-----  Deployment  --------+------------------------------------------------|
| Denylist                  | Pass                                           |
| NVML Library              | Pass                                           |
| Persistence Mode          | Pass                                           |
| Page Retirement/Row Remap | Pass                                           |
| Graphics Processes        | Pass                                           |
+-----  Integration  -------+------------------------------------------------+
| PCIe                      | Pass - All                                     |
+-----  Hardware  ----------+------------------------------------------------+
| GPU Memory                | Pass - All                                     |
| Diagnostic                | Pass - All                                     |
+-----  Stress  ------------+------------------------------------------------+
| Targeted Stress           | Pass - All                                     |
| Targeted Power            | Pass - All                                     |
| Memory Bandwidth          | Pass - All                                     |
| EUD Test                  | Skip - All                                     |
+---------------------------+------------------------------------------------+
"""
SMART = """smartctl 7.2 2020-12-30 r5155 [x86_64-linux-5.15.0-105-generic] (local build)
=== START OF SMART DATA SECTION ===
SMART overall-health self-assessment test result: PASSED

SMART/Health Information (NVMe Log 0x02)
Critical Warning:                   0x00
Temperature:                        38 Celsius
Available Spare:                    100%
Available Spare Threshold:          10%
Percentage Used:                    3%
Power Cycles:                       31
Unsafe Shutdowns:                   12
Media and Data Integrity Errors:    0
Error Information Log Entries:      0
Warning  Comp. Temperature Time:    0
Critical Comp. Temperature Time:    0
"""
POD = """Name:             train-worker-0
Status:           Running
Containers:
  pytorch:
    State:          Running
      Started:      Tue, 11 Jun 2024 01:12:44 +0000
    Last State:     Terminated
      Reason:       Completed
      Exit Code:    0
    Ready:          True
    Restart Count:  0
Conditions:
  Type              Status
  PodScheduled      True
Tolerations:                 node.kubernetes.io/not-ready:NoExecute op=Exists for 300s
                             node.kubernetes.io/unreachable:NoExecute op=Exists for 300s
                             nvidia.com/gpu:NoSchedule op=Exists
Events:          <none>
"""
NODE = """Name:               gpu-17
Roles:              worker
Taints:             <none>
Unschedulable:      false
Conditions:
  Type                 Status  LastHeartbeatTime                 Reason                       \
Message
  ----                 ------  -----------------                 ------                       \
-------
  NetworkUnavailable   False   Tue, 11 Jun 2024 03:00:00 +0000   CiliumIsUp                   \
Cilium is running on this node
  MemoryPressure       False   Tue, 11 Jun 2024 03:31:00 +0000   KubeletHasSufficientMemory   \
kubelet has sufficient memory available
  DiskPressure         False   Tue, 11 Jun 2024 03:31:00 +0000   KubeletHasNoDiskPressure     \
kubelet has no disk pressure
  PIDPressure          False   Tue, 11 Jun 2024 03:31:00 +0000   KubeletHasSufficientPID      \
kubelet has sufficient PID available
  Ready                True    Tue, 11 Jun 2024 03:31:00 +0000   KubeletReady                 \
kubelet is posting ready status
Allocated resources:
  (Total limits may be over 100 percent, i.e., overcommitted.)
  Resource           Requests    Limits
  nvidia.com/gpu     8           8
Events:              <none>
"""
NCCL = """n1:812:1022 [0] NCCL INFO Bootstrap : Using ens1np0:10.1.1.1<0>
n1:812:1022 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No \
such file or directory No plugin found \
(libnccl-net.so), using internal implementation
n1:812:1022 [0] NCCL INFO cudaDriverVersion 12040
NCCL version 2.20.5+cuda12.4
n1:812:1022 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to ens1np0
n1:812:1022 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ens1np0:10.1.1.1<0>
n1:812:1022 [0] NCCL INFO NVLS multicast support is available on dev 0
n1:812:1022 [0] NCCL INFO comm 0x5 rank 0 nranks 64 cudaDev 0 nvmlDev 0 busId 18000 commId 0x6 - \
Init START
n1:812:1022 [0] NCCL INFO Channel 00/16 : 0 1 2 3
n1:812:1022 [0] NCCL INFO comm 0x5 rank 0 nranks 64 cudaDev 0 busId 18000 commId 0x6 - Init COMPLETE
[rank0]:[W611 03:00:00.123 ProcessGroupNCCL.cpp:4115] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to \
perform barrier as devices used by this process are \
currently unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect. \
Specify device_ids in barrier() to force use of a \
particular device, or call init_process_group() with a device_id.
[rank0]:[W611 05:00:00.123 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT \
been destroyed before we destruct ProcessGroupNCCL. On \
normal program exit, the application should call destroy_process_group to ensure that any pending \
NCCL operations have finished in this process. In \
rare cases this process can exit before this point and block the progress of another member of \
the process group. (function operator())
/usr/lib/python3.11/site-packages/torch/utils/data/dataloader.py:557: UserWarning: This \
DataLoader will create 16 worker processes in total. Our \
suggested max number of worker in current system is 8, which is smaller than what this DataLoader \
is going to create. Please be aware that excessive \
worker creation might get DataLoader running slow or even freeze, lower the worker number to \
avoid potential slowness/freeze if necessary.
Loss scale: skipped iterations: 0 | number of nan iterations: 0 | grad norm: 0.312
WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt will not load \
any checkpoints and will start from random
"""
DMESG = """[    0.000000] Linux version 5.15.0-105-generic (buildd@lcy02-amd64-007) (gcc (Ubuntu \
11.4.0-1ubuntu1~22.04) 11.4.0) #115-Ubuntu SMP
[    0.012345] ACPI: PM-Timer IO Port: 0x508
[    0.200000] mce: CPU supports 32 MCE banks
[    0.300000] MCE: In-kernel MCE decoding enabled.
[    0.400000] Memory: 2113333333K/2147483648K available
[    0.500000] smpboot: CPU0: Intel(R) Xeon(R) Platinum 8480C (family: 0x6, model: 0x8f, \
stepping: 0x8)
[    0.600000] NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.
[    1.000000] pci 0000:18:00.0: [10de:2330] type 00 class 0x030200
[    1.100000] pcieport 0000:15:01.0: AER: enabled with IRQ 29
[    1.100001] pcieport 0000:15:01.0: DPC: enabled with IRQ 29
[    1.200000] EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 \
IMC#0: DEV 0000:fe:0c.0 (INTERRUPT)
[    1.300000] ERST: Error Record Serialization Table (ERST) support is initialized.
[    1.300001] GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC.
[    2.000000] nvme nvme0: pci function 0000:05:00.0
[    2.000001] nvme nvme0: Shutdown timeout set to 10 seconds
[    2.000002] nvme nvme0: 128/0/0 default/read/poll queues
[    3.000000] EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Opts: \
errors=remount-ro. Quota mode: none.
[    4.000000] mlx5_core 0000:41:00.0: firmware version: 28.39.1002
[    4.000001] mlx5_core 0000:41:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 \
link)
[    4.000002] mlx5_core 0000:41:00.0: Port module event: module 0, Cable plugged
[    5.000000] nvidia: module verification failed: signature and/or required key missing - \
tainting kernel
[    5.000001] nvidia-nvlink: Nvlink Core is being initialized, major device number 510
[    5.000002] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC \
2024
[    5.000003] nvidia-nvswitch0: using MSI
[    6.000000] nvidia-uvm: Loaded the UVM driver, major device number 508.
[   10.000000] NFS: Registering the id_resolver key type
[  100.000000] perf: interrupt took too long (2501 > 2500), lowering \
kernel.perf_event_max_sample_rate to 79750
[  200.000000] TCP: request_sock_TCP: Possible SYN flooding on port 29500. Sending cookies.  \
Check SNMP counters.
[  300.000000] IPv6: ADDRCONF(NETDEV_CHANGE): ens1np0: link becomes ready
[  400.000000] systemd-journald[812]: Received client request to flush runtime journal.
"""
SEL = """   1 | 06/01/2024 | 01:02:03 | Event Logging Disabled SEL | Log area reset/cleared | \
Asserted
   2 | 06/01/2024 | 01:03:03 | System ACPI Power State ACPI_STATE | S0/G0: working | Asserted
   3 | 06/01/2024 | 01:03:10 | Power Supply PSU1_Status | Presence detected | Asserted
   4 | 06/01/2024 | 01:03:11 | OS Boot | C: boot completed | Asserted
PSU1_INPUT       | 230.000    | Volts      | ok    | 176.000   | 180.000   | na        | na       \
 | 264.000   | 270.000
FAN1_TACH        | 8400.000   | RPM        | ok    | 1000.000  | 1200.000  | na        | na       \
 | na        | na
TEMP_CPU0        | 55.000     | degrees C  | ok    | na        | na        | na        | 90.000   \
 | 95.000    | 100.000
"""
LSPCI = """18:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
\tStatus: Cap+ 66MHz- UDF- FastB2B- ParErr- DEVSEL=fast >TAbort- <TAbort- <MAbort- >SERR- <PERR- \
INTx-
\t\tDevSta:\tCorrErr- NonFatalErr- FatalErr- UnsupReq- AuxPwr- TransPend-
\t\tUESta:\tDLP- SDES- TLP- FCP- CmpltTO- CmpltAbrt- UnxCmplt- RxOF- MalfTLP- ECRC- UnsupReq- \
ACSViol-
\t\tUESvrt:\tDLP+ SDES+ TLP- FCP+ CmpltTO- CmpltAbrt- UnxCmplt- RxOF+ MalfTLP+ ECRC- UnsupReq- \
ACSViol-
"""
HEALTHY = {
    "lspci": LSPCI,
    "DCGM": DCGM,
    "nvidia-smi, CSV": SMI_CSV,
    "nvidia-smi -q": SMI_Q,
    "nvidia-smi": SMI,
    "dcgmi diag": DIAG,
    "smartctl": SMART,
    "pod": POD,
    "node": NODE,
    "NCCL and torch": NCCL,
    "dmesg": DMESG,
    "ipmitool": SEL,
}


def said(text: str) -> tuple[FailureClass, list[FailureClass]]:
    got = decide(
        list(read_lines(text.encode().splitlines(keepends=True), name="tool.txt")), blame=None
    )
    return got.failure_class, [one for one, _ in got.others]


@pytest.mark.parametrize("tool", HEALTHY)
def test_what_a_tool_prints_of_a_healthy_machine_points_nowhere(tool: str) -> None:
    assert said(HEALTHY[tool]) == (C.UNKNOWN, [])


@pytest.mark.parametrize(
    ("text", "was", "now", "failure_class"),
    [
        (SMI_Q, "SRAM Uncorrectable Parity     : 0", "SRAM Uncorrectable Parity     : 2", C.SRAM),
        (
            SMI_Q,
            "SRAM Threshold Exceeded       : No",
            "SRAM Threshold Exceeded       : Yes",
            C.SRAM,
        ),
        (SMI_Q, "DRAM Uncorrectable            : 0", "DRAM Uncorrectable            : 3", C.HBM),
        (
            SMI_Q,
            "Remapping Failure Occurred        : No",
            "Remapping Failure Occurred        : Yes",
            C.HBM,
        ),
        (
            SMI_Q,
            "HW Thermal Slowdown           : Not Active",
            "HW Thermal Slowdown           : Active",
            C.THERMAL,
        ),
        (
            SMI_CSV,
            "0, 00000000:18:00.0, P0, 44, 51, 98 %, Not Active, Not Active",
            "0, 00000000:18:00.0, P0, 91, 51, 98 %, Not Active, Active",
            C.THERMAL,
        ),
        (
            DCGM,
            'ROW_REMAP_FAILURE{gpu="0",UUID="GPU-a",device="nvidia0",Hostname="n1"} 0',
            'ROW_REMAP_FAILURE{gpu="0",UUID="GPU-a",device="nvidia0"} 1',
            C.HBM,
        ),
        (
            DIAG,
            "| GPU Memory                | Pass - All",
            "| PCIe                      | Fail - GPU 3",
            C.GPU,
        ),
        (SMART, "PASSED", "FAILED!", C.SSD),
        (
            POD,
            "node.kubernetes.io/unreachable:NoExecute op=Exists for 300s",
            "0/9 nodes: node is not ready\n  Reason: OOMKilled",
            C.HOST_MEMORY,
        ),
        (DMESG, "AER: enabled with IRQ 29", "   [ 5] SDES                   (First)", C.CHASSIS),
        (DMESG, "Cable plugged", "Cable error, Bus stuck (I2C or data shorted)", C.NETWORK),
    ],
)
def test_and_where_it_says_that_something_ails_that_is_read(
    text: str, was: str, now: str, failure_class: FailureClass
) -> None:
    """Method: one value of the healthy output changed to what the tool prints of a sick one."""
    assert was in text
    assert said(text.replace(was, now))[0] is failure_class


@pytest.mark.parametrize(
    "line",
    [
        "KeyError: 0",
        "SystemExit: None",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered: 0",
    ],
)
def test_an_exception_that_ends_in_nothing_is_one_all_the_same(line: str) -> None:
    text = 'Traceback (most recent call last):\n  File "/srv/train.py", line 3, in <module>\n'
    assert list(read_lines(f"{text}{line}\n".encode().splitlines(keepends=True), name="log"))


def test_what_every_pod_tolerates_is_no_state_of_a_node_and_a_taint_is() -> None:
    def rules(line: str) -> list[str]:
        return [one.rule for one in read_lines([line.encode()], name="log")]

    tolerated = [
        "  node.kubernetes.io/not-ready:NoExecute op=Exists for 300s",
        "  node.kubernetes.io/unreachable:NoExecute for 300s",
        "    key: node.kubernetes.io/not-ready",
    ]
    assert [rules(line) for line in tolerated] == [[], [], []]
    assert rules("Taints:             node.kubernetes.io/unreachable:NoExecute") == [
        "kube.node_lost"
    ]


@pytest.mark.parametrize(
    "line",
    [
        "pydantic-2.14.4",
        "hydra.errors==1.0.2",
        "validationerror              0.1.1",
        "straggler-detected    0.3.0+cu128   pypi_0    pypi",
    ],
)
def test_a_package_is_no_failure_whatever_its_name(line: str) -> None:
    assert list(read_lines([f"{line}\n".encode()], name="versions.txt")) == []


@pytest.mark.parametrize(
    "line",
    [
        "WARNING:train:grad norm is inf, skipping the update (3449)",
        "urllib3 WARNING Retrying after connection broken by 'ConnectionResetError(104)': /17.tar",
    ],
)
def test_what_a_program_goes_on_after_is_no_failure(line: str) -> None:
    assert list(read_lines([f"{line}\n".encode()], name="train.log")) == []


def test_the_steps_of_a_healthy_log_go_through_no_pattern() -> None:
    """Each rule that such a line is compared with costs time on each line of a large log."""
    line = b"2026-11-22 03:04:05,123 INFO rank 1 step 9 loss 2.1 grad_norm 0.4 tokens/s 41000\n"
    owners = lines._SIEVE.found([line.lower()]).get(0, ())
    assert not [one for one in owners if one < lines._RULES_N]
