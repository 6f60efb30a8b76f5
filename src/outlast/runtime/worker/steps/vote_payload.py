"""What is sent with each vote: logged values, requests to stop or save, and sealed images."""

from __future__ import annotations

from typing import Any

from outlast.model.messages import Regroup
from outlast.runtime import clock
from outlast.runtime.worker.steps.attach import Attachment, Readiness
from outlast.runtime.worker.steps.logbook import Logbook, To
from outlast.runtime.worker.steps.step import Step
from outlast.runtime.worker.steps.vote import Ballot, VoteOutcome, vote


class VotePayload:
    """Send with each vote what the ranks have to know of each other, and act on the outcome.

    `cast` votes. The commit machine then notes that the vote has passed, and `count` acts on the
    outcome: it delivers logged values, and runs on-commit callbacks that waited for all ranks to
    seal.
    """

    def __init__(self, attachment: Attachment, *, log_every: int) -> None:
        self._member = attachment.member
        self._attachment = attachment
        self._logbook = Logbook(log_every)
        # under sharded state: applied here, and not yet known to be sealed on all ranks
        self._unsealed: list[Step] = []

    # --- voting ---

    def cast(self, step: Step | None) -> VoteOutcome:
        """Vote for `step`, or between steps (None). Return the outcome.

        If a peer is lost, the error of torch is raised, and the vote of the others is not known.
        """
        session, attachment = self._member.session, self._attachment
        assert session is not None
        attachment.copies.sender.wait()
        sealed, stop = (
            attachment.images.sealed >= attachment.images.due,
            session.machine.stop is not None,
        )
        movers, watched = attachment.agreement.keys(step.number) if step is not None else (0.0, 0.0)
        awaited = attachment.call.awaited
        ballot = Ballot(
            sealed,
            stop,
            *self._logbook.pending(step),
            movers=movers,
            watched=watched,
            ready_s=0.0 if awaited is None else _ready_s(awaited),
            save=session.machine.saves_now,
            seal=session.machine.seals_each,
            late=attachment.undo.late.on,
            unsure=attachment.agreement.is_unsure,
            keep=0
            if step is None
            else attachment.copies.keeping.wanted(step.number, rank=self._member.rank()),
        )
        outcome = vote(self._member, ballot)
        if step is not None:
            attachment.copies.keeping.agreed(step.number, outcome.keep)
        if awaited is not None:
            # Book the time for which this rank has waited for the last rank to become ready. If a
            # fault was seen, all ranks measure from that moment, whenever they vote.
            now_s, (least_s, most_s) = clock.now_s(), outcome.ready_s
            seen_s = awaited.detected_s
            until_s = now_s - least_s if seen_s is None else seen_s + most_s
            session.book.hold(now_s=now_s, until_s=until_s, cause=awaited.cause)
            attachment.call.awaited = None
        return outcome

    def count(self, outcome: VoteOutcome, step: Step | None) -> None:
        """Act on what came with a vote that has passed. This may run on-commit callbacks."""
        if step is not None:
            self._attachment.agreement.voted(same_movers=outcome.same_movers)
        self._deliver(outcome, step)
        if outcome.sealed:
            self._commit_upto(self._attachment.images.sealed)

    def deliver_without_launcher(self, step: Step) -> None:
        """Deliver logged values without a launcher. Under torchrun, the ranks reduce them first."""
        current, earlier = self._logbook.pending(step)
        outcome = VoteOutcome(True, False, current, earlier)
        if self._member.world_size > 1:
            outcome = vote(self._member, Ballot(True, False, current, earlier))
            self._member.ballots.flush()  # the script may end after any step
        self._deliver(outcome, step)

    def _deliver(self, outcome: VoteOutcome, step: Step | None) -> None:
        self._logbook.deliver(
            outcome.current,
            outcome.earlier,
            step,
            rank=self._member.rank(),
            world=self._member.world_size,
        )
        if self._logbook.newest and (session := self._member.session) is not None:
            session.show_logged(self._logbook.newest_step, self._logbook.newest)

    # --- callbacks and values that wait for the next vote ---

    def log(self, step: Step, values: dict[str, Any], reduce: str | None, to: To | None) -> None:
        self._logbook.add(step, values, reduce, to)

    def hand_over(self) -> None:
        """Pass logged values of committed steps to the functions that `step.log` was given."""
        self._logbook.hand_over()

    def forget(self, step: Step) -> None:
        """Drop what this attempt logged, because the step is repeated."""
        self._logbook.forget(step)

    def log_every(self, steps: int) -> None:
        self._logbook.every = steps

    def await_seals(self, step: Step) -> None:
        """Let the callbacks of `step` wait until all owners are known to have sealed it."""
        self._unsealed.append(step)

    def settle(self, plan: Regroup) -> None:
        """Run the callbacks that wait for steps up to that of `plan`, and drop those of later
        steps.
        """
        # all owners have sealed the plan's step, or it would not have been chosen
        self._commit_upto(plan.step)
        self._unsealed.clear()
        self._logbook.forget_after(plan.step)

    def _commit_upto(self, sealed: int) -> None:
        done = [step for step in self._unsealed if step.number <= sealed]
        self._unsealed = self._unsealed[len(done) :]
        for step in done:
            step.committed()


def _ready_s(awaited: Readiness) -> float:
    """Return what a ballot says about this rank's readiness (vote.py, `ready_s`)."""
    if awaited.detected_s is None:
        return clock.now_s() - awaited.ready_s
    return awaited.ready_s - awaited.detected_s
