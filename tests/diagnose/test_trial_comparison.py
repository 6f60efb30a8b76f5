"""Two runs compared: what differs is named at its root, and what differs by itself is left out."""

from __future__ import annotations

from dataclasses import replace

from outlast.diagnose.scripts.trial_comparison import (
    ALSO_KEPT,
    BEGIN,
    END,
    Comparison,
    KilledRank,
    Notes,
    RankNote,
    ScriptLoop,
    Variable,
    compare,
)
from outlast.diagnose.scripts.trial_remarks import (
    failure_remark,
    is_of_a_meter,
    is_of_the_start,
    unseen_remark,
    variable_remark,
)

LOOP = ScriptLoop("/project/train.py", "main", 10)
WEIGHT, SEEN = "state:model.weight", "/project/train.py:main:"
STRUCK = (KilledRank(1, 4),)
Key = tuple[int, str, int]


def calm(**variables: str) -> dict[Key, RankNote]:
    """Return the notes of two ranks over eight steps. Each value changes with its step."""
    notes = {}
    for rank in (0, 1):
        for step in range(1, 9):
            for when in (BEGIN, END):
                prints = {
                    SEEN + name: f"{value}-{step}-{when} int" for name, value in variables.items()
                }
                prints |= {WEIGHT: f"w{step}"} if when == END else {}
                notes[rank, when, step] = RankNote(100 + rank, LOOP, prints)
    return notes


def changed(notes: Notes, at: list[Key], key: str, text: str = "other int") -> dict[Key, RankNote]:
    """Return the notes with another print of `key` at these moments."""
    return {
        moment: replace(noted, prints={**noted.prints, key: text}) if moment in at else noted
        for moment, noted in notes.items()
    }


def named(found: Comparison) -> list[tuple[str, int, bool]]:
    return [(one.name, one.rank, one.replaced) for one in found.variables]


def from_step(rank: int, step: int, when: str = END) -> list[Key]:
    return [(rank, when, number) for number in range(step, 9)]


def test_equal_runs_differ_in_nothing() -> None:
    found = compare(calm(best="b"), calm(best="b"), STRUCK, ())
    assert found == Comparison((), {}, 0, (), 8)


def test_a_variable_that_a_replaced_rank_lost_is_named() -> None:
    disturbed = changed(calm(best="b"), [(1, BEGIN, 4), *from_step(1, 4)], SEEN + "best")
    found = compare(calm(best="b"), disturbed, STRUCK, ())
    assert named(found) == [("best", 1, True)]
    assert (found.state, found.differs_from) == ({}, 0)


def test_a_second_name_of_a_kept_value_is_named_if_the_state_differs() -> None:
    """`order = np.arange(n); kept = run.values(order=order)`: the loop may read it for its size."""
    peace = changed(calm(), from_step(1, 3, BEGIN), SEEN + "order", f"a ndarray{ALSO_KEPT}")
    peace = changed(peace, from_step(1, 3), SEEN + "order", f"a ndarray{ALSO_KEPT}")
    war = changed(peace, from_step(1, 4, BEGIN), SEEN + "order", "b ndarray")
    war = changed(war, from_step(1, 4), SEEN + "order", "b ndarray")
    assert compare(peace, war, STRUCK, ()).variables == ()
    (one,) = compare(peace, changed(war, from_step(1, 6), WEIGHT), STRUCK, ()).variables
    assert (one.name, one.kind, one.kept) == ("order", "ndarray", True)
    said = variable_remark(one, "order = 1", changes=6)
    assert said.what.startswith("order is not kept: rank 1, which was replaced in step 4")
    assert said.do == "read the attribute of run.values(...) in the loop, and not order"


def test_a_variable_that_a_repeated_step_changes_twice_is_named() -> None:
    disturbed = changed(calm(count="c"), [(0, BEGIN, 4), *from_step(0, 4)], SEEN + "count")
    assert named(compare(calm(count="c"), disturbed, STRUCK, ())) == [("count", 0, False)]


def test_what_each_step_sets_anew_is_not_named() -> None:
    disturbed = changed(calm(loss="l"), [(1, BEGIN, 4)], SEEN + "loss")
    assert named(compare(calm(loss="l"), disturbed, STRUCK, ())) == []
    lasting = changed(disturbed, from_step(1, 4), SEEN + "loss")
    assert named(compare(calm(loss="l"), lasting, STRUCK, {SEEN + "loss"})) == []
    assert named(compare(calm(loss="l"), lasting, STRUCK, ())) == [("loss", 1, True)]


def test_an_attribute_that_each_step_sets_anew_has_other_names() -> None:
    """The loop sets self.loss. Of trainer, which is the same object, the module knows."""
    names = {"self.loss": "l", "trainer.loss": "l", "meter.loss": "m"}
    (undisturbed, disturbed), at = (calm(**names), calm(**names)), [(1, BEGIN, 4), *from_step(1, 4)]
    for name in names:
        disturbed = changed(disturbed, at, SEEN + name, f"{names[name]} other")
    assert named(compare(undisturbed, disturbed, STRUCK, {SEEN + "self.loss"})) == [
        ("meter.loss", 1, True)
    ]
    assert len(named(compare(undisturbed, disturbed, STRUCK, ()))) == 3


