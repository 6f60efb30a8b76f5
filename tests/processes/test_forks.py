"""What is reported about a zygote that is lost while it forks: how it ended, and why.

The queue is real, and so are the processes that it uses.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from outlast.model.limits import HELPER_ANSWER_S
from outlast.runtime import clock
from outlast.runtime.agent import forks
from outlast.runtime.agent.forks import ForkQueue
from outlast.runtime.agent.helpers import HelperKeeper
from outlast.runtime.agent.processes import Child, Handover
from outlast.runtime.agent.starving import Patience
from outlast.runtime.agent.zygote_client import ZygoteClient
from outlast.runtime.loop import Loop
from outlast.runtime.network.channel import Channel
from outlast.runtime.network.packets import receive_packet
from outlast.runtime.worker.start.zygote import Zygote
from tests.processes.house import BOUND_S, House, Record
from tests.processes.test_starving import BURN, child

LATENESS_S = 3.0  # a busy machine may run this test later than planned by this much

STAND_IN = """
import socket, sys
from outlast.runtime.network.packets import receive_packet, send_packet
sock = socket.socket(fileno=int(sys.argv[1]))
while (packet := receive_packet(sock)) is not None:
    if packet[0]["do"] == "prepare":
        send_packet(sock, {"ready": True, "imports_s": 0.0})
    elif packet[0]["do"] == "ping":
        if sys.argv[2] != "deaf":
            send_packet(sock, {"pong": True})
    elif sys.argv[2] == "answer":
        send_packet(sock, {"failed": packet[0]["spec"]["worker"], "error": "refused"})
    elif sys.argv[2] == "die":
        send_packet(sock, {"last_words": "MemoryError: no room"})
        sys.exit(3)
"""


@dataclass
class Desk:
    """A fork queue whose zygote is a process that has imported nothing. It is ready at once. For
    each request it answers with a refusal (`answer`), ends at the first one (`die`), or stays
    silent.
    """

    loop: Loop
    does: str
    record: Record = field(default_factory=Record)
    clients: list[ZygoteClient] = field(default_factory=list)

    def queue(self) -> ForkQueue:
        return ForkQueue(
            self.loop,
            self.record,
            started=lambda child, pid: None,
            spawn=lambda child: None,
            failed=lambda child, error: self.record.on_failed(child.spec.worker, error),
            keeper=HelperKeeper(self.loop),
        )

    def begin(self) -> ForkQueue:
        queue = self.queue()
        queue.begin((), "", self.start())
        self.until(lambda: bool(self.record.zygotes), "the zygote")
        return queue

    def start(self) -> ZygoteClient:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", STAND_IN, str(theirs.fileno()), self.does],
                pass_fds=[theirs.fileno()],
            )
        self.clients.append(ZygoteClient(process, ours))
        return self.clients[-1]

    def until(self, done: Callable[[], bool], what: str) -> None:
        assert self.loop.run_until(done, within_s=BOUND_S), (
            f"not within {BOUND_S} s: {what} {self.record}"
        )


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Desk]]:
    loop, desks = Loop(), []

    def one(does: str) -> Desk:
        desks.append(Desk(loop, does))
        monkeypatch.setattr(forks.ZygoteClient, "start", desks[-1].start)
        return desks[-1]

    yield one
    for queue in desks:
        for client in queue.clients:
            client.kill()
    loop.close()


def asked(queue: Desk, forks: ForkQueue, house: House) -> int:
    """Ask for a child, so that the zygote has the request."""
    spec = house.spec()
    handover = Handover.make()
    forks.ask(
        Child(
            spec,
            handover,
            Channel(queue.loop, handover.sock, on_message=lambda _: None, on_close=lambda _: None),
        )
    )
    queue.until(lambda: forks.busy, "the request")
    return spec.worker


def hurried(patch: pytest.MonkeyPatch, *, deadline_s: float, look_s: float) -> None:
    """Set how long a fork may take, and how often its zygote is checked."""
    patch.setattr(forks, "ZYGOTE_FORK_DEADLINE_S", deadline_s)
    patch.setattr(forks, "STARVING_LOOK_S", look_s)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    one = House(tmp_path)
    yield one
    one.close()


def test_a_queue_imports_until_its_zygote_is_ready(make: Callable[[str], Desk]) -> None:
    """The status tells people why no process is up yet. Spawned children wait for no imports."""
    desk = make("nothing")
    queue = desk.queue()
    assert not queue.imports, "without a zygote, children are spawned"
    queue.begin((), "", desk.start())
    assert queue.imports
    desk.until(lambda: bool(desk.record.zygotes), "the zygote")
    assert not queue.imports
    queue.end()
    assert not queue.imports


def test_a_fork_whose_zygote_is_killed_names_the_signal(
    make: Callable[[str], Desk], house: House
) -> None:
    queue = make("nothing")
    begun = queue.begin()
    worker, pid = asked(queue, begun, house), begun.pid
    os.kill(pid, signal.SIGKILL)
    queue.until(
        lambda: worker in queue.record.failed and len(queue.record.zygotes) == 2,
        "the failure, and another zygote",
    )
    assert (
        queue.record.failed[worker]
        == f"the zygote was lost while it forked it: the zygote {pid} was ended by signal 9"
        " (SIGKILL)"
    )
    assert queue.record.lost == [f"the zygote {pid} was ended by signal 9 (SIGKILL)"]


def test_a_zygote_that_does_not_answer_is_killed_and_the_reason_reported(
    make: Callable[[str], Desk], house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The zygote sleeps. It is not ready to run, so a missing processor does not excuse it."""
    queue = make("nothing")
    begun = queue.begin()
    hurried(monkeypatch, deadline_s=1.0, look_s=0.1)
    pid, worker = begun.pid, asked(queue, begun, house)
    queue.until(lambda: worker in queue.record.failed, "the failure")
    assert queue.record.failed[worker] == (
        f"the zygote was lost while it forked it: the zygote {pid} gave no answer within 1 s, and"
        " was killed"
    ), queue.record


