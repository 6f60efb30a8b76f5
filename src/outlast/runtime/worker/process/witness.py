"""The evidence that a worker leaves when it hangs.

It consists of the stacks of its threads, and a copy of torch's flight recorder. A ping of the agent
comes before each verdict on a hang. The listener's thread answers it, and then writes both down:
stacks into `evidence/stacks-<worker>.txt` of the run folder, the recorder into the vault. If a call
holds the interpreter lock, a worker cannot answer, and is given up. Right before it is killed the
agent sends it STACKS_SIGNAL, and faulthandler writes its stacks from the signal's handler, which
does not need the lock.

Why is faulthandler.dump_traceback_later not armed all the time? It reads the frames of threads that
run, and a process that is only slow may not survive that. Python 3.11 ends by SIGSEGV after some
hundred such dumps while it computes, from the timer's thread and from a signal alike. So only
workers that will be killed anyway, and do not move, are dumped in that way.

Stacks of a process that is stopped (SIGSTOP) or waits in the kernel are not promised: /proc shows
these states.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import traceback
from pathlib import Path

from outlast.model import limits


class Witness:
    """Write the evidence of one worker.

    Call `begin` once, in the process that it is about, and `testify` whenever the agent asks.
    `folder` is the run folder's evidence.
    """

    def __init__(self, folder: Path, recorder: Path, worker: int) -> None:
        self._path = folder / f"stacks-{worker}.txt"
        self._recorder = recorder
        self._file = -1
        self._busy = threading.Lock()

    def begin(self) -> None:
        """Open the files. If the disk refuses, there are no stacks, and nothing else changes."""
        try:
            self._file = os.open(
                self._path,
                os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC,
                0o600,
            )
            faulthandler.register(
                limits.STACKS_SIGNAL, file=self._file, all_threads=True, chain=False
            )
        except (OSError, RuntimeError):
            self._file = -1

    def testify(self) -> None:
        """Write the evidence in a separate thread, so that no other thread waits.

        A failure to write evidence is not an error (supervision boundary). That holds for a thread
        that cannot be started, too: the caller is the only thread that receives messages of the
        agent.
        """
        with contextlib.suppress(RuntimeError):  # boundary: "can't start new thread"
            threading.Thread(target=self._testify, name="outlast-witness", daemon=True).start()

    def _testify(self) -> None:
        if not self._busy.acquire(blocking=False):
            return  # it was asked again before the evidence was written
        try:
            self._write_stacks()
            self._copy_recorder()
        except Exception:  # boundary: see above
            return
        finally:
            self._busy.release()

    def _write_stacks(self) -> None:
        if self._file < 0:
            return
        text = _stacks().encode("utf-8", "backslashreplace")
        os.ftruncate(self._file, 0)
        os.write(self._file, text)

    def _copy_recorder(self) -> None:
        if text := _recorded():
            part = self._recorder.with_suffix(".part")
            part.write_bytes(text)
            part.replace(self._recorder)


def _stacks() -> str:
    """Return the stacks of all threads but outlast's own, as faulthandler writes them.

    The main thread comes first.
    """
    frames = sys._current_frames()
    threads = sorted(
        threading.enumerate(), key=lambda thread: thread is not threading.main_thread()
    )
    lines: list[str] = []
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        if frame is None or thread.name.startswith("outlast-"):
            continue
        lines.append(f"Thread 0x{thread.ident:016x} [{thread.name}] (most recent call first):")
        lines += [
            f'  File "{one.filename}", line {one.lineno} in {one.name}'
            for one in reversed(traceback.extract_stack(frame))
        ]
    return "\n".join(lines) + "\n"


def _recorded() -> bytes:
    """Return the flight recorder of gloo or NCCL, as JSON.

    It is b"" if this version of torch has none, or if it is empty.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None and b'"entries"' in (text := bytes(dump())):
            return text
    return b""
