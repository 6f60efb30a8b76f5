"""PyTorch Lightning on outlast: a kill loses no update, and changes no bit of the weights."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlast.app.reports.status import status_facts
from outlast.runtime.ledger.view import look
from tests.drills._run import Drill, Outcome, drilled
from tests.drills._scripts import go

for library in ("lightning", "torchmetrics"):
    pytest.importorskip(
        library, reason=f"{library} is not installed: pip install 'outlast[lightning]'"
    )

EXAMPLE = Path(__file__).parents[3] / "examples" / "lightning_fit.py"
PRELOAD = ("--preload", "outlast.lightning")


def trained(folder: Path, *arguments: str, **options: Any) -> Outcome:
    """Run the example on two ranks, and kill a rank at each (step, rank)."""
    return killed(folder, str(EXAMPLE), "--out", str(folder / "out"), *arguments, **options)


def killed(
    folder: Path, *words: str, kills: tuple[tuple[int, int], ...] = (), **options: Any
) -> Outcome:
    """Run a script on two ranks, and kill a rank at each (step, rank)."""
    folder.mkdir()
    options["flags"] = (*options.get("flags", ()), *PRELOAD)
    with Drill(folder, *words, workers=2, within_s=110, **options) as drill:
        for number, (step, rank) in enumerate(kills, 1):
            drill.until(lambda step=step: drill.status.get("step", 0) >= step, f"step {step}")
            (pid,) = [one["pid"] for one in drill.status["workers"] if one["rank"] == rank]
            os.kill(pid, signal.SIGKILL)
            drill.until(lambda number=number: resumed(drill) == number, f"recovery {number}")
        outcome = drill.finish()
    assert outcome.code == 0, outcome
    return outcome


def resumed(drill: Drill) -> int:
    """Return how many interruptions are over, not counting those that belong to another one."""
    some = drill.status.get("interruptions", ())
    return sum(one["resumed_s"] is not None and one["parent"] is None for one in some)


def metrics(outcome: Outcome) -> list[str]:
    """Return what callbacks see at the end, on each rank."""
    return sorted(re.findall(r"metrics \d \d+ \{[^}]*\}.*", outcome.stdout))


def same(hit: Outcome, calm: Outcome) -> None:
    """Check that weights and metrics are those of an undisturbed run, and that no update
    was lost.
    """
    assert hit.digests == calm.digests != {}, hit
    assert metrics(hit) == metrics(calm) != [], hit
    assert not any(one["steps_lost"] for one in hit.interruptions), hit
    assert "not bit-exact" not in hit.stderr, hit


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return an undisturbed run."""
    return trained(tmp_path_factory.mktemp("calm") / "run")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_weights_are_those_of_lightnings_own_ddp(tmp_path: Path, calm: Outcome) -> None:
    """Method: the same script runs under torchrun with strategy="ddp". Samples, accumulation,
    clipping, precision, averages, validation and logs are Lightning's own, so the weights are the
    same too.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    done = subprocess.run(
        [*command, "2", str(EXAMPLE), "--plain", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    plain = Outcome(done.returncode, done.stdout, done.stderr, {}, [])
    assert plain.code == 0, plain
    same(plain, calm)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("spares", [0, 1])
def test_a_kill_under_lightning_costs_no_update_and_no_bit(
    tmp_path: Path, calm: Outcome, spares: int
) -> None:
    """Both ranks are killed, rank 0 with its logs and its checkpoints."""
    kills = ((5, 1), (13, 0), (20, 1))
    flags = ("--spares", str(spares))
    hit = trained(tmp_path / "hit", "--pause", "0.03", kills=kills, flags=flags)
    assert len(hit.interruptions) >= len(kills), hit
    same(hit, calm)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("mark", ["stepping", "prepared", "passed", "applied", "sealing"])
def test_a_kill_at_any_place_of_an_update_loses_no_update(
    tmp_path: Path, calm: Outcome, mark: str
) -> None:
    """A checkpoint and a validation follow update 8."""
    fault = {"mark": mark, "rank": 1, "step": 7, "signal": "KILL"}
    hit = trained(tmp_path / "hit", marks=[fault])
    assert hit.interruptions, hit
    same(hit, calm)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_kill_in_a_validation_repeats_the_validation(
    tmp_path: Path, calm: Outcome, rank: int
) -> None:
    """At that time the averaged weights are in the model, and the model is set to evaluation."""
    script = str(Path(__file__).with_name("scripts") / "dies_in_validation.py")
    once = tmp_path / "once"
    hit = drilled(
        tmp_path,
        script,
        "--out",
        tmp_path / "out",
        workers=2,
        flags=PRELOAD,
        env={"DIES": str(rank), "ONCE": str(once)},
        within_s=110,
    )
    assert once.exists()
    assert hit.code == 0, hit
    same(hit, calm)


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_a_script_with_much_around_it_keeps_its_bits_over_kills(tmp_path: Path) -> None:
    """The script stops early, by a metric of all ranks, and then tests the best checkpoint."""
    script = str(Path(__file__).with_name("scripts") / "whole_lightning.py")
    calm = killed(tmp_path / "calm", script, str(tmp_path / "calm-out"))
    kills = ((10, 1), (40, 0), (70, 1))
    hit = killed(tmp_path / "hit", script, str(tmp_path / "hit-out"), kills=kills)
    assert len(hit.interruptions) >= len(kills), hit
    same(hit, calm)
    steps = {int(line.split()[2]) for line in metrics(hit)}
    assert len(steps) == 1, hit
    assert 70 < max(steps) < 30 * 16, "it did not stop early"
    assert hit.stdout.count("tested") == 2, hit


@pytest.mark.drill
@pytest.mark.timeout(300)
def test_lightning_cli_takes_the_strategy_and_keeps_its_bits(tmp_path: Path) -> None:
    """LightningCLI passes every argument of the strategy, and rank 0 writes its configuration
    again.
    """
    pytest.importorskip("jsonargparse", reason="pip install 'jsonargparse[signatures]'")
    script = str(Path(__file__).with_name("scripts") / "lightning_cli.py")
    options = {
        "accelerator": "cpu",
        "devices": "2",
        "max_epochs": "4",
        "enable_progress_bar": "false",
        "strategy.class_path": "outlast.lightning.Strategy",
    }
    words = [word for name, value in options.items() for word in (f"--trainer.{name}", value)]

    def run(name: str, **given: Any) -> Outcome:
        home = ("--trainer.default_root_dir", str(tmp_path / f"{name}-out"))
        return killed(tmp_path / name, script, "fit", *words, *home, **given)

    hit = run("hit", kills=((10, 0), (30, 1)))
    assert len(hit.interruptions) >= 2, hit
    same(hit, run("calm"))


@pytest.mark.drill
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_resumed_run_keeps_values_of_callbacks_and_loops(tmp_path: Path, number: int) -> None:
    """Method: the launcher is stopped or killed in the middle of an epoch. `--resume` then stops
    early at the same batch, with the counters, the patience and the best score of an undisturbed
    run.
    """
    script = str(Path(__file__).with_name("scripts") / "whole_lightning.py")
    calm = killed(tmp_path / "calm", script, str(tmp_path / "calm-out"))
    flags = ("--checkpoint-every", "7", *PRELOAD)
    words = (script, str(tmp_path / "out"))
    folder = tmp_path / "hit"
    folder.mkdir()
    with Drill(folder, *words, workers=2, flags=flags, within_s=110) as drill:
        drill.until(lambda: drill.status.get("step", 0) >= 42, "step 42")
        drill.process.send_signal(number)
        first = drill.finish()
    assert first.code != 0, first
    with Drill(folder, *words, workers=2, flags=(*flags, "--resume"), within_s=110) as drill:
        resumed = drill.finish()
    assert resumed.code == 0, resumed
    assert resumed.digests == calm.digests != {}, resumed
    assert metrics(resumed) == metrics(calm) != [], (metrics(resumed), metrics(calm))


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_fit_goes_on_from_lightnings_own_checkpoint(tmp_path: Path, calm: Outcome) -> None:
    """The checkpoint was saved in the middle of an epoch, and plain Lightning can read it too."""
    trained(tmp_path / "first", "--epochs", "3")
    saved = next((tmp_path / "first").rglob("last.ckpt"))
    again = trained(tmp_path / "again", "--resume", str(saved))
    assert "metrics 0 30 " in again.stdout, again
    assert again.digests == calm.digests, again


REFUSED = """
import torch, lightning.pytorch as pl
from datetime import timedelta
from lightning.pytorch import callbacks
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
import outlast, outlast.lightning

