"""Write numbers and interruptions in words.

In app/, units are converted only here and by the functions of model/texts.py.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping

from rich.console import Console

from outlast.model.drain_words import Drain, drain_of
from outlast.model.texts import cost_words as cost_words
from outlast.model.texts import count as count
from outlast.model.texts import duration as duration
from outlast.model.texts import escaped as escaped
from outlast.model.texts import escaped_all as escaped_all
from outlast.model.texts import recovery_words as recovery_words
from outlast.model.texts import span as span

Facts = Mapping[str, typing.Any]

PLAIN_WIDTH = 120  # columns if the width of the output is not known
LAUNCHER_GONE = (
    "The launcher is gone, but the run has not ended. Continue it with"
    " `outlast run --resume --run-dir PATH` and the same script."
)


def console_for(*, stderr: bool = False, environment: Mapping[str, str]) -> Console:
    """Return a console, which is plain if the output is not a terminal or NO_COLOR is set."""
    probe = Console(stderr=stderr, highlight=False)
    if probe.is_terminal and not environment.get("NO_COLOR"):
        return probe
    columns = environment.get("COLUMNS", "")
    width = (
        int(columns)
        if columns.isdigit() and int(columns) >= 40
        else probe.width
        if probe.is_terminal
        else PLAIN_WIDTH
    )
    return Console(
        stderr=stderr, highlight=False, color_system=None, force_terminal=False, width=width
    )


def shows_blocks(encoding: str | None) -> bool:
    """Return whether an output in this encoding can show lines and blocks, as for bars."""
    return (encoding or "").lower().startswith("utf")


def long_duration(seconds: float) -> str:
    """Write a duration. From two days on, it is in days or years: 45 d, 5.32 d, 15.8 y.

    It is used for mean times between failures, which may be months.
    """
    days = seconds / 86_400
    if days < 2:
        return duration(seconds)
    number, unit = (days, "d") if days < 731 else (days / 365.25, "y")
    return f"{number:#.3g}".rstrip(".") + f" {unit}" if number < 999.5 else f"{number:,.0f} {unit}"


def percent(share: float) -> str:
    """Write a share as a percentage, rounded to a tenth. Only all of it is 100.0 %."""
    return f"{share * 100 if share >= 1 else min(99.9, share * 100):.1f} %"


def bar(share: float, columns: int, *, blocks: bool) -> str:
    """Return a bar of at most `columns`. It is exact to 1/8 of a column if the output allows it."""
    if not blocks:
        return "#" * round(share * columns)
    eighths = max(1, round(share * columns * 8))
    return (
        "\N{FULL BLOCK}" * (eighths // 8)
        + "\u258f\u258e\u258d\u258c\u258b\u258a\u2589"[eighths % 8 - 1 :][: min(1, eighths % 8)]
    )


def listed(items: Iterable[object]) -> str:
    """Write items one after the other, with commas."""
    return ", ".join(str(item) for item in items)


def ranks(one: Facts) -> str:
    """Name the ranks of an interruption: `rank 2`, `ranks 1, 3`."""
    names: list[int] = one.get("ranks") or []
    return (
        f"rank {names[0]}" if len(names) == 1 else f"ranks {listed(names)}" if names else "no rank"
    )


def held_ranks(report: Facts) -> str:
    """Return how many ranks the sessions of a run had, in order: "4, then 3 ranks"."""
    sizes: list[int] = []
    for one in report["sessions"]:
        if sizes[-1:] != [one["world_size"]]:
            sizes.append(one["world_size"])
    before = ", ".join(f"{size:,}" for size in sizes[:-1])
    newest = count(report["world_size"], "rank")
    return f"{before}, then {newest}" if before else newest


def detection_s(one: Facts) -> float | None:
    """Return the time from fault to detection; None where the fault's time is not known."""
    return None if one.get("fault_s") is None else max(0.0, one["detected_s"] - one["fault_s"])


def drain(one: Facts) -> Drain | None:
    """Return the drain for which an interruption was booked, or None if it is a failure."""
    return drain_of(one["mechanism"], str(one.get("reason", "")))


def how(one: Facts) -> str:
    """Return how an interruption showed itself: "signal", "lost node", or "drained"."""
    if drain(one) is not None:
        return "drained"
    return str(one["mechanism"]).replace("_", " ")


def began(one: Facts) -> str:
    """Return how an interruption began.

    For example `interruption 3: rank 2, signal, at step 131, detected after 3 ms`.
    """
    late_s = detection_s(one)
    words = [f"interruption {one['id']}: {ranks(one)}", how(one)]
    if one.get("step"):
        words.append(f"at step {one['step']:,}")
    if late_s is not None:
        words.append(f"detected after {duration(late_s)}")
    return ", ".join(words) + (
        f" (part of {one['parent']})" if one.get("parent") is not None else ""
    )


def ended(one: Facts) -> str:
    """Describe an interruption that is over.

    `interruption 3: back after 92 ms by spare, 1 step repeated, 0 lost`, or `interruption 3: all
    processes run again by restart; steps not seen`, or `interruption 3: over after 92 ms; nothing
    was run again`.
    """
    said = f"interruption {one['id']}: {outcome(one)}"
    if not one.get("rung"):
        return said
    return said + (", " if one.get("steps_seen", True) else "; ") + cost_words(one)


def outcome(one: Facts) -> str:
    """Describe how an interruption ended, without its cost.

    It has no rung if the script had reached its end by itself before a decision was made.
    """
    seen, rung = one.get("steps_seen", True), one.get("rung")
    if not rung:
        return f"over{f' after {recovery_words(one)}' if seen else ''}; nothing was run again"
    return (
        f"back after {recovery_words(one)} by {rung}"
        if seen
        else f"all processes run again by {rung}"
    )


def waits(wait: Facts) -> str:
    """Describe a wait: `waits for rank 1: its interpreter starts, for up to 27 s`.

    A bound of ten minutes and more is given in minutes, because seconds do not matter then.
    """
    left_s = wait.get("left_s")
    bound = ""
    if left_s is not None:
        rough = f"{left_s / 60:.0f} m" if 600 <= left_s < 3600 else duration(left_s)
        bound = f", for up to {rough}"
    return f"waits for {wait['what']}{bound}"


def states(workers: Iterable[Facts]) -> str:
    """Return `3 training, 1 starting`: the workers by state, most first."""
    by_state: dict[str, int] = {}
    for worker in workers:
        by_state[worker["state"]] = by_state.get(worker["state"], 0) + 1
    return (
        listed(
            f"{number} {state}"
            for state, number in sorted(by_state.items(), key=lambda item: (-item[1], item[0]))
        )
        or "none"
    )


def spares(some: Iterable[Facts]) -> str:
    """Return the spares in words, by kind, such as "2 hot, 1 warm"; "none" without any."""
    return states({"state": spare["kind"]} for spare in some)
