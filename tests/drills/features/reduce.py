"""Remove features and faults from a bad script, as long as it stays bad in the same way.

Each feature in turn is made plain, and stays plain if the script is still bad. This is done twice,
because some features can be removed only after another one. A reduction takes about forty pairs of
runs.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.drills.features.draw import CHOICES, LISTED, Features, ruled
from tests.drills.features.faults import Fault
from tests.drills.features.run import Found, drill

Drill = Callable[[Features, Sequence[Fault], Path], Found]
_Case = tuple[Features, tuple[Fault, ...]]


def reduced(found: Found, folder: Path, *, run: Drill = drill) -> Found:
    """Return the smallest case that still showed a problem of the same kind."""
    for _ in range(2):
        before = (found.features, found.faults)
        for smaller in _ways():
            for features, faults in smaller((found.features, found.faults)):
                features = ruled(features)
                if (features, faults) == (found.features, found.faults):
                    continue
                shutil.rmtree(folder, ignore_errors=True)
                tried = run(features, faults, folder)
                if tried.kinds & found.kinds:
                    found = tried
                    break
        if before == (found.features, found.faults):
            break
    shutil.rmtree(folder, ignore_errors=True)
    return run(found.features, found.faults, folder)


def _ways() -> Iterator[Callable[[_Case], Iterator[_Case]]]:
    """Yield the ways to make a case smaller, in the order in which they are tried."""
    yield _fewer_faults
    yield _killed
    for field in CHOICES:
        yield functools.partial(_plainer, field)
    yield _one_call


def _fewer_faults(case: _Case) -> Iterator[_Case]:
    features, faults = case
    if len(faults) > 1:
        yield from ((features, (one,)) for one in faults)
        yield from ((features, (*faults[:at], *faults[at + 1 :])) for at in range(len(faults)))


def _killed(case: _Case) -> Iterator[_Case]:
    features, faults = case
    yield features, tuple(dataclasses.replace(one, do="SIGKILL") for one in faults)


def _plainer(field: str, case: _Case) -> Iterator[_Case]:
    features, faults = case
    value, plainest = getattr(features, field), getattr(Features(), field)
    if value == plainest:
        return
    yield dataclasses.replace(features, **{field: plainest}), faults
    if field in LISTED and len(value) > 1:
        yield from ((dataclasses.replace(features, **{field: (one,)}), faults) for one in value)


def _one_call(case: _Case) -> Iterator[_Case]:
    features, faults = case
    if len(features.until) > 1:
        yield dataclasses.replace(features, until=features.until[-1:]), faults
