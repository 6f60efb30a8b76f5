"""Simulated runs: one seed gives one course, runs of many seeds keep every rule, and the draws
cover what they should.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import outlast
from outlast.errors import UsageError
from outlast.model import limits
from outlast.model.fault_plan import PlannedFault, parse
from outlast.sim.draws import Stream
from outlast.sim.faults.drawn_faults import draw_faults
from outlast.sim.options import Options, draw_options
from outlast.sim.simulated_run import SLACK_S, simulate, simulate_seed
from outlast.sim.swarm import Tally
from outlast.sim.world.script import script_of
from outlast.sim.world.timeline import LATE, NORMAL, URGENT, Timeline
from outlast.sim.world.world import World

SOURCE = str(Path(outlast.__file__).parents[1])
SWARM_SEEDS = 60  # `make swarm` draws new ones
# runs that once broke a rule: the bug, the seed, the options and the faults
FOUND = sorted((Path(__file__).parent / "found").glob("*.toml"))


@pytest.fixture(scope="module")
def swarm() -> Tally:
    tally = Tally()
    for seed in range(SWARM_SEEDS):
        tally.add(simulate_seed(seed=seed, given={}).as_dict())
    return tally


def test_a_swarm_keeps_every_rule(swarm: Tally) -> None:
    assert (swarm.result, swarm.bad) == (
        "ok",
        [],
    ), f"replay with `outlast sim --seed N --trace`: {swarm.bad}"


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_bugs_that_a_swarm_once_found_stay_fixed(path: Path) -> None:
    """Each case names all of its options and faults. So it stays the same run when draws change."""
    why, seed, options = (line.removeprefix("# ") for line in path.read_text().splitlines()[:3])
    planned = parse(path.read_text(), source=path.name)
    simulated = simulate(
        seed=int(seed.removeprefix("seed ")),
        options=Options.from_dict(json.loads(options.removeprefix("options "))),
        faults=planned,
    )
    assert simulated.violations == (), why


@pytest.mark.parametrize("head_s", [None, 0.3])
def test_a_lost_replica_costs_no_step_where_another_holds_its_shards(head_s: float | None) -> None:
    """There are two replicas of two shards, one on each node, and a spare node. If `head_s` is not
    None, the coordinator dies as well, and another one comes `head_s` later. Without replicas, all
    ranks begin from the start.
    """
    faults = [PlannedFault("power", "lose_node", 2, "body", 50, for_s=1_000.0)]
    if head_s is not None:
        faults.append(PlannedFault("head", "lose_coordinator", None, "gathering", for_s=head_s))
    options = Options(
        recovery_mode="sharded", ranks=4, nodes=3, spare_nodes=1, steps=200, latency_s=0.003
    )
    for replicas, lost in ((2, False), (1, True)):
        simulated = simulate(
            seed=1, options=replace(options, replicas=replicas), faults=tuple(faults)
        )
        assert (simulated.result, simulated.end) == ("ok", "ended"), simulated
        assert ("restart" in simulated.rungs) is lost, simulated.rungs


@pytest.mark.parametrize("mode", ["in_place", "respawn", "reenter", "sharded"])
@pytest.mark.parametrize(
    ("kind", "for_s", "rungs"),
    [
        ("cut", 2.0, ()),
        ("cut", 20.0, None),
        ("lose_node", 1_000.0, None),
        ("lose_coordinator", 1.0, ()),
        ("lag", 1.0, ()),
    ],
    ids=["a short cut", "a long cut", "no power", "no coordinator", "a slow line"],
)
def test_a_node_or_the_coordinator_is_lost_and_the_run_goes_on(
    mode: str, kind: str, for_s: float, rungs: tuple[str, ...] | None
) -> None:
    """A fault that is shorter than a lease (6 s) interrupts no rank. After a longer one, the ranks
    live on the spare node.
    """
    options = Options(
        recovery_mode=mode, ranks=4, nodes=3, spare_nodes=1, steps=200, latency_s=0.003
    )
    simulated = simulate(
        seed=1,
        options=options,
        faults=(
            PlannedFault(
                "x", kind, None if kind == "lose_coordinator" else 1, at_s=1.5, for_s=for_s
            ),
        ),
    )
    assert (simulated.result, simulated.end, simulated.fired) == ("ok", "ended", ("x",))
    assert simulated.rungs == rungs if rungs is not None else len(simulated.rungs) == 1


@pytest.mark.parametrize("mode", ["in_place", "respawn", "reenter", "sharded"])
@pytest.mark.parametrize(("voters", "for_s"), [(False, 0.8), (True, 0.8), (True, 5.0)])
def test_with_voters_a_coordinator_that_is_away_costs_no_process(
    mode: str, voters: bool, for_s: float
) -> None:
    """The lease is 0.5 s. Without voters, an agent kills its processes when the lease is over."""
    options = Options(
        recovery_mode=mode,
        ranks=4,
        nodes=3,
        steps=900,
        latency_s=0.003,
        voters=voters,
        beat_s=0.5 / limits.LEASE_BEATS,
    )
    fault = PlannedFault("x", "lose_coordinator", None, at_s=1.5, for_s=for_s)
    simulated = simulate(seed=1, options=options, faults=(fault,))
    assert (simulated.result, simulated.end, simulated.fired) == ("ok", "ended", ("x",)), (
        simulated.violations
    )
    assert (simulated.rungs == ()) == voters


@pytest.mark.parametrize(("for_s", "blamed"), [(1.0, []), (50.0, []), (300.0, [(1,)])])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_rank_without_a_processor_is_given_a_bounded_time(
    nodes: int, for_s: float, blamed: list[tuple[int, ...]]
) -> None:
    """The fault comes at the rank's fifth step, when its deadlines are learned and short."""
    faults = (PlannedFault("1", "starve", 1, mark="body", nth=5, for_s=for_s),)
    simulated = simulate(seed=3, options=Options(ranks=3, nodes=nodes, steps=9), faults=faults)
    assert (simulated.result, simulated.violations, simulated.fired, simulated.end) == (
        "ok",
        (),
        ("1",),
        "ended",
    )
    assert [one.ranks for one in simulated.interruptions] == blamed