def test_a_stopped_zygote_is_replaced_before_it_is_needed(make: Callable[[str], Desk]) -> None:
    """Method: SIGSTOP while the zygote is idle. The bound counts time on the launcher's clock."""
    queue = make("nothing")
    begun = queue.begin()
    pid, stopped_s = begun.pid, clock.now_s()
    os.kill(pid, signal.SIGSTOP)
    queue.until(lambda: bool(queue.record.lost), "the loss")
    assert clock.now_s() - stopped_s < 2.0 + LATENESS_S, queue.record
    assert queue.record.lost == [
        f"the zygote (pid {pid}) is stopped (SIGSTOP, or a debugger), and was killed"
    ]
    queue.until(lambda: len(queue.record.zygotes) == 2, "another zygote")
    assert begun.pid != pid


def test_an_idle_zygote_that_answers_no_question_is_replaced(make: Callable[[str], Desk]) -> None:
    """Method: the zygote is not stopped, and does not answer. As a control, one that answers is
    left alone.
    """
    deaf, sound = make("deaf"), make("answer")
    begun, kept = deaf.begin(), sound.begin()
    pid = begun.pid
    deaf.until(lambda: bool(deaf.record.lost), "the loss")
    assert deaf.record.lost == [
        f"the zygote (pid {pid}) has not answered for {HELPER_ANSWER_S:g} s, and was killed"
    ]
    assert not sound.record.lost
    assert kept.pid == sound.clients[0].pid


def test_a_waiting_answer_is_read_before_the_zygote_is_given_up(
    make: Callable[[str], Desk], house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the launcher stood still. When it looks at last, the deadline is over, and the answer
    is behind the timer in the loop.
    """
    queue = make("answer")
    begun = queue.begin()
    hurried(monkeypatch, deadline_s=0.0, look_s=0.0)
    client = queue.clients[0]
    queue.loop.remove_reader(client._sock.fileno())  # so that only the check itself reads
    worker = asked(queue, begun, house)
    assert worker not in queue.record.failed
    assert select.select([client._sock], [], [], BOUND_S)[0]
    queue.loop.turn(0.0)
    assert queue.record.failed == {worker: "refused"}
    assert queue.record.lost == []


def test_a_zygote_that_ends_by_an_exception_leaves_its_last_words(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Method: the real zygote, before it has imported anything, with a request that lacks what is
    to be forked.
    """
    client = ZygoteClient.start()
    try:
        client._send({"do": "fork"})
        packet = receive_packet(client._sock)
        assert packet == ({"last_words": "KeyError: 'spec'"}, [])
        assert client.process.wait(BOUND_S) == 1
        assert "KeyError" in capfd.readouterr().err, "the whole traceback is on the terminal"
    finally:
        client.kill()


def test_the_last_words_of_a_zygote_are_in_the_reason(
    make: Callable[[str], Desk], house: House
) -> None:
    queue = make("die")
    begun = queue.begin()
    worker, pid = asked(queue, begun, house), begun.pid
    queue.until(lambda: worker in queue.record.failed, "the failure")
    assert (
        queue.record.failed[worker]
        == f"the zygote was lost while it forked it: the zygote {pid} ended with exit code 3:"
        " MemoryError: no room"
    )


def test_a_refused_second_fork_reports_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: the process between zygote and worker may not fork, because no more processes are
    allowed.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    real, calls = os.fork, []

    def fork() -> int:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.EAGAIN, "no more")
        return real()

    monkeypatch.setattr(os, "fork", fork)
    with ours, theirs:
        assert Zygote(theirs, launcher_pid=os.getpid())._fork({"worker": 5}, []) is None
        packet = receive_packet(ours)
    assert packet == ({"failed": 5, "error": f"the second fork: {os.strerror(errno.EAGAIN)}"}, [])


def left_s(patience: Patience, *, for_s: float) -> float:
    """Return the patience that is left after repeated looks, as the queue makes them."""
    end_s = clock.now_s() + for_s
    while (now_s := clock.now_s()) < end_s:
        found_s = patience.left_s(now_s=now_s)
    return found_s


@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"),
    reason="this kernel does not count how long a thread waits for a processor",
)
def test_waiting_for_a_processor_does_not_count_as_silence() -> None:
    """Method: the process runs for 1 s beside one that takes all of the processor, with a patience
    of 0.3 s.
    """
    with child(BURN), child(BURN, idle=True) as pid:
        patience = Patience(pid, 0.3, now_s=clock.now_s())
        assert left_s(patience, for_s=1.0) > 0.0
        assert "no processor" not in str(Patience(pid, 10.0, now_s=clock.now_s()))


def test_a_process_that_waits_for_something_else_is_late() -> None:
    with child("import time; print('up', flush=True); time.sleep(600)") as pid:
        os.kill(pid, signal.SIGSTOP)
        patience = Patience(pid, 0.3, now_s=clock.now_s())
        assert left_s(patience, for_s=1.0) <= 0.0
        assert str(patience).startswith("0 s")
