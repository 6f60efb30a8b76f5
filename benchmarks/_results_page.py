"""The sections of RESULTS.md: some are written by `make bench`, and all others by hand.

The goals and the comparison at its head are written by hand, as are the pages in results/.

A section begins with a line `## Title` and goes on to the next one. A section that was measured
again takes the place of the one with the same title. All others stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_HEADING = re.compile(r"^## ", re.MULTILINE)


def with_sections(page: str, measured: Mapping[str, str]) -> str:
    """Return the page with the measured sections in it.

    A title that is new comes behind those that were measured before, or first if there are none.

    page      the text of RESULTS.md
    measured  the titles, and the text of each section without its heading
    """
    head, *parts = _HEADING.split(page)
    sections = {}
    for part in parts:
        title, _, text = part.partition("\n")
        sections[title] = text
    at = max((n for n, title in enumerate(sections, 1) if title in measured), default=0)
    titles = list(sections)
    titles[at:at] = [title for title in measured if title not in sections]
    texts = {**sections, **measured}
    return head + "\n".join(f"## {title}\n\n{texts[title].strip()}\n" for title in titles)
