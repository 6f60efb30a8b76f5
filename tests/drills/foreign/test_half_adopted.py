"""Scripts that call outlast and still do by themselves what outlast would do for them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.drills._run import Drill, Outcome, drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(200)]
HALF = str(Path(__file__).parent / "scripts" / "half.py")


@pytest.mark.parametrize("how", ["ddp", "bare"])
def test_a_model_that_the_script_wraps_is_healed_as_any_other(tmp_path: Path, how: str) -> None:
    """Rank 1 is killed in training, and the digest is that of the undisturbed run.

    bare   run.state is given the model inside DDP, as in checkpoints of many scripts
    """
    calm, hit = tmp_path / "calm", tmp_path / "hit"
    calm.mkdir()
    hit.mkdir()
    undisturbed = drilled(calm, HALF, how, workers=2)
    with Drill(hit, HALF, how, workers=2) as drill:
        drill.until(lambda: drill.status.get("step", 0) >= 20, "step 20")
        (pid,) = [one["pid"] for one in drill.status["workers"] if one["rank"] == 1]
        os.kill(pid, signal.SIGKILL)
        outcome = drill.finish()
    assert (undisturbed.code, outcome.code) == (0, 0), outcome
    assert outcome.digests == undisturbed.digests != {}, outcome
    assert [one["rung"] for one in outcome.interruptions] == ["respawn"], outcome
    outcome.ledger_is_sound()


def refused(folder: Path, how: str) -> Outcome:
    outcome = drilled(folder, HALF, how, workers=2)
    assert (outcome.code, outcome.interruptions) == (2, []), outcome
    assert "Traceback" not in outcome.stderr, outcome  # it is reported once, with the line
    assert outcome.stderr.count("hint: ") == 1, outcome
    return outcome


def line_of(text: str, *, which: int = 0) -> int:
    """Return the line of the script in which `text` occurs for the n-th time."""
    lines = Path(HALF).read_text().splitlines()
    return [number for number, line in enumerate(lines, 1) if text in line][which]


@pytest.mark.parametrize(("how", "which"), [("before", 0), ("after", 1)])
def test_a_process_group_of_its_own_is_refused_with_its_line(
    tmp_path: Path, how: str, which: int
) -> None:
    outcome, line = refused(tmp_path, how), line_of("dist.init_process_group", which=which)
    assert f"error: {HALF}:{line} in <module>: init_process_group" in outcome.stderr, outcome
    assert "hint: delete that line" in outcome.stderr, outcome


def test_a_model_that_is_wrapped_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    outcome = refused(tmp_path, "twice")
    line = line_of("run.replicate")
    assert f"error: {HALF}:{line} in <module>: this model is under" in outcome.stderr, outcome


@pytest.mark.parametrize("when", ["--early", "--late"])
def test_a_hot_spare_that_asks_for_its_rank_waits_until_it_has_one(
    tmp_path: Path, when: str
) -> None:
    """The script reads RANK before or after outlast.join. Without a rank it would end with a
    NameError.

    Method: two kills, so that the second spare takes a rank as well. There are three ranks, because
    gloo can block one of the others for ever in a send to the killed one.
    """
    calm, hit = tmp_path / "calm", tmp_path / "hit"
    calm.mkdir()
    hit.mkdir()
    script = str(Path(HALF).with_name("switch.py"))
    undisturbed = drilled(calm, script, when, workers=3)
    with Drill(hit, script, when, workers=3, flags=("--spares", 1)) as drill:
        for number in range(2):
            drill.until(drill.parked, "a spare")
            drill.until(lambda: drill.status.get("state") == "training", "training")
            (pid,) = [one["pid"] for one in drill.status["workers"] if one["rank"] == 1]
            os.kill(pid, signal.SIGKILL)
            over = number + 1
            drill.until(lambda over=over: resumed(drill) == over, f"recovery {over}")
        outcome = drill.finish()
    assert (undisturbed.code, outcome.code) == (0, 0), outcome
    assert outcome.digests == undisturbed.digests != {}, outcome
    assert [one["rung"] for one in outcome.interruptions] == ["spare", "spare"], outcome
    assert "spare ended before it could park" not in outcome.stderr, outcome


def test_values_that_are_kept_survive_and_those_that_are_carried_are_named(tmp_path: Path) -> None:
    """Rank 1 is killed in a loop that keeps its best loss by run.values. A loop that carries its
    batch and its best loss in plain variables gets a warning before it trains, with their names and
    lines.
    """
    script = str(Path(HALF).with_name("carries.py"))
    folders = [tmp_path / name for name in ("calm", "hit", "carries")]
    for folder in folders:
        folder.mkdir()
    undisturbed = drilled(folders[0], script, "--keeps", workers=2)
    with Drill(folders[1], script, "--keeps", workers=2) as drill:
        drill.until(lambda: drill.status.get("step", 0) >= 20, "step 20")
        (pid,) = [one["pid"] for one in drill.status["workers"] if one["rank"] == 1]
        os.kill(pid, signal.SIGKILL)
        outcome = drill.finish()
    assert outcome.digests == undisturbed.digests != {}, outcome
    assert "carried" not in outcome.stderr, outcome
    carries = drilled(folders[2], script, workers=2)
    (warning,) = [text for text in carries.report["warnings"] if "carried" in text]
    lines = Path(script).read_text().splitlines()
    for name, text in (("X", "loss = model(X)"), ("best", "best = min(best")):
        (line,) = [
            number for number, words in enumerate(lines, 1) if words.strip().startswith(text)
        ]
        assert f"{name} (line {line})" in warning, warning


def resumed(drill: Drill) -> int:
    """Return how many interruptions are over."""
    some = drill.status.get("interruptions", ())
    return sum(one["resumed_s"] is not None for one in some)


ALONE = """
import torch, outlast
run = outlast.join()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = run.state(model=model, optimizer=optimizer)
torch.manual_seed(run.rank)
for step in run.steps(state, until=4):
    with step:
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_ranks_whose_gradients_are_not_reduced_cause_a_warning(tmp_path: Path) -> None:
    """The model is not wrapped, so each rank trains its own one, starting from equal weights."""
    script = tmp_path / "train.py"
    script.write_text(ALONE)
    outcome = drilled(tmp_path, str(script), workers=2)
    assert outcome.code == 0, outcome
    assert outcome.stderr.count("If the ranks are to train one model, wrap it in") == 1, outcome
