"""`outlast ckpt diff` and the formats of `ckpt export`, on checkpoints of outlast.checkpoint."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from outlast.app import cli
from outlast.checkpoint import Writer
from outlast.runtime.worker.saving.weights_diff import Side, compare


@pytest.fixture(autouse=True)
def _alone() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def save(root: Path, step: int, **tensors: torch.Tensor) -> str:
    dcp.save({"model": tensors}, storage_writer=Writer(root, step=step))
    return str(root)


def ckpt(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert cli.main(["ckpt", *words]) == code
    said = capsys.readouterr()
    return said.out + said.err


def test_equal_weights_are_the_same_in_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Method: compare a checkpoint with what was exported from it, in all three formats."""
    tensors = {"w": torch.randn(5, 3), "flag": torch.tensor([True]), "nan": torch.tensor(torch.nan)}
    run = save(tmp_path / "run", 4, **tensors)
    for name in ("a.safetensors", "a.pt"):
        ckpt(capsys, "export", run, str(tmp_path / name))
        said = ckpt(capsys, "diff", run, str(tmp_path / name))
        assert said == "all 3 tensors are the same, bit for bit\n"
    assert load_file(tmp_path / "a.safetensors")["w"].equal(tensors["w"])
    ckpt(capsys, "export", run, str(tmp_path / "a"), "--format", "dcp")
    found = {"model": {name: torch.zeros_like(one) for name, one in tensors.items()}}
    dcp.load(found, checkpoint_id=str(tmp_path / "a"))
    assert found["model"]["w"].equal(tensors["w"])


def test_a_difference_is_reported_with_its_place_and_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zero = torch.zeros(4)
    run = save(tmp_path, 1, w=torch.ones(4), only_a=zero, size=torch.zeros(2, 2), same=zero)
    save(tmp_path, 2, w=torch.tensor([1.0, 1, 1, 3]), only_b=zero, size=torch.zeros(4), same=zero)
    words = ("diff", run, run, "--step", "1", "--step-b", "2")
    found = json.loads(ckpt(capsys, *words, "--json", code=1))
    assert (found["a"]["step"], found["b"]["step"], found["same"]) == (1, 2, False)
    by_name = {one["name"]: one for one in found["differences"]}
    assert {name: one["kind"] for name, one in by_name.items()} == {
        "model.only_a": "only in A",
        "model.only_b": "only in B",
        "model.size": "dtype or size",
        "model.w": "values",
    }
    one = by_name["model.w"]
    assert (one["differing"], one["of"], one["max_apart"], one["relative"]) == (1, 4, 2.0, 1.0)
    text = ckpt(capsys, *words, "--most", "3", code=1)
    assert text.startswith("4 of 5 tensors differ\n")
    assert "and 1 more" in text


def half(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bfloat16)


def small(values: list[float]) -> torch.Tensor:
    return torch.tensor(values).to(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    ("a", "b", "differing", "apart"),
    [
        (torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 2.0]), 1, 0.0),
        (torch.tensor([0.0]), torch.tensor([-0.0]), 1, 0.0),
        (half([1.0, 2.0]), half([1.0, 4.0]), 1, 2),
        (torch.tensor([True, False]), torch.tensor([False, False]), 1, 1.0),
        (torch.tensor([1j]), torch.tensor([4j]), 1, 3.0),
        (small([1.0]), small([2.0]), 1, 1),
    ],
)
def test_values_of_any_dtype_are_compared_by_their_bits(
    a: torch.Tensor, b: torch.Tensor, differing: int, apart: float
) -> None:
    (one,), _ = compare(Side("a", None, {"x": a}), Side("b", None, {"x": b}))
    assert (one.differing, one.max_apart) == (differing, apart)
    assert compare(Side("a", None, {"x": a}), Side("b", None, {"x": a.clone()})) == ([], 1)


def test_what_cannot_be_compared_or_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = save(tmp_path / "run", 1, w=torch.zeros(2, dtype=torch.complex128))
    (tmp_path / "cut.safetensors").write_bytes(b"\xff" * 20)
    (tmp_path / "text.pt").write_text("mine")
    save_file({"w": torch.ones(1)}, tmp_path / "a.safetensors")
    for words, code, why in (
        (("diff", run, str(tmp_path / "cut.safetensors")), 1, "cannot be read"),
        (("diff", run, str(tmp_path / "text.pt")), 1, "cannot be read"),
        (("diff", run, str(tmp_path / "none")), 2, "there is no run"),
        (("diff", run, str(tmp_path / "a.safetensors"), "--step-b", "3"), 2, "has no steps"),
        (("export", run, str(tmp_path / "b.safetensors")), 2, "has no place in a safetensors"),
    ):
        said = ckpt(capsys, *words, code=code)
        assert why in said, said
        assert not (tmp_path / "b.safetensors").exists()
