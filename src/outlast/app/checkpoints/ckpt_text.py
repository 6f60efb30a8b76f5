"""What `outlast ckpt` prints about checkpoints: as text for people, and as facts for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast.app.words import count, escaped, long_duration
from outlast.model.store_url import is_url
from outlast.model.texts import size_words
from outlast.runtime.tiers.catalogue import BAD, GOOD, CatalogueEntry, RestorePlan
from outlast.runtime.tiers.tier import CheckpointTier

if TYPE_CHECKING:
    from outlast.runtime.worker.saving.weights_diff import WeightDifference

_SURVIVES = {
    "disk": "the loss of all processes and a reboot, but not the loss of the disk",
    "object": "the loss of the machine and its disks, but not the loss of the bucket",
}
_STYLES = {GOOD: "green", BAD: "red"}


def kind_of(tier: CheckpointTier) -> str:
    """Return what kind of place a tier is: "disk" or "object"."""
    return "object" if is_url(tier.place) else "disk"


def facts_of(entry: CatalogueEntry, tier: CheckpointTier, *, now_s: float) -> dict[str, Any]:
    """Return a checkpoint as JSON says it."""
    kind, age_s = kind_of(tier), now_s - entry.written_s
    return {"tier": kind, **asdict(entry), "age_s": age_s, "survives": _SURVIVES[kind]}


def print_table(
    console: Console, tier: CheckpointTier, entries: Sequence[CatalogueEntry], *, now_s: float
) -> None:
    """Print a line for each checkpoint, and what is wrong with those that are bad."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("tier", "step", "size", "age", "ranks", "kind", "state"):
        table.add_column(name, justify="right" if name in ("step", "size", "ranks") else "left")
    for one in entries:
        table.add_row(
            kind_of(tier),
            f"{one.step:,}",
            "-" if one.size_bytes is None else size_words(one.size_bytes),
            long_duration(max(0.0, now_s - one.written_s)),
            "-" if one.world_size is None else str(one.world_size),
            one.kind or "-",
            Text(one.state, style=_STYLES.get(one.state, "")),
        )
    console.print(f"{escaped(tier.place)}: {count(len(entries), 'checkpoint')}", markup=False)
    console.print(table)
    for one in entries:
        if one.state == BAD:
            said = f"step {one.step:,} is bad: {escaped(one.reason)}"
            console.print(said, markup=False, soft_wrap=True)
    console.print(f"All of them survive {_SURVIVES[kind_of(tier)]}.", style="dim")


def diff_words(found: Sequence[WeightDifference], *, most: int, compared: int) -> str:
    """Say which tensors differ, those that are furthest apart first."""
    if not found:
        return f"all {count(compared, 'tensor')} are the same, bit for bit"
    order = sorted(found, key=lambda one: (one.kind == "values", -(one.relative or 0), one.name))
    lines = [f"{len(found):,} of {count(compared, 'tensor')} differ"]
    for one in order[:most]:
        said = f"  {escaped(one.name)}  {one.said}: {one.kind}"
        if one.kind == "values":
            said = f"  {escaped(one.name)}  {one.said}: {one.differing:,} of {one.of:,} values"
            said += f", at most {one.max_apart:.3g} apart"
            said += "" if one.relative is None else f", {one.relative:.3g} of the norm"
        lines.append(said)
    if len(order) > most:
        lines.append(f"  and {len(order) - most:,} more (--most N, --json)")
    return "\n".join(lines)


def plan_words(tier: CheckpointTier, plan: RestorePlan) -> str:
    """Say which checkpoint a restore takes now, from where, and how long reading it takes."""
    lines = [f"step {step:,} is passed over: {escaped(reason)}" for step, reason in plan.refused]
    one = plan.entry
    if one is None:
        return "\n".join([*lines, f"{escaped(tier.place)} has no checkpoint to restore"])
    size = one.size_bytes or 0
    rate = f", {size_words(round(size / plan.read_s))} a second" if plan.read_s > 0 else ""
    lines += [
        f"step {one.step:,} would be restored",
        f"from  {escaped(tier.place)} ({kind_of(tier)})",
        f"size  {size_words(size)} in {count(one.files or 0, 'file')}, saved by"
        f" {count(one.world_size or 0, 'rank')}, {one.kind}",
        f"time  {long_duration(plan.read_s)} to read and verify all of it just now{rate}",
    ]
    return "\n".join(lines)
