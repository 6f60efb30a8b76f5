"""`outlast check` names planted flaws with their lines, and says nothing of sound scripts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.app.command import outlast

HOME = Path(__file__).parents[2]
FOREIGN = HOME / "tests/drills/foreign/scripts"
SOUND = """\
import torch
import outlast

run = outlast.join()
net = torch.nn.Linear(4, 1)
model = run.replicate(net)
optimizer = torch.optim.AdamW(model.parameters())
state = run.state(model=model, optimizer=optimizer)
for step in run.steps(state, until=10):
    with step:
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
FLAWS = {  # what is replaced, by what, the line it is named at, and a word of the remark
    "group": (
        "import outlast\n",
        "import outlast\ntorch.distributed.init_process_group()\n",
        3,
        "process group",
    ),
    "twice": (
        "run.replicate(net)",
        "run.replicate(torch.nn.parallel.DistributedDataParallel(net))",
        6,
        "twice",
    ),
    "sharded": (
        "run.replicate(net)",
        "torch.distributed.fsdp.FullyShardedDataParallel(net)",
        6,
        "FSDP1",
    ),
    "barrier": ("net =", "torch.distributed.barrier()\nnet =", 5, "barrier"),
    "forgotten": (", optimizer=optimizer", "", 7, "optimizer is not in run.state"),
    "lbfgs": ("AdamW", "LBFGS", 7, "LBFGS"),
    "ahead": ("        model(torch.randn(2, 4))", "        model(X)", 12, "X is carried"),
    "loop": ("for step in run.steps(state, until=10)", "for step in steps()", 1, "never called"),
    "wrapped by name": (
        "run.replicate(net)",
        "run.replicate(net)\nmodel = torch.nn.parallel.DistributedDataParallel(model)",
        7,
        "twice",
    ),
    "fork": ("net =", "import os\npid = os.fork()\nnet =", 6, "threads run (since line 4)"),
    "group of its own": (
        "net =",
        "import torch.distributed as dist\nhalf = dist.new_group([0])\nnet =",
        6,
        "new_group makes a group",
    ),
    "handler": (
        "net =",
        "import signal\nsignal.signal(signal.SIGUSR1, print)\nnet =",
        6,
        "SIGUSR1",
    ),
    "pool": (
        "run = outlast.join()",
        "import multiprocessing as mp\npool = mp.get_context('fork').Pool(2)\nrun = outlast.join()",
        5,
        "processes",
    ),
    "split": (
        "net =",
        "a, b = torch.utils.data.random_split(range(9), [8, 1])\nnet =",
        5,
        "random_split draws before any seed is set",
    ),
    "spawn": (
        "run = outlast.join()",
        "torch.multiprocessing.spawn(print)\nrun = outlast.join()",
        4,
        "processes",
    ),
}


def checked(folder: Path, text: str) -> tuple[int, dict]:
    path = folder / "train.py"
    path.write_text(text)
    done = outlast("check", "--static", path, "--json")
    assert done.stderr == "", done
    return done.returncode, json.loads(done.stdout)


def test_a_sound_script_has_nothing_to_change(tmp_path: Path) -> None:
    code, facts = checked(tmp_path, SOUND)
    assert (code, facts["calls_outlast"], facts["remarks"]) == (0, True, [])


@pytest.mark.parametrize("flaw", FLAWS)
def test_a_planted_flaw_is_named_with_its_line(tmp_path: Path, flaw: str) -> None:
    old, new, line, word = FLAWS[flaw]
    text = SOUND.replace(old, new)
    if flaw == "ahead":
        text = text.replace("        optimizer.step()", "        X = f()\n        optimizer.step()")
    assert text != SOUND
    code, facts = checked(tmp_path, text)
    assert code == 1
    assert [(one["line"], word in one["what"]) for one in facts["remarks"]] == [(line, True)], facts
    assert all(one["do"] for one in facts["remarks"])


