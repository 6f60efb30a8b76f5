"""`outlast report`: where the time of a run went, and every interruption.

It is read from the ledger, at any time.

Clocks   `wall_s`, `rank_seconds` and ETTR count from launcher start to end, summed over the
         sessions of a resumed run. No process held ranks in between, so that time is apart as
         `downtime_s`, and `elapsed_s` is both. Times of interruptions are seconds since the run
         began, on the line of `elapsed_s`.
"""

from __future__ import annotations

import typing
from dataclasses import asdict

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from outlast.app import words
from outlast.app.status import OVER, STATE_STYLE
from outlast.app.words import Facts
from outlast.model.goodput import account, recovery
from outlast.model.records import SessionRecords
from outlast.model.terms import Cause
from outlast.model.verdict import summary
from outlast.runtime.ledger.view import RunView

SHOWN_COUNT = 20  # interruptions in the table; --json has all
BAR_COLUMNS = 32
WIDE = 100  # columns of the output from which explanations stand beside the figures
MEANING = {
    "startup": "from the start of the launcher until a rank runs the script",
    "productive": "steps that were kept, when they first ran",
    "data_wait": "waiting for a batch",
    "stall": "training stood still for a snapshot or a checkpoint",
    "repeated": "steps that were rolled back or ran again",
    "detection": "from a fault to its detection",
    "regroup": "from detection to the next process or group",
    "restore": "moving state back",
    "evaluation": "run.phase(...)",
    "other": "user code between steps",
    "degraded": "ranks that the run went on without",
    "shutdown": "after the last step",
}


def report_facts(view: RunView) -> dict[str, typing.Any]:
    """Return the JSON of `outlast report`."""
    records = view.records
    books = account(records, now_s=view.now_s)
    seconds = books.rank_seconds
    newest = records.sessions[-1]
    over_s = newest.session.over_s if view.now_s is None else view.now_s
    elapsed_s = max(books.wall_s, over_s - newest.began_s)
    return {
        "run": records.meta.run,
        "state": view.state,
        "reason": newest.session.reason,
        "path": str(view.path),
        "version": records.meta.version,
        "world_size": records.meta.world_size,
        "steps": view.step,
        "generation": records.newest_generation,
        "wall_s": books.wall_s,
        "elapsed_s": elapsed_s,
        "downtime_s": elapsed_s - books.wall_s,
        "calls_outlast": records.calls_outlast,
        "steps_seen": records.steps_seen,
        "ettr": books.ettr if records.is_measured else None,
        "ettr_training": books.ettr_training if records.is_measured else None,
        "productive_s": seconds[Cause.PRODUCTIVE] / max(1, books.world_size),
        "rank_seconds": {cause.value: value for cause, value in seconds.items()},
        "spare_seconds": books.spare_seconds,
        "step_median_s": _median_step_s(records.sessions),
        "mttr": asdict(recovery(one for one, _ in records.unique_interruptions())),
        "interruptions": records.interruptions(),
        "verdicts": [
            _recorded_verdict(event.data)
            for part in records.sessions
            for event in part.events
            if event.kind == "verdict" and isinstance(event.data.get("verdict"), dict)
        ],
        "warnings": [
            str(event.data.get("text", ""))
            for part in records.sessions
            for event in part.events
            if event.kind == "warning"
        ],
        "steps_lost_between_sessions": sum(_lost_before(part) for part in records.sessions),
        "sessions": [
            {
                "session": part.session.session,
                "pid": part.session.pid,
                "from_s": part.session.started_s - part.began_s,
                "to_s": part.session.over_s - part.began_s,
                "state": part.session.state,
                "exit_code": part.session.exit_code,
                "reason": part.session.reason,
                "from_step": part.resumed.get("step", 0),
                "steps_lost": _lost_before(part),
            }
            for part in records.sessions
        ],
    }


