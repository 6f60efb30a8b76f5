"""The runs of `outlast check`, and what they show.

A script that calls outlast runs undisturbed, and then with two ranks killed. In step 4 the last
rank is killed, and a spare takes its place. In step 6 rank 0 is killed. If the state then differs,
and no variable explains why, the script runs undisturbed once more. That shows whether it gives
other results each time.

A script without outlast calls runs undisturbed, and then with one rank killed after step 4, to see
with which step it goes on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from outlast.diagnose.scripts.assignments import last_set
from outlast.diagnose.scripts.carried import temporaries
from outlast.diagnose.scripts.only_shown import is_only_shown, is_read_before
from outlast.diagnose.scripts.script_calls import Remark
from outlast.diagnose.scripts.script_text import ScriptText
from outlast.diagnose.scripts.trial_comparison import (
    Comparison,
    KilledRank,
    ScriptLoop,
    Variable,
    compare,
)
from outlast.diagnose.scripts.trial_remarks import (
    failure_remark,
    is_of_a_meter,
    is_of_the_start,
    meters_note,
    own_differences,
    resumption,
    start_note,
    state_remark,
    unseen_remark,
    variable_remark,
)
from outlast.model.limits import TRIAL_KILL_STEPS
from outlast.model.own_bugs import is_own_bug
from outlast.runtime import clock, stop_signals
from outlast.runtime.folders.given import read_text
from outlast.runtime.trials import TrialFolder, TrialRun

_TAIL_LINES = 12
_UNSEEN = (
    "no call of a torch optimizer was seen; if the script updates its parameters by itself, call"
    " outlast.tick(iteration) after each iteration"
)


@dataclass(frozen=True, slots=True)
class TrialOptions:
    """The options of the command line.

    script      the path of the script, absolute
    module      its name, if it is run with `-m`; "" otherwise
    home        the folder of the script's own modules
    arguments   the arguments of the script
    workers     how many ranks
    steps       the step after which the script ends
    limit_s     how many seconds all runs together may take
    """

    script: str
    module: str
    home: str
    arguments: tuple[str, ...]
    workers: int
    steps: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of a check.

    remarks        lines of the script that should be changed
    seen           what was tried, in sentences
    undetermined   what could not be decided, and why
    touched        files that the script wrote
    trained        the undisturbed run trained to its end, so nothing was refused
    """

    remarks: tuple[Remark, ...] = ()
    seen: tuple[str, ...] = ()
    undetermined: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    trained: bool = False


def try_script(options: TrialOptions, text: ScriptText) -> Findings:
    """Run the script, and return what was found. Files and processes of the runs are removed."""
    with stop_signals.raising(), TrialFolder(options.home) as folder:
        check = _Check(options, folder, clock.now_s() + options.limit_s)
        undisturbed = check.run_undisturbed()
        if text.calls_outlast or undisturbed.notes:
            trained = undisturbed.code == 0 and bool(undisturbed.notes)
            return replace(check.check_adopted(undisturbed), trained=trained)
        return check.check_plain(undisturbed)


