"""Strikes at whole hosts: what each kind does to a launcher, when the launcher comes back, and when
a strike waits.

Method: three real hosts, with a small program in place of `outlast run` on each. The program has a
child with the title of a rank or of a spare. The test writes what the ledger records about nodes.
tests/drills/test_drill_hosts.py uses the real launcher.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outlast.model.drills.drill_faults import ALL_KINDS
from outlast.model.records import LEADS, Meta
from outlast.runtime import clock
from outlast.runtime.drill import drill_host_launchers, drill_host_strikes
from outlast.runtime.drill.drill_host_launchers import HostLaunchers, HostLayout
from outlast.runtime.drill.drill_host_strikes import FLAP_S, HostStrikes
from outlast.runtime.drill.drill_hosts import may_be_made, may_be_slowed
from outlast.runtime.folders.leader_file import write_leader
from outlast.runtime.ledger.store import Ledger
from outlast.sim.drill_calendar import Scheduled

pytestmark = pytest.mark.skipif(
    bool(may_be_made()), reason=f"NO TEST OF SEVERAL HOSTS: {may_be_made()}"
)
# The program records its host and endpoint. It ends with 0 at SIGTERM, and with 7 once the file
# "over" exists.
STAND_IN = """
import ctypes, os, platform, signal, sys, time
host, words = platform.node(), sys.argv
libc = ctypes.CDLL(None)
mine = os.getpid()
if (child := os.fork()) == 0:
    libc.prctl(1, 9)  # it dies with its parent
    title = {"host0": b"outlast-rank0", "host1": b"outlast-rank1"}.get(host, b"outlast-hot")
    libc.prctl(15, title)
    signal.pause()
with open("started", "a") as file:
    file.write(f"{host} {words[words.index('--rdzv-endpoint') + 1]}\\n")
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
while not os.path.exists("over"):
    time.sleep(0.02)
sys.exit(7)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostLaunchers]:
    """Yield a run that trains on three hosts: the first one leads, and the last one stands
    ready.
    """
    (tmp_path / "run").mkdir()
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    write_leader(tmp_path / "run", node="host0", epoch=1, endpoint="10.77.0.1:29400")
    monkeypatch.chdir(tmp_path)
    command = (sys.executable, str(tmp_path / "stand_in.py"))
    monkeypatch.setattr(drill_host_launchers, "COMMAND", command)
    monkeypatch.setattr(drill_host_strikes, "SETTLED_S", 0.0)
    monkeypatch.setattr(drill_host_strikes, "LOOK_EACH_S", 0.0)
    made = HostLaunchers(
        tmp_path / "run",
        ["train.py"],
        environment=dict(os.environ),
        log=tmp_path / "log",
        layout=HostLayout(3, 1),
    )
    try:
        until(made, lambda: all(made.homes().values()), "three launchers")
        meta = Meta("r", "r", 2, "1", clock.now_s(), clock.wall_s())
        Ledger.create(tmp_path / "run" / "ledger.db", meta, pid=1).close()
        for host in range(3):
            note("node_joined", node=f"host{host}")
        note(LEADS, node="host0", epoch=1, voters=["host0", "host1", "host2"])
        yield made
    finally:
        Path("over").touch()  # a real launcher would tell the others to end
        made.stop()


def note(kind: str, **data: object) -> None:
    """Write an event to the ledger, as the launcher that leads does."""
    with contextlib.closing(sqlite3.connect("run/ledger.db")) as ledger, ledger:
        ledger.execute(
            "INSERT INTO events (session, at_s, wall_s, kind, data) VALUES (1, ?, ?, ?, ?)",
            (clock.now_s(), clock.wall_s(), kind, json.dumps(data)),
        )


