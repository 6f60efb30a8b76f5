"""The mutants with a name: faults of the protocol that somebody could write by mistake."""

from __future__ import annotations

from tools.mutation.commit_named import COMMIT
from tools.mutation.files import (
    AGENT,
    CHANGES,
    CHECKPOINTS,
    DECISIONS,
    DURABLE,
    EXITS,
    FAULTS,
    HANG,
    HANG_WATCH,
    INQUIRY,
    LEASE,
    LINK,
    MACHINE,
    MEMBERS,
    NODES,
    PLANS,
    POLICY,
    RECOVERY,
    REGROUP,
    REMAINS,
    REPORTS,
    RESTORE,
    RUN,
    SESSION,
    SESSIONS,
    SOURCES,
    STAGES,
    TAKEOVER,
    WORDS,
    WORKER,
)
from tools.mutation.planted import Mutant

NAMED = (
    *COMMIT,
    Mutant(
        "stale_plan_is_taken",
        WORKER,
        "if message.generation <= self.generation:",
        "if message.generation < self.generation - 9:",
    ),
    Mutant(
        "stale_leave_is_obeyed",
        WORKER,
        """if message.generation != self.generation:
            return []""",
        "",
    ),
    Mutant(
        "stale_inventory_counts",
        REGROUP,
        "if member.path.plan_generation == message.generation and not member.life.dead]",
        "if member.path.plan_generation]",
    ),
    Mutant(
        "stale_joined_counts",
        REGROUP,
        "if message.generation != run.lifecycle.generation:\n    return []\n"
        "for member in members:\n    member.path.newest_report",
        "for member in members:\n            member.path.newest_report",
    ),
    Mutant("stale_fault_counts", REPORTS, "if stale or member.rank < 0", "if member.rank < 0"),
    Mutant(
        "a_condemned_member_is_blamed_again",
        EXITS,
        "return run.records()  # its fault was booked when it was condemned",
        "pass",
    ),
    Mutant(
        "registered_that_comes_again_counts",
        WORDS,
        "if reported >= member.path.newest_report"
        " and not said_before(message, member.script.registration)",
        "",
    ),
    Mutant(
        "who_waits_for_an_image_is_blamed",
        REGROUP,
        "if (donor := self.plans.donor()) is not None and not donor.life.condemned:",
        "if False:",
    ),
    Mutant(
        "a_torn_one_stays_in_its_step", PLANS, "if fresh and not (reenter and in_step)", "if fresh"
    ),
    Mutant(
        "rank_is_given_away_before_its_holder_is_dead",
        REGROUP,
        'if roster.first("not dead", lambda m: m.life.condemned and not m.life.dead) is not None:',
        "if False:",
    ),
    Mutant(
        "the_hung_are_not_killed",
        REPORTS,
        "return [*out, *self.run.kill(now_s, [member], message.reason)]",
        "return out",
    ),
    Mutant(
        "those_given_up_are_not_killed",
        REGROUP,
        "return run.kill(now_s, given_up, verdict.reason)",
        "return []",
    ),
    Mutant(
        "newest_instead_of_newest_common",
        RESTORE,
        "set(sealed[0]).intersection(",
        "set(sealed[0]).union(",
    ),
    Mutant(
        "forward_though_one_had_not_prepared",
        RESTORE,
        "return all(step in held.prepared for held in holdings)",
        "return any(step in held.prepared for held in holdings)",
    ),
    Mutant(
        "forward_without_the_dead",
        RESTORE,
        "return all(step in held.prepared for held in holdings)",
        "return all(step in held.prepared for held in live)",
    ),
    Mutant(
        "a_vote_that_passed_is_forgotten",
        RESTORE,
        "newest = max(max(held.committed, held.passed) for held in live)",
        "newest = max(held.committed for held in live)",
    ),
    Mutant("nobody_is_healed", RESTORE, "tuple(sorted(left_out))", "()"),
    Mutant("generation_is_not_raised", STAGES, "self.generation += 1", "pass"),
    Mutant(
        "plan_before_the_image",
        PLANS,
        'if plan.replicated == "transfer" and not plan.donate and no_image:',
        "if False:",
    ),
    Mutant(
        "started_from_an_image_that_was_never_written",
        DECISIONS,
        'if start.replicated == "transfer" and start.step != there:',
        "if False:",
    ),
    Mutant(
        "nobody_is_told_to_leave",
        REGROUP,
        "[member for member in live if member.answers_leave and member.path.inventory is None]",
        "list[Member]()",
    ),
    Mutant(
        "who_does_not_join_is_waited_for",
        REGROUP,
        "if not self.run.lifecycle.is_in(Stage.MOVING, Stage.STARTING):",
        "if True:",
    ),
    Mutant(
        "who_does_not_hand_over_is_waited_for",
        REGROUP,
        "if not self.run.lifecycle.is_in(Stage.HANDOVER):",
        "if True:",
    ),
    Mutant(
        "who_does_not_leave_is_waited_for",
        REGROUP,
        "if not self.run.lifecycle.is_in(Stage.LEAVING):",
        "if True:",
    ),
    Mutant(
        "the_stopped_are_not_seen",
        HANG,
        "culprits = tuple(m.worker for m in members if m.stopped and m.age_s >"
        " limits.STOPPED_FLOOR_S)",
        "culprits = ()",
    ),
    Mutant(
        "those_that_wait_are_blamed",
        HANG,
        "least = min(places, default=None)",
        "least = max(places, default=None)",
    ),
    Mutant(
        "one_that_is_done_ends_the_run",
        EXITS,
        'if run.roster.first("not done", lambda m: not m.life.done) is not None:',
        "if not any(m.life.done for m in run.roster.members()):",
    ),
    Mutant(
        "a_lost_store_is_not_replaced",
        REPORTS,
        "[*noted, *run.order_store(now_s, message.reason)]",
        "noted",
    ),
    Mutant(
        "torn_state_is_kept",
        REGROUP,
        "torn = roster.torn(restore) if in_process else []",
        "torn = list[Member]()",
    ),
    Mutant(
        "what_the_dead_had_sealed_is_forgotten",
        REMAINS,
        "committed, prepared, sealed = message.committed, message.prepared, message.sealed",
        "committed, prepared, sealed = message.committed, (), ()",
    ),
    Mutant(
        "an_end_that_is_said_twice_counts",
        EXITS,
        "if member is None or member.life.dead:",
        "if member is None:",
    ),
    Mutant("the_last_plan_is_forgotten", PLANS, "decided=run.progress.decided,", "decided=-1,"),
    Mutant(
        "spares_are_never_taken",
        MEMBERS,
        "if m.process.parked and not m.life.condemned]",
        "if False]",
    ),
    Mutant(
        "whoever_has_not_joined_is_blamed",
        MEMBERS,
        "return [m for m in late if m.path.waypoint == least]",
        "return late",
    ),
    Mutant(
        "a_rank_is_late_by_its_peers_deadline",
        HANG,
        "late = [m for m in behind if m.worker in overdue]",
        "late = behind",
    ),
    Mutant(
        "who_stands_in_an_evaluation_is_blamed",
        HANG,
        "Phase.SNAPSHOT, Phase.CHECKPOINT)",
        "Phase.SNAPSHOT, Phase.CHECKPOINT, Phase.EVALUATION)",
    ),
    Mutant(
        "killed_ones_are_waited_for",
        MACHINE,
        "return self.regroup.stop.on_unkillable(now_s)",
        "return []",
    ),
    Mutant(
        "a_lost_store_is_a_ranks_fault",
        REPORTS,
        "if run.store.lost_in == run.lifecycle.generation:",
        "if False:",
    ),
    Mutant(
        "executed_steps_count_as_committed",
        PLANS,
        "high_water = max(remains.done(rank), before)",
        "high_water = run.progress.executed",
    ),
    Mutant("a_late_tick_is_nobodys", AGENT, "self._ticked_s = until_s", "pass"),
    Mutant(
        "an_agent_does_not_watch_its_lease",
        SESSION,
        'return self._fence("the lease of this node has run out")',
        "return []",
    ),
    Mutant(
        "a_node_is_counted_out_while_its_lease_runs",
        LEASE,
        "return lease_s * (1",
        "return 0.3 * lease_s * (1",
    ),
    Mutant(
        "what_was_not_heard_is_not_said_again",
        SESSIONS,
        "for number, order in enrolled.outbox.kept()]",
        "for number, order in ()]",
    ),
    Mutant(
        "images_of_a_former_home_count",
        CHANGES,
        "if images.steps and lived_here and not",
        "if not",
    ),
    Mutant(
        "the_images_of_a_lost_node_count",
        REMAINS,
        "            if home == node:\n                self.lose_rank",
        "            if False:\n                self.lose_rank",
    ),
    Mutant(
        "what_a_node_comes_back_with_is_not_found",
        CHANGES,
        "remains.find_images(images.rank, images.steps)",
        "pass",
    ),
    Mutant(
        "what_agents_house_is_forgotten",
        TAKEOVER,
        "for housed in enrol.housed:",
        "for housed in ():",
    ),
    Mutant(
        "a_new_coordinator_waits_for_nobody",
        TAKEOVER,
        "return [] if found.awaited else self._rebuilt(now_s)",
        "return self._rebuilt(now_s)",
    ),
    Mutant(
        "two_in_one_rank_are_left_alone",
        TAKEOVER,
        'out += run.kill(now_s, [other], "another process was given its rank")',
        "pass",
    ),
    Mutant(
        "the_ranks_of_a_lost_node_are_not_missed",
        CHANGES,
        "            if member.home == node:\n                if member.rank",
        "            if False:\n                if member.rank",
    ),
    Mutant("early_news_are_dropped", TAKEOVER, "self._found.early.append((message, node))", "pass"),
    Mutant(
        "generations_are_not_written_down_first",
        RUN,
        "return Record(generation, at_once=self.at_once)",
        "return Record(generation)",
    ),
    Mutant(
        "an_agent_judges_alone",
        HANG_WATCH,
        "if not self._only_node:\n    self._question = None",
        "if False:\n            self._question = None",
    ),
    Mutant("a_node_has_room_for_any_number", NODES, " - taken[node] for", " for"),
    Mutant(
        "an_old_enrolment_is_taken_at_its_word",
        SESSIONS,
        "if self.coordinator.adopts(node) else [])",
        "if node else [])",
    ),
    Mutant("times_of_other_clocks_are_taken_as_they_are", LINK, "values[place] += by_s", "pass"),
    Mutant(
        "a_nodes_ranks_are_lost_one_by_one",
        FAULTS,
        "self.losing_node, self._node_losses = True, 0",
        "self._node_losses = 0",
    ),
    Mutant("a_node_that_returns_is_not_waited_for", NODES, "self.returning.add(node)", "pass"),
    Mutant(
        "a_checkpoint_is_offered_without_its_manifest",
        DURABLE,
        "if not one.has_manifest:",
        "if False:",
    ),
    Mutant(
        "a_checkpoint_is_offered_unread",
        PLANS,
        "if not looked and self._has_to_look():",
        "if False:",
    ),
    Mutant(
        "a_checkpoint_that_is_wrong_is_offered",
        DURABLE,
        "if reason := why_not(one):",
        "if (reason := why_not(one)) and False:",
    ),
    Mutant(
        "the_only_good_checkpoint_is_pruned",
        DURABLE,
        "oldest = min(good, committed[: max(keep, 1)][-1])",
        "oldest = committed[: max(keep, 1)][-1]",
    ),
    Mutant(
        "a_save_in_progress_is_pruned",
        DURABLE,
        "(step < committed[0] and step in cut_short)",
        "step in cut_short",
    ),
    Mutant(
        "a_shard_that_failed_counts",
        CHECKPOINTS,
        "    if message.error:\n        saves.fail",
        "    if False:\n        saves.fail",
    ),
    Mutant(
        "a_failed_save_ends_the_run",
        CHECKPOINTS,
        'return [event(now_s, "checkpoint_failed", data), failed]',
        'from outlast.engine.protocol.outputs import End; return [failed, End(1, "failed", error,'
        ' "")]',
    ),
    Mutant(
        "a_failed_save_is_the_newest_checkpoint", CHECKPOINTS, "    if error:\n", "    if False:\n"
    ),
    Mutant(
        "a_shard_of_a_past_that_was_rolled_back_counts",
        CHECKPOINTS,
        "if not saves.takes(message):",
        "if False:",
    ),
    Mutant(
        "a_save_of_a_past_that_was_rolled_back_goes_on", DURABLE, "del self._shards[later]", "pass"
    ),
    Mutant(
        "a_checkpoint_is_forgotten",
        SOURCES,
        'return Restart(self.step, "checkpoint", "checkpoint", self.folder)',
        "return Restart()",
    ),
    Mutant(
        "what_all_began_from_is_kept_though_there_is_more",
        DECISIONS,
        "    if start.step < saved.step:\n",
        "    if False:\n",
    ),
    Mutant(
        "slots_from_before_a_checkpoint_are_read",
        DECISIONS,
        'return OwnState("checkpoint", verified, "the rank has sealed nothing since the'
        ' checkpoint")',
        "pass",
    ),
    Mutant(
        "a_donor_that_was_given_up_is_asked_to_leave",
        TAKEOVER,
        'return run.kill(now_s, given_up, "it was given up by its plan")',
        "return []",
    ),
    Mutant(
        "an_image_is_written_over_that_others_need",
        PLANS,
        "donates = donates and not (reenter and self._lies_there(step, restore.phases))",
        "pass",
    ),
    Mutant(
        "an_image_of_the_same_step_is_taken_to_be_written_over",
        SOURCES,
        "if self.transfer is not None and self.transfer.step != step:",
        "if True:",
    ),
    Mutant(
        "what_is_lost_while_all_are_killed_is_begun_from",
        PLANS,
        "if not check_source(self.source_facts()).is_there:",
        "if False:",
    ),
    Mutant(
        "a_commit_between_two_coordinators_is_forgotten",
        TAKEOVER,
        "out += self._resumed_meanwhile(now_s)",
        "pass",
    ),
    Mutant(
        "an_old_store_is_taken_for_the_newest", TAKEOVER, "run.store.recover(state.stores)", "pass"
    ),
    Mutant(
        "the_end_of_the_killed_is_awaited_for_ever",
        TAKEOVER,
        "if m.life.condemned and m.worker not in gone]",
        "if False]",
    ),
    Mutant(
        "what_is_said_before_the_welcome_is_lost", LINK, "for said in since:", "for said in []:"
    ),
    Mutant(
        "answers_are_taken_to_be_of_one_moment",
        INQUIRY,
        "if run.roster.outlast and not inquiry.accused:",
        "if False:",
    ),
    Mutant(
        "a_node_that_is_in_again_stays_silent",
        NODES,
        "self.silent.discard(node)\n\ndef recover(",
        "\n    def recover(",
    ),
    Mutant("who_cannot_be_reached_hangs", HANG, "    if not apart:\n", "    if True:\n"),
    Mutant(
        "it_is_not_heard_who_cannot_be_reached",
        REPORTS,
        "        if message.unreached:\n",
        "        if False:\n",
    ),
    Mutant("a_budget_pays_for_a_link", RECOVERY, "    if situation.free:\n", "    if False:\n"),
    Mutant(
        "a_link_is_tried_once", MACHINE, "return self.regroup.on_links_timer(now_s)", "return []"
    ),
    Mutant(
        "a_link_that_fails_again_is_another_fault",
        REPORTS,
        "        if run.links and run.interruptions.open:\n",
        "        if False:\n",
    ),
    Mutant("a_barred_node_has_room", NODES, "(0 if node in self.barred else capacity)", "capacity"),
    Mutant(
        "any_confidence_drains",
        "engine/policy.py",
        "return (self.blamed[node] >= self.policy.drain.confidence or",
        "return (True or",
    ),
    Mutant(
        "a_drain_gives_up_whoever_holds_the_step",
        DECISIONS,
        "    if why_not:\n",
        "    if seen.finished:\n",
    ),
    Mutant(
        "a_new_coordinator_forgets_what_the_policy_did",
        POLICY,
        "self.history = replace(earlier)",
        "self.history = PolicyHistory()",
    ),
    Mutant(
        "ranks_are_looked_for_where_they_live_now",
        POLICY,
        "run.history.at(rank, known.generation)",
        "run.roster.homes.get(rank, '')",
    ),
    Mutant(
        "state_that_lies_on_a_barred_node_is_left_there",
        RUN,
        "if self.roster.sharded and self.nodes.barred:",
        "if False:",
    ),
    Mutant(
        "a_verdict_on_what_the_policy_made_counts",
        POLICY,
        "if known is None or interruption in self.history.own:",
        "if known is None:",
    ),
    Mutant(
        "who_lost_contact_first_is_blamed",
        REGROUP,
        "run.interruptions.acquit({m.rank: m.process.pid for m in roster.live()})",
        "pass",
    ),
    Mutant(
        "an_agent_that_wakes_follows_orders_first",
        SESSION,
        "return self._fence_if_lease_is_out(now_s) or self._take(message, now_s)",
        "return self._take(message, now_s)",
    ),
    Mutant(
        "a_worker_does_not_look_at_its_lease",
        WORKER,
        "return now_s < lent_until_s",
        "return True",
    ),
    Mutant(
        "a_lease_is_lent_for_ever",
        SESSION,
        "return -math.inf if self.fenced or until_s is None else until_s",
        "return math.inf",
    ),
)
# name of a mutant that lives, and that no unit test notices -> why it may
SURVIVORS: dict[str, str] = {
    "hang_inquiry.py _give_up: one.deadline_s": (
        "Whom the coordinator judges is handed to `on_hung` in the same call, and is neither sent"
        " nor written down; what is read there is since when, and why. Only an agent's own finding"
        " is a message with a deadline in it."
    ),
}