@pytest.mark.parametrize(
    "name", ["train_gpt.py", "train_fsdp.py", "hf_trainer.py", "lightning_fit.py", "trl_sft.py"]
)
def test_our_examples_have_nothing_to_change(name: str) -> None:
    done = outlast("check", "--static", HOME / "examples" / name)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "nothing to change was found" in done.stdout


SOUND_TOO = {  # what is replaced, and by what
    "one of two branches wraps": (
        "model = run.replicate(net)",
        "if run.rank < 0:\n    net = torch.nn.parallel.DistributedDataParallel(net)\nelse:\n"
        "    net = torch.nn.parallel.DistributedDataParallel(net)\nmodel = net",
    ),
    "a pool that is closed again": (
        "run = outlast.join()",
        "from concurrent.futures import ProcessPoolExecutor\nwith ProcessPoolExecutor(2) as pool:\n"
        "    pool.submit(print)\nrun = outlast.join()",
    ),
    "a scaler that is off": (
        "state = run.state",
        'scaler = torch.amp.GradScaler("cpu", enabled=False)\nstate = run.state',
    ),
    "times": (
        "        optimizer.zero_grad()",
        "        optimizer.zero_grad()\n    dt, t0 = time.time() - t0, time.time()\n"
        "    if dt > 60:\n        print('slow')",
    ),
    "a split after a seed": (
        "net =",
        "torch.manual_seed(0)\na, b = torch.utils.data.random_split(range(9), [8, 1])\nnet =",
    ),
    "a split with a generator": (
        "net =",
        "a, b = torch.utils.data.random_split(range(9), [8, 1], generator=g)\nnet =",
    ),
    "a function that nothing calls any more": (
        "run = outlast.join()",
        "def ddp_setup():\n    torch.distributed.init_process_group('gloo')\nrun = outlast.join()",
    ),
    "a name that is given another model": (
        "model = run.replicate(net)",
        "model = run.replicate(net)\nmodel = torch.nn.Linear(4, 1)\nmodel = run.replicate(model)",
    ),
}


@pytest.mark.parametrize("name", SOUND_TOO)
def test_what_only_looks_like_a_flaw_is_not_named(tmp_path: Path, name: str) -> None:
    code, facts = checked(tmp_path, SOUND.replace(*SOUND_TOO[name]))
    assert (code, facts["remarks"]) == (0, []), facts


def test_a_script_without_outlast_calls_is_told_what_a_failure_costs(tmp_path: Path) -> None:
    done = outlast("check", "--static", FOREIGN / "loop.py")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "makes no outlast call" in done.stdout
    assert "it loads its own file at line" in done.stdout
    assert "run = outlast.join()" in done.stdout
    text = "import torch\nfor x in y:\n    f(x).backward()\n"
    code, facts = checked(tmp_path, text)
    assert (code, facts["remarks"][0]["line"]) == (1, 1)
    assert "no line that saves anything was found" in facts["remarks"][0]["what"]
    code, facts = checked(tmp_path, text + "torch.save({}, 'x')\n")
    assert (code, facts["remarks"][0]["line"]) == (1, 4)
    assert "no load of what is saved here" in facts["remarks"][0]["what"]


def test_a_script_that_starts_its_own_ranks_is_not_run(tmp_path: Path) -> None:
    """It would hang until the time limit, and train in processes that nobody sees."""
    path = tmp_path / "train.py"
    path.write_text(
        "import sys\nimport torch.multiprocessing as mp\nopen('ran', 'w')\n"
        "if __name__ == '__main__':\n    mp.spawn(print, nprocs=2)\n"
    )
    done = outlast("check", path, "--json", cwd=tmp_path)
    facts = json.loads(done.stdout)
    assert (done.returncode, [one["line"] for one in facts["remarks"]]) == (1, [5])
    assert "was not run" in facts["trial"]["undetermined"][0]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("library", "made", "do"),
    [
        ("transformers", "Trainer", "outlast.hf.Trainer"),
        ("lightning", "Trainer", "outlast.lightning.Strategy()"),
        ("accelerate", "Accelerator", "outlast.join()"),
    ],
)
def test_a_loop_of_a_library_is_not_said_to_save_nothing(
    tmp_path: Path, library: str, made: str, do: str
) -> None:
    code, facts = checked(tmp_path, f"import {library}\n{library}.{made}().fit()\n")
    assert (code, facts["remarks"]) == (0, [])
    assert f"is up to {library}" in facts["after_failure"]
    assert [(one["line"], do in one["do"]) for one in facts["adoption"]] == [(2, True)]


