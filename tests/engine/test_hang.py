"""Deadlines and culprits; and the agent, which asks who hangs and draws the conclusion."""

from __future__ import annotations

import time

import pytest

from outlast.engine import hang
from outlast.engine.agent.agent import Agent
from outlast.engine.agent.worker_watch import Reading
from outlast.engine.hang import Deadlines, MemberReport, find_culprits, find_longest, find_stopped
from outlast.engine.protocol.outputs import Deliver, Output, ToCoordinator
from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.messages import Ping, Pong, StartWorker, WorkerExited, WorkerHung
from outlast.model.terms import Phase


def report(
    rank: int,
    phase: Phase = Phase.BODY,
    *,
    collectives: int | None = 5,
    step: int = 9,
    age_s: float = 3.0,
    stopped: bool = False,
) -> MemberReport:
    return MemberReport(
        rank + 1, rank, phase, step, age_s, stopped, collectives, f"train.py:{rank}"
    )


def late(*members: MemberReport) -> dict[int, float]:
    return {member.worker: 1.0 for member in members}


def test_a_stopped_process_is_named_after_its_grace() -> None:
    fresh, old = (
        report(0, stopped=True, age_s=0.1),
        report(1, stopped=True, age_s=limits.STOPPED_FLOOR_S + 0.1),
    )
    assert find_stopped(members=[fresh]) is None
    verdict = find_stopped(members=[fresh, old])
    assert verdict is not None
    assert verdict.culprits == (2,)


def test_a_rank_that_does_not_answer_is_named_before_one_behind() -> None:
    members = [report(0, collectives=None), report(1, collectives=4), report(2)]
    assert find_culprits(members=members, overdue=late(*members)).culprits == (1,)


def test_a_rank_that_waits_for_no_peer_is_named_before_one_behind() -> None:
    members = [report(0, Phase.DATA, collectives=4), report(1), report(2)]
    verdict = find_culprits(members=members, overdue=late(*members))
    assert verdict.culprits == (1,)
    assert "train.py:0" in verdict.reason


def test_fewer_collectives_name_the_culprit_and_an_older_step_counts_more() -> None:
    members = [report(0), report(1, collectives=4), report(2)]
    assert find_culprits(members=members, overdue=late(*members)).culprits == (2,)
    members = [
        report(0, collectives=1),
        report(1, step=8, collectives=9),
        report(2, collectives=1),
    ]
    assert find_culprits(members=members, overdue=late(*members)).culprits == (2,)


@pytest.mark.parametrize("phase", [Phase.DATA, Phase.CHECKPOINT])
def test_no_rank_is_named_while_one_is_still_on_its_way_to_the_others(phase: Phase) -> None:
    """Rank 0 sends what the others receive, and so has entered one collective less.

    All ranks wait for rank 2, which is within its deadline.
    """
    waits = [report(0, collectives=4), report(1)]
    verdict = find_culprits(members=[*waits, report(2, phase, collectives=3)], overdue=late(*waits))
    assert (verdict.culprits, verdict.awaited) == ((), True)
    members = [*waits, report(2, Phase.APPLY, collectives=6)]
    assert find_culprits(members=members, overdue=late(*waits)).culprits == (1,), (
        "that one is past what they wait in"
    )


def test_no_rank_is_named_before_the_ceiling_if_all_stand_alike() -> None:
    members = [report(0, age_s=9.0), report(1, age_s=9.5), report(2, age_s=9.0)]
    assert find_culprits(members=members, overdue=late(*members)).culprits == ()
    assert find_longest(members=members, overdue=late(*members)).culprits == (2,)


@pytest.mark.parametrize(
    ("phases", "culprits"),
    [
        ((Phase.BODY, Phase.VOTE), (1,)),
        ((Phase.VOTE, Phase.BODY, Phase.VOTE), (2,)),
        ((Phase.BODY, Phase.BODY, Phase.VOTE), (3,)),
        ((Phase.VOTE, Phase.VOTE), ()),
    ],
)
def test_a_rank_in_another_collective_than_its_peers_is_named(
    phases: tuple[Phase, ...], culprits: tuple[int, ...]
) -> None:
    """A vote counts as a collective, so the counts are equal. Method: each rank waits in the vote,
    or in a collective that the script calls.
    """
    members = [report(rank, phase) for rank, phase in enumerate(phases)]
    verdict = find_culprits(members=members, overdue=late(*members))
    assert verdict.culprits == culprits
    assert verdict.behind == bool(culprits), "they are asked once more"


