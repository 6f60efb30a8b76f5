"""A forked worker behaves as `python script.py` would: exits, tracebacks, `__main__`, streams,
random state, and file descriptors.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from outlast.model.messages import Hello, StoreUp, Warned
from outlast.runtime.agent.environment import RunIdentity, worker_environment
from outlast.runtime.agent.oom import OomKill
from tests.processes.house import CHILDREN, House, children, now, python


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pass", 0),
        ("import os; os._exit(7)", 7),
        ("import sys; sys.exit(3)", 3),
        ("raise SystemExit", 0),
        ("raise SystemExit('why')", 1),
        ("raise SystemExit(-1)", 255),
    ],
)
def test_exit_codes_are_kept(house: House, text: str, code: int) -> None:
    exited = house.wait_exit(house.script(text))
    assert (exited.exit_code, exited.signal, exited.oom) == (code, None, OomKill.NONE)


def test_a_signal_that_ends_a_worker_is_named(house: House) -> None:
    exited = house.wait_exit(
        house.script("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    )
    assert (exited.exit_code, exited.signal) == (None, signal.SIGSEGV)


def test_an_uncaught_exception_prints_what_python_prints_and_ends_with_one(house: House) -> None:
    """Method: run the same file under `python`. Both stderr texts must be the same to the
    letter.
    """
    script = (
        "def inner():\n    raise ValueError('no')\n\n\ntry:\n    inner()\nexcept ValueError as"
        " error:\n    raise RuntimeError('outer') from error\n"
    )
    worker = house.script(script)
    exited = house.wait_exit(worker)
    plain = subprocess.run(
        [python(), str(house.folder / f"script_{worker}.py")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert exited.exit_code == plain.returncode == 1
    assert house.text("stderr") == plain.stderr
    assert (worker, Warned(worker, "failed: RuntimeError")) in house.record.messages
    assert (
        house.logs.stderr_tail(worker)[-1] == "RuntimeError: outer"
        or worker not in house.logs._pipes
    )


def test_a_syntax_error_prints_what_python_prints(house: House) -> None:
    worker = house.script("x = = 1\n")
    assert house.wait_exit(worker).exit_code == 1
    plain = subprocess.run(
        [python(), str(house.folder / f"script_{worker}.py")],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert house.text("stderr") == plain.stderr


def test_an_exception_leaves_torchruns_error_file_unless_record_wrote_it(house: House) -> None:
    path = house.folder / "error.json"
    env = {**house.spec().env, "TORCHELASTIC_ERROR_FILE": str(path)}
    house.wait_exit(house.script("raise KeyError('lost')", env=env))
    message = json.loads(path.read_text())["message"]
    assert message["message"] == "KeyError: 'lost'"
    assert "script_" in message["extraInfo"]["py_callstack"]
    assert "bootstrap" not in message["extraInfo"]["py_callstack"]
    path.write_text("{}")
    house.wait_exit(house.script("raise KeyError('again')", env=env))
    assert path.read_text() == "{}"


def test_the_script_is_main_and_finds_what_python_would_give_it(house: House) -> None:
    """Method: check argv, path, file, session, stdin, unbuffered streams, and that no foreign
    descriptors are open. The environment is the requested one.
    """
    text = """
