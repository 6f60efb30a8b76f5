"""The process that does the imports once, and forks workers from then on.

`outlast.runtime.worker.start.zygote FD LAUNCHER_PID PADDING`: FD is one end of a SOCK_SEQPACKET
pair, with the packets of runtime/network/packets.py. These are the requests {"do": ...} and their
answers:

    parse    argv                            what `arguments.parse` says
    prepare  preload, first_path             {"ready": true, "imports_s": s}, {"preload": message}
                                             or {"unfit": reason}
    ping                                     {"pong": true}
    fork     spec + channel, gate,           {"forked": worker, "pid": pid}
             stdout, stderr                  or {"failed": worker, "error": text}

If it ends by an exception of its own, it first sends {"last_words": text}. It runs one thread, uses
no device, and ends with the launcher. It forks twice, and the middle process ends at once. So the
worker becomes the child of the launcher (a subreaper), and does not depend on the zygote.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing.process
import os
import random
import signal
import socket
import sys
import time
from typing import Any

from outlast.model.limits import ADOPTION_DEADLINE_S
from outlast.model.texts import cut_at_word
from outlast.runtime.child import ChildSpec, spec_from_json
from outlast.runtime.clock import now_s
from outlast.runtime.linux import die_with, flush_c_streams, open_descriptors, set_title
from outlast.runtime.network.packets import receive_packet, send_packet


class Zygote:
    """Answer requests until the launcher closes the socket.

    In a child, `serve` returns its (spec, channel) instead of None.
    """

    def __init__(self, sock: socket.socket, *, launcher_pid: int) -> None:
        self._sock = sock
        self._launcher_pid = launcher_pid
        self._environment = dict(os.environ)
        self._descriptors = open_descriptors()
        self._libraries: set[int] = set()

    def serve(self) -> tuple[ChildSpec, int] | None:
        while (packet := receive_packet(self._sock)) is not None:
            request, fds = packet
            if request["do"] == "fork":
                child = self._fork(request["spec"], fds)
                if child is not None:
                    return child
                for fd in fds:
                    os.close(fd)
            elif request["do"] == "ping":
                send_packet(self._sock, {"pong": True})
            elif request["do"] == "parse":
                arguments = importlib.import_module("outlast.runtime.worker.script.arguments")
                send_packet(self._sock, arguments.parse_in_fork(request["argv"]))
            else:
                send_packet(self._sock, self._prepare(request["preload"], request["first_path"]))
        return None

    def _prepare(self, preload: list[str], first_path: str) -> dict[str, Any]:
        began_s = now_s()
        # Modules are never freed. The garbage collector would go through all of them again and
        # again while more are loaded, for a sixth of the time that the imports take.
        gc.disable()
        imports = importlib.import_module("outlast.runtime.worker.start.imports")
        path = list(sys.path)
        sys.path.insert(0, first_path)
        try:
            imports.import_all(preload)
        except imports.PreloadFailed as failed:
            return {"preload": str(failed)}
        finally:
            sys.path[:] = path
            gc.enable()
        self._libraries = open_descriptors() - self._descriptors
        unfit = imports.unfit_to_fork()
        return {"unfit": unfit} if unfit else {"ready": True, "imports_s": now_s() - began_s}

    # --- forking ----------------------------------------------------------------------------------

    def _fork(self, value: dict[str, Any], fds: list[int]) -> tuple[ChildSpec, int] | None:
        sys.stdout.flush()
        sys.stderr.flush()
        flush_c_streams()
        pipe: tuple[int, ...] = ()
        try:
            reader, writer = pipe = os.pipe()
            middle = os.fork()
        except OSError as error:
            for fd in pipe:
                os.close(fd)
            send_packet(self._sock, {"failed": value["worker"], "error": f"fork: {error.strerror}"})
            return None
        if middle == 0:
            self._sock.close()
            return self._in_middle(value, fds, writer)
        os.close(writer)
        said = os.read(reader, 32)
        os.close(reader)
        _, status = os.waitpid(middle, 0)
        if said.isdigit():
            send_packet(self._sock, {"forked": value["worker"], "pid": int(said)})
        else:
            why = os.strerror(-int(said)) if said else f"never came to it: wait status {status}"
            send_packet(self._sock, {"failed": value["worker"], "error": f"the second fork: {why}"})
        return None

    def _in_middle(
        self, value: dict[str, Any], fds: list[int], writer: int
    ) -> tuple[ChildSpec, int]:
        """Fork the worker from the middle process.

        Two processes come here, and neither returns into the zygote's loop: one exits, the other is
        the worker. The worker's pid, or -errno, goes into `writer`.
        """
        middle = os.getpid()
        try:
            pid = os.fork()
            if pid:
                os.write(writer, str(pid).encode())
                os._exit(0)
        except OSError as error:
            os.write(writer, str(-(error.errno or 0)).encode())
            os._exit(1)
        try:
            return self._become(spec_from_json(value), fds, middle)
        except BaseException as error:  # boundary: a child must not fall back into our loop
            # Nothing of the user's has run. The worker's own stderr is descriptor 2 by now, or
            # still the one in the packet.
            why = f"{type(error).__name__}: {error}"
            text = f"outlast: the worker could not be set up: {why}\n".encode()
            with contextlib.suppress(OSError):
                os.dup2(fds[3], 2)
            os.write(2, text)
            os._exit(1)

    def _become(self, spec: ChildSpec, fds: list[int], middle: int) -> tuple[ChildSpec, int]:
        """Turn a copy of the zygote into a process of its own.

        The middle process takes a while to end, so this waits for the launcher last.
        """
        bootstrap = importlib.import_module("outlast.runtime.worker.start.bootstrap")
        channel, gate, stdout, stderr = fds
        os.setsid()
        _reset_signals()
        stdin = os.open(os.devnull, os.O_RDONLY)
        for number, fd in enumerate((stdin, stdout, stderr)):
            os.dup2(fd, number)
        for fd in open_descriptors() - self._libraries - {0, 1, 2, channel, gate}:
            os.close(fd)  # descriptors that imported libraries have opened for themselves stay open
        self._set_environment(spec)
        importlib.import_module("outlast.runtime.worker.process.gpu_count").ask_directly()
        _reseed()
        _set_threads(spec.env.get("OMP_NUM_THREADS", ""))
        bootstrap.settle(spec)
        _await_adoption(self._launcher_pid, middle)
        bootstrap.await_gate(gate)
        return spec, channel

    def _set_environment(self, spec: ChildSpec) -> None:
        """Set the child's environment in addition to what the imports have set.

        A fresh process would have both.
        """
        imported = {
            name: value
            for name, value in os.environ.items()
            if self._environment.get(name) != value
        }
        os.environ.clear()
        os.environ.update(imported)
        os.environ.update(spec.env)


def _await_adoption(launcher_pid: int, middle: int) -> None:
    """Wait until the middle process is gone and the launcher is the parent.

    Only then can this process ask to die with the launcher. Raises OSError if that is not possible.
    """
    end_s = now_s() + ADOPTION_DEADLINE_S
    while (parent := os.getppid()) != launcher_pid:
        if parent != middle:
            raise ProcessLookupError(f"the launcher {launcher_pid} is gone")
        if now_s() > end_s:
            raise TimeoutError(
                f"{middle}, which forked it, has not ended within {ADOPTION_DEADLINE_S:.0f} s"
            )
        time.sleep(0.0001)
    try:
        die_with(launcher_pid)
    except ProcessLookupError:
        os._exit(1)


def _reset_signals() -> None:
    """Remove the handlers that imports installed. SIGINT gets Python's own, as in a fresh
    interpreter.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _reseed() -> None:
    """Seed everything that a fresh process draws from the system.

    A fork would have the zygote's copy.
    """
    import numpy
    import torch

    random.seed()
    numpy.random.seed()
    torch.default_generator.seed()
    multiprocessing.process.current_process().authkey = os.urandom(32)