def test_a_deadline_is_learned_has_a_floor_a_ceiling_and_exceptions() -> None:
    deadlines = Deadlines()
    beacon = Beacon()
    beacon.typical_s[Phase.BODY] = 2.0
    beacon.typical_s[Phase.APPLY] = 1e6
    deadlines.learn([Beacon(), beacon])
    assert deadlines.of(phase=Phase.BODY, steps_done=9) == 2.0 * limits.DEADLINE_FACTOR
    assert deadlines.of(phase=Phase.VOTE, steps_done=9) == limits.STEP_FLOOR_S
    assert deadlines.of(phase=Phase.APPLY, steps_done=9) == limits.STEP_CEILING_S
    assert deadlines.of(phase=Phase.BODY, steps_done=0) == limits.FIRST_STEPS_DEADLINE_S
    assert deadlines.of(phase=Phase.PARKED, steps_done=9) is None
    assert deadlines.of(phase=Phase.CHECKPOINT, steps_done=0) == limits.CHECKPOINT_DEADLINE_S


def test_first_steps_have_a_deadline_of_their_own_which_the_run_shortens() -> None:
    """The ranks that began the run show how long first steps take. A successor's first steps may
    also compile, so the deadlines of its peers are not applied to it.
    """
    deadlines = Deadlines()
    deadlines.learn_first(4.0)
    assert deadlines.of(phase=Phase.BODY, steps_done=0) == limits.FIRST_STEPS_DEADLINE_S, (
        "nobody has come through them yet"
    )
    beacon = Beacon()
    beacon.typical_s[Phase.BODY] = 0.1
    deadlines.learn([beacon])
    assert deadlines.of(phase=Phase.BODY, steps_done=0) == 4.0 * limits.DEADLINE_FACTOR
    deadlines.first_s = 0.1
    assert deadlines.of(phase=Phase.BODY, steps_done=2) == limits.FIRST_STEPS_FLOOR_S
    deadlines.learn_first(1e6)
    assert deadlines.of(phase=Phase.BODY, steps_done=0) == limits.FIRST_STEPS_DEADLINE_S
    assert deadlines.of(phase=Phase.BODY, steps_done=9) == limits.STEP_FLOOR_S


class Watch:
    """An agent with three ranks past their first steps, driven tick by tick.

    `pings` counts how often worker 1 was pinged.
    """

    def __init__(self) -> None:
        self.now_s = 50.0
        self.pings = 0
        self.agent = Agent(now_s=self.now_s)
        # for each worker whose threads are ready but get no processor: the time since when
        self.starved_s: dict[int, float] = {}
        self.beacons = {
            worker: Beacon(worker=worker, rank=worker - 1, phase=Phase.BODY) for worker in (1, 2, 3)
        }
        for worker in self.beacons:
            self.agent.on_command(StartWorker(worker, worker - 1, "rank", 1), now_s=self.now_s)
        for step in range(limits.FIRST_STEPS_COUNT + 2):
            self.tick(moving=(1, 2, 3), step=step)

    def replace_rank_1(self) -> None:
        """Let worker 2 be killed, and let worker 4 take its rank."""
        self.agent.on_event(
            WorkerExited(2, 0, None, 9, False, 5, (), (), "body", 0.0, 0.0, ""), now_s=self.now_s
        )
        self.beacons[4] = Beacon(worker=4, rank=1, phase=Phase.BODY)
        del self.beacons[2]
        self.agent.on_command(StartWorker(4, 1, "rank", 2), now_s=self.now_s)

    def tick(
        self,
        *,
        moving: tuple[int, ...] = (),
        step: int | None = None,
        after_s: float = limits.TICK_S,
    ) -> list[Output]:
        self.now_s += after_s
        for worker in moving:
            beacon = self.beacons[worker]
            beacon.beats, beacon.at_ns = beacon.beats + 1, int(self.now_s * 1e9)
            beacon.step = beacon.step if step is None else step
        for worker in self.starved_s:
            if self.agent.looks_closely(worker, now_s=self.now_s):
                self.starved_s[worker] += after_s
        readings = {
            worker: Reading(beacon, False, self.starved_s.get(worker, 0.0))
            for worker, beacon in self.beacons.items()
        }
        return self.agent.on_tick(readings, now_s=self.now_s)

    def stand(self, for_s: float, answers: dict[int, int]) -> list[WorkerHung]:
        """Let all ranks stand still. `answers` holds the number of collectives of each worker whose
        listener answers.
        """
        found: list[WorkerHung] = []
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            for output in self.tick():
                if (
                    isinstance(output, Deliver)
                    and isinstance(output.message, Ping)
                    and output.worker in answers
                ):
                    self.pings += output.worker == 1
                    self.agent.on_worker(
                        Pong(output.worker, output.message.nonce, answers[output.worker], ""),
                        now_s=self.now_s,
                    )
                elif isinstance(output, ToCoordinator) and isinstance(output.message, WorkerHung):
                    found.append(output.message)
        return found


