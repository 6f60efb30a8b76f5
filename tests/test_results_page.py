"""What `make bench` writes into benchmarks/RESULTS.md, and what it leaves there."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks._results_page import with_sections

PAGE = """# Results

An introduction.

## Measured first

1 s

## Measured second

2 s

### With a part

3 s

## Written by hand

4 s
"""
RESULTS = Path(__file__).parents[1] / "benchmarks" / "RESULTS.md"


def test_a_section_measured_again_takes_the_place_of_the_old_one() -> None:
    assert with_sections(PAGE, {"Measured first": "7 s"}) == PAGE.replace("1 s", "7 s")
    without = PAGE.replace("2 s\n\n### With a part\n\n3 s", "8 s")
    assert with_sections(PAGE, {"Measured second": "8 s\n"}) == without


def test_a_new_section_comes_behind_those_that_were_measured() -> None:
    page = with_sections(PAGE, {"New": "9 s", "Measured first": "1 s"})
    assert page == PAGE.replace("1 s\n", "1 s\n\n## New\n\n9 s\n")
    assert with_sections("# Results\n\n", {"New": "9 s"}) == "# Results\n\n## New\n\n9 s\n"


def test_a_page_of_which_nothing_was_measured_stays_as_it_is() -> None:
    assert with_sections(PAGE, {}) == PAGE
    assert with_sections(RESULTS.read_text(), {}) == RESULTS.read_text()


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in titles}


def test_the_first_page_leads_to_every_page_and_heading_that_it_names() -> None:
    """Method: the targets of its links to itself and to the pages that were written by hand."""
    links = re.findall(r"\]\((results/\w+\.md)?#?([\w-]*)\)", RESULTS.read_text())
    pages = {f"results/{page.name}" for page in RESULTS.parent.glob("results/*.md")}
    assert {page for page, _ in links if page} == pages
    for page, anchor in links:
        if anchor:
            assert anchor in anchors_of(RESULTS.parent / page if page else RESULTS)
