"""Which calls of several optimizers make one iteration.

The optimizers are stand-ins: only which one it is, and whether it still exists, counts here.
`test_onlooker.py` uses torch's.
"""

from __future__ import annotations

import gc

import pytest

from outlast.runtime.worker.script.iterations import Iterations


class Optimizer:
    """One optimizer."""


def counted(calls: str) -> list[int]:
    """Return the number of iterations after each call. A letter names an optimizer, and a star
    says that the one before it exists no more.
    """
    iterations, counts, last = Iterations(), [], ""
    alive: dict[str, Optimizer] = {}
    for name in calls.replace(" ", ""):
        if name == "*":
            del alive[last]
            gc.collect()
            continue
        last = name
        iterations.stepped(alive.setdefault(name, Optimizer()))
        counts.append(iterations.count)
    return counts


@pytest.mark.parametrize(
    ("calls", "count"),
    [
        ("AAAA", 4),
        ("DG DG DG", 3),
        ("GD DG GD", 3),  # the order may change
        ("DDGG DDGG DDGG", 7),  # the second G begins one, to which the next D belongs
        ("DDDDDG DDDDDG", 10),  # a critic, five times for each step of its generator
        ("DGG DGG DGG", 6),
        ("CA C CA C", 4),  # TD3 delays its actor
        ("DDDD DG DG", 6),  # the generator begins later
        ("pqrs pqrs prs qrs", 4),  # one optimizer for each parameter; some have no gradient
        ("abc abc abc", 3),
        ("AAA BBB", 6),  # the old one still exists
        ("AAA*BBB", 6),
        ("AAA*B", 4),
        ("A*B*C*D", 4),  # a new optimizer for each step
        ("AB* AB* AB*", 3),  # one of two is made anew for each step
        ("AAA BBB CCC", 9),
        ("aaa bbb ccc aaa bbb ccc", 18),  # clients that train in turn
        ("DG DG DG*D*HHH", 7),
        ("DG DG DG EH EH EH", 5),  # two take over from two; the first EH belongs to the last DG
    ],
)
def test_optimizers_that_take_turns_make_one_iteration(calls: str, count: int) -> None:
    """One that takes over from another goes on with its count. The count never goes back."""
    counts = counted(calls)
    assert counts[-1] == count, counts
    assert counts == sorted(counts)
    assert counts[0] == 1


def test_an_optimizer_that_takes_over_is_seen_with_its_second_step() -> None:
    """Its first step may be that of a second optimizer in the same iteration."""
    assert counted("AAABBB") == [1, 2, 3, 3, 5, 6]
    assert counted("AAA*BBB") == [1, 2, 3, 4, 5, 6]


def test_it_is_known_whether_one_optimizer_did_all_iterations() -> None:
    for calls, by_own in (("AAA", 1), ("DGDG", 1), ("DDDG", 1), ("AAAB", 1), ("AAABB", 0)):
        one, alive = Iterations(), {name: Optimizer() for name in "ABDG"}
        for name in calls:
            one.stepped(alive[name])
        assert one.by_own == bool(by_own), calls
    assert alive["A"] in one
    assert alive["G"] not in one
