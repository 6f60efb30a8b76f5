"""Calls of Linux for which Python has no function."""

from __future__ import annotations

import ctypes
import os
import platform
import signal

LOWEST_PRIORITY = 19  # of setpriority(2)
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PF_EXITING = 0x4  # in the flags of /proc/<pid>/stat
_PR_SET_CHILD_SUBREAPER = 36
_IOLBF = 1
_SYSLOG_ACTION_READ_ALL = 3
_SYNC_FILE_RANGE_WRITE = 2
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_FUTEX_CALLS = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_EVERYBODY = 2**31 - 1

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int | bytes) -> None:
    argument: object = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def become_subreaper() -> None:
    """Adopt orphans among this process's descendants, instead of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent_pid: int) -> None:
    """Have the kernel send SIGKILL to this process when the thread that is its parent ends.

    Raises ProcessLookupError if that has ended already.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent_pid:
        raise ProcessLookupError(f"the parent {parent_pid} is gone")


def stop_with(parent_pid: int) -> None:
    """Have the kernel send SIGTERM to this process when the thread that is its parent ends.

    Raises ProcessLookupError if that has ended already.
    """
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent_pid:
        raise ProcessLookupError(f"the parent {parent_pid} is gone")


def start_writeback(fd: int, begin: int, size: int) -> None:
    """Have the kernel begin to write a part of a file to its disk, without waiting for it.

    It is a hint, which some file systems ignore. An fsync has to follow anyway.
    """
    _libc.sync_file_range(fd, ctypes.c_int64(begin), ctypes.c_int64(size), _SYNC_FILE_RANGE_WRITE)


def kernel_log(most_bytes: int) -> bytes:
    """Return the end of the kernel's log. Raises OSError if this process may not read it."""
    text = ctypes.create_string_buffer(most_bytes)
    count = _libc.klogctl(_SYSLOG_ACTION_READ_ALL, text, most_bytes)
    if count < 0:
        raise OSError(ctypes.get_errno(), "syslog")
    return text.raw[:count]


def line_buffer_c_stdout() -> None:
    """Let libraries in C that print flush at the end of each line, as they do on a terminal.

    So a kill loses no complete line.
    """
    _libc.fflush(None)
    _libc.setvbuf(ctypes.c_void_p.in_dll(_libc, "stdout"), None, _IOLBF, 0)


def flush_c_streams() -> None:
    _libc.fflush(None)


def trim_heap() -> None:
    """Give unused memory of the heap back to the kernel. Does nothing without glibc."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def keep_heap() -> None:
    """Keep freed memory in this process, which will soon need the same amount again.

    Otherwise each file that it reads costs calls of the kernel and page faults.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the largest value that glibc accepts
        _libc.mallopt(_M_TRIM_THRESHOLD, 1 << 30)


class _Timespec(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


def has_futex() -> bool:
    """Return whether the two calls below are known for this processor."""
    return _FUTEX != 0


def futex_wait(address: int, seen: int, timeout_s: float) -> None:
    """Sleep while the 32 bits of shared memory at `address` are `seen`.

    The sleep ends when this thread is woken, when a signal comes, or when the time is over. It
    releases the interpreter lock.
    """
    rest = _Timespec(int(timeout_s), int(timeout_s % 1 * 1e9))
    _futex(_FUTEX, address, _FUTEX_WAIT, seen, ctypes.addressof(rest), None, 0)


def futex_wake(address: int) -> None:
    """Wake all processes and threads that sleep on the 32 bits of shared memory at `address`."""
    _futex(_FUTEX, address, _FUTEX_WAKE, _EVERYBODY, None, None, 0)


_FUTEX = _FUTEX_CALLS.get(platform.machine(), 0)
_futex = ctypes.CDLL(None).syscall
_futex.argtypes = (
    ctypes.c_long,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint32,
)


def stat_fields(stat: bytes) -> list[bytes]:
    """Return the fields of a /proc/<pid>/stat from the third one (the state) on.

    The second field, the name, may contain blanks and brackets. The result is empty if the process
    is gone.
    """
    return stat.rpartition(b")")[2].split()


def is_ending(pid: int) -> bool:
    """Return whether a process is about to end, or gone: it is already certain that it will end.

    Its descriptors are closed after the kernel has marked it, and before its end can be waited for.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = stat_fields(file.read())
    except OSError:
        return True
    if len(fields) < 7:
        return True  # it ended while this was read
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & _PF_EXITING)


def is_stopped(pid: int) -> bool:
    """Return True while the kernel holds the process stopped by a signal (SIGSTOP).

    A process that is held by a debugger or a tool for stacks (state t) does not count: that tool
    lets it go on, and may take seconds to read what it needs. The deadlines of its step apply to
    it.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return stat_fields(file.read())[0] == b"T"
    except (OSError, IndexError):  # it is gone
        return False


def set_name(name: str) -> None:
    """Set the name that `ps -o comm` shows for the calling thread, up to 15 bytes.

    From the main thread, it is the name of the process.
    """
    _prctl(_PR_SET_NAME, name.encode()[:15])


def set_title(arguments: list[str], name: str) -> None:
    """Set what `ps` shows: `arguments` as the command line, `name` as the command.

    The command line is cut to the room of the original one.
    """
    set_name(name)
    with open("/proc/self/stat", "rb") as file:
        fields = stat_fields(file.read())
    # arg_start and arg_end: fields 48 and 49 of proc(5)
    start, end = int(fields[45]), int(fields[46])
    if 0 < start < end:
        text = b"\0".join(argument.encode("utf-8", "surrogateescape") for argument in arguments)[
            : end - start - 1
        ]
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def open_descriptors() -> set[int]:
    """Return all descriptors of this process, except the one that is used for this call."""
    found = {int(name) for name in os.listdir("/proc/self/fd")}
    return {fd for fd in found if _is_open(fd)}


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def session_members(session: int) -> list[int]:
    """Return the pids whose session is `session`, the leader included.

    This costs one read per process of the machine.
    """
    members = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = stat_fields(file.read())
        except OSError:
            continue
        if int(fields[3]) == session:
            members.append(int(name))
    return members
