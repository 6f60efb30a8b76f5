"""Nodes that keep evidence of their processes, without any process."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from outlast.model import limits
from outlast.model.beacon import Beacon
from outlast.model.messages import AskEvidence, EvidenceFiles, EvidencePiece, Message
from outlast.model.records import Interruption
from outlast.model.terms import Mechanism
from outlast.runtime.agent.evidence import EvidenceCollector
from outlast.runtime.agent.glance import Glance
from outlast.runtime.agent.oom import OomKill
from outlast.runtime.agent.processes import Exited
from outlast.runtime.agent.secured_evidence import SecuredEvidence
from outlast.runtime.coordinator.evidence_gatherer import EvidenceGatherer, GathererPlace
from outlast.runtime.loop import Loop

Answer = EvidenceFiles | EvidencePiece


def over(number: int = 1, *, nodes: tuple[str, ...] = ("b",), generation: int = 1) -> Interruption:
    """Return an interruption that is over: rank 1 hung."""
    return Interruption(
        number,
        Mechanism.HANG,
        1.0,
        ranks=(1,),
        pids=(101,),
        nodes=nodes,
        generation=generation,
        reason="it does not answer",
        resumed_s=2.0,
    )


class Node:
    """A node with one worker of the number of its rank plus 100."""

    def __init__(self, loop: Loop, folder: Path, name: str, rank: int) -> None:
        self.name, self.rank, self.worker = name, rank, 100 + rank
        self.folder = folder / name
        self.vault = self.folder / "vault"
        self.log = self.folder / "stderr.log"
        self.vault.mkdir(parents=True)
        self.beacon = Beacon(self.worker, self.worker, rank=rank, generation=1, step=6)
        self.evidence = EvidenceCollector(
            loop=loop,
            folder=self.folder,
            vault=self.vault,
            live_beacons=lambda: [(self.worker, self.worker, self.beacon)],
            logs=lambda _: {"stderr": self.log} if self.log.exists() else {},
            command=("true",),
            on_verdict=lambda *_: None,
            glance=Glance(),
        )
        self.secured = SecuredEvidence(self.evidence, self.folder / "secured", name)

    def fails(self) -> None:
        """Its worker is killed, because it hangs, and leaves stacks, a log and a recorder."""
        (self.folder / f"stacks-{self.worker}.txt").write_text('  File "t.py", line 7 in wait\n')
        (self.vault / f"recorder-{self.worker}").write_text('{"entries": []}')
        self.log.write_text("the last words\n")
        self.evidence.before_kill(self.worker, self.worker, hung=False)
        self.evidence.ended(
            Exited(self.worker, self.worker, None, signal.SIGKILL, OomKill.NONE, 1.0, killed=True)
        )


class Run:
    """A coordinator on no node, and nodes whose messages take one turn of the loop.

    changed   gets node and answer of each message, and returns what arrives instead; None: nothing
    """

    def __init__(
        self,
        loop: Loop,
        folder: Path,
        nodes: list[Node],
        changed: Callable[[str, Answer], Answer | None] = lambda node, answer: answer,
    ) -> None:
        self.loop = loop
        self.folder = folder / "evidence"
        self.nodes = {node.name: node for node in nodes}
        self.present = set(self.nodes)
        self.calm = True
        self.generation = 2
        self.asked: list[AskEvidence] = []
        self.judged: list[int] = []
        self.told: list[str] = []
        self._changed = changed
        self.gatherer = EvidenceGatherer(
            GathererPlace(
                loop,
                self.folder,
                send=self._send,
                nodes=lambda: self.present,
                generation=lambda: self.generation,
                is_calm=lambda: self.calm,
                judge=lambda number, folder: self.judged.append(number),
                tell=self.told.append,
            )
        )

    def _send(self, name: str, message: Message) -> None:
        assert isinstance(message, AskEvidence)
        self.asked.append(message)

        def arrives() -> None:
            answer = self._changed(name, self.nodes[name].secured.answer(message))
            if answer is not None:
                self.gatherer.hear(name, answer)

        self.loop.call_soon(arrives)

    def gather(self, interruption: Interruption) -> Path:
        """Return the folder of an interruption, once its evidence is complete."""
        self.gatherer.close(interruption)
        return self.until_judged(interruption.id)

    def until_judged(self, number: int) -> Path:
        waits_s = limits.EVIDENCE_SILENT_S + 5.0
        assert self.loop.run_until(lambda: number in self.judged, within_s=waits_s)
        return self.folder / f"interruption-{number}"
