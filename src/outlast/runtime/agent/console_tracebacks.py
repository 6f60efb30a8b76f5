"""Show a traceback in full only once on the console, although several processes print it.

A traceback is not mixed with what other ranks print at the same time: its lines are held until it
ends, and then shown together. The first process with an error shows it whole. Each later one with
the same traceback gets one line, which names its rank, its attempt and its log:

    outlast: rank 1 (attempt 2) has the same error: ValueError: no data; its log: .../stderr.log

The log files are not touched. Without log files nothing is shortened.

The same       Two tracebacks are the same if all their lines are equal, from the head to the line
               that names the error, chained errors included. Torch's `[rank1]: ` in front of a line
               does not count, nor does a progress bar in front of the head. The lines after the
               traceback (the rest of a message, warnings) are shown if the first process did not
               print them.
The end        A text cannot tell whether another line belongs to it. So a traceback ends with the
               stream, or once nothing has come for LOG_TRACEBACK_QUIET_S. No line is held for
               longer than LOG_TRACEBACK_MAX_S, or beyond LOG_TRACEBACK_MAX_BYTES: what is held is
               shown then as it is.
Not promised   Processes that write into the same stream (a loader's workers) are not told apart.
               The traceback of an exception group is shown each time.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outlast.model.limits import (
    LOG_TRACEBACK_MAX_BYTES,
    LOG_TRACEBACK_MAX_S,
    LOG_TRACEBACK_QUIET_S,
    LOG_TRACEBACKS_COUNT,
)
from outlast.model.texts import cut_at_word
from outlast.runtime.clock import now_s
from outlast.runtime.loop import Loop, LoopTimer

_HEAD = "Traceback (most recent call last):"
# An error of the compiler has no frames of the script above it, and so no head.
_BARE = re.compile(r'  File "[^"\n]+", line \d+$')
_OF_GROUP = re.compile(r"\s+[|+] ")  # the head of an exception group, and of those in it
_RANK = re.compile(r"\[rank\d+\]: ?")  # torch puts it in front where there is a process group
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_ERROR_MAX_COUNT = 200  # characters of an error that is named again


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The place where a process writes.

    attempt   the number in the name of its log folder
    log       the file that gets the whole stream; "": there is none
    """

    rank: int
    attempt: int
    log: str


class ShownTracebacks:
    """The tracebacks that were shown in full, and the process that had each of them first.

    Only the newest LOG_TRACEBACKS_COUNT are known.
    """

    def __init__(self) -> None:
        # by its text: the process that had it first, and the lines that followed there
        self._first: OrderedDict[str, tuple[int, frozenset[str]]] = OrderedDict()

    def shortened(
        self, worker: int, place: LogPlace, lines: Sequence[str], *, continues: bool = False
    ) -> list[str] | None:
        """Return what is shown in place of the lines of a traceback; None: all of them are.

        lines      the traceback from its head on, and what came after it
        continues  the console shows the beginning of the first line already
        """
        bar, _, head = lines[0].rpartition(_HEAD)
        plain = [_plain(line) for line in (_HEAD + head if bar else lines[0], *lines[1:])]
        end = _end_of_traceback(plain)
        if end == 0 or not lines[end - 1].endswith(("\n", "\r")):
            return None  # it was cut, so another one can only seem to be the same
        text = "\n".join(plain[:end])
        first = self._first.get(text)
        if first is None:
            self._first[text] = worker, frozenset(plain[end:])
            while len(self._first) > LOG_TRACEBACKS_COUNT:
                self._first.popitem(last=False)
            return None
        self._first.move_to_end(text)
        if first[0] == worker or not place.log:
            return None  # a process may print its own error as often as it likes
        error = cut_at_word(plain[end - 1].strip(), _ERROR_MAX_COUNT)
        bar = _plain(bar)
        said = (
            f"outlast: rank {place.rank} (attempt {place.attempt}) has the same error: {error};"
            f" its log: {place.log}\n"
        )
        if continues or bar:
            said = f"{bar}\n{said}"
        rest = zip(lines[end:], plain[end:], strict=True)
        return [said, *(line for line, bare in rest if bare and bare not in first[1])]