class Stream(IterableDataset):
    def __iter__(self): return iter([torch.zeros(2)])

class Net(pl.LightningModule):
    def __init__(self, **options):
        super().__init__()
        self.layer, self.options = torch.nn.Linear(2, 1), options
        self.automatic_optimization = options.get("automatic", True)
    def training_step(self, batch, batch_idx): return self.layer(batch[0]).sum()
    def configure_optimizers(self):
        make = self.options.get("optimizer", lambda p: torch.optim.SGD(p, lr=0.1))
        return make(self.parameters())

def loader(**options): return DataLoader(TensorDataset(torch.zeros(8, 2)), **options)

def refused(named, *given, model=None, data=None, **options):
    try:
        trainer = pl.Trainer(
            accelerator="cpu", strategy=outlast.lightning.Strategy(), logger=False,
            enable_checkpointing=any(isinstance(one, callbacks.Checkpoint) for one in given),
            callbacks=list(given), **{"max_epochs": 1, **options},
        )
        trainer.fit(model or Net(), loader() if data is None else data)
    except outlast.OutlastError as error:
        assert named in str(error), (named, str(error))
        assert error.hint
        print("refused", named)
    else:
        raise AssertionError(named)

refused("manual optimization", model=Net(automatic=False))
refused("a fit without an optimizer", model=Net(optimizer=lambda p: None))
refused("an IterableDataset", data=DataLoader(Stream()))
refused("several loaders", data=[loader(), loader()])
refused("RandomSampler", data=loader(shuffle=True), use_distributed_sampler=False)
refused("WeightedRandomSampler",
        data=loader(sampler=torch.utils.data.WeightedRandomSampler([1.0] * 8, 8)))
