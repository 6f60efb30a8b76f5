"""Stacks: two printers, who waits, and who stands out."""

from __future__ import annotations

import faulthandler
import re
import tempfile
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.diagnose.fuse import decide
from outlast.diagnose.logs import read_lines
from outlast.diagnose.pipeline import Material, conclude
from outlast.diagnose.stacks import Stack, StackReader, compare
from outlast.diagnose.stacks.reader import doing


def stacks(text: str, name: str = "trace") -> list[Stack]:
    return [
        one
        for one in read_lines([line.encode() + b"\n" for line in text.splitlines()], name=name)
        if isinstance(one, Stack)
    ]


def spy(pid: int, *frames: str) -> str:
    listed = "\n".join(f"    {frame}" for frame in frames)
    return (
        f"Process {pid}: python train.py --local_rank={pid % 8}\nPython v3.10.12"
        f' (/usr/bin/python3.10)\n\nThread {pid} (active): "MainThread"\n{listed}\n\n'
    )


WAITS = (
    "all_reduce (torch/distributed/distributed_c10d.py:1316)",
    "step (train.py:40)",
    "<module> (train.py:90)",
)
READS = ("read (gzip.py:3)", "step (train.py:40)", "<module> (train.py:90)")
WORKS = ("tokenize (text.py:3)", "step (train.py:40)", "<module> (train.py:90)")
LOADS = (
    "wait (threading.py:306)",
    "get (queue.py:179)",
    "_try_get_data (torch/utils/data/dataloader.py:1011)",
    "__next__ (torch/utils/data/dataloader.py:530)",
    "<module> (train.py:90)",
)


def test_the_innermost_known_frame_says_what_a_stack_does() -> None:
    assert [
        doing(frames)
        for frames in (WAITS, READS, WORKS, LOADS, ("select (selectors.py:1)", "run (x.py:1)"))
    ] == [
        "waiting",
        "loading",
        "working",
        "loader",
        "idle",
    ]


def test_a_function_of_the_user_called_load_says_nothing_of_storage() -> None:
    """It may sleep, spin or wait for a lock; only a library's frame shows input or output."""
    for name in ("load", "read", "save", "__getitem__", "_load_batch"):
        for file in ("train.py", "src/data.py", "app/train.py"):
            assert doing((f"{name} ({file}:4)", "<module> (train.py:90)")) == "working"
    for frame in (
        "load (torch/serialization.py:1)",
        "decode (json/decoder.py:3)",
        "read (python3.11/gzip.py:4)",
        "_read (PIL/ImageFile.py:5)",
    ):
        wanted = "working" if frame.startswith("decode") else "loading"
        assert doing((frame, "load (train.py:4)")) == wanted


def test_one_that_does_not_wait_is_shown_and_those_that_wait_are_not() -> None:
    for frames, rule in (
        (READS, "stack.outlier_io"),
        (WORKS, "stack.outlier_work"),
        (LOADS, "stack.outlier_loader"),
    ):
        read = stacks(
            "".join(spy(8 * 100 + rank, *(frames if rank == 5 else WAITS)) for rank in range(8))
        )
        assert [(one.rule, one.rank) for one in compare(read)] == [(rule, 5)]


def test_all_waiting_in_one_place_shows_nobody() -> None:
    assert compare(stacks("".join(spy(800 + rank, *WAITS) for rank in range(8)))) == ()


def test_half_in_send_and_half_in_receive_shows_nobody() -> None:
    """A pipeline looks like this whenever it waits for anybody."""
    ends = [
        spy(800 + rank, f"{'send' if rank < 4 else 'recv'} (c10d.py:1)", *WAITS[1:])
        for rank in range(8)
    ]
    assert compare(stacks("".join(ends))) == ()


def test_waiting_in_another_branch_of_the_program_is_shown() -> None:
    read = stacks(
        "".join(
            spy(
                800 + rank,
                *(
                    ("broadcast (c10d.py:1)", "evaluate (train.py:70)", "<module> (train.py:90)")
                    if rank == 2
                    else WAITS
                ),
            )
            for rank in range(8)
        )
    )
    assert [(one.rule, one.rank) for one in compare(read)] == [("stack.divergent", 2)]


def test_headers_in_a_row_share_the_stack_below_them() -> None:
    read = stacks(
        'Thread 11 (active): "MainThread"\nThread 12 (active): "MainThread"\n    all_reduce'
        ' (c10d.py:1)\n    <module> (train.py:9)\nThread 13 (idle): "MainThread"\n    read'
        " (gzip.py:3)\n    <module> (train.py:9)\n"
    )
    assert [(one.process, one.rule) for one in read] == [
        ("11", "stack.waiting"),
        ("12", "stack.waiting"),
        ("13", "stack.loading"),
    ]
    assert [one.rule for one in compare(read)] == ["stack.outlier_io"]


