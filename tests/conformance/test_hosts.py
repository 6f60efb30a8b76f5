"""What a process host does and reports, in the simulated world as with real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.hosts import FOR_EVER, Host, RealHost, Report, SimulatedHost


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealHost]:
    one = RealHost(tmp_path_factory.mktemp("house"))
    yield one
    one.close()


@pytest.fixture(params=["simulated", "real"])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    if request.param == "real":
        one = request.getfixturevalue("real")
        one.start_over()
        yield one
        return
    fake = SimulatedHost()
    yield fake
    fake.close()


def of(host: Host, worker: int) -> list[Report]:
    """What was reported of it."""
    return [report for report in host.reports if report[1] == worker]


def ended(host: Host, worker: int) -> list[Report]:
    """Everything, once it has ended and the news have settled."""
    host.until(lambda: any(report[0] == "exited" for report in of(host, worker)))
    host.settle()
    return of(host, worker)


def up(host: Host, *doings: tuple[str, object]) -> int:
    """A process that has said that it is up, and then does this."""
    worker = host.start(("say", "up"), *doings)
    host.until(lambda: ("said", worker, "up") in host.reports)
    return worker


@pytest.mark.parametrize("code", [0, 1, 3, 113])
def test_a_life_is_a_start_then_what_it_says_in_order_then_one_end(host: Host, code: int) -> None:
    worker = host.start(*(("say", str(number)) for number in range(20)), ("exit", code))
    assert ended(host, worker) == [
        ("started", worker),
        *(("said", worker, str(number)) for number in range(20)),
        ("exited", worker, code, None),
    ]


def test_one_that_comes_to_its_end_ends_with_0(host: Host) -> None:
    worker = host.start()
    assert ended(host, worker) == [("started", worker), ("exited", worker, 0, None)]


@pytest.mark.parametrize("by", ["kill", "strike"])
def test_one_that_is_killed_has_no_exit_code(host: Host, by: str) -> None:
    worker = up(host, FOR_EVER)
    getattr(host, by)(worker)
    assert ended(host, worker)[2:] == [("exited", worker, None, 9)]


def test_what_it_said_before_it_killed_itself_is_heard_before_its_end(host: Host) -> None:
    worker = host.start(*(("say", str(number)) for number in range(50)), ("die", None))
    reports = ended(host, worker)
    assert reports == [
        ("started", worker),
        *(("said", worker, str(number)) for number in range(50)),
        ("exited", worker, None, 9),
    ]


def test_a_process_killed_before_its_fork_starts_and_ends_and_never_runs(
    host: Host,
) -> None:
    worker = host.start(("say", "ran"), FOR_EVER)
    host.kill(worker)
    assert ended(host, worker) == [("started", worker), ("exited", worker, None, 9)]


def test_one_that_is_killed_before_it_said_anything_says_nothing_later(host: Host) -> None:
    worker = host.start(("sleep", 600.0), ("say", "late"))
    host.until(lambda: ("started", worker) in host.reports)
    host.kill(worker)
    assert ended(host, worker) == [("started", worker), ("exited", worker, None, 9)]


def test_one_that_is_killed_twice_ends_once(host: Host) -> None:
    worker = up(host, FOR_EVER)
    host.kill(worker)
    host.kill(worker)
    assert ended(host, worker)[2:] == [("exited", worker, None, 9)]


def test_killing_terminating_and_telling_one_that_has_ended_is_nothing(host: Host) -> None:
    worker = host.start(("exit", 3))
    ended(host, worker)
    host.kill(worker)
    host.terminate(worker)
    host.ping(worker, 1)
    host.settle()
    assert of(host, worker) == [("started", worker), ("exited", worker, 3, None)]


def test_one_that_nobody_knows_cannot_be_killed_terminated_or_told(host: Host) -> None:
    host.kill(999_999)
    host.terminate(999_999)
    host.ping(999_999, 1)
    host.settle()
    assert host.reports == []


def test_one_that_is_terminated_ends_by_that_signal(host: Host) -> None:
    worker = up(host, FOR_EVER)
    host.terminate(worker)
    assert ended(host, worker)[2:] == [("exited", worker, None, 15)]


def test_one_that_is_not_there_yet_cannot_be_terminated(host: Host) -> None:
    worker = host.start(("say", "up"), ("exit", 0))
    host.terminate(worker)
    assert ended(host, worker) == [
        ("started", worker),
        ("said", worker, "up"),
        ("exited", worker, 0, None),
    ]


def test_a_stopped_one_is_killed_all_the_same(host: Host) -> None:
    worker = up(host, FOR_EVER)
    host.stop(worker)
    host.kill(worker)
    assert ended(host, worker)[2:] == [("exited", worker, None, 9)]


def test_a_stopped_one_is_terminated_once_it_goes_on(host: Host) -> None:
    worker = up(host, FOR_EVER)
    host.stop(worker)
    host.terminate(worker)
    host.settle()
    assert len(of(host, worker)) == 2, "SIGTERM waits"
    host.go_on(worker)
    assert ended(host, worker)[2:] == [("exited", worker, None, 15)]


def test_a_stopped_one_answers_once_it_goes_on_and_in_order(host: Host) -> None:
    worker = up(host, FOR_EVER)
    host.stop(worker)
    for nonce in range(5):
        host.ping(worker, nonce)
    host.settle()
    assert len(of(host, worker)) == 2
    host.go_on(worker)
    host.until(lambda: len(of(host, worker)) == 7)
    host.settle()
    assert of(host, worker)[2:] == [("answered", worker, nonce) for nonce in range(5)]


def test_a_stopped_one_goes_on_where_it_was(host: Host) -> None:
    worker = up(host, ("sleep", 0.05), ("say", "later"), ("exit", 4))
    host.stop(worker)
    host.settle()
    assert len(of(host, worker)) == 2
    host.go_on(worker)
    assert ended(host, worker)[2:] == [("said", worker, "later"), ("exited", worker, 4, None)]


def test_one_whose_script_waits_for_ever_answers(host: Host) -> None:
    worker = up(host, FOR_EVER)
    host.ping(worker, 7)
    host.until(lambda: ("answered", worker, 7) in host.reports)


def test_an_end_touches_no_other(host: Host) -> None:
    workers = [up(host, FOR_EVER) for _ in range(3)]
    host.kill(workers[1])
    ended(host, workers[1])
    for worker in (workers[0], workers[2]):
        host.ping(worker, 1)
        host.until(lambda worker=worker: ("answered", worker, 1) in host.reports)  # type: ignore[misc]
    assert [report for report in host.reports if report[0] == "exited"] == [
        ("exited", workers[1], None, 9)
    ]


def test_several_that_are_killed_at_once_all_end(host: Host) -> None:
    workers = [up(host, FOR_EVER) for _ in range(4)]
    for worker in workers:
        host.kill(worker)
    for worker in workers:
        assert ended(host, worker)[2:] == [("exited", worker, None, 9)]