def test_attributes_go_with_their_variable() -> None:
    disturbed = changed(calm(), [(1, BEGIN, 4), *from_step(1, 4)], SEEN + "meter.total")
    assert named(compare(calm(), disturbed, STRUCK, {SEEN + "meter"})) == []
    assert named(compare(calm(), disturbed, STRUCK, ())) == [("meter.total", 1, True)]


def test_the_root_is_named_where_the_state_differs_and_not_what_follows() -> None:
    """X differs where rank 1 came back; the weights and `seen` differ on all ranks after that."""
    disturbed = changed(calm(X="x", seen="s"), [(1, BEGIN, 4)], SEEN + "X")
    for rank in (0, 1):
        disturbed = changed(disturbed, from_step(rank, 4), WEIGHT, "v")
        disturbed = changed(disturbed, from_step(rank, 5, BEGIN), SEEN + "seen")
    found = compare(calm(X="x", seen="s"), disturbed, (*STRUCK, KilledRank(0, 6)), ())
    assert named(found) == [("X", 1, True)]
    assert (found.state, found.differs_from) == ({0: ("model.weight",), 1: ("model.weight",)}, 4)


def test_what_differs_before_a_rank_is_killed_is_the_script_s_own() -> None:
    disturbed = changed(calm(began="t"), [(1, BEGIN, n) for n in range(1, 9)], SEEN + "began")
    found = compare(calm(began="t"), disturbed, STRUCK, ())
    assert (found.variables, found.own) == ((), ())
    disturbed = changed(calm(), from_step(0, 2), WEIGHT)
    found = compare(calm(), disturbed, STRUCK, ())
    assert (found.own, found.state) == ((WEIGHT,), {})


def test_the_last_step_is_one_that_every_rank_has_ended_in_both_runs() -> None:
    disturbed = calm()
    del disturbed[0, END, 8]
    assert compare(calm(), disturbed, STRUCK, ()).last_step == 7


def test_what_a_run_ended_with_is_named_with_the_script_s_line() -> None:
    """What was refused has its line in front; an exception has it in the rank's traceback."""
    script = "/project/train.py"
    refused = f"error: {script}:7 in main: this is refused\n\nhint: delete that line\n"
    found = failure_remark(refused, script)
    assert (found.line, found.what, found.do) == (7, "this is refused", "delete that line")
    inside = (
        f"error: Muon.step communicates: it was called at {script}:9 in step, alone\n\nhint: x\n"
    )
    found = failure_remark(inside, script)
    assert (found.line, found.file, found.do) == (9, script, "x")
    assert "Muon.step communicates" in found.what
    raised = (
        f'[rank0]: Traceback (most recent call last):\n[rank0]:   File "{script}", line 17, in f\n'
        "[rank0]:     x\nerror: 3 whole restarts; last error: NameError: y\n\nhint: outlast report"
    )
    found = failure_remark(raised, script)
    assert (found.line, found.what) == (17, "NameError: y")
    assert "mend this first" in found.do


def test_the_line_is_of_the_traceback_that_ends_with_the_error() -> None:
    """Method: rank 0 raises. Rank 1, which waits for it, prints its own traceback after that."""
    script = "/project/train.py"
    head = "Traceback (most recent call last):\n"
    stderr = (
        f'[rank0]: {head}[rank0]:   File "{script}", line 55, in main\n[rank0]:     load()\n'
        '[rank0]:   File "/lib/models.py", line 9, in load\n[rank0]:     import x\n'
        "[rank0]: ImportError: cannot import name 'x'\n"
        f'[rank1]: {head}[rank1]:   File "{script}", line 218, in first\n[rank1]:     barrier()\n'
        "[rank1]: RuntimeError: Connection closed by peer\n"
        "error: 3 whole restarts; last error: ImportError: cannot import name 'x'\n"
    )
    assert failure_remark(stderr, script).line == 55
    assert failure_remark(stderr.replace("[rank0]: ImportError", "[rank0]: E"), script).line == 218


METERS = """
top1 = AverageMeter("Acc@1")
with EventStorage(0) as self.storage:
    pass
plan = Schedule()
losses, plans = utils.AverageMeter(), Schedule()
first, second = [AverageMeter() for _ in range(2)]
logger = FileLogger(folder) if rank == 0 else None
"""


def lost(name: str, kind: str) -> Variable:
    return Variable("/project/train.py", "main", name, kind, 1, 4, replaced=True, lasting=True)


def test_a_collective_after_the_optimizer_is_named_where_it_is_called() -> None:
    """The refusal begins with the line of the optimizer's call, which is not the one to change."""
    stderr = (
        "error: /project/train.py:31 in update: torch.distributed.all_gather was called at"
        " /project/train.py:24 in accuracy, after another rank may have committed this step\n\n"
        "hint: reduce before the optimizer\n"
    )
    found = failure_remark(stderr, "/project/train.py")
    assert (found.line, found.do) == (24, "reduce before the optimizer")
    assert found.what.startswith("torch.distributed.all_gather was called at ")


