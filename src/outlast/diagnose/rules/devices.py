"""Rules for lines of the Linux kernel about devices.

These are network adapters, GPUs without an Xid, drives, and the file systems on them.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.rules.table import Grade, Rule, advice, messenger, root
from outlast.model.terms import FailureClass, Mechanism

C, G = FailureClass, Grade
MLX5, NVME = "linux drivers/net/ethernet/mellanox/mlx5/core", "linux drivers/nvme/host"
FILES, NVRM = "linux fs, block, drivers/md", "nvidia open-gpu-kernel-modules, NVRM messages"
HANG, LOST = Mechanism.HANG, Mechanism.LOST_CONTACT

RULES: tuple[Rule, ...] = (
    # network adapters
    root(
        "mlx5.heat",
        r"port module event.{0,60}high temperature",
        C.THERMAL,
        G.LIKELY,
        MLX5 + "/events.c",
        also=(C.NIC, C.NETWORK),
        priority=5010,
    ),
    root(
        "mlx5.cable",
        r"port module event.{0,60}(?:cable(?! plugged)|bus stuck|i2c|unplugged|unknown"
        r" identifier|enforce part)",
        C.NETWORK,
        G.LIKELY,
        MLX5 + "/events.c",
        also=(C.NIC,),
        priority=5020,
    ),
    root(
        "mlx5.health",
        r"device's health compromised|fatal error \d+ detected|synd 0x[0-9a-f]{1,2}:|firmware"
        r" (?:internal|tracer) error"
        r"|mlx5.{0,60}(?:assert_var|assert_exit|assert_callra|health|recovery"
        r"|fatal(?! event on (?:qp|cq)))|fw pre-init|mlx5_fw_",
        C.NIC,
        G.NAMED,
        MLX5 + "/health.c",
        priority=5030,
    ),
    root(
        "mlx5.command",
        r"mlx5_cmd_(?:out_err|check|comp_handler)|access_reg\(0x|mlx5.{0,60}(?:timeout\. will cause"
        r" a leak|wait_func"
        r"|cmd.{0,10}(?:timed? ?out|failed))",
        C.NIC,
        G.LIKELY,
        MLX5 + "/cmd.c",
        priority=5040,
    ),
    root(
        "nic.transmit",
        r"netdev watchdog|transmit queue \d+ timed out|tx timeout|adapter"
        r" (?:reset|hang|failure)|firmware (?:crash|hang|is not responding)"
        r"|bnxt_en.{0,60}(?:firmware|fatal|reset)|mlx4_core.{0,60}(?:error|timeout|catas)",
        C.NIC,
        G.LIKELY,
        "linux net/sched/sch_generic.c, drivers/net/ethernet",
        priority=5050,
    ),
    root(
        "link.lost",
        r"(?:ib[ps]?\d\w{0,12}|bond\d|mlx5_\d{1,2}|mlx5_core).{0,60}(?:link is down|link down"
        r"|link becomes not ready)|(?:eth\d|en[ops]\w{1,12}).{0,60}link becomes not ready"
        r"|lost carrier|carrier lost"
        r"|port \d{1,2} .{0,30}(?:state change to down|state: down|went down|is down)|link status"
        r" definitely down|state: down"
        r"|physical state: (?:polling|disabled|linkerrorrecovery)|link flap|link_downed"
        r" .{0,20}increase",
        C.NETWORK,
        G.LIKELY,
        "linux drivers/net, net/core; infiniband ibstat",
        also=(C.NIC,),
        mechanism=LOST,
        priority=5060,
    ),
    messenger(  # said of any port, also of one that the job does not use
        "link.ethernet",
        r"\blink is down\b|(?:eth\d|en[ops]\w{1,12}).{0,60}link down",
        "linux drivers/net/ethernet",
        failure_class=C.NETWORK,
        grade=G.HINT,
        priority=5065,
    ),
    # GPUs, without a number
    root(
        "nvrm.off_bus",
        r"fallen off the bus",
        C.GPU,
        G.NAMED,
        NVRM,
        also=(C.CHASSIS,),
        priority=5070,
    ),
    root(
        "nvrm.gsp",
        r"nvrm:? .{0,80}(?:gsp[^ ]{0,20} .{0,60}(?:timeout|timed"
        r" out|fail|error|halt)|_issuerpcandwait|rpc.{0,20}timeout|gspmsgqueue)"
        r"|timeout .{0,20}waiting for rpc|gsp rm .{0,40}fail",
        C.GPU_SYSTEM_PROCESSOR,
        G.NAMED,
        NVRM,
        priority=5080,
    ),
    root(
        "nvrm.init",
        r"rminitadapter failed|rm_init_adapter failed|failed to (?:initialize|enable) the nvidia"
        r" (?:kernel|gpu)"
        r"|gpu .{0,40}failed to (?:initialize|enumerate)|gpuhandlesanitycheckregread|bad register"
        r" read|gpu is in a bad state"
        r"|0xbadf[0-9a-f]{4}|gpu .{0,24}is probably (?:dead|lost)",
        C.GPU,
        G.LIKELY,
        NVRM,
        also=(C.CHASSIS, C.DEPENDENCY),
        priority=5090,
    ),
    root(
        "nvrm.nvlink",
        r"knvlink\w{1,60}|nvlink.{0,60}(?:fatal|recovery fail|link (?:is )?down|inactive|failed"
        r" to|training fail|crc.{0,20}error)"
        r"|rx detect link mask",
        C.NVLINK,
        G.LIKELY,
        NVRM,
        also=(C.NETWORK, C.GPU),
        priority=5100,
    ),
    root(
        "fabric.fatal",
        r"detected nvswitch (?:fatal|non-fatal) error|nvswitch .{0,40}(?:fatal|fault|failed)",
        C.NVLINK,
        G.LIKELY,
        "nvidia fabric manager user guide, log messages",
        priority=5110,
    ),
    root(
        "fabric.multicast",
        r"failed to find the gpu handle|nvswitches don't match|fabric"
        r" manager.{0,60}(?:abort|fail|error)"
        r"|nvidia-fabricmanager.{0,60}(?:fail|error|exited)|nvlink fabric"
        r" state.{0,20}(?:fail|error)",
        C.NVLINK,
        G.LIKELY,
        "nvidia fabric manager user guide, log messages",
        also=(C.DEPENDENCY,),
        priority=5120,
    ),
    root(
        "peermem.context",
        r"nvidia-peermem.{0,60}error|invalid context, skipping further processing",
        C.SOFTWARE_BUG,
        G.HINT,
        "nvidia peermem; gpud peermem component",
        also=(C.NVLINK, C.GPU),
        priority=5130,
    ),
    root(
        "amdgpu.fatal",
        (
            r"(?:(?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]).{0,40})?"
            r"uncorrectable hardware error\(\w{1,60}\) detected"
        ),
        C.GPU,
        G.LIKELY,
        "amd amdgpu kernel driver, RAS: amdgpu_ras_global_ras_isr",
        also=(C.HBM,),
        priority=5140,
    ),
    root(
        "amdgpu.uncorrectable",
        r"uncorrectable hardware errors? detected|ras poison|ras"
        r" (?:uncorrectable|controller).{0,40}(?:interrupt|error)"
        r"|umc.{0,60}uncorrectable|gpu memory bad page|bad page threshold",
        C.HBM,
        G.LIKELY,
        "amd amdgpu kernel driver, RAS",
        also=(C.GPU, C.SRAM),
        priority=5150,
    ),
    root(
        "amdgpu.hang",
        r"amdgpu.{0,60}(?:ring \S{1,30} timeout|gpu reset begin|gpu reset failed|hang detected|asic"
        r" hang|gpu is lost)|kfd.{0,60}(?:timeout"
        r"|hang|preemption)",
        C.GPU,
        G.LIKELY,
        "amd amdgpu kernel driver",
        also=(C.SOFTWARE_BUG,),
        mechanism=HANG,
        priority=5160,
    ),
    root(
        "amdgpu.link",
        r"xgmi.{0,60}(?:error|fail|pcs)",
        C.NVLINK,
        G.LIKELY,
        "amd amdgpu kernel driver, XGMI",
        priority=5170,
    ),
    # drives and the file systems on them
    root(
        "nvme.failed",
        r"nvme.{0,60}(?:controller is down; will reset|disabling (?:device|controller)|removing"
        r" after probe failure|device not ready"
        r"|no available path|failing i/o|reset controller|resetting controller|abort"
        r" status|timeout, (?:aborting|reset|disable|completion)"
        r"|media and data integrity|critical_warning|i/o error|could not (?:set|get)|frozen"
        r" state)|csts=0x[0-9a-f]{1,8}",
        C.SSD,
        G.NAMED,
        NVME,
        priority=5180,
    ),
    root(
        "ssd.block",
        r"smartd.{0,120}(?:critical warning|unreadable|offline uncorrectable|failed smart|failing"
        r" now)"
        r"|i/o error, dev (?:nvme|sd)|critical medium error|unrecovered read error|medium"
        r" error|buffer i/o error on dev(?:ice)? (?:nvme|sd)"
        r"|ata\d{1,2}.{0,40}(?:failed command|exception"
        r" emask|error:)|smart.{0,60}(?:fail|prefail|error)"
        r"|disk failure on|reallocated_sector|media_errors",
        C.SSD,
        G.LIKELY,
        FILES + "; smartmontools",
        also=(C.STORAGE,),
        priority=5190,
    ),
    root(
        "disk.block",
        r"buffer i/o error on dev|i/o error, dev|blk_update_request|attempt to access beyond end of"
        r" device"
        r"|i/o error while writing superblock|lost async page write",
        C.SSD,
        G.POSSIBLE,
        FILES,
        also=(C.STORAGE,),
        priority=5200,
    ),
    root(
        "fs.damaged",
        r"remounting filesystem read-only|xfs.{0,60}(?:metadata i/o error|corruption|shutting down"
        r" filesystem|log i/o error"
        r"|forced shutdown)|ext4-fs error|ext4-fs"
        r" .{0,40}(?:error|i/o)|btrfs.{0,40}(?:error|critical)|aborting journal|jbd2.{0,40}error",
        C.SSD,
        G.POSSIBLE,
        FILES,
        also=(C.STORAGE,),
        priority=5210,
    ),
    # file systems over the network
    advice(
        "fs.back",
        r"nfs: server .{0,80} ok$|lustre: .{0,120}connection restored to|ceph: .{0,60}reconnect"
        r" success",
        "nfs, lustre and ceph clients of the linux kernel: what was lost is there again",
        priority=5215,
    ),
    root(
        "fs.remote",
        r"nfs: server .{0,80}not"
        r" responding|nfs4?_.{0,60}(?:failed|error)|nfs4_reclaim_open_state|lustreerror|lustre:"
        r" .{0,120}(?:lost"
        r"|timed out|evicted|not available|reconnect)|lnet(?:error)?:|ceph:"
        r" .{0,60}(?:hung|lost|timeout|denied)|libceph.{0,60}(?:error"
        r"|socket|lost)"
        r"|beegfs.{0,60}(?:error|timed|fail)|mmfs.{0,60}(?:error|unmount|panic)|expelled from the"
        r" cluster"
        r"|gpfs.{0,60}(?:error|unmount|stale)|juicefs.{0,60}(?:error"
        r"|slow|timeout|blocked|fail)|cifs.{0,60}(?:not responding|error|has not"
        r" responded)|(?:\b|gcs|s3)fuse\b.{0,40}(?:abort|error|dead|not connected)"
        r"|wekafs.{0,60}(?:error|fail|timed)|task"
        r" (?:jfsmount|juicefs|mount\.nfs|nfsd|nfsv4|ll_|ptlrpcd|ceph|fuse|s3fs|gcsfuse|goofys"
        r"|mount\.weka|mmfsd|kworker/\S{0,20}nfs)\S{0,20}:\d+ blocked",
        C.STORAGE,
        G.NAMED,
        "nfs and lustre, ceph, juicefs, gpfs, wekafs clients of the linux kernel",
        mechanism=HANG,
        priority=5220,
    ),
    root(
        "task.disk",
        r"task"
        r" (?:jbd2|xfsaild|xfs_|ext4|kworker/\S{0,20}(?:flush|writeback|xfs)|md\d|btrfs"
        r"|nvme|dmcrypt|kcryptd"
        r"|flush-)\S{0,24}:\d+ blocked for more than",
        C.STORAGE,
        G.LIKELY,
        "linux kernel/hung_task.c",
        also=(C.SSD,),
        mechanism=HANG,
        priority=5230,
    ),
    root(
        "task.hung",
        r"task \S{1,40}:\d+ .{0,12}blocked for more than \d+ seconds",
        C.STORAGE,
        G.POSSIBLE,
        "linux kernel/hung_task.c: uninterruptible sleep, most often for a disk or a mount",
        also=(C.SOFTWARE_BUG, C.CPU),
        mechanism=HANG,
        priority=5240,
    ),
    root(
        "task.trace_fs",
        (
            r"\b(?:nfs_|nfs4_|nlmclnt_|rpc_wait_|ll_file_|ll_read|ll_write|ptlrpc_|fuse_|ceph_"
            r"|cifs_|gpfs_|beegfs_)\w{2,60}\+0x[0-9a-f]+"
        ),
        C.STORAGE,
        G.HINT,
        "linux fs, names of functions in a call trace",
        mechanism=HANG,
        priority=5250,
    ),
    advice(
        "task.trace",
        r"call trace:|hung_task_timeout_secs|task:\S{1,20} {1,20}state:d|</?task>|rip: 00|code:"
        r" [0-9a-f]{2} ",
        "linux kernel/hung_task.c, traces",
        priority=5260,
    ),
)
