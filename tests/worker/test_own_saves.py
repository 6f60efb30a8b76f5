"""From which step a script went on, as far as the files show that it has saved and loaded.

Files and records are real. A class stands in for tensors: what counts is which object it is.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from outlast.runtime.worker.script import own_saves
from outlast.runtime.worker.script.own_saves import OwnSaves

DAY_S = 86_400.0


class Part:
    """One tensor of a file."""


def old(path: Path) -> Path:
    """Return a file that was there a day before the run."""
    path.write_bytes(b"pretrained")
    os.utime(path, (time.time() - DAY_S, time.time() - DAY_S))
    return path


def first_process(folder: Path, *, saves: Callable[[OwnSaves], object]) -> None:
    """Let a process train and save. It is gone when this returns."""
    one = OwnSaves(str(folder))
    assert one.behind_by_weights(begun=False) == 0
    one.on_first_step()
    saves(one)


def at_step(path: Path, step: int) -> Callable[[OwnSaves], object]:
    """Return what saves a file through a file object after `step`, as `torch.save` would."""

    def save(one: OwnSaves) -> None:
        with open(path, "wb") as file:
            file.write(b"weights of %d" % step)
            one.on_save(file, step=step)

    return save


def by_path(path: Path) -> Path:
    return path


def by_handle(path: Path) -> BinaryIO:
    return open(path, "rb")


@pytest.mark.parametrize("how", [by_path, by_handle])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_file_that_was_saved_through_a_file_object_shows_its_step(
    tmp_path: Path, how: Callable[[Path], Any], renamed: bool
) -> None:
    """What the file object still holds back when the save returns does not change that."""
    path = tmp_path / "own.pt"
    first_process(tmp_path, saves=at_step(path, 7))
    if renamed:
        path = path.rename(tmp_path / "latest.pt")
    one = OwnSaves(str(tmp_path))
    where = how(path)
    one.on_load(where)
    if where is not path:
        where.close()
    assert (one.behind(), one.behind_by_weights(begun=True)) == (7, 7)


def test_what_is_loaded_from_memory_leaves_the_step_unknown(tmp_path: Path) -> None:
    """The loaded bytes may be those of a file that the script has saved in the same way."""
    first_process(tmp_path, saves=lambda one: one.on_save(io.BytesIO(), step=7))
    one, weights = OwnSaves(str(tmp_path)), {"weight": Part()}
    one.on_load(io.BytesIO(b"bytes of own.pt"), weights)
    one.on_weights(weights)
    assert (one.behind(), one.behind_by_weights(begun=True)) == (None, None)


def test_in_a_run_without_steps_nothing_loaded_is_a_step_of_it(tmp_path: Path) -> None:
    """The script begins with its first step, wherever its weights come from."""
    one = OwnSaves(str(tmp_path))
    one.on_load(io.BytesIO(b"pretrained"))
    one.on_weights({"weight": Part()})
    assert one.behind_by_weights(begun=False) == 0
    assert one.behind() is None


def test_weights_that_come_from_no_file_leave_the_step_unknown(tmp_path: Path) -> None:
    """A library may have read them from a file that no hook sees."""
    first_process(tmp_path, saves=lambda one: None)
    one = OwnSaves(str(tmp_path))
    assert one.behind_by_weights(begun=True) == 0, "nothing was loaded"
    one.on_weights({"weight": Part()})
    assert (one.behind(), one.behind_by_weights(begun=True)) == (None, None)


def test_weights_of_a_model_of_this_process_show_nothing_new(tmp_path: Path) -> None:
    """Method: its state is given under other names, as for a target network. Another part is not
    its own.
    """
    first_process(tmp_path, saves=lambda one: None)
    one, weight = OwnSaves(str(tmp_path)), Part()
    one.on_own_weights({"online.weight": weight})
    one.on_weights({"target.weight": weight})
    assert (one.behind(), one.behind_by_weights(begun=True)) == (0, 0)
    one.on_weights({"target.weight": weight, "bias": Part()})
    assert (one.behind(), one.behind_by_weights(begun=True)) == (None, None)


@pytest.mark.parametrize("other", [False, True])
def test_weights_of_a_file_older_than_the_first_step_are_no_step(
    tmp_path: Path, other: bool
) -> None:
    """So it is with pretrained weights: the script begins again with step 1.

    This holds for each part that the file has given, and not for another one of the same name.
    """
    first_process(tmp_path, saves=lambda one: None)
    one = OwnSaves(str(tmp_path))
    model: dict[str, object] = {"weight": Part(), "count": 3}
    loaded = {"model": model, "names": ["a", Part()]}
    one.on_load(old(tmp_path / "pretrained.pt"), loaded)
    one.on_weights({"renamed": Part() if other else model["weight"], "count": 3})
    assert one.behind_by_weights(begun=True) == (None if other else 0)


def test_a_file_that_may_have_been_written_by_the_run_leaves_it_unknown(tmp_path: Path) -> None:
    """Method: it was written after the first step, and not by a call that is seen."""
    first_process(tmp_path, saves=lambda one: None)
    path = tmp_path / "unseen.pt"
    path.write_bytes(b"weights")
    one = OwnSaves(str(tmp_path))
    one.on_load(path)
    assert one.behind_by_weights(begun=True) is None


@pytest.mark.parametrize("changed", [False, True])
def test_a_file_loaded_before_the_first_step_is_no_step(tmp_path: Path, changed: bool) -> None:
    """It may be new: data that the script has prepared, or weights that it has downloaded.

    If it is written again, it may hold anything.
    """
    path = tmp_path / "prepared.pt"
    path.write_bytes(b"data")
    first = OwnSaves(str(tmp_path))
    first.on_load(path)
    assert first.behind_by_weights(begun=False) == 0
    first.on_first_step()
    if changed:
        path.write_bytes(b"weights")
    one = OwnSaves(str(tmp_path))
    one.on_load(path)
    assert one.behind_by_weights(begun=True) == (None if changed else 0)


def test_no_file_is_older_than_a_first_step_that_is_not_known(tmp_path: Path) -> None:
    """Method: the records are those of a run that an earlier release began."""
    one = OwnSaves(str(tmp_path))
    one.on_load(old(tmp_path / "pretrained.pt"))
    assert one.behind_by_weights(begun=True) is None


def test_the_first_step_of_a_run_is_recorded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at_s in (1_000.0, 2_000.0):
        monkeypatch.setattr(own_saves.clock, "wall_s", lambda at_s=at_s: at_s)
        OwnSaves(str(tmp_path)).on_first_step()
    assert (tmp_path / own_saves.NAME).read_text() == '{"first_step_s": 1000.0}\n'


def test_an_unknown_file_beside_an_own_one_leaves_it_unknown(tmp_path: Path) -> None:
    """Nothing shows from which of the two files the script goes on."""
    path = tmp_path / "own.pt"
    first_process(tmp_path, saves=at_step(path, 7))
    one = OwnSaves(str(tmp_path))
    one.on_load(path)
    one.on_load(io.BytesIO(b"newer weights"))
    assert (one.behind(), one.behind_by_weights(begun=True)) == (None, None)


def test_an_average_that_is_set_from_the_model_hides_no_own_file(tmp_path: Path) -> None:
    path = tmp_path / "own.pt"
    first_process(tmp_path, saves=at_step(path, 7))
    one = OwnSaves(str(tmp_path))
    one.on_load(path)
    one.on_weights({"average": Part()})
    assert (one.behind(), one.behind_by_weights(begun=True)) == (7, 7)


def test_parts_beyond_the_limit_count_as_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_saves, "_PARTS_MAX_COUNT", 10)
    first_process(tmp_path, saves=lambda one: None)
    path, weights = old(tmp_path / "pretrained.pt"), {str(at): Part() for at in range(8)}
    for more, behind in ((0, 0), (100, None)):
        one = OwnSaves(str(tmp_path))
        loaded = {**weights, **{f"more {at}": at for at in range(more)}}
        one.on_load(path, loaded)
        one.on_weights(loaded)
        assert one.behind_by_weights(begun=True) == behind, more


def test_what_is_no_file_is_saved_and_loaded_without_an_error(tmp_path: Path) -> None:
    """A script may give a pipe, a closed file, or an object of its own."""
    closed = open(tmp_path / "closed", "wb")  # noqa: SIM115 - it is closed on purpose
    closed.close()
    reads, writes = os.pipe()
    with open(reads, "rb") as source, open(writes, "wb") as sink:
        one = OwnSaves(str(tmp_path))
        for where in (sink, closed, object(), 7, None, tmp_path / "missing", tmp_path):
            one.on_save(where, step=3)
        assert not (tmp_path / own_saves.NAME).exists()
        for where in (source, closed, object(), 7, None, tmp_path / "missing", tmp_path):
            one.on_load(where, loaded=where)
    assert one.behind() is None
