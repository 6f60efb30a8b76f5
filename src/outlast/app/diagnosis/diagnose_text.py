"""A verdict on one screen.

It has the sentence, what to do, the evidence, how sure it is, what would refute it, and the next
test. `Facts` is common to the screen and the page. All of its texts are clean.
"""

from __future__ import annotations

import os
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outlast import __version__
from outlast.app import words
from outlast.app.diagnosis.diagnose_graph import Edge, graph, ranks
from outlast.diagnose.redact import clean
from outlast.diagnose.self_output import FIRST_WORDS, LAST_WORDS
from outlast.model.texts import cut_at_word
from outlast.runtime.evidence.reading import ReadDiagnosis

EVIDENCE_SHOWN_COUNT, NOTES_SHOWN_COUNT, SUSPECTS_SHOWN_COUNT, OTHERS_SHOWN_COUNT = 8, 5, 3, 3
NOTE_COLUMNS_MAX = 400
FILE_COLUMNS_MAX = 48
# those that count most first
ROLES = {"root": "bold red", "messenger": "yellow", "effect": "", "advice": "dim"}


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts to show. `verdict` is the JSON of `--json`."""

    verdict: dict[str, typing.Any]
    edges: tuple[Edge, ...]
    has_dumps: bool
    notes: tuple[str, ...]
    read: str

    def graph(self, *, boxes: bool) -> list[str]:
        """Return the lines of the graph of who waits for whom. `boxes`: with box characters."""
        if not self.has_dumps:
            return ["there were no flight-recorder dumps, which tell who waits for whom"]
        blamed, suspects = (
            [one["rank"] for one in self.verdict[key]] for key in ("ranks", "suspects")
        )
        return graph(self.edges, blamed=blamed, suspects=suspects, boxes=boxes)


def facts_of(diagnosis: ReadDiagnosis, verdict: dict[str, typing.Any]) -> Facts:
    """Return the facts of a diagnosis. Secrets are removed from its texts."""
    edges = (
        ()
        if diagnosis.blame is None
        else tuple((who, whom, clean(why)) for who, whom, why in diagnosis.blame.edges)
    )
    read = [words.count(diagnosis.dumps_count, "dump")] if diagnosis.dumps_count else []
    read += (
        [words.count(diagnosis.logs_count, "file") + f" ({size(diagnosis.read_bytes)})"]
        if diagnosis.logs_count
        else []
    )
    return Facts(
        verdict,
        edges,
        diagnosis.blame is not None,
        tuple(clean(note) for note in diagnosis.notes),
        " and ".join(read),
    )


def show(facts: Facts, *, explain: bool) -> None:
    """Print the diagnosis, without rich's markup: evidence may look like markup."""
    console = words.console_for(environment=os.environ)
    boxes = words.shows_blocks(console.encoding)
    with console.capture() as page:
        _head(console, facts.verdict)
        _evidence(console, facts.verdict["evidence"])
        _stacks(console, facts.verdict["stacks"])
        _timeline(console, facts.verdict["timeline"])
        _body(console, facts)
        if explain:
            console.print(Text("Who waits for whom", "bold"))
            for line in facts.graph(boxes=boxes):
                console.print(Text(f"  {line}"), soft_wrap=True)
            console.print()
        console.print(Text(f"{LAST_WORDS} {__version__}: {facts.read} read", "dim"))
    print("\n".join(line.rstrip() for line in page.get().splitlines()))
    sys.stdout.flush()


def headline(verdict: dict[str, typing.Any]) -> str:
    """Return a line such as `hbm (0.93), exception, rank 3 (0.90), gpu-12, 0000:3b:00.0`."""
    parts = [
        f"{verdict['class']} ({verdict['confidence']:.2f})",
        *([verdict["mechanism"].replace("_", " ")] if verdict["mechanism"] else []),
    ]
    parts += [_guilty(verdict["ranks"])] if verdict["ranks"] else []
    return ", ".join([*parts, *_few(verdict["nodes"]), *_few(verdict["devices"])])


def _guilty(blamed: Sequence[dict[str, typing.Any]]) -> str:
    """Return `rank 3 (0.90)`. Several ranks with the same confidence are named together."""
    sure = {round(one["confidence"], 2) for one in blamed}
    if len(sure) == 1:
        return f"{ranks(one['rank'] for one in blamed)} ({sure.pop():.2f})"
    said = [f"rank {one['rank']} ({one['confidence']:.2f})" for one in blamed]
    return ", ".join(said if len(said) <= 4 else [*said[:3], f"and {len(said) - 3} more ranks"])


def sure(verdict: dict[str, typing.Any]) -> str:
    """Return in words how likely the class is, and what else it may be."""
    others = [
        f"{one['class']} {one['confidence'] * 100:.0f} %"
        for one in verdict["others"][:OTHERS_SHOWN_COUNT]
    ]
    if verdict["class"] == "unknown":
        return "the evidence does not suffice for a class" + (
            f"; nearest: {', '.join(others)}" if others else ""
        )
    return f"{verdict['class']} {verdict['confidence'] * 100:.0f} %" + (
        f"; else {', '.join(others)}" if others else ""
    )


