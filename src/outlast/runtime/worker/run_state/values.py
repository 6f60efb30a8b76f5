"""`Values`: plain values that a script keeps with its state, such as the best loss so far."""

from __future__ import annotations

from typing import Any

from outlast.errors import StateError


class Values:
    """Plain values that a script keeps with its state. `run.values(best=1e9)` makes it.

        kept = run.values(best=1e9)
        state = run.state(model=model, optimizer=optimizer, kept=kept)
        for step in run.steps(state, until=1_000):
            with step:
                ...
                kept.best = min(kept.best, loss.item())

    They are kept as optimizer state is. A step that is repeated finds what it began with, and a
    rank that is replaced finds what its predecessor had. Each rank has its own.

    Give numbers, texts, None, tensors without a graph, NumPy arrays, and lists, tuples, sets or
    dicts of them. So the hidden state of a recurrent model can be kept as well, or an observation
    of an environment. Every step seals the values, so they should be small. Setting an attribute
    that was not named at first raises StateError.
    """

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dict__:
            raise StateError(
                f"run.values(...) has no {name!r}",
                hint=f"name it there with its first value: run.values({name}=...)",
            )
        self.__dict__[name] = value

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.__dict__.clear()
        self.__dict__.update(values)

    def __repr__(self) -> str:
        return f"Values({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
