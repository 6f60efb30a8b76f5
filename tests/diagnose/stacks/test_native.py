"""Stacks of native code: what gdb and eu-stack print, and what of it tells anything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.diagnose.logs import read_lines
from outlast.diagnose.pipeline import Material, conclude
from outlast.diagnose.stacks import Stack
from outlast.diagnose.stacks.native import NativeFrame, frames_of, function_name, read_call
from outlast.diagnose.stacks.reader import activity, doing


def stacks(text: str, name: str = "gdb.txt") -> list[Stack]:
    return [
        one
        for one in read_lines([line.encode() + b"\n" for line in text.splitlines()], name=name)
        if isinstance(one, Stack)
    ]


# --- names ---


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (
            "__futex_abstimed_wait_common64 (private=0, cancel=true)",
            "__futex_abstimed_wait_common64",
        ),
        ("clock_nanosleep@GLIBC_2.2.5 ()", "clock_nanosleep"),
        ("clock_nanosleep@@GLIBC_2.17", "clock_nanosleep"),
        ("do_futex_wait.constprop.0 ()", "do_futex_wait"),
        (
            "c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >) ()",
            "c10d::Work::wait",
        ),
        ("void gloo::sum<float>(void*, void const*) ()", "gloo::sum"),
        (
            "c10d::(anonymous namespace)::AsyncAllreduceWork::run() ()",
            "c10d::anonymous::AsyncAllreduceWork::run",
        ),
        ("_ZN4c10d4Work4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE", "c10d::Work::wait"),
        ("_ZN4gloo9allreduceERKNS_16AllreduceOptionsE", "gloo::allreduce"),
        ("<signal handler called>", "??"),
        ("??", "??"),
    ],
)
def test_a_name_loses_types_templates_and_arguments(said: str, name: str) -> None:
    assert function_name(said) == name


@pytest.mark.parametrize(
    ("line", "call"),
    [
        (
            "#3  0x00007f2b in c10d::Work::wait(long) () from /usr/lib/libtorch_cpu.so",
            NativeFrame("c10d::Work::wait", "libtorch_cpu.so"),
        ),
        (
            "#0  __GI___poll (fds=0x7f, nfds=1, timeout=-1) at ../sysdeps/unix/poll.c:29",
            NativeFrame("__GI___poll", "poll.c:29"),
        ),
        (
            "#2  0x00007f5b0f1a0a96 - 1 epoll_wait - /usr/lib/libc.so.6",
            NativeFrame("epoll_wait", "libc.so.6"),
        ),
        ("#2  0x00007f5b0f1a0a96     epoll_wait", NativeFrame("epoll_wait")),
        ("frame #2: c10::Error::Error", None),
        ("# rank 3", None),
    ],
)
def test_a_frame_is_read_from_either_printer(line: str, call: NativeFrame | None) -> None:
    assert read_call(line) == call


# --- what a stack tells ---

INTERPRETER = ("_PyEval_EvalFrameDefault", "PyObject_Call", "main", "__libc_start_call_main")
C_WAITS = ("__futex_abstimed_wait_common64", "pthread_cond_wait", "std::condition_variable::wait")


@pytest.mark.parametrize(
    ("functions", "python", "does"),
    [
        ((*C_WAITS, "c10d::Work::wait", *INTERPRETER), (), "waiting"),
        (("cudaStreamSynchronize", "at::native::item", *INTERPRETER), (), "waiting"),
        (("ncclGroupEnd", "c10d::ProcessGroupNCCL::collective"), (), "waiting"),
        ((*C_WAITS, "torch::autograd::ReadyQueue::pop", *INTERPRETER), (), "waiting"),
        (("clock_nanosleep", "pysleep", "time_sleep", *INTERPRETER), (), "working"),
        (("__poll", "select_poll_poll", *INTERPRETER), (), "working"),
        (("__libc_read", "_io_FileIO_readinto_impl", *INTERPRETER), (), "loading"),
        (("__libc_recv", "sock_recv_impl", *INTERPRETER), (), "loading"),
        (("futex_wait", "take_gil", "PyEval_RestoreThread", *INTERPRETER), (), "working"),
        (("flash::forward", *INTERPRETER), (), "working"),
        (C_WAITS, (), "idle"),
        # Where Python's frames are known, they decide, unless native code waits below them.
        ((*C_WAITS, "acquire_timed", *INTERPRETER), ("get (train.py:3)",), "idle"),
        ((*C_WAITS, "acquire_timed", *INTERPRETER), ("load (train.py:3)",), "working"),
        (("cudaStreamSynchronize", *INTERPRETER), ("train_loss (train.py:3)",), "waiting"),
        (
            (*C_WAITS, "c10d::Work::wait", *INTERPRETER),
            ("all_reduce (torch/distributed/distributed_c10d.py:1)",),
            "waiting",
        ),
    ],
)
def test_the_innermost_telling_function_says_what_a_thread_does(
    functions: tuple[str, ...], python: tuple[str, ...], does: str
) -> None:
    assert doing(frames_of([NativeFrame(name) for name in functions], python)) == does


GDB_MAIN = """
Thread 3 (Thread 0x7f11 (LWP 4244) "pt_gloo_runloop"):
#0  0x00007f41 in __futex_abstimed_wait_common64 () from /lib/libc.so.6
#1  0x00007f42 in gloo::transport::tcp::UnboundBuffer::waitRecv(int*, std::chrono::duration<long>) \
() from /usr/lib/libtorch_cpu.so
#2  0x00007f43 in gloo::allreduce(gloo::AllreduceOptions const&) () from /usr/lib/libtorch_cpu.so