class HeldTraceback:
    """The stderr of one process on its way to the console.

    sink    gets each piece of text that is shown
    shown   the tracebacks that processes of this launcher have shown
    read    reads what has come in the stream, and passes it to `take`; it never blocks
    """

    def __init__(
        self,
        loop: Loop,
        worker: int,
        sink: Callable[[str], object],
        shown: ShownTracebacks,
        *,
        read: Callable[[], object],
    ) -> None:
        self.place = LogPlace(-1, 0, "")
        self._loop = loop
        self._worker = worker
        self._sink = sink
        self._shown = shown
        self._read = read
        self._lines: list[tuple[str, str]] = []  # each with the prefix of the console, and without
        self._timer: LoopTimer | None = None
        self._times_s = (0.0, 0.0)  # when the first held piece came, and the newest
        self._continues = False  # the console shows the beginning of the first held line already

    def take(self, text: str, *, prefix: str, continues: bool) -> None:
        """Show a line or a piece of one, now or once the traceback that it belongs to has ended.

        prefix      what the console shows in front of a line
        continues   the beginning of this line was given before
        """
        shown = text if continues else prefix + text
        if self._lines and _is_head(text) and not continues and not self._is_chained():
            self.release()  # another error follows, which has nothing to do with this one
        if not self._lines:
            if not _is_head(text) and not _BARE.match(text.rstrip()):
                self._sink(shown)
                return
            self._continues, self._times_s = continues, (now_s(), now_s())
        self._times_s = self._times_s[0], now_s()
        if not continues or not self._lines:
            self._lines.append((shown, text))
        else:
            before, bare = self._lines[-1]
            self._lines[-1] = before + text, bare + text
        if self._timer is None:
            self._timer = self._loop.call_at(self._due_s(), self._look)
        if sum(len(bare) for _, bare in self._lines) > LOG_TRACEBACK_MAX_BYTES:
            self._show_all()

    def release(self) -> None:
        """Show what is held. The stream has ended, or its place changes."""
        if not self._lines:
            return
        bare = [text for _, text in self._lines]
        short = self._shown.shortened(self._worker, self.place, bare, continues=self._continues)
        if short is None:
            self._show_all()
        else:
            self._forget()
            for text in short:
                self._sink(text)

    def _show_all(self) -> None:
        for text in self._forget():
            self._sink(text)

    def _forget(self) -> list[str]:
        lines, self._lines = self._lines, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return [text for text, _ in lines]

    def _due_s(self) -> float:
        began_s, newest_s = self._times_s
        return min(began_s + LOG_TRACEBACK_MAX_S, newest_s + LOG_TRACEBACK_QUIET_S)

    def _look(self) -> None:
        """Show what is held, unless more of it has come."""
        self._timer = None
        self._read()  # the launcher may be late itself, and the rest may be in the pipe
        if not self._lines or self._timer is not None:
            return  # it was shown meanwhile, and another one may have begun
        if now_s() >= self._due_s():
            self.release()
        else:
            self._timer = self._loop.call_at(self._due_s(), self._look)

    def _is_chained(self) -> bool:
        """Return whether the next traceback belongs to the one that is held."""
        said = (_plain(bare) for _, bare in reversed(self._lines))
        return next((line for line in said if line), "") in _CHAINED


def _plain(line: str) -> str:
    """Return a line as every rank prints it: without torch's prefix, and without its end."""
    return _RANK.sub("", line.rstrip(), count=1) if line.startswith("[rank") else line.rstrip()


def _is_head(line: str) -> bool:
    """Return whether a traceback begins with this line. A progress bar may stand in front."""
    return line.rstrip().endswith(_HEAD) and not _OF_GROUP.match(line)


def _end_of_traceback(plain: Sequence[str]) -> int:
    """Return how many lines belong to a traceback, the line that names the error included.

    The rest of a message that has several lines does not count. It is 0 for a traceback that is cut
    before its error.
    """
    end, before, in_frames = 0, "", True
    for at, line in enumerate(plain):
        if not in_frames and line == _HEAD and before in _CHAINED:
            in_frames = True
        elif in_frames and line and line != _HEAD and not line[0].isspace():
            end, in_frames = at + 1, False
        before = line or before
    return 0 if in_frames else end
