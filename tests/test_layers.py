"""Imports go down only, those under TYPE_CHECKING included.

The table below is the one of docs/explanation/architecture.md, and both are held together.

What is not seen: names imported at run time through importlib with a computed name.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.syntax import nodes_of

SRC = Path(__file__).parents[1] / "src"
ROOT = SRC / "outlast"

# layer -> what of outlast it may import besides itself; `errors` and the package's own
# `__version__` are open to all
MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "engine": {"model"},
    "diagnose": {"model"},
    "sim": {"engine", "diagnose", "model"},
    "runtime": {"engine", "diagnose", "model"},
    "planner": {"sim", "engine", "diagnose", "model"},
    "app": {"planner", "sim", "runtime", "engine", "diagnose", "model"},
    "errors": set(),
    # outlast/__init__.py: the public names, each loaded when it is first asked for
    "": {"runtime"},
    "__main__": {"app"},
    # outlast/hf.py and outlast/lightning.py: adapters that are imported by their own names, because
    # they need more packages
    "hf": {"runtime"},
    "lightning": {"runtime"},
    # outlast/checkpoint.py, likewise: it needs torch
    "checkpoint": {"runtime"},
}

# layer -> packages from outside the standard library
MAY_USE: dict[str, set[str]] = {
    "model": {"tomli"},  # the standard library's tomllib, where Python is older than 3.11
    "engine": {"numpy"},
    "diagnose": {"numpy"},
    "sim": {"numpy"},
    "planner": {"numpy"},
    "runtime": {
        "numpy",
        "xxhash",
        "safetensors",
        "ray",
        "transformers",
        "lightning",
        "torchft",
        "torchmetrics",
        "obstore",
    },
    "app": {
        "numpy",
        "rich",
        "matplotlib",
        "prometheus_client",
        "pyarrow",
        "jinja2",
        "markupsafe",
        "anyio",
        "fastapi",
        "starlette",
        "uvicorn",
    },
}
TORCH = {"torch", "torchdata"}
TORCH_HOME = "outlast.runtime.worker"
WEB = "outlast.app.web."  # what lies there needs outlast[web]

FILES = sorted(ROOT.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    return [*module.split("."), ""][1]


def imports_of(source: str, module: str, *, is_package: bool = False) -> list[tuple[int, str]]:
    """Every module named by an import statement anywhere in the source, functions and TYPE_CHECKING
    included.
    """
    found: list[tuple[int, str]] = []
    package = module if is_package else module.rpartition(".")[0]
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            found.extend((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*up, base] if base else up)
            # `from outlast import engine` names a layer in its list; `from outlast.model.terms
            # import Rung` names it in its base
            found.extend(
                (node.lineno, f"{base}.{alias.name}" if base == "outlast" else base)
                for alias in node.names
            )
    return found


def fault_of(module: str, imported: str) -> str:
    """Why `module` may not import `imported`; empty where it may."""
    layer, top = layer_of(module), imported.split(".")[0]
    if top == "outlast":
        target = layer_of(imported)
        free = {layer, "errors", "__version__"}
        return (
            ""
            if target in free | MAY_IMPORT.get(layer, set())
            else f"the layer {layer or 'outlast'!r} may not import {imported}"
        )
    if top in sys.stdlib_module_names:
        return ""
    if top in TORCH:
        return "" if module.startswith(TORCH_HOME) else f"torch is imported only under {TORCH_HOME}"
    return (
        ""
        if top in MAY_USE.get(layer, set())
        else f"the layer {layer or 'outlast'!r} may not use {top}"
    )


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_go_down_the_layers_only(path: Path) -> None:
    """Method: every import statement of every file, held against the table."""
    module = module_of(path)
    faults = [
        f"{path.relative_to(SRC)}:{line}: {fault}"
        for line, imported in imports_of(
            path.read_text(), module, is_package=path.name == "__init__.py"
        )
        if (fault := fault_of(module, imported))
    ]
    assert not faults, "\n".join(faults)


def test_what_runs_on_each_node_needs_nothing_of_the_coordinators() -> None:
    """A node has an agent, and most nodes have no coordinator."""
    agents = [path for path in FILES if module_of(path).startswith("outlast.runtime.agent.")]
    wrong = [
        f"{module_of(path)} imports {imported}"
        for path in agents
        for _, imported in imports_of(path.read_text(), module_of(path))
        if imported.startswith("outlast.runtime.coordinator")
    ]
    assert agents
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Method: take away what imports nothing that is left, or is not imported, again and again. A
    circle stays.

    Imports for types count, too. A package counts as its `__init__`.
    """
    known = {module_of(path): path for path in FILES}
    left = {
        module: {
            named if named in known else imported
            for imported, named in names_from(path.read_text())
            if {named, imported} & known.keys()
        }
        - {module}
        for module, path in known.items()
    }
    ends = {""}
    while ends:
        wanted = set().union(*left.values())
        ends = {one for one, imported in left.items() if not imported & left.keys()}
        ends |= left.keys() - wanted
        left = {one: imported for one, imported in left.items() if one not in ends}
    assert not left, f"these import each other: {sorted(left)}"


def names_from(source: str) -> list[tuple[str, str]]:
    """Return each module that is imported from, and what is taken, as if that were a module."""
    return [
        (node.module, f"{node.module}.{alias.name}")
        for node in nodes_of(source)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    ]


def test_the_design_page_has_the_same_table() -> None:
    text = (SRC.parent / "docs" / "explanation" / "architecture.md").read_text()
    rows = dict(re.findall(r"^\| \d \| `(\w+)/` \|.*\| ([^|]+) \|$", text, re.MULTILINE))
    words = {"all below": MAY_IMPORT["app"], "standard library": set()}
    said = {layer: words.get(names, set(names.split(", "))) for layer, names in rows.items()}
    layers = {layer for layer in MAY_IMPORT if (ROOT / layer).is_dir() and layer}
    assert said == {layer: MAY_IMPORT[layer] for layer in layers}


