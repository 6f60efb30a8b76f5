"""`outlast drill`: train twice, once under faults, and score what was survived.

    outlast drill smoke -- train.py --steps 800
    outlast drill plan.toml --seed 7 --nproc-per-node 4 -- train.py

The first run is undisturbed. It gives the digest of every rank's whole state, and the time of a
step. The faults of the plan are injected into the second one. Both do the same steps, and their
states are compared bit by bit.

Exit codes   0 nothing was lost; 1 something was, or a fault did not fire; 2 wrong usage;
             3 undetermined: the script itself gives other results each time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import typing
from collections.abc import Sequence

from outlast.app.command_line import Parser, add_json, finite, split_at_dashes, whole
from outlast.app.drills import drill_against, drill_fit, drill_place, drill_text
from outlast.app.drills.drill_predict import DrillPrediction, predict
from outlast.app.drills.drill_result import Result
from outlast.app.drills.opponents import Opponents
from outlast.app.json_text import json_text
from outlast.app.reports.report_facts import report_facts
from outlast.errors import OutlastError, UsageError
from outlast.model.drills import drill_plan
from outlast.model.drills.drill_faults import KERNEL_LINES
from outlast.model.drills.drill_plan import DrillPlan
from outlast.model.drills.drill_score import Ended, Struck, begun_by, outcomes, score, wrong
from outlast.planner.cluster_file import parse
from outlast.planner.resolve import resolve
from outlast.runtime import clock, stop_signals
from outlast.runtime.drill import drill_verdicts
from outlast.runtime.drill.drill_runs import DrilledRun, DrillFolder
from outlast.runtime.folders.given import check_page, read_text, write_page
from outlast.runtime.ledger.view import RunView, look
from outlast.sim.drill_calendar import (
    Calendar,
    draw,
    without_disks,
    without_hangs,
    without_loaders,
    without_slow_disk,
)

UNDETERMINED = 3
TAIL_LINES = 12
STANDSTILL_S = 300.0  # a run under fire without a new step for so much longer than all of its steps
NOT_OURS = (
    "--run-dir",
    "--resume",
    "--from-scratch",
    "--nnodes",
    "--spare-nodes",
    "--node-rank",
    "--rdzv-endpoint",
)
OURS = ("--nproc-per-node", "--spares")


def main(argv: Sequence[str]) -> int:
    """Run a drill and return its exit code."""
    own, words = split_at_dashes(argv)  # the words after them are for `outlast run`
    args = parser().parse_args(own)
    plan = _plan(args.plan, args.time_scale, hosts=args.hosts is not None)
    place = drill_place.place_of(args)
    asked = drill_against.asked(args, words, ranks=place.ranks)
    words = words if asked is None else asked.words(words)
    _check(words, args)
    seed = args.seed if args.seed is not None else int(clock.wall_s()) % 100_000
    drill_place.refuse_missing(place, plan, args, seed=seed)
    _refuse_targets(place, plan, args, seed=seed)
    folder = DrillFolder.make(args.run_dir, name=f"{plan.name.rpartition('/')[2]}-{seed}")
    others = None if asked is None else Opponents(asked, plan, folder)
    with stop_signals.raising():
        words = words if others is None else others.prepare(words)
        drill = _Drill(args, plan, seed, words, folder, place)
        calm = drill.undisturbed()
        calendar = drill.calendar(calm, may_shorten=args.time_scale is None and others is None)
        calendar = calendar if others is None else others.fitting(calendar, calm)
        drill.predict(calm, calendar)
        fire = drill.under_fire(calm, calendar)
        result = drill.judged(calm, fire, calendar)
        result = result if others is None else others.beside(result, calm, fire, calendar)
    folder.write("score.json", json_text(result.facts) + "\n")
    if args.html is not None:
        from outlast.app.drills.drill_page import drill_page

        write_page(args.html, drill_page(result))
    with contextlib.suppress(BrokenPipeError):  # `| head`: the code says how the drill has ended
        print(json_text(result.facts) if args.json else drill_text.result_text(result))
        sys.stdout.flush()
    if result.wrong:
        return 1
    return UNDETERMINED if result.varies else 0


def parser() -> Parser:
    """Return the parser of `outlast drill`."""
    out = Parser(
        prog="outlast drill",
        usage="outlast drill PLAN [options] -- [options of outlast run] SCRIPT [arguments]",
        description=(
            "Train twice, once undisturbed and once under fire, and compare. The script runs in"
            " the current folder. Only processes that this command has started are struck."
        ),
        epilog=(
            "Give the script enough steps to train for as long as the plan strikes. In its"
            " arguments {run} stands for a new folder of each of the two runs. Plans:"
            f" {', '.join(drill_plan.NAMED)}, or a file (docs/how-to/rehearse.md)."
        ),
    )
    out.add_argument("plan", metavar="PLAN", help="name of a plan, or a TOML file")
    out.add_argument(
        "--seed",
        type=whole,
        metavar="N",
        help="draw the faults from this seed (default: a new one each time)",
    )
    out.add_argument(
        "--time-scale",
        type=finite,
        metavar="X",
        help="divide the plan's times by X (default: the number in the plan)",
    )
    drill_place.add_options(out)
    out.add_argument(
        "--spares",
        type=whole,
        default=1,
        metavar="N",
        help="number of spare processes (default: 1)",
    )
    out.add_argument(
        "--run-dir", metavar="PATH", help="a new folder for both runs (default: one under runs/)"
    )
    out.add_argument(
        "--predict",
        metavar="CLUSTER",
        help="predict the ETTR by this cluster file (`outlast calibrate`), not by typical costs",
    )
    out.add_argument("--html", metavar="FILE", help="write the score as one page to mail")
    drill_against.add_against(out)
    add_json(out)
    return out


class _Drill:
    """One drill: its two runs, and what is made of them."""

    def __init__(
        self,
        args: argparse.Namespace,
        plan: DrillPlan,
        seed: int,
        words: Sequence[str],
        folder: DrillFolder,
        place: drill_place.DrillPlace,
    ) -> None:
        self._args = args
        self._place = place
        self._plan = plan
        self._seed = seed
        self._words = [
            "--nproc-per-node",
            str(place.ranks),
            "--spares",
            str(args.spares),
            *words,
        ]
        self._folder = folder
        self._progress = drill_text.DrillProgress(sys.stderr)
        self._plain = False
        self._foreseen: DrillPrediction | None = None
        self._said: list[str] = []  # what to note beside the score

    # --- the two runs -----------------------------------------------------------------------------

    def undisturbed(self, name: str = "undisturbed") -> DrilledRun:
        """Train undisturbed. Raises OutlastError if the script fails by itself."""
        self._progress.begin(f"{name}: the same training, without faults")
        run = self._folder.run(name, self._words, self._progress.show, launch=self._place.launch)
        if run.code == 0:
            run.step = look(str(run.path)).step  # the last ones may have come between two looks
        self._progress.end(run.step, run.trained_s)
        if run.code != 0:
            raise OutlastError(
                f"the undisturbed run ended with {run.code}:\n"
                f"{self._folder.tail(name, TAIL_LINES)}",
                hint="a drill needs a script that trains to its end; try `outlast run` on it first",
            )
        if not run.step:
            raise OutlastError(
                "the undisturbed run ended well, and no step was seen",
                hint="a drill needs a script that trains with a torch optimizer",
            )
        return run

    def calendar(self, calm: DrilledRun, *, may_shorten: bool) -> Calendar:
        """Draw the faults, and refuse what this script cannot be drilled with.

        may_shorten   a named plan may be shortened to the time that the script trains
        """
        size = look(str(calm.path)).records.world_size
        self._plain = not calm.ends
        calendar = self._drawn(self._plan, calm, size)
        more_s = self._place.tail_s
        shorter = drill_fit.shortened(self._plan, calm, more_s=more_s)
        if may_shorten and self._plan.name in drill_plan.NAMED and shorter is not None:
            fitting = self._drawn(shorter, calm, size)
            of_ranks = drill_fit.has_room(fitting, shorter, calm)
            if of_ranks and self._place.has_room(fitting, shorter):
                note = drill_fit.shortened_note(self._plan, shorter, calm, more_s=more_s)
                self._said.append(note)
                self._plan, calendar = shorter, fitting
        self._place.refuse(calendar, self._plan)
        drill_fit.refuse_pace(calendar, self._plan, calm)
        drill_fit.refuse_length(calendar, self._plan, calm, more_s=more_s)
        return calendar

    def predict(self, calm: DrilledRun, calendar: Calendar) -> None:
        """Predict what is about to happen, and write it down and say it before it does."""
        self._foreseen = predict(
            calm,
            calendar,
            cluster=self._args.predict,
            ranks=look(str(calm.path)).records.world_size,
            hosts=self._place.layout is not None,
            steps=self._folder.steps_of(calm.path.name),
        )
        self._folder.write("prediction.json", json_text(self._foreseen.facts()) + "\n")
        self._progress.begin(self._foreseen.sentence())

    def _drawn(self, plan: DrillPlan, calm: DrilledRun, size: int) -> Calendar:
        """Draw the faults of a plan, without those that this script cannot have."""
        calendar = self._place.left_out(
            draw(plan, seed=self._seed, world_size=size, spares=self._args.spares)
        )
        given = {word.partition("=")[0] for word in _options_of_run(self._words)}
        if self._plain and "--hang-after" not in given:
            calendar = without_hangs(calendar)
        if given & {"--checkpoint-dir", "--checkpoint_dir"} or not _saves(calm):
            calendar = without_disks(calendar)
        calendar = without_slow_disk(calendar)
        return calendar if calm.processes.has_loaders else without_loaders(calendar)

    def under_fire(self, calm: DrilledRun, calendar: Calendar) -> DrilledRun:
        """Train once more while faults strike. Give the run up if it stands still for too long."""
        count = len(calendar.faults)
        self._progress.begin(
            f"under fire: {count} faults of the plan {self._plan.name}, seed {self._seed}; `outlast"
            f" top {self._folder.path}/under-fire` shows it live"
        )
        words = list(self._words)
        if self._plain:
            # It restarts as a whole after each fault. All of these are known to come from outside.
            words = ["--max-restarts", str(count + 3), *words]
        run = self._folder.run(
            "under-fire",
            words,
            self._progress.show,
            faults=calendar.faults,
            patience_s=STANDSTILL_S + calm.trained_s,
            launch=self._place.launch,
        )
        self._progress.end(run.step, run.trained_s)
        return run

    # --- the score --------------------------------------------------------------------------------

    def judged(self, calm: DrilledRun, fire: DrilledRun, calendar: Calendar) -> Result:
        view = drill_place.look_at_end(fire.path)
        report = report_facts(view)
        own_count = len(report["verdicts"])
        ended = _ended(fire, view)
        struck = _struck(fire, calendar, view)
        drill_verdicts.add_lines(fire.path, report, _kernel_lines(struck, report))
        report["verdicts"] += drill_verdicts.find_missing(
            fire.path, report, self._progress.searching
        )
        found = outcomes(struck, report, ended)
        equal, varies = None, False
        if not any(one.kind.is_silent for one in struck):
            equal, varies = self._compared(calm, fire, ended, report["warnings"], struck)
        facts = score(
            found,
            report,
            plan=self._plan.name,
            seed=self._seed,
            planned_count=len(calendar.faults),
            left_out=calendar.left_out,
            digest_equal=equal,
            ended=ended,
            leaks=_leaks(fire),
            predicted=None if self._foreseen is None else self._foreseen.ettr,
        ) | {
            "time_scale": self._plan.time_scale,
            "prediction": None if self._foreseen is None else self._foreseen.facts(),
        }
        failures = tuple(wrong(facts, found, ended.reason, plain=self._plain))
        searched = drill_text.searched_note(own_count, len(report["verdicts"]))
        return Result(
            facts,
            found,
            failures,
            (*self._notes(calendar, varies), *searched),
            str(self._folder.path),
            varies and not failures,
        )

    def _compared(
        self,
        calm: DrilledRun,
        fire: DrilledRun,
        ended: Ended,
        warnings: Sequence[str],
        fired: Sequence[Struck],
    ) -> tuple[bool | None, bool]:
        """Compare the states. If they differ, see whether those of two undisturbed runs do, too.

        A run that has warned that it is not bit-exact any more promises nothing about them.

        Return whether they are equal (None: not known), and whether the script varies by itself.
        """
        if self._plain or not ended.well:
            return None, False
        if calm.ends == fire.ends:
            return True, False
        inexact = next((one for one in warnings if "not bit-exact" in one), "")
        if inexact:
            self._said.append(f"The states differ, and the run has warned of that: {inexact}.")
        if inexact and (self._place.layout or any(one.kind.damages for one in fired)):
            return None, False
        again = self.undisturbed("undisturbed-again")
        return (False, False) if again.ends == calm.ends else (None, True)

    def _notes(self, calendar: Calendar, varies: bool) -> list[str]:
        notes = [*self._said]
        if self._foreseen is not None:
            notes.append(drill_text.predicted_note(self._foreseen.facts()))
        notes += drill_text.left_out_notes(
            calendar.left_out, self._place.reasons(calendar.left_out)
        )
        if self._plan.name.startswith("llama3") and not self._place.asked:
            notes.append(drill_text.ONE_HOST)
        if self._plain:
            notes.append(
                "The script makes no outlast call. So it is restarted as a whole, and goes on from"
                " its own checkpoint: steps after that are done again, and its state is not"
                " compared."
            )
        if varies:
            notes.append(
                "Two undisturbed runs of the script end with different states, so nothing can be"
                " said of the one under fire. Set its seeds, and let it begin from nothing each"
                " time: the next run does not see what it saves under {run}."
            )
        return notes


def _struck(fire: DrilledRun, calendar: Calendar, view: RunView) -> list[Struck]:
    began_s = view.records.sessions[-1].began_s
    planned = {one.id: one for one in calendar.faults}
    return [
        Struck(
            one.id,
            planned[one.id].kind,
            planned[one.id].stands_for,
            planned[one.id].rank,
            one.pid,
            one.at_s - began_s,
            one.step,
            one.ranks,
            one.in_force,
        )
        for one in sorted(fire.fired, key=lambda fired: fired.at_s)
    ]


def _kernel_lines(struck: Sequence[Struck], report: dict[str, typing.Any]) -> dict[int, str]:
    """Return the lines that the kernel would have written, by the interruption's number."""
    return {
        number: f"[{one.at_s:12.6f}] {KERNEL_LINES[one.kind.name].format(pid=one.pid)}"
        for number, one in begun_by(struck, report).items()
        if one.kind.name in KERNEL_LINES
    }


