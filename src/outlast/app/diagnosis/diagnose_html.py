"""A verdict as one page to mail.

It has no script and no reference to the outside, and a policy in the page would not load one.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from html import escape

from outlast import __version__
from outlast.app.diagnosis import diagnose_text as text
from outlast.app.json_text import json_text
from outlast.diagnose.self_output import GENERATOR

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem; color: #1b1f24; background: #fff }
h1 { font-size: 1.3rem; margin: 0 0 .3rem } h2 { font-size: 1rem; margin: 1.6rem 0 .4rem }
.class { display: inline-block; padding: .05rem .5rem; border-radius: .3rem;
  background: #e8edf3; font-family: ui-monospace, monospace }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0 }
th { font-weight: 600; white-space: nowrap; width: 1% }
code, pre, .text { font: 13px/1.45 ui-monospace, monospace; overflow-wrap: anywhere;
  white-space: pre-wrap }
.root { color: #b3261e; font-weight: 600 } .messenger { color: #8a6100 }
.effect, .advice, footer { color: #5f6b7a }
@media (prefers-color-scheme: dark) {
  body { background: #14171a; color: #e3e7eb } .class { background: #2a3138 }
  .root { color: #ff8a80 } .messenger { color: #e0b050 }
}
"""


def page(facts: text.Facts) -> str:
    verdict = facts.verdict
    rows = [
        ("Do", verdict["action"]),
        *(("Run", one) for one in verdict["commands"]),
        ("How sure", text.sure(verdict)),
        ("Refuted by", verdict["refuted_by"]),
        ("Next test", verdict["next_test"]),
    ]
    rows += [("Suspect", f"rank {one['rank']}: {one['reason']}") for one in verdict["suspects"]]
    rows += [("Innocent", one["why"]) for one in verdict["cleared"]]
    parts = [
        f"<h1>{escape(verdict['reason'])}</h1>",
        f'<p><span class="class">{escape(text.headline(verdict))}</span></p>',
        _table(rows),
        "<h2>Evidence</h2>",
        _evidence(verdict["evidence"]),
        *(_stack(one) for one in verdict["stacks"]),
        *(
            ["<h2>The decisive minute (UTC)</h2>", _table(_moments(verdict["timeline"]))]
            if verdict["timeline"]
            else []
        ),
        *(
            [
                "<h2>Who waits for whom</h2>",
                f"<pre>{escape(chr(10).join(facts.graph(boxes=True)))}</pre>",
            ]
            if facts.has_dumps
            else []
        ),
        *(
            [
                "<h2>Notes</h2>",
                "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in facts.notes) + "</ul>",
            ]
            if facts.notes
            else []
        ),
        (
            "<details><summary>The same for"
            f" programs</summary><pre>{escape(json_text(verdict))}</pre></details>"
        ),
        (
            f"<footer><p>outlast diagnose {escape(__version__)}: {escape(facts.read)} read. Secrets"
            " of known forms were taken out.</p></footer>"
        ),
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="{GENERATOR} {escape(__version__)}">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{escape(text.headline(verdict))}</title>
<style>{_STYLE}</style>
</head>
<body>
{chr(10).join(parts)}
</body>
</html>
"""


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return (
        "<table>"
        + "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in rows
            if value
        )
        + "</table>"
    )


def _stack(one: dict[str, typing.Any]) -> str:
    frames = escape("\n".join(one["frames"]))
    return f"<h2>Stack of rank {int(one['rank'])} (innermost first)</h2><pre>{frames}</pre>"


def _moments(moments: Iterable[dict[str, typing.Any]]) -> Iterator[tuple[str, str]]:
    for one in moments:
        who = one["node"] or "" if one["rank"] is None else f"rank {one['rank']}"
        yield f"{text.clock(one['at_s'])} {who}", one["text"]


def _evidence(evidence: Iterable[dict[str, typing.Any]]) -> str:
    rows = [
        f"<tr><td><code>{escape(text.place(one))}</code></td><td"
        f' class="{escape(one["role"])}">{escape(one["role"])}</td><td'
        f' class="text">{escape(one["text"])}</td></tr>'
        for one in evidence
    ]
    return "<table>" + "".join(rows) + "</table>" if rows else "<p>No line shows why.</p>"
