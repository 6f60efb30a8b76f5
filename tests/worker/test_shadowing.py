"""A file beside the script that hides a library is named, and the run ends at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from outlast.runtime.worker.start.shadowing import hidden_library
from tests.drills._run import OUTLAST

ASKED = {
    "an attribute": "import {name}; {name}.Wave_read",
    "a name": "from {name} import Wave_read",
    "a submodule": "import {name}.part",
}


def _error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, asked: str) -> Exception:
    """Run a line as the script in `tmp_path` would, and return what it raises."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    try:
        exec(asked.format(name=name), {})
    except Exception as error:
        return error
    finally:
        monkeypatch.setitem(sys.modules, name, sys.modules.get(name))
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("package", [False, True])
def test_a_file_that_hides_a_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, package: bool
) -> None:
    path = tmp_path / ("wave" if package else "wave.py")
    if package:
        path.mkdir()
    (path / "__init__.py" if package else path).write_text("x = 1\n")
    error = _error(tmp_path, monkeypatch, "wave", ASKED[asked])
    found = hidden_library(error, str(tmp_path))
    assert found is not None
    assert f"{path} hides the library wave (" in str(found)
    assert str(error) in str(found)
    assert str(path) in found.hint
    assert hidden_library(error, str(tmp_path / "elsewhere")) is None


@pytest.mark.parametrize("asked", ASKED)
def test_a_module_of_the_scripts_own_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    (tmp_path / "only_mine.py").write_text("x = 1\n")
    error = _error(tmp_path, monkeypatch, "only_mine", ASKED[asked])
    assert hidden_library(error, str(tmp_path)) is None


@pytest.mark.parametrize("error", [ValueError("x"), AttributeError("x"), ImportError("x")])
def test_other_errors_name_no_file(tmp_path: Path, error: Exception) -> None:
    assert hidden_library(error, str(tmp_path)) is None


@pytest.mark.drill
def test_a_run_ends_at_once_and_names_the_file(tmp_path: Path) -> None:
    """The script is started only once. A `json.py` in that folder does not affect outlast's own
    processes.
    """
    (tmp_path / "json.py").write_text("x = 1\n")
    (tmp_path / "wave.py").write_text("x = 1\n")
    script = tmp_path / "train.py"
    script.write_text("import wave\nprint('begun', flush=True)\nwave.open('x')\n")
    command = [OUTLAST, "run", "--nproc-per-node", "1", "--run-dir", "run", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert done.returncode == 2, done
    assert done.stdout.count("begun") == 1, done
    assert f"train.py:3 in <module>: {tmp_path / 'wave.py'} hides the library wave" in done.stderr
    assert "hint: give" in done.stderr, done
