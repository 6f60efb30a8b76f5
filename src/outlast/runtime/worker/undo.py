"""Late votes: a step that votes after its optimizer keeps a copy of what the optimizer changes, so
that it can be taken back.

An early vote, in front of the optimizer, needs no copy, and is the rule. A step votes late, once
the next step or a phase is asked for, when one of these holds:

    unproven   it is the first step of a run: nobody knows yet whether all ranks hold the same
               parameters (sameness.py)
    goes on    a backward runs after the optimizer (GANs): a repeat needs the parameters of before
    movers     private state that differs by rank moves behind the optimizer (private.py): a rank
               that is lost there would take with it what nobody else knows, unless the step is not
               over yet and can be done again as a whole

The last two are seen in the first step in which they happen, announced with their cost, and kept up
from the next step on.
"""

from __future__ import annotations

from collections.abc import Mapping

from outlast.runtime.worker.session import Session
from outlast.runtime.worker.state import State


class Undo:
    """Whether the step in hand votes late, and the copy that it keeps.

    What is decided here travels with the transfer image.
    """

    def __init__(self, session: Session | None, state: State) -> None:
        self.unproven = False
        self.goes_on = False  # collectives may follow the optimizer, too
        self._lasting = False
        self._wanted = False
        self._kept = False
        self._session = session
        self._state = state

    @property
    def on(self) -> bool:
        """The step in hand keeps a copy, and votes late.

        It does not change between a step's beginning and its commit.
        """
        return self.unproven or self._lasting

    def metadata(self) -> dict[str, str]:
        """Return what a successor has to know."""
        return {
            "unproven": str(int(self.unproven)),
            "goes_on": str(int(self.goes_on)),
            "undo": str(int(self._lasting or self._wanted)),
        }

    def take_over(self, metadata: Mapping[str, str]) -> None:
        """Vote as the rank does that wrote `metadata`."""
        self.unproven = metadata.get("unproven") == "1"
        self.goes_on = metadata.get("goes_on") == "1"
        self._lasting = metadata.get("undo") == "1"

    def want_for_backward(self, line: str) -> None:
        """A backward ran after the optimizer that was called at `line`."""
        if not self.goes_on:
            self.goes_on = True
            self._want(f"a backward runs after the optimizer at {line}")

    def want_for_movers(self) -> None:
        """Private parts that are not the same on all ranks moved behind the vote."""
        what = (
            "state that differs between ranks changes after the optimizer"
            f" ({self._state.private.described_movers()})"
        )
        self._want(
            what, ". Where it changes before the optimizer, or in run.phase, no copy is needed"
        )

    def _want(self, why: str, advice: str = "") -> None:
        if self._lasting or self._wanted:
            return
        self._wanted = True
        if self._session is not None:
            mib = self._state.undo_bytes / 2**20
            self._session.warn(
                f"{why}: each step keeps an undo copy of {mib:.0f} MiB, and votes at its"
                f" end{advice}"
            )

    def keep(self) -> None:
        """Copy the shared state; called when a step that votes late begins."""
        self._state.keep_undo()
        self._kept = True

    def committed(self) -> None:
        """The step counts: its copy is not needed any more."""
        self._kept = self.unproven = False
        self._lasting = self._lasting or self._wanted
        if not self._lasting:
            self._state.drop_undo()

    def take_back(self) -> bool:
        """The step is rolled back: undo what its optimizers did, if a copy was kept.

        Returns whether one was.
        """
        kept, self._kept = self._kept, False
        if kept:
            self._state.undo()
        return kept
