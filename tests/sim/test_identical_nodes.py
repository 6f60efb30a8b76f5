"""Identical nodes are simulated as one, with the same result as if each was simulated alone."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

import pytest

from outlast.model.fault_plan import PlannedFault
from outlast.model.messages import (
    AskProgressReport,
    Grant,
    KillWorker,
    Leave,
    Regroup,
    StartStore,
    StartWorker,
    ToNode,
    ToWorkers,
)
from outlast.sim.draws import Stream
from outlast.sim.faults.drawn_faults import draw_failures
from outlast.sim.options import Options, draw_options
from outlast.sim.shortcuts.identical_nodes import IdenticalNodes, Likeness, alike
from outlast.sim.shortcuts.identical_ranks import Parted
from outlast.sim.simulated_run import simulate
from outlast.sim.world.script import script_of
from outlast.sim.world.world import World

SEEDS = 7
BOUND_S = 50_000.0
LARGE = Options(
    ranks=72,
    nodes=20,
    spare_nodes=2,
    steps=100_000,
    latency_s=0.001,
    beat_s=5.0,
    step_s=2.0,
    for_s=300.0,
    failures=1,
    drift=0.01,
)
KILL = PlannedFault("x", "kill", 30, at_s=100.0)


def drawn(seed: int) -> tuple[Options, tuple[PlannedFault, ...]]:
    """Return the options and the faults of a run of some minutes. It has about twenty nodes with
    one to four ranks each. A fifth of the nodes have faults like those of hardware.
    """
    given = {
        "recovery_mode": "in_place",
        "spares": 0,
        "nodes": 20 + seed % 7,
        "spare_nodes": 2,
        "ranks": (18 + seed % 7) * (1 + seed % 4),
        "for_s": 300.0,
        "failures": 4,
        "beat_s": 5.0,
        "step_s": 2.0,
        "phase_after": -1,
        "first_step_s": 0.0,
        "latency_s": 0.001,
    }
    options = draw_options(Stream(seed, "options"), given)
    return options, draw_failures(Stream(seed, "failures"), options)


def run(
    seed: int,
    options: Options,
    faults: tuple[PlannedFault, ...],
    *,
    every_node: bool = False,
    every_rank: bool = False,
    tells_all: bool = False,
) -> World:
    """Simulate a run that keeps all lines of its trace.

    `tells_all` is True if the trace also has the lines of identical nodes other than the first one.
    """
    world = World(
        options=options,
        script=script_of(options.recovery_mode),
        faults=faults,
        seed=seed,
        every_node=every_node,
        every_rank=every_rank,
    )
    world.trace.newest = deque()
    world.frame.untold = frozenset() if tells_all else world.frame.untold
    world.run(bound_s=BOUND_S)
    return world


@pytest.mark.drill
def test_identical_nodes_have_the_same_result_as_each_node_alone() -> None:
    """The same runs are simulated in three ways. All lines of the trace are equal to the
    microsecond. The marks, the interruptions and the booked seconds of each rank are equal too.
    """
    saved = 0
    for seed in range(SEEDS):
        options, faults = drawn(seed)
        one, nodes = run(seed, options, faults), run(seed, options, faults, every_node=True)
        for each in (
            (nodes, run(seed, options, faults, every_rank=True)) if seed % 3 == 0 else (nodes,)
        ):
            assert list(one.trace.newest) == list(each.trace.newest), f"seed {seed}"
            assert (one.marks, one.committed, one.checkers.violations, one.strikes.fired) == (
                each.marks,
                each.committed,
                [],
                each.strikes.fired,
            )
            assert list(one.interruptions.values()) == list(each.interruptions.values())
            assert one.accounts.worked.seconds() == pytest.approx(
                each.accounts.worked.seconds(), abs=1e-6
            )
            assert one.population.done == each.population.done & one.population.done
        assert one.shortcuts.twins is not None
        saved += nodes.timeline.events - one.timeline.events
    assert saved > 0


def test_each_identical_node_does_what_the_first_one_does() -> None:
    """Method: simulate node by node, with the lines that the trace leaves out otherwise. Each other
    node has the same lines as the first one, at the same moments.
    """
    options, faults = drawn(3)
    world = run(3, options, faults, every_node=True, tells_all=True)
    likeness = alike(options, faults)
    assert likeness is not None
    lines: dict[int, Counter[tuple[str, str]]] = {place: Counter() for place in likeness.members}
    for line in world.trace.newest:
        at_s, what = line[:12], line[12:].split()
        if what[0] == "to" and (place := int(what[1].rstrip(":").removeprefix("node-"))) in lines:
            lines[place][at_s, what[2]] += 1
        elif what[0] == "rank" and (place := int(what[1]) // likeness.apart) in lines:
            lines[place][at_s, " ".join(what[2:])] += 1
    first = lines[likeness.members[0]]
    assert sum(first.values()) > 20
    assert all(others == first for others in lines.values())


def test_most_nodes_of_a_large_run_are_identical() -> None:
    """Eighteen nodes have ranks. Four of them have faults, and two may have to hand over state. One
    is simulated before the identical nodes, and one after them.
    """
    faults = tuple(PlannedFault(str(n), "kill", 20 + 4 * n, at_s=40.0 * n) for n in range(1, 5))
    likeness = alike(LARGE, faults)
    assert likeness is not None
    assert (likeness.herald, likeness.members, likeness.apart) == (
        2,
        (3, 4, 5, 10, 11, 12, 13, 14, 15, 16),
        4,
    )
    simulated, alone = (
        simulate(seed=1, options=LARGE, faults=faults, every_rank=every_rank)
        for every_rank in (False, True)
    )
    assert (simulated.result, simulated.end, len(simulated.fired)) == ("ok", "stopped", 4)
    assert (simulated.trace_digest, simulated.marks["committed"]) == (
        alone.trace_digest,
        alone.marks["committed"],
    )
    assert simulated.events < 0.4 * alone.events


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (LARGE, replace(KILL, at_s=None, at_step=9)),
        (LARGE, replace(KILL, at_s=None, mark="voting")),
        (LARGE, replace(KILL, rank=None, node=7, kind="lose_node")),
        (LARGE, replace(KILL, rank=None, kind="lose_coordinator")),
        (LARGE, replace(KILL, kind="freeze")),
        (replace(LARGE, failures=0), KILL),
        (replace(LARGE, recovery_mode="reenter"), KILL),
        (replace(LARGE, policy="eager"), KILL),
        (replace(LARGE, spares=1), KILL),
        (replace(LARGE, checkpoint_every=10), KILL),
        (replace(LARGE, nodes=7, ranks=20), KILL),
    ],
)
def test_other_faults_and_options_allow_no_identical_nodes(
    options: Options, fault: PlannedFault
) -> None:
    assert alike(LARGE, (KILL,)) is not None
    assert alike(options, (fault,)) is None


def test_a_run_whose_identical_nodes_differ_is_simulated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Method: pretend that the coordinator sends one of the nodes another message."""
    whole = simulate(seed=1, options=LARGE, faults=(KILL,))
    monkeypatch.setattr(IdenticalNodes, "_is_same", lambda *_: False)
    again = simulate(seed=1, options=LARGE, faults=(KILL,))
    assert (again.trace_digest, again.result, again.end) == (whole.trace_digest, "ok", "stopped")
    assert again.events > whole.events


