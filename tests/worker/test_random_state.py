"""Random state is captured only if it has changed, and restored bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from outlast.errors import CorruptError
from outlast.runtime.worker.tensors import random_state


@pytest.fixture(autouse=True)
def _leave_no_trace() -> Iterator[None]:
    before = random_state.capture()
    yield
    random_state.restore(before)


def draws() -> list[float]:
    out = [
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.normal()),
        torch.rand(1).item(),
        torch.randn(3)[1].item(),
    ]
    return [*out, random.gauss(0, 1), float(np.random.normal())]


MOVES: dict[str, Callable[[], object]] = {
    "python": random.random,
    "python-gauss": lambda: random.gauss(0, 1),
    "python-seed": lambda: random.seed(1),
    "numpy": np.random.rand,
    "numpy-normal": np.random.normal,
    "numpy-seed": lambda: np.random.seed(3),
    "torch": lambda: torch.rand(1),
    "torch-seed": lambda: torch.manual_seed(9),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(3), 0.5),
}


@pytest.mark.parametrize("cached", [False, True], ids=["no-gaussian-cached", "gaussian-cached"])
@pytest.mark.parametrize("move", MOVES)
def test_any_draw_is_seen_and_no_draw_costs_no_copy(move: str, cached: bool) -> None:
    """A cached second Gaussian is state too: taking it changes no word of the generator."""
    # an earlier test may have left a seed that is set again here
    random.random(), np.random.random(), torch.rand(1)
    if cached:
        random.gauss(0, 1), np.random.normal()
    before = random_state.capture()
    assert random_state.capture(before) is before
    assert not random_state.moved_since(before)
    MOVES[move]()
    assert random_state.moved_since(before)
    random_state.restore(before)
    assert not random_state.moved_since(before)


@pytest.mark.parametrize("warm_up", [0, 1, 700])
def test_restored_state_draws_the_same_numbers(warm_up: int) -> None:
    for _ in range(warm_up):
        draws()
    state = random_state.capture()
    encoded = random_state.encode(state)
    expected = draws()
    random_state.restore(
        random_state.decode(
            encoded.text, {name: tensor.clone() for name, tensor in encoded.tensors.items()}
        )
    )
    assert draws() == expected
    assert not random_state.moved_since(random_state.capture(state))


def test_a_decoded_state_can_be_compared() -> None:
    encoded = random_state.encode(random_state.capture())
    state = random_state.decode(encoded.text, encoded.tensors)
    assert not random_state.moved_since(state)
    np.random.rand()
    assert random_state.moved_since(state)


def test_another_numpy_bit_generator_is_kept() -> None:
    """np.random.set_bit_generator may put PCG64 behind the global functions."""
    if not hasattr(np.random, "set_bit_generator"):
        pytest.skip("NumPy before 1.24")
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(5))
        state = random_state.capture()
        assert not random_state.moved_since(state)
        encoded = random_state.encode(state)
        expected = draws()
        assert random_state.moved_since(state)
        random_state.restore(random_state.decode(encoded.text, encoded.tensors))
        assert draws() == expected
    finally:
        np.random.set_bit_generator(before)


def test_an_isolated_block_depends_on_its_seed_and_leaves_no_trace() -> None:
    before = random_state.capture()
    with random_state.isolated(2**63 + 5):
        first = draws()
    draws_outside = draws()
    random_state.restore(before)
    with random_state.isolated(2**63 + 5):
        assert draws() == first
    assert draws() == draws_outside


def test_fresh_children_of_one_fork_draw_different_numbers() -> None:
    """A fork copies the state of torch and NumPy. A spawned process has its own, from the system's
    entropy.

    Method: two children start from the same state, as forks do, and call fresh(). Two control
    children do not.
    """
    state = random_state.capture()
    seen = []
    for child in (random_state.fresh, random_state.fresh, lambda: None, lambda: None):
        random_state.restore(state)
        child()
        seen.append((random.random(), float(np.random.rand()), torch.rand(1).item()))
    assert seen[2] == seen[3]
    assert all(len({draw[source] for draw in seen[:3]}) == 3 for source in range(3))
    random_state.fresh(7)
    seeded = draws()
    random_state.fresh(7)
    assert draws() == seeded


def test_a_damaged_state_is_corrupt() -> None:
    encoded = random_state.encode(random_state.capture())
    with pytest.raises(CorruptError):
        random_state.decode(
            encoded.text,
            {name: tensor for name, tensor in encoded.tensors.items() if name != "random:python"},
        )


DRAWS = {
    "numpy": lambda: np.random.normal(),
    "python": lambda: random.gauss(0, 1),
    "torch": lambda: torch.randn(()),
}


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 2), st.none() | st.integers(0, 5)), max_size=6
    ),
    st.sampled_from(sorted(DRAWS)),
)
@example([(False, 2, None), (True, 1, None)], "numpy")
def test_a_capture_is_exact_whatever_was_drawn_and_restored_in_between(
    events: list[tuple[bool, int, int | None]], kind: str
) -> None:
    """Gaussians come in pairs, of which one is cached: the words of a generator are the same with
    it and without. An evaluation that sets the same seed each time reaches the same words again.
    """
    random_state.seed_cpu(1)
    held = [random_state.capture()]
    for anew, drawn, back in events:
        if anew:
            random_state.seed_cpu(1)
        for _ in range(drawn):
            DRAWS[kind]()
        held.append(random_state.capture())
        if back is not None:
            random_state.restore(held[back % len(held)])
    now = random_state.capture()
    expected = [float(DRAWS[kind]()) for _ in range(3)]
    random_state.seed_cpu(2)
    random_state.restore(now)
    assert [float(DRAWS[kind]()) for _ in range(3)] == expected


@pytest.mark.parametrize("kind", DRAWS)
def test_a_cached_gaussian_is_cached_again_after_restoring_it(kind: str) -> None:
    random_state.seed_cpu(1)
    DRAWS[kind]()
    one_is_cached = random_state.capture()
    expected = float(DRAWS[kind]())
    random_state.capture()  # the same words, with nothing cached
    random_state.restore(one_is_cached)
    now = random_state.capture()
    random_state.seed_cpu(2)
    random_state.restore(now)
    assert float(DRAWS[kind]()) == expected
