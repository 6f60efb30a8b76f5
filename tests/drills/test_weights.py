"""The weights of a run that is over are read bit for bit: by outlast.load, and by `outlast ckpt
export`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import outlast
from outlast.errors import CorruptError, StateError, UsageError
from tests.app.command import outlast as command
from tests.drills._run import OUTLAST, drilled
from tests.drills.foreign.scripts.saves import Net

SAVES = str(Path(__file__).parent / "foreign" / "scripts" / "saves.py")
EVERY = ("--checkpoint-every", "5")


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of ten steps in `run`, and what the script itself saved in
    `own.pt`.
    """
    folder = tmp_path_factory.mktemp(request.param)
    more = ["--fsdp"] if request.param == "fsdp" else []
    outcome = drilled(folder, SAVES, str(folder / "own.pt"), *more, workers=2, flags=EVERY)
    assert outcome.code == 0, outcome
    return folder


def ckpt(*words: object) -> subprocess.CompletedProcess[str]:
    return command("ckpt", "export", *map(str, words))


def ckpt_anew(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a fresh interpreter, which takes seconds because it imports torch."""
    again = [OUTLAST, "ckpt", "export", *map(str, words)]
    return subprocess.run(again, capture_output=True, text=True, timeout=60)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return set(left) == set(right) and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("file", ["model.pt", "model.safetensors"])
def test_a_file_of_the_weights_has_every_bit_of_them(
    ended: Path, tmp_path: Path, file: str
) -> None:
    """The file equals the state_dict that the script saved, second names of tied weights included,
    and loads into a model without a complaint.
    """
    anew = ended.name.startswith("ddp") and file.endswith("s")  # one time is enough
    export = ckpt_anew if anew else ckpt
    said = export(ended / "run", tmp_path / file)
    assert (said.returncode, said.stderr) == (0, ""), said
    assert said.stdout.endswith("of model, step 10\n"), said
    own = torch.load(ended / "own.pt")
    written = tmp_path / file
    found = load_file(written) if file.endswith("s") else torch.load(written)
    assert same(found, own)
    Net().load_state_dict(found)


def test_load_fills_a_model_with_the_newest_weights(ended: Path) -> None:
    torch.manual_seed(5)
    net = Net()
    assert outlast.load(ended / "run", model=net) == 10
    assert same(net.state_dict(), torch.load(ended / "own.pt"))


def test_a_model_that_does_not_fit_is_left_as_it_is(ended: Path) -> None:
    net = Net(width=6)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(StateError, match=r"model\.tokens\.weight is .*\[16, 6\] here"):
        outlast.load(ended / "run", model=net)
    with pytest.raises(StateError, match="was not saved"):
        outlast.load(ended / "run", net=net)
    assert same(net.state_dict(), before)


@pytest.fixture
def damaged(ended: Path) -> Iterator[Path]:
    """Yield the run while one bit of its newest checkpoint is flipped."""
    (shard,) = (ended / "run").glob("checkpoints/step-*10/rank-0.safetensors")
    good = shard.read_bytes()
    shard.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    yield ended / "run"
    shard.write_bytes(good)


def test_a_damaged_checkpoint_is_passed_over_or_refused(damaged: Path, tmp_path: Path) -> None:
    """The previous checkpoint is used, and a warning says so. If this very checkpoint was
    requested, it is an error, and no file appears.
    """
    said = ckpt(damaged, tmp_path / "older.pt")
    assert said.returncode == 0, said
    assert "step 5" in said.stdout, said
    assert "warning: a newer checkpoint was passed over" in said.stderr, said
    for words in (
        (damaged, tmp_path / "no.pt", "--step", "10"),
        (damaged / "checkpoints" / "step-000000000010", tmp_path / "no.pt"),
    ):
        said = ckpt(*words)
        assert said.returncode == CorruptError.exit_code, said
        assert not (tmp_path / "no.pt").exists()
        assert list(tmp_path.iterdir()) == [tmp_path / "older.pt"]
    with pytest.warns(UserWarning, match="passed over"):
        assert outlast.load(damaged, model=Net()) == 5


def test_a_manifest_of_a_newer_outlast_is_refused_with_both_versions(
    ended: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "step-000000000010"
    folder.mkdir()
    (found,) = (ended / "run").glob("checkpoints/step-*10/manifest.json")
    body = json.loads(found.read_text())
    (folder / "manifest.json").write_text(json.dumps({**body, "schema": 99}))
    with pytest.raises(CorruptError, match="schema 99, this version of outlast reads 1"):
        outlast.load(folder, model=Net())


def test_a_failed_export_names_its_cause_and_overwrites_nothing(
    ended: Path, tmp_path: Path
) -> None:
    (tmp_path / "there.pt").write_text("mine")
    run = ended / "run"
    for words, error in (
        ((run, tmp_path / "there.pt"), "exists already"),
        ((run, tmp_path / "a.pt", "--name", "ema"), "has no weights of 'ema'"),
        ((run, tmp_path / "a.pt", "--step", "7"), "has no checkpoint of step 7"),
        ((run, tmp_path / "none" / "a.pt"), "there is no folder"),
        ((tmp_path, tmp_path / "a.pt"), "is not a run folder"),
    ):
        said = ckpt(*words)
        assert error in said.stderr, said
        assert "hint: " in said.stderr, said
        assert said.returncode in (1, 2), said
    assert (tmp_path / "there.pt").read_text() == "mine"
    with pytest.raises(UsageError, match="no module"):
        outlast.load(run)


def test_a_run_without_checkpoints_says_which_option_makes_them(
    ended: Path, tmp_path: Path
) -> None:
    """Method: the folder of a run without its checkpoints, as if none had been requested."""
    leave_out = shutil.ignore_patterns("checkpoints")
    shutil.copytree(ended / "run", tmp_path / "run", ignore=leave_out)
    said = ckpt(tmp_path / "run", tmp_path / "a.pt")
    assert said.returncode == 2, said
    assert "has no checkpoint" in said.stderr, said
    assert "--checkpoint-every" in said.stderr, said
