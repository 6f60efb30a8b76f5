"""Read Python tracebacks in a log that several ranks write, and say where an exception was raised.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from outlast.diagnose.findings import Finding
from outlast.diagnose.stacks.reader import short
from outlast.model.own_bugs import is_below_outlast, is_on_purpose, raised_here

HEADER = "Traceback (most recent call last)"
NEEDLE = b"traceback (most recent call last)"
IGNORED_NEEDLE = b"exception ignored "
OPEN_MAX = 64  # tracebacks that may be open at once, one for each label
LINES_MAX = 600  # of one traceback
# what a launcher, a container's log or a cluster's puts before each line of one writer; its time
# may be of another length on each line
_LABEL = re.compile(
    r"^\s{0,4}((?:\[[\w ,=-]{1,24}\](?:<\w{1,8}>)?:?|\[pod/[\w./-]{1,200}\]|\d{1,5}:"
    r"|\([\w =,.:-]{1,80}\)|[\w.-]{1,80} {1,40}\|)(?= )|(?=\d{4}-\d\d-\d\dT))"
    r"(?: ?\d{4}-\d\d-\d\dT[\d:.]{8,20}(?:Z|[+-]\d\d:?\d\d)(?: std(?:out|err) [FP])?)? "
)
# torchrun's --tee; nothing stands between it and the line
_TEE = re.compile(r"^\[(?!rank)[A-Za-z_][\w-]{0,22}\d\]:")
# rich draws a box around frames, quoted source and locals, and writes the exception below it
_BOX = re.compile(r"^\s{0,4}(?:╭─|\+-)")
_IN_BOX, _BOX_ENDS = ("│", "|"), ("╰", "+")
_FRAME_IN_BOX = re.compile(r"^[│|] (\S{1,400}):(\d{1,7}) in (\S{1,160})")
# torch's, in front of what a rank's exception hook prints
_OF_RANK = re.compile(r"(\[rank\d{1,7}\]:) $")
_FRAME = re.compile(r'^\s{1,12}File "([^"]{1,400})", line (\d{1,7})(?:, in ([^\s\x1b]{1,160}))?')
# what a finalizer or an exiting thread raised: Python prints it, and goes on
_IGNORED = re.compile(r"^\s{0,4}Exception ignored (?:in|on|while|from)\b")
_EXCEPTION = re.compile(r"^(?:[a-z_]\w{0,60}\.){0,8}_?[A-Z]\w{2,80}(?::|$)")
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python\d|\\lib\\|^<frozen|^<string>|\bconda\b.{0,80}/lib/"
)
# files that launch or wrap the user's own: the fault is never theirs
_WRAPPER = re.compile(
    r"torch/distributed/|accelerate/|deepspeed/launcher|multiprocessing/|elastic/|runpy"
    r"|threading\.py|concurrent/"
)
# torchrun's own: what is raised below them is the launcher's, unless a worker's code was called
# from there
_LAUNCHER = re.compile(r"torch/distributed/(?:elastic/|launcher/|run\.py)")
_COLLECTIVES = re.compile(r"torch/distributed/(?:distributed_c10d|c10d_logger)\.py")
_FILE_READER = re.compile(r"torch/(?:serialization|_weights_only_unpickler)\.py$")
_PIPE = re.compile(
    r"multiprocessing/(?:connection|resource_sharer|reductions?|queues|managers)\.py"
)
_STANDARD = re.compile(
    r"/lib(?:64)?/python\d[\d.]{0,4}/(?!site-packages|dist-packages)|\\lib\\(?!site-packages)|^<"
)


@dataclass(frozen=True, slots=True)
class Raised:
    """The place at which an exception was raised.

    path             the file of the innermost frame
    by_launcher      only frames of the standard library are below torchrun's own
    in_collectives   torch.distributed raised it
    in_distributed   below torch's own packages for distributed jobs
    in_pipe          multiprocessing raised it, about a child or parent process and not about
                     another rank
    in_loader        the data loader of torch called what raised
    in_load          torch.load raised it, or what reads the file for it
    by_outlast       it is a bug of ours
    below_outlast    outlast called what raised: no frame of another program is below its own
    place            the innermost frame of the user's own code, or else the innermost of all, as
                     in `RaisedAt`
    """

    path: str
    place: str = ""
    by_launcher: bool = False
    in_collectives: bool = False
    in_distributed: bool = False
    in_pipe: bool = False
    in_loader: bool = False
    in_load: bool = False
    by_outlast: bool = False
    below_outlast: bool = False


@dataclass(frozen=True, slots=True)
class RaisedAt(Finding):
    """An exception whose traceback was read: `place` is "function (file:line)", as in stacks."""

    place: str = ""


# what Python itself raises for a wrong value, name or type; no device and no library speaks so
_OF_VALUES = re.compile(
    r"\b(?:Value|Key|Type|Index|Attribute|Name|Lookup|NotImplemented)Error: |\bAssertionError: "
)


def is_quoted(text: str, at: int) -> bool:
    """Return True if what stands at this place is quoted by an exception about a wrong value.

    "ValueError: on_error must be one of ['CUDA out of memory', ...]" tells of no lack of memory.
    """
    found = _OF_VALUES.search(text, 0, at)
    if found is None:
        return False
    said = text[found.end() : at]
    return said.count("'") % 2 == 1 or said.count('"') % 2 == 1


@dataclass(slots=True)
class _Open:
    # of what stands between the label and the body on each line; None: a box of rich does
    width: int | None
    path: str = ""
    place: str = ""
    has_users: bool = False  # `place` is in the user's own code
    owner: str = ""  # the innermost that is not the standard library's
    within: set[str] = field(default_factory=set)  # of "loader", "load", "outlast": what calls it
    lines: int = 0
    after_frame: bool = False  # the line that quotes the source follows
    twin: str | None = None  # the same traceback, if its lines have that label instead
    is_ignored: bool = False  # Python reports the exception and goes on

    def enter(self, *, path: str, line: str, function: str) -> None:
        """Take the next frame, which the one before has called."""
        self.path = path
        self._is_within("outlast", is_below_outlast(path, "outlast" in self.within))
        in_loader = path.endswith("torch/utils/data/dataloader.py")
        self._is_within("loader", in_loader or "loader" in self.within)
        # What a checkpoint's own classes raise is below torch's files, and theirs.
        in_reader = _FILE_READER.search(path) is not None
        self._is_within("load", in_reader and ("load" in self.within or function == "load"))
        self.owner = self.owner if _STANDARD.search(path) else path
        if raised_by_user(path) or not self.has_users:
            self.has_users = raised_by_user(path)
            self.place = f"{function} ({short(path)}:{line})"

    def _is_within(self, what: str, is_within: bool) -> None:
        (self.within.add if is_within else self.within.discard)(what)


class Tracebacks:
    """Follow tracebacks. At the line that names an exception, `feed` says where it was raised."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    @property
    def active(self) -> bool:
        return bool(self._open)

    def begin(self, text: str) -> None:
        at = text.find(HEADER)
        if len(self._open) < OPEN_MAX:
            label, width = _label(text)
            above = self._open.get(label)
            is_ignored = above is not None and above.is_ignored and not above.lines
            # A loader's worker sends its traceback under "Original Traceback". That of a group of
            # exceptions has a margin, "  | ", whose first line is "  + ".
            before = text[width : max(at, width)].removesuffix("Original ")
            before = before.removesuffix("Exception Group ")
            if _BOX.match(before):
                self._open[label] = _Open(None)
                return
            of_rank = _OF_RANK.search(before)
            if of_rank and label:
                before = of_rank[0]  # behind a progress bar, if anything is in front of it
            elif of_rank:
                # In front of it is a progress bar, which ends no line, or a label that is not
                # known and stands on each line. The first frame shows which.
                self._open[of_rank[1]] = _Open(0, twin=label)
            twin = of_rank[1] if of_rank else None
            self._open[label] = _Open(len(before), twin=twin, is_ignored=is_ignored)

    def ignore(self, text: str) -> bool:
        """Return True for the head of an exception that Python ignores; `drops` knows the rest."""
        label, width = _label(text)
        if not _IGNORED.match(text[width:]) or len(self._open) >= OPEN_MAX:
            return False
        self._open[label] = _Open(0, is_ignored=True)
        return True

    def drops(self, text: str) -> bool:
        """Return True for a line of an exception that Python ignored."""
        label, width = _label(text)
        one = self._open.get(label)
        if one is None or not one.is_ignored:
            return False
        if not one.path and one.lines:  # neither a traceback nor an exception followed
            del self._open[label]
            return False
        body = text[width + (one.width or 0) :]
        if _EXCEPTION.match(body):
            del self._open[label]
            return True
        self.feed(text)
        return body.startswith((" ", "\t"))

    def feed(self, text: str) -> Raised | None:
        label, width = _label(text)
        one = self._open.get(label)
        if one is None:
            return None
        if one.width is None:
            self._in_box(label, one, text[width:].lstrip())
            return None
        if one.lines == 0 and _FRAME.match(text[width:]):
            one.width = 0  # what stood before the header was a progress bar, and not a label
        body = text[width + one.width :]
        one.lines += 1
        frame = _FRAME.match(body)
        if frame:
            if one.twin is not None and one.twin != label:
                self._open.pop(one.twin, None)
            one.after_frame, one.twin = True, None
            one.enter(path=frame[1], line=frame[2], function=frame[3] or "<module>")
            return None
        one.after_frame = False
        if one.lines > LINES_MAX or not body.strip():
            del self._open[label]
            return None
        if body[0] in " \t|+" or not _EXCEPTION.match(body):
            return None
        del self._open[label]
        if not one.path:
            return None
        by_launcher, in_collectives = (
            pattern.search(one.owner) is not None for pattern in (_LAUNCHER, _COLLECTIVES)
        )
        in_pipe = _PIPE.search(one.path) is not None
        return Raised(
            one.path,
            one.place,
            by_launcher,
            in_collectives,
            "torch/distributed/" in one.owner,
            in_pipe,
            "loader" in one.within,
            "load" in one.within,
            raised_here(one.path, body),
            "outlast" in one.within and not is_on_purpose(body),
        )

    def _in_box(self, label: str, one: _Open, body: str) -> None:
        """Take a line of a box. Quoted source and locals fill most of it, and are not counted."""
        if frame := _FRAME_IN_BOX.match(body):
            one.enter(path=frame[1], line=frame[2], function=frame[3])
            one.lines += 1
        elif body.startswith(_BOX_ENDS):
            one.width = 0
        elif not body.startswith(_IN_BOX) or one.lines > LINES_MAX:
            del self._open[label]

    def quotes(self, text: str) -> bool:
        """Return True for a frame, for the source that is quoted below one, and within a box.

        Words in it are the program's, and do not report what happened.
        """
        label, width = _label(text)
        one = self._open.get(label)
        if one is None:
            return False
        if one.width is None:
            return text[width:].lstrip().startswith(_IN_BOX)
        body = text[width + one.width :]
        return _FRAME.match(body) is not None or (one.after_frame and body.startswith("    "))


def label_of(text: str) -> str:
    """Return what a launcher or a container's log puts before the lines of one writer; or ""."""
    return _label(text)[0]


def _label(text: str) -> tuple[str, int]:
    """Return the label of the line's writer, and how many characters it and a time take."""
    if tee := _TEE.match(text):
        return tee[0], tee.end()
    found = _LABEL.match(text[:300])
    return (found[1], found.end()) if found else ("", 0)


def raised_by_user(path: str) -> bool:
    """Return whether the file is the user's own code, and not a library's or a wrapper's."""
    return not _LIBRARY.search(path) and not _WRAPPER.search(path)
