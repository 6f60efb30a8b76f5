"""`outlast report`: where the time of a run went, and every interruption.

This is the page for people. `report_facts.py` makes what it shows.
"""

from __future__ import annotations

import typing

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from outlast.app import words
from outlast.app.reports.status import OVER, STATE_STYLE
from outlast.app.words import Facts
from outlast.model.terms import MEANING, NOT_SHOWN, Cause
from outlast.model.texts import some
from outlast.model.verdict import summary

SHOWN_COUNT = 20  # interruptions in the table; --json has all
BAR_COLUMNS = 32
WIDE = 100  # columns of the output from which explanations stand beside the figures


def show_report(console: Console, facts: Facts) -> None:
    """Show a run: the figures first, then where its time went, then every interruption."""
    _show_head(console, facts)
    total_s = sum(value or 0.0 for value in facts["rank_seconds"].values())
    console.print(
        f"\nWhere the time of all ranks went ({_held(facts)})",
        style="bold",
    )
    if "lives" in facts["lacks"]:
        console.print("  Not known, because some lives of processes are missing.")
    else:
        console.print(Padding(causes_table(console, facts, total_s), (0, 0, 0, 2)))
    for wrong in facts["balance"]["wrong"]:
        text = f"  This account does not sum up, so do not trust it: {wrong}."
        console.print(Text(text, style="bold red"))
    if facts["spare_seconds"] > 0:
        console.print(
            f"  Spares stood by for {words.duration(facts['spare_seconds'])}, apart from the"
            " above.",
            style="dim",
        )
    if facts["interruptions"]:
        hidden = len(facts["interruptions"]) - SHOWN_COUNT
        console.print(
            "\nInterruptions"
            + (
                f" (the newest {SHOWN_COUNT} of {len(facts['interruptions']):,}; --json has all)"
                if hidden > 0
                else ""
            ),
            style="bold",
        )
        _show_interruptions(console, facts)
        if anew := _began_anew(facts):
            console.print(Padding(Text(anew), (1, 0, 0, 2)))
    if facts["verdicts"]:
        console.print(f"\nVerdicts{_how_many(facts)}", style="bold")
        for one in facts["verdicts"][-SHOWN_COUNT:]:
            console.print(Padding(_verdict(one), (0, 0, 0, 2)))
    if facts["warnings"]:
        console.print("\nWarnings", style="bold")
        for text in dict.fromkeys(facts["warnings"]):
            console.print(Padding(Text(f"- {text}"), (0, 0, 0, 2)))


def _held(facts: Facts) -> str:
    """Return the rank-seconds in words: a product, or a sum if sessions differ in ranks."""
    if len({one["world_size"] for one in facts["sessions"]}) > 1:
        return f"{words.held_ranks(facts)}: {words.duration(facts['balance']['expected_s'])} in all"
    return f"{words.held_ranks(facts)} x {words.duration(facts['wall_s'])}"


def _show_head(console: Console, facts: Facts) -> None:
    state = facts["state"]
    going = "" if state in OVER else " so far"
    console.print(
        Text.assemble(
            (facts["run"], "bold"),
            "  ",
            (state, STATE_STYLE.get(state, "")),
            f"  {_steps(facts)} on {words.held_ranks(facts)}"
            f" in {words.duration(facts['wall_s'])}{going}",
        )
    )
    if facts["damage"]:
        console.print(Text(facts["damage"], style="bold red"))
    if facts["copy_of_ledger"]:
        console.print(Text(facts["copy_of_ledger"]["note"], style="yellow"))
    if state == "lost":
        console.print(Text(words.LAUNCHER_GONE, style=STATE_STYLE[state]))
    if state in ("failed", "stopped") and facts["reason"]:
        console.print(Text(f"{state}: {facts['reason']}", style=STATE_STYLE[state]))
    broken = next((one for one in reversed(facts["interruptions"]) if one["traceback"]), None)
    if state == "failed" and broken is not None:
        console.print(Padding(Text(broken["traceback"].rstrip()), (1, 0, 0, 2)))
    console.print()
    pairs = Table.grid(padding=(0, 3, 0, 0))
    pairs.add_row("ETTR", *_ettr(facts))
    pairs.add_row("MTTR", *_mttr(facts))
    pairs.add_row("steps", *_cost(facts))
    if facts["goodput"]["tokens_per_s"] is not None:
        each = f"{facts['goodput']['tokens_per_s']:,.0f} tokens/s, all time counted"
        pairs.add_row("tokens", f"{facts['goodput']['tokens']:,.0f}", each)
    if facts["goodput"]["flops_per_s"] is not None:
        each = f"{facts['goodput']['flops_per_s']:.3g} FLOP/s, all time counted"
        pairs.add_row("FLOPs", f"{facts['goodput']['flops']:.3g}", each)
    if facts["cost"]["money"] is not None:
        lost = f"{facts['cost']['lost_money']:,.2f} of it lost to interruptions"
        pairs.add_row("money", f"{facts['cost']['money']:,.2f}", lost)
    if len(facts["sessions"]) > 1:
        pairs.add_row(
            "down",
            words.duration(facts["downtime_s"]),
            f"between {len(facts['sessions'])} launcher sessions; not in the figures here",
        )
    console.print(Padding(pairs, (0, 0, 0, 2)))


