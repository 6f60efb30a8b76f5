"""`outlast.diagnose(paths)`: the verdict, for programs that raise alerts.

The command line prints the same verdict. Its JSON has a version (`Verdict.public()["schema"]`), and
its schema is docs/reference/verdict.schema.json.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from outlast.model.verdict import Verdict
from outlast.runtime.evidence.deadline import DEFAULT_LIMIT_S
from outlast.runtime.evidence.reading import diagnose as _diagnose


def diagnose(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    time_limit_s: float = DEFAULT_LIMIT_S,
) -> Verdict:
    """Find out why a job failed or hangs, from the evidence that it left behind.

        verdict = outlast.diagnose("incident")
        if verdict.failure_class.value == "hbm":
            cordon(verdict.nodes)

    paths          a folder, a file or an archive, or several of them as one incident
    time_limit_s   seconds to read in; the verdict comes from what could be read until then

    `Verdict.public()` is the object that `outlast diagnose --json` prints. Secrets are not taken
    out of it here.

    It raises UsageError if a path cannot be read, or if nothing in all of them is evidence.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    return _diagnose([os.fspath(path) for path in given], limit_s=time_limit_s).verdict
