"""Take features and faults away from a script that went wrong, as long as it goes wrong in the same way.

Greedy: each feature in turn is made plain, and stays so if the script is still bad. Twice over, because a feature may go only
once another has gone. What is left is seldom more than three features. A reduction takes some forty pairs of runs.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.drills.features.draw import CHOICES, LISTED, Features, ruled
from tests.drills.features.faults import Fault
from tests.drills.features.run import Found, drill

_Case = tuple[Features, tuple[Fault, ...]]


def reduced(found: Found, folder: Path) -> Found:
    """The smallest case that was met with a problem of the same kind."""
    for _ in range(2):
        before = (found.features, found.faults)
        for smaller in _names():
            for features, faults in smaller((found.features, found.faults)):
                features = ruled(features)
                if (features, faults) == (found.features, found.faults):
                    continue
                shutil.rmtree(folder, ignore_errors=True)
                tried = drill(features, faults, folder)
                if tried.kinds & found.kinds:
                    found = tried
                    break
        if before == (found.features, found.faults):
            break
    shutil.rmtree(folder, ignore_errors=True)
    return drill(found.features, found.faults, folder)


def _names():
    """What to try: one function for each kind of step, from a case to smaller ones."""
    yield _fewer_faults
    yield _killed
    for field in CHOICES:
        yield lambda case, field=field: _plainer(case, field)
    yield _one_leg


def _fewer_faults(case: _Case) -> Iterator[_Case]:
    features, faults = case
    if len(faults) > 1:
        yield from ((features, (one,)) for one in faults)
        yield from ((features, (*faults[:at], *faults[at + 1 :])) for at in range(len(faults)))


def _killed(case: _Case) -> Iterator[_Case]:
    features, faults = case
    yield features, tuple(dataclasses.replace(one, do="SIGKILL") for one in faults)


def _plainer(case: _Case, field: str) -> Iterator[_Case]:
    features, faults = case
    value, plainest = getattr(features, field), getattr(Features(), field)
    if value == plainest:
        return
    yield dataclasses.replace(features, **{field: plainest}), faults
    if field in LISTED and len(value) > 1:
        yield from ((dataclasses.replace(features, **{field: (one,)}), faults) for one in value)


def _one_leg(case: _Case) -> Iterator[_Case]:
    features, faults = case
    if len(features.until) > 1:
        yield dataclasses.replace(features, until=features.until[-1:]), faults