def test_a_real_faulthandler_dump_is_read() -> None:
    """Method: this interpreter writes its own, with a thread that waits."""
    done = threading.Event()
    waiting = threading.Thread(target=done.wait, daemon=True)
    waiting.start()
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        read = [
            one
            for one in read_lines(file.read().splitlines(keepends=True), name="dump")
            if isinstance(one, Stack)
        ]
    done.set()
    waiting.join(5)
    assert any("test_stacks.py" in frame for one in read for frame in one.frames)


@given(st.lists(st.text(max_size=80), max_size=40))
def test_any_text_is_read_or_left(lines: list[str]) -> None:
    reader = StackReader()
    for at, line in enumerate(lines):
        reader.feed(at, line)
    reader.end()


QUEUE = (
    "_PollLikeSelector.select (selectors.py:415)",
    "wait (multiprocessing/connection.py:947)",
    "Queue.get (multiprocessing/queues.py:113)",
)


def nameless(pid: int, *frames: str) -> str:
    """Torchrun puts no rank on the command line; the rank is in the file's name."""
    return re.sub(r" --local_rank=\d+", "", spy(pid, *frames))


IDLE = nameless(
    20, *QUEUE, "_worker_loop (torch/utils/data/_utils/worker.py:334)", "<module> (train.py:32)"
)
STUCK = nameless(
    21,
    "Remote.__getitem__ (train.py:16)",
    "_worker_loop (torch/utils/data/_utils/worker.py:374)",
    "<module> (train.py:32)",
)
STARVED = nameless(
    3,
    *QUEUE,
    "_MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1291)",
    "<module> (train.py:25)",
)


def test_an_idle_loader_worker_says_nothing_and_adds_no_rank() -> None:
    """Method: each rank's file has its own stack and those of two workers; all workers but one of
    rank 3 wait to be asked.
    """
    waits = nameless(
        1, "all_reduce (torch/distributed/distributed_c10d.py:2501)", "<module> (train.py:27)"
    )
    found = [
        one
        for rank in range(3)
        for one in stacks(waits + IDLE + IDLE.replace("20", "22"), f"stack_rank_{rank}.txt")
    ]
    assert len(found) == 3
    found += stacks(STARVED + IDLE + STUCK, "stack_rank_3.txt")
    assert [(one.rule, one.rank) for one in compare(found)] == [("stack.outlier_work", 3)]
    assert "_try_get_data" in found[3].evidence.text


@pytest.mark.parametrize(
    ("worker", "rules"),
    [
        (STUCK, ["stack.outlier_work"]),
        (STUCK.replace("Remote.__getitem__ (train.py", "read (zipfile.py"), ["stack.outlier_io"]),
        (IDLE, ["stack.outlier_loader"]),
        ("", ["stack.outlier_loader"]),
    ],
    ids=["works", "reads", "idle", "not seen"],
)
def test_a_workers_stack_explains_the_wait_for_its_loader(worker: str, rules: list[str]) -> None:
    """Method: rank 1 waits for its loader, whose worker does something, nothing or is not seen."""
    waits = nameless(1, "all_reduce (torch/distributed/distributed_c10d.py:2501)")
    found = [
        *stacks(waits, "stack_rank_0.txt"),
        *stacks(STARVED + worker, "stack_rank_1.txt"),
        *stacks(waits, "stack_rank_2.txt"),
    ]
    assert [one.rule for one in compare(found)] == rules
    if worker not in (IDLE, ""):
        reason = decide([*found, *compare(found)], blame=None).reason
        assert " in a process of its data loader: " in reason


def test_two_equal_stacks_are_not_asked_for_again() -> None:
    """Method: one stack of the rank that is behind, two that are the same, and two that differ."""
    waits = nameless(1, "all_reduce (torch/distributed/distributed_c10d.py:2501)")
    first, other = (nameless(3, f"work (train.py:{line})", "main (train.py:9)") for line in (5, 6))
    asked = {}
    for name, some in {"one": first, "same": first + first, "differ": first + other}.items():
        found = [*stacks(waits, "stack_rank_0.txt"), *stacks(some, "stack_rank_1.txt")]
        asked[name] = decide(found, blame=None).next_test
    assert asked["one"] == asked["differ"]
    assert "rank 1" in asked["same"]
    assert "the same already" in asked["same"]


RECEIVES = ("recv (torch/distributed/distributed_c10d.py:2799)", *WAITS[1:])
SYNCHRONIZES = ("synchronize (torch/cuda/__init__.py:688)", *WAITS[1:])
BARRIER = ("barrier (torch/distributed/distributed_c10d.py:5356)", *WAITS[1:])


