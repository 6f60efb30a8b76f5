"""`ReportedLives`: the lives and the logs of workers on all nodes, as their agents report them.

A lost node reports nothing more, so its lives end with the last report that came from it. What the
script of rank 0 says of its training comes from the agent of rank 0, on whichever node that is. If
that node is lost, its last report stays until another agent has rank 0.
"""

from __future__ import annotations

from dataclasses import replace

from outlast.model import limits
from outlast.model.gauges import Gauges
from outlast.model.messages import LogsAt
from outlast.model.records import Life


class ReportedLives:
    """The lives that have not ended, according to the reports of agents.

    gauges   the newest report on what rank 0 says of its training; None while there is none
    """

    def __init__(self) -> None:
        self.gauges: Gauges | None = None
        self._lives: dict[tuple[int, int], tuple[Life, float]] = {}  # with the time of the report
        self._logs: dict[str, dict[int, str]] = {}  # by node and worker: the folder of its log

    def note(self, life: Life, *, now_s: float) -> None:
        """Note a report on one life. A life that has ended is forgotten."""
        key = life.worker, life.rank
        if life.ended_s is None:
            self._lives[key] = life, now_s
        else:
            self._lives.pop(key, None)

    def living(self) -> list[Life]:
        """Return the lives that go on."""
        return [life for life, _ in self._lives.values()]

    def lose(self, node: str) -> list[Life]:
        """Return the lives that end because `node` is lost, and forget these lives."""
        gone = [(key, *one) for key, one in self._lives.items() if one[0].node == node]
        for key, _, _ in gone:
            del self._lives[key]
        return [
            replace(life, ended_s=heard_s, end="lost with its node") for _, life, heard_s in gone
        ]

    def note_logs(self, node: str, message: LogsAt) -> None:
        """Note where the logs of a node's workers are."""
        pairs = list(zip(message.workers, message.folders, strict=False))
        self._logs[node] = dict(pairs[-limits.LOG_FOLDERS_COUNT :])

    def log_of(self, node: str, worker: int) -> str:
        """Return the folder with the output of a worker on its node; "" if it is not known."""
        return self._logs.get(node, {}).get(worker, "")
