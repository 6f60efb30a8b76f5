"""Mutants of the two-phase commit: faults that somebody could write by mistake into the machine."""

from __future__ import annotations

from tools.mutation.planted import Mutant

MACHINE, LATE, PLACE = (
    f"engine/commit/{name}.py" for name in ("commit_machine", "late_votes", "image_place")
)

COMMIT = (
    Mutant(
        "forward_is_not_applied",
        MACHINE,
        'if self._plan.settle != "forward":',
        "if True:",
    ),
    Mutant(
        "repeat_is_applied",
        MACHINE,
        'if self._plan.settle != "forward":',
        "if False:",
    ),
    Mutant(
        "claims_that_it_can_apply_no_step",
        MACHINE,
        "self._plan = yield StandStill(in_hook=True)",
        "self._plan = yield StandStill(in_hook=False)",
    ),
    Mutant(
        "claims_that_it_can_apply_a_torn_step",
        MACHINE,
        """yield Break(error, peers_only)
        plan: Regroup = yield StandStill(in_hook=False)""",
        """yield Break(error, peers_only)
        plan: Regroup = yield StandStill(in_hook=True)""",
    ),
    Mutant(
        "a_torn_step_follows_its_forward_plan",
        MACHINE,
        'if plan is None or plan.settle == "forward":',
        "if plan is None:",
    ),
    Mutant(
        "commits_before_it_is_sealed",
        MACHINE,
        """if sharded:
            # The others know that it is sealed from the next vote, which comes after the seal.
            self._unsealed = step""",
        """if False:
            self._unsealed = step""",
    ),
    Mutant(
        "votes_before_it_is_prepared",
        MACHINE,
        "yield Prepare(step, place)",
        "",
    ),
    Mutant(
        "the_tail_of_an_interrupted_block_stays",
        MACHINE,
        "yield TakeBackTail()",
        "pass",
    ),
    Mutant(
        "an_interrupted_step_is_sealed",
        MACHINE,
        """if self.repeats:
            return  # the step is not committed, so nothing of it may be sealed""",
        "",
    ),
    Mutant(
        "a_step_is_not_rolled_back",
        MACHINE,
        "yield RollBack(plan, in_flight)",
        "yield RollBack(plan, False)",
    ),
    Mutant(
        "a_phase_that_did_not_pass_counts",
        MACHINE,
        """if self.worker.phases > number:
            return True  # a peer saw the vote pass""",
        "return True",
    ),
    Mutant(
        "a_passed_vote_is_not_remembered",
        MACHINE,
        "yield TellWorkerMachine(partial(WorkerMachine.note_passed, step=step))",
        "",
    ),
    Mutant(
        "leaves_before_the_last_state_is_handed_over",
        MACHINE,
        "if (yield from self._close()) and (yield from self._hand_over()):",
        "if (yield from self._close()):",
    ),
    Mutant(
        "a_repeat_overwrites_what_it_begins_from",
        PLACE,
        "return newest if newest_step > committed else 1 - newest",
        "return 1 - newest",
    ),
    Mutant(
        "late_votes_do_not_last",
        LATE,
        "self._lasting = self._lasting or self._wanted",
        "self._lasting = False",
    ),
    Mutant(
        "what_moved_behind_the_vote_is_not_sealed",
        MACHINE,
        "yield SealMoved(self.committed, place, due=self.is_over or self.agreed.seal)",
        "",
    ),
    Mutant(
        "a_late_vote_is_sealed_as_an_early_one",
        MACHINE,
        "yield from self._vote_late(ScriptPosition(kind, 0))",
        "yield from self._vote_late(AT_VOTE)",
    ),
    Mutant(
        "a_successor_takes_an_image_of_before_the_script_went_on",
        PLACE,
        "return max(found, key=lambda one: order(one[2]))",
        "return min(found, key=lambda one: order(one[2]))",
    ),
)
