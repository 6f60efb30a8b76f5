"""The copy that a late vote keeps, so that its step can be taken back.

Which steps vote late, and why, is decided by `engine/commit/late_votes.py`. This file makes the
copy, gives it back, and tells the user once what it costs.
"""

from __future__ import annotations

from outlast.engine.commit.late_votes import LateVotes
from outlast.runtime.worker.session import Session
from outlast.runtime.worker.state import State


class Undo:
    """The shared state as it was before the optimizers of the step in hand.

    late   decides whether the step in hand votes late, and so keeps a copy
    """

    def __init__(self, session: Session | None, state: State) -> None:
        self.late = LateVotes()
        self._kept = False
        self._is_whole = False  # the copy was made when the step began
        self._session = session
        self._state = state

    def want_for_backward(self, line: str) -> None:
        """Vote late from the next step on: a backward ran after the optimizer called at `line`."""
        if not self.late.goes_on:
            self.late.goes_on = True
            self._want(f"a backward runs after the optimizer at {line}")

    def want_for_movers(self) -> None:
        """Vote late from the next step on: private parts that differ moved after the vote.

        They may have moved on other ranks only. Then it is for those to tell the user.
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
        """Copy the shared state in front of the optimizer, because this vote was put off.

        What the script itself changed in the step before that is in the copy.
        """
        self._state.keep_undo()
        self._kept, self._is_whole = True, False

    def committed(self) -> None:
        """Forget the copy: the step counts.

        Give its memory back unless the next step votes late.
        """
        self._kept = False
        if not self.late.on:
            self._state.drop_undo()

    def take_back(self) -> bool:
        """Undo what the step did to the shared state.

        Return False if there is no copy of what the script changes in front of the optimizer.
        The copy stays until the next attempt begins, for the script runs on after a block that was
        interrupted, and may change the state there again.
        """
        if self._kept:
            self._state.undo()
        return self._kept and self._is_whole
