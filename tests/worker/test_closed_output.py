"""What a script does to its own output streams does not end the run."""

from __future__ import annotations

import io
import sys

import pytest

from outlast.runtime.worker.start import bootstrap
from outlast.runtime.worker.steps import logbook


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


class Full(io.StringIO):
    """A stream whose disk is full."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stream", [closed(), None, Full(), object()])
def test_a_line_about_a_step_never_undoes_the_step(
    monkeypatch: pytest.MonkeyPatch, stream: object
) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    logbook._say("step 1 loss 0.5")


def test_a_line_about_a_step_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    logbook._say("step 1 loss 0.5")
    assert capsys.readouterr().out == "step 1 loss 0.5\n"


def test_a_broken_hook_hides_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python prints both errors, and so does a worker. Its exit code is that of the
    script's error.
    """

    def broken(*_: object) -> None:
        raise RuntimeError("the hook is broken")

    monkeypatch.setattr(sys, "excepthook", broken)
    bootstrap._show(KeyError("the script's own"))
    said = capsys.readouterr().err
    for words in (
        "Error in sys.excepthook:",
        "RuntimeError: the hook is broken",
        "Original exception was:",
        'KeyError: "the script\'s own"',
    ):
        assert words in said, said


@pytest.mark.parametrize("stream", [closed(), None, Full()])
def test_an_exit_with_words_ends_with_1_though_nobody_can_read_them(
    monkeypatch: pytest.MonkeyPatch, stream: object
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    assert bootstrap._exit_code(SystemExit("no data")) == 1
    bootstrap._show(ValueError("x"))
