"""Start jobs quickly: one process pays for importing torch, and each job's launcher and workers are
forked from it.

Orders come on standard input, answers go to standard output, a JSON object a line:

    {"argv": [...], "log": path, "env": {...}}  begins a job: torchrun's own main() with these
                                                arguments    -> {"began": pid}
    {"end": true}                               kills every process of the job and waits for them
                                                -> {"gone": count}
    (no order)                                  the launcher has ended
                                                -> {"ended": exit code, negative for a signal}

One job at a time. The end of standard input ends everything. torchrun starts its workers through
`subprocess.Popen`; here they are forked by a process that stands ready beside the launcher, so that
neither torchrun's stack nor its threads lie in them. The launcher reaps them as if it had started
them itself.

Limits: Linux. A worker runs the script by `runpy` under the arguments that torchrun gave; its
interpreter flags are not looked at.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GONE_WITHIN_S = 20.0


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


# --- the process that stands by -------------------------------------------------------------------


def answer(**news: Any) -> None:
    os.write(1, json.dumps(news).encode() + b"\n")


def stand_by() -> dict[str, Any]:
    """Wait for orders. This returns in a job's launcher only, with its order."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answer(ready=True)
    unread, watched, launcher = b"", -1, -1
    while True:
        ready, _, _ = select.select([0] if watched < 0 else [0, watched], [], [])
        if watched in ready:
            os.close(watched)
            watched = -1
            answer(ended=os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1]))
        if 0 not in ready:
            continue
        unread += os.read(0, 1 << 16)
        if not unread:
            end_all()
            os._exit(0)
        while b"\n" in unread:
            line, unread = unread.split(b"\n", 1)
            order = json.loads(line)
            if order.get("end"):
                if watched >= 0:
                    os.close(watched)
                    watched = -1
                answer(gone=end_all())
                continue
            launcher = os.fork()
            if not launcher:
                return order
            watched = os.pidfd_open(launcher)
            answer(began=launcher)


def descendants() -> list[int]:
    """Return the descendants of this process, also those that are dead and not reaped yet."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            children.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(
                int(path.parent.name)
            )
    found, todo = [], [os.getpid()]
    while todo:
        more = children.get(todo.pop(), [])
        found += more
        todo += more
    return found


def end_all() -> int:
    """Kill and wait, until there is no child left: orphans become this process's children.

    Returns how many were waited for.
    """
    count, until_s = 0, time.monotonic() + GONE_WITHIN_S
    while time.monotonic() < until_s:
        for pid in descendants():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                count += 1
        except ChildProcessError:
            return count
        time.sleep(0.005)
    raise SystemExit(f"processes that do not end: {descendants()}")


# --- a job's launcher, and the process beside it that forks its workers ---------------------------


def begin(order: dict[str, Any]) -> list[str]:
    """Start the workers. This returns in each worker only, with its command line."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    log, nothing = (
        os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        os.open(os.devnull, os.O_RDONLY),
    )
    for fd, onto in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(fd, onto)
    os.environ.update(order["env"])
    launcher = os.getpid()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        return fork_workers(theirs, launcher)
    theirs.close()
    run_torchrun(order["argv"], ours)
    return []


def fork_workers(line: socket.socket, launcher: int) -> list[str]:
    """Fork each worker twice, so that the launcher becomes its parent."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    while True:
        said, fds, _, _ = socket.recv_fds(line, 1 << 20, 2)
        if not said:
            os._exit(0)
        reading, writing = os.pipe()
        between = os.fork()
        if not between:
            worker = os.fork()
            if not worker:
                line.close()
                os.close(reading)
                os.close(writing)
                return become_worker(json.loads(said), fds, launcher)
            os.write(writing, str(worker).encode())
            os._exit(0)
        os.waitpid(between, 0)
        line.send(os.read(reading, 32))
        for fd in (reading, writing, *fds):
            os.close(fd)


def become_worker(order: dict[str, Any], fds: list[int], launcher: int) -> list[str]:
    while os.getppid() != launcher:
        time.sleep(0.001)
    prctl(PR_SET_CHILD_SUBREAPER, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    for fd, onto in zip(fds, (1, 2), strict=True):
        os.dup2(fd, onto)
        os.close(fd)
    os.environ.clear()
    os.environ.update(order["env"])
    return [word for word in order["args"][1:] if word != "-u"]


class Forked:
    """A forked process that answers what torchrun asks of a `subprocess.Popen`."""

    line: socket.socket  # to the process that forks

    def __init__(
        self, args: list[str], env: dict[str, str], stdout: Any, stderr: Any, **_: Any
    ) -> None:
        fds = [1 if stdout is None else stdout.fileno(), 2 if stderr is None else stderr.fileno()]
        socket.send_fds(self.line, [json.dumps({"args": list(args), "env": env}).encode()], fds)
        self.args, self.pid = args, int(self.line.recv(32))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until_s = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() >= until_s:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def run_torchrun(argv: list[str], line: socket.socket) -> None:
    """Run torchrun's main and end the process, with a traceback and exit code 1 for a failure."""
    Forked.line = line
    subprocess_handler.Popen = Forked
    sys.argv = ["torchrun", *argv]
    try:
        run.main(argv)
        leave(None)
    except SystemExit as left:
        leave(left.code)
    except BaseException:  # boundary: the launcher's end
        sys.excepthook(*sys.exc_info())
        leave(1)


def leave(code: object) -> None:
    """End this process without taking the interpreter down.

    To free what was forked with everything imported takes seconds, in which peers would wait.
    """
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    import torch

    # The flight recorder's stacks ask for codecache: two seconds, once.
    from torch._inductor import codecache  # noqa: F401
    from torch.distributed import device_mesh, run  # noqa: F401
    from torch.distributed.elastic.agent.server import local_elastic_agent  # noqa: F401
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
    from torch.distributed.elastic.rendezvous import (
        c10d_rendezvous_backend,  # noqa: F401
        dynamic_rendezvous,  # noqa: F401
        registry,  # noqa: F401
    )
    from torch.utils import data  # noqa: F401

    torch.set_num_threads(1)
    gc.freeze()
    sys.argv = begin(stand_by())
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        leave(None)
    except SystemExit as left:
        leave(left.code)
    except BaseException:  # boundary: the worker's end
        sys.excepthook(*sys.exc_info())
        leave(1)