def _ended(fire: DrilledRun, view: RunView) -> Ended:
    """Return how the run under fire ended, and why, if it did not end well."""
    if fire.code == 0 and view.state == "ended":
        return Ended(True, view.step)
    reason = view.records.sessions[-1].session.reason or f"outlast run ended with {fire.code}"
    if fire.stood_still_s:
        reason = f"no step was committed for {fire.stood_still_s:.0f} s, so it was stopped"
    return Ended(False, view.step, reason)


def _saves(calm: DrilledRun) -> bool:
    """Return whether a run has written checkpoints to its folder before its last step."""
    saved = report_facts(look(str(calm.path)))["checkpoints"]
    return any(one["step"] is not None and one["step"] < calm.step for one in saved)


def _leaks(fire: DrilledRun) -> dict[str, typing.Any]:
    """Return what was left behind, and what the launcher used beyond its first minute's most."""
    seen = fire.processes
    out: dict[str, typing.Any] = {"processes": seen.left[0], "segments": seen.left[1]}
    names = ("descriptors", "threads", "memory_bytes", "zombies")
    if seen.usage is None:
        return out | dict.fromkeys(names)
    first, last = seen.usage
    return out | {name: getattr(last, name) - getattr(first, name) for name in names}


# --- what is refused ------------------------------------------------------------------------------