import gc, json, os, sys
print(json.dumps({
    "name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path[0],
    "leads": os.getsid(0) == os.getpid(), "stdin": sys.stdin.read(),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")), "parent": os.getppid(),
    "main": sys.modules["__main__"].__dict__ is globals(),
    "collects": gc.isenabled(),
    "omp": os.environ["OMP_NUM_THREADS"], "blas": os.environ.get("MKL_NUM_THREADS"),
    "spec": str(__spec__),
}))
"""
    worker = house.script(text, "-x", "--", "y")
    house.wait_exit(worker)
    script = str(house.folder / f"script_{worker}.py")
    told = json.loads(house.text())
    assert told.pop("fds")[:3] == [0, 1, 2]
    assert told == {
        "name": "__main__",
        "file": script,
        "argv": [script, "-x", "--", "y"],
        "path": str(house.folder),
        "leads": True,
        "stdin": "",
        "parent": os.getpid(),
        "main": True,
        "collects": True,
        "omp": "1",
        "blas": os.environ.get("MKL_NUM_THREADS"),
        "spec": "None",
    }


def test_no_descriptor_of_another_worker_is_inherited(house: House) -> None:
    """Method: while two others run, a worker has its streams, its channel, and the descriptor with
    which it lists the folder.
    """
    others = [house.script("import time; time.sleep(60)") for _ in range(2)]
    house.until(lambda: all(other in house.record.started for other in others))
    house.wait_exit(house.script("import os; print(len(os.listdir('/proc/self/fd')))"))
    assert house.text() == "5\n"
    for other in others:
        house.host.kill(other)
        house.wait_exit(other)


def test_classes_of_main_survive_pickling_and_loader_workers(house: House) -> None:
    text = """
import multiprocessing, pickle
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor(i * i)

def double(x): return 2 * x

if __name__ == "__main__":
    assert type(pickle.loads(pickle.dumps(Squares()))) is Squares
    print(sum(int(b.sum()) for b in DataLoader(Squares(), batch_size=2, num_workers=2)))
    with multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(double, [4]))
    atexit = __import__("atexit"); atexit.register(lambda: print("bye"))
