"""Deaths of workers with their children, of the zygote, and of the launcher; and what replaces a
zygote.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from outlast.model.messages import Warned
from outlast.runtime.agent.oom import OomKill
from outlast.runtime.linux import is_ending
from tests.processes.house import House, is_gone, now, python

HERE = Path(__file__).parent
CHILDREN = """
import os, time
pids = []
for place in range({count}):
    pid = os.fork()
    if pid == 0:
        {in_child}
        time.sleep(600)
    pids.append(pid)
print("children", *pids)
time.sleep(600)
"""


def children_of(house: House, in_child: str = "pass", count: int = 2) -> tuple[int, list[int]]:
    """Start a worker with children that sleep. They hold its channel and its pipes, as DataLoader
    workers do.
    """
    worker = house.script(CHILDREN.format(count=count, in_child=in_child))
    text = house.wait_text("children")
    return worker, [int(pid) for pid in text.split()[1:]]


def test_a_killed_worker_leaves_no_child(house: House) -> None:
    """Trap 17: two loader workers hold its sockets.

    The death is reported without waiting for them.
    """
    worker, pids = children_of(house)
    asked_s = now()
    house.host.kill(worker)
    exited = house.wait_exit(worker)
    print(f"kill to news: {(now() - asked_s) * 1e3:.1f} ms")
    assert (exited.signal, exited.oom, exited.killed) == (signal.SIGKILL, OomKill.NONE, True)
    house.until(lambda: all(map(is_gone, pids)), "the children's end")


def test_a_worker_killed_by_others_leaves_no_child(house: House) -> None:
    worker, pids = children_of(house)
    os.kill(house.record.started[worker], signal.SIGKILL)
    exited = house.wait_exit(worker)
    assert (exited.signal, exited.killed) == (signal.SIGKILL, False)
    house.until(lambda: all(map(is_gone, pids)), "the children's end")


def test_a_worker_that_others_killed_is_not_booked_as_killed_by_us(house: House) -> None:
    """A worker that others kill closes its channel first, and is therefore killed again by the
    launcher.

    Method: the loop does not run between its death and the launcher's kill, so its end is not known
    yet.
    """
    worker = house.script("import signal; print('there', flush=True); signal.pause()")
    house.wait_text("there")
    pid = house.record.started[worker]
    os.kill(pid, signal.SIGKILL)
    bound_s = now() + 10
    while not is_ending(pid):
        assert now() < bound_s
    house.host.kill(worker)
    exited = house.wait_exit(worker)
    assert (exited.signal, exited.killed) == (signal.SIGKILL, False)


def test_a_process_that_lives_is_not_ending() -> None:
    assert not is_ending(os.getpid())
    assert is_ending(2**22 + 1), "there is none of that number"


def test_children_in_a_process_group_of_their_own_end_too(house: House) -> None:
    """The children may have been forked by threads of the worker: only the session connects them to
    it.
    """
    worker, pids = children_of(
        house, in_child="os.setpgid(0, 0); import ctypes; ctypes.CDLL(None).prctl(1, 0)"
    )
    os.kill(house.record.started[worker], signal.SIGKILL)
    house.wait_exit(worker)
    house.until(lambda: all(map(is_gone, pids)), "the children's end")


def test_a_stopped_worker_is_killed_and_never_comes_back(house: House) -> None:
    worker, pids = children_of(house)
    pid = house.record.started[worker]
    os.kill(pid, signal.SIGSTOP)
    house.host.kill(worker)
    assert house.wait_exit(worker).signal == signal.SIGKILL
    house.until(lambda: all(map(is_gone, [pid, *pids])), "all gone")


def test_orphans_of_orphans_are_reaped_in_silence(house: House) -> None:
    """The launcher is a subreaper: a grandchild whose parent exits becomes its child, and no zombie
    stays.
    """
    grandchild = (
        "if os.fork() == 0:\n    pid = os.fork()\n    if pid == 0:\n        os._exit(0)\n   "
        " print('orphan', pid)\n    os._exit(0)\n"
    )
    text = f"import os, time\n{grandchild}time.sleep(600)"
    worker = house.script(text)
    orphan = int(house.wait_text("orphan").split()[1])
    house.until(lambda: is_gone(orphan), "reaping")
    assert worker not in house.record.exits
    house.host.kill(worker)
    house.wait_exit(worker)


def test_a_worker_killed_while_it_is_being_forked_never_runs(house: House) -> None:
    worker = house.script("print('ran')")
    house.host.kill(worker)
    assert house.wait_exit(worker).signal == signal.SIGKILL
    assert house.text() == ""


def test_a_worker_in_a_busy_loop_of_output_does_not_starve_the_others(house: House) -> None:
    loud = house.script("while True: print('x' * 1000)")
    quiet = house.script("print('heard')")
    house.wait_exit(quiet)
    assert "heard" in house.text()
    house.host.kill(loud)
    house.wait_exit(loud)


def test_a_lost_zygote_touches_no_worker_and_a_new_one_serves(house: House) -> None:
    worker = house.script("import time; print('up'); time.sleep(600)")
    house.wait_text("up")
    old = house.host.zygote_pid
    os.kill(old, signal.SIGKILL)
    house.until(lambda: bool(house.record.lost), "the loss")
    late = house.script("print('late')")  # it waits for the new zygote
    house.until(lambda: len(house.record.zygotes) == 2, "a new zygote")
    assert house.host.zygote_pid != old
    assert house.wait_exit(late).exit_code == 0
    assert worker in house.host.pids()
    assert f"{old} was ended by signal 9" in house.record.lost[0]
    house.host.kill(worker)
    house.wait_exit(worker)


def test_stop_all_terminates_kills_after_the_grace_and_ends_with_nothing(house: House) -> None:
    """This test is the last one of the file. One worker obeys SIGTERM, one ignores it, and the
    store host has no session that could tell it.
    """
    obeys = house.script("import time; print('a up'); time.sleep(600)")
    defies = house.script(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('b up');"
        " time.sleep(600)"
    )
    store = house.start(replace(house.spec(), kind="store", rank=-1))
    house.wait_text("a up")
    house.wait_text("b up")
    house.until(lambda: any(number == store for number, _ in house.record.messages), "StoreUp")
    stopped: list[bool] = []
    house.host.stop_all(term_grace_s=0.5, then=lambda: stopped.append(True))
    house.until(lambda: bool(stopped), "the end")
    exits = house.record.exits
    assert (exits[obeys].signal, exits[defies].signal) == (signal.SIGTERM, signal.SIGKILL)
    assert store in exits
    assert exits[store].at_s >= exits[defies].at_s
    house.until(lambda: not house.host.pids())


def test_without_a_zygote_workers_are_spawned_and_behave_the_same(
    bare: Callable[[], House],
) -> None:
    """Method: compare the traceback to the letter, argv, the exit code, and the killed children.
    The session is a stand-in that is put into the path.
    """
    house = bare()
    entry = house.folder / "sitecustomize.py"
    entry.write_text(
        f"import sys; sys.path.insert(0, {str(HERE.parents[1])!r}); import"
        " tests.processes.fake_session"
    )
    env = {**house.spec().env, "PYTHONPATH": str(house.folder)}
    worker = house.script(
        "import sys; print(sys.argv[1:], __name__, sys.path[0])\nraise ValueError('no')\n",
        "a",
        env=env,
    )
    exited = house.wait_exit(worker)
    assert exited.exit_code == 1
    assert house.text() == f"['a'] __main__ {house.folder}\n", house.text("stderr")
    path = house.folder / f"script_{worker}.py"
    assert (
        house.text("stderr")
        == f'Traceback (most recent call last):\n  File "{path}", line 2, in <module>\n    raise'
        " ValueError('no')\nValueError: no\n"
    )
    assert (worker, Warned(worker, "finish: 1")) in house.record.messages


def test_a_preload_that_cannot_be_imported_is_named(bare: Callable[[], House]) -> None:
    house = bare()
    house.host.start_zygote(preload=("no_such_module_here",))
    house.until(lambda: bool(house.record.preload_errors), "the error")
    assert house.record.preload_errors == [
        "--preload no_such_module_here: ModuleNotFoundError: No module named 'no_such_module_here'"
    ]


def test_a_preload_that_starts_a_thread_makes_the_launcher_spawn(
    bare: Callable[[], House],
) -> None:
    """Trap 20: a process with several threads cannot be forked safely."""
    house = bare()
    (house.folder / "threaded.py").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=(600,),"
        " daemon=True).start()"
    )
    house.host.start_zygote(preload=("threaded",), first_path=str(house.folder))
    worker = house.script("", entry="program")  # it needs no session
    house.until(lambda: bool(house.record.fallbacks), "the fallback")
    why = "a thread was started while importing: forks would not be safe"
    assert house.record.fallbacks[0] == why
    house.until(lambda: worker in house.record.exits or worker in house.record.failed)
    assert worker in house.record.started


LAUNCHER = """
import sys
from pathlib import Path
from tests.processes.house import House
house = House(Path(sys.argv[1]))
house.host.start_zygote(preload=("fake_session",), first_path=sys.argv[2])
house.until(lambda: bool(house.record.zygotes))
house.script('''{children}''')
house.until(lambda: "children" in house.text())
pids = [*house.host.pids().values(), house.host.zygote_pid, *house.text().split()[1:]]
print(*pids, flush=True)
house.loop.run()
"""


def test_a_killed_launcher_leaves_no_orphan(tmp_path: Path) -> None:
    """Trap 21: after SIGKILL to the launcher, the worker, its forked children and the zygote are
    gone at once, whichever process reaps them.
    """
    code = LAUNCHER.format(children=CHILDREN.format(count=2, in_child="pass"))
    with subprocess.Popen(
        [python(), "-c", code, str(tmp_path), str(HERE)],
        cwd=HERE.parents[1],
        stdout=subprocess.PIPE,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        pids = [int(pid) for pid in launcher.stdout.readline().split()]
        assert len(pids) == 4
        launcher.kill()
        launcher.wait(10)
    end_s = now() + 10
    while (left := [pid for pid in pids if is_running(pid)]) and now() < end_s:
        os.sched_yield()
    assert not left


def is_running(pid: int) -> bool:
    """Return True if the process runs. A zombie does not: where init is slow to reap, it may be
    visible for a while.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
