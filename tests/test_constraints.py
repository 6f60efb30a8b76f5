"""constraints.txt pins every package that an extra of outlast brings along, direct or not.

A package that is not pinned moves by itself, and a build that passed yesterday fails today.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

PINS = Path(__file__).parents[1] / "constraints.txt"
NOT_PINNED = {"ray", "bench"}  # extras for experiments, which no check installs
_ASKED = re.compile(r"([\w.-]+)\s*(?:\[([\w, -]+)\])?")
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def brought_along() -> Iterator[str]:
    """Yield the packages that are installed here because an extra of outlast asks for them."""
    extras = {found[1] for one in requires("outlast") or [] if (found := _EXTRA.search(one))}
    todo = [("outlast", extra) for extra in ("", *(extras - NOT_PINNED))]
    seen = set(todo)
    while todo:
        name, extra = todo.pop()
        try:
            needs = requires(name) or []
        except PackageNotFoundError:  # of an extra that this environment does not have
            continue
        if name != "outlast":
            yield plain(name)
        for one in needs:
            only, asked = _EXTRA.search(one), _ASKED.match(one)
            assert asked, one
            if (only[1] if only else "") != extra:
                continue
            more = (part.strip() for part in (asked[2] or "").split(","))
            fresh = {(asked[1], part) for part in ("", *more)} - seen
            seen |= fresh
            todo += sorted(fresh)


def test_all_that_the_extras_bring_along_is_pinned() -> None:
    """Method: follow what the installed packages ask for, from outlast on."""
    lines = PINS.read_text().splitlines()
    pinned = {plain(line.partition("==")[0]) for line in lines if "==" in line}
    found = set(brought_along())
    assert {"numpy", "pytest"} <= found
    assert [f"{one}=={version(one)}" for one in sorted(found - pinned)] == []
