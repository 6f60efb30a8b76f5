"""The undo copy of a step that votes late. It is made before the optimizers run, for a repeat.

`engine/commit/late_votes.py` decides which steps vote late, and why. This module makes the copy,
restores it, and tells the user once what it costs.
"""

from __future__ import annotations

from outlast.engine.commit.late_votes import LateVotes
from outlast.runtime.worker.member.session import WorkerSession
from outlast.runtime.worker.run_state.state import State


class Undo:
    """The shared state before the optimizers of the current step.

    late   decides whether the current step votes late, and so needs the copy
    """

    def __init__(self, session: WorkerSession | None, state: State) -> None:
        self.late = LateVotes()
        self._kept = False
        self._is_whole = False  # the copy was made before anything in the step had changed
        self._session = session
        self._state = state

    def want_for_backward(self, line: str) -> None:
        """Vote late from the next step on: a backward ran after the optimizer called at `line`."""
        if not self.late.goes_on:
            self.late.goes_on = True
            self._want(f"a backward runs after the optimizer at {line}")

    def want_for_movers(self) -> None:
        """Vote late from the next step on: private state that differs by rank moved after a vote.

        If it moved on other ranks only, they tell the user.
        """
        if not self._state.private.movers:
            self.late.want()
            return
        what = (
            "state that differs between ranks changes after the optimizer"
            f" ({self._state.private.described_movers()})"
        )
        self._want(
            what, ". Where it changes before the optimizer, or in run.phase, no copy is needed"
        )

    def _want(self, why: str, advice: str = "") -> None:
        if self.late.want() and self._session is not None:
            mib = self._state.undo_bytes / 2**20
            self._session.warn(
                f"{why}: each step keeps an undo copy of {mib:.0f} MiB, and votes at its"
                f" end{advice}"
            )

    def begin(self) -> None:
        """Begin a step. Copy the shared state if the step votes late."""
        self._kept = self._is_whole = self.late.on
        if self.late.on:
            self._state.keep_undo()

    def put_off(self) -> None:
        """Copy the shared state just before the optimizer, because the early vote was put off.

        What the script itself has changed earlier in this step is in the copy already.
        """
        self._state.keep_undo()
        self._kept, self._is_whole = True, False

    def committed(self) -> None:
        """Forget the copy, because the step is committed.

        Free its memory unless the next step votes late.
        """
        self._kept = False
        if not self.late.on:
            self._state.drop_undo()

    def take_back(self) -> bool:
        """Restore the copy. Return True if that undoes the whole step.

        It does not if there is no copy, or if the script itself had changed the state before the
        copy was made. The copy stays until the next attempt begins: after an interrupted block the
        script runs on, and may change the state again.
        """
        if self._kept:
            self._state.undo()
        return self._kept and self._is_whole
