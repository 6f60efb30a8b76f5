"""Scripts that know nothing of outlast: the run reports what really happened."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.drills._pids import alive, below, until
from tests.drills._run import Drill, Outcome, drilled

pytestmark = [pytest.mark.drill, pytest.mark.timeout(200)]
LOOP = Path(__file__).parent / "scripts" / "loop.py"


def struck(
    folder: Path,
    *arguments: str | int,
    at: int,
    number: int,
    script: Path = LOOP,
    **options: Any,
) -> Outcome:
    """Run a script on two ranks, and send rank 1 a signal once rank 0 has printed `iter <at>`."""
    with Drill(folder, str(script), folder, *arguments, workers=2, **options) as drill:
        pid = process_of_rank_1(drill)
        drill.until(lambda: f"iter {at}\n" in (folder / "stdout").read_text(), f"iteration {at}")
        os.kill(pid, number)
        return drill.finish()


def process_of_rank_1(drill: Drill) -> int:
    """Return its pid, once the ledger has it. Before, the status says 0, and a signal to process 0
    would reach the test itself.
    """

    def pid() -> int:
        workers = drill.status.get("workers", ())
        return next((int(one["pid"]) for one in workers if one["rank"] == 1), 0)

    drill.until(lambda: pid() > 0, "the process of rank 1")
    return pid()


def begun_behind(outcome: Outcome) -> list[int]:
    """Return, for each start, the step after which rank 0 said it begins."""
    lines = outcome.stdout.splitlines()
    return [int(line.split()[-1]) for line in lines if line.startswith("rank 0 begins behind")]


def test_steps_lost_are_those_since_the_scripts_own_checkpoint(tmp_path: Path) -> None:
    """The optimizer's own count shows from where the script went on."""
    outcome = struck(tmp_path, 60, 20, at=35, number=signal.SIGKILL)
    assert outcome.code == 0, outcome
    assert begun_behind(outcome) == [0, 20], outcome
    (one,) = outcome.interruptions
    # rank 0 has printed step 35, and rank 1 may have been killed in its own call of the optimizer
    assert one["step"] >= 34, outcome
    assert one["step"] - 20 <= one["steps_lost"] == one["steps_repeated"] <= one["step"] - 18, one
    assert (outcome.report["steps"], outcome.report["calls_outlast"]) == (60, False), outcome
    assert one["mttr_s"] > 0.1, one  # the time until the next step, not until the processes run
    seconds = outcome.report["rank_seconds"]
    assert seconds["productive"] > 2 * 60 * 0.02 * 0.8, seconds
    assert seconds["repeated"] > 2 * 14 * 0.02 * 0.8, seconds
    assert 0 < outcome.report["ettr"] < 1, outcome.report


@pytest.mark.parametrize("how", ["--sgd", "--weights"])
@pytest.mark.parametrize(
    "file",
    [(), ("--handle",), ("--safetensors",), ("--target",)],
    ids=["path", "handle", "safetensors", "target"],
)
def test_the_file_shows_the_step_if_the_optimizer_has_no_count(
    tmp_path: Path, how: str, file: tuple[str, ...]
) -> None:
    """SGD does not count steps, and Adam begins to count anew if its state is not loaded.

    The run has seen after which step the file was saved, by its path, through a file object or by
    safetensors. A target network that is set from the model does not change that.
    """
    outcome = struck(tmp_path, 60, 20, how, *file, at=35, number=signal.SIGKILL)
    assert outcome.code == 0, outcome
    (one,) = outcome.interruptions
    assert one["step"] - 20 <= one["steps_lost"] == one["steps_repeated"] <= one["step"] - 18, one
    assert outcome.report["steps"] == 60, outcome
    assert 0 < outcome.report["ettr"] < 1, outcome.report


@pytest.mark.parametrize("how", ["--sgd", "--weights"])
def test_a_file_that_is_not_seen_leaves_the_loss_unknown(tmp_path: Path, how: str) -> None:
    """The file is read into memory first, so it is unknown from where the script went on.

    Adam counts from one again. That does not show that the script began with its first step.
    """
    outcome = struck(tmp_path, 60, 20, how, "--memory", at=35, number=signal.SIGKILL)
    assert outcome.code == 0, outcome
    assert begun_behind(outcome) == [0, 20], outcome
    (one,) = outcome.interruptions
    assert (one["steps_lost"], one["steps_repeated"]) == (None, None), one
    assert one["mttr_s"] is not None, one
    assert outcome.report["ettr"] is None, outcome.report


@pytest.mark.parametrize("how", ["--sgd", "--adam"])
def test_a_target_network_is_not_taken_for_loaded_weights(tmp_path: Path, how: str) -> None:
    """It is set from the model of the same process. The script begins with its first step again."""
    outcome = struck(tmp_path, 60, 20, how, "--target", "--fresh", at=35, number=signal.SIGKILL)
    assert outcome.code == 0, outcome
    assert begun_behind(outcome) == [0, 0], outcome
    (one,) = outcome.interruptions
    assert one["step"] <= one["steps_lost"] == one["steps_repeated"] <= one["step"] + 2, one
    assert outcome.report["steps"] == 60, outcome
    assert 0 < outcome.report["ettr"] < 1, outcome.report


