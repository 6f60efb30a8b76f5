"""Rules as tables.

The order matters: a line is what the first rule that matches says, so rules that know more stand
first.
"""

from __future__ import annotations

from outlast.diagnose.rules import (
    c10d,
    cuda,
    devices,
    elastic,
    exceptions,
    host,
    kernel,
    nccl,
    scheduler,
    training,
)
from outlast.diagnose.rules.deduced import DEDUCED
from outlast.diagnose.rules.table import Grade, Rule
from outlast.diagnose.rules.xid import (
    SXID_CORRECTED,
    SXID_FATAL,
    SXID_HEAT,
    SXID_NOISE,
    SXID_NONFATAL,
    XID_DRAM,
    XID_KILL,
    XID_NONFATAL,
    XID_SRAM,
    XID_UNKNOWN,
    XIDS,
)

LINE_RULES: tuple[Rule, ...] = (
    *cuda.RULES,
    *elastic.RULES[: elastic.LOADER],  # a loader's words before those of memory and signals
    *host.RULES[: host.MEMORY],
    *kernel.RULES,
    *devices.RULES,
    *scheduler.RULES,
    *nccl.RULES,
    *host.RULES[host.MEMORY :],
    *training.RULES,
    *c10d.RULES,
    *elastic.RULES[elastic.LOADER :],
    *exceptions.RULES,
)
_CODED = (
    *XIDS.values(),
    XID_UNKNOWN,
    XID_SRAM,
    XID_DRAM,
    XID_NONFATAL,
    XID_KILL,
    SXID_FATAL,
    SXID_NONFATAL,
    SXID_CORRECTED,
    SXID_HEAT,
    SXID_NOISE,
)
RULES: dict[str, Rule] = {rule.name: rule for rule in (*LINE_RULES, *_CODED, *DEDUCED)}

__all__ = ["LINE_RULES", "RULES", "Grade", "Rule"]
