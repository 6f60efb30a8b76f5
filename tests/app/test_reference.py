"""The page about a run's folder names every table, column and key that there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from outlast.app.report_facts import report_facts
from outlast.app.status import status_facts
from outlast.runtime.ledger.rows import schema
from outlast.runtime.ledger.view import look
from tests.ledger import a_run

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "run-folder.md"


def named(heading: str) -> set[str]:
    """Return what the section under `heading` names in backticks."""
    section = PAGE.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"`([A-Za-z_.]+)`", section))


def test_the_page_names_every_table_and_column() -> None:
    tables = re.findall(r"CREATE TABLE (\w+) \((.*)\);", schema())
    assert len(tables) == 8
    known = named("The ledger")
    for table, columns in tables:
        if table != "snapshot":  # for a live view; `outlast status --json` has the same
            names = re.findall(r"(?:^|, )([a-z_]+) (?:INTEGER|REAL|TEXT)", columns)
            assert not {table, *names} - known, table


@pytest.mark.parametrize(
    ("heading", "facts_of"),
    [("`outlast report --json`", report_facts), ("`outlast status --json`", status_facts)],
)
def test_the_page_names_every_key(tmp_path: Path, heading: str, facts_of: Any) -> None:
    facts = facts_of(look(a_run.ended_run(tmp_path)))
    inner = [facts["interruptions"][0], *facts.get("sessions", [])[:1]]
    inner += [facts.get(name, {}) for name in ("mttr", "balance", "lost", "reliability")]
    inner += [facts.get(name, {}) for name in ("goodput", "cost")]
    inner.append(facts.get("reliability", {}).get("all", {}))
    keys = {key for one in (facts, *inner) for key in one}
    assert not keys - named(heading) - named("`outlast report --json`")