def test_a_model_of_transformers_in_a_loop_of_ones_own_is_no_trainer(tmp_path: Path) -> None:
    text = "import transformers\nfor x in y:\n    f(x).backward()\n    optimizer.step()\n"
    code, facts = checked(tmp_path, text)
    assert code == 1
    assert "no line that saves anything was found" in facts["remarks"][0]["what"]


def test_a_module_is_checked_with_the_modules_of_its_own(tmp_path: Path) -> None:
    """Saving, loading and the loop lie in other files of the package than the one that is run."""
    package = tmp_path / "kit"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "io.py").write_text(
        "import torch\ndef save(x): torch.save(x, 'a')\ndef load(): return torch.load('a')\n"
    )
    (package / "loop.py").write_text(
        "class Trainer:\n"
        "    def fit(self):\n"
        "        for epoch in range(3):\n"
        "            for batch in self.loader:\n"
        "                self.one(batch)\n"
        "    def one(self, batch):\n"
        "        self.model(batch).backward()\n"
        "        self.optimizer.step()\n"
    )
    (package / "train.py").write_text(
        "from kit.loop import Trainer\nfrom . import io\nTrainer().fit()\n"
    )
    done = outlast("check", "--static", "-m", "kit.train", "--json", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done
    facts = json.loads(done.stdout)
    assert "loads its own file at io.py:3, saved at io.py:2" in facts["after_failure"]
    named = {one["what"]: (Path(one["file"]).name, one["line"]) for one in facts["adoption"]}
    assert named["the loop"] == ("loop.py", 4)
    assert named["the loop over epochs"] == ("loop.py", 3)
    missing = outlast("check", "--static", "-m", "kit.absent", cwd=tmp_path)
    assert missing.returncode == 2
    assert "there is no module kit.absent" in missing.stderr


def test_a_script_beside_its_package_is_checked_with_it(tmp_path: Path) -> None:
    """As in `python scripts/train.py`, with the package installed from the current folder."""
    loop = "def fit():\n    for x in y:\n        f(x).backward()\n        opt.step()\n"
    for folder in ("scripts", "kit"):
        (tmp_path / folder).mkdir()
    (tmp_path / "kit" / "loop.py").write_text(f"from .parts import f\n{loop}")
    (tmp_path / "kit" / "parts.py").write_text("import torch\ntorch.save(x, 'a')\n")
    script = tmp_path / "scripts" / "train.py"
    script.write_text("from kit.loop import fit\nfit()\n")
    here = json.loads(outlast("check", "--static", script, "--json", cwd=tmp_path).stdout)
    assert [(Path(one["file"]).name, one["line"]) for one in here["adoption"]] == [("loop.py", 3)]
    assert Path(here["remarks"][0]["file"]).name == "parts.py"
    there = json.loads(outlast("check", "--static", script, "--json", cwd=tmp_path / "kit").stdout)
    assert there["adoption"] == []


def test_what_is_no_python_is_refused(tmp_path: Path) -> None:
    """It may be for another Python. The one that reads it is named, and the line."""
    path = tmp_path / "train.py"
    path.write_text("y = 1\nfor x in\n")
    done = outlast("check", "--static", path)
    assert done.returncode == 2, done
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert f"train.py:2: this is not Python {version}: " in done.stderr
    assert "hint:" in done.stderr
