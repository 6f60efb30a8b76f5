"""Lines of a log that are source code: many programs print themselves before they start.

Such lines hold the same words as a failure, but report none: `raise ValueError(...)`, `except X:`,
`assert x, f"loss is nan"`, `print("CUDA out of memory")`. An exception that happened stands as
`Name: text` at the beginning of a line (or after a launcher's label), under a traceback.

Below the text of a warning, Python prints the line of source that gave it, indented by two.

A line is source if its form leaves no doubt (`_STRONG`). It is also source if most lines around it
look like source, and it is indented, a comment, an assignment or a call itself. A line may begin
with a time or with the name of an exception. It is then never taken for source because of its
surroundings.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

NEIGHBOURS = 6  # lines before and after that are looked at
NEIGHBOURS_MIN = 4  # of these lines, at least, must look like source
SHARE = 0.6

_LABEL = re.compile(
    r"^\s{0,4}(?:\[[\w ,=.-]{1,24}\](?:<\w{1,8}>)?:? ?|\d{1,5}: |[+-](?=[ \t\w])(?!\d)|>>> ?)"
)
_STRONG = re.compile(
    r"^\s{0,80}(?:raise\b(?: [\w.]{1,80}\b(?:\(|$| from )|$)"
    r"|except\b(?: ?\(?[\w., ]{1,120}\)?(?: as \w{1,40})?)? ?:(?: |$)"
    r"|assert\b.{1,200}, ?[fr]{0,2}[\"']"
    r"|assert [\w.(\[]{1,80}.{0,120}(?:[=!<>]=?|\bis\b|\bin\b|\))"
    r"|(?:self\.)?(?:_?logger|logging|log|print\w{0,4}|warnings|sys\.(?:exit"
    r"|stderr\.write))(?:\.\w{1,20})?\("
    r"|(?:if|elif|while|with|for|def|class|try|finally|else"
    r"|async def)\b.{0,200}:\s{0,4}(?:#.{0,200})?$"
    r"|return [\w.(\[{\"'].{0,200}|from [\w.]{1,80} import |import [\w.]{1,60}(?: as \w{1,40})?$"
    r"|(?:torch_)?check(?:_\w{1,10})?\("
    r"|[a-z_][\w.]{0,60} = [fr]?[\"'].{0,300}[\"']$"
    r"|@[\w.]{1,60}(?:\(|$)|throw \w{1,40}|catch \()",
    re.IGNORECASE,
)
_WEAK = re.compile(
    r"^\s{0,80}(?:#|//|\"\"\"|'''|[A-Za-z_][\w.]{0,60}(?:\[[^\]]{0,60}\])?(?:: [\w\[\], "
    r"]{1,40})? [-+*/|]?= ?\S"
    r"|[A-Za-z_][\w.]{0,80}\(.{0,200}[(,)\]}]$|[)\]}]+,?$|(?:pass|break|continue|yield)\b"
    r"|[fr]?[\"'].{0,200}[\"'],?\)?$)"
)
_CALL = re.compile(r"^\s{0,80}(?:\w{1,40} = )?[A-Za-z_]\w{0,40}(?:\.\w{1,40}){1,6}\(.{0,300}\)$")
_NAMES_ERROR = re.compile(r"^\s{0,80}[\w.]{1,160}(?:Error|Exception|Warning)\(")
_WARNED = re.compile(r"^\S{1,300}:\d{1,7}: (?:\w{1,40}\.){0,6}\w{0,40}Warning: ")
_INDENTED = re.compile(r"^(?: {4}|\t)")
_SAID = re.compile(
    r"^(?:\[?\w{0,3} ?\d{4}[-/]\d\d|\[\s{0,6}\d{1,9}\.\d{4,9}\]|<\d|[IWEF]\d{4} \d\d:"
    r"|(?:[A-Za-z_]\w{0,40}\.){0,6}[A-Z]\w{1,60}(?:Error|Exception|Exit|Interrupt|Warning): )"
)


def is_source(text: str, before: Sequence[str], after: Sequence[str] = ()) -> bool:
    """Return True for a line of source code, judged by itself and by the lines around it."""
    body = _body(text)
    if _SAID.match(body):
        return False
    if _STRONG.match(body) or (_CALL.match(body) and not _NAMES_ERROR.match(body)):
        return True
    if _is_below_a_warning(body, before):
        return True
    if not (_INDENTED.match(body) or _WEAK.match(body)):
        return False
    return _are_source(before) or _are_source([*before, *after])


def _is_below_a_warning(body: str, before: Sequence[str]) -> bool:
    """Return True for the line of source that Python prints below the text of a warning."""
    if not body.startswith("  ") or body.startswith("   "):
        return False
    for above in map(_body, reversed(before)):
        if above.startswith("  "):
            return False  # the warning's line of source came already
        if _WARNED.match(above):
            return True
    return False


def _are_source(lines: Sequence[str]) -> bool:
    near = [one for one in map(_body, lines) if one.strip()]
    like = sum(
        1 for one in near if not _SAID.match(one) and (_STRONG.match(one) or _WEAK.match(one))
    )
    return like >= NEIGHBOURS_MIN and like >= SHARE * len(near)


def _body(text: str) -> str:
    """Return the line without a launcher's label or a diff's mark."""
    found = _LABEL.match(text[:120])
    return (text[found.end() :] if found else text)[:400]
