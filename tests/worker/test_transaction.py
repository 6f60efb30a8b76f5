"""What a step promises to the script when it is interrupted: real ranks, struck at outlast's own
places (see runtime/worker/instructions/marks.py).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.drills._scripts import Ran, go

STEPS = 8
TALKING = """
state = named()
called = os.path.join(os.path.dirname(__file__), f"called-{run.rank}")
last = None
def tell(number, values):
    with open(called.replace("called", "told"), "a") as file:
        print(number, *sorted(values.items()), file=file)
for step in run.steps(state, until=8, log_every=1):
    with step:
        step.log(before=step.number + run.rank, reduce="mean", to=tell)
        if step.attempt == 0: step.log(once=1.0, reduce="sum")
        loss = update(step)
        step.log(after=10.0 * step.number + run.rank, reduce="mean", to=tell)
        step.on_commit(lambda number=step.number: open(called, "a").write(f"{number}\\n"))
    step.log(behind=step.number)
    step.on_commit(lambda number=step.number: open(called, "a").write(f"{number}+\\n"))
    if last is not None:
        print("logged", run.rank, last.number, sorted(last.logged.items()), flush=True)
    last = step
end()
"""
SWALLOWING = """
other = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
extra = other.param_groups[0]["params"][0]
state = named(other=other)
for step in run.steps(state, until=8):
    with step:
        try: opt.zero_grad(); loss_of(step).backward()
        except: print("swallowed", file=sys.stderr)
        try: opt.step()
        except: print("swallowed", file=sys.stderr)
        extra.grad = torch.ones(3)
        try: other.step()
        except: print("swallowed", file=sys.stderr)
print("extra", run.rank, extra.tolist())
end()
"""
TWO_CALLS = """
state = named()
for until in (4, 8):
    for step in run.steps(state, until=until):
        with step:
            update(step)
            step.log(until=until)
end()
"""
EARLY = """
state = named()
for step in run.steps(state, until=8):
    with step:
        update(step)
    if step.number == 4{who}: {leave}
end()
"""
BESIDE_THE_BLOCK = """
state = named()
def beside(step):
    opt.param_groups[0]["lr"] *= 0.9
    rate = opt.param_groups[0]["lr"]
    print("drew", run.rank, step.number, torch.rand(1).item(), rate, flush=True)
for step in run.steps(state, until=8):
    if {before}: beside(step)
    with step:
        update(step)
    if not {before}: beside(step)
