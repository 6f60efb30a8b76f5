"""The words of `outlast drill`: how it goes on, and the score as a text."""

from __future__ import annotations

import contextlib
import textwrap
import typing
from collections import Counter
from collections.abc import Iterable, Mapping

from outlast.app import words
from outlast.app.drills import drill_sides_text
from outlast.app.drills.drill_result import Result
from outlast.model.drills.drill_faults import Leaves
from outlast.model.drills.drill_score import Outcome, spread
from outlast.model.terms import FailureClass
from outlast.model.texts import count, escaped
from outlast.runtime import clock
from outlast.runtime.drill.drill_runs import DrillView
from outlast.sim.drill_calendar import why_left_out

LEGEND = (
    "MTTR is the time from a fault to the first newly committed step. ETTR is the share of all"
    ' rank-seconds that trained. "lost" is how long the run would have trained instead.'
    ' "stands for" is the row of Llama 3\'s table of interruptions.'
)
ONE_HOST = (
    "On one host a rank that is stopped stands for a broken link, and a rank that is killed for a"
    " host that is lost."
)
NOTE_COLUMNS = 100
SHOWN_EACH_S = 0.25
SAID_EACH_S = 60.0  # where nobody looks at a terminal


class DrillProgress:
    """Show the progress of a drill on stderr: one line that changes, if it is a terminal.

    A reader that is gone (`2>&1 | head`, a closed terminal) does not end the drill.
    """

    def __init__(self, stream: typing.TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._last_s = clock.now_s()

    def begin(self, text: str) -> None:
        """Print what begins."""
        self._last_s = clock.now_s()
        self._write(f"outlast drill: {text}\n")

    def show(self, seen: DrillView) -> None:
        """Show how far the run has come, unless that was shown a moment ago."""
        now_s = clock.now_s()
        if now_s - self._last_s < (SHOWN_EACH_S if self._live else SAID_EACH_S):
            return
        self._last_s = now_s
        line = f"  step {seen.step:,}, {words.duration(seen.since_s)}"
        if seen.fired_count or seen.left_count:
            line += f", {seen.fired_count} of {seen.fired_count + seen.left_count} faults"
        self._write(f"\r{line}\033[K" if self._live else f"{line}\n")

    def searching(self, count_of: int) -> None:
        """Print that the run is over, and that causes are looked for."""
        self._write(
            "outlast drill: the run is over; the causes of"
            f" {count(count_of, 'interruption')} are looked for in its evidence\n"
        )

    def end(self, step: int, trained_s: float) -> None:
        """Print how many steps the run made, in how many seconds."""
        line = f"  {count(step, 'step')} in {words.duration(trained_s)}"
        self._write(f"\r{line}\033[K\n" if self._live else f"{line}\n")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def left_out_notes(left_out: Mapping[str, int], reasons: Mapping[str, str]) -> list[str]:
    """Say which faults were left out, and why. `reasons`: why a kind cannot be had here."""
    return [
        f"Left out: {number} x {name}, because {reasons.get(name) or why_left_out(name)}."
        for name, number in sorted(left_out.items())
    ]


def searched_note(own_count: int, every_count: int) -> list[str]:
    """Say how many verdicts the run itself has found, if the drill had to find some."""
    if own_count == every_count:
        return []
    return [
        f"The run itself had {own_count} of {count(every_count, 'verdict')} by its end. It looks"
        " for causes when nothing else wants the processor. The drill found the others afterwards,"
        " in the evidence that the run has kept."
    ]


def result_text(result: Result) -> str:
    """Return the score as people read it."""
    lines = [f"{name:<13}{value}" for name, value in rows(result)]
    lines += ["", *_table(by_kind(result.found)), ""]
    for note in (LEGEND, *result.notes):
        lines += textwrap.wrap(note, NOTE_COLUMNS, break_on_hyphens=False)
    if result.beside is not None:
        lines += ["", *drill_sides_text.table(result.beside), "", *result.beside.notes]
    lines.append(f"Both runs are in {result.folder}; `outlast report` shows each second.")
    lines += ["", *(f"failed: {one}" for one in result.wrong)]
    if not result.wrong:
        lines.append(verdict_word(result))
    return escaped("\n".join(lines), lines=True)


def verdict_word(result: Result) -> str:
    """Return the whole result in a few words."""
    if result.wrong:
        return "failed"
    if result.varies:
        return "undetermined"
    if result.facts["silent"] is not None:
        return "the flipped bit was found, and the run ended"
    again = result.facts["steps_lost"]
    if not again:
        return "nothing was lost"
    as_promised = result.facts["redundancy"]["steps_lost_beyond"] == 0
    allowed = ", as the redundancy in force allowed" if as_promised else ""
    return f"survived, with {count(again, 'step')} done again{allowed}"


def rows(result: Result) -> list[tuple[str, str]]:
    """Return the figures of the score, each with its name."""
    facts = result.facts
    fired = f"{facts['faults_planned']} planned, {facts['faults_fired']} fired"
    return [
        ("plan", f"{facts['plan']}, seed {facts['seed']}, {count(facts['steps'], 'step')}"),
        ("faults", f"{fired}, {facts['survived']} survived"),
        ("people", "needed" if facts["manual_interventions"] else "not needed"),
        *([("flipped bit", _silent(facts["silent"]))] if facts["silent"] is not None else []),
        ("steps lost", _or_unknown(facts["steps_lost"])),
        ("redundancy", _redundancy(facts["redundancy"], facts["faults_fired"])),
        ("state", _STATE[facts["digest_equal"]]),
        ("MTTR", _spread(facts["mttr_s"])),
        ("ETTR", _ettr(facts)),
        *([("predicted", _predicted(facts))] if facts.get("prediction") else []),
        ("diagnosis", _diagnosis(facts["diagnosis"], result.found)),
        ("left behind", _leaks(facts["leaks"])),
    ]


_STATE = {
    True: "equal on every rank, bit for bit, to that of the undisturbed run",
    False: "DIFFERS from that of the undisturbed run",
    None: "not compared",
}


def _silent(facts: Mapping[str, typing.Any]) -> str:
    if not facts["found"]:
        return "not found"
    after = f"found {count(facts['after_steps'], 'step')} later"
    return after + (", and its rank named" if facts["named_rank"] else ", without its rank")


def _redundancy(facts: Mapping[str, typing.Any], fired: int) -> str:
    """Return the least that there was to fall back on when a fault struck."""
    if not facts["recorded"]:
        return "not recorded"
    least = facts["least"]
    parts = [_copies(least["copies"]), count(least["spares"], "spare")]
    if least["nodes_survived"]:
        parts.append(f"{count(least['nodes_survived'], 'node')} that may be lost")
    missing = fired - facts["recorded"]
    return (
        f"at least {', '.join(filter(None, parts))} at each fault; the newest image or checkpoint"
        f" was at most {count(least['behind_steps'], 'step')} old"
        + (f"; not recorded with {count(missing, 'fault')}" if missing else "")
    )


def _copies(number: int | None) -> str:
    return "" if number is None else count(number, "copy", "copies")


def fallback(one: Outcome) -> str:
    """Return what the run had to fall back on when a fault struck, as `3 copies, 1 spare`."""
    then = one.struck.in_force
    if then is None or not then.is_known:
        return "not recorded"
    parts = [_copies(then.copies), count(then.spares, "spare")]
    if then.copies is None or then.copies < 2:
        parts.append(f"image {count(then.behind_steps, 'step')} old")
    return ", ".join(filter(None, parts))


def by_kind(found: Iterable[Outcome]) -> list[dict[str, typing.Any]]:
    """Return a row for each kind of fault and class that it stands for."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for one in found:
        key = (one.struck.kind.name, one.struck.stands_for.value)
        groups.setdefault(key, []).append(one)
    return [
        {
            "kind": kind,
            "stands_for": stands_for.replace("_", " "),
            "count": len(some),
            "survived": sum(one.survived for one in some),
            "mttr_s": spread(one.mttr_s for one in some if one.mttr_s is not None),
            "lost_s": sum(one.lost_s for one in some),
            "said": _said(some),
        }
        for (kind, stands_for), some in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]


def said(one: Outcome) -> str:
    """Return what the diagnosis said of a fault, in a word or two."""
    if not one.judged:
        return "nothing"
    if one.judged == "right" and one.said == FailureClass.UNKNOWN.value:
        # all that is left of such a fault
        left = {Leaves.CODE: "the exit code", Leaves.TRACEBACK: "the worker"}
        return left.get(one.struck.kind.leaves, "the signal")
    return one.said.replace("_", " ")


def _said(some: Iterable[Outcome]) -> str:
    counts = Counter(map(said, some))
    return ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))


def _table(some: list[dict[str, typing.Any]]) -> list[str]:
    head = ("fault", "stands for", "fired", "survived", "MTTR median", "max", "lost", "cause named")
    cells = [
        (
            one["kind"],
            one["stands_for"],
            str(one["count"]),
            str(one["survived"]),
            _seconds(one["mttr_s"]["median"]),
            _seconds(one["mttr_s"]["max"]),
            _seconds(one["lost_s"] or None),
            one["said"],
        )
        for one in some
    ]
    widths = [max(len(row[at]) for row in [head, *cells]) for at in range(len(head))]
    right = (2, 3, 4, 5, 6)
    return [
        "  ".join(
            cell.rjust(widths[at]) if at in right else cell.ljust(widths[at])
            for at, cell in enumerate(row)
        ).rstrip()
        for row in [head, *cells]
    ]


def _seconds(value: float | None) -> str:
    return "-" if value is None else words.duration(value)


def _spread(some: Mapping[str, float | None]) -> str:
    if some["median"] is None:
        return "nothing was interrupted"
    return (
        f"median {_seconds(some['median'])}, 95 % below {_seconds(some['p95'])}, maximum"
        f" {_seconds(some['max'])}"
    )


def _ettr(facts: Mapping[str, typing.Any]) -> str:
    if facts["ettr"] is None:
        return "not known, because not all steps that stayed were seen"
    return (
        f"{words.percent(facts['ettr'])} of all rank-seconds,"
        f" {words.percent(facts['ettr_training'])} without start-up and shutdown"
    )


def _predicted(facts: Mapping[str, typing.Any]) -> str:
    """Say what was predicted before the first fault, from what, and how far off it was."""
    told = facts["prediction"]
    low, high = words.percent(told["low"]), words.percent(told["high"])
    text = f"{words.percent(told['ettr_training'])} ({low} to {high}) without start-up and shutdown"
    came = facts["ettr_training"]
    if came is not None:
        text += f"; {_apart(told['ettr_training'], came)} than what came"
        if told["naive"] is not None:
            text += f". A naive predictor: {words.percent(told['naive'])}"
    return text


def _apart(predicted: float, came: float) -> str:
    points = 100 * (predicted - came)
    return f"{abs(points):.1f} points {'more' if points >= 0 else 'less'}"


def predicted_note(told: Mapping[str, typing.Any]) -> str:
    """Say where a prediction comes from, and how uncertain it is."""
    naive = (
        ""
        if told["naive"] is None
        else " The naive predictor takes each fault for the end of a process."
    )
    return (
        f"The ETTR was predicted before the first fault, from {told['basis']}. The range is that of"
        f" {told['between']}.{naive}"
    )


def _diagnosis(counts: Mapping[str, int], found: Iterable[Outcome]) -> str:
    bare = sum(
        one.judged == "unknown" and one.struck.kind.leaves is Leaves.NOTHING for one in found
    )
    sure = counts["confident_wrong"]
    wrong = f"{counts['wrong']} wrong" + (f" ({sure} of them confident)" if sure else "")
    left = f" ({bare} of them left no cause to name)" if bare else ""
    return f"{counts['right']} causes named right, {wrong}, {counts['unknown']} unknown{left}"


def _leaks(some: Mapping[str, typing.Any]) -> str:
    left = f"{count(some['processes'], 'process', 'processes')}, "
    left += count(some["segments"], "file in shared memory", "files in shared memory")
    if not some["processes"] and not some["segments"]:
        left = "nothing"
    if some["descriptors"] is None:
        return left
    return (
        f"{left}. At the end the launcher used, beside the most of its first minute:"
        f" {some['descriptors']:+d} descriptors,"
        f" {some['threads']:+d} threads, {some['memory_bytes'] / 2**20:+.1f} MiB,"
        f" {some['zombies']:+d} zombies"
    )


def _or_unknown(value: int | None) -> str:
    return "not known" if value is None else f"{value:,}"
