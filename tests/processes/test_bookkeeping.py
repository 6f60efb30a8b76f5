"""What the launcher says of a run while it lasts: the states of its workers. Coordinator, ledger and vault are real, the processes are told of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from outlast.engine.protocol.coordinator import Coordinator, CoordinatorOptions, Restart
from outlast.model.messages import WorkerExited, WorkerStarted
from outlast.runtime.coordinator.bookkeeping import Bookkeeping
from outlast.runtime.ledger.store import Ledger
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
    """Two ranks of a program without an outlast call, both at work."""
    coordinator = Coordinator(options=CoordinatorOptions(2, Restart(), greets=False))
    coordinator.start(now_s=NOW_S)
    for worker in (1, 2):
        coordinator.on_message(WorkerStarted(worker, 1000 + worker, "here", NOW_S), now_s=NOW_S)
    return coordinator


def exits(worker: int, code: int) -> WorkerExited:
    return WorkerExited(worker, 1000 + worker, code, None, False, -1, (), (), "plain", NOW_S, NOW_S, "")


def a_books(ledger: Ledger, vault: Vault) -> Bookkeeping:
    return Bookkeeping(ledger=ledger, vault=vault, run="r", node="here", world_size=2, show=lambda _: None, began_s=ledger.began_s())


def states(books: Bookkeeping, coordinator: Coordinator) -> list[str]:
    workers = books.snapshot(coordinator, now_s=NOW_S)["workers"]
    assert isinstance(workers, list)
    assert [set(worker) for worker in workers] == [{"rank", "pid", "node", "state"}] * 2
    return [worker["state"] for worker in workers]


@pytest.mark.parametrize(("code", "state"), [(0, "ended"), (9, "dead")])
def test_a_rank_that_ended_well_before_its_peers_is_not_shown_as_dead(ledger: Ledger, vault: Vault, code: int, state: str) -> None:
    books = a_books(ledger, vault)
    coordinator = plain_run()
    assert states(books, coordinator) == ["training", "training"]
    coordinator.on_message(exits(1, code), now_s=NOW_S)
    assert states(books, coordinator)[0] == state
