"""`outlast report --table`: interruptions by component, as in table 5 of Llama 3's paper.

Source   "The Llama 3 Herd of Models", arXiv 2407.21783, table 5: component, category, count, and
         the share of all unexpected interruptions. The rows of that table keep its words. Classes
         that it does not have are named in the same way. Its "NCCL watchdog timeouts" are hangs of
         unknown cause. They are called "Hang of unknown cause", because a run may use gloo, and
         outlast finds most hangs before a watchdog does.
"""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from outlast.app import words
from outlast.app.words import Facts
from outlast.model.terms import FailureClass, Mechanism

C = FailureClass
COMPONENTS: Mapping[FailureClass, tuple[str, str]] = {
    C.GPU: ("Faulty GPU", "GPU"),
    C.HBM: ("GPU HBM3 memory", "GPU"),
    C.SOFTWARE_BUG: ("Software bug", "Dependency"),
    C.NETWORK: ("Network switch/cable", "Network"),
    C.HOST_MAINTENANCE: ("Host maintenance", "Unplanned maintenance"),
    C.SRAM: ("GPU SRAM memory", "GPU"),
    C.GPU_SYSTEM_PROCESSOR: ("GPU system processor", "GPU"),
    C.NIC: ("NIC", "Host"),
    C.SILENT_DATA_CORRUPTION: ("Silent data corruption", "GPU"),
    C.THERMAL: ("GPU thermal interface + sensor", "GPU"),
    C.SSD: ("SSD", "Host"),
    C.POWER_SUPPLY: ("Power supply", "Host"),
    C.CHASSIS: ("Server chassis", "Host"),
    C.IO_BOARD: ("IO expansion board", "Host"),
    C.DEPENDENCY: ("Dependency", "Dependency"),
    C.CPU: ("CPU", "Host"),
    C.SYSTEM_MEMORY: ("System memory", "Host"),
    C.NVLINK: ("NVLink", "GPU"),
    C.STORAGE: ("Storage", "Dependency"),
    C.HOST_MEMORY: ("Host memory exhausted", "Host"),
    C.GPU_OOM: ("GPU memory exhausted", "User"),
    C.STRAGGLER: ("Straggler", "Unknown"),
    C.USER_CODE: ("User code", "User"),
    C.USER_DATA: ("User data", "User"),
    C.UNKNOWN: ("Unknown cause", "Unknown"),
}
HANG = ("Hang of unknown cause", "Unknown")


def component_of(one: Mapping[str, typing.Any]) -> tuple[str, str]:
    """Return component and category of an interruption."""
    unknown = one["class"] == FailureClass.UNKNOWN.value
    if unknown and one["mechanism"] == Mechanism.HANG.value:
        return HANG
    return COMPONENTS[FailureClass(one["class"])]


def component_rows(some: Sequence[Facts]) -> list[dict[str, typing.Any]]:
    """Return the rows, most frequent first. Children of an interruption count as part of it."""
    found = Counter(
        component_of(one)
        for facts in some
        for one in facts["interruptions"]
        if one["parent"] is None
    )
    total = sum(found.values())
    return [
        {"component": name, "category": category, "count": count, "percent": 100 * count / total}
        for (name, category), count in sorted(found.items(), key=lambda item: (-item[1], item[0]))
    ]


def show_components(console: Console, facts: Facts) -> None:
    """Show the table of one run or of several."""
    rows = facts["components"]
    if not rows:
        console.print("no interruptions")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("component", no_wrap=True)
    table.add_column("category", no_wrap=True)
    table.add_column("count", justify="right")
    table.add_column("%", justify="right")
    for row in rows:
        cells = (row["component"], row["category"], f"{row['count']:,}", f"{row['percent']:.1f}")
        table.add_row(*cells)
    total = sum(row["count"] for row in rows)
    table.add_row("total", "", f"{total:,}", "100.0", style="bold")
    console.print(table)
    console.print(
        f"{words.count(total, 'interruption')}; what came during a recovery is part of it"
    )
