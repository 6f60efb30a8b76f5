"""`outlast status`: the present state of a run.

It is read from the ledger, so it works on a live, an ended and a lost run.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Iterable, Mapping

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from outlast.app import words
from outlast.app.diagnosis.diagnose_graph import spans
from outlast.app.words import Facts
from outlast.model.records import LEADS, Records
from outlast.model.verdict import summary
from outlast.planner.foreign_records import is_imported
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
LISTED_MAX_COUNT = 64  # ranks; the workers of more are listed with --workers only
OVER = ("ended", "failed", "stopped", "lost")  # states after which no step follows


def status_facts(view: RunView, *, workers: bool = False) -> dict[str, typing.Any]:
    """Return the JSON of `outlast status`, from the launcher's last snapshot and the ledger.

    In a run that is over, no rank is shown as training.

    workers   list every worker; otherwise a run of more than LISTED_MAX_COUNT ranks has None there
    """
    records, state = view.records, view.state
    said: dict[str, typing.Any] = dict(_sound(records.snapshot) or {})
    books = view.books
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
        "waits_for": {"what": _FIRST_REPORT, "left_s": None} if records.snapshot is None else None,
    } | said
    # Run and state come first in the JSON. They are the ledger's, whatever the launcher said.
    known = {"run": records.meta.run, "state": state}
    facts = known | facts | known
    facts |= {
        "path": str(view.path),
        "copy_of_ledger": view.copy_of_ledger,
        "damage": records.damage,
        "imported": is_imported(records),
        "world_size": records.world_size,
        "session": newest.session.session,
    }
    facts |= {
        "steps_seen": records.steps_seen,
        "ettr": books.ettr if records.is_measured else None,
        "wall_s": round(books.wall_s, 6),
        "interruptions": _with_verdicts(records),
        "target_step": facts.get("target_step"),
        "time_left_s": facts.get("time_left_s"),
        "logged": facts.get("logged"),
        "last_checkpoint": _last_checkpoint(records),
        "redundancy": facts.get("redundancy"),
        "coordinator": _coordinator(records),
    }
    if view.is_over:  # what the launcher said last is up to a second older than the end
        facts |= {"generation": records.newest_generation, "step": view.step, "steps_per_s": 0.0}
        facts["workers"] = [
            {**worker, "state": "lost" if state == "lost" else "gone"}
            for worker in facts["workers"]
        ]
        facts["spares"], facts["waits_for"] = [], None
        facts["time_left_s"] = facts["redundancy"] = None
        facts["reason"] = newest.session.reason or facts["reason"]
    facts["workers"] = [{**one, "log": one.get("log")} for one in facts["workers"]]
    facts["nodes"] = nodes_of(facts)
    if len(facts["workers"]) > LISTED_MAX_COUNT and not workers:
        facts["workers"] = None
    return facts


def nodes_of(facts: Facts) -> list[dict[str, typing.Any]]:
    """Return a row for each node: its ranks, the number of ranks in each state, and its spares."""
    rows: dict[str, dict[str, typing.Any]] = {}

    def row(node: str) -> dict[str, typing.Any]:
        return rows.setdefault(node, {"node": node, "ranks": [], "states": {}, "spares": 0})

    for worker in facts["workers"]:
        one = row(worker["node"])
        one["ranks"].append(worker["rank"])
        one["states"][worker["state"]] = one["states"].get(worker["state"], 0) + 1
    for spare in facts["spares"]:
        row(spare["node"])["spares"] += 1
    for one in rows.values():
        one["ranks"].sort()
    return sorted(rows.values(), key=lambda one: (one["ranks"][:1] or [math.inf], one["node"]))


def _with_verdicts(records: Records) -> list[dict[str, object]]:
    """Return the last interruptions, each with its verdict as one line, or None."""
    # `unique_interruptions` renumbers ids that a later session gave again. So a verdict is found by
    # its session and its old id.
    said: dict[tuple[int, object], str] = {}
    for part in records.sessions:
        for event in part.events:
            verdict = event.data.get("verdict")
            if event.kind == "verdict" and isinstance(verdict, Mapping):
                said[part.session.session, event.data.get("interruption")] = summary(verdict)
    old = [
        (part.session.session, one.id) for part in records.sessions for one in part.interruptions
    ]
    both = list(zip(old, records.unique_interruptions(), strict=True))
    return [
        one.public(began_s=began_s) | {"verdict": said.get(key)}
        for key, (one, began_s) in both[-LAST_COUNT:]
    ]


def _coordinator(records: Records) -> dict[str, typing.Any] | None:
    """Return the node that leads, since when it leads, and the voters; None on one node."""
    part = records.sessions[-1]
    for event in reversed(part.events):
        if event.kind == LEADS:
            voters = event.data.get("voters")
            return {
                "node": str(event.data.get("node")),
                "voters": [str(one) for one in voters] if isinstance(voters, list) else [],
                "since_s": round(event.at_s - part.began_s, 6),
            }
    return None


def _last_checkpoint(records: Records) -> dict[str, typing.Any] | None:
    """Return the newest checkpoint that was completed, or None."""
    for part in reversed(records.sessions):
        for event in reversed(part.events):
            step = event.data.get("step")
            if event.kind == "checkpoint" and isinstance(step, int):
                at_s = round(event.at_s - part.began_s, 6)
                return {"step": step, "at_s": at_s, "folder": event.data.get("folder")}
    return None


# what a run waits for while its launcher has written no snapshot
_FIRST_REPORT = "the first report of its launcher, which has just begun"
_NUMBERS = ("step", "time_left_s", "generation", "steps_per_s", "wall_s", "ettr", "session")
_TABLES: dict[str, dict[str, type]] = {
    "workers": {"rank": int, "pid": int, "node": str, "state": str},
    "spares": {"pid": int, "kind": str, "node": str},
}
_OBJECTS = ("logged", "redundancy")


def _sound(snapshot: Facts | None) -> Facts | None:
    """Return the launcher's last snapshot, or None if its form is not valid."""
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
    if not all(isinstance(row.get("log"), str | None) for row in snapshot.get("workers", [])):
        return None
    if not _is_sound_outlook(snapshot):
        return None
    return snapshot if _is_sound_wait(snapshot.get("waits_for")) else None


