"""What a rank takes from a vote about private parts that move after the vote."""

from __future__ import annotations

import types
from typing import Any

from outlast.runtime.worker.saving.undo import Undo
from outlast.runtime.worker.steps.agreement import Agreement


def agreement_of(movers: set[str]) -> tuple[Agreement, Undo]:
    """Return the agreement of a rank that has seen `movers` move. It has no launcher to
    report to.
    """
    private = types.SimpleNamespace(movers=movers, described_movers=lambda: ", ".join(movers))
    state: Any = types.SimpleNamespace(private=private, sharded=False, undo_bytes=0)
    undo = Undo(None, state)
    nobody: Any = None
    return Agreement(nobody, state, undo, nobody), undo


def test_all_ranks_vote_late_even_if_nothing_moves_on_one() -> None:
    """Method: only rank 0 draws random numbers after the block. Nothing moves on the others."""
    for movers in ({"random"}, set[str]()):
        agreement, undo = agreement_of(movers)
        agreement.voted(same_movers=False)
        assert undo.late.committed(), movers
        assert undo.late.on


def test_a_rank_is_unsure_until_a_vote_has_compared_what_moves() -> None:
    agreement, undo = agreement_of(movers := set[str]())
    assert not agreement.is_unsure
    movers.add("random")
    assert agreement.is_unsure
    agreement.voted(same_movers=True)
    assert not agreement.is_unsure
    movers.add("object:meter")
    assert agreement.is_unsure, "another part has begun to move"
    undo.late.put_off()
    assert not agreement.is_unsure, "a late vote compares it in time"
