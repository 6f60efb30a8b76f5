"""`KeptPart`: a part of a library's own state, which an adapter keeps with that of the script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class KeptPart:
    """A part of a trainer's state, as `run.state` takes it.

        progress = KeptPart(self._progress, self._load_progress)
        state = run.state(model=model, optimizer=optimizer, progress=progress)

    `get` returns plain values and tensors, and `put` gets the same. A step that is repeated
    restores what `get` returned at its beginning. It is best to keep parts that change before the
    optimizer separate from parts that change after it, because the latter cost more (private.py).
    """

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self.state_dict, self.load_state_dict = get, put
