"""Early and late votes: whether a step votes before its optimizer runs, or after its block.

An early vote is the rule. It comes in front of the first optimizer call. A step that is
interrupted before the vote has changed nothing that the vote is about, so no copy is needed.

A step votes late, once the next step or a phase is asked for, when one of these holds. It then
keeps an undo copy of the shared state, because its optimizers have run by the time it votes.

    unproven   It is the first step of a run. It is not known yet whether all ranks hold the same
               parameters. They are compared before this step is committed.
    goes on    A backward runs after the optimizer (GANs). A repeat needs the old parameters.
    movers     Private state that differs between ranks changes after the optimizer. A rank that is
               lost there would take with it what no other rank knows. So the step must not be
               committed yet, so that it can be repeated as a whole.

The last two are seen in the first step in which they happen, and hold from the next step on.

Movers may begin to change after the block of any step. Whether they differ is not known before a
vote compares them, and the early vote of the next step would come before they move again. So that
vote does not count: all ranks *put it off* to the end of the step.
"""

from __future__ import annotations

from collections.abc import Mapping


class LateVotes:
    """The reasons for which this rank votes late. All ranks have the same ones in each step.

    They travel with the transfer image, so that a successor votes as the rank that wrote it does.
    """

    def __init__(self) -> None:
        self.unproven = False
        self.goes_on = False  # collectives may follow the optimizer, too
        self._lasting = False  # every step from here on votes late
        self._wanted = False  # every step from the next one on does
        self._put_off = False  # the step in hand does, and perhaps no other

    @property
    def on(self) -> bool:
        """Return True if the step in hand votes late.

        The answer changes between the beginning of a step and its commit only by `put_off`.
        """
        return self.unproven or self._lasting or self._put_off

    def want(self) -> bool:
        """Vote late from the next step on. Return True if that is news."""
        if self._lasting or self._wanted:
            return False
        self._wanted = True
        return True

    def put_off(self) -> None:
        """Vote late in the step in hand: its early vote does not count."""
        self._put_off = True

    def rolled_back(self) -> None:
        """Note that the step in hand is repeated. It votes early again, on every rank.

        Some ranks may have put their vote off before it was cut short, and some may not.
        """
        self._put_off = False

    def committed(self) -> bool:
        """Note that the step in hand is committed. Return True if the next step votes late."""
        self.unproven = False
        self._put_off = False
        self._lasting = self._lasting or self._wanted
        return self._lasting

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
