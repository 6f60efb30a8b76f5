"""`outlast drill --against`: what is refused, and how a comparison reads."""

from __future__ import annotations

import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from outlast.app.drills import drill, drill_against, drill_sides_text
from outlast.app.drills.drill_page import drill_page
from outlast.app.drills.drill_result import Beside, Charted
from outlast.app.drills.drill_text import result_text
from outlast.errors import UsageError
from outlast.model.drills.drill_plan import NAMED
from outlast.model.drills.drill_sides import FaultSeen, SeenStep, SideRun, side_facts
from outlast.runtime.drill import peer_runs
from outlast.sim.drill_calendar import draw, without
from tests.app.command import outlast
from tests.app.test_drill import result

SCRIPT = ("--", "train.py")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--against", "torchrun", *SCRIPT), "another script is named"),
        (("--against", "horovod"), "invalid choice"),
        (("--steps", "100", *SCRIPT), "--steps needs --against"),
        (("--against", "torchrun", "--nproc-per-node", "1"), "nobody is left"),
        (("--against-script", "none.py", *SCRIPT), "there is no file none.py"),
        (("--against-script", "ddp.py"), "on both sides"),
        (("--against-script", "'", *SCRIPT), "No closing quotation"),
        (("--against-script", "ddp.py", "--against", "dcp", *SCRIPT), "launches --against-script"),
        (("--against", "dcp", "--hosts", "3"), "on one host"),
        (("--against", "torchft", "--against-python", "none"), "none cannot be started"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "ddp.py").touch()
    done = outlast("drill", "smoke", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["ddp.py"]


def test_an_interpreter_without_torchft_is_told_what_to_install() -> None:
    with pytest.raises(UsageError, match="cannot import no_such_module") as error:
        peer_runs.check_interpreter(sys.executable, "no_such_module")
    assert "pip install" in str(error.value.hint)


def test_without_a_script_the_shipped_training_is_drilled() -> None:
    args = drill.parser().parse_args(["smoke", "--against", "dcp", "--against", "dcp"])
    asked = drill_against.asked(args, [], ranks=4)
    assert asked is not None
    assert [one.name for one in asked.opponents] == ["dcp"]
    assert Path(asked.words([])[0]).is_file()
    assert all(Path(word).is_file() for word in asked.opponents[0].command if word.endswith(".py"))
    assert drill_against.asked(drill.parser().parse_args(["smoke"]), ["train.py"], ranks=4) is None


def test_faults_that_others_cannot_be_given_are_left_out_and_counted() -> None:
    calendar = draw(NAMED["smoke"], seed=1, world_size=4, spares=1)
    kept = without(calendar, ["lose_store", "kill_spare"])
    assert len(kept.faults) == len(calendar.faults) - 2
    assert kept.left_out == {"lose_store": 1, "kill_spare": 1}
    assert without(kept, ["lose_store"]) == kept


def beside() -> Beside:
    """One launcher that goes on after a second, and one that is back after 8 and repeats 3."""
    quick = [SeenStep(float(at), at) for at in range(1, 11)]
    quick += [SeenStep(at + 1.0, at) for at in range(11, 21)]
    slow = [SeenStep(float(at), at) for at in range(1, 11)]
    slow += [SeenStep(at + 11.0, at) for at in range(8, 21)]
    fault = FaultSeen(10.5, 10.5, interrupts=True)
    runs = (
        SideRun(0.0, 22.0, True, tuple(quick), (fault,)),
        SideRun(0.0, 32.0, True, tuple(slow), (fault, replace(fault, at_s=12.0, due_s=12.0))),
    )
    rows = tuple(
        side_facts(name, run, steps=20, step_s=1.0, digest_equal=name == "outlast", steps_lost=0)
        for name, run in zip(("outlast", "torchrun"), runs, strict=True)
    )
    notes = drill_sides_text.notes(
        rows, shipped=True, planned_count=2, mean_gap_s=1.5, time_scale=60.0
    )
    return Beside(rows, (Charted("outlast", runs[0]), Charted("torchrun", runs[1])), tuple(notes))


def test_the_text_has_a_row_for_each_and_says_where_it_is_unfair() -> None:
    text = result_text(replace(result(), beside=beside()))
    ours, theirs = (
        next(line for line in text.splitlines() if line.startswith(name))
        for name in ("outlast ", "torchrun ")
    )
    assert ours.split()[1:3] == ["yes", "94.4"]
    assert "equal" in ours
    assert "differs" in theirs
    assert "torchrun was not back yet when 1 of 2 faults were due" in text
    assert "says more about this pace" in text
    assert "Set in torchrun's favour" in text


def test_the_page_has_the_table_and_one_chart_with_a_line_for_each() -> None:
    page = drill_page(replace(result(), beside=beside()))
    HTMLParser().feed(page)
    assert page.count("<svg") == 1
    assert 'class="line s1"' in page
    assert 'class="line s2"' in page
    assert "MTTR median" in page
    assert "<svg" not in drill_page(result())
