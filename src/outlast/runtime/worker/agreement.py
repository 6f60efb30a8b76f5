"""What all ranks have to agree on.

One thing is that their replicated state is the same. That is a claim until it is looked at: at the
start, after the first step, and piece by piece with each vote from then on (sameness.py).

Another is where their scripts are: in which step or phase (script_position.py).

The last is which private parts move in the same way after the vote. It decides whether a
successor can take such parts from a peer (private.py), or all ranks vote late (undo.py).
"""

from __future__ import annotations

from outlast.errors import DivergedError, UsageError
from outlast.model.messages import Regroup
from outlast.model.texts import some
from outlast.runtime.worker import sameness
from outlast.runtime.worker.gather import gather_bytes
from outlast.runtime.worker.hooks import user_line
from outlast.runtime.worker.images import Images
from outlast.runtime.worker.membership import Membership
from outlast.runtime.worker.onlooker import alone_hint
from outlast.runtime.worker.state import State
from outlast.runtime.worker.undo import Undo


class Agreement:
    """Keep what all ranks agree on, and how they come to it.

    `movers` are the private parts that were the same on all ranks in the newest vote. `alike` are
    the ranks that hold the same shards as this one (HSDP), itself among them; empty: none do.
    """

    def __init__(self, membership: Membership, state: State, undo: Undo, images: Images) -> None:
        self.movers: frozenset[str] = frozenset()
        self.alike: tuple[int, ...] = ()
        self._member = membership
        self._state = state
        self._undo = undo
        self._images = images
        self._watch = sameness.Watch(state)

    # --- is replicated state the same on all ranks? -----------------------------------------------

    def at_start(self, plan: Regroup) -> None:
        """Compare the ranks' states when all attach together.

        They attach to what the script made, or to a checkpoint. They compare once more after the
        first step. Raises what torch raises when a peer is lost.
        """
        together = plan.replicated not in ("donor", "transfer") and self._member.world_size > 1
        if together and not self._state.sharded:
            self._undo.late.unproven = True
            self._find_own(plan.step)
        elif together and self._state.distributed and self._on_several_nodes:
            self._find_alike()

    def on_first(self, first: int) -> None:
        """Compare which step each rank says that the run begins with.

        Ends the run if they differ: they have read different files of their own.
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

    def on_place(self, does: str) -> None:
        """Wait until all ranks are where this one is, and compare what their scripts do next.

        `does` says it of this rank, for people. Ends the run if they differ: their collectives
        would not fit together. Raises what a lost peer looks like. Ranks on several nodes do not
        compare, and go on at once.
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

    def on_lost_peer(self) -> None:
        """End the run if the peer that this rank misses has left its loop, and was not lost.

        To start all ranks again would lead them to the same place.
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
        """Return whether images can be lost without the whole run."""
        return self._member.local_world_size < self._member.world_size

    def _find_alike(self) -> None:
        """Find the ranks that hold the same shards: those of other replicas on a mesh.

        Their shards are compared, each time that all attach.
        """
        with self._member.guards.ours():
            said = gather_bytes(sameness.print_of_shards(self._state).encode())
        self.alike = sameness.twins_of(self._member.rank(), said)

    def after_first(self, step: int) -> bool:
        """Compare the ranks' states after the first step is applied, before it is committed.

        State that has become different by it is each rank's own. Return whether there is any.
        """
        if not self._undo.late.unproven or self._state.sharded:
            return False
        self._find_own(step)
        return self._state.differs_by_rank

    def find_divergence(self, step: int) -> None:
        """Compare the whole replicated state.

        Raises DivergedError if it is not the same any more, and what torch raises when a peer is
        lost.
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

    # --- what rides on a vote ---------------------------------------------------------------------

    def keys(self, step: int) -> tuple[float, float]:
        """Return what the vote of `step` compares: movers, and a piece of replicated state."""
        if self._state.sharded:
            return 0.0, 0.0
        watched = self._watch.key(step)
        return self._state.private.movers_key(), -watched if self._undo.late.on else watched

    @property
    def is_unsure(self) -> bool:
        """Return whether parts have been seen to move that no vote has compared yet.

        A rank that votes late compares them in time.
        """
        unknown = not self.movers.issuperset(self._state.private.movers)
        return unknown and not self._undo.late.on and not self._state.sharded

    def voted(self, *, same_movers: bool) -> None:
        """Take in the outcome of a vote.

        The movers are the same on all ranks, or all vote late from the next step on.
        """
        movers = self._state.private.movers
        self.movers = frozenset(movers) if same_movers else frozenset()
        if not same_movers and not self._state.sharded:
            # This holds on every rank, also where nothing has moved: all vote late, or none.
            self._undo.want_for_movers()


def _if_one_model() -> str:
    """Say what is missing if ranks whose models were equal were meant to stay so."""
    return f". They were equal before. If the ranks are to train one model, {alone_hint()}"
