"""Count the copies of the state that there are now, for the people who watch a run.

This module is pure.
"""

from __future__ import annotations

from outlast.engine.coordinator.members import Roster


def count_copies(
    roster: Roster, *, kept_step: int, at_peers: bool = False, parity: bool = False
) -> dict[str, object]:
    """Return, as plain data, how much can be lost now before a checkpoint is needed.

    kept_step   as in `RestoreSources`
    at_peers    the run keeps copies or parity of images on other nodes
    parity      it keeps parity, and no copies

    The keys of the answer:

    sharded        whether the state is sharded; None: no script has said so yet
    copies, nodes  how many ranks hold all of the state, and on how many nodes; None if the state
                   is sharded, or this is not known
    spares_ready   how many spares can take a rank now
    kept_step      the newest step of which all ranks have a copy in the vault; None: there is none
    nodes_to_lose  how many nodes, whichever they are, can be lost now without losing sharded state;
                   None: not known, or the state is not sharded
    """
    at_work = [member for member in roster.members() if member.path.joined and not member.life.dead]
    replicated = roster.outlast and not roster.sharded
    return {
        "sharded": roster.sharded if roster.outlast else None,
        "copies": len(at_work) if replicated else None,
        "nodes": len({member.process.host for member in at_work}) if replicated else None,
        "spares_ready": sum(1 for member in roster.spares() if member.process.parked),
        "kept_step": kept_step or None,
        "nodes_to_lose": (
            (
                roster.remains.parity.survives_losses(roster.homes, roster.remains.imageless)
                if parity
                else roster.remains.copies.survives_losses(roster.homes, roster.remains.imageless)
            )
            if at_peers and roster.outlast and roster.sharded
            else None
        ),
    }
