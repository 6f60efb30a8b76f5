"""Every error that outlast raises on purpose.

    OutlastError                exit code 1, carries a hint: what to do about it
    ├── UsageError              2: a flag, a path or a call that cannot work
    │   ├── TransactionError    2: the script uses a step in a way that cannot be repeated
    │   └── StateError          2: something in run.state(...) cannot be saved or restored
    ├── CapacityError           1: memory, disk or processes do not suffice, and how much would
    ├── CorruptError            1: bytes that do not match their checksum or schema
    ├── DivergedError           1: state that was the same on all ranks is not so any more
    └── RunFolderError          2: the run folder is in use, missing, or of another version

    StepInterrupted             BaseException: unwinds a step that has to be repeated; never shown
                                to a user
    Reenter                     BaseException: unwinds the function given to outlast.main

Errors are about input and the world. A bug in outlast is an AssertionError.
"""

from __future__ import annotations


class OutlastError(Exception):
    """The base class of every error that outlast raises on purpose.

    Catch it to handle all of them in one place. `message` says what is wrong. `hint` says what to
    do about it, or is "". `str(error)` is the message, an empty line and the hint: print that where
    it stands alone, and use `message` within a sentence. `exit_code` is what a process should end
    with; each class has its own.

        try:
            verdict = outlast.diagnose("incident")
        except outlast.OutlastError as error:
            print(error)
            sys.exit(error.exit_code)

    It does not cover a bug in outlast, which is an AssertionError.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message


class UsageError(OutlastError):
    """A flag, a path or a call cannot work as it was given.

    Nothing was changed by it. Correct what the message names, as the hint says, and try again.
    """

    exit_code = 2


class TransactionError(UsageError):
    """The script uses a step in a way that cannot be repeated, or asks a step for what it does not
    have.

    Examples are a block that is entered twice, and `step.batch` without a loader. The launcher ends
    the run, because every rank runs the same script. Change the line that the message names.
    """


class StateError(UsageError):
    """Something in `run.state(...)` cannot be saved or restored, or does not fit what was saved.

    Examples are an object without `state_dict()`, a second loader, and a tensor that changes its
    shape between two steps. Change what the message names, or leave it out of the state.
    """


class CapacityError(OutlastError):
    """Memory, disk space or processes do not suffice.

    The message says how much is needed, and how much there is. Make room, or save less, as the hint
    says.
    """


class CorruptError(OutlastError):
    """Bytes that were read do not match their checksum or their schema.

    A run goes on from an older copy where it has one. Otherwise restore the file that the message
    names, or remove it.
    """


class DivergedError(OutlastError):
    """State that was the same on all ranks is not the same any more.

    The run ends, because it is not known which rank is right. The message names the step, the ranks
    and the tensors. Find what differs between these ranks, and go on from a checkpoint before it.
    """


class RunFolderError(UsageError):
    """The run folder is in use, is missing, or was written by another version of outlast.

    Nothing in it was changed. The hint says which folder, launcher or version to use instead.
    """


class StepInterrupted(BaseException):
    """Unwinds the body of a step that will be repeated. Do not catch it."""


class Reenter(BaseException):
    """Unwinds the function given to `outlast.main`, which is then entered again.

    Do not catch it.
    """


def whole_message_of(error: BaseException) -> str:
    """Return the text of an error without its hint. For an OSError it has number and path."""
    return error.message if isinstance(error, OutlastError) else str(error)


def message_of(error: Exception) -> str:
    """Return the text of an error for the middle of a sentence.

    It has no hint. For an OSError it has no number and no path.
    """
    if isinstance(error, OutlastError):
        return error.message
    return (isinstance(error, OSError) and error.strerror) or str(error)
