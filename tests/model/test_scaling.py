"""model/scaling.py: caps, and runs at the best interval, agree with their closed forms, with a
search, and with the published figures.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.errors import UsageError
from outlast.model.intervals import best_efficiency, first_order_overhead, young_s
from outlast.model.scaling import (
    Growth,
    Latency,
    Network,
    cap_gpus,
    cap_storage_chinchilla_gpus,
    cap_storage_fixed_gpus,
    chinchilla,
    constant_storage,
    exponent_for_cap,
    fixed_model,
    full_bisection,
    gpus_at_efficiency,
    run_at_best_interval,
    torus,
    transfer_s,
    whole_memory,
)

MTTF_S = 50_000 * 3600.0
STATE_BYTES, STORAGE, GPU_LINK = 5e12, 2e12, 50e9
FIXED, SCALED = fixed_model(STATE_BYTES), chinchilla(STATE_BYTES, 16_384)


# --- caps -----------------------------------------------------------------------------------------

TABLE = [
    (constant_storage(STORAGE), 7.2e7, 4.4e6),
    (torus(2, GPU_LINK), 3.2e12, 2.3e8),
    (torus(3, GPU_LINK), 5.8e18, 1.08e10),
    (torus(4, GPU_LINK), 1.1e25, 1.4e11),
    (full_bisection(GPU_LINK), math.inf, 5.3e16),
]


@pytest.mark.parametrize(
    ("network", "fixed", "scaled"),
    TABLE,
    ids=lambda one: one.name if isinstance(one, Network) else "",
)
def test_the_caps_of_each_network(network: Network, fixed: float, scaled: float) -> None:
    """The caps agree to the digits of the table of our reconstruction."""
    for cap, known in (
        (cap_gpus(MTTF_S, FIXED, network), fixed),
        (cap_gpus(MTTF_S, SCALED, network), scaled),
    ):
        assert cap == known or cap == pytest.approx(known, rel=0.05)


def test_whole_memory_and_latency_have_caps_of_their_own() -> None:
    assert [
        cap_gpus(MTTF_S, whole_memory(80e9), full_bisection(link)) for link in (50e9, 900e9)
    ] == [pytest.approx(1.125e8), pytest.approx(2.025e9)]
    nothing = fixed_model(1e-30)
    known = {
        (Latency.RING, 1e-6): 1.34e7,
        (Latency.RING, 1e-5): 4.24e6,
        (Latency.TREE, 1e-6): 4.3e12,
        (Latency.TREE, 1e-5): 4.6e11,
    }
    for (latency, hop_s), cap in known.items():
        assert cap_gpus(
            MTTF_S, nothing, full_bisection(GPU_LINK).with_latency(latency, hop_s)
        ) == pytest.approx(cap, rel=0.01)


def test_the_closed_caps_of_storage_are_those_that_a_search_finds() -> None:
    save_s = STATE_BYTES / STORAGE
    assert (
        cap_storage_fixed_gpus(MTTF_S, save_s)
        == pytest.approx(cap_gpus(MTTF_S, FIXED, constant_storage(STORAGE)), rel=1e-9)
        == pytest.approx(7.2e7)
    )
    assert cap_storage_chinchilla_gpus(MTTF_S, save_s, 16_384) == pytest.approx(
        cap_gpus(MTTF_S, SCALED, constant_storage(STORAGE)), rel=1e-9
    )
    assert cap_gpus(MTTF_S, FIXED, constant_storage(STORAGE), transfers=2) == pytest.approx(3.6e7)
    assert cap_gpus(MTTF_S, SCALED, constant_storage(STORAGE), transfers=2) == pytest.approx(
        2.77e6, rel=0.01
    )


@given(
    a=st.floats(0, 1), beta=st.floats(0, 1), mttf=st.floats(1e4, 1e10), state=st.floats(1e9, 1e15)
)
def test_a_cap_without_latency_is_its_formula(
    a: float, beta: float, mttf: float, state: float
) -> None:
    exponent = 1 + a - beta
    if exponent < 0.3:
        return
    growth = Growth("some", state, a, 16_384.0)
    formula = (mttf * GPU_LINK * 16_384.0**a / state) ** (1 / exponent)
    cap = cap_gpus(mttf, growth, Network("some", GPU_LINK, beta))
    assert cap == (
        0.0 if formula < 1 else math.inf if formula >= 1e40 else pytest.approx(formula, rel=1e-9)
    )


def test_the_network_that_a_cap_would_need() -> None:
    """Sextillions (1e21) of GPUs with a model that does not grow need a network between a 3D and a
    4D torus, without latency.
    """
    beta = exponent_for_cap(MTTF_S, FIXED, GPU_LINK, 1e21)
    assert beta == pytest.approx(0.702, abs=0.001)
    assert 2 / 3 < beta < 3 / 4
    assert cap_gpus(MTTF_S, FIXED, Network("needed", GPU_LINK, beta)) == pytest.approx(
        1e21, rel=1e-6
    )


# --- what is left ---------------------------------------------------------------------------------

# of a state of 4.86 TB: GPUs, fixed model, scaled model (facts: restart takes as long as a save)
EFFICIENCIES = [
    (16_384, 0.979, 0.979),
    (100_000, 0.948, 0.918),
    (1_000_000, 0.833, 0.547),
    (4_000_000, 0.669, 0.082),
    (70_000_000, 0.066, 0.0),
]


@pytest.mark.parametrize(("gpus", "fixed", "scaled"), EFFICIENCIES)
def test_efficiency_at_scale_where_a_restart_is_one_load(
    gpus: float, fixed: float, scaled: float
) -> None:
    for growth, known in ((fixed_model(4.86e12), fixed), (chinchilla(4.86e12, 16_384), scaled)):
        found = run_at_best_interval(
            gpus,
            unit_mttf_s=MTTF_S,
            growth=growth,
            network=constant_storage(STORAGE),
            restart_s=0.0,
        )
        assert found.efficiency == pytest.approx(known, abs=0.0006)


def test_efficiency_at_scale_where_a_restart_takes_five_minutes() -> None:
    save_s = 4.86e12 / STORAGE
    found = [
        best_efficiency(save_s, MTTF_S / gpus, 300.0)
        for gpus in (16_384, 100_000, 1_000_000, 4_000_000)
    ]
    assert found == [
        pytest.approx(0.953, abs=5e-4),
        pytest.approx(0.803, abs=5e-4),
        pytest.approx(0.160, abs=5e-4),
        pytest.approx(0.0009, abs=5e-5),
    ]


def test_young_overhead_of_storage_reaches_its_marks() -> None:
    """The overhead is 5, 10 and 50 % at 93 thousand, 370 thousand and 9.3 million GPUs."""
    save_s = 4.86e12 / STORAGE
    for gpus, overhead in ((93e3, 0.05), (370e3, 0.1), (9.3e6, 0.5)):
        assert first_order_overhead(
            young_s(save_s, MTTF_S / gpus), save_s, MTTF_S / gpus
        ) == pytest.approx(overhead, rel=0.01)


@given(
    gpus=st.floats(1, 1e12),
    restart=st.floats(0, 3600),
    hop=st.floats(0, 1e-3),
    tree=st.booleans(),
    a=st.sampled_from([0.0, 0.5]),
)
def test_the_costs_multiply_to_what_is_left(
    gpus: float, restart: float, hop: float, tree: bool, a: float
) -> None:
    network = torus(3, GPU_LINK).with_latency(Latency.TREE if tree else Latency.RING, hop)
    growth = SCALED if a else FIXED
    found = run_at_best_interval(
        gpus, unit_mttf_s=MTTF_S, growth=growth, network=network, restart_s=restart
    )
    assert min(found.costs.values()) >= 0
    assert found.efficiency == pytest.approx(
        math.exp(-math.fsum(found.costs.values())), rel=1e-9, abs=1e-300
    )
    assert found.costs[found.binding] == max(found.costs.values())
    assert found.save_s == transfer_s(gpus, growth, network)


@pytest.mark.parametrize(
    "network",
    [*(row[0] for row in TABLE), full_bisection(GPU_LINK).with_latency(Latency.RING, 1e-6)],
    ids=lambda one: one.name,
)
@pytest.mark.parametrize("growth", [FIXED, SCALED], ids=lambda one: one.name)
def test_below_the_marked_scale_the_share_holds_and_above_it_does_not(
    network: Network, growth: Growth
) -> None:
    for share in (0.9, 0.5, 0.01):
        marked = gpus_at_efficiency(
            share, unit_mttf_s=MTTF_S, growth=growth, network=network, restart_s=300.0
        )
        below, above = (
            run_at_best_interval(
                marked * factor, unit_mttf_s=MTTF_S, growth=growth, network=network, restart_s=300.0
            ).efficiency
            for factor in (0.999, 1.001)
        )
        assert above < share < below
        assert marked < cap_gpus(MTTF_S, growth, network)


def test_a_restart_of_five_minutes_binds_first_on_every_network() -> None:
    """Restarts take half of the time long before any cap of bandwidth is reached. On every network
    that happens near 0.35 to 0.42 million GPUs.
    """
    for network, *_ in TABLE:
        half = gpus_at_efficiency(
            0.5, unit_mttf_s=MTTF_S, growth=FIXED, network=network, restart_s=300.0
        )
        assert 3.4e5 < half < 4.2e5
        assert (
            run_at_best_interval(
                half, unit_mttf_s=MTTF_S, growth=FIXED, network=network, restart_s=300.0
            ).binding
            == "restart"
        )


def test_without_a_restart_the_ring_binds_and_no_network_helps() -> None:
    ring = full_bisection(GPU_LINK).with_latency(Latency.RING, 1e-6)
    half = gpus_at_efficiency(0.5, unit_mttf_s=MTTF_S, growth=FIXED, network=ring, restart_s=0.0)
    assert (
        run_at_best_interval(
            half, unit_mttf_s=MTTF_S, growth=FIXED, network=ring, restart_s=0.0
        ).binding
        == "latency"
    )
    assert half < 1.34e7


def test_an_mttf_shorter_than_a_save_is_an_answer() -> None:
    found = run_at_best_interval(
        1e30, unit_mttf_s=1.0, growth=SCALED, network=constant_storage(1.0), restart_s=1e6
    )
    assert found.efficiency == 0.0
    assert found.binding in found.costs
    assert (
        gpus_at_efficiency(
            0.9, unit_mttf_s=1e-9, growth=FIXED, network=constant_storage(1.0), restart_s=1.0
        )
        == 0.0
    )
    assert (
        gpus_at_efficiency(
            0.9, unit_mttf_s=math.inf, growth=FIXED, network=full_bisection(GPU_LINK), restart_s=1.0
        )
        == math.inf
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: fixed_model(0.0),
        lambda: torus(0, 1.0),
        lambda: constant_storage(math.nan),
        lambda: cap_gpus(-1.0, FIXED, constant_storage(1.0)),
        lambda: run_at_best_interval(
            0.5, unit_mttf_s=1.0, growth=FIXED, network=constant_storage(1.0), restart_s=0.0
        ),
        lambda: gpus_at_efficiency(
            0.0, unit_mttf_s=1.0, growth=FIXED, network=constant_storage(1.0), restart_s=0.0
        ),
        lambda: cap_storage_fixed_gpus(1.0, 0.0),
        lambda: cap_storage_chinchilla_gpus(1.0, 1.0, 0.0),
    ],
)
def test_what_cannot_be_scaled_is_refused(call: object) -> None:
    with pytest.raises(UsageError):
        call()  # type: ignore[operator]