def _is_sound_outlook(snapshot: Facts) -> bool:
    """Return True if the target, the loss and the copies of a snapshot have a valid form."""
    target = snapshot.get("target_step")
    if target is not None and not (isinstance(target, int) and target > 0):
        return False
    logged, redundancy = (snapshot.get(name) or {} for name in _OBJECTS)
    if not isinstance(logged, dict) or not isinstance(redundancy, dict):
        return False
    values = logged.get("values", {})
    return (
        isinstance(values, dict)
        and all(isinstance(one, int | float) for one in values.values())
        and all(
            isinstance(redundancy.get(name) or 0, int)
            for name in ("copies", "nodes", "kept_step", "nodes_to_lose")
        )
    )


def _is_sound_wait(wait: object) -> bool:
    """Return True if the wait of a snapshot has a valid form."""
    if wait is None:
        return True
    if not isinstance(wait, dict) or not isinstance(wait.get("what"), str):
        return False
    left_s = wait.get("left_s")
    return left_s is None or (isinstance(left_s, int | float) and math.isfinite(left_s))


def show_status(console: Console, facts: Facts) -> None:
    """Show the same facts to people."""
    console.print(headline(facts, apart=True))
    if facts["damage"]:
        console.print(Text(facts["damage"], style="bold red"))
    if facts["copy_of_ledger"]:
        console.print(Text(facts["copy_of_ledger"]["note"], style="yellow"))
    if facts["state"] == "lost":
        console.print(Text(words.LAUNCHER_GONE, style=STATE_STYLE["lost"]))
    elif facts.get("waits_for"):
        console.print(Text(words.waits(facts["waits_for"]), style="yellow"))
    elif facts["state"] in ("failed", "stopped") and facts["reason"]:
        console.print(
            Text(f"{facts['state']}: {facts['reason']}", style=STATE_STYLE[facts["state"]])
        )
    if facts["target_step"]:
        blocks = words.shows_blocks(console.encoding)
        console.print(progress_line(facts, console.width, blocks=blocks))
    checkpoint = checkpoint_words(facts) if facts["last_checkpoint"] else ""
    kept = [said for said in (checkpoint, copies_words(facts["redundancy"])) if said]
    if kept:
        console.print(Text("  " + "   ".join(kept)))
    if facts["coordinator"]:
        console.print(Text(f"  {leader_words(facts['coordinator'])}"))
    console.print()
    console.print(Padding(_processes(facts), (0, 0, 0, 2)))
    if logs := log_lines(facts["workers"] or ()):
        console.print("\nLogs (stdout.log and stderr.log)")
        for line in logs:
            console.print(Text(f"  {line}"), soft_wrap=True)  # so that a path can be copied
    if facts["interruptions"]:
        console.print("\nLast interruptions")
        console.print(Padding(last_interruptions(facts), (0, 0, 0, 2)))