def _plan(name: str, time_scale: float | None, *, hosts: bool) -> DrillPlan:
    plan = drill_plan.named(name, hosts=hosts)
    if plan is None and not name.endswith(".toml") and not os.path.exists(name):
        raise UsageError(
            f"there is no plan {name!r}",
            hint=f"one of {', '.join(drill_plan.NAMED)}, or a TOML file",
        )
    if plan is None:
        plan = drill_plan.parse(read_text(name), source=name, hosts=hosts)
    return drill_plan.scaled(plan, time_scale)


def _check(words: Sequence[str], args: argparse.Namespace) -> None:
    """Refuse what cannot work, before anything is made."""
    if not words:
        raise UsageError("no script is named", hint="outlast drill smoke -- train.py --steps 1000")
    for word in _options_of_run(words):
        name = word.partition("=")[0].replace("_", "-")
        if name in NOT_OURS:
            raise UsageError(
                f"{word} cannot be given to a drill: it makes two runs on this machine",
                hint="leave it out; --run-dir in front of `--` names the drill's folder",
            )
        if name in OURS:
            raise UsageError(f"{word} stands after `--`", hint=f"give {name} in front of `--`")
    script = words[len(_options_of_run(words))]
    if script.endswith(".py") and not os.path.exists(script):
        raise UsageError(f"there is no script {script}", hint=f"the path counts from {os.getcwd()}")
    if args.html is not None:
        check_page(args.html)
    if args.predict is not None:
        # read it before anything runs, so that a mistake in it does not cost a whole drill
        resolve(parse(read_text(args.predict), source=args.predict))


def _options_of_run(words: Sequence[str]) -> Sequence[str]:
    """Return the words before the script: what follows it is the script's own."""
    for at, word in enumerate(words):
        if word.endswith((".py", ".pyz", ".zip")) or word in ("-m", "--module", "--no-python"):
            return words[:at]
    return words[:-1]


def _refuse_targets(
    place: drill_place.DrillPlace, plan: DrillPlan, args: argparse.Namespace, *, seed: int
) -> None:
    """Refuse faults of ranks and hosts that there are not, before anything is run."""
    size = place.ranks if place.layout is None else place.layout.world_size
    calendar = place.left_out(draw(plan, seed=seed, world_size=size, spares=args.spares))
    for one in calendar.faults:
        if one.rank >= size:
            raise UsageError(
                f"fault {one.plan_id} strikes rank {one.rank}, and the run has {size} ranks",
                hint=f"name a rank below {size}, or raise --nproc-per-node",
            )
    place.refuse_numbers(calendar)
