"""Does the swarm notice when the protocol is wrong?

Planted mutants by name, and every condition turned round, one at a time.

    python tests/sim/mutation.py                         the named mutants
    python tests/sim/mutation.py --flips                 each condition of the files in FLIPPED,
                                                         turned round
    python tests/sim/mutation.py --only heals_nobody     some of them
    python tests/sim/mutation.py --flips --sample 60     60 of them, spread evenly
    python tests/sim/mutation.py --flips --again         only those that a seed is known to kill
                                                         (killers.json), by that seed alone

Each mutant is the package with one place changed; seeds run in it (mutant.py) until one breaks a
rule, ends with an error, or does not end: then it is killed. A life that never comes to a condition
is the same life when that is turned round, and is not lived again. A table is printed. Of a mutant
that lives it says which unit test of the engine fails, if one does; exit code 1 if none does and it
is not argued for in SURVIVORS.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "outlast"
MUTANT = Path(__file__).with_name("mutant.py")
UNITS = "tests/engine"  # which of these tests notices a mutant that lives
KILLED, PROBE = 9, "__came_to__"  # as there
# name of a mutant -> the seed that killed it last, which is tried first
KILLERS = Path(__file__).with_name("killers.json")
SEEDS = 2_000
LIMIT_S = 3_600.0


@dataclass(frozen=True)
class Mutant:
    """`old` stands once in the file, and becomes `new`; or `text` is the whole file, changed.

    `number`: of a condition that is turned round; else -1.
    """

    name: str
    file: str
    old: str = ""
    new: str = ""
    text: str = ""
    number: int = -1

    def changed(self) -> str:
        if self.text:
            return self.text
        source = (SOURCE / self.file).read_text()
        assert source.count(self.old) == 1, (
            f"{self.name}: {self.file} has its place {source.count(self.old)} times"
        )
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Fate:
    mutant: Mutant
    killed: bool
    how: str

    @property
    def held(self) -> bool:
        """It lives, and a unit test fails."""
        return not self.killed and "; fails " in self.how


_COORDINATOR = "engine/coordinator"
_MACHINE, _REGROUP, _DECISIONS, _PLANS, _RUN, _ORDERS, _STAGES = (
    f"{_COORDINATOR}/{name}.py"
    for name in ("machine", "regroup", "decisions", "plans", "run_parts", "orders", "stages")
)
_EXITS, _REPORTS, _INQUIRY, _CHANGES, _POLICY, _TAKEOVER, _STOP = (
    f"{_COORDINATOR}/{name}.py"
    for name in (
        "process_exit",
        "fault_reports",
        "hang_inquiry",
        "node_changes",
        "policy_actions",
        "takeover",
        "stop",
    )
)
_PROGRESS, _STORE, _SOURCES, _CHECKPOINTS, _WORDS, _SPARES, _FAULTS = (
    f"{_COORDINATOR}/{name}.py"
    for name in (
        "progress",
        "group_store",
        "restore_sources",
        "checkpoints",
        "script_words",
        "spares",
        "open_faults",
    )
)
_MEMBERS, _REMAINS, _NODES, _INTERRUPTIONS = (
    f"{_COORDINATOR}/{name}.py"
    for name in ("members", "remains", "node_membership", "interruptions")
)
_SESSION, _SESSIONS, _LEASE, _LINK = (
    f"engine/cluster/{name}.py"
    for name in ("agent_session", "coordinator_sessions", "lease", "reliable_link")
)
_AGENT, _WORKER = "engine/agent/agent.py", "engine/protocol/worker.py"
_HANG_WATCH, _WORKER_WATCH = "engine/agent/hang_watch.py", "engine/agent/worker_watch.py"
_RESTORE, _HANG, _RECOVERY, _BUDGET, _DURABLE = (
    f"engine/{name}.py" for name in ("restore", "hang", "recovery", "budget", "durable")
)


def _unfenced(name: str, file: str, branch: str) -> Mutant:
    """A message of another generation is taken for one of this.

    `branch`: the rare branch that turns it away.
    """
    return Mutant(
        name,
        file,
        f'        if message.generation != self.generation:\n            rare("{branch}")\n        '
        "    return []\n",
        "",
    )


NAMED = (
    Mutant(
        "stale_plan_is_taken",
        _WORKER,
        "if message.generation <= self.generation:",
        "if message.generation < self.generation - 9:",
    ),
    _unfenced("stale_leave_is_obeyed", _WORKER, "told to leave a generation that it is not in"),
    Mutant(
        "stale_inventory_counts",
        _REGROUP,
        "if member.path.plan_generation == message.generation]",
        "if member.path.plan_generation]",
    ),
    Mutant(
        "stale_joined_counts",
        _REGROUP,
        '        if message.generation != run.course.generation:\n            rare("joined a'
        ' generation that is over")\n            return []\n',
        "",
    ),
    Mutant("stale_fault_counts", _REPORTS, "if stale or member.rank < 0", "if member.rank < 0"),
    Mutant(
        "a_condemned_member_is_blamed_again",
        _EXITS,
        "return run.records()  # its fault was booked when it was condemned",
        "pass",
    ),
    Mutant(
        "registered_that_comes_again_counts",
        _WORDS,
        "            if said >= member.path.said and not said_before(message, member.script.registration)\n",
        "",
    ),
    Mutant(
        "who_waits_for_an_image_is_blamed",
        _REGROUP,
        "if (donor := self.plans.donor()) is not None and not donor.life.condemned:",
        "if False:",
    ),
    Mutant(
        "a_torn_one_stays_in_its_step", _PLANS, "if fresh and not (reenter and in_step)", "if fresh"
    ),
    Mutant(
        "rank_is_given_away_before_its_holder_is_dead",
        _REGROUP,
        'if roster.first("not dead", lambda m: m.life.condemned and not m.life.dead) is not None:',
        "if False:",
    ),
    Mutant(
        "the_hung_are_not_killed",
        _REPORTS,
        "return [*out, *self.run.kill(now_s, [member], message.reason)]",
        "return out",
    ),
    Mutant(
        "those_given_up_are_not_killed",
        _REGROUP,
        "return run.kill(now_s, given_up, verdict.reason)",
        "return []",
    ),
    Mutant(
        "newest_instead_of_newest_common",
        _RESTORE,
        "set(holdings[0].sealed).intersection(",
        "set(holdings[0].sealed).union(",
    ),
    Mutant(
        "forward_though_one_had_not_prepared",
        _RESTORE,
        "return all(step in held.prepared for held in holdings)",
        "return any(step in held.prepared for held in holdings)",
    ),
    Mutant(
        "who_is_in_its_block_has_run_the_code_behind_it",
        _RESTORE,
        "past = [held for held in there if not held.finishing]",
        "past = there",
    ),
    Mutant(
        "forward_without_the_dead",
        _RESTORE,
        "return all(step in held.prepared for held in holdings)",
        "return all(step in held.prepared for held in live)",
    ),
    Mutant(
        "a_vote_that_passed_is_forgotten",
        _RESTORE,
        "newest = max(max(held.committed, held.passed) for held in live)",
        "newest = max(held.committed for held in live)",
    ),
    Mutant("nobody_is_healed", _RESTORE, "tuple(sorted(left_out))", "()"),
    Mutant("generation_is_not_raised", _STAGES, "self.generation += 1", "pass"),
    Mutant(
        "plan_before_the_image",
        _PLANS,
        'if plan.replicated == "transfer" and not plan.donate and no_image:',
        "if False:",
    ),
    Mutant(
        "started_from_an_image_that_was_never_written",
        _DECISIONS,
        'if start.replicated == "transfer" and start.step != there:',
        "if False:",
    ),
    Mutant(
        "nobody_is_told_to_leave",
        _REGROUP,
        "[member for member in live if member.answers_leave and member.path.inventory is None]",
        "list[Member]()",
    ),
    Mutant(
        "who_does_not_join_is_waited_for",
        _REGROUP,
        "if not self.run.course.is_in(Stage.MOVING, Stage.STARTING):",
        "if True:",
    ),
    Mutant(
        "who_does_not_hand_over_is_waited_for",
        _REGROUP,
        "if not self.run.course.is_in(Stage.HANDOVER):",
        "if True:",
    ),
    Mutant(
        "who_does_not_leave_is_waited_for",
        _REGROUP,
        "if not self.run.course.is_in(Stage.LEAVING):",
        "if True:",
    ),
    Mutant(
        "the_stopped_are_not_seen",
        _HANG,
        "culprits = tuple(m.worker for m in members if m.stopped and m.age_s >"
        " limits.STOPPED_FLOOR_S)",
        "culprits = ()",
    ),
    Mutant(
        "those_that_wait_are_blamed",
        _HANG,
        "least = min(places, default=None)",
        "least = max(places, default=None)",
    ),
    Mutant(
        "one_that_is_done_ends_the_run",
        _EXITS,
        'if run.roster.first("not done", lambda m: not m.life.done) is not None:',
        "if not any(m.life.done for m in run.roster.members()):",
    ),
    Mutant(
        "a_lost_store_is_not_replaced",
        _REPORTS,
        "[*noted, *run.order_store(now_s, message.reason)]",
        "noted",
    ),
    Mutant(
        "torn_state_is_kept",
        _REGROUP,
        "torn = roster.torn(restore) if in_process else []",
        "torn = list[Member]()",
    ),
    Mutant(
        "what_the_dead_had_sealed_is_forgotten",
        _REMAINS,
        "committed, prepared, sealed = message.committed, message.prepared, message.sealed",
        "committed, prepared, sealed = message.committed, (), ()",
    ),
    Mutant(
        "an_end_that_is_said_twice_counts",
        _EXITS,
        "if member is None or member.life.dead:",
        "if member is None:",
    ),
    Mutant("the_last_plan_is_forgotten", _PLANS, "planned=run.progress.planned,", "planned=-1,"),
    Mutant(
        "spares_are_never_taken",
        _MEMBERS,
        "if m.process.parked and not m.life.condemned]",
        "if False]",
    ),
    Mutant(
        "whoever_has_not_joined_is_blamed",
        _MEMBERS,
        "return [m for m in late if m.path.place == least]",
        "return late",
    ),
    Mutant(
        "a_rank_is_late_by_its_peers_deadline",
        _HANG,
        "late = [m for m in behind if m.worker in overdue]",
        "late = behind",
    ),
    Mutant(
        "who_stands_in_an_evaluation_is_blamed",
        _HANG,
        "Phase.SNAPSHOT, Phase.CHECKPOINT)",
        "Phase.SNAPSHOT, Phase.CHECKPOINT, Phase.EVALUATION)",
    ),
    Mutant(
        "killed_ones_are_waited_for",
        _MACHINE,
        "return self.regroup.stop.on_unkillable(now_s)",
        "return []",
    ),
    Mutant(
        "a_lost_store_is_a_ranks_fault",
        _REPORTS,
        "if run.store.lost_in == run.course.generation:",
        "if False:",
    ),
    Mutant(
        "executed_steps_count_as_committed",
        _PLANS,
        "max(remains.done(rank), run.options.start.step)",
        "run.progress.executed",
    ),
    Mutant("a_late_tick_is_nobodys", _AGENT, "self._ticked_s = until_s", "pass"),
    Mutant(
        "an_agent_does_not_watch_its_lease",
        _SESSION,
        'return self._fence("the lease of this node has run out")',
        "return []",
    ),
    Mutant(
        "a_node_is_counted_out_while_its_lease_runs",
        _LEASE,
        "return lease_s * (1",
        "return 0.3 * lease_s * (1",
    ),
    Mutant(
        "what_was_not_heard_is_not_said_again",
        _SESSIONS,
        "for number, order in seat.outbox.kept()]",
        "for number, order in ()]",
    ),
    Mutant(
        "images_of_a_former_home_count",
        _CHANGES,
        "if images.steps and lived_here and not",
        "if not",
    ),
    Mutant(
        "the_images_of_a_lost_node_count",
        _REMAINS,
        "            if home == node:\n                self.lose_rank",
        "            if False:\n                self.lose_rank",
    ),
    Mutant(
        "what_a_node_comes_back_with_is_not_found",
        _CHANGES,
        "remains.find_images(images.rank, images.steps)",
        "pass",
    ),
    Mutant(
        "what_agents_house_is_forgotten",
        _TAKEOVER,
        "for housed in enrol.housed:",
        "for housed in ():",
    ),
    Mutant(
        "a_new_coordinator_waits_for_nobody",
        _TAKEOVER,
        "return [] if found.awaited else self._rebuilt(now_s)",
        "return self._rebuilt(now_s)",
    ),
    Mutant(
        "two_in_one_rank_are_left_alone",
        _TAKEOVER,
        'out += run.kill(now_s, [other], "another process was given its rank")',
        "pass",
    ),
    Mutant(
        "the_ranks_of_a_lost_node_are_not_missed",
        _CHANGES,
        "            if member.home == node:\n                if member.rank",
        "            if False:\n                if member.rank",
    ),
    Mutant(
        "early_news_are_dropped", _TAKEOVER, "self._found.early.append((message, node))", "pass"
    ),
    Mutant(
        "generations_are_not_written_down_first",
        _RUN,
        "return Record(generation, at_once=self.at_once)",
        "return Record(generation)",
    ),
    Mutant(
        "an_agent_judges_alone",
        _HANG_WATCH,
        "        if not self._alone:  # the coordinator judges over all nodes\n",
        "        if False:\n",
    ),
    Mutant("a_node_has_room_for_any_number", _NODES, " - taken[node] for", " for"),
    Mutant(
        "an_old_enrolment_is_taken_at_its_word",
        _SESSIONS,
        "if self.coordinator.adopts(node) else [])",
        "if node else [])",
    ),
    Mutant("times_of_other_clocks_are_taken_as_they_are", _LINK, "values[place] += by_s", "pass"),
    Mutant(
        "a_nodes_ranks_are_lost_one_by_one",
        _FAULTS,
        "self.losing_node, self._node_losses = True, 0",
        "self._node_losses = 0",
    ),
    Mutant("a_node_that_returns_is_not_waited_for", _NODES, "self.returning.add(node)", "pass"),
    Mutant(
        "a_checkpoint_is_offered_without_its_manifest",
        _DURABLE,
        "if not one.has_manifest:",
        "if False:",
    ),
    Mutant(
        "a_checkpoint_is_offered_unread",
        _PLANS,
        "if not looked and self._has_to_look():",
        "if False:",
    ),
    Mutant(
        "a_checkpoint_that_is_wrong_is_offered",
        _DURABLE,
        "if reason := why_not(one):",
        "if (reason := why_not(one)) and False:",
    ),
    Mutant(
        "the_only_good_checkpoint_is_pruned",
        _DURABLE,
        "oldest = min(good, committed[: max(keep, 1)][-1])",
        "oldest = committed[: max(keep, 1)][-1]",
    ),
    Mutant(
        "a_save_in_progress_is_pruned",
        _DURABLE,
        "(step < committed[0] and step in cut_short)",
        "step in cut_short",
    ),
    Mutant("a_shard_that_failed_counts", _CHECKPOINTS, "if message.error:", "if False:"),
    Mutant(
        "a_failed_save_ends_the_run",
        _CHECKPOINTS,
        'return [event(now_s, "checkpoint_failed", said), failed]',
        'from outlast.engine.protocol.outputs import End; return [failed, End(1, "failed", error,'
        ' "")]',
    ),
    Mutant(
        "a_failed_save_is_the_newest_checkpoint", _CHECKPOINTS, "    if error:\n", "    if False:\n"
    ),
    Mutant(
        "a_shard_of_a_past_that_was_rolled_back_counts",
        _CHECKPOINTS,
        "if not saves.takes(message):",
        "if False:",
    ),
    Mutant(
        "a_save_of_a_past_that_was_rolled_back_goes_on", _DURABLE, "del self._shards[later]", "pass"
    ),
    Mutant(
        "a_checkpoint_is_forgotten",
        _SOURCES,
        'return Restart(self.step, "checkpoint", "checkpoint", self.folder)',
        "return Restart()",
    ),
    Mutant(
        "what_all_began_from_is_kept_though_there_is_more",
        _DECISIONS,
        "    if start.step < newest.step:\n",
        "    if False:\n",
    ),
    Mutant(
        "slots_from_before_a_checkpoint_are_read",
        _DECISIONS,
        'return OwnState("checkpoint", verified, "the rank has sealed nothing since the'
        ' checkpoint")',
        "pass",
    ),
    Mutant(
        "a_donor_that_was_given_up_is_asked_to_leave",
        _TAKEOVER,
        'return run.kill(now_s, given_up, "it was given up by its plan")',
        "return []",
    ),
    Mutant(
        "an_image_is_written_over_that_others_need",
        _PLANS,
        "donates = donates and not (reenter and self._lies_there(step, restore.phases))",
        "pass",
    ),
    Mutant(
        "an_image_of_the_same_step_is_taken_to_be_written_over",
        _SOURCES,
        "if self.transfer is not None and self.transfer.step != step:",
        "if True:",
    ),
    Mutant(
        "what_is_lost_while_all_are_killed_is_begun_from",
        _PLANS,
        "if not check_source(self.source_facts()).is_there:",
        "if False:",
    ),
    Mutant(
        "a_commit_between_two_coordinators_is_forgotten",
        _TAKEOVER,
        "out += self._resumed_meanwhile(now_s)",
        "pass",
    ),
    Mutant(
        "an_old_store_is_taken_for_the_newest", _TAKEOVER, "run.store.recover(state.stores)", "pass"
    ),
    Mutant(
        "the_end_of_the_killed_is_awaited_for_ever",
        _TAKEOVER,
        "if m.life.condemned and m.worker not in gone]",
        "if False]",
    ),
    Mutant(
        "what_is_said_before_the_welcome_is_lost", _SESSION, "for said in since:", "for said in []:"
    ),
    Mutant(
        "answers_are_taken_to_be_of_one_moment",
        _INQUIRY,
        "if run.roster.outlast and not inquiry.accused and len(inquiry.reports) > 1:",
        "if False:",
    ),
    Mutant(
        "a_node_that_is_in_again_stays_silent",
        _NODES,
        "        self.silent.discard(node)\n\n    def lose(",
        "\n    def lose(",
    ),
    Mutant("who_cannot_be_reached_hangs", _HANG, "    if apart:\n", "    if False:\n"),
    Mutant(
        "it_is_not_heard_who_cannot_be_reached",
        _REPORTS,
        "        if message.unreached:\n",
        "        if False:\n",
    ),
    Mutant("a_budget_pays_for_a_link", _RECOVERY, "    if situation.free:\n", "    if False:\n"),
    Mutant(
        "a_link_is_tried_once", _MACHINE, "return self.regroup.on_links_timer(now_s)", "return []"
    ),
    Mutant(
        "a_link_that_fails_again_is_another_fault",
        _REPORTS,
        "        if run.links and run.interruptions.open:\n",
        "        if False:\n",
    ),
    Mutant(
        "a_barred_node_has_room", _NODES, "(0 if node in self.barred else capacity)", "capacity"
    ),
    Mutant(
        "any_confidence_drains",
        "engine/policy.py",
        "return self.blamed[node] >= self.policy.drain.confidence or",
        "return True or",
    ),
    Mutant(
        "a_drain_gives_up_whoever_holds_the_step",
        _DECISIONS,
        "    if why_not:\n",
        "    if seen.finished:\n",
    ),
    Mutant(
        "a_new_coordinator_forgets_what_the_policy_did",
        _POLICY,
        "self.acted = replace(acted)",
        "self.acted = Acted()",
    ),
    Mutant(
        "ranks_are_looked_for_where_they_live_now",
        _POLICY,
        "run.history.at(rank, known.generation)",
        "run.roster.homes.get(rank, '')",
    ),
    Mutant(
        "state_that_lies_on_a_barred_node_is_left_there",
        _RUN,
        "if self.roster.sharded and self.nodes.barred:",
        "if False:",
    ),
    Mutant(
        "a_verdict_on_what_the_policy_made_counts",
        _POLICY,
        "if known is None or interruption in self.acted.own:",
        "if known is None:",
    ),
    Mutant(
        "who_lost_contact_first_is_blamed",
        _REGROUP,
        "run.interruptions.acquit({m.rank: m.process.pid for m in roster.live()})",
        "pass",
    ),
    Mutant(
        "an_agent_that_wakes_follows_orders_first",
        _SESSION,
        "return self._look_at_lease(now_s) or self._take(message, now_s)",
        "return self._take(message, now_s)",
    ),
    Mutant(
        "a_worker_does_not_look_at_its_lease",
        _WORKER,
        "        if now_s < lent_until_s:\n",
        "        if True:\n",
    ),
    Mutant(
        "a_lease_is_lent_for_ever",
        _SESSION,
        "return -math.inf if self.fenced or self.lease.until_s is None else self.lease.until_s",
        "return math.inf",
    ),
)
FLIPPED = (
    _RECOVERY,
    _RESTORE,
    _BUDGET,
    _HANG,
    _DURABLE,
    _MACHINE,
    _REGROUP,
    _DECISIONS,
    _PLANS,
    _RUN,
    _ORDERS,
    _MEMBERS,
    _REMAINS,
    _WORKER,
    _AGENT,
    _HANG_WATCH,
    _WORKER_WATCH,
    _STOP,
    _CHECKPOINTS,
    _WORDS,
    _SPARES,
    _FAULTS,
    _PROGRESS,
    _STORE,
    _SOURCES,
    _INTERRUPTIONS,
    _EXITS,
    _REPORTS,
    _SESSION,
    _SESSIONS,
    _LEASE,
    _LINK,
    _CHANGES,
    _TAKEOVER,
    _NODES,
    _INQUIRY,
    "engine/placement.py",
)
# name of a mutant that lives, and that no unit test notices -> why it may
SURVIVORS: dict[str, str] = {
    "hang_inquiry.py _give_up: one.deadline_s": (
        "Whom the coordinator judges is handed to `on_hung` in the same call, and is neither sent"
        " nor written down; what is read there is since when, and why. Only an agent's own finding"
        " is a message with a deadline in it."
    ),
}


def flips() -> Iterator[Mutant]:
    """Each test of an if, a while, a comprehension, and each part of one, turned round.

    Left out are those by which a rare branch only says its name, and what stands at the end of an
    `or` as a number.
    """
    number = 0
    for file in FLIPPED:
        source = (SOURCE / file).read_text()
        for index, name in enumerate(conditions(file)):
            tree = ast.parse(source)
            _, holder, field, place = list(_conditions(tree))[index]
            _put(holder, field, place, lambda one: ast.UnaryOp(ast.Not(), one))
            yield Mutant(
                name, file, text=ast.unparse(ast.fix_missing_locations(tree)), number=number
            )
            number += 1


def conditions(file: str) -> list[str]:
    """What the flips of `file` are called: file, function, condition."""
    named: Counter[str] = Counter()
    out = []
    for where, holder, field, place in _conditions(ast.parse((SOURCE / file).read_text())):
        name = (
            f"{Path(file).name} {where}: {ast.unparse(_put(holder, field, place, lambda one: one))}"
        )
        named[name] += 1
        out.append(f"{name} ({named[name]})" if named[name] > 1 else name)
    return out


def probed() -> dict[str, str]:
    """The files in FLIPPED, such that each condition says when a life comes to it.

    They are numbered as `flips` does.
    """
    out: dict[str, str] = {}
    number = 0
    for file in FLIPPED:
        tree = ast.parse((SOURCE / file).read_text())
        for _, holder, field, place in list(_conditions(tree)):
            said = ast.Constant(number)
            _put(
                holder,
                field,
                place,
                lambda one, said=said: ast.Call(ast.Name(PROBE, ast.Load()), [said, one], []),
            )  # type: ignore[misc]
            number += 1
        out[file] = ast.unparse(ast.fix_missing_locations(tree))
    return out


def _put(
    holder: ast.AST, field: str, place: int | None, made: Callable[[ast.expr], ast.expr]
) -> ast.expr:
    """What `made` makes of a condition, in its place. Returns the condition."""
    here = getattr(holder, field)
    condition: ast.expr = here if place is None else here[place]
    if place is None:
        setattr(holder, field, made(condition))
    else:
        here[place] = made(condition)
    return condition


def _conditions(tree: ast.AST, where: str = "") -> Iterator[tuple[str, ast.AST, str, int | None]]:
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef) else where
        if isinstance(node, ast.If) and not node.orelse and all(map(_names_itself, node.body)):
            continue  # whatever comes of it, nothing is decided
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            yield inside, node, "test", None
        elif isinstance(node, ast.comprehension):
            yield from ((inside, node, "ifs", place) for place in range(len(node.ifs)))
        elif isinstance(node, ast.BoolOp):
            yield from (
                (inside, node, "values", place)
                for place, value in enumerate(node.values)
                if not _is_plain(value)
            )
        yield from _conditions(node, inside)


def _is_plain(value: ast.expr) -> bool:
    """A number or an empty display, which is taken if what stands before it is nothing: no
    condition.
    """
    if isinstance(value, ast.Constant):
        return not isinstance(value.value, bool)
    if (
        isinstance(value, ast.Attribute)
        and isinstance(value.value, ast.Name)
        and value.value.id == "limits"
    ):
        return True
    return (isinstance(value, ast.Dict) and not value.keys) or (
        isinstance(value, ast.Tuple) and not value.elts
    )


def _names_itself(statement: ast.stmt) -> bool:
    """`rare("...")`."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(call := statement.value, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "rare"
    )


