"""Choose the rung of the ladder by which the run recovers from an interruption, and say why.

    repeat     every process lives; the step is repeated in place
    spare      a parked spare takes the lost rank
    respawn    a fork of the zygote takes the lost rank
    reenter    every process lives, and enters main's function again
    restart    all ranks start again
    stop       the run ends

The script's `recovery_mode` says whether survivors can go on in place, have to enter main's
function again, or have to restart. A lost rank is given to a spare if one is parked, and to a fork
of the zygote otherwise.

This module is pure: no clock, no files, no torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed

from outlast.engine.budget import Budgets, default_budgets
from outlast.model import limits
from outlast.model.terms import Rung

RECOVERY_MODES = ("in_place", "reenter", "respawn", "plain")  # cheapest first


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts by which the rung is chosen.

    lost                ranks whose process is gone or was killed
    raised              ranks that are alive and raised in user code, not because a collective
                        failed
    recovery_mode       the costliest of the members' modes
    state               there is live or sealed state to go on from (engine/restore.py found a step)
    committed           the newest step that some rank has committed
    reached             the newest step that some rank has executed since the newest plan; if none,
                        the step from which that plan goes on
    error               the newest error, for a verdict of stop
    trained             a step was committed in this run
    free                no process has failed: a link between nodes has, or the run itself takes a
                        node out. No budget is charged
    all_raised          the script of every rank has ended by an error that it raised
    ended_in_run_phase  at least one of these scripts has ended in a phase (run.phase). The errors
                        before that one only repeated the phase
    outside             every lost rank was killed by SIGKILL, and the kernel has counted no lack of
                        memory. A script cannot cause that by its own mistake
    now_s               the time of the decision
    state_is_live       some process stands in a step with the state. Otherwise the state is only
                        sealed, and `recovery_mode` is "respawn" for every script
    """

    lost: tuple[int, ...]
    raised: tuple[int, ...]
    recovery_mode: str
    state: bool
    committed: int
    reached: int
    error: str
    trained: bool
    free: bool = False
    all_raised: bool = False
    ended_in_run_phase: bool = False
    outside: bool = False
    state_is_live: bool = True
    now_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RecoveryVerdict:
    """The rung of a recovery, and why it was chosen.

    survivors   "in_place", "reenter" or "exit" (all ranks restart)
    replace     for each lost rank the worker number of its spare, or -1 for a fork of the zygote
    budgets     the budgets after this recovery; None: they do not change
    """

    rung: Rung
    survivors: str
    replace: dict[int, int]
    reason: str
    budgets: Budgets | None = field(default=None, compare=False, repr=False)


def decide_rung(
    *, situation: Situation, spares: Sequence[int], budgets: Budgets, world_size: int
) -> RecoveryVerdict:
    """Choose the rung. Its cost is taken from a copy of `budgets`, which the verdict returns.

    spares   for each rank to be replaced, in rising order, the spare that may take it, or -1
    """
    left = budgets.copy()
    if situation.free:
        # An interruption without a faulty process is free.
        spent = default_budgets(None)
    else:
        spent = left
    verdict = _pick(situation, spares, spent, world_size)
    return changed(verdict, budgets=left)


def _pick(
    situation: Situation, spares: Sequence[int], budgets: Budgets, world_size: int
) -> RecoveryVerdict:
    """Choose the rung, and take its cost from `budgets`."""
    budgets.note_fault(
        step=situation.committed,
        reached=situation.reached,
        outside=situation.outside,
        now_s=situation.now_s,
    )
    if why := _cannot_start(situation, budgets):
        return _stop(why, situation)
    if situation.recovery_mode != "plain" and (loop := _crash_loop(situation, budgets)):
        # The run fails again and again at the same place.
        return _stop(loop, situation)
    lost = set(situation.lost)
    if not lost and situation.state and situation.recovery_mode == "in_place":
        if budgets.take_repeat():
            return RecoveryVerdict(
                Rung.REPEAT, "in_place", {}, "every process lives: the step is repeated in place"
            )
        # Repeating the step has been tried often enough. These processes fail again and again, so
        # try new ones.
        lost = set(situation.raised)
    if (
        situation.recovery_mode == "plain"
        or not situation.state
        or situation.recovery_mode == "respawn"
        or len(lost) == world_size
    ):
        return _restart(situation, budgets, left=world_size - len(lost))
    if not lost and situation.recovery_mode == "in_place":
        # no process is to blame, and repeating has been tried
        return _restart(situation, budgets, left=world_size)
    if not lost:
        return RecoveryVerdict(
            Rung.REENTER, "reenter", {}, "every process lives: all enter main's function again"
        )
    return _replace(situation, sorted(lost), spares, budgets)


# Errors that every start repeats: of a script that Python cannot read, of an import that is
# misspelt or not installed, and of arguments that argparse or click do not accept.
_FAILS_EACH_TIME = re.compile(
    r"(?:SyntaxError|IndentationError|TabError|ModuleNotFoundError): "
    r"|\S+: error: (?:the following arguments are required|unrecognized arguments|argument "
    r"|ambiguous option|one of the arguments|invalid choice)"
    r"|Error: (?:Missing (?:argument|option)|No such option|Invalid value for)"
)


def _cannot_start(situation: Situation, budgets: Budgets) -> str:
    """Return why it makes no sense to start the script again, or "".

    Without this, a misspelt import would show the same traceback several times.
    """
    if situation.trained or budgets.restarts_paid:
        # The script has worked, or the user has named a number of restarts.
        return ""
    if not _FAILS_EACH_TIME.match(situation.error):
        return ""
    return "the script would fail in the same way if it were started again"


