"""`OpenFaults`: the faults of the present regroup taken together, and the budgets.

The records of single interruptions are in interruptions.py. This module is pure.
"""

from __future__ import annotations

from outlast.engine.budget import Budgets
from outlast.engine.coordinator.interruptions import InterruptionLog


class OpenFaults:
    """The faults of the present regroup taken together, and the budgets that pay for it.

    budgets               what may still fail before the run ends
    fault_s, detected_s   when the oldest open fault came, and when it was seen. The next plan
                          carries both, and the first new commit clears them
    raised                ranks that are alive and raised in user code, in this generation
    killed                ranks that were killed by SIGKILL, and not for memory, in this generation
    user_error            error and traceback of the newest exception, for the end of the run
    cut_short             the fault came while steps were executed
    losing_node           a node is lost, and not all of its ranks are marked dead yet. Nothing is
                          decided before that
    """

    def __init__(self, *, budgets: Budgets) -> None:
        self.budgets = budgets
        self.fault_s: float | None = None
        self.detected_s: float | None = None
        self.raised: set[int] = set()
        self.killed: set[int] = set()
        self.user_error = ("", "")
        self.cut_short = False
        self.losing_node = False
        # the longest time that a donor of this generation took to hand over, and that a member took
        # to restore
        self._moved_s = (0.0, 0.0)
        self._node_losses = 0  # how many ranks of the lost node were booked so far

    def charge(self, budgets: Budgets) -> None:
        """Keep the budgets that a decision has returned."""
        self.budgets = budgets

    def note_times(self, *, first: bool, fault_s: float | None, now_s: float) -> None:
        """Note when a fault came (None: not known). `first`: no other fault is open."""
        if first:
            self.fault_s, self.detected_s = fault_s if fault_s is not None else now_s, now_s
        elif fault_s is not None and self.fault_s is not None:
            self.fault_s = min(self.fault_s, fault_s)

    def set_times(self, *, fault_s: float, detected_s: float) -> None:
        """Set when the oldest open fault came, and when it was seen."""
        self.fault_s, self.detected_s = fault_s, detected_s

    def over(self) -> None:
        """Note that no fault is open any more."""
        self.fault_s = self.detected_s = None

    def note_raised(self, rank: int, error: tuple[str, str]) -> None:
        """Note that a rank that lives raised in user code: `error` and its traceback."""
        self.raised.add(rank)
        self.user_error = error

    def note_killed(self, rank: int) -> None:
        """Note that a rank was killed by SIGKILL, when the kernel counted no lack of memory."""
        self.killed.add(rank)

    def begin_generation(self) -> None:
        """Forget which ranks raised, and how long members took to restore.

        A rank that raises again says so.
        """
        self.raised.clear()
        self.killed.clear()
        self._moved_s = (0.0, 0.0)

    def note_restore(self, restore_s: float, *, donated: bool) -> None:
        """Note that a member of this generation took `restore_s` to restore its state.

        donated   it is a donor, and that is the time it took to hand its state over
        """
        handed_s, loaded_s = self._moved_s
        if donated:
            self._moved_s = max(handed_s, restore_s), loaded_s
        else:
            self._moved_s = handed_s, max(loaded_s, restore_s)

    @property
    def restore_s(self) -> float:
        """Return how long the transfer of state took: handing it over, and then loading it."""
        return sum(self._moved_s)

    def note_cut_short(self, cut_short: bool) -> None:
        """Set whether the fault came while steps were executed."""
        self.cut_short = cut_short

    def begin_node_loss(self) -> None:
        """Note that a node is lost, and that the ends of its ranks follow."""
        self.losing_node, self._node_losses = True, 0

    def end_node_loss(self) -> None:
        """Note that all ranks of the lost node are known to be dead."""
        self.losing_node = False

    def count_node_loss(self) -> bool:
        """Count one more fault. Return True if it belongs to a node loss that was booked before."""
        again = self._node_losses > 0
        self._node_losses += self.losing_node
        return again

    def steps_repeated_before(self, interruptions: InterruptionLog) -> int:
        """Return the repeated steps booked with the interruptions before the newest one."""
        return sum(max(0, one.steps_repeated) for one in interruptions.open[:-1])
