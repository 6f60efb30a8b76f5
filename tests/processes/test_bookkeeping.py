"""What the launcher publishes about a run while it lasts: the states of its workers and its ETTR.

Coordinator, ledger and vault are real. Processes exist only as messages about them.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from outlast.app.reports.report_facts import report_facts
from outlast.app.reports.status import headline, status_facts
from outlast.app.words import percent
from outlast.engine.coordinator.machine import Coordinator
from outlast.engine.coordinator.options import CoordinatorOptions
from outlast.engine.coordinator.restore_sources import Restart
from outlast.engine.protocol.outputs import End, Spawn
from outlast.model import gauges
from outlast.model.beacon import Beacon, pack_into
from outlast.model.goodput import account
from outlast.model.messages import WorkerExited, WorkerStarted
from outlast.model.terms import Cause
from outlast.runtime import clock
from outlast.runtime.agent.beacons import BeaconNews, Beacons
from outlast.runtime.agent.processes import Exited
from outlast.runtime.coordinator.bookkeeping import Bookkeeping
from outlast.runtime.folders.run_folder import RunFolder
from outlast.runtime.ledger.store import Ledger
from outlast.runtime.ledger.view import look
from outlast.runtime.tiers.vault import Vault
from tests.ledger import a_run

NOW_S = a_run.ZERO_S + 1.0


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger.create(tmp_path / "ledger.db", a_run.META, pid=1)) as ledger:
        yield ledger


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    vault = Vault.create(tmp_path / "vault", a_run.META.run)
    yield vault
    vault.remove()


def plain_run() -> Coordinator:
    """Return the coordinator of two ranks of a program without an outlast call, both running."""
    coordinator = Coordinator(options=CoordinatorOptions(2, Restart(), greets=False))
    coordinator.start(now_s=NOW_S)
    for worker in (1, 2):
        coordinator.on_message(WorkerStarted(worker, 1000 + worker, "here", NOW_S), now_s=NOW_S)
    return coordinator


def exits(worker: int, code: int) -> WorkerExited:
    return WorkerExited(
        worker, 1000 + worker, code, None, False, -1, (), (), "plain", NOW_S, NOW_S, ""
    )


class Books(Bookkeeping):
    """The books of a run, and the beacons from which they are filled."""

    beacons: Beacons


def a_books(ledger: Ledger, vault: Vault, *, start_step: int = 0) -> Books:
    books = Books(
        ledger=ledger,
        records=ledger.read(),
        start_step=start_step,
        living=lambda: books.beacons.lives(),
        gauges=lambda: books.beacons.gauges(),
        show=lambda _: None,
    )
    news = BeaconNews(over=books.life_over, step=books.step_seen)
    books.beacons = Beacons(vault, node="here", news=news)
    return books


def states(books: Books, coordinator: Coordinator) -> list[str]:
    workers = books.snapshot(coordinator, now_s=NOW_S)["workers"]
    assert isinstance(workers, list)
    assert [set(worker) for worker in workers] == [{"rank", "pid", "node", "state", "log"}] * 2
    return [worker["state"] for worker in workers]


@pytest.mark.parametrize(("code", "state"), [(0, "ended"), (9, "dead")])
def test_a_rank_that_ended_well_before_its_peers_is_not_shown_as_dead(
    ledger: Ledger, vault: Vault, code: int, state: str
) -> None:
    books = a_books(ledger, vault)
    coordinator = plain_run()
    assert states(books, coordinator) == ["training", "training"]
    coordinator.on_message(exits(1, code), now_s=NOW_S)
    assert states(books, coordinator)[0] == state


def test_the_snapshot_says_where_awaited_ranks_stand_and_until_when(
    ledger: Ledger, vault: Vault
) -> None:
    """The launcher tells whether the imports go on, from which workers are forked."""
    coordinator = Coordinator(options=CoordinatorOptions(2, Restart()))
    coordinator.start(now_s=NOW_S)
    books, seen = a_books(ledger, vault), []
    for imports in (True, False):
        wait = books.snapshot(
            coordinator, now_s=NOW_S, deadlines={"move": NOW_S + 30.0}, imports=imports
        )["waits_for"]
        assert isinstance(wait, dict)
        assert wait["left_s"] == 30.0
        seen.append(wait["what"].rpartition("; ")[2])
    assert seen == [
        "ranks 0, 1: they are forked once torch and the script's modules are imported",
        "ranks 0, 1: their processes are being started",
    ]


def test_a_run_that_waits_for_its_first_nodes_is_starting(ledger: Ledger, vault: Vault) -> None:
    """There was nothing before, so it does not regroup."""
    coordinator = Coordinator(options=CoordinatorOptions(2, Restart(), nodes=2))
    coordinator.start(now_s=NOW_S)
    facts = a_books(ledger, vault).snapshot(
        coordinator, now_s=NOW_S, deadlines={"nodes": NOW_S + 600.0}
    )
    assert (facts["state"], facts["workers"]) == ("starting", [])
    assert facts["waits_for"] == {"what": "nodes: 0 of 2 are in", "left_s": 600.0}


def test_the_snapshot_has_what_rank_0_has_logged(ledger: Ledger, vault: Vault) -> None:
    """Worker 2 holds rank 0. Worker 3 is a spare that also knows a target step."""
    books = a_books(ledger, vault)
    for worker, rank in ((1, 1), (2, 0), (3, -1)):
        books.beacons.started(Spawn(worker, rank, "rank" if rank >= 0 else "hot", 1))
        page = vault.beacon(worker, create=True)
        pack_into(page, Beacon(worker, os.getpid(), rank=rank))
        gauges.pack_into(page, gauges.Gauges(100 + rank, 7, {"loss": float(rank)}))
        books.beacons.look(worker, os.getpid(), now_s=NOW_S)
    facts = books.snapshot(plain_run(), now_s=NOW_S)
    assert facts["target_step"] == 100
    assert facts["logged"] == {"step": 7, "values": {"loss": 0.0}}
    assert facts["interruptions"] == []


# --- committed steps ---


def seen_at(books: Books, vault: Vault, *, step: int) -> None:
    """Let worker 1, which holds rank 0, publish in its beacon that it has committed `step`."""
    pack_into(vault.beacon(1, create=True), Beacon(1, os.getpid(), rank=0, step=step))
    books.beacons.look(1, os.getpid(), now_s=clock.now_s())


def flushed_at(books: Books, vault: Vault, *, step: int) -> None:
    """Begin a run whose newest snapshot is of `step`."""
    books.beacons.started(Spawn(1, 0, "rank", 1))
    seen_at(books, vault, step=0)
    seen_at(books, vault, step=step)
    books.flush(Coordinator(options=CoordinatorOptions(1, Restart())), now_s=clock.now_s())


@pytest.mark.parametrize("state", ["ended", "stopped", "failed"])
def test_a_run_that_is_over_reports_its_last_committed_step(
    tmp_path: Path, vault: Vault, state: str
) -> None:
    """Method: the last snapshot is of step 57. Then step 60 is committed, and the worker and the
    run end.
    """
    folder = RunFolder.create(tmp_path / "run", name="toy", version="0.1.0", options={})
    with closing(Ledger.create(folder.ledger, a_run.META, pid=1)) as ledger:
        books = a_books(ledger, vault)
        flushed_at(books, vault, step=57)
        pack_into(vault.beacon(1, create=True), Beacon(1, os.getpid(), rank=0, step=60))
        books.beacons.ended(Exited(1, os.getpid(), 0, None, None, clock.now_s()))
        books.close(End(0, state, "", ""))
    folder.close()
    view = look(str(folder.path))
    assert (view.records.snapshot or {})["step"] == 57, "the snapshot is older than the end"
    assert (status_facts(view)["step"], report_facts(view)["steps"]) == (60, 60)


def test_a_lost_run_reports_the_last_step_that_its_launcher_recorded(
    tmp_path: Path, vault: Vault
) -> None:
    """Method: the launcher is killed after a flush. Another one goes on, and is killed before any
    step.
    """
    folder = RunFolder.create(tmp_path / "run", name="toy", version="0.1.0", options={})
    with closing(Ledger.create(folder.ledger, a_run.META, pid=1)) as ledger:
        books = a_books(ledger, vault)
        flushed_at(books, vault, step=42)
    folder.close()
    assert steps_said(folder.path) == ("lost", 42, 42)
    with closing(Ledger.resume(folder.ledger, pid=1, started_s=1.0, started_wall_s=9.0)) as ledger:
        books = a_books(ledger, vault, start_step=40)
        options = CoordinatorOptions(1, Restart(40, "checkpoint"))
        books.flush(Coordinator(options=options), now_s=clock.now_s())
    assert steps_said(folder.path) == ("lost", 42, 42)


def steps_said(path: Path) -> tuple[str, int, int]:
    """Return the state of the run, and its last step as status and as report give it."""
    view = look(str(path))
    return view.state, status_facts(view)["step"], report_facts(view)["steps"]


def test_a_resumed_session_counts_only_the_steps_that_it_commits(
    ledger: Ledger, vault: Vault
) -> None:
    """Method: the session goes on from step 90. Its worker's beacon says 0 until the state of step
    90 is in place.
    """
    books = a_books(ledger, vault, start_step=90)
    books.beacons.started(Spawn(1, 0, "rank", 1))
    for step in (0, 90, 92):
        seen_at(books, vault, step=step)
    books.close(End(0, "ended", "", ""))
    (bucket,) = ledger.read().sessions[-1].steps
    assert (bucket.from_step, bucket.to_step) == (90, 92)


def test_steps_that_are_first_seen_when_the_run_ends_are_on_record(
    ledger: Ledger, vault: Vault
) -> None:
    """A run may be over before the launcher reads a beacon for the first time."""
    books = a_books(ledger, vault)
    books.beacons.started(Spawn(1, 0, "rank", 1))
    pack_into(vault.beacon(1, create=True), Beacon(1, os.getpid(), rank=0, step=3))
    books.beacons.ended(Exited(1, os.getpid(), 0, None, None, clock.now_s()))
    books.close(End(0, "ended", "", ""))
    assert ledger.read().newest_step == 3


# --- of several sessions ---


def works(
    books: Books, vault: Vault, worker: int, seconds: dict[Cause, float], cause: Cause
) -> None:
    """Give the rank `worker - 6` to worker `worker`. Its beacon says that it spent `seconds` and is
    at `cause` since then.
    """
    books.beacons.started(Spawn(worker, worker - 6, "rank", 3))
    beacon = Beacon(
        worker,
        1000 + worker,
        rank=worker - 6,
        step=200,
        cause=cause,
        opened_ns=int(clock.now_s() * 1e9),
    )
    beacon.seconds |= seconds
    pack_into(vault.beacon(worker, create=True), beacon)
    books.beacons.look(worker, os.getpid(), now_s=clock.now_s())


def test_the_view_and_the_report_of_a_resumed_run_agree(tmp_path: Path, vault: Vault) -> None:
    """Method: the first session lasted 20 s, most of them productive. The second one began an hour
    later and has run for nearly 10 s: one rank died, and one is in a step.
    """
    path = a_run.ended_run(tmp_path, state="stopped") / "ledger.db"
    began_s = clock.now_s()
    with closing(
        Ledger.resume(
            path, pid=1, started_s=began_s, started_wall_s=a_run.META.started_wall_s + 3600.0
        )
    ) as ledger:
        books = a_books(ledger, vault)
        works(books, vault, 6, {Cause.STARTUP: 1.0, Cause.PRODUCTIVE: 2.0}, Cause.OTHER)
        works(books, vault, 7, {Cause.STARTUP: 1.0, Cause.PRODUCTIVE: 3.0}, Cause.PRODUCTIVE)
        books.beacons.ended(Exited(6, 1006, None, 9, None, clock.now_s() + 4.0))
        coordinator, now_s = Coordinator(options=CoordinatorOptions(2, Restart())), began_s + 9.5
        books.flush(coordinator, now_s=now_s)
        said, reckoned = (
            books.snapshot(coordinator, now_s=now_s),
            account(ledger.read(), now_s=now_s),
        )
    assert said["wall_s"] == pytest.approx(reckoned.wall_s)
    assert said["wall_s"] == pytest.approx(29.5), (
        "the hour between the sessions is no time of the run's"
    )
    assert said["ettr"] == pytest.approx(reckoned.ettr)
    assert said["ettr"] == pytest.approx((a_run_productive_s() + 2.0 + 8.5) / 59.0, abs=0.01)
    text = headline(said).plain
    assert f"ETTR {percent(reckoned.ettr)} over 2 sessions   29.5 s" in text, text


def a_run_productive_s() -> float:
    return sum(life.seconds.get(Cause.PRODUCTIVE, 0.0) for life in a_run.LIVES)


def test_the_books_hold_no_more_for_each_interruption_that_is_over(
    ledger: Ledger, vault: Vault
) -> None:
    """Each interruption comes with a traceback of 4 KiB. An interruption that is over is only in
    the ledger.
    """
    books = a_books(ledger, vault)
    coordinator = plain_run()

    def interrupted(number: int) -> None:
        one = replace(a_run.KILL, id=number, resumed_s=None, traceback=f"{number:4096}")
        books.record(one)
        assert [open_one.id for open_one in books.unresumed()] == [number]
        books.record(replace(one, resumed_s=NOW_S))
        books.flush(coordinator, now_s=NOW_S)

    held = []
    tracemalloc.start()
    try:
        for number in range(1, 601):
            interrupted(number)
            if number in (100, 600):
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] - held[0] < 500 * 200, held
    snapshot = books.snapshot(coordinator, now_s=NOW_S)
    assert [one["id"] for one in snapshot["interruptions"]] == list(range(596, 601))  # type: ignore[attr-defined]
    assert len(ledger.read().interruptions()) == 600


def test_one_interruption_of_unknown_cost_leaves_the_ettr_unknown(
    ledger: Ledger, vault: Vault
) -> None:
    """It stays unknown after many other interruptions too."""
    books, coordinator = a_books(ledger, vault, start_step=1), plain_run()
    books.record(replace(a_run.KILL, id=1, resumed_s=None))
    assert books.snapshot(coordinator, now_s=NOW_S)["ettr"] is not None
    for number in range(1, 20):
        lost = -1 if number == 1 else 0
        books.record(replace(a_run.KILL, id=number, resumed_s=NOW_S, steps_lost=lost))
        assert books.snapshot(coordinator, now_s=NOW_S)["ettr"] is None, number
