"""Does the swarm notice when the protocol is wrong? Planted mutants by name, and every condition turned round, one at a time.

    python tests/sim/mutation.py                         the named mutants
    python tests/sim/mutation.py --flips                 each condition of the files in FLIPPED, turned round
    python tests/sim/mutation.py --only heals_nobody     some of them
    python tests/sim/mutation.py --flips --sample 60     60 of them, spread evenly

Each mutant is a copy of the package with one place changed; seeds run in it until one breaks a rule, ends with an error, or does not
end: then it is killed. A table is printed; exit code 1 if a mutant survives that is not argued for in SURVIVORS.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "outlast"
SEEDS = 2_000
SEED_S = 60  # a life that takes longer here does not end: those of the code as it is take a few seconds at most
LIMIT_S = 3_600.0
PROGRAM = """
import signal, sys
from outlast.sim.life import live
seed = 0
def late(*_):
    print(f"seed {{seed}}: does not end")
    sys.stdout.flush()
    import os
    os._exit(9)
signal.signal(signal.SIGALRM, late)
for seed in range({seeds}):
    signal.alarm({seed_s})
    life = live(seed=seed, given={{}})
    if life.result != "ok":
        print(f"seed {{seed}}: " + ", ".join(sorted({{one.rule for one in life.violations}})))
        sys.exit(9)
