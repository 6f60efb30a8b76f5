"""When lost nodes come back, beside a plain list of nodes, and what a backlog of them costs."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from outlast.planner import repairs
from outlast.planner.repairs import Returns
from outlast.planner.scenario import Repair
from outlast.planner.spread import constant
from tests.planner.worlds import world

RUNS = 6


@pytest.mark.parametrize("spares", [0, 1, 3])
def test_returns_agree_with_a_plain_list_of_nodes(spares: int) -> None:
    """Each run loses 0 to 4 nodes at a time, with repairs of equal and of unequal lengths.

    After each loss, the time at which no node is lacking, the number of lacking nodes and the
    time of the next return are compared with those of a list with one entry for each node.
    """
    dice = random.Random(spares)
    returns = Returns(world(repair=Repair(spares, constant(1.0))), RUNS)
    back_s: list[list[float]] = [[] for _ in range(RUNS)]
    now_s = np.zeros(RUNS)
    waited = 0
    for _ in range(300):
        now_s = now_s + np.array([dice.choice([0.0, 1.0, 5.0]) for _ in range(RUNS)])
        count = np.array([dice.choice([0, 1, 1, 2, 4]) for _ in range(RUNS)])
        until_s = now_s + np.array([dice.choice([0.0, 7.0, 20.0, 60.0]) for _ in range(RUNS)])
        returns.lose(now_s, until_s, count)
        for run in range(RUNS):
            back_s[run] += [float(until_s[run])] * int(count[run])
        at_s = now_s + dice.choice([0.0, 2.0, 30.0])
        in_repair = [[one for one in back_s[run] if one > at_s[run]] for run in range(RUNS)]
        complete_s = [
            sorted(nodes)[len(nodes) - spares - 1] if len(nodes) > spares else float(at_s[run])
            for run, nodes in enumerate(in_repair)
        ]
        assert returns.complete_s(at_s).tolist() == complete_s
        lacking = returns.lacking(repairs.ALL, at_s)
        most = world().job.nodes
        assert lacking.tolist() == [min(most, max(0, len(one) - spares)) for one in in_repair]
        next_s = returns.next_s(np.arange(RUNS), at_s)
        assert next_s.tolist() == [min(one, default=np.inf) for one in in_repair]
        waited += sum(len(one) > spares for one in in_repair)
    assert waited > 100  # otherwise nothing was shown


def test_a_backlog_of_repairs_costs_less_than_sorting_it() -> None:
    """A long backlog is not sorted at each loss, because that made plans of a million GPUs slow.

    Each of 100 losses is noted with 1,000 nodes in repair. Processor time for one loss is compared
    with that of sorting the same nodes on the same processor, each as the best of three.
    """
    rows, nodes, losses = 256, 1_000, 100
    returns = Returns(world(repair=Repair(4, constant(1.0))), rows)
    one: NDArray[np.int64] = np.ones(rows, dtype=np.int64)
    repair_s = np.random.default_rng(7).uniform(1e6, 2e6, (3 * losses + nodes, rows))
    at = iter(range(len(repair_s)))

    def lose(times: int) -> None:
        for number in itertools.islice(at, times):
            now_s = np.full(rows, float(number))
            returns.lose(now_s, now_s + repair_s[number], one)
            returns.complete_s(now_s)

    lose(nodes)
    back_s = repair_s[:nodes].T.copy()
    noted_s = min(_processor_s(lambda: lose(losses)) for _ in range(3)) / losses
    sorted_s = min(_processor_s(lambda: np.argsort(-back_s, axis=1)) for _ in range(3))
    assert noted_s < sorted_s


def _processor_s(work: Callable[[], object]) -> float:
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s
