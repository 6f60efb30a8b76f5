"""`outlast status`: how a run stands now.

It is read from the ledger, so it works on a live, an ended and a lost run.
"""

from __future__ import annotations

import math
import typing

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from outlast.app import words
from outlast.app.words import Facts
from outlast.model.goodput import account
from outlast.runtime.ledger.view import RunView

STATE_STYLE = {
    "training": "green",
    "ending": "green",
    "ended": "green",
    "starting": "cyan",
    "regrouping": "yellow",
    "stopped": "yellow",
    "failed": "bold red",
    "lost": "bold red",
    "hot": "cyan",
    "warm": "cyan",
}
LAST_COUNT = 5
OVER = ("ended", "failed", "stopped", "lost")


def status_facts(view: RunView) -> dict[str, typing.Any]:
    """Return the JSON of `outlast status`.

    It is what the launcher said last. In a run that is over, no rank is shown as training.
    """
    records, state = view.records, view.state
    said: dict[str, typing.Any] = dict(_sound(records.snapshot) or {})
    books = account(records, now_s=view.now_s)
    newest = records.sessions[-1]
    alive = [life for life in newest.lives if life.ended_s is None]
    facts: dict[str, typing.Any] = {
        "generation": records.newest_generation,
        "step": view.step,
        "steps_per_s": 0.0,
        "workers": [
            {"rank": life.rank, "pid": life.pid, "node": life.node, "state": "starting"}
            for life in alive
            if life.rank >= 0
        ],
        "spares": [
            {"pid": life.pid, "kind": life.kind, "node": life.node}
            for life in alive
            if life.rank < 0
        ],
        "reason": newest.session.reason,
    } | said
    facts = (
        {"run": records.meta.run, "state": state}
        | facts
        | {"run": records.meta.run, "state": state}
    )
    facts |= {
        "path": str(view.path),
        "world_size": records.meta.world_size,
        "session": newest.session.session,
    }
    facts |= {
        "steps_seen": records.steps_seen,
        "ettr": books.ettr if records.is_measured else None,
        "wall_s": round(books.wall_s, 6),
        "interruptions": records.interruptions()[-LAST_COUNT:],
    }
    if view.is_over:  # what the launcher said last is up to a second older than the end
        facts |= {"generation": records.newest_generation, "step": view.step, "steps_per_s": 0.0}
        facts["workers"] = [
            {**worker, "state": "lost" if state == "lost" else "gone"}
            for worker in facts["workers"]
        ]
        facts["spares"], facts["waits_for"] = [], None
        facts["reason"] = newest.session.reason or facts["reason"]
    return facts


_NUMBERS = ("step", "generation", "steps_per_s", "wall_s", "ettr", "session")
_TABLES: dict[str, dict[str, type]] = {
    "workers": {"rank": int, "pid": int, "node": str, "state": str},
    "spares": {"pid": int, "kind": str, "node": str},
}


def _sound(snapshot: Facts | None) -> Facts | None:
    """Return what the launcher said last, or None if no launcher would say it in this form."""
    if snapshot is None:
        return None
    numbers = (snapshot[name] for name in _NUMBERS if snapshot.get(name) is not None)
    if not all(isinstance(one, int | float) and math.isfinite(one) for one in numbers):
        return None
    for name, columns in _TABLES.items():
        rows = snapshot.get(name, [])
        if not isinstance(rows, list) or not all(
            isinstance(row, dict)
            and all(isinstance(row.get(key), of) for key, of in columns.items())
            for row in rows
        ):
            return None
    return snapshot if _is_sound_wait(snapshot.get("waits_for")) else None


def _is_sound_wait(wait: object) -> bool:
    """Return True if this is what a launcher says of a wait."""
    if wait is None:
        return True
    if not isinstance(wait, dict) or not isinstance(wait.get("what"), str):
        return False
    left_s = wait.get("left_s")
    return left_s is None or (isinstance(left_s, int | float) and math.isfinite(left_s))


def show_status(console: Console, facts: Facts) -> None:
    """Show the same facts to people."""
    console.print(headline(facts))
    if facts["state"] == "lost":
        console.print(
            "The launcher is gone, but the run has not ended. Continue it with"
            " `outlast run --resume --run-dir PATH` and the same script.",
            style="bold red",
        )
    elif facts.get("waits_for"):
        console.print(Text(words.waits(facts["waits_for"]), style="yellow"))
    elif facts["state"] in ("failed", "stopped") and facts["reason"]:
        console.print(
            Text(f"{facts['state']}: {facts['reason']}", style=STATE_STYLE[facts["state"]])
        )
    console.print()
    console.print(Padding(_processes(facts), (0, 0, 0, 2)))
    if facts["interruptions"]:
        console.print("\nLast interruptions")
        console.print(Padding(last_interruptions(facts), (0, 0, 0, 2)))


def headline(facts: Facts) -> Text:
    """Return the first line of the status.

    It is `training  step 1,204   9.6 steps/s   ETTR 97.1 % over 2 sessions   1 m 02 s
    generation 3`, after the run's name if there is one.
    """
    unseen = facts["state"] != "starting" and not facts.get("steps_seen", True)
    step = "steps not seen" if unseen else f"step {facts['step']:,}"
    parts = [step]
    if facts.get("steps_per_s"):
        parts.append(f"{facts['steps_per_s']:.3g} steps/s")
    # of the launcher: those before a --resume count
    over = f" over {facts['session']} sessions" if facts.get("session", 1) > 1 else ""
    if facts.get("ettr") is not None:
        parts.append(f"ETTR {words.percent(facts['ettr'])}{over}")
    parts += [
        words.duration(facts.get("wall_s") or 0.0),
        f"generation {facts['generation']}",
    ]
    line = Text.assemble(
        (str(facts["run"]), "bold"),
        "  ",
        (facts["state"], STATE_STYLE.get(facts["state"], "")),
        "  ",
    )
    return line.append("   ".join(parts))


def last_interruptions(facts: Facts) -> RenderableType:
    """Return one line for each: when it came, what it was, and how the run went on."""
    lines = []
    for one in facts["interruptions"][-LAST_COUNT:]:
        at_s = one["detected_s"] if one.get("fault_s") is None else one["fault_s"]
        over = one.get("resumed_s") is not None
        what = f"{words.ranks(one)}, {str(one['mechanism']).replace('_', ' ')}"
        outcome = (
            f"all processes run again by {one.get('rung')}"
            if over and not one.get("steps_seen", True)
            else f"back after {words.recovery_words(one)}"
            + (f" by {one['rung']}" if one.get("rung") else "")
            if over
            else "not yet back"
        )
        lines.append(
            Text.assemble(
                (f"#{one['id']}", "bold"),
                f"  at {words.duration(at_s)}  {what}: ",
                (outcome, "green" if over else "yellow"),
            )
        )
    return Group(*lines)


def _processes(facts: Facts) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("rank", justify="right")
    table.add_column("pid", justify="right")
    table.add_column("node")
    table.add_column("state")
    for worker in sorted(facts["workers"], key=lambda worker: worker["rank"]):
        table.add_row(
            str(worker["rank"]),
            str(worker["pid"]),
            worker["node"],
            Text(worker["state"], STATE_STYLE.get(worker["state"], "")),
        )
    for spare in facts["spares"]:
        table.add_row(
            "spare",
            str(spare["pid"]),
            spare["node"],
            Text(spare["kind"], STATE_STYLE.get(spare["kind"], "")),
        )
    return table
