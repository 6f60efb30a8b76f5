"""`outlast.diagnose(paths)`, and the schema of what it returns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.model.verdict import SCHEMA, Verdict

PAGES = Path(__file__).parents[2] / "docs" / "reference"
LOG = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rank_3.log").write_text(LOG)
    return tmp_path


def faults(value: Any, schema: dict[str, Any], at: str = "$") -> list[str]:
    """What does not fit: the part of JSON Schema that the page uses."""
    kinds = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "null": type(None),
    }
    wanted = schema.get("type", [])
    names = [wanted] if isinstance(wanted, str) else wanted
    if names and not any(isinstance(value, kinds[name]) for name in names):
        return [f"{at}: {value!r} is no {names}"]
    found = [f"{at}: {value!r}"] if "enum" in schema and value not in schema["enum"] else []
    found += [f"{at}: {value!r}"] if "const" in schema and value != schema["const"] else []
    if isinstance(value, dict):
        known = schema.get("properties", {})
        found += [f"{at}.{key}: missing" for key in schema.get("required", []) if key not in value]
        found += [f"{at}.{key}: not in the schema" for key in value if key not in known]
        for key in value.keys() & known.keys():
            found += faults(value[key], known[key], f"{at}.{key}")
    if isinstance(value, list):
        for number, one in enumerate(value):
            found += faults(one, schema["items"], f"{at}[{number}]")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        found += [] if low <= value <= high else [f"{at}: {value}"]
    return found


def test_a_program_gets_the_verdict(folder: Path) -> None:
    for given in (folder, str(folder), [folder], [str(folder / "rank_3.log")]):
        got = outlast.diagnose(given)
        assert isinstance(got, Verdict)
        assert (got.failure_class.value, [one.rank for one in got.ranks]) == ("hbm", [3])


def test_the_package_can_be_called_whichever_name_is_imported_first() -> None:
    """A package and a function share the name: the import of one must not hide the other."""
    for first in ("outlast.diagnose.findings", "outlast.errors"):
        program = (
            f"import importlib, outlast; importlib.import_module({first!r});"
            "assert callable(outlast.diagnose);"
            "from outlast import diagnose; assert callable(diagnose);"
            "import outlast.diagnose.pipeline; assert callable(outlast.diagnose)"
        )
        assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_a_path_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(outlast.UsageError, match="nowhere"):
        outlast.diagnose("/nowhere/at/all")


def test_the_public_verdict_fits_its_schema(folder: Path, tmp_path: Path) -> None:
    schema = json.loads((PAGES / "verdict.schema.json").read_text())
    (tmp_path / "quiet.log").write_text("step 1\nstep 2\n")
    for path in (folder, tmp_path / "quiet.log"):
        public = outlast.diagnose(path).public()
        assert public["schema"] == SCHEMA == schema["$id"]
        assert not faults(json.loads(json.dumps(public)), schema)


def test_what_does_not_fit_the_schema_is_seen() -> None:
    schema = json.loads((PAGES / "verdict.schema.json").read_text())
    public = {**outlast.diagnose.__dict__, "class": "bad luck", "confidence": 2}
    found = faults(public, schema)
    assert any("$.class" in one for one in found)
    assert any("$.confidence" in one for one in found)
    assert any("missing" in one for one in found)