def test_a_stopped_rank_is_found_at_once_and_reported_as_stopped(tmp_path: Path) -> None:
    outcome = struck(tmp_path, 60, 20, at=35, number=signal.SIGSTOP)
    assert outcome.code == 0, outcome
    (one,) = outcome.interruptions
    assert one["mechanism"] == "hang", one
    assert one["detected_s"] - one["fault_s"] < 3.0, one


def test_no_figure_is_given_where_no_step_is_seen(tmp_path: Path) -> None:
    """A script that trains without torch is started again, and no figures are given for it."""
    script = tmp_path / "counts.py"
    script.write_text(
        "import time\nfor n in range(60):\n"
        "    print(f'iter {n}', flush=True)\n    time.sleep(0.05)\n"
    )
    with Drill(tmp_path, str(script), workers=2) as drill:
        pid = process_of_rank_1(drill)
        drill.until(lambda: "iter 30" in (tmp_path / "stdout").read_text(), "iteration 30")
        os.kill(pid, signal.SIGKILL)
        outcome = drill.finish()
    report, (one,) = outcome.report, outcome.interruptions
    assert (outcome.code, report["steps_seen"], report["ettr"]) == (0, False, None), outcome
    assert (one["mttr_s"], one["steps_lost"], one["steps_repeated"]) == (None, None, None), one
    assert (report["mttr"]["count"], report["mttr"]["median_range_s"]) == (1, None), report
    assert report["rank_seconds"]["other"] > 2 * 60 * 0.05 * 0.8, report
    assert "processes run again by restart; steps not seen" in outcome.stderr, outcome


def test_the_progress_bar_of_a_killed_rank_is_not_its_error(tmp_path: Path) -> None:
    """The last line that such a rank wrote to stderr has nothing to do with the kill."""
    script = tmp_path / "bar.py"
    script.write_text(
        "import sys, time\nfor n in range(60):\n    print(f'iter {n}', flush=True)\n"
        "    sys.stderr.write(f'\\r{n}/60 loss 2.8')\n    time.sleep(0.05)\n"
    )
    with Drill(tmp_path, str(script), workers=2) as drill:
        pid = process_of_rank_1(drill)
        drill.until(lambda: "iter 30" in (tmp_path / "stdout").read_text(), "iteration 30")
        os.kill(pid, signal.SIGKILL)
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    assert [one["error"] for one in outcome.interruptions] == ["signal 9"], outcome


@pytest.mark.parametrize("sgd", [False, True])
def test_a_resumed_script_is_not_reported_to_begin_with_its_first_step(
    tmp_path: Path, sgd: bool
) -> None:
    """Method: the launcher is killed. The script's own checkpoint is newer than any state of the
    run.
    """
    arguments = (60, 20, "--sgd") if sgd else (60, 20)
    with Drill(tmp_path, str(LOOP), tmp_path, *arguments, workers=2) as drill:
        drill.until(lambda: "iter 35\n" in (tmp_path / "stdout").read_text(), "iteration 35")
        pids = below(drill.process.pid)
        drill.process.kill()
        drill.process.wait(10)
        until("every process of the run has ended", lambda: not alive(pids), within_s=10.0)
    outcome = drilled(tmp_path, str(LOOP), tmp_path, *arguments, workers=2, flags=("--resume",))
    assert outcome.code == 0, outcome
    assert begun_behind(outcome) == [20], outcome
    said = next(line for line in outcome.stderr.splitlines() if "resuming" in line)
    assert "its own checkpoint decides" in said
    lost = outcome.report["steps_lost_between_sessions"]
    assert 15 <= lost <= 18, (lost, said)
    assert (outcome.report["steps"], outcome.report["ettr"] is None) == (60, False), outcome


SAVES_AT_CTRL_C = """
import os, sys, time
import torch
weights = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(weights.parameters(), lr=0.1)
try:
    for n in range(10_000):
        weights(torch.ones(2)).sum().backward()
        optimizer.step()
        print(f"iter {n}", flush=True)
        time.sleep(0.02)
except KeyboardInterrupt:
    torch.save(weights.state_dict(), f"{sys.argv[1]}/saved-{os.environ['RANK']}.pt")
    raise
"""


def test_ctrl_c_lets_a_script_save_where_it_catches_it(tmp_path: Path) -> None:
    """Ctrl-C works as under torchrun: it goes to all ranks, and no rank shows a traceback of it."""
    script = tmp_path / "train.py"
    script.write_text(SAVES_AT_CTRL_C)
    with Drill(tmp_path, str(script), tmp_path, workers=2) as drill:
        drill.until(lambda: (tmp_path / "stdout").read_text().count("iter 9\n") == 2, "iteration 9")
        drill.process.send_signal(signal.SIGINT)
        outcome = drill.finish()
    assert (outcome.code, outcome.interruptions) == (130, []), outcome
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["saved-0.pt", "saved-1.pt"]
    assert "workers are sent SIGINT" in outcome.stderr
    assert "Traceback" not in outcome.stderr, outcome
    assert outcome.stderr.count("each of the 2 ranks trains a model of its own") == 1, outcome