"""
    exited = house.wait_exit(house.script(text))
    assert (exited.exit_code, house.text()) == (0, "140\n[8]\nbye\n"), house.text("stderr")


def test_a_module_runs_as_with_dash_m(house: House) -> None:
    (house.folder / "pack").mkdir()
    (house.folder / "pack" / "__init__.py").write_text("")
    (house.folder / "pack" / "__main__.py").write_text(
        "import sys; print(__name__, __package__, sys.argv[1:], sys.path[0])"
    )
    exited = house.wait_exit(
        house.start(
            replace(house.spec(), script="pack", entry="module", args=("a",), cwd=str(house.folder))
        )
    )
    assert exited.exit_code == 0, house.text("stderr")
    assert house.text() == f"__main__ pack ['a'] {house.folder}\n"


def test_a_program_that_is_not_python_runs_as_it_is(house: House) -> None:
    exited = house.wait_exit(
        house.start(
            replace(
                house.spec(), script="sh", entry="program", args=("-c", "echo rank $RANK; exit 4")
            )
        )
    )
    assert (exited.exit_code, house.text()) == (4, "rank 0\n")
    missing = house.wait_exit(
        house.start(replace(house.spec(), script="/no/such", entry="program"))
    )
    assert missing.exit_code == 127


def test_random_states_differ_between_workers(house: House) -> None:
    """Trap 5: a fork copies the zygote's random state. Method: five sources and three workers, no
    two of which are alike.
    """
    draw = (
        "random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed(),"
        " m.current_process().authkey.hex()"
    )
    text = f"import random, numpy, torch, multiprocessing as m\nprint({draw})"
    draws = []
    for _ in range(3):
        house.console.clear()
        house.wait_exit(house.script(text))
        draws.append(house.text().split())
    for source in zip(*draws, strict=True):
        assert len(set(source)) == 3, draws


def test_threads_are_set_as_a_fresh_process_would_set_them(house: House) -> None:
    """Trap 20: OMP_NUM_THREADS is read at import, which was long ago.

    If it is not set, torch uses the number of physical cores.
    """
    house.wait_exit(
        house.script(
            "import torch; print(torch.get_num_threads())",
            env={**house.spec().env, "OMP_NUM_THREADS": "3"},
        )
    )
    env = {
        name: value for name, value in house.spec().env.items() if not name.endswith("_NUM_THREADS")
    }
    house.wait_exit(house.script("import torch; print(torch.get_num_threads())", env=env))
    fresh = subprocess.run(
        [python(), "-c", "import torch; print(torch.get_num_threads())"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert house.text() == "3\n" + fresh.stdout


def test_a_multi_threaded_operation_and_a_backward_work_in_a_fork(house: House) -> None:
    text = (
        "import torch; a = torch.rand(600, 600, requires_grad=True); (a @ a).sum().backward();"
        " print(tuple(a.grad.shape))"
    )
    exited = house.wait_exit(house.script(text, env={**house.spec().env, "OMP_NUM_THREADS": "2"}))
    assert (exited.exit_code, house.text()) == (0, "(600, 600)\n"), house.text("stderr")


def test_ctrl_c_in_a_worker_is_a_keyboard_interrupt_and_ends_by_signal(house: House) -> None:
    worker = house.script("import time; print('up'); time.sleep(60)")
    house.wait_text("up")
    os.kill(house.record.started[worker], signal.SIGINT)
    exited = house.wait_exit(worker)
    assert exited.signal == signal.SIGINT
    assert house.text("stderr").endswith("KeyboardInterrupt\n")


def test_a_worker_says_hello_and_finishes_through_its_channel(house: House) -> None:
    worker = house.script("pass")
    exited = house.wait_exit(worker)
    came = [message for number, message in house.record.messages if number == worker]
    assert came == [Hello(worker, exited.pid), Warned(worker, "finish: 0")]


def test_a_warm_spare_begins_its_script_only_when_it_has_a_rank(house: House) -> None:
    env = worker_environment(
        house.spec().env,
        RunIdentity("r", "d", 2, 2, "127.0.0.1", 1, 0),
        rank=None,
        local_rank=None,
        attempt=0,
        error_file=str(house.folder / "spare_error.json"),
    )
    worker = house.script(
        "import os; print('rank', os.environ['RANK'])", kind="warm", rank=-1, env=env
    )
    house.until(lambda: any(number == worker for number, _ in house.record.messages), "hello")
    assert worker not in house.record.exits
    house.logs.move(worker, attempt=0, place=0)
    house.host.send(worker, Warned(worker, "a rank"))
    house.wait_exit(worker)
    assert house.text() == "rank 0\n"


def test_the_store_host_says_its_port_serves_and_ends_with_its_channel(house: House) -> None:
    store = house.start(replace(house.spec(), kind="store", rank=-1))
    house.until(lambda: any(number == store for number, _ in house.record.messages), "StoreUp")
    up = next(message for number, message in house.record.messages if number == store)
    assert isinstance(up, StoreUp)
    text = (
        f"from torch.distributed import TCPStore; s = TCPStore('127.0.0.1', {up.port},"
        " is_master=False); s.set('k', 'v'); print(s.get('k'))"
    )
    assert house.wait_exit(house.script(text)).exit_code == 0, house.text("stderr")
    assert house.text() == "b'v'\n"
    house.host._children[store].channel.close()
    assert house.wait_exit(store).exit_code == 0


@pytest.mark.drill
def test_a_fork_is_much_faster_than_a_fresh_interpreter(house: House) -> None:
    """This prints figures only: the first line of the script and the first operation of torch,
    after the request.
    """
    text = (
        "import time; print(time.monotonic()); import torch; torch.ones(8).add(1);"
        " print(time.monotonic())"
    )
    forked = []
    for _ in range(5):
        house.console.clear()
        asked_s = now()
        house.wait_exit(house.script(text))
        forked.append([float(line) - asked_s for line in house.text().split()])
    asked_s = now()
    plain = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=True
    )
    spawned = [float(line) - asked_s for line in plain.stdout.split()]
    best = min(forked)
    print(
        f"forked: first line {best[0] * 1e3:.1f} ms, first operation {best[1] * 1e3:.1f} ms;"
        f" spawned: {spawned[0] * 1e3:.1f} ms, {spawned[1] * 1e3:.1f} ms"
    )
    assert best[1] < spawned[1]


def test_nothing_is_left_of_the_workers(house: House) -> None:
    """This test is the last one: every descriptor is closed again, and every worker is reaped."""
    house.until(lambda: not house.host._children, "reaping")
    assert not house.host.pids()
    assert not CHILDREN.exists() or children() - house.others == {house.host.zygote_pid}