def _set_threads(wanted: str) -> None:
    """Set torch's threads by its own rule: OMP_NUM_THREADS, or else one per physical core."""
    import torch

    first = wanted.partition(",")[0].strip()
    torch.set_num_threads(int(first) if first.isdigit() and int(first) else _physical_cores())


def _physical_cores() -> int:
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
                cores.add(file.read())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def main(arguments: list[str]) -> int:
    """Run the zygote until it ends. A worker returns from `serve` in a child, and runs here too."""
    fd, launcher_pid = int(arguments[0]), int(arguments[1])
    try:
        die_with(launcher_pid)
    except ProcessLookupError:
        return 1
    set_title(["outlast: zygote"], "outlast-zygote")
    os.set_inheritable(fd, False)
    sock = socket.socket(fileno=fd)
    try:
        child = Zygote(sock, launcher_pid=launcher_pid).serve()
    except (BrokenPipeError, ConnectionResetError):
        return 0  # the launcher has closed the socket
    except Exception as error:
        with contextlib.suppress(OSError):
            send_packet(sock, {"last_words": cut_at_word(f"{type(error).__name__}: {error}", 500)})
        raise
    if child is None:
        return 0
    from outlast.runtime.worker.start import bootstrap

    return bootstrap.child_main(*child)


if __name__ == "__main__":
    # this is this module under its own name, because a worker replaces `__main__`
    from outlast.runtime.worker.start import zygote

    sys.exit(zygote.main(sys.argv[1:]))
