"""What a worker leaves behind for whoever asks why it hung: the stacks of its threads, and a copy
of torch's flight recorder.

When the agent asks whether anybody is there (a ping comes before each verdict on a hang), the
listener's thread answers, and then writes both down: stacks into `evidence/stacks-<worker>.txt` of
the run folder, the recorder into the vault. One that cannot answer, because a call holds the
interpreter lock, is condemned; right before it is killed the agent sends it STACKS_SIGNAL, and
faulthandler writes its stacks from the signal's handler, for which the lock is not needed.

Why not faulthandler.dump_traceback_later, armed all the time? It reads the frames of threads that
run. A process that is only slow may not outlive that: Python 3.11 ends by SIGSEGV after some
hundred such dumps while it computes, from the timer's thread and from a signal alike. So it is left
to those that are about to be killed anyway, and stand still.

Not promised: stacks of a process that is stopped (SIGSTOP) or stands in the kernel: /proc tells
about those.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import traceback
from pathlib import Path

from outlast.model import limits


class Witness:
    """`begin` once, in the process that it is about; `testify` whenever it is asked.

    `folder`: the run folder's evidence.
    """

    def __init__(self, folder: Path, recorder: Path, worker: int) -> None:
        self._path = folder / f"stacks-{worker}.txt"
        self._recorder = recorder
        self._file = -1
        self._busy = threading.Lock()

    def begin(self) -> None:
        """A disk that refuses takes the stacks away, and nothing else."""
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
        """In a thread of its own: nobody waits.

        Supervision boundary: evidence is not worth an error.
        """
        threading.Thread(target=self._testify, name="outlast-witness", daemon=True).start()

    def _testify(self) -> None:
        if not self._busy.acquire(blocking=False):
            return  # asked again before it was done
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
    """Of all threads but outlast's own, the main one first, as faulthandler writes them."""
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
    """The flight recorder of gloo or NCCL, as JSON; b"" where this torch has none, or nothing in
    it.
    """
    c10d = sys.modules.get("torch._C._distributed_c10d")
    for name in ("_dump_nccl_trace_json", "_dump_fr_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None and b'"entries"' in (text := bytes(dump())):
            return text
    return b""
