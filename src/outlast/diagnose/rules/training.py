"""Rules for what training frameworks say of their progress, results and speed.

Health monitors, and metrics as text, are here too.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from outlast.diagnose.rules.table import Grade, Rule, effect, messenger, root
from outlast.model.terms import FailureClass, Mechanism

C, G = FailureClass, Grade
RERUN = "megatron-lm core/rerun_state_machine.py"
STRAGGLER = "nvrx straggler detection; megatron-lm core/utils.py StragglerDetector"
SMI = "nvidia NVML clocks event reasons, nvidia-smi -q"
CORRUPT, SLOW, HANG = Mechanism.CORRUPT, Mechanism.SLOW, Mechanism.HANG

RULES: tuple[Rule, ...] = (
    # a result that does not repeat
    root(
        "rerun.persistent",
        r"possible persistent error|second rerun: .{0,60}(?:not reproducible|not the"
        r" same|differs|incorrect)|only on the same gpu"
        r"|not reproducible on a different gpu",
        C.SILENT_DATA_CORRUPTION,
        G.NAMED,
        RERUN,
        also=(C.GPU,),
        mechanism=CORRUPT,
        priority=9010,
    ),
    root(
        "rerun.application",
        r"correct result \(but possible application|unexpected result is the same|possible"
        r" application (?:error|bug)|reproducible on a different gpu"
        r"|therefore it was likely correct",
        C.USER_CODE,
        G.LIKELY,
        RERUN,
        also=(C.SOFTWARE_BUG, C.USER_DATA),
        mechanism=CORRUPT,
        priority=9020,
    ),
    root(
        "rerun.transient",
        r"unexpected result is not reproducible|possible transient error|first rerun: not"
        r" reproducible",
        C.SILENT_DATA_CORRUPTION,
        G.LIKELY,
        RERUN,
        also=(C.GPU,),
        mechanism=CORRUPT,
        priority=9030,
    ),
    root(
        "rerun.reproducible",
        r"unexpected result is reproducible|need to rerun on a different gpu|first rerun:"
        r" reproducible",
        C.SOFTWARE_BUG,
        G.HINT,
        RERUN + ": the next rerun, elsewhere, decides",
        also=(C.SILENT_DATA_CORRUPTION, C.USER_DATA),
        mechanism=CORRUPT,
        priority=9040,
    ),
    root(
        "rerun.unexpected",
        r"unexpected result .{0,80}on rank \d+|: unexpected result",
        C.SILENT_DATA_CORRUPTION,
        G.HINT,
        RERUN + ": the rank that computed it",
        also=(C.SOFTWARE_BUG, C.USER_DATA, C.USER_CODE),
        mechanism=CORRUPT,
        priority=9050,
    ),
    root(
        "sdc.found",
        r"silent data"
        r" corruption|\bsdc\b.{0,40}(?:detected|found|fail|error)|(?:checksum|digest|hash"
        r"|parity).{0,40}(?:mismatch|differ"
        r"|do(?:es)? not match).{0,60}(?:rank|replica|gpu|gradient|weight|param)|replicas? (?:have"
        r" )?diverged|parameters? (?:are "
        r"|is )?out of sync"
        r"|parameter hashes not matching",
        C.SILENT_DATA_CORRUPTION,
        G.LIKELY,
        "megatron-lm check_param_hashes_across_dp_replicas; nvidia dcgm diag",
        also=(C.SOFTWARE_BUG, C.GPU),
        mechanism=CORRUPT,
        priority=9060,
    ),
    # speed
    root(
        "straggler.found",
        r"straggler(?:s)? (?:detected|detection warning|found|identified)|is (?:a |likely"
        r" )?straggl|straggler gpus?|straggler ?= ?true"
        r"|slow(?:est)? (?:rank|gpu|node|worker)s?[ :=]|gpu .{0,40}(?:slower than|running"
        r" slow)|some .{0,20}(?:gpus|ranks"
        r"|nodes) have worse (?:relative|individual) performance",
        C.STRAGGLER,
        G.LIKELY,
        STRAGGLER,
        also=(C.THERMAL, C.GPU),
        mechanism=SLOW,
        priority=9070,
    ),
    root(
        "clocks.thermal",
        r"hw thermal slowdown {0,40}: active|sw thermal slowdown {0,40}: active|thermal"
        r" (?:violation|throttl)|hw_thermal_slowdown"
        r"|clocks_(?:throttle|event)_reasons?\.(?:hw|sw)_thermal_slowdown|gpu .{0,60}thermal(?:ly)?"
        r" (?:slow|throttl)"
        r"|throttl\w{2,3}.{0,40}(?:thermal|temperature|overheat)|(?:thermal|temperature"
        r"|overheat).{0,40}throttl"
        r"|dcgm_fr_(?:thermal_violations|temp_violation|clock_throttle_thermal)",
        C.THERMAL,
        G.LIKELY,
        SMI + "; dcgm error codes",
        also=(C.STRAGGLER, C.GPU),
        mechanism=SLOW,
        priority=9080,
    ),
    root(
        "clocks.power_brake",
        r"hw power brake(?: slowdown)? {0,40}: active|hw_power_brake|power"
        r" ?brake.{0,40}(?:active|engaged|assert)"
        r"|dcgm_fr_clock_throttle_power|external power brake",
        C.POWER_SUPPLY,
        G.LIKELY,
        SMI + "; dcgm error codes",
        also=(C.GPU, C.STRAGGLER, C.CHASSIS),
        mechanism=SLOW,
        priority=9090,
    ),
    root(
        "clocks.hardware",
        r"hw slowdown {0,40}: active|hw_slowdown.{0,12}active|gpu .{0,40}hw[_ ]slowdown",
        C.THERMAL,
        G.POSSIBLE,
        SMI + "; gpud hw-slowdown component",
        also=(C.POWER_SUPPLY, C.GPU, C.STRAGGLER),
        mechanism=SLOW,
        priority=9100,
    ),
    # monitors
    root(
        "remap.failed",
        r"remapping failure occurred {0,40}: yes|row remapp(?:ing|er)? (?:has"
        r" )?fail\w{0,5}|row_remap_failure|remap(?:ping)?[_ ]failed"
        r"|dcgm_fr_row_remap_failure|retired pages.{0,40}(?:exceed|limit|too many)|qualifies"
        r" for rma",
        C.HBM,
        G.NAMED,
        "nvidia GPU memory error management guide; dcgm",
        also=(C.GPU,),
        priority=9110,
    ),
    root(
        "remap.pending",
        r"pending {0,40}: yes|row remap pending|remap(?:ping)?[_ ]pending|pending (?:page"
        r" )?(?:retire|remap)"
        r"|pending page blacklist {0,30}: yes|dcgm_fr_pending_page_retirements|uncorrectable"
        r" remapped rows? ?[:=] ?[1-9]",
        C.HBM,
        G.LIKELY,
        "nvidia GPU memory error management guide",
        also=(C.GPU,),
        priority=9120,
    ),
    root(
        "ecc.volatile",
        r"(?:dram|device memory|hbm|framebuffer).{0,24}uncorrect\w{3,6} {0,40}:"
        r" {0,3}[1-9]\d*|volatile (?:uncorrectable"
        r"|double.bit)[^0-9]{0,40}[1-9]\d*|(?:double.bit|dbe) (?:volatile|ecc)"
        r" errors?[^0-9]{0,12}[1-9]|ecc\.errors\.uncorrected\.volatile"
        r"|dcgm_fr_volatile_dbe_detected|dbe detected|dbe error occurred",
        C.HBM,
        G.LIKELY,
        SMI + "; dcgm error codes",
        also=(C.SRAM, C.GPU),
        priority=9130,
    ),
    root(
        "ecc.sram",
        r"sram (?:uncorrect\w{3,6}|threshold exceeded)[^:]{0,24} {0,40}:"
        r" {0,3}(?:[1-9]\d*|yes)|uncorrectable sram(?! sources)"
        r"|sram.{0,40}(?:uncorrectable|dbe|double.bit|threshold flag)",
        C.SRAM,
        G.NAMED,
        SMI,
        also=(C.GPU,),
        priority=9140,
    ),
    root(
        "dcgm.fail",
        r"dcgm_fr_(?:xid_error|gpu_expected_nvlinks|nvlink_down|nvlink_error_critical"
        r"|pcie_replay_rate|faulty_memory|device_count_mismatch"
        r"|bad_cuda_env|falling_off)|(?:pcie|diagnostic|memory|memtest|targeted (?:stress|power)|sm"
        r" stress|pulse test) {0,30}\| {0,3}fail",
        C.GPU,
        G.LIKELY,
        "dcgm error codes and dcgmi diag",
        also=(C.NVLINK, C.HBM),
        priority=9150,
    ),
    root(
        "nvlink.inactive",
        r"link \d{1,2}: {0,3}<?inactive|nvlink.{0,40}(?:inactive|down\b)|(?:crc|replay|recovery)"
        r" (?:flit "
        r"|data )?error(?: count)?er?[^0-9]{0,12}[1-9]\d{3,}",
        C.NVLINK,
        G.LIKELY,
        "nvidia-smi nvlink; dcgm",
        also=(C.GPU,),
        priority=9160,
    ),
    root(
        "gpu.missing",
        r"(?:expected|should (?:be|have)) \d+ gpus?.{0,40}(?:found|got|only|but)|found \d+"
        r" gpus?.{0,40}expected|(?:reports|sees|has|shows) \d+ gpus?,? .{0,20}expected"
        r" \d|gpu count mismatch"
        r"|missing gpus?\b|gpus? (?:disappeared|vanished)|only \d+ (?:of \d+ )?gpus?"
        r" (?:visible|available|detected|found)",
        C.GPU,
        G.LIKELY,
        "gpud gpu-counts component; gcm check_nvidia_smi; dcgm",
        also=(C.CHASSIS,),
        priority=9170,
    ),
    root(  # its record of which weights are asked for next, and the modules that were called
        "deepspeed.order",
        r"still have inflight params|parameters in the parameter fetch queue to be",
        C.SOFTWARE_BUG,
        G.POSSIBLE,
        "deepspeed runtime/zero/partitioned_param_coordinator.py",
        also=(C.USER_CODE, C.DEPENDENCY),
        mechanism=Mechanism.EXCEPTION,
        priority=9175,
    ),
    # hangs that frameworks notice
    messenger(
        "hang.noticed",
        r"hang detected|no progress (?:for|in|within)|stalled for|watchdog.{0,40}(?:expired|no"
        r" heartbeat)|did not receive (?:a )?heartbeat"
        r"|missed heartbeat|monitor process .{0,60}timeout|rank \d+"
        r" .{0,40}(?:unresponsive|stuck|hung)|training (?:is )?(?:stuck|hung)",
        "nvrx fault tolerance, inprocess; megatron-lm",
        mechanism=HANG,
        priority=9180,
    ),
    effect(
        "progress.aborted",
        r"aborting training|exiting program at|saving (?:a )?checkpoint .{0,40}(?:and exit|before"
        r" exit)|emergency checkpoint",
        "megatron-lm training; lightning",
        priority=9190,
    ),
)
