"""Write numbers and sentences in words, for every part that prints something for people.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

ELLIPSIS = "..."
# The reason of an interruption says by these words which node does not acknowledge what it was sent
UNACKNOWLEDGED = "not acknowledged towards node"
# The characters that control a terminal: ESC, C0, C1, DEL, line and paragraph separators, and those
# that change the direction of text or are invisible.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def cut_at_word(text: str, most_count: int) -> str:
    """Return the text in at most `most_count` characters.

    A longer text ends after a whole word, with an ellipsis in place of the rest. Where one word
    takes more than half of the room (a path, a number), that word is cut.
    """
    if len(text) <= most_count:
        return text
    room = max(0, most_count - len(ELLIPSIS))
    ends = [at for at in range(room // 2, room + 1) if text[at].isspace()]  # of words
    return text[: ends[-1] if ends else room].rstrip(" \t\r\n,;:(") + ELLIPSIS


def some(names: Sequence[str], most_count: int = 3) -> str:
    """Return the first names, and the number of the others."""
    left = len(names) - most_count
    return ", ".join(names[:most_count]) + (f" and {left} more" if left > 0 else "")


def duration(seconds: float | None) -> str:
    """Write a duration as 360 us, 3 ms, 1.24 s, 2 m 05 s, 3 h 07 m; "-" for None.

    Only 0 itself is written as 0.
    """
    if seconds is None:
        return "-"
    if 0 < seconds < 0.0005:
        return f"{max(1.0, seconds * 1e6):.0f} us"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    if seconds < 3599.5:
        return f"{int(seconds + 0.5) // 60} m {int(seconds + 0.5) % 60:02d} s"
    minutes = int(seconds / 60 + 0.5)
    return f"{minutes // 60:,} h {minutes % 60:02d} m"


def span(low_s: float, high_s: float) -> str:
    """Write a range of durations, or a single one if both ends look the same."""
    low, high = duration(low_s), duration(high_s)
    return low if low == high else f"{low} to {high}"


def count(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: "1 step", "2 steps". `many` is an irregular plural."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size_words(size_bytes: int) -> str:
    """Write a size: 812 bytes, 23.4 MB, 1.20 GB."""
    number, unit = float(size_bytes), "bytes"
    for bigger in ("kB", "MB", "GB", "TB", "PB"):
        if number < 1000:
            break
        number, unit = number / 1000, bigger
    return f"{size_bytes} bytes" if unit == "bytes" else f"{number:#.3g}".rstrip(".") + f" {unit}"


def recovery_words(one: Mapping[str, Any]) -> str:
    """Say how long an interruption (`Interruption.public`) lasted.

    The result is a range if the beginning of the interruption is not known. It is "open" while the
    interruption goes on, and "-" if the script's steps are not seen.
    """
    if one.get("resumed_s") is None:
        return "open"
    if not one.get("steps_seen", True):
        return "-"
    if one.get("mttr_s") is not None:
        return duration(one["mttr_s"])
    not_before_s = one.get("fault_not_before_s")
    earliest_s = one["detected_s"] if not_before_s is None else not_before_s
    return span(one["resumed_s"] - one["detected_s"], one["resumed_s"] - earliest_s)


def cost_words(one: Mapping[str, Any]) -> str:
    """Return `1 step repeated, 0 lost`: what an interruption cost in steps."""
    if not one.get("steps_seen", True):
        return "steps not seen"
    if one.get("steps_lost", 0) is None:
        return "steps lost: not known, the script's own checkpoint decides"
    repeated = count(one.get("steps_repeated") or 0, "step")
    return f"{repeated} repeated, {one.get('steps_lost') or 0:,} lost"


def escaped(text: str, *, lines: bool = False) -> str:
    """Return the text with control characters written as in Python.

    Every text from a folder, a message or an exception that outlast prints goes through here. With
    `lines`, a newline and a tab stay as they are. Otherwise they become a space.
    """
    if text.isascii() and text.isprintable():  # most texts are
        return text
    text = _CONTROL.sub(_visible, text.replace("\r\n", "\n").rstrip("\r\n"))
    return text if lines else text.replace("\n", " ").replace("\t", " ")


def escaped_all(value: Any) -> Any:
    """Escape every text in a JSON value, keys included. The lines of a text stay."""
    if value is None or isinstance(value, int | float):
        return value  # this cheap test comes first, because a long run has half a million values
    if isinstance(value, str):
        return escaped(value, lines=True)
    if isinstance(value, list | tuple):
        return [escaped_all(one) for one in value]
    if isinstance(value, dict | Mapping):
        return {escaped(str(key)): escaped_all(one) for key, one in value.items()}
    return value


def _visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )
