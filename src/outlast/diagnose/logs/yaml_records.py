"""The part of YAML in which tools print a record: mappings of mappings and texts.

A text is plain, quoted in one of two ways, or a block after `|`; a plain or quoted one may go on
over several lines. Lists, anchors and types are not read: a list's lines are passed over, and a
number stays a text.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_DEPTH_MAX = 16
_KEY = re.compile(r"(?P<indent> *)(?P<key>[\w.][\w./@-]{0,200}):(?: +(?P<value>\S.*)|\s*$)")
_BLOCK = re.compile(r"(?P<kind>[|>])(?:(?P<more>[1-9])?[+-]?|[+-](?P<behind>[1-9]))")
_ESCAPED = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|U([0-9A-Fa-f]{8})|u([0-9A-Fa-f]{4})|(.))")
_LETTERS = {
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    "N": "\x85",
    "_": "\xa0",
    "L": "\u2028",
    "P": "\u2029",
}


def read_mapping(lines: Sequence[str]) -> dict[str, Any]:
    """Return the mapping that the lines hold; empty if they hold none."""
    return _Reading(lines).mapping(0, 0)


@dataclass(slots=True)
class _Reading:
    lines: Sequence[str]
    at: int = 0

    def mapping(self, indent: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.strip() and _indent(line) < indent:
                break
            self.at += 1
            key = _KEY.fullmatch(line)
            if key is None or _indent(line) > indent:
                continue  # an element of a list, or what belongs to one
            found[key["key"]] = self._value(key["value"], indent, depth)
        return found

    def _value(self, value: str | None, indent: int, depth: int) -> Any:
        if value is None:
            inner = next(filter(str.strip, self.lines[self.at : self.at + 2]), "")
            if _indent(inner) > indent and depth < _DEPTH_MAX:
                return self.mapping(_indent(inner), depth + 1)
            return None
        if block := _BLOCK.fullmatch(value.rstrip()):
            more = block["more"] or block["behind"]
            return self._block(indent, int(more) if more else None)
        if value[0] in "'\"":
            return self._quoted(value)
        parts = [value.rstrip()]
        while self._goes_on(indent):
            parts.append(self._next().strip())
        return _folded(parts)

    def _goes_on(self, indent: int) -> bool:
        """Return True if the next line belongs to a text whose key has this indentation."""
        if self.at >= len(self.lines):
            return False
        line = self.lines[self.at]
        return not line.strip() or _indent(line) > indent

    def _next(self) -> str:
        self.at += 1
        return self.lines[self.at - 1]

    def _block(self, indent: int, more: int | None) -> str:
        held: list[str] = []
        while self._goes_on(indent):
            held.append(self._next())
        margin = indent + more if more else min(map(_indent, filter(str.strip, held)), default=0)
        return "\n".join(line[margin:] for line in held).rstrip("\n")

    def _quoted(self, value: str) -> str:
        quote, rest = value[0], value[1:]
        parts: list[str] = []
        while True:
            end = _end_of_quoted(rest, quote)
            if end is not None or self.at >= len(self.lines):
                parts.append(rest[:end])
                break
            parts.append(rest)
            rest = self._next().lstrip()
        if quote == "'":
            return _folded(parts).replace("''", "'")
        return _ESCAPED.sub(_unescaped, _folded(parts))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _end_of_quoted(text: str, quote: str) -> int | None:
    at = 0
    while at < len(text):
        if quote == '"' and text[at] == "\\":
            at += 2
        elif text[at] != quote:
            at += 1
        elif quote == "'" and text[at + 1 : at + 2] == "'":
            at += 2
        else:
            return at
    return None


def _folded(parts: Sequence[str]) -> str:
    """Return the text of several lines: an end of line is a space, an empty line is an end."""
    text = parts[0]
    empty_count = 0
    for part in parts[1:]:
        if not part.strip() and part is not parts[-1]:
            empty_count += 1
            continue
        if _is_cut(text):
            text = text[:-1] + "\n" * empty_count + part
        else:
            text = text.rstrip(" ") + ("\n" * empty_count or " ") + part
        empty_count = 0
    return text


def _is_cut(text: str) -> bool:
    """Return True if a backslash at the end of the line joins it with the next one."""
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2] or found[3]
    if code is None:
        return _LETTERS.get(found[4], found[4])
    return chr(int(code, 16)) if int(code, 16) < 0x110000 else "\ufffd"
