"""The text of an error as a worker sends it: its last line, its place, and its traceback."""

from __future__ import annotations

import re
import sys
import traceback

from outlast.model import limits
from outlast.model.shorten import end_of
from outlast.model.texts import cut_at_word

_LINE = re.compile(r"\.py:\d+")


def text_with_line(error: BaseException) -> str:
    """Return the text of an error. If it names no line of the script, that line is put in front."""
    text = str(error)
    hooks = sys.modules.get(
        "outlast.runtime.worker.script.hooks"
    )  # the hooks exist only with torch
    if hooks is None or _LINE.search(text.partition("\n")[0]):
        return text
    frames = list(traceback.walk_tb(error.__traceback__))
    line = hooks.innermost_line(frame for frame, _ in reversed(frames)) or hooks.user_line()
    return f"{line}: {text}" if line else text


def one_line(error: BaseException) -> str:
    """Return the last line of the error's traceback, as Python prints it."""
    name, text = type(error).__name__, str(error).strip()
    return cut_at_word(f"{name}: {text.splitlines()[0]}" if text else name, 2000)


def first_line(message: str) -> str:
    """Return the first line of what `sys.exit` was given, cut to the length for a sentence."""
    return cut_at_word(message.strip().partition("\n")[0], 200)


def traceback_end(text: str) -> str:
    """Return the end of a traceback, as long as a message may carry.

    The end is the most useful part.
    """
    return end_of(text, limits.TRACEBACK_MAX_BYTES)