@pytest.mark.parametrize("starving", [(2,), (1, 2, 3)])
def test_a_rank_that_has_no_processor_does_not_hang(starving: tuple[int, ...]) -> None:
    """The threads of such a rank are ready and do not run. It is late and does not answer, and its
    peers wait for it.
    """
    watch = Watch()
    watch.starved_s = dict.fromkeys(starving, 0.0)
    assert watch.stand(20.0, {worker: 7 for worker in (1, 2, 3) if worker not in starving}) == []


def test_a_starved_rank_is_named_once_it_runs_and_stands_still() -> None:
    watch = Watch()
    watch.starved_s = {2: 0.0}
    assert watch.stand(20.0, {1: 7, 3: 7}) == []
    watch.starved_s = {}
    assert [one.worker for one in watch.stand(6.0 + limits.AWAITED_LOOK_S, {1: 7, 3: 7})] == [2]


def test_a_rank_that_never_has_a_processor_is_given_up_in_the_end() -> None:
    watch = Watch()
    watch.starved_s = {2: 0.0}
    assert [
        one.worker
        for one in watch.stand(limits.STARVED_MAX_S + 6.0 + limits.AWAITED_LOOK_S, {1: 7, 3: 7})
    ] == [2]


def test_a_rank_that_moves_is_not_looked_at_closely() -> None:
    """A close look opens files for each thread, so the agent takes one only after half of a
    deadline.
    """
    watch = Watch()
    assert not any(watch.agent.looks_closely(worker, now_s=watch.now_s) for worker in (1, 2, 3))
    watch.stand(0.7, {})
    assert all(watch.agent.looks_closely(worker, now_s=watch.now_s) for worker in (1, 2, 3))


def test_the_agent_names_the_rank_behind_within_its_deadline_and_once() -> None:
    watch = Watch()
    stood_s = watch.now_s
    found = watch.stand(6.0, {1: 7, 2: 6, 3: 7})
    assert [hung.worker for hung in found] == [2]
    assert (
        found[0].at_s - stood_s <= limits.STEP_FLOOR_S + limits.PING_DEADLINE_S + 3 * limits.TICK_S
    )
    assert found[0].last_s == pytest.approx(stood_s, abs=1e-6)


def test_the_agent_names_the_rank_that_does_not_answer() -> None:
    assert [hung.worker for hung in Watch().stand(3.0, {1: 7, 2: 7})] == [3]


def test_an_agent_that_was_starved_itself_sees_no_hang() -> None:
    watch = Watch()
    for _ in range(5):
        assert not [
            one for one in watch.tick(after_s=30.0) if not isinstance(one, ToCoordinator)
        ], "thirty seconds between its own ticks prove nothing"


def test_a_successor_is_held_to_the_learned_length_of_first_steps() -> None:
    watch = Watch()
    assert 0.0 < watch.agent.deadlines.first_s <= 2 * limits.TICK_S
    for worker in (1, 3):
        watch.beacons[worker].typical_s[Phase.BODY] = 0.05
    watch.replace_rank_1()
    watch.tick(moving=(1, 3, 4), step=9)
    stood_s = watch.now_s
    found = watch.stand(limits.FIRST_STEPS_FLOOR_S + 2.0, {1: 7, 3: 7, 4: 6})
    assert [hung.worker for hung in found] == [4]
    assert limits.FIRST_STEPS_FLOOR_S <= found[0].at_s - stood_s <= limits.FIRST_STEPS_FLOOR_S + 1.0


def test_a_barrier_of_one_rank_is_found_within_its_deadline() -> None:
    """Method: rank 1 calls a collective of its own, and ranks 0 and 2 vote."""
    watch = Watch()
    for worker in (1, 3):
        watch.beacons[worker].phase = Phase.VOTE
    watch.tick(moving=(1, 2, 3))
    stood_s = watch.now_s
    found = watch.stand(5.0, {1: 7, 2: 7, 3: 7})
    assert [hung.worker for hung in found] == [2]
    assert found[0].at_s - stood_s < limits.STEP_FLOOR_S + 1.0