def show_report(console: Console, facts: Facts) -> None:
    """Show a run: the figures first, then where its time went, then every interruption."""
    _show_head(console, facts)
    total_s = sum(facts["rank_seconds"].values())
    console.print(
        f"\nWhere the rank-seconds went ({words.count(facts['world_size'], 'rank')} x"
        f" {words.duration(facts['wall_s'])})",
        style="bold",
    )
    console.print(Padding(_causes(console, facts, total_s), (0, 0, 0, 2)))
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
                f" (the last {SHOWN_COUNT}; {hidden:,} before them are in --json)"
                if hidden > 0
                else ""
            ),
            style="bold",
        )
        _show_interruptions(console, facts["interruptions"][-SHOWN_COUNT:])
    if facts["verdicts"]:
        console.print("\nVerdicts", style="bold")
        for one in facts["verdicts"][-SHOWN_COUNT:]:
            console.print(Padding(_verdict(one), (0, 0, 0, 2)))
    if facts["warnings"]:
        console.print("\nWarnings", style="bold")
        for text in dict.fromkeys(facts["warnings"]):
            console.print(Padding(Text(f"- {text}"), (0, 0, 0, 2)))


def _show_head(console: Console, facts: Facts) -> None:
    state = facts["state"]
    going = "" if state in OVER else " so far"
    console.print(
        Text.assemble(
            (facts["run"], "bold"),
            "  ",
            (state, STATE_STYLE.get(state, "")),
            f"  {_steps(facts)} on {words.count(facts['world_size'], 'rank')}"
            f" in {words.duration(facts['wall_s'])}{going}",
        )
    )
    if state == "lost":
        console.print(
            Text(
                "The launcher is gone, but the run has not ended. Continue it with"
                " `outlast run --resume --run-dir PATH` and the same script.",
                style=STATE_STYLE[state],
            )
        )
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
    if len(facts["sessions"]) > 1:
        pairs.add_row(
            "down",
            words.duration(facts["downtime_s"]),
            f"between {len(facts['sessions'])} launcher sessions; not in the figures here",
        )
    console.print(Padding(pairs, (0, 0, 0, 2)))


def _lost_before(part: SessionRecords) -> int:
    """Count the committed steps of earlier sessions that this one had to do again."""
    lost = part.resumed.get("steps_lost", 0)
    return lost if isinstance(lost, int) else 0


def _steps(facts: Facts) -> str:
    return words.count(facts["steps"], "step") if facts["steps_seen"] else "steps not seen"


def _ettr(facts: Facts) -> tuple[Text, str]:
    if facts["ettr"] is None:
        return Text("-", "bold"), "not known, because not all steps that stayed were seen"
    return (
        Text(words.percent(facts["ettr"]), "bold"),
        f"{words.percent(facts['ettr_training'])} without start-up and shutdown",
    )


def _cost(facts: Facts) -> tuple[str, str]:
    """Say how many steps there were, and what the interruptions cost of them."""
    if not facts["steps_seen"]:
        return "-", "not seen: the script calls neither outlast nor an optimizer of torch"
    unknown = any(one["steps_lost"] is None for one in facts["interruptions"])
    repeated, lost = (
        sum(one[key] or 0 for one in facts["interruptions"])
        for key in ("steps_repeated", "steps_lost")
    )
    between = facts["steps_lost_between_sessions"]
    cost = f"{repeated:,} repeated, {lost + between:,} lost"
    cost += f" ({between:,} of them between sessions)" if between else ""
    if unknown:
        cost = "steps lost: not known, the script's own checkpoint decides"
    by = "" if facts["calls_outlast"] else "; counted by calls of the optimizer"
    return f"{facts['steps']:,}", cost + _pace(facts) + by


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def _pace(facts: Facts) -> str:
    return (
        ""
        if facts["step_median_s"] is None
        else f", one takes {words.duration(facts['step_median_s'])} (median)"
    )