refused("the callback Timer", max_time="00:00:01:00")
refused("the callback StochasticWeightAveraging", callbacks.StochasticWeightAveraging(0.1))
refused("the callback GradientAccumulationScheduler",
        callbacks.GradientAccumulationScheduler({0: 2}))
refused("train_time_interval", callbacks.ModelCheckpoint("x", train_time_interval=timedelta(1)))
refused("reload_dataloaders_every_n_epochs", reload_dataloaders_every_n_epochs=1)
refused("a val_check_interval of time", val_check_interval="00:00:01:00",
        check_val_every_n_epoch=None)
refused("sync_batchnorm", sync_batchnorm=True)
refused("a fit without an end", max_epochs=-1)
refused("Trainer(devices=2)", devices=2)
refused("LBFGS", model=Net(optimizer=torch.optim.LBFGS))
trainer = pl.Trainer(accelerator="cpu", strategy=outlast.lightning.Strategy(), logger=False,
                     enable_checkpointing=False, max_epochs=1, enable_progress_bar=False)
trainer.fit(Net(), loader())
try: trainer.fit(Net(), loader())
except outlast.UsageError as error: print("refused", error)
print("all", flush=True)
"""


@pytest.mark.timeout(180)
def test_what_cannot_be_repeated_is_refused_by_name_before_training(tmp_path: Path) -> None:
    """Method: one process tries everything that the documentation says is refused."""
    script = tmp_path / "script.py"
    script.write_text(REFUSED)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=150, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert "refused trainer.fit is called a second time" in done.stdout, done.stdout
    assert done.stdout.endswith("all\n"), done.stdout


COMMUNICATES = """
import torch, lightning.pytorch as pl
from torch.utils.data import DataLoader, TensorDataset
import outlast, outlast.lightning

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, batch_idx): return self.layer(batch[0]).sum()
    def HOOK(self, *given): self.all_gather(torch.zeros(1))
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)

trainer = pl.Trainer(accelerator="cpu", strategy=outlast.lightning.Strategy(), logger=False,
                     enable_checkpointing=False, max_epochs=1, enable_progress_bar=False)
trainer.fit(Net(), DataLoader(TensorDataset(torch.zeros(8, 2))))
print("trained", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("hook", "where"),
    [
        ("on_train_batch_end", "after the optimizer's step, in on_train_batch_end"),
        ("on_train_start", "in front of the first update"),
    ],
)
def test_a_hook_that_communicates_where_ranks_may_be_alone_is_refused(
    tmp_path: Path, hook: str, where: str
) -> None:
    ran = go(tmp_path, COMMUNICATES.replace("HOOK", hook), *PRELOAD, head="", within_s=120.0)
    assert ran.code == 2, ran.outcome
    assert where in ran.err, ran.outcome
    assert "hint: communicate in" in ran.err, ran.outcome


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("hook", ["on_before_optimizer_step", "on_train_epoch_end"])
def test_a_hook_may_communicate_where_all_ranks_arrive(tmp_path: Path, hook: str) -> None:
    ran = go(tmp_path, COMMUNICATES.replace("HOOK", hook), *PRELOAD, head="", within_s=120.0)
    assert ran.code == 0, ran.outcome
    assert ran.out.count("trained") == 2, ran.outcome


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_values_that_lightning_logs_are_in_the_status(tmp_path: Path) -> None:
    """Method: a rank is killed, and its replacement goes on logging."""
    trained(tmp_path / "hit", kills=((12, 0),))
    shown = status_facts(look(str(tmp_path / "hit" / "run")))
    assert shown["logged"]["step"] > 12
    assert any("loss" in name for name in shown["logged"]["values"])