def lived(
    changed: dict[str, str], seeds: list[int], lives: Path
) -> subprocess.CompletedProcess[str]:
    """Raises subprocess.TimeoutExpired."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as chosen:
        json.dump(seeds, chosen)
        chosen.flush()
        return _in_mutant(changed, chosen.name, str(lives))


def _in_mutant(changed: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="outlast-mutant-") as folder:
        for file, text in changed.items():
            path = Path(folder) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        command = [sys.executable, str(MUTANT), folder, *arguments]
        return subprocess.run(
            command,
            cwd=SOURCE.parents[1],
            env=os.environ | {"PYTHONPATH": str(SOURCE.parent)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )


def fate_of(mutant: Mutant, *, seeds: list[int], count: int, lives: Path) -> Fate:
    """`seeds`: those of the first `count` that come to the place.

    Of one that lives it is told which unit test it does not pass.
    """
    changed = {mutant.file: mutant.changed()}
    try:
        done = lived(changed, seeds, lives)
        if done.returncode:
            return Fate(mutant, True, _how(done))
        tested = _in_mutant(changed, "--tests", UNITS)
    except subprocess.TimeoutExpired:
        return Fate(mutant, True, "does not end")
    held = f"fails {tested.stdout.split()[-1]}" if tested.returncode else f"passes {UNITS}"
    return Fate(
        mutant,
        False,
        f"lives through {count:,} seeds; {len(seeds):,} come to it, {done.stdout.strip()} of these"
        f" go another course; {held}",
    )


def _how(done: subprocess.CompletedProcess[str]) -> str:
    """It was killed: by a rule, or by an error."""
    return (
        done.stdout.strip() if done.returncode == KILLED else done.stderr.strip().splitlines()[-1]
    )


def fates_of(mutants: list[Mutant], *, seeds: int, kept: Path | None) -> Iterator[Fate]:
    """Of each, as soon as it is known; first of those that `kept` knows from before."""
    known = (
        dict(json.loads(line) for line in kept.read_text().splitlines())
        if kept is not None and kept.exists()
        else {}
    )
    yield from (Fate(one, *known[one.name]) for one in mutants if one.name in known)
    with (
        tempfile.TemporaryDirectory(prefix="outlast-mutation-") as folder,
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        lives = Path(folder) / "lives"
        as_it_is = lived(probed(), list(range(seeds)), lives)
        assert as_it_is.returncode == 0, f"without any mutant: {as_it_is.stdout}{as_it_is.stderr}"
        came_to = [
            (seed, frozenset(numbers))
            for seed, _, numbers in map(json.loads, lives.read_text().splitlines())
        ]
        killers = remembered()
        doing = set()
        for one in mutants:
            if one.name not in known:
                there = [seed for seed, numbers in came_to if one.number in {-1, *numbers}]
                there.sort(key=lambda seed, one=one: seed != killers.get(one.name))  # type: ignore[misc]  # what killed it last is first
                doing.add(pool.submit(fate_of, one, seeds=there, count=seeds, lives=lives))
        for done in as_completed(doing):
            fate = done.result()
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps([fate.mutant.name, [fate.killed, fate.how]]) + "\n")
            yield fate


def remembered() -> dict[str, int]:
    known: dict[str, int] = json.loads(KILLERS.read_text())
    return known


def remember(fates: list[Fate]) -> None:
    """Mutants that are no more are forgotten."""
    seeds = {fate.mutant.name: re.match(r"seed (\d+):", fate.how) for fate in fates if fate.killed}
    known = remembered() | {name: int(seed[1]) for name, seed in seeds.items() if seed is not None}
    there = {one.name for one in NAMED}.union(*map(conditions, FLIPPED))
    KILLERS.write_text(
        json.dumps({name: known[name] for name in sorted(known) if name in there}, indent=0) + "\n"
    )


def fate_again(mutant: Mutant, killer: int) -> Fate:
    """By the seed that killed it last."""
    with tempfile.TemporaryDirectory(prefix="outlast-lives-") as folder:
        try:
            done = lived({mutant.file: mutant.changed()}, [killer], Path(folder) / "lives")
        except subprocess.TimeoutExpired:
            return Fate(mutant, True, f"seed {killer}: does not end")
    if not done.returncode:
        return Fate(mutant, False, f"seed {killer} kills it no more")
    return Fate(mutant, True, _how(done))


def fates_again(mutants: list[Mutant]) -> Iterator[Fate]:
    killers = remembered()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        doing = [
            pool.submit(fate_again, one, killers[one.name])
            for one in mutants
            if one.name in killers
        ]
        yield from (done.result() for done in as_completed(doing))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--flips",
        action="store_true",
        help="each condition turned round, in place of the named mutants",
    )
    parser.add_argument(
        "--only", nargs="*", default=[], help="mutants whose name holds one of these words"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="only N of them, spread evenly")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="what is known of each is written there, and is not looked for again",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="only those that a seed is known to kill, by that seed alone",
    )
    parser.add_argument(
        "--remember",
        action="store_true",
        help=f"write down in {KILLERS.name} which seed killed which",
    )
    args = parser.parse_args()
    mutants = [
        one
        for one in (flips() if args.flips else NAMED)
        if not args.only or any(word in one.name for word in args.only)
    ]
    if args.sample is not None and args.sample < len(mutants):
        mutants = [mutants[number * len(mutants) // args.sample] for number in range(args.sample)]
    fates = []
    for fate in (
        fates_again(mutants) if args.again else fates_of(mutants, seeds=args.seeds, kept=args.keep)
    ):
        fates.append(fate)
        print(
            f"{'killed' if fate.killed else 'LIVES ':<7} {fate.mutant.name:<110} {fate.how}",
            flush=True,
        )
    if args.remember:
        remember(fates)
    alive = [fate for fate in fates if not fate.killed]
    unheld = [fate.mutant.name for fate in alive if not fate.held]
    argued = sum(name in SURVIVORS for name in unheld)
    noticed = len(alive) - len(unheld)
    print(
        f"{len(fates) - len(alive)} of {len(fates)} killed; of {len(alive)} that live a unit test"
        f" notices {noticed}, {argued} more are argued for"
    )
    return 1 if argued < len(unheld) else 0


if __name__ == "__main__":
    sys.exit(main())
