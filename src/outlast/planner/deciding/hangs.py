"""Calculate how outlast finds a rank that hangs.

The deadlines, and the rules for which rank is to blame, are those of the engine. No messages are
sent: each takes a fixed time.

A rank stops within the body of a step. Its peers reach the collective and wait, so no beacon moves
after the beginning of that step. `engine.hang.Deadlines` has the deadline of this phase. It has
learned how long the phase lasts, and how long the first steps of a process take. When the deadline
is over, all ranks are asked, and `find_culprits` gets a report on every rank of the job.

If a rank stops during a recovery, this is noticed when all ranks leave the generation, or when all
join the next one. The coordinator's own deadlines apply then.

Some things are not simulated: the ticks at which agents read the beacons (`limits.TICK_S`), pings,
and the second look that is taken with several nodes. Together they count as `ASKING_S`. Loading
data and the collective of the vote take no time here.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from outlast.engine.hang import Deadlines, HangVerdict, MemberReport, find_culprits
from outlast.model import limits
from outlast.model.terms import Phase

# half a tick until the hang is seen, one tick until all have answered, and one for the second look
ASKING_S = 2.5 * limits.TICK_S


@dataclass(frozen=True, slots=True)
class BlamedRank:
    """A rank that was blamed for a hang.

    after_s     seconds from the moment at which the rank stopped until it was blamed
    deadline_s  the rank's own deadline, in seconds from the beginning of its step
    verdict     the engine's verdict
    """

    after_s: float
    deadline_s: float
    verdict: HangVerdict


@dataclass(slots=True)
class Hangs:
    """The deadlines by which a simulated run finds a rank that hangs.

    ranks      number of ranks
    step_s     length of a step's body
    all_began  the step at which all processes were last started together
    began      for each rank whose process was started later, the step at which it began

    The first steps of a process have longer deadlines.
    """

    ranks: int
    step_s: float
    deadlines: Deadlines = field(default_factory=Deadlines)
    all_began: int = 0
    began: dict[int, int] = field(default_factory=dict)
    _waiting: list[MemberReport] = field(default_factory=list)
    _overdue: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.deadlines.typical_s[Phase.BODY] = self.step_s
        self.deadlines.learn_first(self.step_s)

    def start_over(self, step: int, ranks: tuple[int, ...]) -> None:
        """Note that fresh processes hold these ranks from `step` on."""
        if len(ranks) == self.ranks:
            self.all_began, self.began = step, {}
        else:
            self.began |= dict.fromkeys(ranks, step)

    def find(self, rank: int, *, step: int, into_step_s: float) -> BlamedRank:
        """Find a rank that has stopped in the step after `step`, while all others wait for it.

        It has stopped `into_step_s` after the beginning of that step.
        """
        self.began = {
            who: since
            for who, since in self.began.items()
            if step - since < limits.FIRST_STEPS_COUNT
        }
        own_s, others_s = (
            self._deadline_s(step - self.began.get(rank, self.all_began)),
            self._deadline_s(step - self.all_began),
        )
        # If the others are overdue first, they wait for this rank. All ranks are asked again as
        # soon as it is overdue, too.
        found_s = own_s  # after the step's beginning
        members = self._member_reports()
        members[rank] = replace(members[rank], collectives=0)
        overdue = self._deadlines(others_s) if others_s <= found_s else {rank: own_s}
        return BlamedRank(
            max(0.0, found_s - into_step_s) + ASKING_S,
            own_s,
            find_culprits(members=members, overdue=overdue),
        )

    @property
    def leaves_s(self) -> float:
        """Return the seconds after which a rank that does not leave its generation is given up.

        The rule is that of engine/coordinator/regroup.py.
        """
        return (
            limits.LEAVE_DEADLINE_S
            + limits.LEAVE_STEPS * self.step_s
            + limits.RANK_HEARD_S * self.ranks
        )

    def joins_s(self, no_starts: bool) -> float:
        """Return the seconds after which a rank that does not join the next generation is given up.

        The rule is that of engine/coordinator/plans.py. `no_starts` is True if the recovery starts
        no process.
        """
        return limits.REGROUP_DEADLINE_S if no_starts else limits.BOOT_DEADLINE_S

    def _deadline_s(self, steps_done: int) -> float:
        deadline_s = self.deadlines.of(phase=Phase.BODY, steps_done=steps_done)
        assert deadline_s is not None, "the body of a step has a deadline"
        return deadline_s

    def _deadlines(self, others_s: float) -> dict[int, float]:
        """Return `others_s` for every rank. It is cached, because there may be many ranks."""
        if self._overdue.get(0) != others_s:
            self._overdue = dict.fromkeys(range(self.ranks), others_s)
        return self._overdue

    def _member_reports(self) -> list[MemberReport]:
        """Report on all ranks, each one collective further than a rank that hangs.

        Workers have the numbers of their ranks here, and steps count from the current one.
        """
        if not self._waiting:
            self._waiting = [
                MemberReport(rank, rank, Phase.BODY, 0, limits.STEP_CEILING_S, False, 1)
                for rank in range(self.ranks)
            ]
        return list(self._waiting)
