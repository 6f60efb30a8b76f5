"""Every error that outlast raises on purpose.

    OutlastError                exit code 1, carries a hint: what to do about it
    ├── UsageError              2: a flag, a path or a call that cannot work
    │   ├── TransactionError    2: the script uses a step in a way that cannot be repeated
    │   └── StateError          2: something in run.state(...) cannot be saved or restored
    ├── CapacityError           1: memory, disk or processes do not suffice, and how much would
    ├── CorruptError            1: bytes that do not match their checksum or schema
    ├── DivergedError           1: state that was the same on all ranks is not so any more
    ├── RunFolderError          2: the run folder is in use, missing, or of another version
    └── RunFailed               1: the run ended with a verdict

    StepInterrupted             BaseException: unwinds a step that has to be repeated; never shown
                                to a user
    Reenter                     BaseException: unwinds the function given to outlast.main

Errors are about input and the world. A bug in outlast is an AssertionError.
"""

from __future__ import annotations


class OutlastError(Exception):
    """Base of all errors; `hint` says what to do, `exit_code` is what the process ends with."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n\nhint: {self.hint}" if self.hint else message


class UsageError(OutlastError):
    exit_code = 2


class TransactionError(UsageError):
    pass


class StateError(UsageError):
    pass


class CapacityError(OutlastError):
    pass


class CorruptError(OutlastError):
    pass


class DivergedError(OutlastError):
    pass


class RunFolderError(UsageError):
    pass


class RunFailed(OutlastError):
    pass


class StepInterrupted(BaseException):
    """Unwinds the body of a step that will be repeated. Do not catch it."""


class Reenter(BaseException):
    """Unwinds the function given to `outlast.main`, which is then entered again.

    Do not catch it.
    """
