"""The page of a run as HTML: one file to mail, and the parts that `outlast serve` puts together.

Jinja escapes every value that goes into a template. Only drawings of svg.py are marked as safe, and
they are made of numbers.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Protocol

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from outlast import __version__
from outlast.app import words
from outlast.app.page import svg
from outlast.app.page.curves import Curve, Value, averaged
from outlast.app.page.failed import back_words, failed
from outlast.app.page.health import NodeHealth, RankHealth
from outlast.app.page.pace import ROWS_MOST as TABLE_ROWS
from outlast.app.page.pace import PacePoint, merged
from outlast.app.page.page_model import Page
from outlast.app.words import Facts
from outlast.diagnose.redact import clean
from outlast.diagnose.self_output import REPORT_GENERATOR
from outlast.model.verdict import summary

MAILED_MOST = 100  # interruptions in the file; the newest ones
NODES_IN_GROUP = 64
TABLES_MOST = 1024  # ranks up to which each has a row of a table in the file
RECOVERY = (
    ("detection", "fault_s", "detected_s"),
    ("leaving", "detected_s", "left_s"),
    ("regroup", "left_s", "regrouped_s"),
    ("restore", "regrouped_s", "restored_s"),
    ("step", "restored_s", "resumed_s"),
)
# the parts of the page of a run, in order: the template part_<name>.html, and its heading
PARTS = {
    "answers": "In short",
    "timeline": "Ranks over time",
    "pace": "Steps per second",
    "curves": "Logged values",
    "losses": "Where the time went",
    "interruptions": "Interruptions",
    "nodes": "Health by node",
    "grid": "All nodes",
    "advice": "What would have helped",
    "warnings": "Warnings",
}


class PageLinks(Protocol):
    """The targets of the links of a page: places in the same file, or other pages."""

    def node(self, name: str) -> str: ...

    def rank(self, rank: int) -> str: ...

    def interruption(self, number: int) -> str: ...


class InFile:
    """Links to places in the same file. A missing place is replaced by the nearest one."""

    is_file = True

    def __init__(self, page: Page) -> None:
        self._nodes = {one.name for one in page.nodes} if len(page.nodes) > 1 else set()
        self._home = {one.rank: one.node for node in page.nodes for one in node.ranks}
        self._quiet = {one.rank for node in page.nodes for one in node.ranks if is_brief(page, one)}
        self._shown = {one["id"] for one in page.report["interruptions"][-MAILED_MOST:]}

    def node(self, name: str) -> str:
        return "#" + node_id(name) if name in self._nodes else "#nodes"

    def rank(self, rank: int) -> str:
        known = rank in self._home and rank not in self._quiet
        return f"#rank-{rank}" if known else self.node(self._home.get(rank, ""))

    def interruption(self, number: int) -> str:
        return f"#interruption-{number}" if number in self._shown else "#interruptions"


def node_id(name: str) -> str:
    """Return the id of a node's element: no two names share one."""
    return "node-" + re.sub(r"[^A-Za-z0-9-]", lambda sign: f".{ord(sign[0]):x}.", name)


def is_brief(page: Page, rank: RankHealth) -> bool:
    """Return whether a rank gets only a few words: the run has many, and it had no trouble."""
    many = page.report["world_size"] > TABLES_MOST
    return many and not rank.interruptions and rank.processes <= 1


def report_page(page: Page) -> str:
    """Return the page as one file: no script, and no reference to the outside."""
    return (
        environment()
        .get_template("report.html")
        .render(
            page=page, links=InFile(page), most=MAILED_MOST, style=shipped("page.css"), parts=PARTS
        )
    )


def part(name: str, page: Page, links: PageLinks, *, most: int) -> str:
    """Return one of PARTS. `most` is how many interruptions are shown."""
    return environment().get_template(f"part_{name}.html").render(page=page, links=links, most=most)


def shipped(name: str) -> Markup:
    """Return a style sheet or a script of the package."""
    made = environment()
    assert made.loader is not None
    return Markup(made.loader.get_source(made, name)[0])  # our own file, no value of a run


@functools.cache
def environment() -> Environment:
    """Return the templates, with the functions that they call."""
    made = Environment(
        loader=PackageLoader("outlast.app.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "bytes": short_size,
        "clean": lambda text: clean(str(text), lines=True),
        "count": words.count,
        "held_ranks": words.held_ranks,
        "duration": words.duration,
        "percent": words.percent,
        "plain": lambda name: str(name).replace("_", " "),
        "failed": failed,
        "back": back_words,
        "cost": words.cost_words,
        "summary": summary,
        "ticks": ticks,
        "utc": utc,
        "class_name": lambda name: re.sub(r"[^a-z]", "-", str(name).lower()),
    }
    made.globals |= {
        "svg": svg,
        "version": __version__,
        "generator": REPORT_GENERATOR,
        "at_s": at_s,
        "stages_of": stages_of,
        "paced": paced,
        "few_of": few_of,
        "top_of": top_of,
        "groups_of": groups_of,
        "node_id": node_id,
        "is_brief": is_brief,
        "usual_state": usual_state,
    }
    return made


def at_s(one: Facts) -> float:
    """Return when an interruption began, as exactly as that is known."""
    found: float = one["detected_s"] if one["fault_s"] is None else one["fault_s"]
    return found


def stages_of(one: Facts) -> list[tuple[str, float]]:
    """Return the stages of a recovery whose begin and end are known, with their seconds."""
    return [
        (name, max(0.0, one[end] - one[begin]))
        for name, begin, end in RECOVERY
        if one[begin] is not None and one[end] is not None
    ]


def paced(points: Sequence[PacePoint]) -> tuple[PacePoint, ...]:
    """Return the few rows of the table beside the curve."""
    return merged(points, TABLE_ROWS)


def few_of(curve: Curve) -> tuple[Value, ...]:
    """Return the few rows of the table beside the curve of logged values."""
    return averaged(curve.values, TABLE_ROWS)


def top_of(points: Iterable[PacePoint]) -> float:
    """Return a round number for the upper edge of the curve. No rate is above it."""
    most = max((one.per_s for one in points), default=0.0)
    if most <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(most))
    return next(step * size for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if step * size >= most)


def usual_state(nodes: Sequence[NodeHealth]) -> str:
    """Return the state of most ranks."""
    return Counter(one.state for node in nodes for one in node.ranks).most_common(1)[0][0]


def groups_of(nodes: Sequence[NodeHealth]) -> list[Sequence[NodeHealth]]:
    """Return the nodes in groups that one can open."""
    return [nodes[at : at + NODES_IN_GROUP] for at in range(0, len(nodes), NODES_IN_GROUP)]


def utc(wall_s: float) -> str:
    """Write a time of the wall clock with its zone."""
    return f"{datetime.fromtimestamp(wall_s, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def ticks(text: str) -> Markup:
    """Escape a text, and show the parts between backticks as code."""
    return Markup(re.sub(r"`([^`\n]{1,200})`", r"<code>\1</code>", str(escape(text))))


def short_size(size_bytes: float) -> str:
    """Write a number of bytes as 312 B, 4.1 kB, 23 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:,.0f} TB"


def page_title(report: Mapping[str, Any]) -> str:
    """Return the title of the window: the state comes first, because it may be cut off."""
    return f"{report['state']}: {report['run']}"
