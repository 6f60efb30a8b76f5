"""What is read before a kill, and how long that may take: time is virtual, files are real, and the
kill is one of a real process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.records import Interruption
from outlast.model.terms import Mechanism
from outlast.runtime.agent.evidence import EvidenceCollector
from outlast.runtime.agent.glance import PIECE_BYTES, Glance
from outlast.runtime.agent.oom import OomKill
from outlast.runtime.agent.processes import Exited
from outlast.runtime.loop import Loop

PAUSE_S = 0.001  # the longest step of virtual time that is no read
RUNS = "77 (python) S 1 77"


@dataclass
class Slow(Glance):
    """Every read takes `read_s`; the clock moves by nothing else but pauses.

    `answers`: whoever is sent the signal writes its stacks there.
    """

    read_s: float
    time_s: float = 1000.0
    answers: dict[int, Path] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    caught: int = 1 << (limits.STACKS_SIGNAL - 1)

    def now_s(self) -> float:
        return self.time_s

    def pause(self, seconds: float) -> None:
        self.time_s += seconds

    def signal(self, pid: int, number: int) -> None:
        self.told.append(f"signal {number} to {pid}")
        if pid in self.answers:
            self.answers[pid].write_bytes(b'  File "train.py", line 7 in wait\n')

    def kernel(self, pid: int, name: str) -> str:
        self._took(f"{name} of {pid}")
        return (
            RUNS
            if name == "stat"
            else f"SigCgt:\t{self.caught:016x}\n"
            if name == "status"
            else f"{name} of {pid}"
        )

    def pieces(self, path: Path, *, most_bytes: int, end: bool = False) -> Iterator[bytes]:
        for piece in super().pieces(path, most_bytes=most_bytes, end=end):
            self._took(path.name)
            yield piece

    def _took(self, what: str) -> None:
        self.told.append(what)
        self.time_s += self.read_s


class Scene:
    """Workers 1.. of ranks 0.., pids 101.., all in their sixth step.

    `stacks`: what lies there already, by worker.
    """

    def __init__(
        self,
        folder: Path,
        glance: Glance,
        *,
        workers: int = 1,
        stacks: dict[int, bytes] | None = None,
    ) -> None:
        self.folder = folder / "evidence"
        self.folder.mkdir()
        for worker, text in (stacks or {}).items():
            (self.folder / f"stacks-{worker}.txt").write_bytes(text)
        beacons = [
            (one, 100 + one, Beacon(one, 100 + one, rank=one - 1, step=6))
            for one in range(1, workers + 1)
        ]
        self.beacons = [beacon for _, _, beacon in beacons]
        self.loop = Loop()
        self.evidence = EvidenceCollector(
            loop=self.loop,
            folder=self.folder,
            vault=folder,
            live_beacons=lambda: beacons,
            logs=lambda _: {},
            command=("true",),
            on_verdict=lambda *_: None,
            glance=glance,
        )

    def close(self) -> None:
        self.loop.close()

    def kept(self) -> Path:
        """Training goes on."""
        self.evidence.close(
            Interruption(
                1, Mechanism.HANG, 1.0, ranks=(0,), nodes=("here",), reason="it does not answer"
            )
        )
        return self.folder / "interruption-1"

    def kernel_of(self, rank: int) -> dict[str, str]:
        told = json.loads((self.kept() / "standing.json").read_text())
        found: dict[str, str] = next(one for one in told["processes"] if one["rank"] == rank)[
            "kernel"
        ]
        return found


@given(
    read_s=st.floats(min_value=1e-5, max_value=0.05),
    sizes=st.lists(
        st.one_of(st.none(), st.integers(min_value=0, max_value=12 * PIECE_BYTES)),
        min_size=1,
        max_size=12,
    ),
    killed=st.integers(min_value=1, max_value=12),
)
# was read, to see whether the process must be asked for more, and then forgotten
@example(read_s=0.006, sizes=[1], killed=1)
def test_all_kills_of_an_interruption_wait_no_longer_than_the_budget(
    tmp_path_factory: pytest.TempPathFactory, read_s: float, sizes: list[int | None], killed: int
) -> None:
    """Reads of any duration, of stacks of any size or none, before any number of kills.

    A read that has begun when the time is up is the last one.
    """
    glance = Slow(read_s)
    stacks = {number: b"s" * size for number, size in enumerate(sizes, start=1) if size is not None}
    with closing(
        Scene(tmp_path_factory.mktemp("run"), glance, workers=len(sizes), stacks=stacks)
    ) as scene:
        began_s = glance.now_s()
        for worker in range(1, min(killed, len(sizes)) + 1):
            scene.evidence.before_kill(worker, 100 + worker, hung=True)
        bound_s = limits.EVIDENCE_BUDGET_S + limits.STACKS_WAIT_S + 2 * max(read_s, PAUSE_S)
        assert glance.now_s() - began_s <= bound_s + 1e-9, glance.told
        read = list(glance.told)
        kept = scene.kept()
    for process in json.loads((kept / "standing.json").read_text())["processes"]:
        assert set(process["kernel"]) == {
            what.partition(" ")[0] for what in read if what.endswith(f" of {process['pid']}")
        } - {"status"}, read
    for number, text in stacks.items():
        pieces = read.count(f"stacks-{number}.txt")
        if pieces:
            assert text.startswith(
                (kept / f"stacks-rank{number - 1}.txt").read_bytes()[: pieces * PIECE_BYTES]
            )
            assert (kept / f"stacks-rank{number - 1}.txt").stat().st_size >= min(
                len(text), PIECE_BYTES
            )


def test_reading_stops_where_the_budget_is_used_up(tmp_path: Path) -> None:
    """Reads of 6 ms: three of /proc, and one piece of four of its stacks; of its neighbour's none,
    and of whoever is killed next nothing.
    """
    glance = Slow(0.006)
    with closing(
        Scene(tmp_path, glance, workers=2, stacks={1: b"s" * 4 * PIECE_BYTES, 2: b"n" * 10})
    ) as scene:
        scene.evidence.before_kill(1, 101, hung=False)
        assert glance.told == ["stat of 101", "wchan of 101", "syscall of 101", "stacks-1.txt"]
        scene.evidence.before_kill(2, 102, hung=True)
        assert glance.told[4:] == []
        kept = scene.kept()
    assert (kept / "stacks-rank0.txt").stat().st_size == PIECE_BYTES
    assert not (kept / "stacks-rank1.txt").exists()


def test_a_condemned_process_that_writes_nothing_gets_one_short_wait(
    tmp_path: Path,
) -> None:
    glance = Slow(1e-6)
    with closing(Scene(tmp_path, glance)) as scene:
        began_s = glance.now_s()
        scene.evidence.before_kill(1, 101, hung=True)
        assert (
            limits.STACKS_WAIT_S <= glance.now_s() - began_s <= limits.STACKS_WAIT_S + 2 * PAUSE_S
        )
    assert [one for one in glance.told if one.startswith("signal")] == [
        f"signal {limits.STACKS_SIGNAL} to 101"
    ]


def test_a_process_without_a_handler_is_not_sent_the_signal(
    tmp_path: Path,
) -> None:
    """The signal would end it: its default action is to terminate."""
    glance = Slow(1e-6, caught=1 << (signal.SIGTERM - 1))
    with closing(Scene(tmp_path, glance)) as scene:
        scene.evidence.before_kill(1, 101, hung=True)
    assert glance.told == ["stat of 101", "wchan of 101", "syscall of 101", "status of 101"]


def test_the_kernel_says_which_signals_a_process_has_a_handler_for() -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert Glance().catches(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    assert not Glance().catches(os.getpid(), signal.SIGUSR2)
    signal.signal(signal.SIGUSR2, before)
    assert not Glance().catches(2**22 + 1, signal.SIGUSR2)


def test_a_condemned_process_that_answers_the_signal_leaves_its_stacks(tmp_path: Path) -> None:
    glance = Slow(1e-6)
    with closing(Scene(tmp_path, glance)) as scene:
        glance.answers[101] = scene.folder / "stacks-1.txt"
        scene.evidence.before_kill(1, 101, hung=True)
        assert "in wait" in (scene.kept() / "stacks-rank0.txt").read_text()


def test_stacks_of_a_dead_process_are_read_once_training_goes_on(
    tmp_path: Path,
) -> None:
    """Stacks of a process that lives on are not: they may be of a later moment."""
    glance = Slow(0.03)
    with closing(
        Scene(tmp_path, glance, workers=2, stacks={1: b"of the dead", 2: b"of the living"})
    ) as scene:
        scene.evidence.ended(Exited(1, 101, None, int(signal.SIGKILL), OomKill.NONE, 0.0))
        assert glance.told == []
        kept = scene.kept()
    assert (kept / "stacks-rank0.txt").read_bytes() == b"of the dead"
    assert not (kept / "stacks-rank1.txt").exists()


@pytest.mark.parametrize(
    ("number", "oom", "killed", "kept"),
    [
        (signal.SIGKILL, OomKill.NONE, False, (False, False, False, True)),
        (signal.SIGKILL, OomKill.OURS, False, (False, True, False, True)),
        (signal.SIGKILL, OomKill.SOMEBODY, False, (False, False, True, True)),
        (signal.SIGKILL, OomKill.NOT_READ, False, (False, False, False, False)),
        (signal.SIGKILL, OomKill.NONE, True, (True, False, False, False)),
        (signal.SIGTERM, OomKill.NONE, False, (False, False, False, False)),
    ],
)
def test_what_the_kernel_counted_is_kept_apart_from_what_nobody_could_read(
    tmp_path: Path, number: int, oom: OomKill, killed: bool, kept: tuple[bool, ...]
) -> None:
    """`oom_read` is said of a SIGKILL that was not ours, where the counters could be read."""
    with closing(Scene(tmp_path, Slow(1e-6))) as scene:
        scene.evidence.ended(Exited(1, 101, None, int(number), oom, 0.0, killed))
        (told,) = json.loads((scene.kept() / "standing.json").read_text())["processes"]
    assert (told["killed"], told["oom"], told["oom_near"], told["oom_read"]) == kept


def test_stacks_of_an_earlier_alarm_are_not_taken(tmp_path: Path) -> None:
    glance = Slow(1e-6)
    with closing(Scene(tmp_path, glance, stacks={1: b"old"})) as scene:
        path = scene.folder / "stacks-1.txt"
        old_s = glance.wall_s() - limits.STACKS_FRESH_S - 5.0
        os.utime(path, (old_s, old_s))
        scene.evidence.before_kill(1, 101, hung=False)
        assert not (scene.kept() / "stacks-rank0.txt").exists()


def test_stacks_from_before_a_process_hung_are_not_taken(
    tmp_path: Path,
) -> None:
    """Worker 1 was asked in a slow step, and hangs in the next one, two seconds ago; worker 2
    stands where it stood when it was asked.
    """
    glance = Slow(1e-6)
    with closing(
        Scene(tmp_path, glance, workers=2, stacks={1: b"of the step before", 2: b"of this step"})
    ) as scene:
        for beacon in scene.beacons:
            beacon.at_ns = int((glance.time_s - 2.0) * 1e9)
        for worker, age_s in ((1, 3.0), (2, 1.0)):
            at_s = glance.wall_s() - age_s
            os.utime(scene.folder / f"stacks-{worker}.txt", (at_s, at_s))
        scene.evidence.before_kill(1, 101, hung=True)
        assert "signal 42 to 101" in glance.told
        kept = scene.kept()
    assert not (kept / "stacks-rank0.txt").exists()
    assert (kept / "stacks-rank1.txt").read_bytes() == b"of this step"


def test_what_a_process_writes_when_it_is_asked_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "stacks-1.txt"
    path.write_bytes(b"of the step before")
    Glance().clear(path)
    assert path.read_bytes() == b""
    Glance().clear(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("kind", ["fifo", "socket", "link to a device", "folder", "nothing"])
def test_where_no_plain_file_lies_nothing_is_opened_that_could_wait(
    tmp_path: Path, kind: str
) -> None:
    """The real reader.

    A FIFO that nobody writes into would hold a plain open() for ever; /dev/zero would never end.
    """
    path = tmp_path / "stacks-1.txt"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    assert Glance().read(path, most_bytes=1 << 20) == b""
    assert Glance().written_s(path) == 0.0


def test_of_a_long_file_only_so_much_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b"a" + b"x" * (5 * PIECE_BYTES) + b"z")
    assert [len(piece) for piece in Glance().pieces(path, most_bytes=PIECE_BYTES + 5)] == [
        PIECE_BYTES,
        5,
    ]
    assert Glance().read(path, most_bytes=10) == b"axxxxxxxxx"
    assert Glance().read(path, most_bytes=10, end=True) == b"xxxxxxxxxz"


def test_the_kernel_describes_a_live_process_and_not_one_that_is_gone() -> None:
    assert Glance().kernel(os.getpid(), "stat").startswith(f"{os.getpid()} (")
    assert Glance().kernel(2**22 + 1, "stat") == ""