"""


@dataclass(frozen=True)
class Mutant:
    """`old` stands once in the file, and becomes `new`; or `tree` is the whole file, changed."""

    name: str
    file: str
    old: str = ""
    new: str = ""
    text: str = ""

    def changed(self) -> str:
        if self.text:
            return self.text
        source = (SOURCE / self.file).read_text()
        assert source.count(self.old) == 1, f"{self.name}: {self.file} has its place {source.count(self.old)} times"
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Fate:
    mutant: Mutant
    killed: bool
    how: str


_COORDINATOR, _FAULTS, _LEAVING, _MOVING = (f"engine/protocol/{name}.py" for name in ("coordinator", "faults", "leaving", "moving"))
_MEMBERS, _WORKER, _AGENT = (f"engine/protocol/{name}.py" for name in ("members", "worker", "agent"))
_EXITS, _OUTPOST, _HUB, _LEASE, _LINES, _HOUSING, _REBUILD, _NODES, _STATE = (
    f"engine/protocol/{name}.py" for name in ("exits", "outpost", "hub", "lease", "lines", "housing", "rebuild", "nodes", "state")
)
_RESTORE, _HANG, _RECOVERY, _BUDGET = (f"engine/{name}.py" for name in ("restore", "hang", "recovery", "budget"))


def _unfenced(name: str, file: str, branch: str) -> Mutant:
    """A message of another generation is taken for one of this. `branch`: the rare branch that turns it away."""
    return Mutant(name, file, f'        if message.generation != self.generation:\n            rare("{branch}")\n            return []\n', "")


NAMED = (
    Mutant("stale_plan_is_taken", _WORKER, "if message.generation <= self.generation:", "if message.generation < self.generation - 9:"),
    _unfenced("stale_leave_is_obeyed", _WORKER, "told to leave a generation that it is not in"),
    Mutant("stale_inventory_counts", _LEAVING, "if message.generation != member.told:", "if False:"),
    _unfenced("stale_joined_counts", _COORDINATOR, "joined a generation that is over"),
    Mutant("stale_fault_counts", _FAULTS, "message.generation != self.generation or member.rank < 0", "member.rank < 0"),
    Mutant("a_condemned_member_is_blamed_again", _FAULTS, "return self._records()  # its fault was booked when it was condemned", "pass"),
    Mutant("a_condemned_member_may_still_break", _FAULTS, " or member.rank < 0 or member.condemned:", " or member.rank < 0:"),
    Mutant("joined_that_comes_again_counts", _COORDINATOR, "if member.still is not None:", "if False:"),
    Mutant("registered_that_comes_again_counts", _COORDINATOR, "if (message.generation, message.step) < member.said:", "if False:"),
    Mutant("who_waits_for_an_image_is_blamed", _COORDINATOR, "if (donor := self._donor()) is not None and not donor.condemned:", "if False:"),
    Mutant("a_torn_one_stays_in_its_step", _MOVING, "if fresh and not (reenter and in_step)", "if fresh"),
    Mutant(
        "rank_is_given_away_before_its_holder_is_dead", _LEAVING,
        'if self.roster.first("not dead", lambda m: m.condemned and not m.dead) is not None:', "if False:",
    ),
    Mutant("the_hung_are_not_killed", _FAULTS, "return [*out, *self._kill(now_s, [member], message.reason)]", "return out"),
    Mutant("those_given_up_are_not_killed", _LEAVING, "return self._kill(now_s, given_up, verdict.reason)", "return []"),
    Mutant("newest_instead_of_newest_common", _RESTORE, "set(holdings[0].sealed).intersection(", "set(holdings[0].sealed).union("),
    Mutant(
        "forward_though_one_had_not_prepared", _RESTORE,
        'return all(step in held.prepared for held in holdings)',
        'return any(step in held.prepared for held in holdings)',
    ),
    Mutant(
        "forward_without_the_dead", _RESTORE,
        'return all(step in held.prepared for held in holdings)',
        'return all(step in held.prepared for held in live)',
    ),
    Mutant(
        "a_vote_that_passed_is_forgotten", _RESTORE,
        'newest = max(max(held.committed, held.passed) for held in live)',
        'newest = max(held.committed for held in live)',
    ),
    Mutant("nobody_is_healed", _RESTORE, "heal = tuple(sorted(held.rank for held in holdings if held.rank not in settle))", "heal = ()"),
    Mutant("generation_is_not_raised", _MOVING, "        self.generation += 1\n        self._planned = step\n", "        self._planned = step\n"),
    Mutant("plan_before_the_image", _MOVING, 'if plan.replicated == "transfer" and not plan.donate and self._donated is None:', "if False:"),
    Mutant(
        "started_from_an_image_that_was_never_written", _MOVING,
        'there = self._restart.replicated != "transfer" or self._donated is not None',
        'there = True',
    ),
    Mutant("nobody_is_told_to_leave", _LEAVING, "out.append(ToAgent(ToWorker(member.worker, Leave(member.told, reason)), member.home))", "pass"),
    Mutant("who_does_not_join_is_waited_for", _COORDINATOR, 'if name == "move" and', 'if name == "never" and'),
    Mutant("who_does_not_hand_over_is_waited_for", _COORDINATOR, 'if name == "handover" and', 'if name == "never" and'),
    Mutant("who_does_not_leave_is_waited_for", _COORDINATOR, 'if name == "leave" and', 'if name == "never" and'),
    Mutant("the_stopped_are_not_seen", _HANG, "culprits = tuple(m.worker for m in members if m.stopped and m.age_s > limits.STOPPED_FLOOR_S)", "culprits = ()"),
    Mutant(
        "those_that_wait_are_blamed", _HANG,
        'least = min((_came_to(m) for m in shared), default=None)',
        'least = max((_came_to(m) for m in shared), default=None)',
    ),
    Mutant(
        "one_that_is_done_ends_the_run", _EXITS,
        'if self.roster.first("not done", lambda m: not m.done) is None:', "if any(m.done for m in self.roster.members()):",
    ),
    Mutant("a_lost_store_is_not_replaced", _FAULTS, "*self._ask_store(message.reason)]", "]"),
    Mutant("torn_state_is_kept", _LEAVING, "torn = [] if sharded or restore.step is None or finished else self.roster.torn(restore)", "torn = []"),
    Mutant(
        "what_the_dead_had_sealed_is_forgotten", _MEMBERS,
        'committed, prepared, sealed = message.committed, message.prepared, message.sealed',
        'committed, prepared, sealed = message.committed, (), ()',
    ),
    Mutant("an_end_that_is_said_twice_counts", _EXITS, "if member is None or member.dead:", "if member is None:"),
    Mutant("the_last_plan_is_forgotten", _LEAVING, "planned=self._planned)", "planned=-1)"),
    Mutant("whoever_has_not_joined_is_blamed", _MEMBERS, "return [m for m in late if m.place == least]", "return late"),
    Mutant("a_rank_is_late_by_its_peers_deadline", _HANG, "late = [m for m in behind if m.worker in overdue]", "late = behind"),
    Mutant("who_stands_in_an_evaluation_is_blamed", _HANG, "Phase.SNAPSHOT, Phase.CHECKPOINT)", "Phase.SNAPSHOT, Phase.CHECKPOINT, Phase.EVALUATION)"),
    Mutant("killed_ones_are_waited_for", _COORDINATOR, 'if name == "kill":', 'if name == "never":'),
    Mutant("a_lost_store_is_a_ranks_fault", _FAULTS, "if self._store_lost[0] == self.generation:", "if False:"),
    Mutant("executed_steps_count_as_committed", _MOVING, "max(self.roster.done(rank), self.options.start.step)", "self.executed"),
    Mutant("a_late_tick_is_nobodys", _AGENT, "self._ticked_s = until_s", "pass"),
    Mutant("an_agent_does_not_watch_its_lease", _OUTPOST, 'return self._fence("the lease of this node has run out")', "return []"),
    Mutant("a_node_is_counted_out_while_its_lease_runs", _LEASE, "return lease_s * (1", "return 0.3 * lease_s * (1"),
    Mutant("orders_are_followed_twice", _OUTPOST, "if not self._inbox.takes(message):", "if self._inbox.takes(message) is None:"),
    Mutant("what_was_not_heard_is_not_said_again", _HUB, "for number, order in seat.outbox.kept()]", "for number, order in ()]"),
    Mutant("images_of_a_former_home_count", _HOUSING, "if images.steps and self.roster.homes.get(images.rank) == enrol.node and not", "if not"),
    Mutant(
        "the_images_of_a_lost_node_count", _MEMBERS,
        "            if home == node:\n                self._remains.pop",
        "            if False:\n                self._remains.pop",
    ),
    Mutant("what_a_node_comes_back_with_is_not_found", _HOUSING, "self.roster.find_images(images.rank, images.steps)", "pass"),
    Mutant("what_agents_house_is_forgotten", _REBUILD, "for housed in enrol.housed:", "for housed in ():"),
    Mutant("a_new_coordinator_waits_for_nobody", _REBUILD, "return [] if self._awaited else self._rebuilt(now_s)", "return self._rebuilt(now_s)"),
    Mutant("two_in_one_rank_are_left_alone", _REBUILD, 'out += self._kill(now_s, [other], "another process was given its rank")', "pass"),
    Mutant(
        "the_ranks_of_a_lost_node_are_not_missed", _HOUSING,
        "            if member.home == node:\n                member.node_lost",
        "            if False:\n                member.node_lost",
    ),
    Mutant("early_news_are_dropped", _COORDINATOR, "self._early.append((message, node))", "pass"),
    Mutant("generations_are_not_written_down_first", _STATE, "members), at_once=not self.nodes.local)", "members))"),
    Mutant(
        "an_agent_judges_alone", _AGENT,
        "        if not self._alone:\n            self._question = None",
        "        if False:\n            self._question = None",
    ),
    Mutant("a_node_has_room_for_any_number", _NODES, "capacity - taken[node] for", "capacity for"),
    Mutant("an_old_enrolment_is_taken_at_its_word", _HUB, "if self.coordinator.adopts(node) else [])", "if node else [])"),
    Mutant("times_of_other_clocks_are_taken_as_they_are", _LINES, "getattr(message, name) + by_s", "getattr(message, name)"),
    Mutant("a_nodes_ranks_are_lost_one_by_one", _HOUSING, "self._several_end, self._node_faults = True, 0", "self._node_faults = 0"),
    Mutant("a_node_that_returns_is_not_waited_for", _HOUSING, "self.nodes.returning.add(node)", "pass"),
    Mutant("a_donor_that_was_given_up_is_asked_to_leave", _REBUILD, 'out += self._kill(now_s, given_up, "it was given up by its plan")', "pass"),
)  # fmt: skip
FLIPPED = (
    _RECOVERY, _RESTORE, _BUDGET, _HANG, _COORDINATOR, _FAULTS, _LEAVING, _MOVING, _MEMBERS, _WORKER, _AGENT, "engine/protocol/ending.py",
    "engine/protocol/interruptions.py", _EXITS, _OUTPOST, _HUB, _LEASE, _LINES, _HOUSING, _REBUILD, _NODES, "engine/protocol/hearing.py", "engine/placement.py",
)  # fmt: skip
SURVIVORS: dict[str, str] = {  # name of a mutant that lives -> why it may
    "a_condemned_member_may_still_break": "While a rank is condemned and not dead the run gathers, leaves or stops. There its words join the interruption "
    "that it was condemned in, and its rank is lost already. Only one that raises twice, while all are cleared, would be booked again.",
    "orders_are_followed_twice": "At each new connection both ends say what they have heard, so nothing that was heard is sent again. Who counts numbers is "
    "a second fence, which tests/engine/test_nodes.py holds.",
    "images_of_a_former_home_count": "Images are looked for where a rank has none, and a rank that has moved has some as soon as it is attached. What lies "
    "between is held by tests/engine/test_nodes.py.",
    "the_last_plan_is_forgotten": "A plan goes forward only after all had sealed the step, and slots outlive their processes: `_all_sealed` finds that step "
    "again. Its use is where slots are lost with their node.",
}


def flips() -> Iterator[Mutant]:
    """Each test of an if, a while, a comprehension, and each part of one, turned round."""
    for file in FLIPPED:
        count = len(list(_conditions(ast.parse((SOURCE / file).read_text()))))
        for index in range(count):
            tree = ast.parse((SOURCE / file).read_text())
            holder, field, place = list(_conditions(tree))[index]
            here = getattr(holder, field)
            condition = here if place is None else here[place]
            turned = ast.UnaryOp(ast.Not(), condition)
            if place is None:
                setattr(holder, field, turned)
            else:
                here[place] = turned
            where = f"{Path(file).name}:{condition.lineno}: not ({ast.unparse(condition)[:60]})"
            yield Mutant(where, file, text=ast.unparse(ast.fix_missing_locations(tree)))


def _conditions(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            yield node, "test", None
        elif isinstance(node, ast.comprehension):
            yield from ((node, "ifs", place) for place in range(len(node.ifs)))
        elif isinstance(node, ast.BoolOp):
            yield from ((node, "values", place) for place in range(len(node.values)))


def fate_of(mutant: Mutant, *, seeds: int) -> Fate:
    with tempfile.TemporaryDirectory(prefix="outlast-mutant-") as folder:
        package = Path(folder) / "outlast"
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__", "worker", "*.so"))
        (package / mutant.file).write_text(mutant.changed())
        environment = os.environ | {"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM.format(seeds=seeds, seed_s=SEED_S)], env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            return Fate(mutant, True, "does not end")
    if done.returncode == 0:
        return Fate(mutant, False, f"lives through {seeds:,} seeds")
    return Fate(mutant, True, done.stdout.strip() if done.returncode == 9 else done.stderr.strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--flips", action="store_true", help="each condition turned round, in place of the named mutants")
    parser.add_argument("--only", nargs="*", default=[], help="mutants whose name holds one of these words")
    parser.add_argument("--sample", type=int, metavar="N", help="only N of them, spread evenly")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    args = parser.parse_args()
    mutants = [one for one in (flips() if args.flips else NAMED) if not args.only or any(word in one.name for word in args.only)]
    if args.sample is not None and args.sample < len(mutants):
        mutants = [mutants[number * len(mutants) // args.sample] for number in range(args.sample)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        fates = []
        for fate in pool.map(lambda mutant: fate_of(mutant, seeds=args.seeds), mutants):
            fates.append(fate)
            print(f"{'killed' if fate.killed else 'LIVES ':<7} {fate.mutant.name:<80} {fate.how}", flush=True)
    alive = [fate.mutant.name for fate in fates if not fate.killed]
    print(f"{len(fates) - len(alive)} of {len(fates)} killed; {sum(name in SURVIVORS for name in alive)} of {len(alive)} that live are argued for")
    return 1 if any(name not in SURVIVORS for name in alive) else 0


if __name__ == "__main__":
    sys.exit(main())
