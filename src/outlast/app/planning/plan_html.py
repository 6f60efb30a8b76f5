"""A plan as one page to mail.

It has no script and no reference to the outside, and a policy in the page would not load one.
"""

from __future__ import annotations

import re
from html import escape

from outlast import __version__
from outlast.app.charts import drawn
from outlast.app.charts_file import can_draw, picture
from outlast.app.json_text import json_text
from outlast.app.planning import plan_text
from outlast.app.planning.plan_answer import PlanFindings
from outlast.app.planning.plan_charts import charts
from outlast.diagnose.self_output import PLAN_GENERATOR

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem;
  margin: 2rem auto; padding: 0 1rem; color: #1b1f24; background: #fff }
h1 { font-size: 1.3rem; margin: 0 0 .3rem } h2 { font-size: 1rem; margin: 1.6rem 0 .4rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0;
  overflow-wrap: anywhere }
thead th { font-weight: 600; border-bottom: 1px solid #c8d0d8 }
.default, .preset { color: #8a6100 } .plan { color: #1f5fa8 }
code, pre { font: 13px/1.45 ui-monospace, monospace } pre { overflow-x: auto }
svg { max-width: 100%; height: auto; background: #fff } footer { color: #5f6b7a }
@media (prefers-color-scheme: dark) {
  body { background: #14171a; color: #e3e7eb }
  .default, .preset { color: #e0b050 } .plan { color: #8ab8f0 }
}
"""


def page(found: PlanFindings) -> str:
    lines = plan_text.answer_lines(found)
    parts = [
        f"<h1>{escape(lines[0])}</h1>",
        *([f"<p>{escape(found.cluster.about)}</p>"] if found.cluster.about else []),
        f"<pre>{escape(chr(10).join(lines[1:]))}</pre>",
        "<h2>Charts</h2>",
        *_charts(found),
        "<h2>Inputs, each with its source</h2>",
        _inputs(found),
        (
            "<details><summary>The same for"
            f" programs</summary><pre>{escape(json_text(found.facts()))}</pre></details>"
        ),
        f"<footer><p>outlast plan {escape(__version__)}</p></footer>",
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="{PLAN_GENERATOR} {escape(__version__)}">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>{escape(lines[0])}</title>
<style>{_STYLE}</style>
</head>
<body>
{chr(10).join(parts)}
</body>
</html>
"""


def _charts(found: PlanFindings) -> list[str]:
    """Return the charts, drawn where matplotlib is installed, else made of letters."""
    all_of_them = charts(found)
    if not can_draw():
        return [
            f"<pre>{escape(chr(10).join(drawn(one, blocks=True)))}</pre>" for one in all_of_them
        ]
    return [_inline(picture([one], "svg").decode()) for one in all_of_them]


def _inline(svg: str) -> str:
    """Return an SVG without its head and metadata, which name pages on the web."""
    body = svg[svg.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)


def _inputs(found: PlanFindings) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(one.path)}</code></td><td>{escape(one.said)}</td><td"
        f' class="{one.origin.value}">{escape(one.origin.value)}</td>'
        f"<td>{escape(one.source)}</td></tr>"
        for one in found.plan.resolved.inputs.values()
    )
    return (
        "<table><thead><tr><th>input</th><th>value</th><th>said"
        f" by</th><th>source</th></tr></thead><tbody>{rows}</tbody></table>"
    )
