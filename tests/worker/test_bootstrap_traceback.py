"""Which part of a traceback is shown to the person who wrote the script."""

from __future__ import annotations

import traceback
from types import TracebackType

from outlast.engine.commit.commands import Flow, ForgetPhase, drive
from outlast.runtime.worker.start import bootstrap


def raised(call: object) -> TracebackType | None:
    """Return the traceback of the exception that a flow of outlast raises when it carries out
    `call`.
    """

    def flow() -> Flow[None]:
        yield ForgetPhase()

    try:
        drive(flow(), call)  # type: ignore[arg-type]
    except Exception as error:
        return error.__traceback__
    raise AssertionError


def names(where: TracebackType | None) -> list[str]:
    shown = bootstrap._without_our_frames(where)
    return [frame.name for frame in traceback.extract_tb(shown)]


def test_frames_of_outlast_between_those_of_the_script_are_left_out() -> None:
    """Method: a flow calls back into the script, as a commit does for the work of
    `step.on_commit`.
    """

    def callback(command: object) -> None:
        raise KeyError("metrics")

    assert "drive" in [frame.name for frame in traceback.extract_tb(raised(callback))]
    shown = names(raised(callback))
    assert (shown[0], shown[-1]) == ("raised", "callback")
    assert "drive" not in shown


def test_an_error_of_outlast_itself_keeps_all_frames() -> None:
    assert names(raised(None))[-1] == "drive", "None cannot be called"