def _crash_loop(situation: Situation, budgets: Budgets) -> str:
    """Return why the run is in a crash loop, or "".

    A run that commits new steps is in no crash loop, however often it is interrupted.
    """
    trained, since = situation.trained, f"after step {situation.committed}"
    if situation.outside:
        # The kills may end, and then the run goes on: only a long standstill ends it.
        borne = limits.STRIKES_COUNT if trained else limits.SETUP_STRIKES_COUNT
        stood_s = situation.now_s - budgets.stands_since_s
        if budgets.strikes <= borne or stood_s < limits.STRIKES_STANDSTILL_S:
            return ""
        return (
            f"{budgets.strikes} interruptions without a step committed {since}: ranks are killed"
            f" from outside again and again, and the run has stood still for {stood_s:.0f} s"
        )
    if budgets.at_step > limits.SAME_STEP_FAULTS_COUNT and trained:
        return (
            f"{budgets.at_step} interruptions without a step executed after step"
            f" {situation.reached}: a crash loop"
        )
    if budgets.since_step > (
        limits.STANDSTILL_FAULTS_COUNT if trained else limits.SETUP_FAULTS_COUNT
    ):
        return f"{budgets.since_step} interruptions without a step committed {since}: a crash loop"
    return ""


def _replace(
    situation: Situation, lost: list[int], spares: Sequence[int], budgets: Budgets
) -> RecoveryVerdict:
    replace = dict.fromkeys(lost, -1)
    for rank, spare in zip(lost, spares, strict=False):
        replace[rank] = spare
    # One token pays for all of them, because the loss of a node with many ranks is one loss. Kills
    # from outside are free.
    if not situation.outside and not budgets.respawns.take(step=situation.committed):
        # The budget of replacements is used up, so the run ends.
        return _stop(
            f"the budget of {budgets.respawns.capacity} replacements is spent and too few steps"
            " were committed since to refill it",
            situation,
        )
    return replacing(replace, survivors=situation.recovery_mode)


def replacing(replace: dict[int, int], *, survivors: str) -> RecoveryVerdict:
    """Return the verdict that replaces lost ranks while the survivors go on.

    survivors   "in_place" or "reenter"
    replace     for each lost rank the spare that takes it, or -1 for a fork
    """
    how = "go on in place" if survivors == "in_place" else "enter main's function again"
    lost, taken = sorted(replace), [worker for worker in replace.values() if worker >= 0]
    if len(taken) == len(lost):
        return RecoveryVerdict(
            Rung.SPARE, survivors, replace, f"ranks {lost} are taken by spares; survivors {how}"
        )
    reason = (
        f"ranks {lost} are forked from the zygote{' or taken by spares' if taken else ''};"
        f" survivors {how}"
    )
    return RecoveryVerdict(Rung.RESPAWN, survivors, replace, reason)


def _restart(situation: Situation, budgets: Budgets, *, left: int) -> RecoveryVerdict:
    """Return the verdict of a restart, or of a stop if the budget of restarts is spent.

    left   how many processes are alive and have not failed
    """
    if situation.all_raised and situation.ended_in_run_phase:
        # Ranks that all start again go on with the next step, as if the phase had been done.
        return _stop(
            "every rank raised in a phase until its script ended, and a restart of all ranks would"
            " leave that phase out",
            situation,
        )
    if situation.all_raised and situation.trained and situation.recovery_mode != "plain":
        again = budgets.restarts.repeats_reason(step=situation.reached, error=situation.error)
        if again and not budgets.restarts_paid:
            # If all ranks raise the same error twice, it is an error of the script, and another
            # restart would not help.
            return _stop(
                f"every rank raised after step {situation.reached}, and again after all ranks had"
                " been started again",
                situation,
            )
    # Kills from outside are free where _crash_loop bounds them, and the user has set no number.
    free = situation.outside and situation.recovery_mode != "plain" and not budgets.restarts_paid
    if not free and not budgets.restarts.take(step=situation.committed):
        # The budget of restarts is used up, so the run ends.
        most = budgets.restarts.capacity
        spent = f"{most} whole restarts without enough progress in between"
        none = "0 whole restarts are allowed (--max-restarts), and all ranks would have to restart"
        return _stop(spent if most else none, situation)
    if situation.recovery_mode == "plain":
        why = "a script that has made no outlast call is restarted as a whole"
    elif not situation.state:
        why = "no live or sealed state is left: all ranks restart"
    elif not situation.state_is_live:
        why = "no process stands in a step with the state that there is: all ranks restart"
    elif not left:
        why = "no process is left: all ranks restart"
    elif situation.recovery_mode == "in_place":
        why = "the step fails again and again with every process alive: all ranks restart"
    else:
        own = "made collectives of its own before run.steps, or a process group or mesh"
        why = f"the script {own}, outside outlast.main: all ranks restart"
    rung = (
        Rung.RESPAWN if situation.state and situation.recovery_mode == "respawn" else Rung.RESTART
    )
    return RecoveryVerdict(rung, "exit", {}, why)


def _stop(reason: str, situation: Situation) -> RecoveryVerdict:
    return RecoveryVerdict(
        Rung.STOP,
        "exit",
        {},
        f"{reason}; last error: {situation.error}" if situation.error else reason,
    )
