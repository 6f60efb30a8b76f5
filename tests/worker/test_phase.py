"""Work between steps: `for attempt in run.phase(name): with attempt:` runs once, or again as a
whole if it is interrupted.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from outlast.errors import TransactionError, UsageError
from outlast.runtime.worker.member.membership import Membership
from outlast.runtime.worker.run import Run
from tests.drills._scripts import go

EVALUATING = """
strike = os.path.join(os.path.dirname(__file__), "struck")
def struck():
    try: os.close(os.open(strike, os.O_CREAT | os.O_EXCL)); return True
    except FileExistsError: return False
state = named()
for step in run.steps(state, until=6):
    with step:
        update(step)
    if step.number == 3:
        for attempt in run.phase("evaluate"):
            with attempt:
                drawn = torch.rand(1)
                {try_}
                    if {how} and run.rank == 1 and struck(): {strike}
                    dist.all_reduce(drawn)
                {except_}
        print("evaluated", run.rank, f"{{float(drawn):.6f}}", flush=True)
end()
"""


def _script(strike: str, *, swallow: bool = False, how: str = "True") -> str:
    return EVALUATING.format(
        strike=strike,
        how=how,
        try_="try:" if swallow else "if True:",
        except_="except: pass" if swallow else "pass",
    )


def times_done(run: Run) -> int:
    """Return how often the block of a phase runs."""
    done = 0
    for attempt in run.phase("evaluate"):
        with attempt:
            done += 1
    return done


def test_a_phase_runs_once_when_nothing_happens() -> None:
    run = Run(Membership.of(None, reenters=False))
    with pytest.raises(UsageError, match=r"before run\.steps"):
        next(iter(run.phase("evaluate")))
    state = run.state(model=torch.nn.Linear(1, 1))
    for step in run.steps(state, until=1):
        with step:
            pass
    assert times_done(run) == 1


def test_a_phase_is_only_allowed_between_steps() -> None:
    run = Run(Membership.of(None, reenters=False))
    steps = run.steps(run.state(model=torch.nn.Linear(1, 1)), until=2)
    with next(steps):
        pass
    asked_before = next(iter(run.phase("evaluate")))
    with next(steps):
        for entered in (lambda: times_done(run), asked_before.__enter__):
            with pytest.raises(TransactionError, match="entered inside a step"):
                entered()


def test_a_phase_is_not_allowed_before_the_block_of_a_step() -> None:
    """What the phase changed could not be told apart from what the step did."""
    run = Run(Membership.of(None, reenters=False))
    steps = run.steps(run.state(model=torch.nn.Linear(1, 1)), until=2)
    step = next(steps)
    with (
        pytest.raises(TransactionError, match="before the block of step 1"),
        next(iter(run.phase("evaluate"))),
    ):
        pass
    with step:
        pass
    assert times_done(run) == 1


@pytest.mark.drill
@pytest.mark.parametrize(
    ("strike", "swallow"),
    [
        ("os.kill(os.getpid(), 9)", False),
        ("os.kill(os.getpid(), 9)", True),
        ('raise RuntimeError("once")', False),
    ],
)
@pytest.mark.timeout(150)
def test_an_interrupted_phase_runs_again_with_the_same_random_numbers(
    tmp_path: Path, strike: str, swallow: bool
) -> None:
    """Method: rank 1 is struck in its evaluation. The drawn and reduced numbers, and the digest at
    the end, are those of a run without the fault.
    """
    results = []
    for name, how in (("plain", "False"), ("struck", "True")):
        folder = tmp_path / name
        folder.mkdir()
        ran = go(folder, _script(strike, swallow=swallow, how=how))
        assert ran.code == 0, ran.outcome
        assert bool(ran.outcome.interruptions) == (how == "True"), ran.outcome
        ran.ended_clean()
        results.append(
            (
                set(re.findall(r"evaluated \d ([\d.]+)", ran.out)),
                set(re.findall(r"digest \d (\w+)", ran.out)),
            )
        )
    assert results[0] == results[1]
    assert all(len(values) == 1 for values in results[0])
