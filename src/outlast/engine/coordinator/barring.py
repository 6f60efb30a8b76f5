"""Bar a node: it gets no rank, spare or store any more. This module is pure."""

from __future__ import annotations

from outlast.engine.coordinator.orders import kill_order
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.protocol.outputs import Output, Record, Tell
from outlast.model.records import Event

BARRED = "node_barred"  # the kind of event with which a node is barred


def bar(run: RunParts, now_s: float, node: str, reason: str, what_stays: str) -> list[Output]:
    """Bar `node`, end the spares there, and write the decision to the ledger at once.

    what_stays   what becomes of the ranks there: the end of the sentence that is shown to people
    """
    run.nodes.bar(node)
    data: dict[str, object] = {"node": node, "reason": reason}
    out: list[Output] = [Record(Event(now_s, 0.0, BARRED, data), at_once=True)]
    out.append(Tell(f"node {node} is given no more work{what_stays}"))
    for spare in run.roster.spares():
        if spare.home == node and not spare.life.condemned:
            # A barred node keeps no spares.
            out.append(kill_order(spare, f"node {node} is barred"))
    return out
