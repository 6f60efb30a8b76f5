"""The way from a bare child process to the user's script, and from its end to an exit code.

`child_main` serves forks of the zygote and spawned processes alike. The script sees what `python
script.py` would give it: sys.argv, sys.path[0], `__main__`, unbuffered streams, its own random
state, and torch's number of threads. A traceback shows only the script's frames.

A fork differs in two ways. PYTHONHASHSEED is the same in all forks, and differs between spawned
processes. NumPy's BLAS stays at one thread.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
import types
from typing import Protocol, cast

from outlast.errors import DivergedError, OutlastError, UsageError
from outlast.runtime.child import ChildSpec, spec_from_json
from outlast.runtime.linux import die_with, line_buffer_c_stdout, set_title
from outlast.runtime.worker.process import forked
from outlast.runtime.worker.start.shadowing import hidden_library

__all__ = ["ChildSpec", "ScriptSession", "SessionStart", "child_main", "spawned_main"]


class ScriptSession(Protocol):
    """The part between the script and the launcher (runtime/worker/member/session.py)."""

    def wait_for_rank(self) -> ChildSpec:
        """Block until this process has a rank. Only kind "warm" calls it."""

    def user_failed(self, error: BaseException) -> None:
        """Report that the script ended with `error`."""

    def exits(self, exit_code: int, message: str) -> None:
        """Note that the script ends by `sys.exit`, with this exit code, and a message or ""."""

    def finish(self, exit_code: int) -> None:
        """Report that the script is over.

        The process ends with `exit_code` after the interpreter's own clean-up.
        """


class SessionStart(Protocol):
    """Start the session of a worker over its socket."""

    def __call__(self, spec: ChildSpec, sock: socket.socket) -> ScriptSession: ...


def child_main(spec: ChildSpec, channel_fd: int, start: SessionStart | None = None) -> int:
    """Run the child that `spec` describes, and return its exit code.

    `start` is `session_start.start` unless a test says otherwise.
    """
    if spec.kind == "store":
        from outlast.runtime.worker.start import store_host

        return store_host.serve(spec, channel_fd)
    if spec.entry == "program":
        return _execute(spec, channel_fd)
    if start is None:
        start = cast(
            SessionStart,
            importlib.import_module("outlast.runtime.worker.start.session_start").start,
        )
    sock = socket.socket(fileno=channel_fd)
    try:
        session = start(spec, sock)
    except BaseException as error:  # boundary: the start of a worker
        # The agent kills a process whose channel is closed, and would not try again then. So the
        # channel stays open until the process has ended.
        sock.detach()
        if not isinstance(error, OutlastError):
            raise
        # The launcher's warning cites the last line.
        print("error:", "; ".join(filter(None, (error.message, error.hint))), file=sys.stderr)
        return error.exit_code
    if spec.kind == "warm":
        spec = session.wait_for_rank()
        os.environ.update(spec.env)
        _title(spec)
    forked.begin_rank()
    exit_code = _run_guarded(spec, session)
    if forked.is_fork():
        return exit_code  # it is not a rank, so its end is not reported
    session.finish(exit_code)
    groups = sys.modules.get("outlast.runtime.worker.communication.groups")
    if groups is not None:
        groups.exit_without_stuck(exit_code)
    return exit_code


# --- the process ----------------------------------------------------------------------------------


def settle(spec: ChildSpec) -> None:
    """Set up streams, folder, title and threads. Nothing of the parent remains visible after this.

    The environment is set already.
    """
    # it was removed meanwhile, and the script may not need it
    with contextlib.suppress(FileNotFoundError):
        os.chdir(spec.cwd)
    line_buffer_c_stdout()
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = _stream(fd, mode, getattr(sys, f"__{name}__"))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    _title(spec)
    _bind_forks()


def _bind_forks() -> None:
    """Let forks of the script's main thread (DataLoader workers) die with it, however it dies.

    Forks of other threads are left alone, because the kernel would end them with the thread.
    Programs that are started with `subprocess` are not affected.
    """
    parent = [0]

    def before() -> None:
        parent[0] = os.getpid() if threading.current_thread() is threading.main_thread() else 0

    def in_child() -> None:
        if parent[0]:
            try:
                die_with(parent[0])
            except ProcessLookupError:
                os._exit(1)

    os.register_at_fork(before=before, after_in_child=in_child)


def _stream(fd: int, mode: str, like: io.TextIOWrapper | None) -> io.TextIOWrapper:
    """Open a stream as `python -u` does. torchrun starts workers in this way."""
    raw = open(fd, mode + "b", buffering=-1 if mode == "r" else 0, closefd=False)  # noqa: SIM115 - lives as long as the process
    encoding, errors = (like.encoding, like.errors) if like else ("utf-8", "surrogateescape")
    return io.TextIOWrapper(raw, encoding=encoding, errors=errors, write_through=mode == "w")  # type: ignore[type-var]


def _title(spec: ChildSpec) -> None:
    name = (
        "outlast-store"
        if spec.kind == "store"
        else f"outlast-{spec.kind}"
        if spec.rank < 0
        else f"outlast-rank{spec.rank}"
    )
    set_title(
        [sys.executable, "-u", *(["-m"] if spec.entry == "module" else []), spec.script, *spec.args]
        if spec.script
        else [name],
        name,
    )


def _execute(spec: ChildSpec, channel_fd: int) -> int:
    # the end of file on the channel is then the end of the program
    os.set_inheritable(channel_fd, True)
    try:
        os.execvpe(spec.script, [spec.script, *spec.args], spec.env)
    except OSError as error:
        print(f"outlast: cannot execute {spec.script}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


# --- the script -----------------------------------------------------------------------------------


def _run_guarded(spec: ChildSpec, session: ScriptSession) -> int:
    """Run the script, and turn every exception that leaves it into an exit code."""
    try:
        _run(spec)
    except SystemExit as left:
        # A rank that exits alone is replaced, like one that dies. Peers are told of a `break` only.
        exit_code = _exit_code(left)
        session.exits(exit_code, left.code if isinstance(left.code, str) else "")
        return exit_code
    except BaseException as error:  # boundary: the user's script
        try:
            _failed(spec, session, error)
        except KeyboardInterrupt as interrupt:
            # Ctrl-C has ended a peer first. It reached this rank while it reported the peer's loss.
            _failed(spec, session, interrupt)
        return 1
    return 0


def _failed(spec: ChildSpec, session: ScriptSession, error: BaseException) -> None:
    """Report the exception that has left the script, and show it."""
    error.__traceback__ = _without_our_frames(error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # another Ctrl-C would only interrupt this report
    if not forked.is_fork():
        session.user_failed(hidden_library(error, _script_folder(spec)) or error)
        _write_error_file(error)
    if isinstance(error, KeyboardInterrupt):
        # Ctrl-C reaches all ranks at once, so the place of each rank has no meaning
        print("KeyboardInterrupt", file=sys.stderr)
        atexit.register(_die_of, signal.SIGINT)
    elif not isinstance(error, UsageError | DivergedError):
        _show(error)  # the launcher reports the others, once for all ranks


def _run(spec: ChildSpec) -> None:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv = [spec.script, *spec.args]
    set_first_path(_script_folder(spec))
    if spec.entry == "module":
        # the function that `python -m` itself calls
        runpy._run_module_as_main(spec.script)  # type: ignore[attr-defined]
    elif _is_package(spec.script):
        runpy._run_module_as_main("__main__", False)  # type: ignore[attr-defined]
    else:
        _run_file(main, os.path.abspath(spec.script))


def _script_folder(spec: ChildSpec) -> str:
    """Return the first entry that the interpreter puts on the path for this script."""
    if spec.entry == "module":
        return spec.cwd
    path = os.path.realpath(os.path.join(spec.cwd, spec.script))
    return path if _is_package(path) else os.path.dirname(path)


def _is_package(path: str) -> bool:
    """Return True if a script is a folder or an archive that contains a `__main__`."""
    return os.path.isdir(path) or path.endswith((".zip", ".pyz"))


def _run_file(main: types.ModuleType, path: str) -> None:
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(
        __file__=path, __cached__=None, __loader__=loader, __package__=None, __spec__=None
    )
    code = loader.source_to_code(loader.get_data(path), path)
    exec(code, main.__dict__)  # tidy: this is what running a script means


def set_first_path(folder: str) -> None:
    """Put `folder` where the interpreter puts the script's folder.

    This is not done with -P or PYTHONSAFEPATH. The zygote has removed its own entry.
    """
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, folder)


def _exit_code(left: SystemExit) -> int:
    if left.code is None:
        return 0
    if isinstance(left.code, int):
        return left.code & 0xFF
    with contextlib.suppress(OSError, ValueError):  # the script may have closed it
        print(left.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> None:
    """Print a traceback with the script's own hook. If that fails, print both, as Python does."""
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except Exception as failed:  # boundary: the script's own hook
        for why, one in (("Error in sys.excepthook:", failed), ("Original exception was:", error)):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                print(why, file=sys.stderr)
            sys.__excepthook__(type(one), one, one.__traceback__)


