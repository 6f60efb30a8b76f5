"""The same faults at the same moments under other launchers, beside what outlast did.

    others = Opponents(asked, plan, folder)
    words = others.prepare(words)           # trials: how long a save stalls, how many steps
    calendar = others.fitting(calendar, calm)  # without the faults that not all can be given
    result = others.beside(result, calm, fire, calendar)

Set in the opponents' favour, and said in the result: their checkpoints come at the interval that
loses least for the plan, their restarts do not run out, and time-outs are short.
"""

from __future__ import annotations

import math
import os
import sys
import typing
from collections.abc import Sequence
from dataclasses import replace

from outlast.app.drills import drill_sides_text
from outlast.app.drills.drill_against import DrilledBeside, Opponent
from outlast.app.drills.drill_result import Beside, Charted, Result
from outlast.app.drills.drill_text import DrillProgress
from outlast.app.json_text import json_text
from outlast.errors import OutlastError, UsageError
from outlast.model.drills.drill_faults import ALL_KINDS
from outlast.model.drills.drill_plan import DrillPlan
from outlast.model.drills.drill_sides import (
    FaultSeen,
    Saving,
    SeenStep,
    SideRun,
    began,
    best_saving,
    side_facts,
    steps_again,
)
from outlast.runtime.drill import peer_runs
from outlast.runtime.drill.drill_runs import DrilledRun, DrillFolder
from outlast.runtime.drill.drill_strikes import Fired
from outlast.runtime.drill.peer_runs import PeerRun
from outlast.sim.drill_calendar import Calendar, without

TRIAL_STEPS = 40
TRIAL_EVERY = 10  # steps between two saves in a trial
ROOM = 1.15  # times the length of the plan: how long the shipped training takes by default
TAIL_S = 10.0
TAIL_LINES = 12
STANDSTILL_S = 300.0  # without a new step, beyond the time of all of them


