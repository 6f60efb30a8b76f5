"""Simulated lives: one seed, one course; a swarm of them keeps every rule; what is drawn covers
what it should.
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
# lives that broke a rule once: what was wrong, seed, options, faults
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
def test_what_a_swarm_once_found_stays_mended(path: Path) -> None:
    """All of it is said in the file, so that it stays the same life when draws change."""
    why, seed, options = (line.removeprefix("# ") for line in path.read_text().splitlines()[:3])
    planned = parse(path.read_text(), source=path.name)
    life = simulate(
        seed=int(seed.removeprefix("seed ")),
        options=Options.from_dict(json.loads(options.removeprefix("options "))),
        faults=planned,
    )
    assert life.violations == (), why


@pytest.mark.parametrize("head_s", [None, 0.3])
def test_a_lost_replica_costs_no_step_where_another_holds_its_shards(head_s: float | None) -> None:
    """Two replicas of two shards, one on each node, and a spare node. `head_s`: the coordinator
    dies as well, and another one comes after so long. Without replicas all begin from the start.
    """
    faults = [PlannedFault("power", "lose_node", 2, "body", 50, for_s=1_000.0)]
    if head_s is not None:
        faults.append(PlannedFault("head", "lose_coordinator", None, "gathering", for_s=head_s))
    options = Options(
        recovery_mode="sharded", ranks=4, nodes=3, spare_nodes=1, steps=200, latency_s=0.003
    )
    for replicas, lost in ((2, False), (1, True)):
        life = simulate(seed=1, options=replace(options, replicas=replicas), faults=tuple(faults))
        assert (life.result, life.end) == ("ok", "ended"), life
        assert ("restart" in life.rungs) is lost, life.rungs


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
    """What lasts less than a lease (6 s) interrupts nobody; after what lasts longer the ranks live
    on the spare node.
    """
    options = Options(
        recovery_mode=mode, ranks=4, nodes=3, spare_nodes=1, steps=200, latency_s=0.003
    )
    life = simulate(
        seed=1,
        options=options,
        faults=(
            PlannedFault(
                "x", kind, None if kind == "lose_coordinator" else 1, at_s=1.5, for_s=for_s
            ),
        ),
    )
    assert (life.result, life.end, life.fired) == ("ok", "ended", ("x",))
    assert life.rungs == rungs if rungs is not None else len(life.rungs) == 1


@pytest.mark.parametrize("mode", ["in_place", "respawn", "reenter", "sharded"])
@pytest.mark.parametrize(("voters", "for_s"), [(False, 0.8), (True, 0.8), (True, 5.0)])
def test_with_voters_a_coordinator_that_is_away_costs_no_process(
    mode: str, voters: bool, for_s: float
) -> None:
    """The lease is 0.5 s. Without voters every agent kills its processes when it is over."""
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
    life = simulate(seed=1, options=options, faults=(fault,))
    assert (life.result, life.end, life.fired) == ("ok", "ended", ("x",)), life.violations
    assert (life.rungs == ()) == voters


@pytest.mark.parametrize(("for_s", "blamed"), [(1.0, []), (50.0, []), (300.0, [(1,)])])
@pytest.mark.parametrize("nodes", [1, 2])
def test_who_has_no_processor_is_waited_for_up_to_a_bound(
    nodes: int, for_s: float, blamed: list[tuple[int, ...]]
) -> None:
    """At its fifth step, when its deadlines are learned and short."""
    faults = (PlannedFault("1", "starve", 1, mark="body", nth=5, for_s=for_s),)
    life = simulate(seed=3, options=Options(ranks=3, nodes=nodes, steps=9), faults=faults)
    assert (life.result, life.violations, life.fired, life.end) == ("ok", (), ("1",), "ended")
    assert [one.ranks for one in life.interruptions] == blamed


@pytest.mark.parametrize("rank", [None, 1], ids=["all live", "one dies meanwhile"])
def test_a_run_that_ends_at_once_during_a_takeover_leaves_nobody_behind(
    rank: int | None,
) -> None:
    """It ends once the new one knows who lives."""
    faults = [PlannedFault("1", "lose_coordinator", None, at_s=0.5, for_s=0.1)]
    faults += [] if rank is None else [PlannedFault("2", "kill", rank, at_s=0.65)]
    life = simulate(
        seed=3,
        options=Options(ranks=4, nodes=2, steps=1_000, for_s=0.7, again_s=0.05),
        faults=tuple(faults),
    )
    assert (life.result, life.violations, life.end) == ("ok", (), "stopped")
    assert life.sim_s < 2.0, "nobody is waited for who has ended"


@pytest.mark.parametrize("kind", ["stop", "deaf", "hang"])
def test_a_hang_found_without_a_coordinator_is_found_again(kind: str) -> None:
    """What its agent says then, nobody hears."""
    faults = (
        PlannedFault("1", kind, 1, mark="body", nth=8, for_s=1e6),
        PlannedFault("2", "lose_coordinator", None, mark="body", nth=28, for_s=3.0),
    )
    life = simulate(seed=3, options=Options(ranks=4, nodes=2, steps=40), faults=faults)
    assert (life.result, life.violations, life.end) == ("ok", (), "ended")
    assert [one.ranks for one in life.interruptions] == [(1,)]
    assert life.sim_s < 10.0


@pytest.mark.parametrize("at_s", [0.5, 1.5])
def test_a_plain_script_goes_on_during_a_takeover(
    at_s: float,
) -> None:
    """All of its processes run: nothing is begun again, nothing is written down."""
    options = Options(recovery_mode="plain", ranks=4, nodes=2, steps=100, latency_s=0.003)
    life = simulate(
        seed=1,
        options=options,
        faults=(PlannedFault("1", "lose_coordinator", None, at_s=at_s, for_s=1.0),),
    )
    assert (life.result, life.violations, life.end, life.fired) == ("ok", (), "ended", ("1",))
    assert life.interruptions == ()


def test_a_link_that_stays_cut_is_not_paid_for_by_who_raised_before() -> None:
    """All restart, and their group cannot be formed: that is the link's fault, whatever was the
    first one's.
    """
    faults = (
        PlannedFault("1", "raise", 1, mark="prepared", nth=3),
        PlannedFault("2", "part", None, node=0, peer=1, mark="still", for_s=400.0),
    )
    life = simulate(
        seed=3, options=Options(recovery_mode="respawn", ranks=4, nodes=2, steps=9), faults=faults
    )
    assert (life.result, life.violations, life.end) == ("ok", (), "ended")


def test_a_swarm_reaches_what_it_is_for(swarm: Tally) -> None:
    facts = swarm.as_dict()
    assert swarm.overlap >= 0.3
    assert swarm.counted >= SWARM_SEEDS / 2
    assert set(facts["rungs"]) == {"repeat", "reenter", "respawn", "spare", "restart", "stop"}
    assert set(facts["ends"]) == {"ended", "failed", "stopped"}
    assert len(facts["way"]) == 5


def _twelve_lives(python: str, **environment: str) -> str:
    program = (
        "import json; from outlast.sim.simulated_run import simulate_seed;"
        " lives = [simulate_seed(seed=seed, given={}) for seed in range(12)];"
        " print(json.dumps([life.as_dict() for life in lives]))"
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
    said = [_twelve_lives(sys.executable, PYTHONPATH=SOURCE, PYTHONHASHSEED=salt) for salt in "12"]
    assert said[0] == said[1]
    assert len({one["trace_digest"] for one in json.loads(said[0])}) == 12


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_same_seed_has_the_same_course_under_every_python_at_hand(version: str) -> None:
    """Nothing but the package's own files is given to it: 3.10 needs tomli beside them."""
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
    assert _twelve_lives(python, PYTHONPATH=SOURCE) == _twelve_lives(
        sys.executable, PYTHONPATH=SOURCE
    )


def test_ticks_that_are_left_out_change_nothing() -> None:
    """The same lives with every tick carried out, where these are not tens of thousands."""
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
    """Golden: a seed that somebody reported must stay that seed."""
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
    life = simulate(
        seed=0,
        options=Options(),
        faults=(
            PlannedFault("late", "kill", 1, "body", 50),
            PlannedFault("timely", "kill", 1, "body", 2),
        ),
    )
    assert [(one["id"], one["fired"]) for one in life.as_dict()["faults"]] == [
        ("late", False),
        ("timely", True),
    ]
    assert (life.result, life.counts) == ("ok", True)
