"""Find links that carry nothing while all ranks wait in a collective.

Workers report which ranks do not acknowledge what they have sent (unacknowledged.py). No rank is to
blame for such a link. People are warned first, because the link may carry data again. If it carries
nothing for `cut_for_good_s`, a regroup is begun that gives up one of its nodes (cut_for_good.py).

Times are of the coordinator's clock, in seconds. This module is pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from outlast.engine.coordinator import unacknowledged
from outlast.engine.coordinator.cut_for_good import CutForGood
from outlast.engine.coordinator.cut_links import Pair, pair_of
from outlast.engine.coordinator.fault_reports import FaultReports
from outlast.engine.coordinator.orders import event
from outlast.engine.coordinator.run_parts import RunParts
from outlast.engine.coordinator.stages import Stage
from outlast.engine.protocol.outputs import Output, Tell
from outlast.model.messages import ReportedMember


class StalledLinks:
    """Remember since when links carry nothing, and act if that lasts.

    `look` is called with the reports of all ranks, each time an inquiry (hang_inquiry.py) has found
    that no rank is to blame.
    """

    def __init__(self, run: RunParts, reports: FaultReports, cuts: CutForGood) -> None:
        self.run = run
        self.reports = reports
        self.cuts = cuts
        self._warned_at = (-1, frozenset[tuple[int, int]]())  # step and links of the newest warning
        self._warned: set[str] = set()  # warnings that the ledger has already
        self._since_s: dict[Pair, float] = {}  # pair -> since when it carries nothing
        self._seen_at = (-1, -1)  # the generation and the step at which that was seen

    def look(self, now_s: float, members: Sequence[ReportedMember]) -> list[Output]:
        """Warn of links that carry nothing, and begin a regroup if that has lasted too long."""
        warned = self._warn(now_s, members)
        self._note(now_s, members)
        return [*warned, *self._give_up(now_s)]

    def _warn(self, now_s: float, members: Sequence[ReportedMember]) -> list[Output]:
        """Warn of links that carry nothing: once while the run stands at a step for the same ones.

        The ledger gets each text once.
        """
        cut = frozenset((one.rank, other) for one in members for other in one.cut_off)
        stands = self.run.progress.step, cut
        said = [(one.rank, one.cut_off, one.cut_off_bytes) for one in members]
        found = unacknowledged.reasons(said, self.run.roster.homes)
        if not found or stands == self._warned_at:
            return []
        self._warned_at = stands
        text = (
            f"{'; '.join(found)}: all ranks wait for that link. The node that leads hears from all"
            " nodes, so no process is killed, and training goes on once the link carries data"
        )
        options = self.run.options
        if math.isfinite(options.cut_for_good_s) and not self.run.roster.sharded:
            after = f"{options.cut_for_good_s:g} s"
            text += f"; after {after} the ranks of one node move, if they have room elsewhere"
        kept = [] if text in self._warned else [event(now_s, "warning", {"text": text})]
        self._warned.add(text)
        return [*kept, Tell(f"warning: {text}")]

    def _note(self, now_s: float, members: Sequence[ReportedMember]) -> None:
        """Note which links carry nothing, and since when. A new step begins a new count."""
        run = self.run
        homes, known = run.roster.homes, self._since_s
        stands = run.lifecycle.generation, run.progress.step
        if stands != self._seen_at:
            self._seen_at, known = stands, {}
        ends = [
            (homes.get(one.rank, ""), homes.get(far, "")) for one in members for far in one.cut_off
        ]
        pairs = {pair_of(a, b) for a, b in ends if a != b and a in run.nodes and b in run.nodes}
        # A node that has not answered this time says nothing about its links.
        heard = {homes.get(one.rank, "") for one in members if one.collectives is not None}
        unheard = {pair: at_s for pair, at_s in known.items() if not heard.issuperset(pair)}
        self._since_s = unheard | {pair: known.get(pair, now_s) for pair in pairs}

    def _give_up(self, now_s: float) -> list[Output]:
        """Begin a regroup if a link has carried nothing for `cut_for_good_s`.

        No regroup is begun if no node could be given up for that link: it may carry data again.
        """
        run = self.run
        for_s = run.options.cut_for_good_s
        lasting = {pair: at_s for pair, at_s in self._since_s.items() if now_s >= at_s + for_s}
        if not lasting or not run.lifecycle.is_in(Stage.TRAINING):
            return []
        verdict = self.cuts.would_give_up(sorted(lasting))
        if not verdict.node:
            return self.cuts.say(now_s, verdict)
        self._since_s = {}
        waiting = next(m for m in run.roster.live() if m.home == verdict.node)
        return self.reports.on_cut_for_good(now_s, waiting, lasting)
