"""Gather the evidence of an interruption from all nodes, once training goes on.

    evidence/interruption-<id>/
      standing.json      the processes of all nodes, and which nodes have sent nothing, and why
      nodes/<node>/      the files of each node (runtime/agent/secured_evidence.py)
      verdict.json       what `outlast diagnose` concludes from all of these

    over ──list, to all nodes at once──> lists ──piece by piece, of a few nodes──> standing.json,
    and the search for the verdict

Nothing waits for this. While a recovery goes on, no piece is asked for. A node that has been lost,
or is silent for EVIDENCE_SILENT_S, is left out, and the verdict says so. What a node sends is
refused if it is not what was asked for, and is never longer than the node has said in its list.

Everything runs on one thread, the loop's.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import shutil
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from outlast.model import limits
from outlast.model.messages import AskEvidence, EvidenceFiles, EvidencePiece, Message
from outlast.model.records import Interruption
from outlast.model.texts import cut_at_word
from outlast.runtime import clock
from outlast.runtime.agent.evidence import PROCESSES
from outlast.runtime.coordinator.node_standing import (
    processes_in,
    read_processes,
    write_standing,
)
from outlast.runtime.folders.node_folders import node_folder_name
from outlast.runtime.loop import Loop, LoopTimer

_GONE = "it is not in the run any more"
_NEVER = 2**53  # a generation that no run reaches
_WHY_CHARS = 160
# the names that a node may give to its files; none of them leads out of its folder
_NAME = re.compile(
    r"processes\.json|dmesg-of-[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.txt|stacks-rank\d{1,9}\.txt"
    r"|recorder-rank\d{1,9}\.json|(?:stdout|stderr)-rank\d{1,9}\.log"
)


@dataclass(frozen=True, slots=True)
class GathererPlace:
    """The parts of the run that a gatherer uses.

    folder       the evidence of the run
    send         sends a message to a node, if it is connected
    nodes        returns the nodes that are in the run now
    generation   returns the present generation
    is_calm      returns whether no recovery goes on
    judge        gets an interruption and its folder, once all evidence is there
    tell         shows people a line
    """

    loop: Loop
    folder: Path
    send: Callable[[str, Message], object]
    nodes: Callable[[], Collection[str]]
    generation: Callable[[], int]
    is_calm: Callable[[], bool]
    judge: Callable[[int, Path], object]
    tell: Callable[[str], object]


@dataclass(slots=True)
class _Source:
    """A node whose evidence is awaited.

    files           those that were not asked for yet; None: the node has not sent its list
    name, size      the file that is being fetched; "": none is
    offset          the bytes of it that have arrived
    asked_s         when the node was asked last
    heard_s         when it answered last, or when recovery was last under way
    """

    asked_s: float
    heard_s: float
    files: deque[tuple[str, int]] | None = None
    name: str = ""
    size: int = 0
    offset: int = 0


@dataclass(slots=True)
class _Gathering:
    """The evidence of one interruption. `missing`: nodes that did not send all, and why."""

    interruption: Interruption
    before: int
    folder: Path
    until_s: float
    sources: dict[str, _Source] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def lists(self) -> AskEvidence:
        """Return the question for the list of files."""
        return AskEvidence(self.interruption.id, self.interruption.generation, self.before)


class EvidenceGatherer:
    """Gather evidence: `close` each interruption that is over, and `hear` what nodes answer.

    Call `finish` at the end of the run. After a takeover, call `go_on` with the interruptions that
    the coordinator before has left without a verdict.
    """

    def __init__(self, place: GathererPlace) -> None:
        self._place = place
        self._open: deque[_Gathering] = deque()
        self._left: list[Interruption] = []  # by the coordinator before this one
        self._left_before = 0  # the generation in which this one took over
        self._known: set[int] = set()
        self._timer: LoopTimer | None = None
        self._last: tuple[float, Callable[[], object]] | None = None

    def close(self, interruption: Interruption) -> None:
        """Gather the evidence of an interruption that is over."""
        self._begin_left()
        before = max(self._place.generation(), interruption.generation + 1)
        if interruption.resumed_s is None:
            before = _NEVER  # training has not gone on
        self._begin(interruption, before, afresh=True)

    def go_on(self, interruptions: Iterable[Interruption]) -> None:
        """Gather what the coordinator before this one may not have gathered.

        The nodes are asked once they have joined this coordinator and training goes on.
        """
        self._left, self._left_before = list(interruptions), self._place.generation()
        self._watch()

    def finish(self, open_ones: Iterable[Interruption], then: Callable[[], object]) -> None:
        """Gather what is still open, for EVIDENCE_LAST_S at most, and call `then`."""
        for one in open_ones:
            self.close(one)
        self._begin_left()
        self._last = clock.now_s() + limits.EVIDENCE_LAST_S, then
        self._end_if_done()

    def stop(self) -> None:
        """Forget what is not complete: this node leads no longer, or the run is over."""
        self._open.clear()
        self._left = []
        self._last = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin_left(self) -> None:
        left, self._left = self._left, []
        for one in left:
            self._begin(one, self._left_before, afresh=False)

    def _begin(self, interruption: Interruption, before: int, *, afresh: bool) -> None:
        """Ask all nodes for their lists. `afresh`: remove what a former session left there."""
        number = interruption.id
        if interruption.parent is not None or number in self._known:
            # The evidence of a child is with that of its parent.
            return
        self._known.add(number)
        folder = self._place.folder / f"interruption-{number}"
        if afresh:
            shutil.rmtree(folder / "nodes", ignore_errors=True)
        now_s, here = clock.now_s(), self._place.nodes()
        gathering = _Gathering(interruption, before, folder, now_s + limits.EVIDENCE_GATHER_S)
        for node in self._asked(interruption, here):
            if node in here:
                gathering.sources[node] = _Source(now_s, now_s)
                self._place.send(node, gathering.lists)
            else:
                gathering.missing[node] = _GONE
        self._open.append(gathering)
        self._watch()
        self._conclude()

    def _asked(self, interruption: Interruption, here: Collection[str]) -> list[str]:
        """Return the nodes that are asked: those where it happened, and some of the others."""
        own = sorted({node for node in interruption.nodes if node})
        others = sorted(node for node in here if node not in own)
        return [*own, *others[: limits.EVIDENCE_NODES_COUNT]]

    # --- what nodes answer ------------------------------------------------------------------------

    def hear(self, node: str, message: EvidenceFiles | EvidencePiece) -> None:
        """Handle an answer of a node. One that was not asked for is ignored."""
        for gathering in self._open:
            if gathering.interruption.id == message.interruption and node in gathering.sources:
                source = gathering.sources[node]
                if isinstance(message, EvidenceFiles):
                    self._on_list(gathering, node, source, message)
                else:
                    self._on_piece(gathering, node, source, message)
                break
        self._conclude()

    def _on_list(
        self, gathering: _Gathering, node: str, source: _Source, message: EvidenceFiles
    ) -> None:
        if source.files is not None:
            return  # it was asked twice
        source.heard_s = clock.now_s()
        error = message.error or _why_refused(message)
        if error:
            self._leave_out(gathering, node, error)
            return
        source.files = deque(zip(message.names, message.sizes, strict=True))
        self._ask_for_pieces()

    def _on_piece(
        self, gathering: _Gathering, node: str, source: _Source, message: EvidencePiece
    ) -> None:
        if (message.name, message.offset) != (source.name, source.offset) or not source.name:
            return  # it was asked twice
        source.heard_s = clock.now_s()
        try:
            data = base64.b64decode(message.data, validate=True)
        except (binascii.Error, ValueError):
            data = b""
        left = source.size - source.offset
        if len(data) != min(left, limits.EVIDENCE_PIECE_BYTES):
            self._leave_out(gathering, node, f"it sent {source.name} in part only")
            return
        folder = gathering.folder / "nodes" / node_folder_name(node)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / source.name).open("ab" if source.offset else "wb") as file:
                file.write(data)
            if source.name == PROCESSES and len(data) == left:
                self._check(folder / PROCESSES, node)
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                (folder / source.name).unlink(missing_ok=True)
            why = f"it cannot be stored: {error.strerror}" if isinstance(error, OSError) else error
            self._leave_out(gathering, node, str(why))
            return
        source.offset += len(data)
        if source.offset == source.size:
            source.name = ""
        self._ask_for_piece(gathering, node, source)

    def _check(self, path: Path, node: str) -> None:
        """Raise ValueError if a node's list of processes is not usable, or names another node."""
        if read_processes(path)[0] != node:
            raise ValueError("its list of processes is of another node")

    def _leave_out(self, gathering: _Gathering, node: str, why: str) -> None:
        del gathering.sources[node]
        gathering.missing[node] = cut_at_word(why, _WHY_CHARS)

    # --- questions --------------------------------------------------------------------------------

    def _ask_for_pieces(self) -> None:
        """Ask a few nodes for the next piece: those of the oldest interruption first."""
        busy = [one for part in self._open for one in part.sources.values() if one.name]
        room = limits.EVIDENCE_NODES_AT_ONCE_COUNT - len(busy)
        for gathering in self._open:
            for node, source in tuple(gathering.sources.items()):
                if room > 0 and source.files is not None and not source.name:
                    self._ask_for_piece(gathering, node, source)
                    room -= 1

    def _ask_for_piece(self, gathering: _Gathering, node: str, source: _Source) -> None:
        """Ask for the next piece of a node, if no recovery goes on."""
        if not source.name:
            if not source.files:
                del gathering.sources[node]  # all of it is here
                return
            (source.name, source.size), source.offset = source.files.popleft(), 0
        if self._is_calm():
            source.asked_s = clock.now_s()
            piece = replace(gathering.lists, name=source.name, offset=source.offset)
            self._place.send(node, piece)
        else:
            source.asked_s = 0.0  # `_look` asks

    def _is_calm(self) -> bool:
        return self._last is not None or self._place.is_calm()

    # --- time -------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._timer is None and (self._open or self._left):
            self._timer = self._place.loop.call_at(clock.now_s() + limits.TICK_S, self._look)

    def _look(self) -> None:
        """Ask again, and leave out what does not come."""
        self._timer = None
        now_s, calm, here = clock.now_s(), self._is_calm(), self._place.nodes()
        if self._left and self._place.is_calm() and here:
            self._begin_left()
        for gathering in tuple(self._open):
            late = now_s >= gathering.until_s or (self._last and now_s >= self._last[0])
            for node, source in tuple(gathering.sources.items()):
                if not calm or (source.files is not None and not source.name):
                    source.heard_s = now_s  # it waits for this node
                if node not in here:
                    self._leave_out(gathering, node, _GONE)
                elif late or now_s - source.heard_s > limits.EVIDENCE_SILENT_S:
                    self._leave_out(gathering, node, "it did not send it in time")
                elif calm and now_s - source.asked_s > limits.EVIDENCE_AGAIN_S:
                    self._ask_again(gathering, node, source)
        self._conclude()
        self._watch()

    def _ask_again(self, gathering: _Gathering, node: str, source: _Source) -> None:
        if source.files is None:
            source.asked_s = clock.now_s()
            self._place.send(node, gathering.lists)
        elif source.name:
            self._ask_for_piece(gathering, node, source)

    def _conclude(self) -> None:
        """Let the verdict be found on each interruption whose evidence is complete."""
        self._ask_for_pieces()
        for gathering in tuple(self._open):
            if gathering.sources:
                continue
            self._open.remove(gathering)
            self._tell_missing(gathering)
            try:
                gathering.folder.mkdir(parents=True, exist_ok=True)
                found = processes_in(gathering.folder)
                write_standing(gathering.folder, gathering.interruption, found, gathering.missing)
            except OSError:
                continue  # a disk that cannot store the evidence does not stop the run
            self._place.judge(gathering.interruption.id, gathering.folder)
        self._end_if_done()

    def _tell_missing(self, gathering: _Gathering) -> None:
        """Name a node whose evidence is missing although it is in the run."""
        found = [(node, why) for node, why in gathering.missing.items() if why != _GONE]
        if found:
            node, why = found[0]
            more = f" (and that of {len(found) - 1:,} more nodes)" if len(found) > 1 else ""
            text = f"the evidence of node {node}{more} is not complete: {why}"
            self._place.tell(f"interruption {gathering.interruption.id}: {text}")

    def _end_if_done(self) -> None:
        if self._last is not None and not self._open:
            then = self._last[1]
            self.stop()
            self._place.loop.call_soon(then)


def _why_refused(files: EvidenceFiles) -> str:
    """Return what is wrong with a node's list of files, or ""."""
    names, sizes = files.names, files.sizes
    if len(names) != len(sizes) or len(set(names)) != len(names):
        return "its list of files is damaged"
    if len(names) > limits.EVIDENCE_NODE_FILES_COUNT:
        return f"it has more than {limits.EVIDENCE_NODE_FILES_COUNT:,} files"
    if not all(map(_NAME.fullmatch, names)):
        return "its list has files that are no evidence"
    if not all(0 < size <= limits.EVIDENCE_SENT_FILE_MAX_BYTES for size in sizes) or (
        sum(sizes) > limits.EVIDENCE_NODE_MAX_BYTES
    ):
        return "its files are too large"
    return ""
