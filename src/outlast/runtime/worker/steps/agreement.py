"""What all ranks have to agree on, and how it is checked.

replicated state   Is it the same on all ranks? This is checked at the start, after the first step,
                   and piece by piece with the votes from then on (sameness.py).
position           Are all scripts in the same step or phase? (script_position.py)
movers             Are the private parts that change after a vote the same on all ranks? If so, a
                   successor can take them from a peer (private.py). If not, all ranks vote late
                   (undo.py).
"""

from __future__ import annotations

from outlast.errors import DivergedError, UsageError
from outlast.model.messages import Regroup
from outlast.model.texts import some
from outlast.runtime.worker.member.membership import Membership
from outlast.runtime.worker.run_state import sameness
from outlast.runtime.worker.run_state.state import State
from outlast.runtime.worker.saving.images import RankImages
from outlast.runtime.worker.saving.undo import Undo
from outlast.runtime.worker.script.hooks import user_line
from outlast.runtime.worker.script.onlooker import ungrouped_hint
from outlast.runtime.worker.tensors.gather import gather_bytes


class Agreement:
    """Check what all ranks have to agree on, and remember the results.

    movers   the movers that were the same on all ranks in the newest vote
    alike    the ranks that hold the same shards as this one (HSDP), with this one; empty: none
    """

    def __init__(
        self, membership: Membership, state: State, undo: Undo, images: RankImages
    ) -> None:
        self.movers: frozenset[str] = frozenset()
        self.alike: tuple[int, ...] = ()
        self._member = membership
        self._state = state
        self._undo = undo
        self._images = images
        self._watch = sameness.Watch(state)

    # --- is replicated state the same on all ranks? -----------------------------------------------

    def check_at_start(self, plan: Regroup) -> None:
        """Compare the ranks' states, if all ranks attach together.

        They do so at the start of a run, and when all begin from a checkpoint. They compare once
        more after the first step. If a peer is lost, torch's error is raised.
        """
        together = plan.replicated not in ("donor", "transfer") and self._member.world_size > 1
        if together and not self._state.sharded:
            self._undo.late.unproven = True
            self._find_own(plan.step)
        elif together and self._state.distributed and self._on_several_nodes:
            self._find_alike()

    def check_first_step(self, first: int) -> None:
        """Compare the `first` that each rank gave to run.steps.

        Waits for all ranks. If they differ, the run ends: UsageError is raised on every rank.
        """
        if self._member.world_size == 1:
            return
        with self._member.guards.ours():
            said = [int(one.decode()) for one in gather_bytes(str(first).encode())]
        if min(said) != max(said):
            with self._member.refusing():
                every = some([str(one) for one in said])
                raise UsageError(
                    f"run.steps(first=...) differs between ranks: {every}",
                    hint=(
                        "let every rank read the same file before run.steps, or let rank 0 read it"
                        " and tell the others"
                    ),
                )

    def check_place(self, does: str) -> None:
        """Wait for all ranks, and compare what their scripts do next.

        `does` says what this rank does next, in words for people. If a rank does something else,
        the run ends, because collectives of different phases would be mixed up. If a peer is lost,
        torch's error is raised. Ranks on several nodes do not compare, and go on at once.
        """
        member = self._member
        other = member.pages.meet(does) if member.pages is not None else None
        if other is not None:
            assert member.session is not None
            step = member.session.machine.committed
            member.refuse(
                DivergedError(
                    f"{user_line()}: after step {step}, rank {member.rank()} {does}, and rank"
                    f" {other.rank} {other.does}: the ranks' scripts have gone different ways",
                    hint=(
                        "let something decide that a replaced rank knows too: step.number, or a"
                        " value that is kept by run.values"
                    ),
                )
            )

    def check_lost_peer(self) -> None:
        """End the run if the missing peer was not lost, but has left its loop.

        A restart would lead all ranks to the same place.
        """
        member = self._member
        other = member.pages.who_left() if member.pages is not None else None
        if other is not None:
            assert member.session is not None
            step = member.session.machine.committed
            member.refuse(
                DivergedError(
                    f"after step {step}, rank {other.rank} {other.does}, and rank"
                    f" {member.rank()} goes on to the next step: the ranks' scripts have gone"
                    " different ways",
                    hint=(
                        "leave the loop on all ranks after the same step: let a value decide that"
                        " is reduced over the ranks, and kept by run.values"
                    ),
                )
            )

    @property
    def _on_several_nodes(self) -> bool:
        """Return whether the ranks are on several nodes, so images can be lost with a node."""
        return self._member.local_world_size < self._member.world_size

    def _find_alike(self) -> None:
        """Find the ranks that hold the same shards as this one, by comparing fingerprints."""
        with self._member.guards.ours():
            said = gather_bytes(sameness.print_of_shards(self._state).encode())
        self.alike = sameness.twins_of(self._member.rank(), said)

    def check_after_first_step(self, step: int) -> bool:
        """Compare the ranks' states once the first step is applied, and before it is committed.

        Return True if they differ. From then on each rank's state is its own.
        """
        if not self._undo.late.unproven or self._state.sharded:
            return False
        self._find_own(step)
        return self._state.differs_by_rank

    def find_divergence(self, step: int) -> None:
        """Compare the whole replicated state of all ranks.

        It raises DivergedError if the state is not the same any more. If a peer is lost, the error
        of torch is raised.
        """
        with self._member.guards.ours():
            found = sameness.compare(self._state)
        if found is not None:
            some = len(found.ranks) < self._member.world_size
            those = (
                f"{'ranks' if len(found.ranks) > 1 else 'rank'} {', '.join(map(str, found.ranks))}"
            )
            who = (
                f"{those} disagrees with the others about {found}"
                if some
                else f"all ranks hold different values of {found}"
            )
            raise DivergedError(
                f"at step {step}, {who}, though it was the same on all ranks before",
                hint=(
                    "restart from a checkpoint of an earlier step; what is meant to differ between"
                    " ranks has to differ by the end of the first step"
                ),
            )

    def _find_own(self, step: int) -> None:
        with self._member.guards.ours():
            found = sameness.compare(self._state)
        if found is None:
            return
        self._state.differs_by_rank = True
        self._images.forget_all()
        with self._member.refusing():
            self._images.reserve()
        session = self._member.session
        if session is not None and self._member.rank() == 0:
            mib = sum(self._state.bytes_needed()) / 2**20
            session.warn(
                f"{found} differ between ranks"
                f" {f'after step {step}' if step else 'from the start'}: each rank's parameters and"
                f" optimizer state are its own, and are sealed at each step ({mib:.1f} MiB per rank"
                f" and image){_if_one_model() if step else ''}"
            )

    # --- what is compared by a vote ---------------------------------------------------------------

    def keys(self, step: int) -> tuple[float, float]:
        """Return the checksums that the vote of `step` compares: of the movers, and of a piece of
        replicated state.
        """
        if self._state.sharded:
            return 0.0, 0.0
        watched = self._watch.key(step)
        return self._state.private.movers_key(), -watched if self._undo.late.on else watched

    @property
    def is_unsure(self) -> bool:
        """Return whether this rank votes early, although no vote has compared all its movers yet.

        A late vote compares them in time.
        """
        unknown = not self.movers.issuperset(self._state.private.movers)
        return unknown and not self._undo.late.on and not self._state.sharded

    def voted(self, *, same_movers: bool) -> None:
        """Record whether a vote found the movers the same on all ranks.

        If they differ, all ranks vote late from the next step on.
        """
        movers = self._state.private.movers
        self.movers = frozenset(movers) if same_movers else frozenset()
        if not same_movers and not self._state.sharded:
            # Every rank does this, even if nothing has changed on it, because all vote late, or
            # none does.
            self._undo.want_for_movers()


def _if_one_model() -> str:
    """Return the advice for a script whose ranks were meant to train one model, as a sentence."""
    return f". They were equal before. If the ranks are to train one model, {ungrouped_hint()}"
