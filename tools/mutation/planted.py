"""A mutant: the package with one place changed.

A place is named by its source text. It is looked for token by token, so that neither line breaks
nor quotes nor a comma at the end of a list matter: a formatter may lay the code out as it likes.
"""

from __future__ import annotations

import ast
import io
import token
import tokenize
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "outlast"
_LAYOUT = {
    token.NEWLINE,
    token.NL,
    token.INDENT,
    token.DEDENT,
    token.COMMENT,
    token.ENDMARKER,
}


@dataclass(frozen=True)
class Mutant:
    """`old` stands once in the file, and becomes `new`; or `text` is the whole file, changed.

    `number`: the number of a condition that is turned round; -1 for all other mutants.
    """

    name: str
    file: str
    old: str = ""
    new: str = ""
    text: str = ""
    number: int = -1

    def changed(self) -> str:
        """Return the text of the file with its place changed."""
        if self.text:
            return self.text
        source = (SOURCE / self.file).read_text()
        places = find(source, self.old)
        assert len(places) == 1, f"{self.name}: {self.file} has its place {len(places)} times"
        begin, end = places[0]
        return source[:begin] + self.new.lstrip(" ").rstrip() + source[end:]


def find(source: str, wanted: str) -> list[tuple[int, int]]:
    """Return where `wanted` stands in `source`: each place from its first to behind its last
    character.
    """
    there, words = _tokens(source), [text for text, _, _ in _tokens(wanted)]
    texts = [text for text, _, _ in there]
    return [
        (there[at][1], there[at + len(words) - 1][2])
        for at in range(len(texts) - len(words) + 1)
        if texts[at] == words[0] and texts[at : at + len(words)] == words
    ]


def _tokens(source: str) -> list[tuple[str, int, int]]:
    """Return what the source says, without its layout: each word, and where it begins and ends."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    out: list[tuple[str, int, int]] = []
    for one in _generated(source):
        if one.type in _LAYOUT or not one.string:
            continue
        begin = starts[one.start[0] - 1] + one.start[1]
        end = starts[one.end[0] - 1] + one.end[1]
        text = one.string
        if one.type == token.STRING:
            text = _same_quotes(text)
            if out and out[-1][0][:1] == "'" and text[:1] == "'":  # written in two parts
                text, begin = out[-1][0][:-1] + text[1:], out[-1][1]
                out.pop()
        elif text in ")]}" and out and out[-1][0] == ",":
            out.pop()  # a comma that the layout asks for
        out.append((text, begin, end))
    return out


def _generated(source: str) -> list[tokenize.TokenInfo]:
    """Return the tokens of a part of a program, which may end in the middle of anything."""
    out: list[tokenize.TokenInfo] = []
    try:
        for one in tokenize.generate_tokens(io.StringIO(source).readline):
            out.append(one)  # noqa: PERF402  # those before an error are wanted too
    except (tokenize.TokenError, IndentationError):
        pass
    return out


def _same_quotes(text: str) -> str:
    """Return a plain string as `repr` writes it; an f-string stays as it is written."""
    return repr(ast.literal_eval(text)) if text[:1] in "'\"" else text
