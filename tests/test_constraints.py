"""constraints.txt pins every package that an extra of outlast brings along, direct or not.

A package that is not pinned moves by itself, and a build that passed yesterday fails today.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HOME = Path(__file__).parents[1]
NOT_PINNED = {"ray", "bench"}  # extras that are for experiments, and that no check installs


def pins() -> dict[str, str]:
    """Return the pinned versions by name, of those lines that hold for this Python."""
    lines = (HOME / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {
        canonicalize_name(one.name): re.sub("^==", "", str(one.specifier))
        for one in found
        if one.marker is None or one.marker.evaluate()
    }


def brought_along() -> Iterator[str]:
    """Yield the packages that are installed here because an extra of outlast asks for them."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    todo = [
        *project["dependencies"],
        *(one for name, asked in extras.items() if name not in NOT_PINNED for one in asked),
    ]
    seen: set[tuple[str, str]] = set()
    while todo:
        asked = Requirement(todo.pop())
        if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
            continue
        name = canonicalize_name(asked.name)
        for extra in {"", *asked.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                needs = requires(name) or []
            except PackageNotFoundError:  # this environment has not that extra
                continue
            if not extra:
                yield name
            todo += [
                re.sub(";.*", "", one)
                for one in needs
                if (marker := Requirement(one).marker) is None or marker.evaluate({"extra": extra})
            ]


def test_all_that_the_extras_bring_along_is_pinned() -> None:
    """Method: follow what the installed packages ask for, from pyproject.toml on."""
    pinned, found = pins(), sorted(set(brought_along()))
    assert "numpy" in found
    assert [f"{one}=={version(one)}" for one in found if one not in pinned] == []