class _Check:
    """The runs of one check. At `until_s` all of them are stopped."""

    def __init__(self, options: TrialOptions, folder: TrialFolder, until_s: float) -> None:
        self._options = options
        self._folder = folder
        self._until_s = until_s
        self._touched: set[str] = set()
        self._sources: dict[str, str] = {}

    def run_undisturbed(self) -> TrialRun:
        """Run the script undisturbed."""
        return self._run("undisturbed", "--max-restarts", "0")

    def check_adopted(self, undisturbed: TrialRun) -> Findings:
        """Check a script that calls outlast, or whose library does."""
        if (ended := self._unfit(undisturbed)) is not None:
            return ended
        strikes = (
            KilledRank(self._options.workers - 1, TRIAL_KILL_STEPS[0]),
            KilledRank(0, TRIAL_KILL_STEPS[1]),
        )
        disturbed = self._run(
            "disturbed",
            "--max-restarts",
            "5",
            "--spares",
            "1",
            strikes=strikes,
            spare_step=TRIAL_KILL_STEPS[0],
        )
        spare = _spare_remarks(disturbed, self._options.script)
        if not disturbed.struck:
            why = "no rank reached an optimizer call in step 4, so none was killed"
            return self._findings(spare, undetermined=[f"{why}{_tail(disturbed)}"])
        killed = " and ".join(f"rank {one.rank} in step {one.step}" for one in disturbed.struck)
        found = compare(
            undisturbed.notes, disturbed.notes, disturbed.struck, self._temporaries(undisturbed)
        )
        found = self._without_unused(found, _loop(undisturbed))
        seen = [
            f"Tried: {self._options.steps} steps on {self._options.workers} ranks; killed and"
            f" replaced: {killed}; compared up to step {found.last_step}."
        ]
        if disturbed.code != 0:
            failed = self._not_recovered(disturbed, killed)
            if not found.variables:
                return self._findings([*spare, failed], seen=seen)
            seen.append(f"Then {failed.what}.")
            remarks = self._variables(found, _loop(undisturbed))
            return self._findings([*spare, *remarks], seen=seen)
        if not found.state and not found.own:
            seen.append("Every rank's state was equal to that of an undisturbed run, bit for bit.")
            seen += self._meters(found)
            seen += self._of_the_start(found, _loop(undisturbed))
        seen += _warnings(undisturbed)
        seen.append(f"Not seen: what the script does only after step {self._options.steps}.")
        remarks, undetermined = self._judged(undisturbed, found)
        return self._findings([*spare, *remarks], seen=seen, undetermined=undetermined)

    def _without_unused(self, found: Comparison, loop: ScriptLoop) -> Comparison:
        """Leave out variables that nothing reads any more once the loop has begun."""
        used = tuple(
            one
            for one in found.variables
            if (one.file, one.function) != (loop.file, loop.function)
            or not is_read_before(self._source(one.file), one.function, one.name, loop.line)
        )
        return replace(found, variables=used)

    def _judged(self, undisturbed: TrialRun, found: Comparison) -> tuple[list[Remark], list[str]]:
        remarks = self._variables(found, _loop(undisturbed))
        if found.last_step == 0:
            return remarks, ["no step ended on every rank in both runs"]
        if found.own:
            return remarks, [own_differences(found)]
        if found.state and not remarks:
            again = self._run("again", "--max-restarts", "0")
            if again.code != 0:
                return [], [
                    "the state differs, and there was no time to see whether it always does"
                ]
            calm = compare(undisturbed.notes, again.notes, (), ())
            if calm.state or calm.own:
                return [], [own_differences(_as_own(calm))]
            suspects = [unseen_remark(found, one, self._source(one.file)) for one in found.unseen]
            named = [one for one in suspects if one is not None]
            return named or [state_remark(found, _loop(undisturbed))], []
        return remarks, []

    def _meters(self, found: Comparison) -> list[str]:
        """Say which averages start over, where the state does not depend on them."""
        meters = [
            one
            for one in found.variables
            if self._is_only_shown(one) or is_of_a_meter(one, self._source(one.file))
        ]
        placed = [
            (one, variable_remark(one, self._source(one.file), changes=0).line) for one in meters
        ]
        return [meters_note(placed)] if placed else []

    def _of_the_start(self, found: Comparison, loop: ScriptLoop) -> list[str]:
        """Return a note on the texts and paths that a replaced rank sets anew, if there are any."""
        texts = [
            one for one in found.variables if is_of_the_start(one, self._source(one.file), loop)
        ]
        placed = [(one, last_set(self._source(one.file), one.function, one.name)) for one in texts]
        return [start_note(placed)] if placed else []

    def _variables(self, found: Comparison, loop: ScriptLoop) -> list[Remark]:
        named = {
            # a model and its wrapper have the same attributes
            (remark.file, remark.line, one.name.rpartition(".")[2]): remark
            for one in found.variables
            if not self._is_only_shown(one)
            if found.state or not self._is_harmless(one, loop)
            for remark in [variable_remark(one, self._source(one.file), changes=found.differs_from)]
        }
        return list(named.values())

    def _is_harmless(self, one: Variable, loop: ScriptLoop) -> bool:
        """Return whether a lost variable needs no change, as the state of all ranks was equal."""
        source = self._source(one.file)
        return is_of_a_meter(one, source) or is_of_the_start(one, source, loop)

    def _is_only_shown(self, one: Variable) -> bool:
        return is_only_shown(self._source(one.file), one.function, one.name)

    def check_plain(self, undisturbed: TrialRun) -> Findings:
        """Check a script without outlast calls."""
        if undisturbed.code != 0 and (ended := self._unfit(undisturbed)) is not None:
            return ended
        if not undisturbed.steps:
            return self._findings([], undetermined=[_UNSEEN])
        killed_step = TRIAL_KILL_STEPS[0]
        disturbed = self._run(
            "disturbed",
            "--max-restarts",
            "2",
            strikes=(KilledRank(self._options.workers - 1, killed_step),),
            mark="stepped",
        )
        if not disturbed.struck:
            return self._findings([], undetermined=[f"it ended before step {killed_step}"])
        said = f"Tried: a rank was killed after step {killed_step}; "
        said += resumption(disturbed.steps, killed_after=killed_step) + "."
        return self._findings([], seen=[said, *_warnings(undisturbed)])

    # --- one run ----------------------------------------------------------------------------------

    def _run(
        self,
        name: str,
        *options: str,
        strikes: tuple[KilledRank, ...] = (),
        mark: str = "stepping",
        spare_step: int = 0,
    ) -> TrialRun:
        words = [
            "--nproc-per-node",
            str(self._options.workers),
            "--quiet",
            *options,
            *(["-m", self._options.module] if self._options.module else [self._options.script]),
            *self._options.arguments,
        ]
        run = self._folder.run(
            name,
            words,
            steps=self._options.steps,
            strikes=strikes,
            mark=mark,
            spare_step=spare_step,
            until_s=self._until_s,
        )
        self._touched.update(run.touched)
        return run

    def _unfit(self, undisturbed: TrialRun) -> Findings | None:
        """Return what to say if the undisturbed run cannot be compared with anything."""
        if undisturbed.code is None:
            return self._findings(
                [],
                undetermined=[
                    f"the script was not over step {self._options.steps} after"
                    f" {self._options.limit_s:g} s (--time-limit){_tail(undisturbed)}"
                ],
            )
        if is_own_bug(undisturbed.stderr):
            return self._findings([], undetermined=[f"outlast itself failed{_tail(undisturbed)}"])
        if undisturbed.code != 0:
            return self._findings([failure_remark(undisturbed.stderr, self._options.script)])
        if not undisturbed.notes:
            why = "the script ended well, and no step of run.steps was seen"
            return self._findings([], undetermined=[f"{why}{_tail(undisturbed)}"])
        return None

    def _not_recovered(self, disturbed: TrialRun, killed: str) -> Remark:
        if disturbed.code is None:
            what = f"after the kill of {killed} the run had not gone on when time was up"
            return Remark(
                1, f"{what}{_tail(disturbed)}", "read what the ranks say; raise --time-limit"
            )
        found = failure_remark(disturbed.stderr, self._options.script, replaced=True)
        what = f"after the kill of {killed} the run failed: {found.what}"
        return Remark(found.line, what, found.do, file=found.file)

    def _findings(
        self,
        remarks: list[Remark],
        *,
        seen: list[str] | None = None,
        undetermined: list[str] | None = None,
    ) -> Findings:
        mine = [
            Remark(one.line, one.what, one.do, about=one.about)
            if one.file == self._options.script
            else one
            for one in remarks
        ]
        return Findings(
            tuple(mine), tuple(seen or ()), tuple(undetermined or ()), tuple(sorted(self._touched))
        )

    # --- texts ------------------------------------------------------------------------------------

    def _temporaries(self, undisturbed: TrialRun) -> set[str]:
        loops = {noted.loop for noted in undisturbed.notes.values()}
        return {
            f"{loop.file}:{loop.function}:{name}"
            for loop in loops
            for name in temporaries(self._source(loop.file), loop.line)
        }

    def _source(self, path: str) -> str:
        if path not in self._sources:
            self._sources[path] = read_text(path)
        return self._sources[path]


def _loop(run: TrialRun) -> ScriptLoop:
    return next(iter(run.notes.values())).loop


def _as_own(found: Comparison) -> Comparison:
    parts = {part for parts in found.state.values() for part in parts}
    return Comparison((), {}, 0, (*found.own, *sorted(parts)), found.last_step)


def _spare_remarks(disturbed: TrialRun, script: str) -> list[Remark]:
    if not disturbed.spare:
        return []
    found = failure_remark(disturbed.spare, script)
    what = f"a spare, which runs the script before it has a rank, failed: {found.what}"
    do = (
        "read rank and world size from outlast.join(), or RANK by os.environ at the place of its"
        " use"
    )
    return [Remark(found.line, what, do, file=found.file)]


def _warnings(run: TrialRun) -> list[str]:
    """Return what outlast warned of in a run, each once."""
    found = re.findall("^outlast warning: (.*)$", run.stderr, re.MULTILINE)
    return [f"Warned of: {one}" for one in dict.fromkeys(found)]


def _tail(run: TrialRun) -> str:
    text = (run.stderr or run.stdout).rstrip().splitlines()[-_TAIL_LINES:]
    return ":\n    " + "\n    ".join(text) if text else ""
