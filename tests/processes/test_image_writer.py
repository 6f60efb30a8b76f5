"""The process that writes captured images: it writes what was captured, even if the rank dies."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash

from outlast.errors import CapacityError, RunFolderError
from outlast.model import limits
from outlast.model.messages import Checkpointed
from outlast.runtime import clock
from outlast.runtime.image_writer import captured, writer_process
from outlast.runtime.image_writer.captured import CapturedImage, hand_over
from outlast.runtime.image_writer.direct_disk import DirectDisk
from outlast.runtime.image_writer.write_orders import (
    PACKET_BYTES,
    SOCKET_NAME,
    WriteAnswer,
    WriteOrder,
    decode_answer,
)
from outlast.runtime.image_writer.writer_process import WriterProcess
from outlast.runtime.image_writer.writer_program import ImageWriter
from outlast.runtime.linux import LOWEST_PRIORITY
from outlast.runtime.loop import Loop
from outlast.runtime.reporting_child import ReportingChild
from outlast.runtime.tiers import local
from outlast.runtime.tiers.lease_page import LeasePage
from outlast.runtime.tiers.room import Room
from tests.tiers.faulty import FaultyDisk, crash, in_a_child

SIZE = 20_000_001  # more than two blocks, and no multiple of what a direct write needs
WITHIN_S, LOOK_S = 60.0, 0.02
SILENT_S = 4.0  # longer than a process of the lowest priority waits for a core


@dataclass
class Node:
    """A launcher's loop with its writer, and what it has told."""

    loop: Loop
    folder: Path
    told: list[str] = field(default_factory=list)
    orphans: list[Checkpointed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writer = WriterProcess(
            self.loop, self.folder, tell=self.told.append, orphaned=self.orphans.append
        )

    @property
    def socket(self) -> Path:
        return self.folder / SOCKET_NAME

    def until(self, what: Callable[[], object]) -> None:
        """Turn the loop until `what` is true. It may become so without an event of the loop."""

        def look() -> None:
            self.timer = self.loop.call_at(clock.now_s() + LOOK_S, look)

        look()
        try:
            assert self.loop.run_until(lambda: bool(what()), within_s=WITHIN_S), self.told
        finally:
            self.timer.cancel()

    def listens(self) -> bool:
        """Return whether a writer accepts connections now."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            try:
                sock.connect(str(self.socket))
            except OSError:
                return False
        return True


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with closing(Loop()) as loop:
        node = Node(loop, tmp_path)
        yield node
        node.writer.close()


class SentImage(CapturedImage):
    """A captured image, and whether an order to write it was sent."""

    sent = False

    def send(self, sock: socket.socket, order: WriteOrder) -> None:
        super().send(sock, order)
        self.sent = True


@dataclass
class Rank:
    """A rank with a captured image, and what it has heard of it."""

    root: Path
    memory: SentImage = field(default_factory=SentImage)
    heard: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory.reserve(SIZE)
        self.captures(7)

    def captures(self, seed: int, *, generation: int = 1) -> None:
        """Capture an image of step 5."""
        self.data = np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8).tobytes()
        self.memory.view[:SIZE] = self.data
        checksum = xxhash.xxh3_64_intdigest(self.data)
        folder = str(local.checkpoint_folder(self.root, 5))
        self.order = WriteOrder(3, generation, 0, 5, folder, local.shard_name(0), SIZE, checksum)

    @property
    def file(self) -> Path:
        return Path(self.order.folder) / self.order.name

    def hands_over(self, path: Path) -> threading.Thread:
        """Hand the image over in a thread. What comes of it is in `heard`."""

        def run() -> None:
            try:
                hand_over(self.order, self.memory, path, moved=lambda: None, done=self._note)
            except OSError as error:
                self.heard.append(type(error).__name__)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _note(self, answer: WriteAnswer) -> None:
        self.heard.append(answer.error or "written")


def test_a_process_without_torch_writes_a_captured_image_bit_for_bit(node: Node) -> None:
    rank = Rank(node.folder / "checkpoints")
    node.writer.start()
    node.writer.start()  # once is enough
    node.until(node.listens)
    pid = node.writer.pid
    assert pid is not None
    rank.hands_over(node.socket)
    node.until(lambda: rank.heard)
    assert rank.heard == ["written"]
    assert rank.file.read_bytes() == rank.data
    assert [one.name for one in rank.file.parent.iterdir()] == [rank.file.name]
    assert os.getpriority(os.PRIO_PROCESS, pid) == LOWEST_PRIORITY
    assert os.getsid(pid) == pid
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    node.writer.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (node.told, node.orphans, node.socket.exists()) == ([], [], False)


def test_what_a_rank_captured_before_it_died_is_written_and_reported(node: Node) -> None:
    """Method: a process captures an image, sends it, and ends without waiting for an answer."""
    node.writer.start()
    node.until(node.listens)
    root = node.folder / "checkpoints"

    def dies() -> None:
        rank = Rank(root)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(node.socket))
            rank.memory.send(sock, rank.order)
            os.kill(os.getpid(), signal.SIGKILL)

    in_a_child(dies)
    node.until(lambda: node.orphans)
    (said,) = node.orphans
    assert (said.worker, said.generation, said.rank, said.step) == (3, 1, 0, 5)
    assert (said.length, said.error) == (SIZE, "")
    written = local.checkpoint_folder(root, 5) / said.file
    assert f"{xxhash.xxh3_64_intdigest(written.read_bytes()):016x}" == said.checksum


def test_a_writer_that_dies_is_counted_and_started_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a writer is stopped, gets an order, and is killed. The rank hands over once more."""
    monkeypatch.setattr(writer_process, "WRITER_AGAIN_S", 0.01)
    rank = Rank(node.folder / "checkpoints")
    node.writer.start()
    node.until(node.listens)
    first = node.writer.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    rank.hands_over(node.socket)
    node.until(lambda: rank.memory.sent)
    os.kill(first, signal.SIGKILL)
    node.until(lambda: rank.heard)
    assert rank.heard in (["ConnectionResetError"], ["BrokenPipeError"])
    node.until(lambda: node.writer.pid not in (None, first) and node.listens())
    (warning,) = node.told
    assert "has ended with exit code -9" in warning
    assert "deaths so far: 1" in warning
    rank.hands_over(node.socket)
    node.until(lambda: len(rank.heard) > 1)
    assert rank.heard[1] == "written"
    assert rank.file.read_bytes() == rank.data


def test_a_writer_that_writes_nothing_is_replaced(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the first writer runs with a disk whose calls never return. The next writer has a
    disk that works.
    """
    monkeypatch.setattr(writer_process, "WRITER_SILENT_S", SILENT_S)
    monkeypatch.setattr(writer_process, "WRITER_AGAIN_S", 0.01)
    rank = Rank(node.folder / "checkpoints")
    with monkeypatch.context() as hanging:
        hanging.setattr(writer_process, "PROGRAM", (sys.executable, "-c", HANGS))
        node.writer.start()
        node.until(node.listens)
    first = node.writer.pid
    rank.hands_over(node.socket)
    node.until(lambda: node.writer.pid not in (None, first) and node.listens())
    assert any("has written nothing for" in one for one in node.told)
    node.until(lambda: rank.heard)
    rank.hands_over(node.socket)
    node.until(lambda: rank.heard[-1] == "written")
    assert rank.file.read_bytes() == rank.data


# A writer whose disk never returns from making a folder.
HANGS = """
import sys, threading
from outlast.runtime.image_writer import writer_program as program
from outlast.runtime.tiers.local import Disk

class Hangs(Disk):
    def __init__(self, why_late):
        pass

    def make_folder(self, folder):
        threading.Event().wait()

program.DirectDisk = Hangs
sys.exit(program.main(sys.argv[1:]))
"""


def test_a_writer_that_cannot_be_started_is_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the launcher may open no more files for a while, and there is no temporary folder."""
    monkeypatch.setattr(writer_process, "WRITER_AGAIN_S", 0.01)
    monkeypatch.setattr(tempfile, "tempdir", str(node.folder / "removed"))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, before[1]))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        with contextlib.suppress(OSError):  # until none is left, as some below may be free
            while True:
                stack.callback(os.close, os.dup(0))
        node.writer.start()
        node.until(lambda: node.told)
    assert "no process can be started: Too many open files" in node.told[0]
    node.until(node.listens)


