"""The evidence that one of several nodes keeps on its own disk, and sends in pieces.

    secured/interruption-<id>/     in the node's own folder
      processes.json               its processes: where they stood, what the kernel said (schema 1)
      dmesg-of-<node>.txt          the end of the kernel's log, where this process may read it
      stacks-rank<r>.txt, <stream>-rank<r>.log, recorder-rank<r>.json
                                   as runtime/agent/evidence.py describes them

The coordinator asks for it once training goes on (`AskEvidence`). It asks for one piece after the
other, so this node never has more than one piece under way. After a takeover, the new coordinator
asks again, and gets what is still here: the newest EVIDENCE_KEPT_COUNT interruptions.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
from pathlib import Path

from outlast.model import limits
from outlast.model.messages import AskEvidence, EvidenceFiles, EvidencePiece
from outlast.runtime.agent.evidence import PROCESSES, EvidenceCollector

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
# If there is too much of it, what comes later in this order is not sent.
_ORDER = (PROCESSES, "dmesg-of-", "stacks-", "stderr-", "stdout-")


class SecuredEvidence:
    """Keep the evidence of a node in `folder`, and answer the coordinator's questions about it.

    Files of earlier launchers are overwritten, and never sent: their interruptions may have the
    same numbers.
    """

    def __init__(self, evidence: EvidenceCollector, folder: Path, node: str) -> None:
        self._evidence = evidence
        self._folder = folder
        self._node = node
        self._kept: dict[int, EvidenceFiles] = {}  # by interruption, the oldest first

    def answer(self, asked: AskEvidence) -> EvidenceFiles | EvidencePiece:
        """Return the list of files about an interruption, or a piece of one of them.

        The files are written when the list is asked for the first time. A piece is empty if this
        node has no such file, or if it ends before that piece.
        """
        if not asked.name:
            if asked.interruption not in self._kept:
                self._kept[asked.interruption] = self._secure(asked)
                self._forget_old()
            return self._kept[asked.interruption]
        kept, data = self._kept.get(asked.interruption), b""
        if kept is not None and asked.name in kept.names:
            data = self._read(self._folder_of(asked.interruption) / asked.name, asked.offset)
        text = base64.b64encode(data).decode("ascii")
        return EvidencePiece(asked.interruption, asked.name, asked.offset, text)

    def _secure(self, asked: AskEvidence) -> EvidenceFiles:
        folder = self._folder_of(asked.interruption)
        try:
            shutil.rmtree(folder, ignore_errors=True)
            self._evidence.secure(folder, node=self._node, since=asked.since, before=asked.before)
            files = _files_to_send(folder)
        except OSError as error:  # a disk that cannot store the evidence does not stop the run
            return EvidenceFiles(asked.interruption, (), (), str(error.strerror or error))
        names, sizes = tuple(name for name, _ in files), tuple(size for _, size in files)
        return EvidenceFiles(asked.interruption, names, sizes)

    def _forget_old(self) -> None:
        while len(self._kept) > limits.EVIDENCE_KEPT_COUNT:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            shutil.rmtree(self._folder_of(oldest), ignore_errors=True)

    def _folder_of(self, interruption: int) -> Path:
        return self._folder / f"interruption-{interruption}"

    def _read(self, path: Path, offset: int) -> bytes:
        with contextlib.suppress(OSError, OverflowError):
            fd = os.open(path, _FLAGS)
            try:
                return os.pread(fd, limits.EVIDENCE_PIECE_BYTES, offset)
            finally:
                os.close(fd)
        return b""


def _files_to_send(folder: Path) -> list[tuple[str, int]]:
    """Return name and size of the files that are sent, in the order in which they are."""

    def place(name: str) -> tuple[int, str]:
        known = (at for at, begin in enumerate(_ORDER) if name.startswith(begin))
        return next(known, len(_ORDER)), name

    sizes = {one.name: one.lstat().st_size for one in folder.iterdir()}
    out: list[tuple[str, int]] = []
    left = limits.EVIDENCE_NODE_MAX_BYTES
    for name in sorted(sizes, key=place)[: limits.EVIDENCE_NODE_FILES_COUNT]:
        size = sizes[name]
        if 0 < size <= min(left, limits.EVIDENCE_SENT_FILE_MAX_BYTES):
            out.append((name, size))
            left -= size
    return out