def test_what_was_learned_stays_while_all_processes_are_new() -> None:
    deadlines = Deadlines()
    beacon = Beacon()
    beacon.typical_s[Phase.BODY] = 2.0
    deadlines.learn([beacon])
    deadlines.learn_first(3.0)
    deadlines.learn([Beacon(), Beacon()])
    assert deadlines.of(phase=Phase.BODY, steps_done=9) == 2.0 * limits.DEADLINE_FACTOR
    assert deadlines.of(phase=Phase.BODY, steps_done=0) == 3.0 * limits.DEADLINE_FACTOR


def test_ranks_at_one_place_are_given_time_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STEP_CEILING_S", 8.0)
    watch = Watch()
    assert not watch.stand(4.0, {1: 7, 2: 7, 3: 7})
    assert watch.agent.deadlines.scale > 1.0
    assert len(watch.stand(20.0, {1: 7, 2: 7, 3: 7})) >= 1


def test_ranks_in_setup_for_too_long_are_not_asked_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing tells these ranks apart, and the deadline of their phase is never doubled."""
    monkeypatch.setitem(hang._FIXED, Phase.SETUP, 20.0)
    watch = Watch()
    for beacon in watch.beacons.values():
        beacon.phase = Phase.SETUP
    watch.tick(moving=(1, 2, 3))
    first = watch.stand(22.0, {1: 7, 2: 7, 3: 7})[0]
    assert (first.worker, watch.pings) == (1, 2)
    assert first.at_s - first.last_s <= 20.0 + 4 * limits.TICK_S


def test_long_overdue_peers_of_a_slow_successor_are_asked_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peers waited for the first step of the successor, which is now overdue too."""
    monkeypatch.setattr(limits, "FIRST_STEPS_DEADLINE_S", 100.0)
    watch = Watch()
    watch.replace_rank_1()
    watch.tick(moving=(1, 3, 4), step=9)
    answers = {1: 7, 3: 7, 4: 7}
    assert watch.stand(99.0, answers) == []
    watch.pings = 0
    watch.stand(limits.AWAITED_LOOK_S, answers)
    assert 1 <= watch.pings <= 3


def test_progress_resets_the_deadlines_after_a_false_alarm() -> None:
    watch = Watch()
    watch.stand(2.0, {1: 7, 2: 7, 3: 7})
    assert watch.agent.deadlines.scale > 1.0
    watch.tick(moving=(1, 2, 3), step=50)
    assert watch.agent.deadlines.scale == 1.0


def test_spares_that_keep_dying_do_not_silence_the_question() -> None:
    watch = Watch()
    found: list[WorkerHung] = []
    for number in range(60):
        watch.agent.on_command(StartWorker(100 + number, -1, "hot", 1), now_s=watch.now_s)
        watch.agent.on_event(
            WorkerExited(
                100 + number, 1, 1, None, False, 0, (), (), "boot", watch.now_s, watch.now_s, ""
            ),
            now_s=watch.now_s,
        )
        found += watch.stand(limits.TICK_S, {1: 7, 2: 6, 3: 7})
    assert [hung.worker for hung in found] == [2]


