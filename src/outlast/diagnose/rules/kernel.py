"""Lines of the Linux kernel and of machine controllers, except Xid and SXid (`xid.py`).

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.rules.table import Grade, Rule, advice, effect, root
from outlast.model.terms import FailureClass, Mechanism

C, G = FailureClass, Grade
OOM, MCE = "linux mm/oom_kill.c, mm/memcontrol.c", "linux arch/x86/kernel/cpu/mce, drivers/edac"
AER, MLX5 = (
    "linux drivers/pci/pcie/aer.c, dpc.c; pci-sig base specification",
    "linux drivers/net/ethernet/mellanox/mlx5/core",
)
LOCKUP, NVME = "linux kernel/watchdog.c, kernel/rcu/tree_stall.h", "linux drivers/nvme/host"
FILES, NVRM = "linux fs, block, drivers/md", "nvidia open-gpu-kernel-modules, NVRM messages"
SIGNAL, HANG, SLOW, LOST = Mechanism.SIGNAL, Mechanism.HANG, Mechanism.SLOW, Mechanism.LOST_CONTACT
BDF = r"(?P<device>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"

RULES: tuple[Rule, ...] = (
    # memory exhausted
    root(
        "oom.killed",
        r"out of memory: kill(?:ed)? process|memory cgroup out of memory|killed as a result of"
        r" limit of",
        C.HOST_MEMORY,
        G.NAMED,
        OOM,
        mechanism=SIGNAL,
        priority=4010,
    ),
    root(
        "oom.invoked",
        r"invoked oom-killer|oom-kill:constraint=|oom_reaper: reaped|oom-kill(?:er)?:",
        C.HOST_MEMORY,
        G.NAMED,
        OOM,
        mechanism=SIGNAL,
        priority=4020,
    ),
    root(
        "oom.systemd",
        r"systemd-oomd.{0,40}killed|failed with result 'oom-kill'|a process of this unit has been"
        r" killed by the oom killer",
        C.HOST_MEMORY,
        G.NAMED,
        "systemd-oomd, systemd unit results",
        mechanism=SIGNAL,
        priority=4030,
    ),
    root(
        "oom.page",
        r"page allocation (?:failure|stalls)|swiotlb buffer is full|vmalloc error|kernel: killed"
        r" process \d+",
        C.HOST_MEMORY,
        G.POSSIBLE,
        "linux mm/page_alloc.c",
        priority=4040,
    ),
    # memory broken
    root(
        "memory.uncorrected",
        r"memory failure: 0x|hardware memory corruption|uncorrected hardware memory error|edac"
        r" [a-z0-9_]{1,12}: {1,3}\d+ ue\b"
        r"|uncorrected? (?:ecc|memory)|uncorrectable (?:ecc|memory) error"
        r"|multi-bit ecc|uncorrectable ecc \|",
        C.SYSTEM_MEMORY,
        G.NAMED,
        MCE + "; linux mm/memory-failure.c; ipmi SEL",
        priority=4050,
    ),
    root(
        "memory.corrected",
        r"edac [a-z0-9_]{1,12}: {1,3}\d+ ce\b|correctable (?:ecc|memory)|corrected memory"
        r" error|cecc|dimm.{0,40}(?:error|fail|fault)"
        r"|correctable ecc \|",
        C.SYSTEM_MEMORY,
        G.POSSIBLE,
        MCE + "; ipmi SEL",
        also=(C.CPU,),
        priority=4060,
    ),
    root(
        "memory.section",
        r"section_type: memory error|memory read error|memory write error|memory scrubbing"
        r" error|error_type: .{0,24}(?:multi"
        r"|single)-bit ecc|dimm location|memory_device_handle",
        C.SYSTEM_MEMORY,
        G.LIKELY,
        "linux drivers/firmware/efi/cper.c",
        also=(C.CPU,),
        priority=4070,
    ),
    # processors
    root(
        "cpu.soft_lockup",
        r"soft lockup - cpu#\d+",
        C.CPU,
        G.LIKELY,
        LOCKUP,
        also=(C.SOFTWARE_BUG,),
        mechanism=HANG,
        priority=4080,
    ),
    root(
        "cpu.hard_lockup",
        r"hard lockup|watchdog detected hard lockup|nmi watchdog: .{0,40}lockup",
        C.CPU,
        G.NAMED,
        LOCKUP,
        mechanism=HANG,
        priority=4090,
    ),
    root(
        "cpu.rcu",
        r"rcu.{0,40}detected (?:expedited )?stalls?|self-detected stall on"
        r" cpu|rcu_(?:sched|preempt) kthread starved",
        C.CPU,
        G.LIKELY,
        LOCKUP,
        also=(C.SOFTWARE_BUG,),
        mechanism=HANG,
        priority=4100,
    ),
    root(
        "cpu.machine_check",
        r"machine check (?:exception|from|error)|mce: \[hardware error\]:"
        r" (?:cpu|rip|tsc|processor|run the above)|machine check: processor context corrupt"
        r"|fatal machine check|internal (?:unclassified|timer) error"
        r"|cpu.{0,12}caterr|\bierr\b|processor .{0,24}ierr|uncorrected mce",
        C.CPU,
        G.LIKELY,
        MCE + "; ipmi SEL",
        also=(C.SYSTEM_MEMORY,),
        priority=4110,
    ),
    root(
        "cpu.logged",
        r"machine check events? logged",
        C.CPU,
        G.HINT,
        MCE + ": of corrected errors too",
        also=(C.SYSTEM_MEMORY,),
        priority=4120,
    ),
    root(
        "cpu.section",
        r"section_type: (?:ia32/x64|general|arm) processor"
        r" error|processor_context_corrupt|general_processor_error",
        C.CPU,
        G.LIKELY,
        "linux drivers/firmware/efi/cper.c",
        priority=4130,
    ),
    # heat and power
    advice(
        "heat.cpu_brief",
        r"temperature above threshold, cpu clock throttled \(total events = \d{1,2}\)",
        "linux arch/x86 therm_throt.c: it tells the first events of a boot, a moment each",
        priority=4135,
    ),
    root(
        "heat.cpu",
        r"temperature above threshold|critical temperature reached|thermal shutdown|thermal"
        r" trip|package power limit notification.{0,20}thermal"
        r"|upper (?:critical|non-recoverable) going high|overtemp|over-?temperature|temperature"
        r" .{0,24}(?:critical|exceed)",
        C.THERMAL,
        G.LIKELY,
        "linux arch/x86 therm_throt.c, drivers/thermal; ipmi SEL",
        also=(C.CPU, C.GPU),
        mechanism=SLOW,
        priority=4140,
    ),
    root(
        "heat.fan",
        r"\bfan\b.{0,40}(?:lower critical|lower non-recoverable|failure|fault|not present|going"
        r" low)",
        C.THERMAL,
        G.LIKELY,
        "ipmi SEL",
        also=(C.CHASSIS,),
        priority=4150,
    ),
    root(
        "power.supply",
        r"power"
        r" supply.{0,40}(?:fail|lost|fault|predictive|redundancy|inconsistent|input|deassert|out of"
        r" range)|\bpsu ?\d?\b.{0,40}(?:fail"
        r"|fault|lost|alert|error)|power unit.{0,40}(?:fail|redundancy|off)"
        r"|redundancy (?:lost|degraded)",
        C.POWER_SUPPLY,
        G.NAMED,
        "ipmi SEL; linux drivers/hwmon/pmbus",
        priority=4160,
    ),
    # PCI Express
    root(
        "mlx5.power",
        r"detected insufficient power on the pcie slot|insufficient power on",
        C.IO_BOARD,
        G.LIKELY,
        MLX5 + "/events.c",
        also=(C.NIC, C.POWER_SUPPLY),
        priority=4170,
    ),
    root(  # before the rules of devices: a corrected error did no harm, on any device
        "pcie.corrected",
        r"aer: (?:multiple )?correct(?:ed|able) error|severity=corrected|corrected error message"
        r" received|event severity: corrected",
        C.IO_BOARD,
        G.HINT,
        AER,
        also=(C.CHASSIS, C.GPU),
        priority=4180,
    ),
    root(
        "pcie.gpu",
        r"(?:nvidia|amdgpu) "
        + BDF
        + r":? .{0,40}(?:aer: |pcie bus error|can't change power state|not responding|unable to"
        r" change power)",
        C.GPU,
        G.LIKELY,
        AER,
        also=(C.CHASSIS, C.IO_BOARD),
        priority=4190,
    ),
    root(
        "pcie.nic",
        r"(?:mlx5_core|bnxt_en|ice|efa|ionic) " + BDF + r": (?:aer: |pcie bus error)",
        C.NIC,
        G.LIKELY,
        AER,
        also=(C.CHASSIS, C.IO_BOARD),
        priority=4200,
    ),
    root(
        "pcie.nvme",
        r"nvme " + BDF + r": (?:aer: |pcie bus error)",
        C.SSD,
        G.LIKELY,
        AER,
        also=(C.CHASSIS, C.IO_BOARD),
        priority=4210,
    ),
    root(
        "pcie.surprise",
        r"surprise (?:link )?down|\[ ?\d+\] sdes\b|containment event|pciehp.{0,60}(?:link down|card"
        r" not present)"
        r"|downstream port containment|device .{0,30}lost from bus|pci link down",
        C.CHASSIS,
        G.POSSIBLE,
        AER,
        also=(C.GPU, C.IO_BOARD),
        priority=4220,
    ),
    root(
        "pcie.fatal",
        r"aer: (?:multiple )?uncorrect(?:ed|able) \(fatal\)|severity=uncorrect(?:ed|able)"
        r" \(fatal\)|can't recover \(no error_detected"
        r"|device recovery failed|aer: .{0,40}recovery failed"
        r"|pcie bus error: severity=fatal|bus fatal error|section_type: pcie error|critical"
        r" interrupt.{0,60}(?:bus|pci)",
        C.GPU,
        G.POSSIBLE,
        AER + "; ipmi SEL",
        also=(C.CHASSIS, C.IO_BOARD),
        priority=4230,
    ),
    root(
        "pcie.nonfatal",
        r"aer: (?:multiple )?uncorrect(?:ed|able) \(non-fatal\)|severity=uncorrect(?:ed|able)"
        r" \(non-fatal\)|unsupported request"
        r"|completion timeout|malformed tlp|aer: .{0,40}error (?:message )?received",
        C.GPU,
        G.POSSIBLE,
        AER,
        also=(C.CHASSIS, C.IO_BOARD),
        priority=4240,
    ),
    root(
        "pcie.slow",
        r"limited by \d+\.\d gt/s|pcie link (?:width|speed) degraded|link"
        r" (?:width|speed).{0,20}downgraded",
        C.IO_BOARD,
        G.HINT,
        "linux drivers/pci/pci.c",
        also=(C.GPU, C.CHASSIS),
        mechanism=SLOW,
        priority=4250,
    ),
    effect(
        "pcie.detail",
        r"device \[[0-9a-f]{4}:[0-9a-f]{4}\] error status|\[ ?\d+\]"
        r" (?:unsupreq|cmpltto|flowctl|malftlp)|tlp header:"
        r"|aer: .{0,40}(?:broadcast|device recovery successful)|aer_status",
        AER,
        priority=4260,
    ),
    # software in and on the kernel
    root(
        "segfault.library",
        r"segfault at [0-9a-f]{1,16} ip|general protection(?: fault)? ip:|trap (?:invalid"
        r" opcode|divide error)|traps: .{0,40}(?:trap"
        r"|general protection)",
        C.SOFTWARE_BUG,
        G.LIKELY,
        "linux arch/x86/mm/fault.c, kernel/traps.c",
        mechanism=SIGNAL,
        priority=4270,
    ),
    root(
        "kernel.bug",
        r"bug: unable to handle|kernel null pointer|kernel bug at|general protection fault, |oops:"
        r" |bug: scheduling while atomic"
        r"|kernel stack overflow",
        C.SOFTWARE_BUG,
        G.POSSIBLE,
        "linux kernel, oops",
        also=(C.CPU, C.SYSTEM_MEMORY),
        priority=4280,
    ),
    root(
        "kernel.panic",
        r"kernel panic",
        C.SOFTWARE_BUG,
        G.HINT,
        "linux kernel/panic.c",
        also=(C.CPU, C.SYSTEM_MEMORY),
        mechanism=LOST,
        priority=4290,
    ),
    root(  # the kernel says it of one group of processes, which may be another job's
        "kernel.pids",
        r"fork rejected by pids",
        C.USER_CODE,
        G.POSSIBLE,
        "linux kernel/cgroup/pids.c",
        also=(C.SOFTWARE_BUG, C.DEPENDENCY),
        priority=4300,
    ),
    root(
        "kernel.files",
        r"file-max limit \d+ reached|too many open files|emfile\b|enfile\b|nf_conntrack: table"
        r" full|cannot fork|fork: retry|pids?\.max"
        r"|resource temporarily unavailable|can't start new thread"
        r"|inotify (?:watch|instance) limit",
        C.USER_CODE,
        G.POSSIBLE,
        "linux fs/file_table.c, kernel/cgroup/pids.c; posix EMFILE, EAGAIN",
        also=(C.SOFTWARE_BUG, C.DEPENDENCY),
        priority=4310,
    ),
    root(
        "board.events",
        r"chassis"
        r" intru|backplane.{0,40}(?:fault|fail)|riser.{0,40}(?:fault|fail)"
        r"|retimer.{0,60}(?:fail|error)|pcie"
        r" switch.{0,60}(?:fail"
        r"|error)|system board.{0,40}(?:fault|fail)|drive (?:fault|slot).{0,30}(?:assert|fault)",
        C.CHASSIS,
        G.LIKELY,
        "ipmi SEL",
        also=(C.IO_BOARD,),
        priority=4320,
    ),
    advice(
        "kernel.tainted",
        r"tainted: |loading out-of-tree module taints|module verification failed",
        "linux kernel/panic.c",
        priority=4330,
    ),
)