@pytest.mark.parametrize("rank", [None, 1], ids=["all live", "one dies meanwhile"])
def test_a_run_that_ends_at_once_during_a_takeover_leaves_no_process(
    rank: int | None,
) -> None:
    """The run ends once the new coordinator knows which processes live."""
    faults = [PlannedFault("1", "lose_coordinator", None, at_s=0.5, for_s=0.1)]
    faults += [] if rank is None else [PlannedFault("2", "kill", rank, at_s=0.65)]
    simulated = simulate(
        seed=3,
        options=Options(ranks=4, nodes=2, steps=1_000, for_s=0.7, again_s=0.05),
        faults=tuple(faults),
    )
    assert (simulated.result, simulated.violations, simulated.end) == ("ok", (), "stopped")
    assert simulated.sim_s < 2.0, "nobody is waited for who has ended"


@pytest.mark.parametrize("kind", ["stop", "deaf", "hang"])
def test_a_hang_found_without_a_coordinator_is_found_again(kind: str) -> None:
    """The report that the agent makes without a coordinator is lost."""
    faults = (
        PlannedFault("1", kind, 1, mark="body", nth=8, for_s=1e6),
        PlannedFault("2", "lose_coordinator", None, mark="body", nth=28, for_s=3.0),
    )
    simulated = simulate(seed=3, options=Options(ranks=4, nodes=2, steps=40), faults=faults)
    assert (simulated.result, simulated.violations, simulated.end) == ("ok", (), "ended")
    assert [one.ranks for one in simulated.interruptions] == [(1,)]
    assert simulated.sim_s < 10.0


@pytest.mark.parametrize("at_s", [0.5, 1.5])
def test_a_plain_script_goes_on_during_a_takeover(
    at_s: float,
) -> None:
    """All of its processes run. No process is started again, and no interruption is recorded."""
    options = Options(recovery_mode="plain", ranks=4, nodes=2, steps=100, latency_s=0.003)
    simulated = simulate(
        seed=1,
        options=options,
        faults=(PlannedFault("1", "lose_coordinator", None, at_s=at_s, for_s=1.0),),
    )
    assert (simulated.result, simulated.violations, simulated.end, simulated.fired) == (
        "ok",
        (),
        "ended",
        ("1",),
    )
    assert simulated.interruptions == ()


def test_a_link_that_stays_cut_is_not_blamed_on_the_rank_that_raised() -> None:
    """All ranks restart, and their group cannot be formed. The link is at fault for that, and not
    the rank that raised before.
    """
    faults = (
        PlannedFault("1", "raise", 1, mark="prepared", nth=3),
        PlannedFault("2", "part", None, node=0, peer=1, mark="still", for_s=400.0),
    )
    simulated = simulate(
        seed=3, options=Options(recovery_mode="respawn", ranks=4, nodes=2, steps=9), faults=faults
    )
    assert (simulated.result, simulated.violations, simulated.end) == ("ok", (), "ended")


def test_a_swarm_covers_all_rungs_ends_and_modes(swarm: Tally) -> None:
    facts = swarm.as_dict()
    assert swarm.overlap >= 0.3
    assert swarm.counted >= SWARM_SEEDS / 2
    assert set(facts["rungs"]) == {"repeat", "reenter", "respawn", "spare", "restart", "stop"}
    assert set(facts["ends"]) == {"ended", "failed", "stopped"}
    assert len(facts["way"]) == 5