def headline(facts: Facts, *, room: int | None = None, apart: bool = False) -> Text:
    """Return the first line of the status.

    It is `training  step 1,204 of 5,000   9.6 steps/s   loss 2.31   ETTR 97.1 % over 2 sessions
    1 m 02 s   6 m 40 s left   generation 3`, after the run's name if there is one.

    room    the columns of a view that has a separate line for the generation. The name is cut to
            fit. None: there is no such view
    apart   True if `progress_line` shows the step and the time left, once the target is known
    """
    own_line = apart and bool(facts.get("target_step"))
    parts = [] if own_line else [_step_words(facts)]
    if facts.get("steps_per_s"):
        parts.append(f"{facts['steps_per_s']:.3g} steps/s")
    if (logged := logged_words(facts)) is not None:
        parts.append(logged)
    # launcher sessions: a run that was resumed has had several
    over = f" over {facts['session']} sessions" if facts.get("session", 1) > 1 else ""
    if facts.get("ettr") is not None:
        parts.append(f"ETTR {words.percent(facts['ettr'])}{over}")
    parts.append(words.duration(facts.get("wall_s") or 0.0))
    if not own_line and facts.get("time_left_s"):
        parts.append(f"{words.long_duration(facts['time_left_s'])} left")
    if room is None:
        parts.append(f"generation {facts['generation']}")
    rest = "   ".join(parts)
    name, state = str(facts["run"]), str(facts["state"])
    if room is not None:
        name = cut(name, room - len(state) - len(rest) - 4)
    line = Text.assemble(
        (name, "bold"), "  " if name else "", (state, STATE_STYLE.get(state, "")), "  "
    )
    return line.append(rest)


_STAMP = re.compile(r"^[0-9]{8}T[0-9]{6}Z-")
NAME_LEAST_COUNT = 8  # a name that is cut to fewer characters is not shown


def cut(name: str, room: int) -> str:
    """Return a name in at most `room` characters, or "" if too few of them fit.

    The time at the beginning of the name is cut first, because readers need it least.
    """
    if len(name) > room:
        name = _STAMP.sub("", name)
    if len(name) <= room:
        return name
    return name[: room - 3] + "..." if room >= NAME_LEAST_COUNT else ""


def _step_words(facts: Facts) -> str:
    if facts["state"] != "starting" and not facts.get("steps_seen", True):
        return "steps not seen"
    target = facts.get("target_step")
    return f"step {facts['step']:,}" + (f" of {target:,}" if target else "")


def logged_words(facts: Facts) -> str | None:
    """Return the loss, or the first value that the script logs if it logs no loss."""
    values: dict[str, float] = dict((facts.get("logged") or {}).get("values") or {})
    if not values:
        return None
    name = next((one for one in values if "loss" in one.lower()), next(iter(values)))
    value = values[name]
    return f"{name} {value:.4g}"


def progress_line(facts: Facts, room: int, *, blocks: bool) -> Text:
    """Return `  step 1,204 of 5,000  ####------  24.0 %   6 m 40 s left`.

    blocks   the terminal can show lines for the bar
    """
    step, target = facts["step"], facts["target_step"]
    share = min(1.0, step / target)
    left_s = facts.get("time_left_s")
    before = f"  {_step_words(facts)}  "
    after = f"  {words.percent(share)}"
    if left_s:
        after += f"   {words.long_duration(left_s)} left"
    columns = min(40, room - len(before) - len(after))
    if columns < 5:
        return Text(before.rstrip() + after)
    done = int(share * columns)
    return Text.assemble(
        before,
        (("\N{BOX DRAWINGS HEAVY HORIZONTAL}" if blocks else "#") * done, "green"),
        (("\N{BOX DRAWINGS LIGHT HORIZONTAL}" if blocks else "-") * (columns - done), "dim"),
        after,
    )


def checkpoint_words(facts: Facts) -> str:
    """Return `checkpoint: step 1,200, 12.0 s ago`."""
    last = facts["last_checkpoint"]
    ago_s = (facts.get("wall_s") or 0.0) - last["at_s"]
    return f"checkpoint: step {last['step']:,}, {words.duration(max(0.0, ago_s))} ago"