def _steps(facts: Facts) -> str:
    if not facts["steps_seen"]:
        return "steps not seen"
    least = "at least " if _is_cost_unknown(facts) else ""
    return least + words.count(facts["steps"], "step")


def _is_cost_unknown(facts: Facts) -> bool:
    """Return whether a process went on from a step that is not known.

    Its steps are counted from its own start, so it may have done more steps than the report says.
    """
    return facts["steps_lost_between_sessions"] is None or any(
        one["steps_lost"] is None for one in facts["interruptions"]
    )


def _ettr(facts: Facts) -> tuple[Text, str]:
    if facts["imported"]:
        return Text("-", "bold"), "not known, because the source of the import does not show steps"
    if facts["ettr"] is None and facts["damage"]:
        return Text("-", "bold"), "not known, because the ledger is damaged"
    if facts["ettr"] is None:
        return Text("-", "bold"), "not known, because not all steps that stayed were seen"
    return (
        Text(words.percent(facts["ettr"]), "bold"),
        "of all time was productive;"
        f" {words.percent(facts['ettr_training'])} without start-up and shutdown",
    )


def _cost(facts: Facts) -> tuple[str, str]:
    """Return how many steps there were, and how many of them the interruptions cost."""
    if facts["imported"]:
        return "-", "not seen: the source of the import does not show them"
    if not facts["steps_seen"] and facts["damage"]:
        return "-", "not known, because the ledger is damaged"
    if not facts["steps_seen"]:
        return "-", _why_unseen(facts["state"])
    unknown = _is_cost_unknown(facts)
    repeated, lost = (
        sum(one[key] or 0 for one in facts["interruptions"])
        for key in ("steps_repeated", "steps_lost")
    )
    between = facts["steps_lost_between_sessions"] or 0
    cost = f"{repeated:,} repeated, {lost + between:,} lost"
    cost += f" ({between:,} of them between sessions)" if between else ""
    if unknown:
        cost = "steps lost: not known, the script's own checkpoint decides"
    by = "" if facts["calls_outlast"] else "; counted by calls of the optimizer"
    return f"{'at least ' if unknown else ''}{facts['steps']:,}", cost + _pace(facts) + by


def _began_anew(facts: Facts) -> str:
    """Return the advice for a script without outlast calls that began again with its first step."""
    anew = [one for one in facts["interruptions"] if 0 < one["step"] == one["steps_lost"]]
    numbers = [str(one["id"]) for one in anew]
    if facts["calls_outlast"] or not numbers:
        return ""
    after = f"interruption{'s' if len(numbers) > 1 else ''} {some(numbers)}"
    return (
        f"After {after} the script began with its first step again: it had saved no checkpoint of"
        " its own by then, or it loads none at its start. Change that, or call outlast: `outlast"
        " check SCRIPT` names the lines."
    )


def _why_unseen(state: str) -> str:
    """Return why no step was seen. Only a script that has reached its end surely has no steps."""
    none = "the script calls neither outlast nor an optimizer of torch"
    if state == "ended":
        return f"not seen: {none}"
    if state in OVER:
        # It may have had steps to come, so the script is not said to have none.
        return f"not seen: the run was over before the first one, or {none}"
    return f"none seen so far: the first one is still to come, or {none}"


def _number(count: int | None) -> str:
    """Write a count, or "-" if it is not known."""
    return "-" if count is None else f"{count:,}"


def _pace(facts: Facts) -> str:
    """Return how long a step takes, in words; "" if that is not known."""
    return (
        ""
        if facts["step_median_s"] is None
        else f", one takes {words.duration(facts['step_median_s'])} (median)"
    )


