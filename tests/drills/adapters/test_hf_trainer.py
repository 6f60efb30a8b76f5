"""Hugging Face's Trainer on outlast: a kill loses no step, and changes no bit of the weights."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from outlast.app.reports.status import status_facts
from outlast.runtime.ledger.view import look
from tests.drills._run import Drill, Outcome, drilled
from tests.drills._scripts import go

for library in ("transformers", "accelerate"):
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'outlast[hf]'")

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "hf_trainer.py")


def trained(folder: Path, *, kills: tuple[tuple[int, int], ...], spares: int = 0) -> Outcome:
    """Run the example on two ranks, and kill a rank at each (step, rank)."""
    folder.mkdir()
    arguments = ("--steps", "40", "--out", str(folder / "out"))
    flags = ("--spares", spares)
    with Drill(folder, EXAMPLE, *arguments, workers=2, flags=flags, within_s=90) as drill:
        for number, (step, rank) in enumerate(kills):
            drill.until(lambda step=step: drill.status.get("step", 0) >= step, f"step {step}")
            (pid,) = [one["pid"] for one in drill.status["workers"] if one["rank"] == rank]
            os.kill(pid, signal.SIGKILL)
            over = number + 1
            drill.until(lambda over=over: resumed(drill) == over, f"recovery {over}")
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    return outcome


def resumed(drill: Drill) -> int:
    """Return how many interruptions are over."""
    some = drill.status.get("interruptions", ())
    return sum(one["resumed_s"] is not None for one in some)


def history(folder: Path) -> list[dict[str, Any]]:
    """Return what Trainer's last checkpoint records of the run, without what depends on the
    clock.
    """
    text = (folder / "out" / "checkpoint-40" / "trainer_state.json").read_text()
    found: list[dict[str, Any]] = json.loads(text)["log_history"]
    clock = ("runtime", "per_second")
    return [{key: one[key] for key in one if not key.endswith(clock)} for one in found]


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """Return the folder of an undisturbed run, and the run."""
    folder = tmp_path_factory.mktemp("calm") / "run"
    return folder, trained(folder, kills=())


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("spares", [0, 1])
def test_a_kill_under_trainer_costs_no_step_and_no_bit(
    tmp_path: Path, calm: tuple[Path, Outcome], spares: int
) -> None:
    """Both ranks are killed once, rank 0 with its logs. Digest, losses, learning rates, evaluations
    and the saved trainer_state are those of an undisturbed run.
    """
    folder, quiet = calm
    hit = trained(tmp_path / "hit", kills=((6, 1), (17, 0)), spares=spares)
    assert hit.digests == quiet.digests != {}, hit
    assert [one["steps_lost"] for one in hit.interruptions] == [0, 0], hit
    assert "not bit-exact" not in hit.stderr, hit
    assert history(tmp_path / "hit") == history(folder)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_kill_in_an_evaluation_repeats_the_evaluation(
    tmp_path: Path, calm: tuple[Path, Outcome], rank: int
) -> None:
    """A replaced rank reaches the evaluation by executing the previous step again, alone.
    accelerate cannot gather there, and what is due after the step must still come.
    """
    folder, quiet = calm
    script = str(Path(__file__).with_name("scripts") / "dies.py")
    once = tmp_path / "once"
    outcome = drilled(
        tmp_path,
        script,
        "--steps",
        40,
        "--out",
        tmp_path / "out",
        workers=2,
        env={"DIES": str(rank), "ONCE": str(once)},
    )
    assert once.exists()
    assert outcome.code == 0, outcome
    assert outcome.digests == quiet.digests, outcome
    assert [one["steps_lost"] for one in outcome.interruptions] == [0], outcome
    assert history(tmp_path) == history(folder)


@pytest.mark.timeout(180)
def test_trainer_without_join_first_names_the_line_to_add(tmp_path: Path) -> None:
    body = (
        "import torch, outlast, outlast.hf\n"
        "from transformers import TrainingArguments\n"
        "args = TrainingArguments(output_dir='out', use_cpu=True, report_to=[])\n"
        "model = torch.nn.Linear(2, 2)\n"
        "outlast.hf.Trainer(model=model, args=args, train_dataset=[{}]).train()\n"
    )
    ran = go(tmp_path, body, head="", within_s=120.0)
    assert ran.code == 2, ran.outcome
    assert "outlast.join()" in ran.err, ran.outcome


@pytest.mark.timeout(180)
def test_features_that_trainer_cannot_repeat_are_refused_by_name(tmp_path: Path) -> None:
    body = (
        "import torch, outlast, outlast.hf\n"
        "from transformers import TrainingArguments\n"
        "outlast.join()\n"
        "class Stream(torch.utils.data.IterableDataset):\n"
        "    def __iter__(self): return iter([])\n"
        "args = TrainingArguments(output_dir='out', use_cpu=True, report_to=[], max_steps=2)\n"
        "model = torch.nn.Linear(2, 2)\n"
        "outlast.hf.Trainer(model=model, args=args, train_dataset=Stream()).train()\n"
    )
    ran = go(tmp_path, body, head="", within_s=120.0)
    assert ran.code == 2, ran.outcome
    assert "does not do an IterableDataset" in ran.err, ran.outcome


@pytest.mark.timeout(180)
def test_ranks_that_trainer_does_not_know_of_are_refused(tmp_path: Path) -> None:
    """Without a GPU and without use_cpu, Trainer would train a separate model on each rank."""
    body = (
        "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
        "import torch, outlast, outlast.hf\n"
        "from transformers import TrainingArguments\n"
        "outlast.join()\n"
        "args = TrainingArguments(output_dir='out', report_to=[], max_steps=2)\n"
        "model = torch.nn.Linear(2, 2)\n"
        "outlast.hf.Trainer(model=model, args=args, train_dataset=[{}]).train()\n"
    )
    ran = go(tmp_path, body, head="", within_s=120.0)
    assert ran.code == 2, ran.outcome
    assert "knows of 1 rank, and the run has 2" in ran.err, ran.outcome
    assert "use_cpu=True" in ran.err, ran.outcome


@pytest.mark.slow
def test_values_that_trainer_logs_are_in_the_status(calm: tuple[Path, Outcome]) -> None:
    folder, _ = calm
    shown = status_facts(look(str(folder / "run")))
    assert shown["target_step"] == 40
    assert shown["logged"]["step"] > 0
    assert {"loss", "learning_rate"} <= set(shown["logged"]["values"])


@pytest.mark.parametrize("done", [False, True])
def test_a_stop_waits_until_all_ranks_have_voted_on_its_update(
    monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    """A callback asks for the end in a step whose vote comes late, as when a scaler skips the
    optimizer. Method: one step over stand-ins, whose phase is entered only if the vote passes.
    """
    from outlast.hf import Trainer

    trainer = Trainer.__new__(Trainer)
    events = SimpleNamespace(
        on_epoch_begin=lambda args, state, control: control,
        on_epoch_end=lambda args, state, control: control,
    )
    flags = dict.fromkeys(
        ("should_log", "should_evaluate", "should_save", "should_epoch_stop"), False
    )
    trainer.args = SimpleNamespace(gradient_accumulation_steps=1)
    trainer.callback_handler, trainer.state = events, SimpleNamespace()
    trainer.control = SimpleNamespace(**flags, should_training_stop=False)
    trainer._newest = SimpleNamespace(grad_norm=None, learning_rate=None)
    trainer._tr_loss = None
    trainer._maybe_log_save_evaluate = lambda *args, **kwargs: None

    def update(model: object, batches: object, epoch: float) -> None:
        trainer.control.should_training_stop = True

    monkeypatch.setattr(trainer, "_update", update)
    attempt = MagicMock(done=True)
    run = SimpleNamespace(phase=lambda name: [attempt] if done else [])
    step = MagicMock(number=3, batches=[])
    assert trainer._one_step(run, step, None, 10, None, None, 0.0) is done
