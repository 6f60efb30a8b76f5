"""The versions of software that should be the same on all nodes of a run."""

from __future__ import annotations

import functools
import platform
from importlib import metadata

_PACKAGES = ("outlast", "torch", "numpy")


@functools.cache
def installed() -> str:
    """Return the versions on this node, as in "Python 3.12.3, outlast 0.4, torch 2.8.0"."""
    found = [f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue  # a script need not use this package
    return ", ".join(found)


def difference(whose: str, theirs: str, ours: str) -> str:
    """Return a warning that a node has other versions than this one; "" if it has the same."""
    them, us = set(filter(None, theirs.split(", "))), set(filter(None, ours.split(", ")))
    if not them or not us or them == us:
        return ""
    return (
        f"warning: {whose} has {_listed(them - us)}, and this node has {_listed(us - them)}:"
        " ranks may differ in more than their data. Install the same on all nodes"
    )


def _listed(some: set[str]) -> str:
    return ", ".join(sorted(some)) or "nothing more"