def test_no_rank_is_blamed_for_waiting_while_another_works_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 is between two steps, where it may stay for half an hour. The others wait for it in a
    collective of the next step.
    """
    monkeypatch.setattr(limits, "STEP_CEILING_S", 8.0)
    watch = Watch()
    for beacon in watch.beacons.values():
        beacon.phase = Phase.BETWEEN if beacon.rank == 0 else beacon.phase
    watch.tick(moving=(1, 2, 3))
    assert not watch.stand(60.0, {1: 6, 2: 7, 3: 7})


def test_a_rank_elsewhere_within_its_deadline_is_awaited_not_named() -> None:
    for phase in (Phase.REGROUP, Phase.CHECKPOINT, Phase.DATA, Phase.WAIT):
        members = [report(0), report(1), report(2, phase)]
        verdict = find_culprits(members=members, overdue=late(*members[:2]))
        assert (verdict.culprits, verdict.awaited) == ((), True)
    members = [report(0), report(1), report(2, Phase.BETWEEN, collectives=4)]
    assert find_culprits(members=members, overdue=late(*members[:2])).awaited, (
        "between two steps a rank has more time than in one"
    )
    members = [report(0), report(1, Phase.VOTE)]
    assert not find_culprits(members=members, overdue=late(*members)).awaited


def test_a_rank_a_step_behind_is_named_at_any_place_of_its_peers() -> None:
    for phase in (Phase.EVALUATION, Phase.CHECKPOINT, Phase.BETWEEN):
        members = [
            report(0, Phase.VOTE, step=8),
            report(1, phase, collectives=6),
            report(2, phase, collectives=6),
        ]
        assert find_culprits(members=members, overdue=late(members[0])).culprits == (1,)


def test_a_rank_behind_within_its_own_deadline_is_not_named() -> None:
    """The first step of a successor compiles, while the deadlines of its peers were learned long
    ago.
    """
    members = [report(0), report(1, collectives=2), report(2)]
    verdict = find_culprits(members=members, overdue=late(members[0], members[2]))
    assert (verdict.culprits, verdict.awaited) == ((), True)


def test_a_rank_in_setup_too_long_is_named_while_peers_build_the_group() -> None:
    members = [
        report(0, Phase.SETUP, step=0, collectives=0),
        report(1, Phase.REGROUP, step=0, collectives=0),
    ]
    assert find_culprits(members=members, overdue=late(members[0])).culprits == (1,)
    members = [
        report(0, Phase.SETUP, step=0, collectives=3),
        report(1, Phase.SETUP, step=0, collectives=2),
    ]
    assert find_culprits(members=members, overdue=late(*members)).culprits == (2,), (
        "a script may have collectives of its own before its steps"
    )


def test_a_batch_may_take_longer_than_a_step_is_given() -> None:
    """Found in a drill: a healthy loader paused for 1.2 s on busy cores, and its rank was killed
    for it.
    """
    deadlines = Deadlines(typical_s={Phase.DATA: 0.02, Phase.BODY: 0.02})
    assert deadlines.of(phase=Phase.DATA, steps_done=9) == limits.DATA_FLOOR_S
    assert deadlines.of(phase=Phase.BODY, steps_done=9) == limits.STEP_FLOOR_S


def test_in_an_evaluation_fewer_collectives_name_the_culprit_too() -> None:
    members = [
        report(0, Phase.EVALUATION),
        report(1, Phase.EVALUATION, collectives=4),
        report(2, Phase.EVALUATION),
    ]
    assert find_culprits(members=members, overdue=late(*members)).culprits == (2,)


def test_the_agent_asks_again_as_soon_as_the_awaited_rank_is_late_too() -> None:
    watch = Watch()
    watch.beacons[2].phase = Phase.DATA
    watch.stand(limits.STEP_FLOOR_S / 2, {1: 7, 3: 7})
    watch.tick(moving=(2,))
    stood_s = watch.now_s
    found = watch.stand(limits.DATA_FLOOR_S + 5.0, {1: 7, 2: 6, 3: 7})
    assert [hung.worker for hung in found] == [2]
    assert (
        found[0].at_s - stood_s <= limits.DATA_FLOOR_S + limits.PING_DEADLINE_S + 3 * limits.TICK_S
    )


def test_waiting_ranks_are_not_asked_again_before_the_awaited_one_is_late() -> None:
    """Rank 1 waits for a batch, for which it has ten seconds. The others are overdue after one."""
    watch = Watch()
    watch.beacons[2].phase = Phase.DATA
    watch.tick(moving=(1, 2, 3))
    stood_s = watch.now_s
    assert (
        watch.stand(
            limits.STEP_FLOOR_S + limits.PING_DEADLINE_S + 3 * limits.TICK_S, {1: 7, 2: 6, 3: 7}
        )
        == []
    )
    assert not watch.agent.asks
    assert watch.agent.quiet_until_s() == pytest.approx(stood_s + limits.DATA_FLOOR_S)


def test_a_question_is_dropped_once_all_overdue_ranks_have_moved() -> None:
    """No rank has answered the question yet."""
    watch = Watch()
    while not watch.agent.asks:
        watch.tick()
    watch.tick(moving=(1, 2, 3))
    assert not watch.agent.asks


def test_finding_culprits_takes_time_in_proportion_to_the_ranks() -> None:
    """Method: 20,000 ranks stand alike, so no rank is to blame. Comparing each with each took the
    coordinator minutes.
    """
    members = [report(rank) for rank in range(20_000)]
    began_s = time.process_time()
    verdict = find_culprits(members=members, overdue=late(*members))
    assert time.process_time() - began_s < 5.0
    assert (verdict.culprits, verdict.awaited) == ((), False)
