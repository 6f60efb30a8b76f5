"""Give up one of the two nodes behind a link that stays cut, if its ranks have room elsewhere.

The ranks of that node move as in a drain (node_drain.py). All ranks stand still, and a rank on
another node has to hold the state. Then the processes on the node are killed. Other processes take
their ranks only once all of these deaths are confirmed. The node is barred, because it would be cut
off again. Its agent stays in the run, and its voter votes.

No node is given up if state is sharded. A node also stays if it leads the run, if only its ranks
hold the state that the run goes on from, or if the other nodes have no room for its ranks. If
neither node may be given up, the run waits for the link, and says why.

Times are of the coordinator's clock, in seconds. This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outlast.engine.coordinator.barring import bar
from outlast.engine.coordinator.cut_links import Pair, reason_of
from outlast.engine.coordinator.node_drain import NodeDrain, carried_until_s
from outlast.engine.coordinator.orders import event
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Timer, set_timer
from outlast.engine.coordinator.stop import StopRequest
from outlast.engine.protocol.outputs import End, Output, Tell
from outlast.model import limits
from outlast.model.terms import FailureClass, Mechanism
from outlast.model.texts import some

Ranks = frozenset[int]


@dataclass(frozen=True, slots=True)
class CutEnd:
    """A node at the end of a link that stays cut.

    missed_by   how many nodes cannot reach it
    ranks       how many ranks live there
    why_stays   why it cannot be given up; "": it can be given up
    """

    node: str
    missed_by: int
    ranks: int
    why_stays: str


@dataclass(frozen=True, slots=True)
class CutVerdict:
    """The node that is given up, and why. `node` is "" if none is."""

    node: str
    reason: str


def decide_given_up(*, links: str, ends: Sequence[CutEnd]) -> CutVerdict:
    """Decide which node is given up for links that stay cut.

    It is the node that the largest number of other nodes cannot reach. If there are several such
    nodes, it is the one with the fewest ranks, because their processes are lost. If that leaves
    several, it is the last one by name.

    links   a sentence that says which links are cut, and for how long
    ends    the nodes at the ends of these links
    """
    able = [end for end in ends if not end.why_stays]
    staying = [end for end in ends if end.why_stays]
    named = [f"node {end.node} stays because {end.why_stays}" for end in staying]
    stays = some(named, most_count=4)
    if not able:
        return CutVerdict("", f"{links}, and none is given up: {stays}")
    ranked = sorted(able, key=lambda end: end.node, reverse=True)
    best = min(ranked, key=lambda end: (-end.missed_by, end.ranks))
    others = [end for end in able if end is not best]
    if not others:
        why = stays or "it alone is at the end of such a link"
    elif best.missed_by > max(end.missed_by for end in others):
        why = f"{best.missed_by} nodes cannot reach it, which is more than for any other"
    elif best.ranks < min(end.ranks for end in others):
        why = "it has the fewest ranks"
    else:
        why = "nothing tells it from the other, and it is the last by name"
    return CutVerdict(best.node, f"node {best.node} is given up: {links}, and {why}")


@dataclass(frozen=True, slots=True)
class LinkWait:
    """This is what to do while links are cut.

    waits   the next generation is not tried yet
    """

    outputs: list[Output]
    waits: bool = False


GOES_ON = LinkWait([])


class CutForGood:
    """Wait for cut links, and give up a node if one stays cut.

    The regroup makes one, and calls `look` each time all ranks stand still:

        found = cuts.look(now_s, lambda ranks: why_these_cannot_move)

    `would_give_up` decides earlier, while ranks still wait in a collective. It knows less than
    `look`, because there are no inventories yet. This class kills no process. The drain that it
    begins does.
    """

    def __init__(self, run: RunParts, stop: StopRequest, drains: NodeDrain) -> None:
        self.run = run
        self.stop = stop
        self.drains = drains
        self._said: set[str] = set()  # the reasons that people were told already

    def look(self, now_s: float, why_stays: Callable[[Ranks], str]) -> LinkWait:
        """Decide whether to wait for a link, to give up a node for it, or to go on.

        why_stays   returns why the given ranks cannot be moved; "": they can be moved
        """
        run, links = self.run, self.run.links
        self._drop_given_up()
        if not links or links.given_up:
            # No link is cut any more, or the ranks of a given-up node still move away.
            return GOES_ON
        if links.is_out(now_s=now_s):
            why = f"{links.reason}, for {limits.NODE_WAIT_S:g} s"
            end = End(1, "failed", why, run.faults.user_error[1])
            return LinkWait(self.stop.kill_all(now_s, end), waits=True)
        told: list[Output] = []
        pairs = links.lasting(
            now_s=now_s, for_s=run.options.cut_for_good_s, generation=run.lifecycle.generation
        )
        if pairs:
            verdict = self._decide(pairs, why_stays)
            if verdict.node:
                return LinkWait(self._give_up(now_s, verdict))
            told = self.say(now_s, verdict)
        if now_s < links.retry_s:
            # It is too early to try the next generation over this link.
            return LinkWait([*told, set_timer(Timer.LINKS, links.retry_s)], waits=True)
        if run.store.home in links.ends and run.nodes.first(links.ends) not in links.ends:
            # A node cannot reach the store, so order one that all nodes can reach.
            run.store.forget()
            told += run.order_store(now_s, links.reason)
        return LinkWait(told)

    def _drop_given_up(self) -> None:
        """Forget which node is given up, once its ranks do not move any more."""
        links = self.run.links
        if not links or not links.given_up or self.drains.ranks:
            return
        if self._ranks_on(links.given_up):
            links.keep()  # the drain was called off, so wait for the link again
        else:
            links.lose(links.given_up)  # its ranks have left it

    def would_give_up(self, pairs: Sequence[Pair]) -> CutVerdict:
        """Decide which node would be given up for these links, before a regroup has begun."""
        return self._decide(pairs, self._why_not_begin)

    def _why_not_begin(self, ranks: Ranks) -> str:
        """Return why no regroup may begin in which `ranks` move; "": it may begin."""
        run = self.run
        if not run.roster.outlast:
            return "the script makes no outlast calls, so its ranks would begin again from the top"
        if not run.fits_elsewhere(ranks):
            return NO_ROOM
        others = [m for m in run.roster.live() if m.rank not in ranks]
        return "" if any(m.script.attached for m in others) else "no other rank holds the state"

    def _decide(self, pairs: Sequence[Pair], why_stays: Callable[[Ranks], str]) -> CutVerdict:
        run = self.run
        ends: list[CutEnd] = []
        for node in sorted({node for pair in pairs for node in pair}):
            ranks = self._ranks_on(node)
            why = self._why_it_stays(node, ranks) or why_stays(ranks)
            ends.append(CutEnd(node, run.links.missed(node), len(ranks), why))
        lasted = f"{reason_of(pairs)}, for {run.options.cut_for_good_s:g} s"
        return decide_given_up(links=lasted, ends=ends)

    def _why_it_stays(self, node: str, ranks: Ranks) -> str:
        """Return why `node`, on which `ranks` live, stays for its own sake; "": it need not."""
        run = self.run
        if node == run.options.leads_on:
            return "it leads the run"
        if not ranks:
            return "no rank lives there"
        if node in run.nodes.silent:
            return "its connection is lost"
        # Under sharded state the images of its ranks would have to be sent first.
        return "state is sharded" if run.roster.sharded else ""

    def _ranks_on(self, node: str) -> Ranks:
        return frozenset(m.rank for m in self.run.roster.live() if m.home == node)

    def say(self, now_s: float, verdict: CutVerdict) -> list[Output]:
        """Tell people, once, why no node is given up."""
        if verdict.reason in self._said:
            return []
        self._said.add(verdict.reason)
        text = f"{verdict.reason}; the run waits for the link"
        return [event(now_s, "warning", {"text": text}), Tell(f"warning: {text}")]

    def _give_up(self, now_s: float, verdict: CutVerdict) -> list[Output]:
        """Bar the node, book its ranks as lost with it, and begin to drain them."""
        run, node = self.run, verdict.node
        ranks = self._ranks_on(node)
        run.links.give_up(node)
        out: list[Output] = []
        if node not in run.nodes.barred:
            out = bar(run, now_s, node, verdict.reason, "; its ranks move away")
        opened = run.interruptions.open
        same = bool(opened) and opened[-1].mechanism is Mechanism.LOST_CONTACT
        for member in run.roster.live():
            if member.rank in ranks:
                run.interruptions.fault(
                    rank=member.rank, pid=0, node=member.process.host,
                    mechanism=Mechanism.LOST_NODE, generation=run.lifecycle.generation,
                    step=run.progress.step, fault_s=None, fault_not_before_s=run.progress.moved_s,
                    detected_s=now_s, same_event=same, error="", traceback="",
                    reason=verdict.reason,
                )  # fmt: skip  # one argument a line would hide the story
                same = True
        run.interruptions.classify(failure_class=FailureClass.NETWORK, reason=verdict.reason)
        out += [*run.records(), Tell(verdict.reason)]
        if run.store.home == node:
            run.store.forget()
            out += run.order_store(now_s, verdict.reason)
        self.drains.begin(ranks, until_s=carried_until_s(now_s, None))
        return out


NO_ROOM = "no other node has room for its ranks"
