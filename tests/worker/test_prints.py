"""Fingerprints of iterators: two iterators at the same position have the same fingerprint, and
others do not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from outlast.runtime.worker.run_state.prints import print_of
from outlast.runtime.worker.trials.trial import _is_no_data

DATA = [torch.tensor([float(number)]) for number in range(6)]


def endless(batches: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    while True:
        for batch in batches:
            yield batch + 1


def handed_on(batches: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    yield from batches


def parts(data: torch.Tensor) -> Iterator[torch.Tensor]:
    for first in range(6):
        yield data[first:]


def opaque(lines: Iterator[int]) -> Iterator[int]:
    while True:
        yield next(lines) + 1


def moved(make: Callable[[], Any], count: int) -> str | None:
    one = make()
    for _ in range(count):
        next(one)
    return print_of(one)


@pytest.mark.parametrize(
    "make",
    [
        lambda: endless(DATA),
        lambda: handed_on(DATA),
        lambda: parts(torch.zeros(6)),
        lambda: itertools.cycle(DATA),
        lambda: itertools.cycle(DataLoader(DATA)),
        lambda: itertools.islice(DATA, 5),
        lambda: itertools.chain(DATA, DATA),
        lambda: itertools.count(),
    ],
)
def test_an_iterator_s_print_tells_how_far_it_is(make: Callable[[], Any]) -> None:
    assert moved(make, 3) == moved(make, 3)
    assert len({moved(make, count) for count in (0, 1, 3, 4)}) == 4


def test_a_generator_over_data_without_a_print_has_none_itself() -> None:
    """Such a generator may advance without any comparable change. Its position is known only until
    it has begun.
    """
    make = functools.partial(opaque, iter(lambda: 1, 2))
    assert moved(make, 0) is not None
    assert moved(make, 1) is None


def test_iterators_around_the_loop_and_files_to_write_are_no_data(tmp_path: Any) -> None:
    """A progress bar around run.steps runs while the fingerprints are taken."""
    seen: list[bool] = []

    def bar() -> Iterator[int]:
        seen.append(_is_no_data(around))
        yield 1

    around = bar()
    next(around)
    assert seen == [True]
    assert not _is_no_data(around)
    with (tmp_path / "log").open("w") as log:
        assert _is_no_data(log)
        assert _is_no_data(log.buffer)
    assert _is_no_data(log)
    with (tmp_path / "log").open() as text:
        assert not _is_no_data(text)
