"""Run a drawn script undisturbed and under its faults, and compare the whole state of every rank.

    found = drill(features, faults, folder)
    assert not found.problems, str(found)

A problem is one of these: a run that failed, a fault that never fired, a part of a rank's state
that differs, a committed step that was lost or committed twice, or books that do not add up.
`found.kinds` holds the problems without their details, so that a smaller script can be compared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.drills._run import Drill, Outcome
from tests.drills.features.draw import Features
from tests.drills.features.faults import Fault
from tests.drills.features.script import script_of

WITHIN_S = 90.0  # for one run; ten times what a run takes on two busy cores
PRELOADED = {"stateful": "torchdata.stateful_dataloader"}


@dataclass
class Found:
    """The result for one script. `differing` names, by rank, the parts that differ from the
    undisturbed run.
    """

    features: Features
    faults: tuple[Fault, ...]
    script: Path
    problems: list[str] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    differing: dict[int, list[str]] = field(default_factory=dict)
    details: str = ""
    seconds: float = 0.0

    def blame(self, kind: str, what: str) -> None:
        self.kinds.add(kind)
        self.problems.append(what)

    @property
    def line(self) -> str:
        said = "ok " if not self.problems else "BAD"
        faults = " ".join(map(str, self.faults))
        head = f"{said} {self.seconds:5.1f} s  {self.features}  | {faults}"
        return "\n    ".join([head, *self.problems])

    def __str__(self) -> str:
        return f"{self.line}\nscript: {self.script}\n{self.details}\n{self.script.read_text()}"


def drill(features: Features, faults: Sequence[Fault], folder: Path) -> Found:
    """Run both, in new folders below `folder`."""
    began_s = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "script.py"
    script.write_text(script_of(features))
    found = Found(features, tuple(faults), script)
    peace = _run(features, (), folder / "peace", script, found)
    if peace is not None and not found.problems:
        war = _run(features, faults, folder / "war", script, found)
        if war is not None:
            compare(_results(folder / "peace"), _results(folder / "war"), found)
    found.seconds = time.monotonic() - began_s
    return found


def _flags(f: Features, *, peace: bool) -> list[str]:
    flags = ["--max-restarts", "20"]  # a few steps have more faults than a day of a real run
    if f.spares != "none" and not peace:  # an undisturbed run needs no spare, which would cost time
        flags += ["--spares", "1", "--spare-kind", f.spares]
    if f.snapshot_every > 1:
        flags += ["--snapshot-every", str(f.snapshot_every)]
    if f.loader in PRELOADED:
        flags += ["--preload", PRELOADED[f.loader]]
    if f.sharded:
        flags += ["--preload", "torch.distributed.fsdp"]
    if f.kind == "mesh2d":
        flags += ["--preload", "torch.distributed.tensor.parallel"]
    return flags


def _run(
    f: Features, faults: Sequence[Fault], folder: Path, script: Path, found: Found
) -> Outcome | None:
    """Run the script once, and add its problems to `found`. Return None if it did not end."""
    folder.mkdir()
    name = "under faults" if faults else "undisturbed"
    try:
        outcome, missed = _watched(f, faults, folder, script)
    except AssertionError as error:
        found.blame(f"{name}: no end", f"{name}: the run did not end in {WITHIN_S:g} s")
        found.details += str(error)
        return None
    for fault in missed:
        found.blame("a fault never fired", f"the fault {fault} never fired")
    if outcome.code:
        last = [line for line in outcome.stderr.splitlines() if line.startswith("error: ")][-1:]
        said = f"{name}: exit code {outcome.code}: {''.join(last)[:200]}"
        found.blame(f"{name}: exit code", said)
    else:
        _look_at_books(f, name, outcome, found)
    if found.problems:
        found.details += f"--- {name}\n{outcome}\n"
    return outcome


def _watched(
    f: Features, faults: Sequence[Fault], folder: Path, script: Path
) -> tuple[Outcome, list[Fault]]:
    """Return the outcome, and the faults that never fired."""
    marks = [fault for fault in faults if fault.is_mark]
    strikes = [fault for fault in faults if not fault.is_mark]
    results = folder / "results"
    results.mkdir()
    with Drill(
        folder,
        str(script),
        workers=f.world,
        flags=_flags(f, peace=not faults),
        marks=[one.as_plan() for one in marks],
        strikes=[one.as_plan() for one in strikes],
        env={"DRILL_RESULTS": str(results)},
        within_s=WITHIN_S,
    ) as running:
        outcome = running.finish()
        missed = [one for number, one in enumerate(marks) if not running.fired(number)]
        missed += [one for number, one in enumerate(strikes) if not running.fired(number, "strike")]
    return outcome, missed


def _look_at_books(f: Features, name: str, outcome: Outcome, found: Found) -> None:
    """Check that no committed step is lost except those since the newest snapshot, and that the
    ledger is sound.

    Replicated state is lost with the last rank that holds it. gloo can keep one survivor in a send
    to the dead peer (assumptions.md). If that survivor was the only one, the report has to name it.
    """
    lost = [
        one["steps_lost"]
        for one in outcome.interruptions
        if one["steps_lost"]
        and not (
            f.world == 2
            and set(one["ranks"]) == {0, 1}
            and "did not leave its collective" in one["reason"]
        )
    ]
    if f.average == "none" and "changes parameters itself" in outcome.stderr:
        found.blame("a false warning", f"{name}: the script was said to change parameters itself")
    # docs/reference/options.md: the image of a step is sealed when the next one begins, so if a
    # rank is lost after that step, all steps since the image before are lost
    allowed = f.snapshot_every if f.snapshot_every > 1 else 0
    if any(steps > allowed for steps in lost):
        found.blame("steps lost", f"{name}: committed steps were lost: {lost}")
    try:
        outcome.ledger_is_sound(lossless=not lost)
    except AssertionError as error:
        found.blame("books", f"{name}: the books are wrong: {str(error)[:300]}")


def _results(folder: Path) -> dict[int, dict[str, str]]:
    files = (folder / "results").glob("rank-*.json")
    return {int(one.stem.partition("-")[2]): json.loads(one.read_text()) for one in files}


def compare(peace: dict[int, dict[str, str]], war: dict[int, dict[str, str]], found: Found) -> None:
    """Compare the hash of each part, rank by rank, and add the differences to `found`."""
    for rank in range(found.features.world):
        expected, there = peace.get(rank), war.get(rank)
        if expected is None or there is None:
            when = "undisturbed" if expected is None else "under faults"
            found.blame(f"{when}: no result", f"{when}: rank {rank} wrote no result")
            continue
        differing = sorted(
            name for name in expected.keys() | there.keys() if expected.get(name) != there.get(name)
        )
        if differing:
            found.differing[rank] = differing
            parts = ", ".join(differing[:12]) + (" ..." if len(differing) > 12 else "")
            found.blame("state", f"rank {rank} differs in {len(differing)} parts: {parts}")
