"""Exports of logs that hold many records on one line, or deep in the answer of a service.

    jq -c ., an array      [{"log": "..."}, {"log": "..."}]
    Loki, query_range      {"status": ..., "data": {"result": [{"stream": ..., "values": [...]}]}}
    Elastic, _search       {"took": 3, "hits": {"hits": [{"_source": ...}]}}
    CloudWatch             {"events": [{"message": ...}]}, {"results": [[{"field": ...}]]}
    Google Cloud           {"entries": [{"textPayload": ...}]}

`open_answer` is given the bytes of a file as they come. Each record becomes one line of JSON, which
`json_lines.py` opens; so the number of a line is that of its record. No more than one record and
one chunk are held at once. A record that is broken or too long is passed over.

Not promised: that a list of records is a log. Where the first records have no message, the file is
left to be read as it is.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from outlast.diagnose.logs.json_lines import open_record

RECORD_CHARACTERS = 1 << 20
BROKEN_MAX = 1000  # records; what has more is no JSON, and the rest is read as plain lines
_HEAD_CHARACTERS = 4096
_LOOKED_AT = 8  # records of which one has to have a message
# An array with each record over many lines is read with its lines' numbers (`exports.py`).
_ARRAY = re.compile(r'\s*(?=\[\s*\{[ \t]*")')
_LIST = re.compile(
    r'"(?:result|results|hits|events|entries|logs|records|items|data)"\s*:\s*(?=\[\s*[\[{])'
)
_BETWEEN = re.compile(r"[\s,]*")
_END = re.compile(r"[}\]],")
_STREAM = re.compile(r'\{\s*"stream"\s*:\s*')
_VALUES = re.compile(r'\s*,\s*"values"\s*:\s*\[')
_DECODER = json.JSONDecoder()


class QueryAnswer:
    """The records of an export. Iterate over it once; `rest` is what then follows its list."""

    def __init__(self, records: Iterator[bytes], text: _Text) -> None:
        self._records = records
        self._text = text

    def __iter__(self) -> Iterator[bytes]:
        return self._records

    @property
    def rest(self) -> bytes:
        """Return the start of the rest of the input. The chunks that were not taken follow it."""
        return self._text.left().encode("utf-8", "replace")


def open_answer(first: bytes, chunks: Iterator[bytes]) -> QueryAnswer | None:
    """Return the records if a file whose bytes begin with `first` is such an export, else None.

    Nothing is taken from `chunks` if the file is not such an export.
    """
    if first.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"[", b"{"):
        return None
    head = first.removeprefix(codecs.BOM_UTF8).decode("utf-8", "ignore")
    begin = _begin(head)
    if begin is None:
        return None
    trial = list(islice(_records(_Text(head, iter(()), begin)), _LOOKED_AT))
    is_longer = not trial and len(head) - begin > RECORD_CHARACTERS // 2
    if not is_longer and not any(open_record(one) for one in trial):
        return None
    text = _Text("", chain((first.removeprefix(codecs.BOM_UTF8),), chunks), begin)
    return QueryAnswer(_records(text), text)


def _begin(head: str) -> int | None:
    """Return where the list of records begins; None if there is none."""
    if array := _ARRAY.match(head):
        return array.end()
    found = _LIST.search(head, 0, _HEAD_CHARACTERS)
    if found is None or _is_read_by_lines(head, found):
        return None
    line, _, more = head.partition("\n")
    # a record of a program's own log, which has a list in it
    return None if more and open_record(line.encode("utf-8", "replace")) else found.end()


def _is_read_by_lines(head: str, found: re.Match[str]) -> bool:
    """Return True for an object that has its list on its second line (`exports.py`)."""
    is_of_objects = head[found.end() + 1 :].lstrip()[:1] == "{"
    return is_of_objects and head.count("\n", 0, found.start()) == 1


class _Text:
    """The text of a file from some place on, of which a part is held."""

    def __init__(self, held: str, chunks: Iterator[bytes], at: int) -> None:
        self.held = held
        self.at = at
        self.broken_count = 0
        self._chunks = chunks
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self) -> bool:
        """Read one more chunk, and drop what was used. Return False at the end."""
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        keep = min(self.at, len(self.held))
        self.held = self.held[keep:] + self._decoder.decode(chunk)
        self.at -= keep
        return True

    def passes(self, pattern: re.Pattern[str]) -> bool:
        """Move past what the pattern matches here."""
        while len(self.held) - self.at < _HEAD_CHARACTERS and self.more():
            pass
        found = pattern.match(self.held, self.at)
        if found is None:
            return False
        self.at = found.end()
        return True

    def begins(self) -> str:
        """Return the letter here, after blanks and commas; "" at the end."""
        while self.at >= len(self.held):
            if not self.more():
                return ""
        self.at = _BETWEEN.match(self.held, self.at).end()  # type: ignore[union-attr]
        return self.held[self.at : self.at + 1] or (self.begins() if self.more() else "")

    def value(self) -> Any:
        """Return the value here and move past it; None if it is broken or too long."""
        while True:
            try:
                found, self.at = _DECODER.raw_decode(self.held, self.at)
            except (ValueError, RecursionError):
                if len(self.held) - self.at > RECORD_CHARACTERS or not self.more():
                    break
            else:
                return found
        self.broken_count += 1
        end = _END.search(self.held, self.at)
        self.at = len(self.held) if end is None else end.end()
        return None

    def left(self) -> str:
        """Return what is held of the lines after this one."""
        while "\n" not in self.held[self.at :]:
            self.at = len(self.held)
            if not self.more():
                return ""
        self.at = self.held.index("\n", self.at) + 1
        while len(self.held) - self.at < _HEAD_CHARACTERS and self.more():
            pass
        return self.held[self.at :]


def _records(text: _Text) -> Iterator[bytes]:
    if text.begins() != "[":
        return
    text.at += 1
    while (letter := text.begins()) and letter not in "]}" and text.broken_count < BROKEN_MAX:
        if letter == "{" and text.passes(_STREAM):
            yield from _of_stream(text)
        elif isinstance(found := text.value(), dict):
            yield json.dumps(found).encode()
        elif isinstance(found, list):
            yield json.dumps(_by_field(found)).encode()


def _of_stream(text: _Text) -> Iterator[bytes]:
    """Yield a record for each line of one stream of Loki, with the labels of the stream."""
    labels = text.value()
    if not isinstance(labels, dict) or not text.passes(_VALUES):
        return
    while text.begins() == "[" and text.broken_count < BROKEN_MAX:
        match text.value():
            case [str(at_ns), str(line), *_]:
                yield json.dumps({"labels": labels, "timestamp": at_ns, "line": line}).encode()
    if text.begins() == "]":
        text.at += 1
    if text.begins() == "}":
        text.at += 1


def _by_field(row: list[Any]) -> dict[str, Any]:
    """Return a row of CloudWatch Logs Insights as the record that it was made from."""
    said = {
        str(one["field"]).lstrip("@"): one.get("value")
        for one in row
        if isinstance(one, dict) and "field" in one
    }
    return {"logStreamName": said.pop("logStream", ""), **said}
