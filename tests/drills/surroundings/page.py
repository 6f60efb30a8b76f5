"""docs/explanation/what-survives-what.md, made from the table."""

from __future__ import annotations

from itertools import groupby

from tests.drills.surroundings.table import LEFT_OUT, ROWS, Row, cells

HEAD = """\
# What survives what

A run depends on its console, its helper processes, its folders, the machine's limits, and the
people who use the machine. This page says what happens to training when one of these stops, dies,
is removed, fills up or comes back. It is generated from the table of a drill, by

    python -m tests.drills.surroundings --page

Each row is tested with real processes, at the moments that it names. Its tests are those of
`tests/drills/test_surroundings.py` whose names contain the thing and what happens to it, as in
`test_a_cell_of_the_table[store-host:-dies-regroup]`.

*Training goes on* means that the run reaches its last step with exit code 0, never pauses for
longer than 30 seconds, and ends with weights that are bit for bit those of an undisturbed run. If a
run ends early, a sentence on the console names the cause.

The moments are *start* (no step is committed yet), *training*, *regroup* (right after a rank was
killed), *checkpoint* (a checkpoint is being written) and *end* (after the last step). Where the
moment makes no difference, some moments were chosen at random.

"""


def page() -> str:
    """Return the whole page."""
    moments: dict[str, list[str]] = {}
    for cell in cells():
        moments.setdefault(cell.row.name, []).append(cell.moment.value)
    out = [HEAD.rstrip("\n"), ""]
    for thing, rows in groupby(ROWS, key=lambda row: row.thing):
        out += [f"## {thing[0].upper()}{thing[1:]}", ""]
        out += ["| what happens | tried at | what the run does | what you see |"]
        out += ["|---|---|---|---|"]
        out += [_line(row, moments[row.name]) for row in rows]
        out.append("")
    out += ["## Not tested, and why", ""]
    out += [f"- {what}: {why}." for what, why in LEFT_OUT]
    return "\n".join(out) + "\n"


def _line(row: Row, moments: list[str]) -> str:
    when = "each" if len(moments) == 5 else ", ".join(moments)
    if row.act == "do_nothing":
        when = "the whole run"
    sees = row.sees or "nothing, or an interruption"
    return f"| {row.happens} | {when} | {_outcome(row)} | {sees} |"


def _outcome(row: Row) -> str:
    if row.codes == (0,):
        text = "training goes on"
    else:
        code = row.codes[0]
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        text = f"the run ends ({how}); this is kept: {row.kept}"
        if 0 in row.codes:
            text = f"training goes on, or the run ends; then this is kept: {row.kept}"
        if row.resumes:
            text += "; `--resume` reaches the same weights"
    if row.within_s != 30.0:
        text += f"; it may stand still for {row.within_s:g} s, because {row.because}"
    return text