def _mttr(facts: Facts) -> tuple[Text, str]:
    mttr = facts["mttr"]
    many = words.count(mttr["count"], "interruption") + (
        f", {mttr['open_count']} not yet over" if mttr["open_count"] else ""
    )
    if mttr["median_range_s"] is None:
        unseen = "" if facts["steps_seen"] or not mttr["count"] else "; steps not seen"
        return Text("-", "bold"), many + unseen
    exact = all(mttr[name][0] == mttr[name][1] for name in ("median_range_s", "max_range_s"))
    unsure = "" if exact else "; a range where the time of a fault is unknown"
    return (
        Text(words.span(*mttr["median_range_s"]), "bold"),
        f"median; max {words.span(*mttr['max_range_s'])}; {many}{unsure}",
    )


def _causes(console: Console, facts: Facts, total_s: float) -> Table:
    blocks = console.encoding.lower().replace("-", "") == "utf8"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    for _ in range(2):
        table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    for cause, value in sorted(facts["rank_seconds"].items(), key=lambda item: -item[1]):
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
                MEANING[cause] if console.width >= WIDE else "",
            )
    table.add_row("total", words.duration(total_s), "100.0 %", "", "", style="bold")
    return table


def _show_interruptions(console: Console, some: list[dict[str, typing.Any]]) -> None:
    wide = console.width >= WIDE
    console.print(Padding(_interruptions(some, wide=wide), (0, 0, 0, 2)))
    for one in () if wide else some:
        console.print(Padding(Text.assemble((f"#{one['id']} ", "bold"), _why(one)), (0, 0, 0, 2)))


def _interruptions(some: list[dict[str, typing.Any]], *, wide: bool) -> Table:
    """Return a table of them. On a narrow output the less important columns are left out."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("#", "at", "rank", *(["step"] if wide else [])):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("what", "rung"):
        table.add_column(name, no_wrap=True)
    for name in (*(["detected"] if wide else []), "MTTR", "repeated", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("why", overflow="fold")
    for one in some:
        at_s = one["detected_s"] if one["fault_s"] is None else one["fault_s"]
        row = [
            str(one["id"]),
            words.duration(at_s),
            words.listed(one["ranks"]) or "-",
            *([f"{one['step']:,}"] if wide else []),
        ]
        row += [
            one["mechanism"].replace("_", " "),
            one["rung"] or "-",
            *([words.duration(words.detection_s(one))] if wide else []),
        ]
        row += [
            words.recovery_words(one) if one["parent"] is None else f"with {one['parent']}",
            _number(one["steps_repeated"]),
            _number(one["steps_lost"]),
        ]
        table.add_row(*map(Text, row), *([Text(_why(one))] if wide else []))
    return table


def _verdict(one: Facts) -> Text:
    """Say why an interruption happened, how sure that is, and what to do.

    `outlast diagnose` on its folder of evidence says more.
    """
    number, action = one["interruption"], str(one.get("action", ""))
    do = f" To do: {action}." if action else ""
    return Text.assemble((f"#{number} ", "bold"), summary(one), (do, "dim"))


def _why(one: Facts) -> str:
    kind = "" if one["class"] == "unknown" else one["class"].replace("_", " ")
    return (
        ": ".join(
            part
            for part in (kind, one["reason"] or one["error"].strip().rpartition("\n")[2])
            if part
        )
        or "unknown"
    )


def _recorded_verdict(data: typing.Any) -> dict[str, typing.Any]:
    """Return what an event of kind "verdict" says, and which interruption it is about."""
    return {**data["verdict"], "interruption": data["interruption"]}


def _median_step_s(sessions: tuple[SessionRecords, ...]) -> float | None:
    """Return the median of the buckets' medians, each weighted with its steps."""
    buckets = sorted(
        (bucket.median_s, bucket.to_step - bucket.from_step)
        for part in sessions
        for bucket in part.steps
    )
    half = sum(steps for _, steps in buckets) / 2
    for median_s, steps in buckets:
        half -= steps
        if half <= 0:
            return median_s
    return None