def test_a_writer_that_does_not_answer_is_replaced(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a writer is stopped while it has nothing to do. An order waits for the next one."""
    monkeypatch.setattr(writer_process, "WRITER_SILENT_S", SILENT_S)
    monkeypatch.setattr(writer_process, "WRITER_AGAIN_S", 0.01)
    node.writer.start()
    node.until(node.listens)
    first = node.writer.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    rank = Rank(node.folder / "checkpoints")
    rank.hands_over(node.socket)
    node.until(lambda: node.writer.pid not in (None, first) and node.listens())
    assert any("has not answered for" in one for one in node.told)
    node.until(lambda: rank.heard)
    rank.hands_over(node.socket)
    node.until(lambda: rank.heard[-1] == "written")


def test_sigkill_at_any_write_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    """Method: a dry run counts the operations on the disk. Then a writer ends at each of them, and
    the rank hands its image to the next one.
    """

    def serve(folder: Path, disk: local.Disk) -> None:
        said = list[dict[str, Any]]()
        ImageWriter(folder / SOCKET_NAME, said.append, disk=lambda why_late: disk).listen()

    def writes(root: Path, path: Path) -> list[str]:
        rank = Rank(root)
        rank.hands_over(path).join(WITHIN_S)
        assert not rank.heard or rank.heard[0] != "written" or rank.file.read_bytes() == rank.data
        return rank.heard

    counting = FaultyDisk()
    local.write_file(tmp_path / "dry", "a", [memoryview(bytes(1 << 20))] * 3, disk=counting)
    operations = len(counting.names)
    assert operations >= 6
    for at in range(operations):
        folder = tmp_path / f"at-{at}"
        folder.mkdir()
        with Forked(lambda at=at, folder=folder: serve(folder, FaultyDisk(at, crash))) as dying:
            heard = writes(folder / "checkpoints", _listening(folder / SOCKET_NAME))
            assert heard, at
            assert heard[0] != "written", at
            assert dying() == 7, "the fault was not reached"
        with Forked(lambda folder=folder: serve(folder, DirectDisk())):
            assert writes(folder / "checkpoints", _listening(folder / SOCKET_NAME)) == ["written"]


class Forked:
    """A forked process that does some work. It is killed at the end of the block."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def __enter__(self) -> Callable[[], int]:
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._work()
            finally:
                os._exit(1)
        return self._ended

    def _ended(self) -> int:
        """Wait for its own end, and return its exit code."""
        found = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        return found.si_status

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _listening(path: Path) -> Path:
    """Wait until a process listens at a path."""
    deadline = threading.Event()
    for _ in range(2_000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            try:
                sock.connect(str(path))
                return path
            except OSError:
                deadline.wait(0.005)
    raise AssertionError("no process listens")


def test_bytes_that_change_after_they_were_captured_are_not_reported(node: Node) -> None:
    rank = Rank(node.folder / "checkpoints")
    rank.memory.view[SIZE // 2] ^= 1
    node.writer.start()
    node.until(node.listens)
    rank.hands_over(node.socket)
    node.until(lambda: rank.heard)
    assert "have changed" in rank.heard[0]


def test_errors_of_the_disk_are_answered(node: Node) -> None:
    rank = Rank(node.folder / "checkpoints")
    rank.root.write_text("no folder")
    node.writer.start()
    node.until(node.listens)
    rank.hands_over(node.socket)
    node.until(lambda: rank.heard)
    assert "Not a directory" in rank.heard[0] or "File exists" in rank.heard[0]


def test_strangers_disturb_nobody(node: Node) -> None:
    node.writer.start()
    node.until(node.listens)
    rank = Rank(node.folder / "checkpoints")
    short = replace(rank.order, length=SIZE + limits.DIRECT_BLOCK_BYTES)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(node.socket))
        rank.memory.send(sock, short)
        assert "refused: the order came without its memory" in refusal(sock)
    for packet in (b"{}", b"[1]", b'{"worker": 1}', b"\xff" * 1000, b"[" * 60_000):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(node.socket))
            sock.send(packet)
            assert "refused: this is no order" in refusal(sock)
    rank.hands_over(node.socket)
    node.until(lambda: rank.heard)
    assert rank.heard == ["written"]
    assert node.told == []


WRONG: dict[str, tuple[Any, ...]] = {
    "worker": (None, "1", 1.0, True, [1]),
    "step": ({}, "7"),
    "length": ("9", 1e3, -1, False),
    "checksum": ("00", None),
    "folder": (1, None, ["/tmp"], "/tmp/\0"),
    "name": (3, {}, "", "..", "a/b", "a\0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_order_with_a_field_of_a_wrong_type_is_refused_by_name(node: Node, name: str) -> None:
    """The next order is carried out, and no thread of the writer ends with a traceback."""
    node.writer.start()
    node.until(node.listens)
    rank = Rank(node.folder / "checkpoints")
    for value in WRONG[name]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(str(node.socket))
            changed: Any = {name: value}
            rank.memory.send(sock, replace(rank.order, **changed))
            found = refusal(sock)
        assert found.startswith("the order was refused: the order's "), (value, found)
        assert name in found or name in ("folder", "name"), (value, found)
    rank.hands_over(node.socket)
    node.until(lambda: rank.heard)
    assert rank.heard == ["written"]
    assert node.told == []


def refusal(sock: socket.socket) -> str:
    return decode_answer(sock.recv(PACKET_BYTES)).error


def test_a_launcher_does_not_wait_for_a_writer_that_cannot_end(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may hold up the end of a process for long. Until then no other one is started.

    Method: a real process is killed, and the kernel is said not to have ended it yet. The loop goes
    on meanwhile, and the writer is started again once the process has ended.
    """
    monkeypatch.setattr(writer_process, "WRITER_AGAIN_S", 0.01)
    held, looked = [True], list[bool]()
    ended = ReportingChild.has_ended

    def has_ended(child: ReportingChild) -> bool:
        looked.append(held[0])
        return not held[0] and ended(child)

    def never(*_: object, **__: object) -> tuple[int, str]:
        raise AssertionError("the launcher waits for the end of a process")

    monkeypatch.setattr(ReportingChild, "has_ended", has_ended)
    node.writer.start()
    node.until(node.listens)
    first = node.writer.pid
    assert first is not None
    with monkeypatch.context() as patched:
        patched.setattr(ReportingChild, "end", never)
        os.kill(first, signal.SIGKILL)
        node.until(lambda: len(looked) >= 3)
        node.writer.start()
        assert (node.writer.pid, node.told) == (None, [])
    held[0] = False
    node.until(lambda: node.writer.pid is not None)
    assert "it has ended with exit code -9" in node.told[0]
    node.until(node.listens)


def test_memory_that_does_not_fit_is_refused_before_it_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The memory that was reserved before stays."""
    memory = CapturedImage()
    memory.reserve(1000)
    room = Room(5_000, "memory of this machine", "free memory")
    monkeypatch.setattr(captured, "memory_left", lambda groups: room)
    memory.reserve(1000)
    with pytest.raises(CapacityError, match="no memory for a copy of 1,000,000 bytes"):
        memory.reserve(1_000_000)
    assert len(memory.view) == 1000


def test_a_large_file_is_written_past_the_cache(tmp_path: Path) -> None:
    """Method: direct writes are counted. A file system without them is written all the same."""
    disk, rank = DirectDisk(), Rank(tmp_path)
    view = rank.memory.view[:SIZE]
    size = limits.DIRECT_BLOCK_BYTES
    blocks = [view[at : at + size] for at in range(0, SIZE, size)]
    local.write_file(tmp_path / "new", "a", blocks, disk=disk)
    assert (tmp_path / "new" / "a").read_bytes() == rank.data
    if disk.direct_bytes == 0:
        pytest.skip("this file system has no direct writes")
    assert disk.direct_bytes == SIZE // limits.DIRECT_ALIGN_BYTES * limits.DIRECT_ALIGN_BYTES


def test_a_block_that_is_not_aligned_is_written_through_the_cache(tmp_path: Path) -> None:
    data = np.random.default_rng(1).integers(0, 256, 3 << 20, np.uint8)
    pieces = [data.data[1:5000], data.data[5000:5001], data.data[5001:]]
    local.write_file(tmp_path, "a", pieces, disk=DirectDisk())
    assert (tmp_path / "a").read_bytes() == data.tobytes()[1:]


def test_no_file_gets_its_name_after_the_lease_of_the_node(tmp_path: Path) -> None:
    """Ranks of another node may write the same file by then."""
    disk = DirectDisk(lambda: "the lease of this node is over")
    with pytest.raises(RunFolderError, match="lease of this node is over"):
        local.write_file(tmp_path / "new", "a", [memoryview(b"late")], disk=disk)
    assert not (tmp_path / "new" / "a").exists()


def test_an_image_of_a_step_that_was_rolled_back_gets_no_name(tmp_path: Path) -> None:
    """Method: the step is rolled back while a dead rank's image of it is being written. The image
    of its successor waits for its turn. The file in the end is that of the successor.
    """
    said, halfway, goes_on = list[dict[str, Any]](), threading.Event(), threading.Event()

    class Halts(DirectDisk):
        def sync(self, fd: int) -> None:
            halfway.set()
            assert goes_on.wait(WITHIN_S)
            super().sync(fd)

    writer = ImageWriter(tmp_path / SOCKET_NAME, said.append, disk=Halts)
    threading.Thread(target=writer.listen, daemon=True).start()
    path = _listening(tmp_path / SOCKET_NAME)
    dead, successor, late = (Rank(tmp_path / "checkpoints") for _ in range(3))
    successor.captures(8, generation=2)
    first = dead.hands_over(path)
    assert halfway.wait(WITHIN_S)
    second = successor.hands_over(path)
    writer.rollbacks.note(generation=2, step=4)
    goes_on.set()
    first.join(WITHIN_S)
    second.join(WITHIN_S)
    late.hands_over(path).join(WITHIN_S)
    assert "step 5 was rolled back" in dead.heard[0]
    assert "step 5 was rolled back" in late.heard[0]
    assert successor.heard == ["written"]
    assert successor.file.read_bytes() == successor.data != dead.data


def test_each_writer_hears_which_steps_were_rolled_back(node: Node) -> None:
    """Method: one writer hears it while it runs, and the next one as it starts. An image of a later
    generation is written.
    """
    rank = Rank(node.folder / "checkpoints")
    node.writer.start()
    node.until(node.listens)
    node.writer.roll_back(generation=2, step=4)
    node.writer.roll_back(generation=2, step=4)
    for deaths in (1, 2):
        rank.hands_over(node.socket)
        node.until(lambda deaths=deaths: len(rank.heard) == deaths)
        assert "step 5 was rolled back" in rank.heard[-1]
        pid = node.writer.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        node.until(lambda pid=pid: node.writer.pid not in (None, pid) and node.listens())
    rank.captures(7, generation=2)
    rank.hands_over(node.socket)
    node.until(lambda: len(rank.heard) == 3)
    assert rank.heard[-1] == "written"


def test_no_writer_is_replaced_because_its_launcher_stood_still(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the loop does not run for longer than a writer may be silent."""
    monkeypatch.setattr(writer_process, "WRITER_SILENT_S", SILENT_S)
    node.writer.start()
    node.until(node.listens)
    first, rank = node.writer.pid, Rank(node.folder / "checkpoints")
    node.loop.run_until(lambda: False, within_s=0.1)
    rank.hands_over(node.socket).join(WITHIN_S)
    threading.Event().wait(SILENT_S + 0.5)  # nothing is awaited: the launcher stands still
    node.loop.run_until(lambda: False, within_s=SILENT_S / 2)
    assert (node.writer.pid, node.told, rank.heard) == (first, [], ["written"])


def test_a_writer_whose_socket_was_removed_is_replaced(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_process, "WRITER_SILENT_S", SILENT_S)
    monkeypatch.setattr(writer_process, "WRITER_AGAIN_S", 0.01)
    node.writer.start()
    node.until(node.listens)
    first = node.writer.pid
    node.socket.unlink()
    node.until(lambda: node.writer.pid not in (None, first) and node.listens())
    assert any("was removed, so the process that writes" in one for one in node.told)


def test_a_writer_obeys_the_lease_of_its_node(node: Node) -> None:
    lease = LeasePage(node.folder, create=True)
    node.writer.start()
    node.until(node.listens)
    rank = Rank(node.folder / "checkpoints")
    rank.hands_over(node.socket)
    node.until(lambda: rank.heard)
    assert "the lease of this node is over" in rank.heard[0]
    assert not rank.file.exists()
    lease.until_s = clock.now_s() + 1000
    rank.hands_over(node.socket)
    node.until(lambda: len(rank.heard) > 1)
    assert rank.heard[1] == "written"


# --- a rank's saves -------------------------------------------------------------------------------


def a_rank(root: Path, vault: Path) -> tuple[Any, list[Checkpointed]]:
    """Return a rank's `Checkpoints`, and what it reports."""
    from outlast.runtime.tiers.image import TensorPiece, TensorSpec
    from outlast.runtime.worker.saving.checkpoints import Checkpoints

    said: list[Checkpointed] = []
    session: Any = SimpleNamespace(
        spec=SimpleNamespace(
            worker=7,
            options={"checkpoint_every": 1, "checkpoint_root": str(root)},
            vault_folder=str(vault),
        ),
        machine=SimpleNamespace(generation=3, broken=False),
        beacon=SimpleNamespace(rank=1),
        say=said.append,
    )
    body = bytes(SIZE)
    piece = TensorPiece(TensorSpec("weights", "U8", (SIZE,)), memoryview(body))
    return Checkpoints(session, lambda: ([piece], {})), said


def test_a_rank_goes_on_while_its_writer_is_held_up(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the writer is stopped. The next save is given up, and the one after that succeeds."""
    from outlast.runtime.worker.saving import checkpoints

    monkeypatch.setattr(checkpoints, "SAVE_STUCK_S", 0.2)
    node.writer.start()
    node.until(node.listens)
    assert node.writer.pid is not None
    os.kill(node.writer.pid, signal.SIGSTOP)
    saves, said = a_rank(node.folder / "checkpoints", node.folder)
    saves.save(1)
    saves.save(2)
    (given_up,) = said
    assert given_up.step == 2
    assert "nothing of the save before it was written" in given_up.error
    os.kill(node.writer.pid, signal.SIGCONT)
    node.until(lambda: len(said) == 2)
    saves.save(3)
    saves.wait()
    assert [(one.step, one.error) for one in said[1:]] == [(1, ""), (3, "")]


def test_a_save_that_never_ends_does_not_hold_up_the_end_of_a_run(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: the writer is stopped. The wait at the end of the steps ends all the same, and the
    save is reported as failed. Later steps save nothing before the writer has let go of the memory.
    """
    from outlast.runtime.worker.saving import checkpoints

    monkeypatch.setattr(checkpoints, "SAVE_STUCK_S", 0.2)
    monkeypatch.setattr(checkpoints, "WRITER_SILENT_S", 0.1)
    node.writer.start()
    node.until(node.listens)
    assert node.writer.pid is not None
    os.kill(node.writer.pid, signal.SIGSTOP)
    saves, said = a_rank(node.folder / "checkpoints", node.folder)
    saves.save(1)
    saves.wait()
    saves.save(2)
    assert [one.step for one in said] == [1, 2]
    assert "given up: nothing of it was written" in said[0].error
    assert "nothing of the save before it was written" in said[1].error
    os.kill(node.writer.pid, signal.SIGCONT)
    node.until(lambda: len(said) == 3)
    assert (said[2].step, said[2].error) == (1, "")
    saves.save(3)
    saves.wait()
    assert (said[3].step, said[3].error) == (3, "")


def test_a_rank_writes_its_image_itself_if_no_writer_comes_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: at first there is no writer. Then one has left its socket, and none is started."""
    from outlast.runtime.worker.saving import checkpoints

    monkeypatch.setattr(checkpoints, "WRITER_BACK_S", 0.05)
    saves, said = a_rank(node.folder / "checkpoints", node.folder)
    saves.save(1)
    saves.wait()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
        gone.bind(str(node.socket))
    saves.save(2)
    saves.wait()
    assert [(one.step, one.error) for one in said] == [(1, ""), (2, "")]
    for one in said:
        path = local.checkpoint_folder(node.folder / "checkpoints", one.step) / one.file
        assert path.stat().st_size == one.length