end()
"""


def _strike(mark: str, *, step: int, do: str = "SIGKILL", rank: int = 1) -> list[dict[str, Any]]:
    return [{"mark": mark, "rank": rank, "step": step, "do": do}]


def _digests(ran: Ran) -> set[str]:
    return set(re.findall(r"digest \d (\w+)", ran.out))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    ran = go(tmp_path_factory.mktemp("undisturbed"), TALKING)
    assert ran.code == 0, ran.outcome
    ran.ended_clean()
    _says_each_step_truly(ran, torn=())
    _tells_each_step_once(ran.script.parent, torn=())
    (digest,) = _digests(ran)
    return digest


def _says_each_step_truly(ran: Ran, *, torn: tuple[int, ...]) -> None:
    """Check that each printed mean is the mean over both ranks. A value of a step in `torn` may
    instead be reported as rank 0's own.
    """
    lines = {
        int(number): rest
        for number, rest in re.findall(r"^step (\d+) (before.*|once.*)$", ran.out, re.MULTILINE)
    }
    assert set(lines) >= set(range(1, STEPS + 1)), ran.out
    for number in range(1, STEPS + 1):
        said = " ".join(re.findall(rf"^step {number} (.*)$", ran.out, re.MULTILINE))
        for name, mean in (("before", number + 0.5), ("after", 10 * number + 0.5)):
            true = f"{name} {mean:g}" in said
            assert true or (number in torn and re.search(rf"{name} [\d.]+ \(rank 0 alone", said)), (
                name,
                mean,
                said,
            )
    for _, once in re.findall(r"^step (\d+) .*once ([\d.]+)(?! \()", ran.out, re.MULTILINE):
        assert once == "2", "logged in an attempt that did not count"


def _tells_each_step_once(folder: Path, *, torn: tuple[int, ...]) -> None:
    """Check that the function given to step.log was called on rank 0 only, once for each call, with
    the means.

    A value of a step in `torn` may be missing, because its mean is unknown.
    """
    assert not (folder / "told-1").exists()
    told = Counter((folder / "told-0").read_text().splitlines())
    true = {
        f"{number} ('{name}', {mean})"
        for number in range(1, STEPS + 1)
        for name, mean in (("before", number + 0.5), ("after", 10 * number + 0.5))
    }
    assert set(told) <= true, set(told) - true
    assert max(told.values()) == 1, told
    assert all(int(line.split()[0]) in torn for line in true - set(told)), true - set(told)


@pytest.mark.drill
@pytest.mark.parametrize(
    ("mark", "do"),
    [
        ("prepared", "SIGKILL"),
        ("passed", "SIGKILL"),
        ("applied", "SIGKILL"),
        ("committed", "SIGKILL"),
        ("prepared", "raise"),
        ("voting", "exit"),
    ],
)
@pytest.mark.timeout(120)
def test_callbacks_and_values_count_once_and_the_digest_is_undisturbed(
    tmp_path: Path, undisturbed: str, mark: str, do: str
) -> None:
    """Method: rank 1 is struck at step 4, while the data set draws random numbers.

    What a rank printed before it died is not printed again by its successor.
    """
    ran = go(tmp_path, TALKING, marks=_strike(mark, step=4, do=do))
    assert ran.code == 0, ran.outcome
    assert len(ran.outcome.interruptions) == 1, ran.outcome
    assert _digests(ran) == {undisturbed}
    calls = {rank: (tmp_path / f"called-{rank}").read_text().split() for rank in (0, 1)}
    assert calls[0] == [f"{number}{at}" for number in range(1, STEPS + 1) for at in ("", "+")]
    behind = re.findall(r"^step (\d+) .*\bbehind (\d+)\b", ran.out, re.MULTILINE)
    assert sorted(behind) == [(str(number), str(number)) for number in range(1, STEPS + 1)], ran.out
    assert max(Counter(calls[1]).values()) == 1
    assert set(calls[1]) >= {str(number) for number in range(1, STEPS + 1) if number not in (3, 4)}
    _says_each_step_truly(ran, torn=(3, 4, 5))
    _tells_each_step_once(tmp_path, torn=(3, 4, 5))
    ran.ended_clean()


@pytest.mark.drill
@pytest.mark.timeout(120)
def test_a_body_that_swallows_an_interruption_repeats_its_step(
    tmp_path: Path,
) -> None:
    """Method: everything in the body is wrapped in a bare except, with a second optimizer after the
    one that votes. Rank 1 dies during its vote.
    """
    ran = go(tmp_path, SWALLOWING, marks=_strike("voting", step=4))
    assert ran.code == 0, ran.outcome
    assert len(ran.outcome.interruptions) == 1, ran.outcome
    extras = re.findall(r"extra \d \[([\d.]+),", ran.out)
    assert len(extras) == 2, ran.out
    assert all(abs(float(extra) - 0.2) < 1e-5 for extra in extras), (
        "eight steps of 0.1 from 1.0: the second optimizer ran once a step"
    )
    assert len(_digests(ran)) == 1
    ran.ended_clean()


@pytest.mark.drill
@pytest.mark.parametrize(
    ("mark", "step"), [("committed", 4), ("finishing", 4), ("prepared", 5), ("committed", 6)]
)
@pytest.mark.timeout(120)
def test_training_goes_on_in_a_second_call_after_a_loss_in_either(
    tmp_path: Path, undisturbed: str, mark: str, step: int
) -> None:
    ran = go(tmp_path, TWO_CALLS, marks=_strike(mark, step=step))
    assert ran.code == 0, ran.outcome
    assert ran.outcome.interruptions, "the drill never struck"
    assert _digests(ran) == {undisturbed}
    assert all(one["steps_lost"] == 0 for one in ran.outcome.interruptions), ran.outcome
    ran.ended_clean()


@pytest.mark.drill
@pytest.mark.parametrize("leave", ["break", "sys.exit(0)"])
def test_all_ranks_may_leave_the_loop_early(tmp_path: Path, leave: str) -> None:
    ran = go(tmp_path, EARLY.format(who="", leave=leave))
    assert ran.code == 0, ran.outcome
    assert not ran.outcome.interruptions, ran.outcome
    assert len(_digests(ran)) == (1 if leave == "break" else 0)
    ran.ended_clean()


@pytest.mark.drill
@pytest.mark.timeout(120)
def test_one_rank_that_exits_early_hangs_no_other(tmp_path: Path, undisturbed: str) -> None:
    """Method: rank 1 exits after step 4. The others miss it in step 5, and all restart from step 4,
    past the place where it exited.
    """
    early = EARLY.format(who=" and run.rank == 1", leave="sys.exit(0)")
    ran = go(tmp_path, early, within_s=90.0)
    assert ran.code == 0, ran.outcome
    assert undisturbed in _digests(ran)
    ran.ended_clean()


@pytest.mark.drill
@pytest.mark.parametrize(
    ("leave", "said"),
    [
        ('raise RuntimeError("between")', "RuntimeError: between"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
@pytest.mark.timeout(120)
def test_an_error_between_two_steps_costs_that_rank_and_nothing_else(
    tmp_path: Path, undisturbed: str, leave: str, said: str
) -> None:
    """No key was pressed: a KeyboardInterrupt that the script raises is an error like any other."""
    ran = go(tmp_path, EARLY.format(who=" and run.rank == 1", leave=leave))
    assert ran.code == 0, ran.outcome
    assert _digests(ran) == {undisturbed}
    assert said in ran.err
    ran.ended_clean()


@pytest.mark.drill
@pytest.mark.parametrize("flags", [(), ("--spares", "1"), ("--no-zygote",)])
@pytest.mark.timeout(120)
def test_a_world_of_one_trains_with_and_without_spares(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    ran = go(
        tmp_path,
        EARLY.format(who=" and False", leave="break"),
        *flags,
        workers=1,
        marks=_strike("committed", step=4, rank=0),
    )
    assert ran.code == 0, ran.outcome
    assert len(_digests(ran)) == 1
    ran.ended_clean()


@pytest.mark.drill
@pytest.mark.parametrize("do", ["raise", "SIGKILL"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
@pytest.mark.timeout(120)
def test_code_beside_the_block_runs_again_as_the_first_time(
    tmp_path: Path, before: bool, do: str
) -> None:
    """The code beside the block draws a number and lowers the learning rate.

    Method: rank 1 is struck in step 4, before the vote. Rank 0 prints the same as in an undisturbed
    run.

    This code also runs after an interrupted block, although the step is not committed.
    """
    said = []
    for name, marks in (("undisturbed", None), ("struck", _strike("prepared", step=4, do=do))):
        (tmp_path / name).mkdir()
        ran = go(
            tmp_path / name, BESIDE_THE_BLOCK.replace("{before}", str(before)), marks=marks or []
        )
        assert ran.code == 0, ran.outcome
        said.append((_digests(ran), set(re.findall(r"^drew 0 .*$", ran.out, re.MULTILINE))))
    assert said[0] == said[1]
    assert len(said[0][1]) == STEPS
