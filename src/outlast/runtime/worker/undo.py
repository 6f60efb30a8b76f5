"""The undo copy, for steps in which a backward runs after an applied optimizer (GANs): what was applied can then be taken back.

That a script does so is seen in the first step in which it happens. From the next step on the first optimizer call keeps a
copy instead of voting, and the block's end votes.
"""

from __future__ import annotations

from outlast.runtime.worker.session import Session
from outlast.runtime.worker.state import State


class Undo:
    """`on`: each step keeps a copy and votes at its end; this travels with the transfer image. `wanted`: so it will be from the next commit on."""

    def __init__(self, session: Session | None, state: State) -> None:
        self.on = False
        self.wanted = False
        self._kept = False
        self._session = session
        self._state = state

    def want(self, line: str) -> None:
        """A backward ran after the optimizer that was called at `line`. Said once."""
        if self.on or self.wanted:
            return
        self.wanted = True
        if self._session is not None:
            mib = self._state.undo_bytes / 2**20
            self._session.warn(f"a backward runs after the optimizer at {line}: each step keeps an undo copy of {mib:.0f} MiB, and votes at its end")

    def keep(self) -> None:
        """In front of the step's first optimizer."""
        self._state.keep_undo()
        self._kept = True

    def committed(self) -> None:
        """The step counts: its copy is not needed any more."""
        self._kept = False
        self.on = self.on or self.wanted

    def take_back(self) -> None:
        """The step is rolled back: undo what its optimizers did, if a copy was kept."""
        if self._kept:
            self._kept = False
            self._state.undo()
