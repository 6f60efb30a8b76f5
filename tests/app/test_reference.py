"""The reference names every table, column and key of a run, and every limit, that there is."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from outlast.app.reports.report_facts import report_facts
from outlast.app.reports.status import status_facts
from outlast.model import limits
from outlast.runtime.ledger.rows import schema
from outlast.runtime.ledger.view import look
from tests.ledger import a_run

HOME = Path(__file__).parents[2]
PAGE = HOME / "docs" / "reference" / "run-folder.md"


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


def test_the_page_of_limits_names_every_limit_with_its_value() -> None:
    """Method: the page as `make docs` makes it, beside the names of the module."""
    path = HOME / "tools" / "site" / "build.py"
    spec = importlib.util.spec_from_file_location("site_build", path)
    assert spec
    assert spec.loader
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    page = build.limits_page(build.LIMITS.read_text())
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", page, re.MULTILINE)
    named = {name for names, _ in rows for name in names.split(", ")}
    assert {name for name in vars(limits) if name.isupper()} == named
    assert dict(rows)["STOPPED_FLOOR_S"] == str(limits.STOPPED_FLOOR_S)