def test_every_folder_has_a_place_in_the_table() -> None:
    assert {layer_of(module_of(path)) for path in FILES} <= set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("outlast.model.terms", "import numpy"),
        ("outlast.model.terms", "from outlast.engine import budget"),
        ("outlast.model.terms", "from ..engine import budget"),
        ("outlast.engine.deadlines", "import torch"),
        ("outlast.engine.deadlines", "def f():\n    import outlast.runtime.loop"),
        ("outlast.engine.deadlines", "from outlast import runtime"),
        ("outlast.sim.world.world", "from outlast.runtime.loop import Loop"),
        ("outlast.runtime.loop", "from outlast.sim.world.world import World"),
        ("outlast.engine.hang", "if TYPE_CHECKING:\n    from outlast.sim.world.world import World"),
        ("outlast.runtime.agent.vault", "from torch import Tensor"),
        ("outlast.runtime.tiers.local", "import torch"),
        ("outlast.runtime.tiers.torch_save", "import torch"),
        ("outlast.planner.scale", "from outlast.runtime.ledger import store"),
        ("outlast.app.cli", "import torch.distributed.run"),
        ("outlast.runtime.loop", "import psutil"),
    ],
)
def test_a_forbidden_import_is_seen(module: str, source: str) -> None:
    """The check checks: a green table would mean nothing if it saw nothing."""
    assert [
        fault for _, imported in imports_of(source, module) if (fault := fault_of(module, imported))
    ]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("outlast.runtime.worker.steps.vote", "import torch.distributed as dist"),
        (
            "outlast.engine.restore",
            (
                "from outlast.model.messages import Inventory\nfrom outlast.errors import"
                " CorruptError\nimport numpy"
            ),
        ),
        (
            "outlast.app.reports.report",
            "from outlast.runtime.ledger.read import Ledger\nimport rich.table",
        ),
    ],
)
def test_an_allowed_import_is_not_blamed(module: str, source: str) -> None:
    assert not [
        fault for _, imported in imports_of(source, module) if (fault := fault_of(module, imported))
    ]


def test_tests_and_scripts_use_declared_packages_only() -> None:
    """What happens to lie in one developer's environment is missing in a fresh one. torchft, simpy,
    numba and zfec are peers: imported where they are measured. transformers, accelerate, lightning
    and torchmetrics are those of the adapters; trl, datasets and tokenizers those of an example;
    anyio and uvicorn come with outlast[web]. playwright drives the browser of the drills, and moto
    with werkzeug is the S3 server of the tests.
    """
    declared = {
        "outlast",
        "numpy",
        "rich",
        "prometheus_client",
        "pyarrow",
        "tensorboard",
        "safetensors",
        "xxhash",
        "torch",
        "torchdata",
        "pytest",
        "hypothesis",
        "torchft",
        "simpy",
        "numba",
        "zfec",
        "torchsnapshot",
        "transformers",
        "accelerate",
        "lightning",
        "torchmetrics",
        "trl",
        "datasets",
        "tokenizers",
        "anyio",
        "uvicorn",
        "playwright",
        "obstore",
        "moto",
        "werkzeug",
    }
    folders = ("tests", "examples", "benchmarks", "tools")
    paths = [path for folder in folders for path in (SRC.parent / folder).rglob("*.py")]
    known = (
        declared
        | set(sys.stdlib_module_names)
        | set(folders)
        | {path.stem for path in paths}
        | {"peers"}
    )
    unknown = {
        (path.name, name)
        for path in paths
        for _, name in imports_of(path.read_text(), path.stem)
        if name.split(".")[0] not in known
    }
    assert not unknown


def floors_of_the_worker() -> dict[str, int]:
    """The floor of each folder of the worker, and of run.py, by the page of the architecture."""
    page = (SRC.parent / "docs/explanation/architecture.md").read_text()
    return {
        row[2].rstrip("/").removesuffix(".py"): int(row[1])
        for row in re.finditer(r"^\| (\d+) \| `([a-z_]+(?:/|\.py))` \|", page, re.MULTILINE)
    }


def test_folders_of_the_worker_import_downwards_only() -> None:
    """A line of code knows what it may touch: what lies on a lower floor, or in its own folder."""
    floors = floors_of_the_worker()
    home = TORCH_HOME + "."
    found = {
        (place, target)
        for path in FILES
        if (module := module_of(path)).startswith(home)
        for _, imported in imports_of(path.read_text(), module)
        if imported.startswith(home)
        and (place := module.removeprefix(home).split(".")[0])
        != (target := imported.removeprefix(home).split(".")[0])
    }
    assert {name for pair in found for name in pair} <= set(floors)
    assert not sorted((a, b) for a, b in found if floors[a] <= floors[b])


def test_everything_outside_the_worker_starts_without_torch() -> None:
    """Method: a fresh process imports every such module and looks for torch.

    This also sees what is imported indirectly.
    """
    modules = [
        module_of(path)
        for path in FILES
        if not module_of(path).startswith(TORCH_HOME)
        and path.name != "__main__.py"
        # these are torch's, and are imported by their own names
        and module_of(path) not in ("outlast.hf", "outlast.lightning", "outlast.checkpoint")
        and (find_spec("fastapi") or not module_of(path).startswith(WEB))
    ]
    program = (
        f"import importlib, sys\nfor name in {modules!r}:\n   "
        " importlib.import_module(name)\nassert 'torch' not in sys.modules, 'torch was imported'"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