Thread 1 (Thread 0x7f10 (LWP 4242) "python"):
#0  0x00007f41 in __futex_abstimed_wait_common64 () from /lib/libc.so.6
#1  0x00007f44 in c10d::Work::wait(long) () from /usr/lib/libtorch_cpu.so
#2  0x00007f45 in _PyEval_EvalFrameDefault () from /usr/lib/libpython3.11.so
"""
PY_BT = """
Thread 1 (Thread 0x7f10 (LWP 4242) "python"):
Traceback (most recent call first):
  File "/app/train.py", line 12, in average
    dist.all_reduce(loss)
  File "/app/train.py", line 30, in <module>
"""


def test_another_thread_names_the_collective_of_the_main_thread() -> None:
    (one,) = stacks(GDB_MAIN)
    assert (one.process, one.thread) == ("4242", "MainThread")
    assert activity(one) == ("waiting", "all_reduce")


def test_a_list_of_python_frames_belongs_to_the_native_stack_before_it() -> None:
    """Two looks are two stacks then, and not four of which some moved."""
    looks = stacks(2 * (GDB_MAIN + PY_BT))
    assert [one.frames for one in looks] == 2 * [
        (
            "all_reduce (c10d)",
            "average (app/train.py:12)",
            "<module> (app/train.py:30)",
        )
    ]


def test_threads_with_both_kinds_of_frames_are_read_as_one_stack() -> None:
    """As `thread apply all -c` with both commands prints them."""
    both = GDB_MAIN.rstrip("\n") + "\n" + PY_BT.split("\n", 2)[2]
    (one,) = stacks(both)
    assert one.frames[1] == "average (app/train.py:12)"


def test_a_frame_of_python_within_a_native_one_is_read() -> None:
    """gdb prints the interpreter's frame object where Python's own helper is loaded."""
    (one,) = stacks(
        'Thread 1 (Thread 0x7f10 (LWP 42) "python"):\n'
        "#0  0x00007f in clock_nanosleep () from /lib/libc.so.6\n"
        "#1  0x00007f in time_sleep (self=0x1) at ./Modules/timemodule.c:370\n"
        "#2  0x00007f in _PyEval_EvalFrameDefault (f=Frame 0x7f, for file /app/train.py, line 7,"
        " in load (path='x')) at Python/ceval.c:1\n"
    )
    assert one.frames == ("load (app/train.py:7)",)
    assert one.rule == "stack.working"


def test_a_core_file_shows_no_wait() -> None:
    for head in ("Program terminated with signal SIGSEGV, Segmentation fault.", "PID 42 - core"):
        assert stacks(f"{head}\n{GDB_MAIN}") == []


def test_a_rank_that_sleeps_is_found_by_native_stacks_alone() -> None:
    """Method: four files named by rank, as `eu-stack -p PID` writes them."""
    findings = []
    for rank in range(4):
        inner = ("time_sleep",) if rank == 2 else ("_ZN4c10d4Work4waitENSt6chrono", "poll")
        functions = ("clock_nanosleep", *inner, *INTERPRETER)
        frames = "".join(f"#{n}  0x7f{n:014x} {name}\n" for n, name in enumerate(functions))
        findings += stacks(
            f"PID {50 + rank} - process\nTID {50 + rank}:\n{frames}TID {90 + rank}:\n#0  0x7f a\n",
            f"eu-stack-rank{rank}.txt",
        )
    verdict = conclude(Material(findings)).verdict
    assert [one.rank for one in verdict.ranks] == [2]


# --- whatever is printed ---

NAMES = st.sampled_from(
    [*C_WAITS, *INTERPRETER, "c10d::Work::wait", "time_sleep", "??", "gloo::allreduce", "a::b"]
)
FRAMES = st.lists(NAMES, min_size=1, max_size=30)


@given(st.lists(FRAMES, min_size=1, max_size=4))
def test_both_printers_tell_the_same_of_one_process(threads: list[list[str]]) -> None:
    """Method: the threads as gdb prints them, the main one last, and as eu-stack does."""
    pid, by_gdb, by_eu = 700, [], [f"PID {700} - process"]
    for number, names in enumerate(threads, 1):
        by_gdb += [f"#{n}  0x7f in {name} () from /l/x.so" for n, name in enumerate(names)][::-1]
        by_gdb.append(f'Thread {number} (Thread 0x7f (LWP {pid + number - 1}) "python"):')
        by_gdb.append("")
        by_eu.append(f"TID {pid + number - 1}:")
        by_eu += [f"#{n}  0x7f {name} - /l/x.so" for n, name in enumerate(names)]
    first, second = stacks("\n".join(by_gdb[::-1])), stacks("\n".join(by_eu))
    assert [(one.process, one.thread, one.frames) for one in first] == [
        (one.process, one.thread, one.frames) for one in second
    ]


LINES = st.one_of(
    st.text(max_size=60),
    st.sampled_from((GDB_MAIN + PY_BT).splitlines()),
    st.sampled_from(
        ["PID 7 - process", "TID 7:", "TID 8:", 'Thread 7 (idle): "MainThread"', "  f (a.py:1)"]
    ),
    st.builds(
        "#{}  {}".format, st.integers(0, 99), st.text("<>():,_ZNIE0123456789abc ", max_size=80)
    ),
)


@given(st.lists(LINES, max_size=60))
def test_no_text_makes_the_reader_fail(lines: list[str]) -> None:
    for one in stacks("\n".join(lines)):
        assert one.frames
