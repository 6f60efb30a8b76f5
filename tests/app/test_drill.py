"""`outlast drill`: bad input is refused before anything runs, and the score reads well."""

from __future__ import annotations

import argparse
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from outlast.app.command_line import split_at_dashes
from outlast.app.drills import drill, drill_fit, drill_place
from outlast.app.drills.drill_page import drill_page
from outlast.app.drills.drill_place import DrillPlace, refuse_missing
from outlast.app.drills.drill_predict import TYPICAL, TYPICAL_RANGE, DrillPrediction
from outlast.app.drills.drill_result import Result
from outlast.app.drills.drill_text import by_kind, left_out_notes, predicted_note, result_text
from outlast.diagnose.self_output import is_own_file
from outlast.errors import UsageError
from outlast.model.drills.drill_faults import HOST_KINDS, KINDS
from outlast.model.drills.drill_plan import NAMED
from outlast.model.drills.drill_redundancy import InForce
from outlast.model.drills.drill_score import Ended, Outcome, Struck, score
from outlast.runtime.drill import drill_disk
from outlast.runtime.drill.drill_host_launchers import HostLayout
from outlast.runtime.drill.drill_runs import DrilledRun
from outlast.sim.drill_calendar import draw
from tests.app.command import outlast

SCRIPT = ("--", "train.py")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("smoke",), "no script"),
        (("smok", *SCRIPT), "smoke, llama3-day"),
        (("nowhere.toml", *SCRIPT), "nowhere.toml cannot be read"),
        (("smoke", "--nproc-per-node", "0", *SCRIPT), "--nproc-per-node 0"),
        (("smoke", "--time-scale", "0", *SCRIPT), "--time-scale"),
        (("smoke", "--", "--nnodes", "2", "train.py"), "--nnodes"),
        (("smoke", "--", "--run-dir=x", "train.py"), "--run-dir"),
        (("smoke", "--", "--spares", "2", "train.py"), "in front of"),
        (("smoke", "--html", "none/x.html", *SCRIPT), "none"),
        (("smoke", "--predict", "none.toml", *SCRIPT), "none.toml cannot be read"),
        (("smoke", "--run-dir", "full", *SCRIPT), "full is not empty"),
        (("smoke", "--hosts", "2", *SCRIPT), "3 to 200 hosts"),
        (("smoke", "--", "nowhere.py"), "there is no script nowhere.py"),
        (("smoke", "--", "--hang-after", "9", "nowhere.py"), "there is no script nowhere.py"),
        (("smoke", "--hosts", "3", "--", "--spare-nodes", "2", "train.py"), "--spare-nodes"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").touch()
    (tmp_path / "train.py").touch()
    done = outlast("drill", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "kept", "train.py"]


def calm(**more: object) -> DrilledRun:
    given: dict[str, object] = {"step": 600, "pace_s": 0.1, "trained_s": 60.0}
    return DrilledRun(Path("x"), **(given | more))  # type: ignore[arg-type]


def test_a_plan_longer_than_the_training_is_refused_with_its_steps() -> None:
    plan = NAMED["smoke"]
    calendar = draw(plan, seed=1, world_size=4, spares=1)
    with pytest.raises(UsageError, match="650 steps"):
        drill_fit.refuse_length(calendar, plan, calm(step=200, trained_s=20.0))
    drill_fit.refuse_length(calendar, plan, calm(step=650, trained_s=65.0))


def test_faults_faster_than_a_recovery_are_refused_with_a_scale() -> None:
    plan = drill.drill_plan.scaled(NAMED["smoke"], 20.0)
    calendar = draw(plan, seed=1, world_size=4, spares=1)
    with pytest.raises(UsageError, match=r"--time-scale 5\.71 or less"):
        drill_fit.refuse_pace(calendar, plan, calm())
    fitting = drill.drill_plan.scaled(NAMED["smoke"], 5.71)
    drill_fit.refuse_pace(draw(fitting, seed=1, world_size=4, spares=1), fitting, calm())


def test_a_named_plan_is_shortened_to_a_training_that_is_too_short() -> None:
    """It keeps a few seconds of training after the last fault. A long one is left as it is."""
    plan = NAMED["llama3-day"]
    shorter = drill_fit.shortened(plan, calm(trained_s=35.0))
    assert shorter is not None
    assert shorter.length_s == pytest.approx(30.0)
    assert drill_fit.shortened(plan, calm(trained_s=65.0)) is None
    assert drill_fit.shortened(plan, calm(trained_s=4.0)) is None
    calendars = [draw(one, seed=1, world_size=4, spares=1).faults for one in (plan, shorter)]
    for long, short in zip(*calendars, strict=True):
        assert (long.kind, long.rank) == (short.kind, short.rank)
        assert long.at_s == pytest.approx(2 * (short.at_s or 0.0))
    note = drill_fit.shortened_note(plan, shorter, calm(trained_s=35.0))
    assert "--time-scale 2880" in note
    assert "650 steps" in note


@pytest.mark.parametrize(
    ("fault", "options", "said"),
    [
        ("kind='kill'\ntarget={rank = 4}", (), "rank 4, and the run has 4 ranks"),
        ("kind='kill'\ntarget={rank = 2}", ("--nproc-per-node", "2"), "the run has 2 ranks"),
    ],
)
def test_a_rank_that_the_run_does_not_have_is_named_before_anything_runs(
    tmp_path: Path, fault: str, options: tuple[str, ...], said: str
) -> None:
    text = f"schema = 1\n[[fault]]\n{fault}\nwhen={{at_s = 1.0}}"
    (tmp_path / "plan.toml").write_text(text)
    (tmp_path / "train.py").touch()
    done = outlast("drill", "plan.toml", *options, *SCRIPT, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"plan.toml", "train.py"}


def test_a_host_that_there_is_not_is_named() -> None:
    text = "schema = 1\n[[fault]]\nkind='cut'\ntarget={node = 3}\nwhen={at_s = 1.0}"
    plan = drill.drill_plan.parse(text, source="x", hosts=True)
    calendar = draw(plan, seed=1, world_size=2, spares=1)
    layout = HostLayout(3, 1)
    with pytest.raises(UsageError, match="strikes host 3, and there are 3"):
        DrillPlace(layout, 1, layout).refuse_numbers(calendar)
    DrillPlace(HostLayout(4, 1), 1).refuse_numbers(calendar)


def test_hosts_that_are_struck_too_fast_are_refused_with_a_scale() -> None:
    layout = HostLayout(5, 1)
    plan = drill.drill_plan.scaled(drill._plan("maintenance", None, hosts=True), 10.0)
    calendar = draw(plan, seed=1, world_size=4, spares=1)
    with pytest.raises(UsageError, match=r"--time-scale 2\.4 or less"):
        DrillPlace(layout, 1, layout).refuse(calendar, plan)


def test_without_permission_the_faults_of_hosts_are_named_and_counted() -> None:
    """With --allow-missing the drill goes on with the others, on one host with as many ranks."""
    plan = drill._plan("smoke", None, hosts=True)
    layout, why = HostLayout(5, 1), "network namespaces need root (CAP_SYS_ADMIN)"
    place = DrillPlace(None, 4, layout, why)
    words = ["smoke", "--hosts", "5"]
    with pytest.raises(UsageError) as refused:
        refuse_missing(place, plan, drill.parser().parse_args(words), seed=1)
    assert "CAP_SYS_ADMIN" in str(refused.value)
    assert "the plan's 8 faults of hosts" in str(refused.value)
    assert all(f"1 x {name}" in str(refused.value) for name in HOST_KINDS)
    allowed = drill.parser().parse_args([*words, "--allow-missing"])
    refuse_missing(place, plan, allowed, seed=1)
    calendar = place.left_out(draw(plan, seed=1, world_size=4, spares=1))
    assert set(calendar.left_out) == set(HOST_KINDS)
    (note, *_) = left_out_notes({"cut": 1}, place.reasons({"cut"}))
    assert note == f"Left out: 1 x cut, because {why}."


def test_without_permission_the_faults_of_disks_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With --allow-missing they are left out and counted. On hosts they are left out, too."""
    monkeypatch.setattr(drill_disk, "may_be_filled", lambda: "a small file system needs root")
    monkeypatch.setattr(drill_disk, "may_be_slowed", lambda folder: "no control groups")
    monkeypatch.setattr(drill_place, "may_be_slowed", lambda: "")
    kinds = "full_disk = 1\nslow_disk = 1\nkill = 1"
    text = f"schema = 1\n[draw]\ncount = 60\nover_s = 60\n[draw.kinds]\n{kinds}"
    plan, place = drill.drill_plan.parse(text, source="x"), DrillPlace(None, 4)
    with pytest.raises(UsageError) as refused:
        refuse_missing(place, plan, drill.parser().parse_args(["x"]), seed=1)
    assert "a small file system needs root; the plan's" in str(refused.value)
    assert "no control groups; the plan's" in str(refused.value)
    assert "x full_disk" in str(refused.value)
    refuse_missing(place, plan, drill.parser().parse_args(["x", "--allow-missing"]), seed=1)
    calendar = draw(plan, seed=1, world_size=4, spares=1)
    assert set(place.left_out(calendar).left_out) == {"full_disk", "slow_disk"}
    layout = HostLayout(5, 1)
    on_hosts = DrillPlace(layout, 1, layout)
    assert set(on_hosts.left_out(calendar).left_out) == {"full_disk", "slow_disk"}
    assert list(on_hosts.missing_permissions(calendar)) == []


def result(*, wrong: tuple[str, ...] = (), lost: int = 0) -> Result:
    then = InForce(10, False, 4, 1, 1, 8, 0, 0)
    kind = KINDS["kill"]
    struck = Struck("1", kind, kind.stands_for, 1, 77, 5.0, 10, in_force=then)
    found = (Outcome(struck, 1, 0.25, True, "unknown", 0.2, "unknown"),)
    report = {"interruptions": [{"id": 1, "steps_lost": lost}], "ettr": 0.9, "ettr_training": 0.95}
    facts = score(
        found,
        report,
        plan="<smoke>",
        seed=1,
        planned_count=1,
        left_out={"cut": 2},
        digest_equal=True,
        ended=Ended(True, 100),
        leaks={
            "processes": 0,
            "segments": 0,
            "descriptors": None,
            "threads": None,
            "memory_bytes": None,
            "zombies": None,
        },
    )
    return Result(facts, found, wrong, ("Left out: 2 x cut.",), "runs/x")


def test_the_text_says_what_was_survived_and_what_was_not() -> None:
    assert result_text(result()).endswith("nothing was lost")
    text = result_text(result(wrong=("1 faults were not survived",)))
    assert "failed: 1 faults were not survived" in text
    assert "nothing was lost" not in text


def test_the_score_says_what_there_was_to_fall_back_on() -> None:
    text = result_text(result())
    assert "redundancy   at least 4 copies, 1 spare at each fault" in text
    assert "the newest image or checkpoint was at most 2 steps old" in text
    assert "<td>4 copies, 1 spare</td>" in drill_page(result())
    assert result_text(result(lost=3)).endswith("survived, with 3 steps done again")
    allowed = result(lost=3)
    allowed.facts["redundancy"]["steps_lost_beyond"] = 0
    assert result_text(allowed).endswith("done again, as the redundancy in force allowed")


def test_a_prediction_says_its_origin_its_range_and_what_came() -> None:
    told = DrillPrediction(0.97, 0.92, 0.98, TYPICAL, TYPICAL_RANGE, naive=0.975)
    one = result()
    one.facts.update(prediction=told.facts(), predicted_ettr_training=told.ettr)
    text = result_text(replace(one, notes=(predicted_note(told.facts()),)))
    assert "predicted    97.0 % (92.0 % to 98.0 %) without start-up and shutdown" in text
    assert "2.0 points more than what came. A naive predictor: 97.5 %" in text
    assert "the time that recoveries took on another machine" in " ".join(text.split())
    assert "97.0 % (92.0 % to 98.0 %)" in drill_page(one)
    assert "predicted: ETTR of 97.0 %" in told.sentence()
    unmeasured = replace(one, facts=one.facts | {"ettr": None, "ettr_training": None})
    assert "than what came" not in result_text(unmeasured)


def test_the_page_is_one_file_that_outlast_knows_again() -> None:
    page = drill_page(result(wrong=("<script>",)))
    HTMLParser().feed(page)
    assert "<script" not in page
    assert "&lt;smoke&gt;" in page
    assert "http" not in page.replace("http-equiv", "")
    assert is_own_file(page.encode()), "so a second drill may write over it"


def test_what_follows_the_dashes_is_for_the_run() -> None:
    own, words = split_at_dashes(
        ["smoke", "--seed", "1", "--", "--hang-after", "9", "t.py", "--", "x"]
    )
    assert own == ["smoke", "--seed", "1"]
    assert words == ["--hang-after", "9", "t.py", "--", "x"]
    assert isinstance(drill.parser().parse_args(own), argparse.Namespace)


def test_an_option_of_the_script_is_its_own() -> None:
    words = ["--hang-after", "9", "train.py", "--resume", "--spares", "3"]
    assert list(drill._options_of_run(words)) == ["--hang-after", "9"]
    assert list(drill._options_of_run(["-m", "train", "--resume"])) == []


def test_a_named_signal_is_shown_and_not_only_that_the_class_is_unknown() -> None:
    struck = Struck("1", KINDS["abort"], KINDS["abort"].stands_for, 1, 77, 5.0, 10)
    named, bare = (
        Outcome(struck, 1, 0.25, True, "unknown", 0.2, judged) for judged in ("right", "unknown")
    )
    assert by_kind([named, named, bare])[0]["said"] == "2 the signal, 1 unknown"
    ended = replace(named, struck=replace(struck, kind=KINDS["exit"]))
    assert by_kind([ended])[0]["said"] == "1 the exit code"
