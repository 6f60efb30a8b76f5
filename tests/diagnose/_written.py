"""Folders of evidence that a test writes, and what is diagnosed of them."""

from __future__ import annotations

from pathlib import Path

from outlast.model.verdict import Verdict
from outlast.runtime.evidence.reading import diagnose


def verdict_of(folder: Path, files: dict[str, str]) -> Verdict:
    """Write the files, each by its path in the folder, and diagnose the folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return diagnose([str(folder)]).verdict