def test_an_average_for_people_is_told_from_what_a_script_decides_by() -> None:
    named = {
        name: is_of_a_meter(lost(name, "int"), METERS)
        for name in (
            "top1.sum",
            "self.storage.history",
            "losses.avg",
            "second.sum",
            "logger.rows",
            "plan.best",
            "plans.best",
            "best",
            "top10.sum",
        )
    }
    assert [name for name, is_meter in named.items() if is_meter] == [
        "top1.sum",
        "self.storage.history",
        "losses.avg",
        "second.sum",
        "logger.rows",
    ]


NUMBERED = """
def main():
    index = len(os.listdir("results"))
    folder = f"results/{index:03d}"
    mode = "warm"
    for step in run.steps(state, until=9):
        with step:
            mode = "train"
"""


def test_a_folder_with_a_new_name_is_told_from_a_text_that_the_loop_sets() -> None:
    """A rank that is replaced sets the first one again. The second one steers the training."""
    loop = ScriptLoop("/project/train.py", "main", 6)
    for name, kind, known in (
        ("folder", "str", True),
        ("folder", "PosixPath", True),
        ("mode", "str", False),
        ("index", "int", False),
        ("self.folder", "str", False),
    ):
        assert is_of_the_start(lost(name, kind), NUMBERED, loop) == known, (name, kind)
    kept_by_itself = replace(lost("folder", "str"), replaced=False)
    assert not is_of_the_start(kept_by_itself, NUMBERED, loop)
    assert not is_of_the_start(lost("folder", "str"), NUMBERED, replace(loop, function="other"))


def test_the_advice_fits_what_was_not_kept() -> None:
    told = {
        (name, kind): variable_remark(lost(name, kind), METERS, changes=0).do
        for name, kind in [
            ("best", "float"),
            ("x", "Tensor"),
            ("order", "ndarray"),
            ("envs.s", "ndarray"),
            ("self.best", "float"),
            ("it", "cycle"),
            ("account", "Account"),
        ]
    }
    assert "run.values(best=...)" in told["best", "float"]
    assert "run.values(x=...)" in told["x", "Tensor"]
    assert "run.draw" in told["x", "Tensor"]
    assert "run.values(order=...)" in told["order", "ndarray"]
    assert "give envs a state_dict()" in told["envs.s", "ndarray"]
    assert "run.values(best=...)" in told["self.best", "float"]
    assert "run.draw" in told["it", "cycle"]
    assert "position" not in told["account", "Account"]


CACHED = """\
import functools

@functools.lru_cache
def noise(level):
    return torch.randn(4) * level
for step in run.steps(state):
    with step:
        loss(noise(1)).backward()
        optimizer.step()
        if step.number % 2 == 0:
            optimizer.zero_grad()
"""


def suspected(kind: str, source: str) -> tuple[int, str] | None:
    """Return the line and the text of the remark on what cannot be compared."""
    undisturbed = calm()
    for at, noted in undisturbed.items():
        if at[1] == BEGIN:
            prints = {**noted.prints, "/project/train.py:<module>:noise": f"? {kind}"}
            undisturbed[at] = replace(noted, prints=prints)
    disturbed = {
        at: replace(one, prints={**one.prints, WEIGHT: "other"}) if at[2] > 3 else one
        for at, one in undisturbed.items()
    }
    # the rank that was replaced has nothing of it, which by itself says nothing
    lost = (1, BEGIN, 4)
    disturbed[lost] = replace(disturbed[lost], prints={})
    found = compare(undisturbed, disturbed, STRUCK, ())
    assert found.variables == (), found
    (unseen,) = found.unseen
    remark = unseen_remark(found, unseen, source)
    return None if remark is None else (remark.line, remark.what)


def test_a_cache_and_carried_gradients_are_suspected_with_their_lines() -> None:
    """They cannot be compared, so they are suspected only where nothing else explains the state."""
    assert suspected("_lru_cache_wrapper", CACHED) == (
        4,
        "what noise has cached is not kept, and the state differs after step 4 from that of a run"
        " without a failure",
    )
    line, what = suspected("gradients", CACHED) or (0, "")
    assert (line, what.startswith("gradients are carried")) == (11, True)
    always = CACHED.replace("        if step.number % 2 == 0:\n    ", "")
    assert suspected("gradients", always) is None
    # minGPT's trainer clears and computes them in `if train:`
    both = "if train:\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
    assert suspected("gradients", both) is None
    assert suspected("gradients", f"loss.backward()\n{both.replace('    loss.backward()', '')}")


def test_a_name_without_a_value_in_a_replaced_rank_is_told_as_such() -> None:
    """In a run whose ranks were not replaced it is an error like any other."""
    stderr = (
        '[rank1]:   File "train.py", line 40, in main\n'
        "[rank1]: UnboundLocalError: cannot access local variable 'loss_epoch' where it is not"
        " associated with a value\n"
    )
    found = failure_remark(stderr, "train.py", replaced=True)
    assert found.line == 40
    assert found.do.startswith("loss_epoch is set in some steps only: give it a value in front")
    assert "mend this first" in failure_remark(stderr, "train.py").do