def copies_words(redundancy: Facts | None) -> str:
    """Return `4 copies of the state on 1 node`, or "" where that is not known.

    The text also names the copy in shared memory, if there is one. If other nodes keep
    copies or parity of sharded state, it says how many nodes can be lost now.
    """
    if redundancy and redundancy.get("nodes_to_lose") is not None:
        match redundancy["nodes_to_lose"]:
            case 0:
                return "no node can be lost now: other nodes could not restore its images"
            case 1:
                return "any one node can be lost now: other nodes can restore its images"
            case count:
                return f"any {count} nodes can be lost now: other nodes can restore their images"
    if not redundancy or not redundancy.get("copies"):
        return ""
    copies = words.count(redundancy["copies"], "copy", "copies")
    kept_step = redundancy.get("kept_step")
    kept = f", one of step {kept_step:,} in shared memory" if kept_step else ""
    return f"{copies} of the state on {words.count(redundancy['nodes'], 'node')}{kept}"


def leader_words(coordinator: Facts) -> str:
    """Return `led by node a; voters: a, b, c`."""
    voters = ", ".join(coordinator["voters"])
    others = f"voters: {voters}" if voters else "no other node can take over"
    return f"led by node {coordinator['node']}; {others}"


def log_lines(workers: Iterable[Facts]) -> list[str]:
    """Return where the ranks' logs are, such as `ranks 0-3 on a  /runs/x/.../attempt_0/{0,1,2,3}`.

    The braces are those of a shell. There are no lines without files, or if it is not known yet.
    """
    placed: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for one in workers:
        if one["log"]:
            parent, _, name = one["log"].rpartition("/")
            placed.setdefault((one["node"], parent), []).append((one["rank"], name))
    lines = []
    for (node, parent), some in placed.items():
        names = [name for _, name in sorted(some)]
        last = names[0] if len(names) == 1 else f"{{{','.join(names)}}}"
        who = f"{'rank' if len(some) == 1 else 'ranks'} {spans(rank for rank, _ in some)}"
        lines.append(f"{who} on {node or 'this node'}  {parent}/{last}")
    return lines


def last_line(facts: Facts) -> Text:
    """Return the newest interruption with its verdict in one line."""
    one = facts["interruptions"][-1]
    line = _interruption_line(one, facts, with_time=False)
    if one.get("verdict"):
        line.append(f". {one['verdict']}")
    return line


def last_interruptions(facts: Facts) -> RenderableType:
    """Return one line for each interruption: its time, its kind, and how the run went on.

    The verdict on it, if there is one, comes below it.
    """
    lines = []
    for one in facts["interruptions"][-LAST_COUNT:]:
        lines.append(_interruption_line(one, facts))
        if one.get("verdict"):
            lines.append(Text(f"    {one['verdict']}", "dim"))
    return Group(*lines)


def _interruption_line(one: Facts, facts: Facts, *, with_time: bool = True) -> Text:
    at_s = one["detected_s"] if one.get("fault_s") is None else one["fault_s"]
    over = one.get("resumed_s") is not None
    what = f"{words.ranks(one)}, {words.how(one)}"
    left = "did not come back" if facts["state"] in OVER else "not yet back"
    outcome = words.outcome(one) if over else "" if facts.get("imported") else left
    return Text.assemble(
        (f"#{one['id']}", "bold"),
        f"  at {words.duration(at_s)}" if with_time else "",
        f"  {what}{': ' if outcome else ''}",
        (outcome, "green" if over else "yellow"),
    )


def _processes(facts: Facts) -> Table:
    """Return the workers by node, or only the nodes if there are too many workers to list."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("node")
    if facts["workers"] is None:
        table.add_column("ranks")
        table.add_column("state")
        for one in facts["nodes"]:
            states = [f"{count} {state}" for state, count in one["states"].items()]
            if one["spares"]:
                states.append(words.count(one["spares"], "spare"))
            table.add_row(one["node"], spans(one["ranks"]), words.listed(states))
        return table
    table.add_column("rank", justify="right")
    table.add_column("pid", justify="right")
    table.add_column("state")
    order = {one["node"]: at for at, one in enumerate(facts["nodes"])}
    rows = [(order[one["node"]], 0, one["rank"], one) for one in facts["workers"]]
    rows += [(order[one["node"]], 1, at, one) for at, one in enumerate(facts["spares"])]
    before = -1
    for node, kind, _, one in sorted(rows, key=lambda row: row[:3]):
        state = one["kind"] if kind else one["state"]
        table.add_row(
            (one["node"] or "-") if node != before else "",
            "spare" if kind else str(one["rank"]),
            str(one["pid"] or "-"),  # 0: its process is being started
            Text(state, STATE_STYLE.get(state, "")),
        )
        before = node
    return table
