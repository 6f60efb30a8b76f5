"""The page of a run as Markdown, for an issue, a pull request or a chat.

Every text of the run is escaped: it can make no heading, no link, no image, no table cell and no
HTML. Texts that are code are fenced by more backticks than they hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from outlast import __version__
from outlast.app import words
from outlast.app.page.failed import back_words, failed
from outlast.app.page.page_html import at_s, few_of, paced, stages_of, utc
from outlast.app.page.page_model import Page
from outlast.app.words import Facts
from outlast.diagnose.redact import clean
from outlast.model.verdict import summary

SHOWN_MOST = 20  # interruptions; the newest ones
NODES_MOST = 20
BAR_COLUMNS = 20
_SPECIAL = re.compile(r"([\\`*_\[\]#|~>$])")


def report_markdown(page: Page) -> str:
    """Return the page as Markdown."""
    report = page.report
    steps = f", step {report['steps']:,}" if report["steps_seen"] else ""
    lines = [
        f"# {text(report['run'])}: {text(report['state'])}",
        "",
        f"{words.held_ranks(report)}{steps}, generation {report['generation']};"
        f" started {utc(page.began_wall_s)}, {words.duration(report['elapsed_s'])}"
        f" {'in all' if page.is_over else 'ago'}.",
        "",
        *(
            f"- {one.question} **{text(one.answer)}** {text(one.note)}".rstrip()
            for one in page.answers
        ),
        "",
        *_losses(page),
        *_pace(page),
        *_curves(page),
        *_interruptions(page),
        *_nodes(page),
        "## What would have helped",
        "",
        *(f"- **{text(one.do)}** {text(one.why)}" for one in page.advice),
        "",
        *_warnings(report),
        f"*outlast report {__version__}, made {utc(page.made_wall_s)}*",
    ]
    return "\n".join(lines)


def text(value: object) -> str:
    """Return a text as one line of Markdown that means nothing but itself."""
    plain = " ".join(clean(str(value)).split()).replace("&", "&amp;").replace("<", "&lt;")
    plain = plain.replace("@", "&#64;")  # so that a log line mentions no user
    return _SPECIAL.sub(r"\\\1", plain)


def code(value: str) -> list[str]:
    """Return a text as a block of code, whatever is in it."""
    longest = max((len(run) for run in re.findall(r"`+", value)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *clean(value, lines=True).rstrip("\n").split("\n"), fence, ""]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table. A head that begins with ">" stands over a column of numbers."""
    yield f"| {' | '.join(head.lstrip('>') for head in heads)} |"
    yield "|" + "|".join("---:" if head.startswith(">") else "---" for head in heads) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def _losses(page: Page) -> Iterator[str]:
    yield from ("## Where the time went", "")
    if not page.losses:
        yield from ("It is not known, because some lives of processes are missing.", "")
        return
    yield from _table(
        ("cause", ">time of all ranks", ">share", ""),
        (
            (
                text(one.cause.replace("_", " ")),
                words.duration(one.seconds),
                words.percent(one.share),
                words.bar(one.share, BAR_COLUMNS, blocks=True),
            )
            for one in page.losses
        ),
    )


def _pace(page: Page) -> Iterator[str]:
    if page.points:
        yield from ("## Steps per second", "")
        yield from _table(
            ("from", "to", "steps", ">steps/s"),
            (
                (
                    words.duration(one.from_s),
                    words.duration(one.to_s),
                    f"{one.from_step:,} to {one.to_step:,}",
                    f"{one.per_s:.3g}",
                )
                for one in paced(page.points)
            ),
        )


def _curves(page: Page) -> Iterator[str]:
    for curve in page.curves:
        yield from (f"## {text(curve.name)}", "")
        yield from _table(
            ("from", "to", ">to step", ">mean"),
            (
                (
                    words.duration(one.from_s),
                    words.duration(one.to_s),
                    f"{one.to_step:,}",
                    f"{one.value:.4g}",
                )
                for one in few_of(curve)
            ),
        )


def _interruptions(page: Page) -> Iterator[str]:
    every = page.report["interruptions"]
    yield from ("## Interruptions", "")
    if not every:
        lacks = "interruptions" in page.report["lacks"]
        yield from ("Not known: some are missing." if lacks else "None so far.", "")
        return
    if len(every) > SHOWN_MOST:
        kinds = ", ".join(f"{number:,} {text(kind)}" for kind, number in page.kinds)
        yield from (f"The newest {SHOWN_MOST} of {len(every):,}: {kinds}.", "")
    for one in reversed(every[-SHOWN_MOST:]):
        verdict = page.verdicts.get(one["id"])
        yield from _interruption(one, verdict, imported=page.report["imported"])


def _interruption(one: Facts, verdict: Facts | None, *, imported: bool = False) -> Iterator[str]:
    what = text(failed(one))
    yield from (f"### {one['id']}. At {words.duration(at_s(one))}, {what}", "")
    if one["parent"] is not None:
        yield f"- It is a part of {one['parent']}."
    elif one["resumed_s"] is None:
        yield "- The time of its return is not known." if imported else "- It is not back."
    else:
        back = back_words(one)
        yield f"- {back[0].upper()}{back[1:]}; {words.cost_words(one)}."
    yield f"- Why: {text(summary(verdict) if verdict else one['reason'] or 'no verdict')}"
    if verdict and verdict.get("action"):
        yield f"- To do: {text(verdict['action'])}"
    for each in (verdict or {}).get("evidence", ()):
        place = each["file"] + (f":{each['line']}" if each["line"] else "")
        yield f"- Evidence, {text(each['role'])}: {text(place)}: {text(each['text'])}"
    if stages := stages_of(one):
        took = ", ".join(f"{name} {words.duration(seconds)}" for name, seconds in stages)
        yield f"- Took: {took}"
    yield ""
    if one["traceback"]:
        yield from code(one["traceback"])


def _nodes(page: Page) -> Iterator[str]:
    watched = [one for one in page.nodes if one.level != "good"]
    many = words.count(len(page.nodes), "node")
    yield from ("## Health by node", "", f"{many}; {len(watched)} to look at.", "")
    if watched:
        yield from _table(
            ("node", ">ranks", ">losses of ranks", ">productive", "why"),
            (
                (
                    text(one.name),
                    str(len(one.ranks)),
                    str(one.interruptions),
                    words.percent(one.productive),
                    text(one.why),
                )
                for one in watched[:NODES_MOST]
            ),
        )


def _warnings(report: Facts) -> Iterator[str]:
    if report["warnings"]:
        yield from ("## Warnings", "")
        yield from (f"- {text(one)}" for one in dict.fromkeys(report["warnings"]))
        yield ""
