"""How many lines an adapter takes: the examples, beside the same scripts without outlast.

That these examples survive kills with equal bits is shown in test_hf_trainer.py and
test_lightning.py.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
LINES_MAX = 3
CHANGED = {  # the lines that differ from a script for torchrun, as they begin
    "hf_trainer.py": (
        "import outlast.hf",
        "    run = outlast.join()",
        "    trainer = outlast.hf.Trainer(",
    ),
    "lightning_fit.py": (
        "import outlast.lightning",
        '        strategy="ddp" if given.plain else outlast.lightning.Strategy(),',
    ),
}
# What the examples do besides, to show that the weights are those of a run that never failed
SHOWN = ("import outlast", '    print(f"digest {')


@pytest.mark.parametrize("name", CHANGED)
def test_an_adapter_takes_three_lines_at_most(name: str) -> None:
    """Method: every line of the example that names outlast is one of those, and each is there."""
    text = (EXAMPLES / name).read_text()
    docstring = ast.parse(text).body[0].end_lineno or 0
    found = [line for line in text.splitlines()[docstring:] if "outlast" in line]
    adopted = [line for line in found if line != SHOWN[0] and not line.startswith(SHOWN[1])]
    assert len(adopted) <= LINES_MAX
    assert len(adopted) == len(CHANGED[name])
    for line, begins in zip(adopted, CHANGED[name], strict=True):
        assert line.startswith(begins)