def test_a_receive_that_no_rank_answers_is_the_fault_of_who_waits_in_it() -> None:
    """Two ranks in one, or a rank that waits for its device, may be the two ends of it."""

    def found(*others: tuple[str, ...]) -> list[tuple[str, int | None]]:
        text = spy(8, *RECEIVES) + "".join(spy(9 + at, *frames) for at, frames in enumerate(others))
        return [(one.rule, one.rank) for one in compare(stacks(text))]

    assert found(WAITS, WAITS, WAITS) == [("stack.lone_p2p", 0)]
    assert ("stack.lone_p2p", 0) not in found(WAITS, RECEIVES, WAITS)
    # the others do not agree, so that one of them may be what rank 0 waits for
    assert found(WAITS, BARRIER, WAITS) == [("stack.lone_p2p", None)]
    assert ("stack.lone_p2p", 0) not in found(WAITS, SYNCHRONIZES, WAITS)


def test_one_rank_that_waits_at_another_line_shows_a_fault_but_no_rank() -> None:
    """It may be ahead because another rank made a call too many. Two and two show nothing."""
    other = (WAITS[0], "step (train.py:44)", WAITS[2])

    def odd(*lines: tuple[str, ...]) -> list[int | None]:
        text = "".join(spy(8 + at, *frames) for at, frames in enumerate(lines))
        return [one.rank for one in compare(stacks(text)) if one.rule == "stack.divergent"]

    assert odd(WAITS, WAITS, other, WAITS) == [None]
    assert odd(WAITS, other, other, WAITS) == []


def test_half_of_the_ranks_are_what_the_others_wait_for_if_none_moves() -> None:
    """One look shows ranks that may only be on their way."""
    look = spy(8, *WAITS) + spy(9, *WAITS) + spy(10, *WORKS) + spy(11, *WORKS)
    assert {one.rank for one in compare(stacks(look + look))} == {2, 3}
    assert not compare(stacks(look))


def test_two_odd_branches_show_a_fault_of_the_program_and_no_rank() -> None:
    barrier = (
        "barrier (torch/distributed/distributed_c10d.py:5356)",
        "evaluate (a.py:3)",
        WAITS[2],
    )
    gather = ("all_gather (torch/distributed/distributed_c10d.py:4)", "forward (b.py:3)", WAITS[2])
    text = spy(8, *WAITS) + spy(9, *WAITS) + spy(10, *gather) + spy(11, *barrier)
    got = decide(list(read_lines(text.encode().splitlines(), name="trace")), blame=None)
    assert (got.failure_class.value, got.ranks) == ("software_bug", ())


def test_a_rank_that_waits_for_a_program_waits_for_no_peer() -> None:
    frames = ["_try_wait (subprocess.py:2011)", "wait (subprocess.py:1264)", "fetch (train.py:9)"]
    assert doing(frames) == "working"
    assert doing(["wait (torch/distributed/distributed_c10d.py:9)", *frames[2:]]) == "waiting"


OWN_WAITS = ("wait_for_shard", "send_metrics", "gather_stats", "recv_batch", "barrier_with_log")


@pytest.mark.parametrize("name", OWN_WAITS)
@pytest.mark.parametrize("file", ["train.py", "/srv/job/src/data.py", "app/torch.py"])
def test_a_function_of_the_user_called_wait_is_no_proof_of_waiting(name: str, file: str) -> None:
    """It sleeps, polls or holds a lock, while its peers wait in a library's function."""
    own = (f"{name} ({file}:4)", "step (train.py:40)", "<module> (train.py:90)")
    assert doing(own) == "working"
    read = stacks("".join(spy(800 + rank, *(own if rank == 2 else WAITS)) for rank in range(4)))
    assert [(one.rule, one.rank) for one in compare(read)] == [("stack.outlier_work", 2)]


@pytest.mark.parametrize(
    "frame",
    [
        "wait (/usr/local/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:9)",
        "_communicate (/srv/Megatron-LM/megatron/core/pipeline_parallel/p2p.py:7)",
        "c10d::ProcessGroupNCCL::WorkNCCL::synchronize (libtorch_cuda.so)",
        "recv (deepspeed/runtime/pipe/p2p.py:83)",
    ],
)
def test_a_library_that_talks_to_peers_waits_wherever_it_is(frame: str) -> None:
    """The path is shortened while it is read, and the package stays in it."""
    read = stacks(spy(801, frame, "<module> (train.py:90)"))
    assert [doing(one.frames) for one in read] == ["waiting"]


def test_most_ranks_in_a_wait_of_their_own_are_the_victims() -> None:
    """A script's own all_reduce waits in native code, of which there is no frame."""
    own = ("all_reduce_mean (train.py:12)", *WAITS[1:])
    read = stacks("".join(spy(800 + rank, *(WORKS if rank == 2 else own)) for rank in range(4)))
    verdict = conclude(Material(read)).verdict
    assert [one.rank for one in verdict.ranks] == [2]
    two = stacks("".join(spy(800 + rank, *(own if rank == 2 else WAITS)) for rank in range(4)))
    assert [one.rank for one in conclude(Material(two)).verdict.ranks] == [2]