def _without_our_frames(where: types.TracebackType | None) -> types.TracebackType | None:
    """Remove the frames above the script's first one, and those of outlast in between.

    Work that is given to `step.on_commit` is called from deep within outlast. If the innermost
    frame is outlast's, apart from libraries such as torch, the error is outlast's own, and all
    frames are kept. An error before the script began (a syntax error) keeps none.
    """
    ours = (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
        "<frozen importlib._bootstrap>",
        "<frozen importlib._bootstrap_external>",
    )
    while where is not None and where.tb_frame.f_code.co_filename in ours:
        where = where.tb_next
    frames = []
    while where is not None:
        frames.append(where)
        where = where.tb_next
    names = [one.tb_frame.f_code.co_filename for one in frames]
    code = [name for name in names if name.startswith(_OURS) or _INSTALLED not in name]
    is_ours = bool(code) and code[-1].startswith(_OURS)
    shortened = None
    for one, name in zip(reversed(frames), reversed(names), strict=True):
        if is_ours or not name.startswith(_OURS):
            shortened = types.TracebackType(shortened, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return shortened


_INSTALLED = f"{os.sep}site-packages{os.sep}"
_OURS = os.path.abspath(os.path.join(__file__, *[os.pardir] * 4)) + os.sep


def _write_error_file(error: BaseException) -> None:
    """Write torchrun's error file, unless @record has written it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not path or os.path.exists(path):
        return
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    try:
        with open(path, "w") as file:
            json.dump(
                {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}},
                file,
            )
    except OSError as problem:
        print(f"outlast: cannot write {path}: {problem}", file=sys.stderr)


def _die_of(number: int) -> None:
    """End by the signal itself, as Python does after an uncaught KeyboardInterrupt."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# --- without a zygote -----------------------------------------------------------------------------


def await_gate(gate_fd: int) -> None:
    """Wait until the launcher watches this process, and opens the gate.

    If it cannot watch the process it closes the gate, and the script does not begin.
    """
    opened = os.read(gate_fd, 1)
    os.close(gate_fd)
    if not opened:
        os._exit(0)


def spawned_main(arguments: list[str]) -> int:
    """Run a worker that the launcher started as a program, with its environment and streams.

    The arguments are SPEC_FD CHANNEL_FD GATE_FD.
    """
    spec_fd, channel_fd, gate_fd = map(int, arguments[:3])  # what follows makes room for the title
    with open(spec_fd, "rb") as file:
        file.seek(0)
        spec = spec_from_json(json.loads(file.read()))
    try:
        die_with(spec.launcher_pid)
    except ProcessLookupError:
        return 1
    os.set_inheritable(channel_fd, False)
    await_gate(gate_fd)
    settle(spec)
    return child_main(spec, channel_fd)


if __name__ == "__main__":
    from outlast.runtime.worker.start import bootstrap  # imports this module under its own name

    sys.exit(bootstrap.spawned_main(sys.argv[1:]))