def place(evidence: dict[str, typing.Any]) -> str:
    """Return "FILE:LINE" of one piece of evidence; only the file if it has no line."""
    return str(evidence["file"]) + ("" if evidence["line"] is None else f":{evidence['line']}")


def size(count: int) -> str:
    """Return a number of bytes with a decimal unit, such as "1.5 MB"."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count} bytes"


def _head(console: Console, verdict: dict[str, typing.Any]) -> None:
    console.print(Text.assemble((FIRST_WORDS, "dim"), (headline(verdict), "bold")), soft_wrap=True)
    console.print(Text(f"\n{verdict['reason']}"))


def _evidence(console: Console, evidence: Sequence[dict[str, typing.Any]]) -> None:
    if not evidence:
        return
    console.print(Text("\nEvidence", "bold"))
    shown = chosen(evidence)
    wide = max(len(_end(place(one), FILE_COLUMNS_MAX)) for one in shown)
    for one in shown:
        role = one["role"]
        line = Text.assemble(
            f"  {_end(place(one), FILE_COLUMNS_MAX):<{wide}}  ",
            (f"{role:<9}", ROLES.get(role, "")),
            "  ",
        )
        line.append(cut_at_word(" ".join(one["text"].split()), max(20, console.width - len(line))))
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    if len(evidence) > len(shown):
        console.print(
            Text(
                f"  and {words.count(len(evidence) - len(shown), 'more line')} in --json and"
                " --html",
                "dim",
            )
        )


def _stacks(console: Console, stacks: Sequence[dict[str, typing.Any]]) -> None:
    for one in stacks:
        console.print(Text(f"\nStack of rank {one['rank']} (innermost first)", "bold"))
        for frame in one["frames"]:
            console.print(Text(f"  {frame}"), soft_wrap=True)


def _timeline(console: Console, moments: Sequence[dict[str, typing.Any]]) -> None:
    if not moments:
        return
    console.print(Text("\nThe decisive minute (UTC)", "bold"))
    for one in moments:
        who = one["node"] or "" if one["rank"] is None else f"rank {one['rank']}"
        head = f"  {clock(one['at_s'])}  {who:<12}  "
        text = cut_at_word(one["text"], max(20, console.width - len(head)))
        console.print(Text(head + text), no_wrap=True, overflow="ignore", crop=False)


def clock(at_s: float) -> str:
    """Return `2026-11-24 23:05:59`, or as much of a number as can be shown."""
    try:
        moment = datetime.fromtimestamp(at_s, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"{at_s:.0f}"
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def chosen(evidence: Sequence[dict[str, typing.Any]]) -> list[dict[str, typing.Any]]:
    """Return the evidence that counts most, in the order in which it was given."""
    order = {role: number for number, role in enumerate(ROLES)}
    best = sorted(
        range(len(evidence)), key=lambda at: (order.get(evidence[at]["role"], len(order)), at)
    )[:EVIDENCE_SHOWN_COUNT]
    return [evidence[at] for at in sorted(best)]


def _body(console: Console, facts: Facts) -> None:
    verdict = facts.verdict
    rows = [
        ("How sure", sure(verdict)),
        ("Refuted by", verdict["refuted_by"]),
        ("Next test", verdict["next_test"]),
    ]
    rows += [
        ("Innocent" if at == 0 else "", one["why"]) for at, one in enumerate(verdict["cleared"])
    ]
    suspects = verdict["suspects"]
    rows += [
        ("Suspect" if at == 0 else "", f"rank {one['rank']}: {one['reason']}")
        for at, one in enumerate(suspects[:SUSPECTS_SHOWN_COUNT])
    ]
    if len(suspects) > SUSPECTS_SHOWN_COUNT:
        rows.append(("", f"and {ranks(one['rank'] for one in suspects[SUSPECTS_SHOWN_COUNT:])}"))
    notes = [note for note in facts.notes if note not in verdict["reason"]]
    shown = [cut_at_word(note, NOTE_COLUMNS_MAX) for note in notes[:NOTES_SHOWN_COUNT]]
    rows += [("Note" if at == 0 else "", note) for at, note in enumerate(shown)]
    if len(notes) > NOTES_SHOWN_COUNT:
        rows.append(
            ("", f"and {words.count(len(notes) - NOTES_SHOWN_COUNT, 'more note')} in --html")
        )
    width = max(len(name) for name, text in rows if text)
    console.print()
    _grid(console, [("Do", verdict["action"])], width)
    for at, command in enumerate(verdict["commands"]):
        said = Text("Run".ljust(width + 2) if at == 0 else " " * (width + 2), style="bold")
        # A command that is broken into two lines cannot be pasted.
        console.print(said.append(command, style="not bold"), soft_wrap=True)
    _grid(console, rows, width)
    console.print()


def _grid(console: Console, rows: Sequence[tuple[str, str]], width: int) -> None:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True, min_width=width)
    table.add_column(overflow="fold")
    for name, text in rows:
        if text:
            table.add_row(Text(name), Text(text))
    console.print(table)


def _few(names: Sequence[str]) -> list[str]:
    return list(names) if len(names) <= 3 else [*names[:2], f"and {len(names) - 2} more"]


def _end(text: str, columns: int) -> str:
    return text if len(text) <= columns else "..." + text[3 - columns :]