class Opponents:
    """Those that are drilled as outlast is, in the folder of one drill."""

    def __init__(self, asked: DrilledBeside, plan: DrillPlan, folder: DrillFolder) -> None:
        self._asked = asked
        self._plan = plan
        self._folder = folder
        self._progress = DrillProgress(sys.stderr)
        self._trials: dict[str, PeerRun] = {}  # of the shipped training; by name
        self._calm: dict[str, PeerRun] = {}  # that trained to their end undisturbed

    # --- before the faults ------------------------------------------------------------------------

    def prepare(self, words: Sequence[str]) -> list[str]:
        """Try all out. Return the words for outlast, with the number of steps.

        Raises OutlastError if one of them does not train.
        """
        if not self._asked.shipped:
            (own,) = self._asked.opponents
            self._undisturbed(own, 0)
            return list(words)
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the shipped training is for the CPU, everywhere
        for one in self._asked.opponents:
            name = f"{one.name}-trial"
            self._trials[one.name] = self._run(
                one,
                name,
                f"a trial of {TRIAL_STEPS} steps",
                steps=TRIAL_STEPS,
                every=TRIAL_EVERY,
                patience_s=STANDSTILL_S,
            )
            self._check_trained(name, self._trials[one.name])
        steps = self._asked.steps or self._steps_needed(words)
        return [*words, "--steps", str(steps)]

    def _undisturbed(self, one: Opponent, steps: int) -> None:
        name = f"{one.name}-undisturbed"
        run = self._run(one, name, "the same training, without faults", steps=steps)
        self._check_trained(name, run)
        self._calm[one.name] = run

    def _steps_needed(self, words: Sequence[str]) -> int:
        """Return how many steps of the shipped training the plan takes."""
        self._progress.begin(f"outlast-trial: a trial of {TRIAL_STEPS} steps")
        ranks = ("--nproc-per-node", str(self._asked.ranks), "--spares", "0")
        run = self._folder.run(
            "outlast-trial",
            [*ranks, *words, "--steps", str(TRIAL_STEPS)],
            self._progress.show,
        )
        self._progress.end(run.step, run.trained_s)
        if run.code != 0 or not run.pace_s:
            said = self._folder.tail("outlast-trial", TAIL_LINES)
            raise OutlastError(
                f"the training that comes with outlast ended with {run.code}:\n{said}",
                hint="drill a script of your own",
            )
        last = max([self._plan.over_steps, *(one.at_step or 0 for one in self._plan.fixed)])
        return max(math.ceil((self._plan.length_s * ROOM + TAIL_S) / run.pace_s), last + 20)

    def _check_trained(self, name: str, run: PeerRun) -> None:
        if run.code != 0:
            raise OutlastError(
                f"{name} ended with {run.code}:\n{self._folder.tail(name, TAIL_LINES)}",
                hint="a comparison needs a training that reaches its end undisturbed",
            )
        if not run.seen:
            raise OutlastError(
                f"{name} ended well, and no step was seen",
                hint="have one rank print a line that begins with `step 12` for each step",
            )

    def fitting(self, calendar: Calendar, calm: DrilledRun) -> Calendar:
        """Return the calendar without the faults that other launchers cannot be given.

        Raises OutlastError if the others train for another number of steps than outlast's run.
        """
        for name, run in self._calm.items():
            if abs(run.step - calm.step) > 1:  # some scripts count from 0
                raise OutlastError(
                    f"undisturbed, outlast did {calm.step:,} steps, and {name} {run.step:,}",
                    hint="let both scripts do the same steps, and print each of them",
                )
        only_here = (one for one in ALL_KINDS.values() if one.struck != "rank" or one.damages)
        kept = without(calendar, [one.name for one in only_here])
        if not kept.faults:
            raise UsageError(
                "the plan strikes no rank, and other launchers have no other process to strike",
                hint="let it have a fault as in kind = 'kill'",
            )
        return kept

    # --- under fire -------------------------------------------------------------------------------

    def beside(
        self, result: Result, calm: DrilledRun, fire: DrilledRun, calendar: Calendar
    ) -> Result:
        """Strike the others as outlast was struck, and lay all side by side.

        calm, fire   outlast's run that was undisturbed, and the one under fire
        """
        ours = self._our_side(fire, calendar, well=result.facts["manual_interventions"] == 0)
        rows = [
            side_facts(
                "outlast",
                ours,
                steps=calm.step,
                step_s=calm.pace_s,
                digest_equal=result.facts["digest_equal"],
                steps_lost=result.facts["steps_lost"],
            )
        ]
        shown = [Charted("outlast", ours)]
        length_s = self._plan.length_s or calm.trained_s
        for one in self._asked.opponents:
            saving = self._saving(one, calendar, length_s, calm.pace_s)
            run = self._under_fire(one, calendar, saving, calm)
            steps = self._calm[one.name].step if one.name in self._calm else calm.step
            well = run.code == 0 and run.step >= steps
            faults = _faults(run.seen, run.fired, calendar)
            side = SideRun(run.began_s, run.ended_s, well, tuple(run.seen), faults)
            facts = side_facts(
                one.name,
                side,
                steps=steps,
                step_s=calm.pace_s,
                digest_equal=None,
                steps_lost=steps_again(side.seen),
                saving=saving,
            )
            if side.well:
                facts["digest_equal"] = self._same(one, run, facts, calm)
            rows.append(facts)
            shown.append(Charted(one.name, side))
            # what is known so far outlives an interrupt in the next one
            self._folder.write("against.json", json_text({"step_s": calm.pace_s, "runs": rows}))
        notes = drill_sides_text.notes(
            rows,
            shipped=self._asked.shipped,
            planned_count=len(calendar.faults),
            mean_gap_s=length_s / len(calendar.faults),
            time_scale=self._plan.time_scale,
        )
        return replace(
            result,
            facts=result.facts | {"against": {"step_s": calm.pace_s, "runs": rows}},
            beside=Beside(tuple(rows), tuple(shown), tuple(notes)),
        )

    def _our_side(self, fire: DrilledRun, calendar: Calendar, *, well: bool) -> SideRun:
        """Return what was seen of outlast's run under fire."""
        start, *seen, end = self._folder.steps_of(fire.path.name)
        faults = _faults(seen, fire.fired, calendar)
        return SideRun(start.at_s, end.at_s, well, tuple(seen), faults)

    def _saving(
        self, one: Opponent, calendar: Calendar, length_s: float, step_s: float
    ) -> Saving | None:
        """Return the best interval of its checkpoints; None if that is not ours to choose."""
        if not one.saves:
            return None
        interrupting = sum(fault.kind.interrupts for fault in calendar.faults)
        trial = self._trials[one.name]
        return best_saving(
            trial.stall_s, trial.write_s, mttf_s=length_s / max(1, interrupting), step_s=step_s
        )

    def _under_fire(
        self, one: Opponent, calendar: Calendar, saving: Saving | None, calm: DrilledRun
    ) -> PeerRun:
        return self._run(
            one,
            one.name,
            f"the same {len(calendar.faults)} faults",
            steps=calm.step,
            every=1 if saving is None else saving.every,
            calendar=calendar,
            patience_s=STANDSTILL_S + calm.trained_s,
        )

    def _run(
        self,
        one: Opponent,
        name: str,
        what: str,
        *,
        steps: int,
        every: int = 1_000_000_000,
        calendar: Calendar | None = None,
        patience_s: float = math.inf,
    ) -> PeerRun:
        self._progress.begin(f"{name}: {what}")
        faults = () if calendar is None else calendar.faults
        values = {
            peer_runs.STEPS_WORD: str(steps),
            peer_runs.EVERY_WORD: str(every),
            peer_runs.RESTARTS_WORD: str(10 * len(faults) + 3 if faults else 0),
        }
        run = peer_runs.run_peer(
            self._folder,
            name,
            [values.get(word, word) for word in one.command],
            self._progress.show,
            ranks=self._asked.ranks,
            faults=faults,
            patience_s=patience_s,
        )
        first = began(run.seen)
        self._progress.end(run.step, 0.0 if first is None else run.ended_s - first.at_s)
        return run

    def _same(
        self, one: Opponent, run: PeerRun, facts: dict[str, typing.Any], calm: DrilledRun
    ) -> bool | None:
        """Return whether the state at the end is that of an undisturbed run. None: not known."""
        if not run.digest:
            return None
        if self._asked.shipped:
            log = self._folder.path / f"{calm.path.name}.log"
            if run.digest == peer_runs.digest_in(log):
                return True  # undisturbed, outlast and torchrun train the model to the same bits
            if facts["steps_with_fewer_ranks"]:
                return False
            self._undisturbed(one, calm.step)
        known = self._calm[one.name].digest
        return run.digest == known if known else None


def _faults(
    seen: Sequence[SeenStep], fired: Sequence[Fired], calendar: Calendar
) -> tuple[FaultSeen, ...]:
    """Return when each fault of a run was due, and when it came."""
    first, planned = began(seen), {one.id: one for one in calendar.faults}
    out = []
    for one in sorted(fired, key=lambda fault: fault.at_s):
        at_s, kind = planned[one.id].at_s, planned[one.id].kind
        due_s = None if at_s is None or first is None else first.at_s + at_s
        out.append(FaultSeen(due_s, one.at_s, kind.interrupts))
    return tuple(out)