def until(run: HostLaunchers, condition: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end_s, f"not in time: {what}"
        run.poll()
        time.sleep(0.01)


def fault(kind: str, *, rank: int = 1, node: int | None = None, for_s: float = 0.3) -> Scheduled:
    known = ALL_KINDS[kind]
    return Scheduled("1", known, known.stands_for, rank, 0.0, for_s=for_s, node=node)


class Striking:
    """Strikes as a drill makes them, and waits for their effects."""

    def __init__(self, run: HostLaunchers) -> None:
        self.run = run
        self.strikes = run.hosts = HostStrikes(run)

    def look(self) -> None:
        self.strikes.look(clock.now_s())

    def strike(self, one: Scheduled) -> int:
        """Strike, and return the number of the host."""
        self.look()
        struck = self.strikes.strike(one, clock.now_s())
        assert struck is not None
        return struck.number

    def until(self, condition: Callable[[], object], what: str) -> None:
        def met() -> object:
            self.strikes.look(clock.now_s())
            return condition()

        until(self.run, met, what)

    def is_whole(self) -> bool:
        return all(self.run.homes().values())

    def titles(self, host: int) -> list[str]:
        return [one.title for one in self.run.homes()[host]]


def started(host: int) -> list[str]:
    """Return the endpoints with which the launcher of a host was started, one for each start."""
    lines = [line.split() for line in Path("started").read_text().splitlines()]
    return [endpoint for name, endpoint in lines if name == f"host{host}"]


@pytest.mark.parametrize("kind", ["lose_node", "lose_agent", "maintenance"])
def test_a_launcher_that_is_struck_ends_and_comes_back(run: HostLaunchers, kind: str) -> None:
    """The launcher dials the node that leads by then. Until it is back, no other host is struck."""
    drill, before = Striking(run), run.nodes[1].launcher
    assert drill.strike(fault(kind)) == 1
    until(run, lambda: not Path(f"/proc/{before}").exists(), "its end")
    assert run.poll() is None
    write_leader(Path("run"), node="host2", epoch=2, endpoint="10.77.0.3:41000")
    drill.look()
    assert drill.strikes.strike(fault(kind, node=2), clock.now_s()) is None
    drill.until(drill.is_whole, "all hosts again")
    assert run.nodes[1].launcher != before
    assert started(1) == ["10.77.0.1:29400", "10.77.0.3:41000"]
    assert [len(started(host)) for host in (0, 2)] == [1, 1]


def test_the_host_that_leads_comes_back_once_another_one_leads(run: HostLaunchers) -> None:
    drill = Striking(run)
    assert drill.strike(fault("lose_coordinator", rank=-1, for_s=0.0)) == 0
    run.poll()
    assert run.nodes[0].process is None, "nobody leads, so nobody can be dialled"
    write_leader(Path("run"), node="host1", epoch=2, endpoint="10.77.0.2:41000")
    drill.until(drill.is_whole, "all hosts again")
    assert started(0)[1:] == ["10.77.0.2:41000"]


def test_a_link_that_is_cut_is_mended_and_its_launcher_goes_on(run: HostLaunchers) -> None:
    """A flapping link goes down and up in turn before it is mended. While a link is cut or flaps,
    no other host is struck. A slow link is mended, too.
    """
    drill, before, cuts = Striking(run), run.nodes[1].launcher, list[str]()
    for name in ("cut", "slow", "mend"):
        do = getattr(run.machines, name)
        setattr(run.machines, name, lambda host, do=do, name=name: (cuts.append(name), do(host)))
    drill.strike(fault("cut"))
    drill.look()
    assert drill.strikes.strike(fault("cut", node=2), clock.now_s()) is None
    drill.until(lambda: cuts == ["cut", "mend"], "a link")
    drill.strike(fault("flap", for_s=3.5 * FLAP_S))
    drill.until(lambda: len(cuts) == 7, "a flapping link")
    assert cuts[2:] == ["cut", "mend", "cut", "mend", "mend"]
    if not may_be_slowed():
        drill.strike(fault("slow_link"))
        drill.until(lambda: cuts[7:] == ["slow", "mend"], "a slow link")
    assert run.nodes[1].launcher == before


def test_a_stopped_launcher_goes_on(run: HostLaunchers) -> None:
    drill, launcher = Striking(run), run.nodes[1].launcher
    drill.strike(fault("stop_agent", rank=-1, node=1))

    def state() -> str:
        return Path(f"/proc/{launcher}/stat").read_text().rpartition(")")[2].split()[0]

    until(run, lambda: state() == "T", "a stopped launcher")
    drill.until(lambda: state() in "SR", "it goes on")


def test_no_host_is_struck_before_all_are_in_and_voters_vote(run: HostLaunchers) -> None:
    """A launcher that was started again counts only after it has joined again."""
    drill = Striking(run)
    note("node_lost", node="host2")
    drill.look()
    assert drill.strikes.strike(fault("stop_agent"), clock.now_s()) is None
    note("node_joined", node="host2")
    note(LEADS, node="host0", epoch=1, voters=[])
    drill.look()
    assert drill.strikes.strike(fault("stop_agent"), clock.now_s()) is None
    note(LEADS, node="host0", epoch=1, voters=["host0", "host1", "host2"])
    run.nodes[2].started_wall_s = clock.wall_s() + 1.0
    drill.look()
    assert drill.strikes.strike(fault("stop_agent"), clock.now_s()) is None
    run.nodes[2].started_wall_s -= 2.0
    assert drill.strike(fault("stop_agent")) == 1


def test_no_host_is_struck_while_a_rank_has_no_process(run: HostLaunchers) -> None:
    drill = Striking(run)
    (rank,) = run.homes()[1]
    run.target.send(rank, signal.SIGKILL)
    until(run, lambda: not run.homes()[1], "its end")
    drill.look()
    assert drill.strikes.strike(fault("lose_node", node=2), clock.now_s()) is None


def test_a_host_is_struck_only_once_the_run_has_been_whole_for_a_while(
    run: HostLaunchers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill_host_strikes, "SETTLED_S", 3.0)
    drill = Striking(run)
    drill.look()
    now_s = clock.now_s()
    assert drill.strikes.strike(fault("stop_agent"), now_s + 2.9) is None
    assert drill.strikes.strike(fault("stop_agent"), now_s + 3.1) is not None


def test_a_run_is_over_once_all_launchers_have_ended_by_themselves(run: HostLaunchers) -> None:
    """The exit code is that of the launcher that leads. A host that is away does not matter."""
    drill = Striking(run)
    drill.strike(fault("lose_agent", for_s=60.0))
    assert run.poll() is None
    Path("over").touch()
    until(run, lambda: run.poll() is not None, "the end")
    assert run.poll() == 7
    assert json.dumps(started(1)) == '["10.77.0.1:29400"]', "it was not started again"
