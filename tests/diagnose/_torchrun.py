"""The table of failures that torchrun prints when a job is over, as torch 2 writes it."""

from __future__ import annotations

_WIDTH = 60


def failure_table(*, first: str, other: str) -> str:
    """Both of `failed`: the failure that was observed first, and another one."""
    line, end = "-" * _WIDTH, "=" * _WIDTH
    return (
        f"{end}\ntrain.py FAILED\n{line}\nFailures:\n[1]:\n{other}{line}\nRoot Cause (first"
        f" observed failure):\n[0]:\n{first}{end}\n"
    )


def failed(*, rank: int, pid: int, exit_code: int, said: str, second: int) -> str:
    """One entry. `second`: of the minute in which the job ended."""
    return (
        f"  time      : 2026-01-02_03:04:{second:02}\n  host      : n1\n  rank      : {rank}"
        f" (local_rank: {rank})\n  exitcode  : {exit_code} (pid: {pid})\n  error_file: <N/A>\n "
        f" traceback : {said}\n"
    )
