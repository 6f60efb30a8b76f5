"""The rules that recognise lines, as tables of rows, one module for each subject.

Several rules may match a line. The one with the smallest priority decides what the line is. So a
rule that knows more has a smaller number than one that knows less. Priorities are unique, which
makes the order total: it does not depend on the order of modules or of rows. The thousands stand
for the subject, and the rows of one subject leave gaps of ten for new ones.

    1000   CUDA and its libraries             `cuda`
    2000   loader workers, by their signals   `elastic`: they know more than memory and signals do
    3000   memory of the host                 `host`: /dev/shm is memory, whatever errno says
    4000   the kernel and the board           `kernel`
    5000   devices, disks and mounts          `devices`
    6000   schedulers                         `scheduler`
    7000   NCCL                               `nccl`
    8000   files and the outside world        `host`
    9000   what training itself reports       `training`
   10000   torch's process groups and store   `c10d`
   11000   launchers                          `elastic`
   12000   Python's exceptions                `exceptions`: a type alone says the least

A few rules have no pattern and so no priority: other code recognises an Xid by its number, and
deduces the rest (`xid`, `deduced`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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

_TABLES = (
    c10d.RULES,
    cuda.RULES,
    devices.RULES,
    elastic.RULES,
    exceptions.RULES,
    host.RULES,
    kernel.RULES,
    nccl.RULES,
    scheduler.RULES,
    training.RULES,
)


def by_priority(tables: Iterable[Sequence[Rule]]) -> tuple[Rule, ...]:
    """Return the rules of all tables in the order in which a line is compared with them."""
    rules = [rule for table in tables for rule in table]
    assert len({rule.priority for rule in rules}) == len(rules), "two rules have one priority"
    return tuple(sorted(rules, key=lambda rule: rule.priority))


LINE_RULES: tuple[Rule, ...] = by_priority(_TABLES)
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

__all__ = ["LINE_RULES", "RULES", "Grade", "Rule", "by_priority"]