LEAVE = Leave(1, "why")
PLAN = Regroup(
    2, -1, 72, "here", 1, "repeat", "in_place", 5, -1, False, "none", "keep", "", 5, None, None
)


@pytest.mark.parametrize(
    ("first", "other", "same"),
    [
        (ToWorkers((13, 14), (), LEAVE), ToWorkers((17, 18), (), LEAVE), True),
        (ToWorkers((13, 14), (12, 13), PLAN), ToWorkers((17, 18), (16, 17), replace(PLAN)), True),
        (
            ToWorkers((13, 14), (12, 13), PLAN),
            ToWorkers((17, 18), (16, 17), replace(PLAN, donate=True)),
            False,
        ),
        (ToWorkers((13, 14), (12, 13), PLAN), ToWorkers((17, 18), (16, 18), PLAN), False),
        (ToWorkers((13, 14), (), LEAVE), ToWorkers((17,), (), LEAVE), False),
        (StartWorker(13, 12, "rank", 1), StartWorker(17, 16, "rank", 1), True),
        (StartWorker(13, 12, "rank", 1), StartWorker(18, 16, "rank", 1), False),
        (KillWorker(13, "it ends"), KillWorker(17, "it ends"), True),
        (KillWorker(13, "it ends"), KillWorker(13, "it ends"), False),
        (AskProgressReport(1), AskProgressReport(1), True),
        (StartStore("why", 1), StartStore("why", 1), False),
    ],
)
def test_a_different_message_to_one_identical_node_is_found(
    first: object, other: object, same: bool
) -> None:
    twins = IdenticalNodes(Likeness(2, (3, 4), 4), LARGE.node_names)
    twins.first_hears(ToNode(7, 1, 5.0, first))  # type: ignore[arg-type]
    twins.echo(1, ToNode(7, 1, 5.0, other))  # type: ignore[arg-type]
    if same:
        twins.check(now_s=9.0)
        twins.check(now_s=9.5)
    else:
        with pytest.raises(Parted):
            twins.check(now_s=9.0)


def test_a_message_that_not_all_identical_nodes_get_at_once_is_found() -> None:
    twins = IdenticalNodes(Likeness(2, (3, 4, 5), 4), LARGE.node_names)
    twins.first_hears(Grant(1, 0, 5.0))
    twins.echo(1, Grant(1, 0, 5.0))
    twins.check(now_s=9.0)  # the third may follow
    with pytest.raises(Parted):
        twins.check(now_s=9.1)