def _twelve_runs(python: str, **environment: str) -> str:
    program = (
        "import json; from outlast.sim.simulated_run import simulate_seed;"
        " runs = [simulate_seed(seed=seed, given={}) for seed in range(12)];"
        " print(json.dumps([simulated.as_dict() for simulated in runs]))"
    )
    return subprocess.run(
        [python, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_the_same_seed_has_the_same_course_whatever_the_hash_seed() -> None:
    said = [_twelve_runs(sys.executable, PYTHONPATH=SOURCE, PYTHONHASHSEED=salt) for salt in "12"]
    assert said[0] == said[1]
    assert len({one["trace_digest"] for one in json.loads(said[0])}) == 12


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_same_seed_has_the_same_course_under_every_installed_python(version: str) -> None:
    """The other Python gets only the package's own files. Python 3.10 needs tomli besides them."""
    python = shutil.which(f"python{version}") or ""
    if (
        not python
        or subprocess.run(
            [python, "-c", "import outlast.sim.simulated_run"],
            env={"PYTHONPATH": SOURCE},
            capture_output=True,
            timeout=60,
        ).returncode
    ):
        pytest.skip(f"no Python {version} that can read the package is at hand")
    assert _twelve_runs(python, PYTHONPATH=SOURCE) == _twelve_runs(
        sys.executable, PYTHONPATH=SOURCE
    )


def test_ticks_that_are_left_out_change_nothing() -> None:
    """The same runs are simulated with every tick, unless that makes tens of thousands of ticks."""
    saved = 0
    for seed in range(25):
        options = draw_options(Stream(seed, "options"), {})
        faults = tuple(
            one for one in draw_faults(Stream(seed, "faults"), options) if one.kind != "hang"
        )
        worlds = [
            World(
                options=options,
                script=script_of(options.recovery_mode),
                faults=faults,
                seed=seed,
                rests=rests,
            )
            for rests in (True, False)
        ]
        worlds[0].run(bound_s=SLACK_S)
        if worlds[0].age_s > 30.0:
            continue
        worlds[1].run(bound_s=SLACK_S)
        assert worlds[0].trace.digest() == worlds[1].trace.digest(), f"seed {seed}"
        saved += worlds[1].timeline.events - worlds[0].timeline.events
    assert saved > 0


def test_a_new_draw_for_one_purpose_shifts_no_other() -> None:
    first, second = Stream(7, "links"), Stream(7, "work")
    before = [second.between(0, 1) for _ in range(5)]
    again = Stream(7, "work")
    for _ in range(5):
        first.between(0, 1)
        assert again.between(0, 1) == before.pop(0)


def test_draws_are_the_same_in_every_version_of_python() -> None:
    """Golden values: a seed that a user has reported must give the same draws in every version."""
    stream = Stream(7, "work")
    assert [stream.below(1000), stream.pick("abcdef"), round(stream.between(2, 3), 6)] == [
        231,
        "e",
        2.971205,
    ]


def test_ties_go_by_priority_and_then_by_who_came_first() -> None:
    timeline, order = Timeline(began_s=5.0), []
    for name, priority in (("c", LATE), ("a", NORMAL), ("b", NORMAL), ("first", URGENT)):
        timeline.after(1.0, partial(order.append, name), priority=priority)
    timeline.after(-1.0, lambda: order.append("now"))
    while timeline.step():
        pass
    assert order == ["now", "first", "a", "b", "c"]
    assert (timeline.now_s, timeline.events) == (6.0, 5)


def test_options_that_are_given_stay_and_shift_no_other() -> None:
    drawn, given = (
        draw_options(Stream(3, "options"), {}),
        draw_options(Stream(3, "options"), {"ranks": 17}),
    )
    assert given == replace(drawn, ranks=17)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": 100_001}, "ranks is 100001"),
        ({"nodes": 2, "spare_nodes": 2}, "2 of 2 nodes are spare nodes"),
        ({"nodes": 5, "ranks": 4}, "5 nodes for 4 ranks"),
        ({"nodes": 2, "drift": 0.5}, "drift is 0.5"),
        ({"spares": 17}, "spares is 17"),
        ({"steps": 0}, "steps is 0"),
        ({"recovery_mode": "x"}, "no --recovery-mode 'x'"),
    ],
)
def test_impossible_options_are_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        simulate_seed(seed=1, given=given)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (PlannedFault("x", "kill", 3, "body"), "fault x strikes rank 3, but there are 3"),
        (PlannedFault("x", "kill", -1, "parked"), "strikes a spare"),
        (
            PlannedFault("x", "cut", None, at_s=1.0, node=1),
            "fault x strikes node 1, but there are 1",
        ),
        (
            PlannedFault("x", "lose_coordinator", None, at_s=1.0),
            "fault x needs several nodes, but there is one",
        ),
    ],
)
def test_a_plan_for_what_does_not_exist_is_refused(fault: PlannedFault, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        simulate(seed=0, options=Options(), faults=(fault,))


def test_a_fault_that_never_fires_is_said_so() -> None:
    simulated = simulate(
        seed=0,
        options=Options(),
        faults=(
            PlannedFault("late", "kill", 1, "body", 50),
            PlannedFault("timely", "kill", 1, "body", 2),
        ),
    )
    assert [(one["id"], one["fired"]) for one in simulated.as_dict()["faults"]] == [
        ("late", False),
        ("timely", True),
    ]
    assert (simulated.result, simulated.counts) == ("ok", True)
