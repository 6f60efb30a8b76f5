"""The score of a drill as one page to mail: no script, and no reference to the outside."""

from __future__ import annotations

from outlast.app.drill_result import Result
from outlast.app.drill_text import by_kind, rows, said, verdict_word
from outlast.app.page.page_html import environment, shipped
from outlast.diagnose.self_output import DRILL_GENERATOR
from outlast.model.drill_faults import ALL_KINDS

FAULTS_MOST = 500  # in the page; the newest ones


def drill_page(result: Result) -> str:
    """Return the page."""
    return (
        environment()
        .get_template("drill.html")
        .render(
            result=result,
            rows=rows(result),
            kinds=by_kind(result.found),
            most=FAULTS_MOST,
            how={name: one.how for name, one in ALL_KINDS.items()},
            verdict=verdict_word(result),
            style=shipped("page.css"),
            generator=DRILL_GENERATOR,
            said=said,
        )
    )
