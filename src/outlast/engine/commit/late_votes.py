"""Early and late votes: whether a step votes before its optimizers run, or after its block.

Most steps vote early: just before the first optimizer call. Until then no parameter has changed,
so an interrupted step can be repeated without a copy of them.

A step votes late for one of three reasons. Its vote comes when the script asks for the next step or
a phase. The optimizers have run by then, so the step needs an undo copy of the shared state.

    unproven   It is the first step of a run, and it is not known yet whether all ranks hold the
               same parameters. They are compared before this step is committed.
    goes on    A backward runs after the optimizer (GANs). A repeat needs the old parameters.
    movers     Private state that differs between ranks changes after the optimizer. If a rank is
               lost after that change, no other rank knows the new value. So the step must not be
               committed before the change is sealed.

The last two reasons are noticed in the first step in which they occur, and apply from the next step
on.

Movers may begin to change after the block of any step. Only a vote can tell whether they differ
between ranks, and the early vote of the next step comes before they change again. So that early
vote does not count, and all ranks *put it off* to the end of the step.
"""

from __future__ import annotations

from collections.abc import Mapping


class LateVotes:
    """The reasons for which this rank votes late. They are the same on all ranks in each step.

    The transfer image carries them (`metadata`), so that a successor votes as its donor does.
    """

    def __init__(self) -> None:
        self.unproven = False
        self.goes_on = False  # a backward may follow the optimizer
        self._lasting = False  # every step from here on votes late
        self._wanted = False  # every step from the next one on votes late
        self._put_off = False  # the current step votes late, and perhaps no other one

    @property
    def on(self) -> bool:
        """Return True if the current step votes late.

        Between the beginning of a step and its commit, only `put_off` changes the answer.
        """
        return self.unproven or self._lasting or self._put_off

    def want(self) -> bool:
        """Vote late from the next step on. Return False if that was wanted before."""
        if self._lasting or self._wanted:
            return False
        self._wanted = True
        return True

    def put_off(self) -> None:
        """Vote late in the current step: its early vote does not count."""
        self._put_off = True

    def rolled_back(self) -> None:
        """Note that the current step is repeated. It votes early again, on every rank.

        Some ranks may have put their vote off before the interruption, and others not.
        """
        self._put_off = False

    def committed(self) -> bool:
        """Note that the current step is committed. Return True if all later steps vote late."""
        self.unproven = False
        self._put_off = False
        self._lasting = self._lasting or self._wanted
        return self._lasting

    def metadata(self) -> dict[str, str]:
        """Return the reasons as metadata of a transfer image."""
        return {
            "unproven": str(int(self.unproven)),
            "goes_on": str(int(self.goes_on)),
            "undo": str(int(self._lasting or self._wanted)),
        }

    def take_over(self, metadata: Mapping[str, str]) -> None:
        """Vote as the donor does that wrote `metadata`."""
        self.unproven = metadata.get("unproven") == "1"
        self.goes_on = metadata.get("goes_on") == "1"
        self._lasting = metadata.get("undo") == "1"