def _mttr(facts: Facts) -> tuple[Text, str]:
    mttr = facts["mttr"]
    many = words.count(mttr["count"], "interruption")
    inner_count = sum(one["parent"] is not None for one in facts["interruptions"])
    many += f", {inner_count:,} more during a recovery" if inner_count else ""
    if facts["imported"]:
        return Text("-", "bold"), f"{many}; when they were over is not known"
    many += f", {mttr['open_count']} not yet over" if mttr["open_count"] else ""
    many += " were read, and some are missing" if "interruptions" in facts["lacks"] else ""
    if mttr["median_range_s"] is None:
        unseen = "" if facts["steps_seen"] or not mttr["count"] else "; steps not seen"
        return Text("-", "bold"), many + unseen
    exact = all(mttr[name][0] == mttr[name][1] for name in ("median_range_s", "max_range_s"))
    unsure = "" if exact else "; a range where the time of a fault is unknown"
    return (
        Text(words.span(*mttr["median_range_s"]), "bold"),
        f"from a fault to a new step, median; max {words.span(*mttr['max_range_s'])};"
        f" {many}{unsure}",
    )


def causes_table(console: Console, facts: Facts, total_s: float) -> Table:
    """Return the table of causes, the largest first."""
    blocks = words.shows_blocks(console.encoding)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    known = {cause: value for cause, value in facts["rank_seconds"].items() if value}
    for cause, value in sorted(known.items(), key=lambda item: -item[1]):
        if value > 0:
            share = value / total_s
            bar = Text(
                words.bar(share, BAR_COLUMNS, blocks=blocks),
                "green" if cause == "productive" else "yellow",
            )
            table.add_row(
                cause.replace("_", " "),
                words.duration(value),
                words.percent(share),
                bar,
                _meaning(cause, facts) if console.width >= WIDE else "",
            )
    table.add_row("total", words.duration(total_s), "100.0 %", "", "", style="bold")
    return table


def _meaning(cause: str, facts: Facts) -> str:
    return NOT_SHOWN if facts.get("imported") else MEANING[Cause(cause)]


def _show_interruptions(console: Console, facts: Facts) -> None:
    wide, shown = console.width >= WIDE, facts["interruptions"][-SHOWN_COUNT:]
    table = _interruptions(shown, wide=wide, imported=facts["imported"])
    console.print(Padding(table, (0, 0, 0, 2)))
    for one in () if wide else shown:
        console.print(Padding(Text.assemble((f"#{one['id']} ", "bold"), _why(one)), (0, 0, 0, 2)))


def _recovered(one: Facts, *, imported: bool) -> str:
    if imported:
        return "-"
    return words.recovery_words(one) if one["parent"] is None else f"with {one['parent']}"


def _interruptions(
    shown: list[dict[str, typing.Any]], *, wide: bool, imported: bool = False
) -> Table:
    """Return a table of interruptions. A narrow output has no room for all of its columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("#", "at", "rank", *(["step"] if wide else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("what", "recovery"):
        table.add_column(name, no_wrap=True)
    for name in (*(["detected"] if wide else []), "MTTR", "repeated", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("why", overflow="fold")
    for one in shown:
        at_s = one["detected_s"] if one["fault_s"] is None else one["fault_s"]
        row = [
            str(one["id"]),
            words.duration(at_s),
            words.listed(one["ranks"]) or "-",
            *([f"{one['step']:,}"] if wide else []),
        ]
        row += [
            words.how(one),
            one["rung"] or "-",
            *([words.duration(words.detection_s(one))] if wide else []),
        ]
        row += [
            _recovered(one, imported=imported),
            _number(one["steps_repeated"]),
            _number(one["steps_lost"]),
        ]
        table.add_row(*map(Text, row), *([Text(_why(one))] if wide else []))
    return table


def _how_many(facts: Facts) -> str:
    """Return how many interruptions have a verdict; "" if all of them have."""
    roots = {one["id"] for one in facts["interruptions"] if one["parent"] is None}
    judged = roots & {one["interruption"] for one in facts["verdicts"]}
    return "" if judged == roots else f" (on {len(judged):,} of {len(roots):,} interruptions)"


def _verdict(one: Facts) -> Text:
    """Return why an interruption happened, how sure that is, and what to do.

    `outlast diagnose` on its folder of evidence says more.
    """
    number, action = one["interruption"], str(one.get("action", ""))
    do = f" To do: {action}." if action else ""
    return Text.assemble((f"#{number} ", "bold"), summary(one), (do, "dim"))


def _why(one: Facts) -> str:
    """Return the class of an interruption, and its reason or the last line of its error."""
    kind = "" if one["class"] == "unknown" else one["class"].replace("_", " ")
    return (
        ": ".join(
            part
            for part in (kind, one["reason"] or one["error"].strip().rpartition("\n")[2])
            if part
        )
        or "unknown"
    )
