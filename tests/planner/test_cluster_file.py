"""planner/cluster_file.py, cluster_text.py, readers.py and resolve.py: the inputs that people
write, and the values that follow from them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.terms import FailureClass
from outlast.planner.cluster_file import Cluster, Origin, defaults, parse
from outlast.planner.cluster_text import render
from outlast.planner.resolve import resolve
from outlast.planner.scenario import (
    Extent,
    FailureRate,
    Job,
    Lemons,
    Maintenance,
    Recovery,
    Repair,
    Scenario,
    ScenarioTier,
    Stragglers,
    Unit,
    Wave,
)
from outlast.planner.spread import Shape, Spread, constant, exponential, lognormal, measured
from tests.planner.cluster_of_scenario import of_scenario

PRESETS = sorted(
    (Path(__file__).parents[2] / "src" / "outlast" / "planner" / "presets").glob("*.toml")
)
SMALL = """
schema = 1
name = "small"

[job]
gpus = 64
duration = "2d"
source = "our order"
sources = { duration = "the plan of May" }
ranges = { gpus = [32, 128] }

[[failure]]
class = "gpu"
count = 4
exposure = "1000d"

[[tier]]
name = "disk"
bandwidth = "1GB/s"

[recovery]
regroup = "30s"
"""


def small(text: str = "") -> Cluster:
    return parse(SMALL + text, source="small.toml")


# --- what is said, and by whom --------------------------------------------------------------------


def test_every_value_says_who_gave_it_and_why() -> None:
    """Method: a file that gives few values. Each other value has a stated default or is derived
    from the given ones, with a reason.
    """
    inputs = resolve(small()).inputs
    assert (inputs["job.gpus"].said, inputs["job.gpus"].source, inputs["job.gpus"].origin) == (
        "64",
        "our order",
        Origin.FILE,
    )
    assert inputs["job.duration"].source == "the plan of May"
    assert inputs["job.gpus"].range == (32, 128)
    assert (inputs["repair.time"].said, inputs["repair.time"].origin) == ("1d", Origin.DEFAULT)
    assert (inputs["failure.gpu.mttf"].said, inputs["failure.gpu.mttf"].origin) == (
        "250d",
        Origin.WORKED_OUT,
    )
    assert (inputs["tier.disk.interval"].origin, inputs["repair.spares"].origin) == (
        Origin.PLAN,
        Origin.PLAN,
    )
    assert not [one.path for one in inputs.values() if not one.source or not one.said]


def test_nothing_given_is_a_whole_scenario_of_stated_defaults() -> None:
    resolved = resolve(defaults())
    assert {one.origin for one in resolved.inputs.values()} == {
        Origin.DEFAULT,
        Origin.WORKED_OUT,
        Origin.PLAN,
    }
    assert all(one.source for one in resolved.inputs.values())
    assert resolved.scenario.job.gpus == 16_384
    assert resolved.scenario.job.state_bytes == 405e9 * 12


def test_the_default_cluster_saves_as_epoch_ai_says_of_llama() -> None:
    """A save takes 2.4 s, and one begins every 3.9 min (facts 1.2). Here both follow from the
    derived values.
    """
    scenario = resolve(defaults()).scenario
    (tier,) = scenario.tiers
    assert tier.stall_s == pytest.approx(2.43)
    assert 225 < tier.interval_s < 237
    assert tier.interval_s / scenario.job.step_s == pytest.approx(
        round(tier.interval_s / scenario.job.step_s)
    )


def test_a_given_number_wins_over_what_would_be_worked_out() -> None:
    cluster = small()
    assert resolve(cluster).scenario.tiers[0].stall_s == pytest.approx(405e9 * 12 / 1e9)
    given = cluster.put("tier.disk.stall", "3s", origin=Origin.FLAG, source="--save")
    resolved = resolve(given)
    assert (resolved.scenario.tiers[0].stall_s, resolved.inputs["tier.disk.stall"].source) == (
        3.0,
        "--save",
    )


# --- what follows from what -----------------------------------------------------------------------


def test_a_count_in_an_exposure_is_a_rate_that_is_not_sure() -> None:
    (rate,) = resolve(small()).scenario.failures
    assert (rate.mttf_s, rate.count) == (pytest.approx(250 * 86_400), 4)


def test_a_class_of_which_none_was_seen_keeps_its_exposure() -> None:
    """The rate is not zero. mttf x count is the exposure, from which the posterior Gamma(1/2,
    exposure) is drawn.
    """
    (rate,) = resolve(parse(SMALL.replace("count = 4", "count = 0"), source="x")).scenario.failures
    assert rate.count > 0
    assert rate.mttf_s * rate.count == pytest.approx(1000 * 86_400)


def test_a_save_that_overlaps_stalls_nothing_and_is_whole_later() -> None:
    (tier,) = resolve(
        small().put("tier.disk.blocking", "false", origin=Origin.FLAG, source="x")
    ).scenario.tiers
    assert (tier.stall_s, tier.write_s) == (0.0, pytest.approx(4860.0))
    assert tier.interval_s >= tier.write_s


@pytest.mark.parametrize(
    ("redundancy", "apart", "survives", "traffic"),
    [
        ("none", "rack", Extent.PROCESS, 1),
        ("copies=1", "rack", Extent.RACK, 1),
        ("copies=2", "node", Extent.NODE, 2),
        ("parity=8+2", "rack", Extent.RACK, 9 / 8),
    ],
)
def test_redundancy_says_what_a_tier_survives_and_what_crosses_the_network(
    redundancy: str, apart: str, survives: Extent, traffic: float
) -> None:
    text = (
        f'\n[[tier]]\nname = "peer"\nredundancy = "{redundancy}"\napart ='
        f' "{apart}"\nbandwidth_per_gpu = "1GB/s"\nblocking = false\n'
    )
    peer = resolve(small(text)).scenario.tiers[1]
    assert peer.survives is survives
    assert peer.write_s == pytest.approx(405e9 * 12 / 64e9 * traffic)


def test_each_tier_is_saved_for_the_failures_that_no_cheaper_one_survives() -> None:
    """Method: a memory tier survives the frequent failures. So the storage tier is saved more
    rarely, by the square root of the ratio of the failures.
    """
    alone = small(
        '\n[[failure]]\nclass = "power_supply"\nextent = "run"\nunit = "run"\nmttf = "1000d"\n'
    )
    both = small(
        '\n[[failure]]\nclass = "power_supply"\nextent = "run"\nunit = "run"\nmttf = "1000d"\n'
        '\n[[tier]]\nname = "peer"\nredundancy = "copies=1"\nstall = "1s"\nwrite = "0s"\n'
    )
    slow, fast = (
        resolve(alone).scenario.tiers[0].interval_s,
        resolve(both).scenario.tiers[0].interval_s,
    )
    rates = (64 / (250 * 86_400) + 1 / (1000 * 86_400), 1 / (1000 * 86_400))
    assert min(fast, 86_400) / slow == pytest.approx(
        min(math.sqrt(rates[0] / rates[1]) * slow, 86_400) / slow, rel=0.05
    )


def test_spares_are_short_one_moment_in_a_thousand() -> None:
    """Facts 1.5: with 16,384 GPUs, one failure in 50,000 GPU-hours and repairs of 24 h, 18 spare
    nodes are needed.
    """
    text = 'schema = 1\n[[failure]]\nclass = "gpu"\nmttf = "50000h"\n[repair]\ntime = "24h"\n'
    resolved = resolve(parse(text, source="x"))
    assert resolved.scenario.repair.spare_nodes == 18
    assert "on average 7.9 nodes are in repair" in resolved.inputs["repair.spares"].source


def test_spares_are_never_more_than_nodes_where_the_plan_chooses_them() -> None:
    scenario = resolve(
        parse('schema = 1\n[job]\ngpus = 8\n[[failure]]\nclass = "gpu"\nmttf = "1h"\n', source="x")
    ).scenario
    assert scenario.repair.spare_nodes == scenario.job.nodes == 1


def test_a_cluster_that_fails_faster_than_it_saves_still_has_a_plan() -> None:
    scenario = resolve(
        parse('schema = 1\n[[failure]]\nclass = "gpu"\nmttf = "1s"\n', source="x")
    ).scenario
    assert all(math.isfinite(tier.interval_s) and tier.interval_s > 0 for tier in scenario.tiers)


# --- presets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_preset_is_read_and_each_of_its_values_has_a_source(path: Path) -> None:
    """A number without a tag is called an assumption, or is our own measurement."""
    cluster = parse(path.read_text(), source=path.name, origin=Origin.PRESET)
    resolve(cluster)
    assert cluster.about
    for one in cluster.inputs.values():
        if one.origin is Origin.PRESET:
            tagged = any(
                tag in one.source
                for tag in (
                    "[P]",
                    "[S]",
                    "[C]",
                    "[M], unverified",
                    "assumption",
                    "Assumption",
                    "outlast",
                )
            )
            assert tagged or one.path.endswith((".survives", ".class", ".unit")), (
                f"{one.path}: {one.source}"
            )
            assert one.source != path.name


def test_the_presets_of_the_issue_are_there() -> None:
    assert {path.stem for path in PRESETS} == {
        "llama3-405b",
        "llama3-405b-126",
        "rsc-1",
        "rsc-2",
        "epoch",
        "100k",
        "gb200-nvl72",
        "lab-8",
    }


@pytest.mark.parametrize(
    ("name", "mttf_h"), [("llama3-405b", 3.09), ("epoch", 3.05), ("rsc-1", 1.803), ("100k", 0.3)]
)
def test_a_preset_fails_as_often_as_its_source_says(name: str, mttf_h: float) -> None:
    (path,) = [path for path in PRESETS if path.stem == name]
    scenario = resolve(parse(path.read_text(), source=name)).scenario
    per_s = math.fsum(scenario.job.units(one.unit) / one.mttf_s for one in scenario.failures)
    assert 1 / per_s / 3600 == pytest.approx(mttf_h, rel=2e-3)


def test_llama_is_its_18_rows_by_count() -> None:
    for name, total in (("llama3-405b", 419), ("llama3-405b-126", 397)):
        (path,) = [path for path in PRESETS if path.stem == name]
        counts = [
            one.count for one in resolve(parse(path.read_text(), source=name)).scenario.failures
        ]
        assert (len(counts), sum(counts)) == (18, total)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error", "hint"),
    [
        ("schema = 2", "schema is 2", "schema = 1"),
        ("schema = 1\n[jobb]\n", "there is no key 'jobb'", "did you mean 'job'?"),
        ("schema = 1\n[job]\ngpu = 8\n", "there is no key 'gpu'", "did you mean 'gpus'?"),
        ("schema = 1\n[job]\ngpus = 0\n", "x.toml, job: gpus", ""),
        ("schema = 1\n[job]\ngpus = -8\n", "x.toml, job: gpus", ""),
        ("schema = 1\n[job]\ngpus = nan\n", "not a finite number", ""),
        ("schema = 1\n[job]\ngpus = inf\n", "not a finite number", ""),
        ("schema = 1\n[job]\nduration = 54\n", "has no unit", "54s, 54min or 54h"),
        ('schema = 1\n[job]\nstate = "405B"\n', "is a number of parameters", "405GB"),
        ('schema = 1\n[job]\nstep = { median = "1s" }\n', "x.toml, job: step", ""),
        ('schema = 1\n[job]\nsources = { gpus = "me" }\n', "there is no key 'gpus'", ""),
        ("schema = 1\n[job]\ngpus = 8\nranges = { gpus = [4] }\n", "it has two ends", ""),
        (
            'schema = 1\n[recovery]\nregroup = { mean = "1s", p95 = "2s" }\n',
            "regroup has mean, p95",
            "",
        ),
        ('schema = 1\n[recovery]\nregroup = { median = "2s", p95 = "1s" }\n', "median", ""),
        ("schema = 1\n[recovery]\nregroup = { measured = [] }\n", "measured is []", ""),
        ("schema = 1\n[recovery]\nshrinks = 1\n", "it is true or false", ""),
        ("schema = 1\n[[failure]]\n", "x.toml, failure 1: name is ''", ""),
        (
            'schema = 1\n[[failure]]\nclass = "gpus"\nmttf = "1h"\n',
            "class is 'gpus'",
            "did you mean 'gpu'?",
        ),
        ('schema = 1\n[[failure]]\nclass = "gpu"\n', "how often", "mttf, or count and exposure"),
        (
            'schema = 1\n[[failure]]\nclass = "gpu"\nexposure = "1h"\n',
            "exposure without a count",
            "",
        ),
        (
            'schema = 1\n[[failure]]\nclass = "gpu"\nexposure = "1h"\ncount = 1\nmttf = "1h"\n',
            "how often",
            "",
        ),
        (
            'schema = 1\n[[failure]]\nclass = "gpu"\nexposure = "1h"\ncount = 1\nshape = 2\n',
            "constant rate",
            "scale of the Weibull law",
        ),
        (
            (
                'schema = 1\n[[failure]]\nclass = "gpu"\nmttf = "1h"\n[[failure]]\nclass ='
                ' "gpu"\nmttf = "1h"\n'
            ),
            "there is another 'gpu'",
            "name",
        ),
        (
            (
                'schema = 1\n[[failure]]\nclass = "gpu"\nmttf = "1h"\nwaves = [{ begins = "2d",'
                ' ends = "1d", factor = 2 }]\n'
            ),
            "ends before it begins",
            "",
        ),
        ('schema = 1\n[[tier]]\nname = "disk"\n', "how long a save takes", "bandwidth"),
        ('schema = 1\n[[tier]]\nname = "di sk"\n', "made of letters", ""),
        (
            'schema = 1\n[[tier]]\nname = "m"\nstall = "1s"\nredundancy = "copies=0"\n',
            "which is not known",
            "copies=1",
        ),
        ("schema = 1\n[job]\ngpus = 16\n[repair]\nspares = 3\n", "more spares than nodes", ""),
        ("schema = 1\n[lemons]\nshare = 5\n", "more than the whole", "5%"),
        ('schema = 1\n[power]\ngpu = "700"\n', "expected a power", ""),
        ("schema = 1\nname = 3\n", "name is 3", ""),
        ("tier = 1\nschema = 1\n", "tier has to be a list of tables", "[[tier]]"),
        ("schema = 1\njob = 1\n", "it is a table of", ""),
        ("not toml", "is not TOML", ""),
    ],
)
def test_what_cannot_be_is_named_with_its_place(text: str, error: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(parse(text, source="x.toml"))
    assert error in caught.value.args[0]
    assert hint in caught.value.hint


def test_an_input_that_does_not_exist_is_named_with_the_one_that_was_meant() -> None:
    with pytest.raises(UsageError) as caught:
        small().put("tier.disc.stall", "1s", origin=Origin.FLAG, source="--set")
    assert (caught.value.args[0], caught.value.hint) == (
        "there is no input 'tier.disc.stall'",
        "did you mean 'tier.disk.stall'?",
    )


@pytest.mark.parametrize(
    "text", ["30s", "mean=30s", "median=5min,p95=20min", "median = 5min, p95 = 20min"]
)
def test_a_flag_can_say_how_a_duration_varies(text: str) -> None:
    value = (
        small()
        .put("recovery.detect", text, origin=Origin.FLAG, source="--detect")
        .value("recovery.detect")
    )
    expected = {"30s": constant(30), "mean=30s": exponential(30)}.get(text, lognormal(300, 1200))
    assert value == expected


# --- writing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_cluster_that_is_written_is_read_as_the_same(path: Path) -> None:
    cluster = parse(path.read_text(), source=path.stem)
    again = parse(render(cluster), source=path.stem)
    assert again == cluster


durations = st.floats(1e-3, 1e8)
spreads = st.one_of(
    durations.map(constant),
    durations.map(exponential),
    st.tuples(durations, st.floats(1, 50)).map(lambda pair: lognormal(pair[0], pair[0] * pair[1])),
    st.lists(durations, min_size=1, max_size=5).map(measured),
)
rates = st.builds(
    FailureRate,
    st.sampled_from(FailureClass),
    st.sampled_from(Unit),
    st.sampled_from(Extent),
    durations,
    st.floats(0.1, 5),
    durations,
    st.floats(0, 1e4),
    st.lists(
        st.builds(
            lambda begins, lasts, factor: Wave(begins, begins + lasts, factor),
            durations,
            durations,
            st.floats(0, 9),
        ),
        max_size=2,
    ).map(tuple),
    st.just("counted"),
)
scenarios = st.builds(
    lambda failures, spread, seconds, share: Scenario(
        "one",
        Job(
            64,
            seconds,
            8,
            2,
            step_s=seconds / 7,
            state_bytes=seconds,
            throttle=share,
            samples_per_step=3,
            gpu_hour_price=2.5,
        ),
        tuple(failures),
        (
            ScenarioTier("memory", seconds, 0.0, seconds, Extent.NODE, spread, "seen"),
            ScenarioTier("disk", math.inf, seconds, 0.0, Extent.RUN, spread, "seen"),
        ),
        Recovery(spread, spread, spread, True, "seen"),
        Repair(2, spread, share, share, "seen"),
        Lemons(share, 2.0, share, "seen"),
        Stragglers(seconds, 1.5, spread, "seen"),
        Maintenance(seconds, seconds / 2, "seen"),
    ),
    st.lists(rates, min_size=1, max_size=3),
    spreads,
    durations,
    st.floats(0, 1),
)


def near(one: Spread, other: Spread) -> bool:
    """Return whether two spreads agree. A lognormal is written by its 95th percentile, so its sigma
    may differ in the last digits.
    """
    return one.shape is other.shape and one.numbers == pytest.approx(
        other.numbers, rel=1e-9, abs=1e-12
    )


@given(scenarios)
def test_a_scenario_that_is_written_is_read_as_the_same(scenario: Scenario) -> None:
    """They are equal, except for the widths of lognormal durations."""
    text = render(of_scenario(scenario, source="a ledger"))
    again = resolve(parse(text, source="one")).scenario
    recovery, repair = scenario.recovery, scenario.repair
    assert near(again.recovery.detect, recovery.detect)
    assert [
        near(one.restore, other.restore)
        for one, other in zip(again.tiers, scenario.tiers, strict=True)
    ] == [True, True]
    same = replace(
        again,
        recovery=recovery,
        repair=replace(again.repair, time=repair.time),
        stragglers=scenario.stragglers,
        tiers=tuple(
            replace(one, restore=other.restore)
            for one, other in zip(again.tiers, scenario.tiers, strict=True)
        ),
        lemons=replace(again.lemons, source="seen"),
        maintenance=replace(again.maintenance, source="seen"),
    )
    assert same == scenario


@given(spreads)
def test_a_duration_that_is_written_is_read_as_the_same(spread: Spread) -> None:
    cluster = small().put_value("recovery.detect", spread, origin=Origin.FILE, source="seen")
    again = parse(render(cluster), source="x").value("recovery.detect")
    assert near(again, spread)
    if spread.shape is not Shape.LOGNORMAL:
        assert again == spread
